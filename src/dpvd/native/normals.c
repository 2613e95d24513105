/* Box and Muller's transform of uniform bits into float32 normals, one block at a time.

   Only operations that IEEE 754 rounds in one way are used (+, -, *, square root, conversions), in a fixed order and
   never fused: every machine, every instruction set and the NumPy version in reference.py give the same bits. The
   definition, step by step, is in reference.py; tools/noise_polynomials.py derives the coefficients.
   Loops are plain so that compilers turn them into vector code. */

#include <math.h>
#include <string.h>

#include "kernels.h"

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* u = (w + 1/2) / 2^63 = (1 + t) * 2^-halvings with 1 + t between sqrt(1/2) and sqrt(2); w: low 63 bits of the word. */
INLINE void split(const uint32_t *high, const uint32_t *low, size_t pairs, float *t, float *halvings) {
    const uint64_t one = 0x3FF0000000000000u, sqrt_half = 0x3FE6A09E667F3BCDu;
    for (size_t i = 0; i < pairs; i++) {
        double top = (double)(int32_t)(high[i] & 0x7FFFFFFFu) * 4294967296.0;
        double bottom = (double)(int32_t)(low[i] ^ 0x80000000u) + 2147483648.0; /* signed conversions are vector ones */
        uint64_t bits = bits_of_double((top + bottom) + 0.5);
        uint64_t exponent = (bits + (one - sqrt_half)) >> 52;
        t[i] = (float)(as_double(bits - (exponent << 52) + one) - 1.0);
        halvings[i] = (float)(1023 + 63 - (int32_t)exponent);
    }
}

/* r = sqrt(-2 ln u) */
INLINE void radii(const float *t, const float *halvings, size_t pairs, float *radius) {
    for (size_t i = 0; i < pairs; i++) {
        float x = t[i];
        float p = 0.0873483643f;
        p = p * x - 0.143075183f;
        p = p * x + 0.149179742f;
        p = p * x - 0.165705085f;
        p = p * x + 0.199620724f;
        p = p * x - 0.250017554f;
        p = p * x + 0.333339512f;
        p = p * x - 0.499999911f;
        float log1p = x + (x * x) * p;
        float energy = halvings[i] * 0.693147182f - log1p;
        energy = energy > 0x1p-54f ? energy : 0x1p-54f; /* the last word would give 0, and no noise */
        radius[i] = sqrtf(energy + energy);
    }
}

/* r (cos a, sin a) for a = (word + 1/2) * 2 pi / 2^32: quarter turns exactly, from the top bits, polynomials between. */
INLINE void turn(const uint32_t *angle, const float *radius, size_t pairs, float *cosines, float *sines) {
    for (size_t i = 0; i < pairs; i++) {
        uint32_t shifted = angle[i] + 0x20000000u;
        uint32_t quarter = shifted >> 30;
        int32_t rest = (int32_t)(shifted & 0x3FFFFFFFu) - 0x20000000;
        float x = (float)(2 * rest + 1) * 7.31459060e-10f;
        float z = x * x;
        float s = -0.000195172994f;
        s = s * z + 0.008332178f;
        s = s * z - 0.166666552f;
        s = x + (x * z) * s;
        float c = 2.44384519e-05f;
        c = c * z - 0.00138873677f;
        c = c * z + 0.0416666456f;
        c = (1.0f - 0.5f * z) + (z * z) * c;
        uint32_t swap = 0u - (quarter & 1u), cb = bits_of_float(c), sb = bits_of_float(s);
        uint32_t change = (cb ^ sb) & swap;
        cosines[i] = radius[i] * as_float((cb ^ change) ^ (((quarter + 1u) & 2u) << 30));
        sines[i] = radius[i] * as_float((sb ^ change) ^ ((quarter & 2u) << 30));
    }
}

INLINE void transform(const uint32_t *words, float *out, size_t count, float std) {
    float t[BLOCK_PAIRS], halvings[BLOCK_PAIRS], radius[BLOCK_PAIRS], normal[2 * BLOCK_PAIRS];
    size_t pairs = (count + 1) / 2;
    split(words, words + pairs, pairs, t, halvings);
    radii(t, halvings, pairs, radius);
    turn(words + 2 * pairs, radius, pairs, normal, normal + pairs);
    for (size_t i = 0; i < count; i++) out[i] = std * normal[i];
}

static void transform_baseline(const uint32_t *words, float *out, size_t count, float std) {
    transform(words, out, count, std);
}

#if DPVD_X86
__attribute__((target("avx2"))) static void transform_avx2(const uint32_t *words, float *out, size_t count, float std) {
    transform(words, out, count, std);
}
#endif

static void (*chosen_transform)(const uint32_t *words, float *out, size_t count, float std) = transform_baseline;

void choose_transform(void) {
#if DPVD_X86
    if (__builtin_cpu_supports("avx2")) chosen_transform = transform_avx2;
#endif
}

void transform_block(const uint32_t *words, float *out, size_t count, float std) {
    chosen_transform(words, out, count, std);
}
