/* Compares the code for each instruction set with the baseline, bit for bit; compiled and run by test_kernels.py. */

#include <stdio.h>
#include <stdlib.h>

#include "aes.c"
#include "dawson.c"
#include "normals.c"
#include "release.c"
#include "squares.c"

static int differs(const void *first, const void *second, size_t size, const char *name) {
    if (memcmp(first, second, size) == 0) return 0;
    printf("%s differs\n", name);
    return 1;
}

/* Draws in double precision may be fused, and differ in their last bits: by less than 1e-14 of their size. */
static int differs_in_more(const double *first, const double *second, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (fabs(first[i] - second[i]) <= 1e-14 * fabs(second[i])) continue;
        printf("%s differs: %.17g, %.17g\n", name, first[i], second[i]);
        return 1;
    }
    return 0;
}

#if DPVD_X86
static int compare_exact(const round_keys *keys, size_t pairs) {
    static uint64_t words[BLOCK_WORDS];
    static double draws[2 * EXACT_PAIRS], baseline[2 * EXACT_PAIRS];
    int wrong = 0;
    write_blocks_aesni(keys, pairs * 1000, (unsigned char *)words, sizeof words / 16);
    normals_baseline(words, pairs, baseline);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        normals_avx2(words, pairs, draws);
        wrong |= differs_in_more(draws, baseline, 2 * pairs, "exact avx2");
    }
    if (strcmp(choose_release(), "avx512") == 0) {
        normals_avx512(words, pairs, draws);
        wrong |= differs_in_more(draws, baseline, 2 * pairs, "exact avx512");
    }
    return wrong;
}
#endif

int main(void) {
    int wrong = 0;
#if DPVD_X86
    static uint32_t words[BLOCK_BYTES / sizeof(uint32_t)], others[BLOCK_BYTES / sizeof(uint32_t)];
    static float out[2 * BLOCK_PAIRS], baseline[2 * BLOCK_PAIRS];
    unsigned char key[32] = {7, 7, 7};
    round_keys keys;
    const char *cipher = choose_cipher();
    if (cipher == NULL) return 77;
    expand_key(key, &keys);
    for (size_t pairs = 0; pairs <= EXACT_PAIRS; pairs++) wrong |= compare_exact(&keys, pairs);
    for (size_t draws = 0; draws <= 2 * BLOCK_PAIRS; draws += draws < 40 ? 1 : 251) {
        write_blocks_aesni(&keys, draws * 1000, (unsigned char *)words, BLOCK_BYTES / 16);
        if (strcmp(cipher, "vaes") == 0) {
            write_blocks_vaes(&keys, draws * 1000, (unsigned char *)others, BLOCK_BYTES / 16);
            wrong |= differs(words, others, sizeof words, "vaes");
        }
        transform_baseline(words, baseline, draws, 1.5f);
        if (__builtin_cpu_supports("avx2")) {
            transform_avx2(words, out, draws, 1.5f);
            wrong |= differs(out, baseline, draws * sizeof *out, "avx2");
            for (int scaled = 0; scaled < 2; scaled++) {
                const float *scale = scaled ? baseline : NULL;
                float square = row_square_avx2(out, scale, draws);
                float baseline_square = row_square_baseline(baseline, scale, draws);
                wrong |= differs(&square, &baseline_square, sizeof square, "avx2 squares");
            }
            size_t values = draws < PIECE ? draws : PIECE;
            add_piece_baseline(baseline, baseline, values, 0.7f, 0.5f);
            add_piece_avx2(out, out, values, 0.7f, 0.5f);
            wrong |= differs(out, baseline, draws * sizeof *out, "avx2 dawson");
        }
    }
#else
    return 77;
#endif
    return wrong;
}
