/* Clipped sums and Gaussian noise, added on a grid: sums in, noisy sums or noisy parameters out, in
   one pass.

   Per entry, with g the unit of the grid (a power of two) and n a normal draw in double precision,

       noisy = g * (round(sum / g) + round(std * n / g))

   All of it is exact but for the draw: whole numbers below 2^53. mechanisms/noise.py says why
   nothing of the sum can be read off the last bits then. reference.py has the definition of the draws in
   NumPy, tools/noise_polynomials.py derives the coefficients. Loops are plain, and without
   branches, so that compilers turn them into vector code. */

#include <math.h>
#include <string.h>

#include "kernels.h"

enum { BLOCK_WORDS = 2 * EXACT_PAIRS }; /* one for the radius and one for the angle of each pair */

/* x + this - this rounds x to a whole number, for |x| up to 2^51 */
static const double whole_numbers = 0x1.8p52;
static const double most_units = 0x1p51;

/* a * b + c, rounded once where the processor can do that */
INLINE double multiply_add(double a, double b, double c, int fused) {
    return fused ? fma(a, b, c) : a * b + c;
}

/* The low 63 bits of a word as a number, rounded once. Only AVX-512 converts these in vectors, so
   each half is put behind the leading bits of a power of two: 2^84 + high * 2^32 and 2^52 + low. */
INLINE double from_word(uint64_t word) {
    double high = as_double(((word >> 32) & 0x7FFFFFFFu) | 0x4530000000000000u);
    double low = as_double((word & 0xFFFFFFFFu) | 0x4330000000000000u);
    return (high - (0x1p84 + 0x1p52)) + low;
}

/* sqrt(-2 ln u) for u = (w + (v + 1/2) / 2^10) / 2^63, w the low 63 bits of the one word and v the
   low 10 of the other. u = m * 2^-halvings with m between sqrt(1/2) and sqrt(2), and ln m = 2
   atanh(s) for s = (m - 1) / (m + 1). */
INLINE double radius_of(uint64_t word, uint64_t angle, int fused) {
    const uint64_t one = 0x3FF0000000000000u, sqrt_half = 0x3FE6A09E667F3BCDu;
    double shifted = as_double(one | (angle & 0x3FFu) << 42); /* 1 + v / 2^10 */
    double fraction = shifted - (1.0 - 0x1p-11);
    uint64_t bits = bits_of_double(from_word(word) + fraction);
    uint64_t exponent = (bits + (one - sqrt_half)) >> 52;
    double t = as_double(bits - (exponent << 52) + one) - 1.0;
    double halvings = (0x1p52 + 1023 + 63) - as_double(exponent | 0x4330000000000000u);
    double s = t / (2.0 + t);
    double z = s * s;
    double p = 0.14616449685043406;
    p = multiply_add(p, z, 0.15331721600556042, fused);
    p = multiply_add(p, z, 0.18182889125261723, fused);
    p = multiply_add(p, z, 0.2222221113479508, fused);
    p = multiply_add(p, z, 0.28571428625975487, fused);
    p = multiply_add(p, z, 0.39999999999899505, fused);
    p = multiply_add(p, z, 0.666666666666667, fused);
    double log_m = multiply_add(s * z, p, s + s, fused);
    double energy = multiply_add(halvings, 0.6931471805599453, -log_m, fused);
    energy = energy > 0x1p-54 ? energy : 0x1p-54; /* the last word would give 0, and no noise */
    return sqrt(energy + energy);
}

/* (cos a, sin a) for a = (t + 1/2) * 2 pi / 2^54, t the top 54 bits of the word: quarter turns
   exactly, from the first two, polynomials between. */
