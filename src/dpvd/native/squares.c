/* Sums of squares of the rows of a matrix: norms of gradients and variances of outputs are made of them.

   The square of a float32 is exact in double precision, and so is nearly every digit of a sum of them: the order of
   the additions, fused or not, on whatever instruction set, is not seen in the float32 that comes out. */

#include "kernels.h"

enum { LANES = 16 }; /* sums that grow side by side: four registers of four hide the latency of an addition */

INLINE double square(const float *x, const float *scale, size_t i) {
    float scaled = scale ? scale[i] * x[i] : x[i];
    return (double)scaled * (double)scaled;
}

INLINE float row_square(const float *x, const float *scale, size_t columns) {
    double sums[LANES] = {0};
    size_t whole = columns - columns % LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) sums[lane] += square(x, scale, i + lane);
    for (size_t i = whole; i < columns; i++) sums[i - whole] += square(x, scale, i);
    double total = 0;
    for (size_t lane = 0; lane < LANES; lane++) total += sums[lane];
    return (float)total;
}

/* Whether there is a scale is asked once for a row, not for every entry. */
INLINE float either(const float *x, const float *scale, size_t columns) {
    return scale ? row_square(x, scale, columns) : row_square(x, NULL, columns);
}

static float row_square_baseline(const float *x, const float *scale, size_t columns) {
    return either(x, scale, columns);
}

#if DPVD_X86
__attribute__((target("avx2"))) static float row_square_avx2(const float *x, const float *scale, size_t columns) {
    return either(x, scale, columns);
}
#endif

static float (*chosen_square)(const float *x, const float *scale, size_t columns) = row_square_baseline;

void choose_squares(void) {
#if DPVD_X86
    if (__builtin_cpu_supports("avx2")) chosen_square = row_square_avx2;
#endif
}

void row_squares(const float *x, const float *scale, float *out, size_t rows, size_t columns, int threads) {
    (void)threads; /* without OpenMP there is one */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long long i = 0; i < (long long)rows; i++) out[i] = chosen_square(x + (size_t)i * columns, scale, columns);
}
