/* out += outer * D(inner * x), D the Dawson function: the slope of the divergence from the log-uniform prior.

   As in normals.c, only operations that IEEE 754 rounds in one way, in a fixed order: the NumPy version in reference.py
   gives the same bits. tools/dawson_rational.py derives the coefficients. */

#include "kernels.h"

enum { PIECE = 1024 }; /* values that wait on the stack: x and out may be the same memory, which loops cannot vectorise */

/* D(x) = x P(x^2) / Q(x^2); both would overflow where 1 / (2x) is already as good, from |x| = 2000 on. */
INLINE float dawson(float x) {
    float z = x * x;
    float p = 9.831774e-19f;
    p = p * z + 2.8292458e-18f;
    p = p * z + 9.453785e-17f;
    p = p * z + 7.27154e-16f;
    p = p * z + 5.520538e-15f;
    p = p * z + 3.85613e-14f;
    p = p * z + 7.677518e-14f;
    p = p * z + 9.0949465e-13f;
    float q = 1.966355e-18f;
    q = q * z + 4.674986e-18f;
    q = q * z + 1.8534829e-16f;
    q = q * z + 1.3461277e-15f;
    q = q * z + 1.0604392e-14f;
    q = q * z + 6.020649e-14f;
    q = q * z + 2.5145746e-13f;
    q = q * z + 6.831017e-13f;
    q = q * z + 9.094947e-13f;
    int far = z > 4e6f;
    float ratio = (far ? 0.5f : p) / (far ? x : q);
    return (far ? 1.0f : x) * ratio;
}

INLINE void add_piece(float *out, const float *x, size_t count, float inner, float outer) {
    float value[PIECE];
    for (size_t i = 0; i < count; i++) value[i] = outer * dawson(inner * x[i]);
    for (size_t i = 0; i < count; i++) out[i] = out[i] + value[i];
}

static void add_piece_baseline(float *out, const float *x, size_t count, float inner, float outer) {
    add_piece(out, x, count, inner, outer);
}

#if DPVD_X86
__attribute__((target("avx2"))) static void add_piece_avx2(float *out, const float *x, size_t count, float inner,
                                                           float outer) {
    add_piece(out, x, count, inner, outer);
}
#endif

static void (*chosen_add)(float *out, const float *x, size_t count, float inner, float outer) = add_piece_baseline;

void choose_dawson(void) {
#if DPVD_X86
    if (__builtin_cpu_supports("avx2")) chosen_add = add_piece_avx2;
#endif
}

void add_dawson(float *out, const float *x, size_t count, float inner, float outer, int threads) {
    long long pieces = (long long)(count / PIECE + (count % PIECE != 0));
    (void)threads; /* without OpenMP there is one */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long long i = 0; i < pieces; i++) {
        size_t first = (size_t)i * PIECE, left = count - first;
        chosen_add(out + first, x + first, left < PIECE ? left : PIECE, inner, outer);
    }
}