INLINE void turn_of(uint64_t word, double *cosine, double *sine, int fused) {
    uint64_t shifted = word + 0x2000000000000000u;
    uint64_t quarter = shifted >> 62;
    uint64_t rest = (shifted & 0x3FFFFFFFFFFFFFFFu) >> 10; /* 2^51 in the middle of a quarter */
    double steps = (as_double(rest | 0x4330000000000000u) - (0x1p52 + 0x1p51)) + 0.5; /* exact */
    double x = steps * 3.487868498008632e-16; /* pi / 2^53 */
    double z = x * x;
    double s = 1.5918129294866608e-10;
    s = multiply_add(s, z, -2.5051131845003624e-08, fused);
    s = multiply_add(s, z, 2.755731610255244e-06, fused);
    s = multiply_add(s, z, -0.00019841269836758574, fused);
    s = multiply_add(s, z, 0.008333333333330948, fused);
    s = multiply_add(s, z, -0.16666666666666666, fused);
    s = multiply_add(x * z, s, x, fused);
    double c = -1.1382632425521717e-11;
    c = multiply_add(c, z, 2.08761462684032e-09, fused);
    c = multiply_add(c, z, -2.7557317271729793e-07, fused);
    c = multiply_add(c, z, 2.480158729876569e-05, fused);
    c = multiply_add(c, z, -0.0013888888888887398, fused);
    c = multiply_add(c, z, 0.041666666666666664, fused);
    c = multiply_add(c, z, -0.5, fused);
    c = multiply_add(c, z, 1.0, fused);
    uint64_t swap = 0u - (quarter & 1u);
    uint64_t cosine_bits = bits_of_double(c);
    uint64_t sine_bits = bits_of_double(s);
    uint64_t change = (cosine_bits ^ sine_bits) & swap;
    *cosine = as_double((cosine_bits ^ change) ^ (((quarter + 1u) & 2u) << 62));
    *sine = as_double((sine_bits ^ change) ^ ((quarter & 2u) << 62));
}

/* Two planes of words, radii and angles, to two planes of draws, cosines and sines. */
INLINE void normals_of(const uint64_t *words, size_t pairs, double *normals, int fused) {
    for (size_t i = 0; i < pairs; i++) {
        double cosine, sine;
        double radius = radius_of(words[i], words[pairs + i], fused);
        turn_of(words[pairs + i], &cosine, &sine, fused);
        normals[i] = radius * cosine;
        normals[pairs + i] = radius * sine;
    }
}

/* round(sum / g) + round(std * n / g). A sum beyond the whole numbers is cut, which brings no two
   sums further apart. */
INLINE double noisy_units(double sum, double normal, const grid *grid) {
    double units = sum * grid->units_per_one;
    units = units < most_units ? units : most_units;
    units = units > -most_units ? units : -most_units;
    double rounded = (units + whole_numbers) - whole_numbers;
    double noise = (normal * grid->units_per_std + whole_numbers) - whole_numbers;
    return rounded + noise;
}

/* With parameters they take factor * noisy and the sums are zeroed; without them the sums become
   factor * noisy. */
#define RELEASE_INTO(name, real)                                                                               \
    INLINE void name(const double *normals, real *restrict sums, real *restrict parameters, size_t count,      \
                     const grid *grid) {                                                                       \
        if (parameters == NULL) {                                                                              \
            for (size_t i = 0; i < count; i++)                                                                 \
                sums[i] = (real)(noisy_units((double)sums[i], normals[i], grid) * grid->factor);               \
            return;                                                                                            \
        }                                                                                                      \
        for (size_t i = 0; i < count; i++) {                                                                   \
            double noisy = noisy_units((double)sums[i], normals[i], grid) * grid->factor;                      \
            parameters[i] = (real)((double)parameters[i] + noisy);                                             \
            sums[i] = 0;                                                                                       \
        }                                                                                                      \
    }

RELEASE_INTO(release_floats, float)
RELEASE_INTO(release_doubles, double)

/* One block: at most 2 * EXACT_PAIRS entries from `first` on. */
INLINE void release_block(const uint64_t *words, const entries *entries, size_t first, size_t count,
                          const grid *grid, int fused) {
    double normals[2 * EXACT_PAIRS];
    normals_of(words, (count + 1) / 2, normals, fused);
    if (entries->size == sizeof(float)) {
        float *sums = (float *)entries->sums + first;
        float *parameters = entries->parameters ? (float *)entries->parameters + first : NULL;
        release_floats(normals, sums, parameters, count, grid);
    } else {
        double *sums = (double *)entries->sums + first;
        double *parameters = entries->parameters ? (double *)entries->parameters + first : NULL;
        release_doubles(normals, sums, parameters, count, grid);
    }
}

typedef void release_function(const uint64_t *words, const entries *entries, size_t first, size_t count,
                              const grid *grid);
typedef void normals_function(const uint64_t *words, size_t pairs, double *normals);

#define FOR_INSTRUCTIONS(name, attributes, fused)                                                                 \
    attributes static void release_##name(const uint64_t *words, const entries *entries, size_t first,            \
                                          size_t count, const grid *grid) {                                       \
        release_block(words, entries, first, count, grid, fused);                                                 \
    }                                                                                                             \
    attributes static void normals_##name(const uint64_t *words, size_t pairs, double *normals) {                 \
        normals_of(words, pairs, normals, fused);                                                                 \
    }

FOR_INSTRUCTIONS(baseline, , 0)
#if DPVD_X86
FOR_INSTRUCTIONS(avx2, __attribute__((target("avx2,fma"))), 1)
#define AVX512 "avx512f,avx512dq,avx512vl,fma,prefer-vector-width=512"
FOR_INSTRUCTIONS(avx512, __attribute__((target(AVX512))), 1)
#endif

static release_function *chosen_release = release_baseline;
static normals_function *chosen_normals = normals_baseline;

const char *choose_release(void) {
#if DPVD_X86
    int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    if (wide) {
        chosen_release = release_avx512;
        chosen_normals = normals_avx512;
        return "avx512";
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        chosen_release = release_avx2;
        chosen_normals = normals_avx2;
        return "avx2";
    }
#endif
    return "baseline";
}

size_t exact_bytes_for(size_t count) { return (count / 2 + count % 2) * EXACT_BYTES_PER_PAIR; }

static size_t blocks_for(size_t count) {
    return count / (2 * EXACT_PAIRS) + (count % (2 * EXACT_PAIRS) != 0);
}

static size_t count_of(size_t block, size_t count) {
    size_t left = count - block * 2 * EXACT_PAIRS;
    return left < 2 * EXACT_PAIRS ? left : 2 * EXACT_PAIRS;
}

void exact_normals(const unsigned char *raw, double *out, size_t count) {
    uint64_t words[BLOCK_WORDS];
    double normals[2 * EXACT_PAIRS];
    for (size_t i = 0; i < blocks_for(count); i++) {
        size_t here = count_of(i, count);
        /* a copy: bytes need not be aligned as words */
        memcpy(words, raw + i * EXACT_BLOCK_BYTES, exact_bytes_for(here));
        chosen_normals(words, (here + 1) / 2, normals);
        memcpy(out + i * 2 * EXACT_PAIRS, normals, here * sizeof *out);
    }
}

void release_from_bytes(const unsigned char *raw, const entries *entries, const grid *grid) {
    uint64_t words[BLOCK_WORDS];
    for (size_t i = 0; i < blocks_for(entries->count); i++) {
        size_t here = count_of(i, entries->count);
        memcpy(words, raw + i * EXACT_BLOCK_BYTES, exact_bytes_for(here));
        chosen_release(words, entries, i * 2 * EXACT_PAIRS, here, grid);
    }
}

/* Blocks are independent, so any number of threads gives the same noise. The words of a block stay
   in the cache. */
void release_from_stream(const round_keys *keys, uint64_t start, const entries *entries,
                         const grid *grid, int threads) {
    long long blocks = (long long)blocks_for(entries->count);
    (void)threads; /* without OpenMP there is one */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long long i = 0; i < blocks; i++) {
        uint64_t words[BLOCK_WORDS];
        size_t here = count_of((size_t)i, entries->count);
        uint64_t first = start + (uint64_t)i * EXACT_BLOCK_BYTES;
        write_key_stream(keys, first, (unsigned char *)words, exact_bytes_for(here));
        chosen_release(words, entries, (size_t)i * 2 * EXACT_PAIRS, here, grid);
    }
}
