/* What the parts of the extension share: key stream in, noise out; the slope of a divergence; sums of squares. */

#ifndef DPVD_KERNELS_H
#define DPVD_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the words of the key stream are little-endian; without this extension dpvd uses NumPy"
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define DPVD_X86 1 /* code for later instruction sets is compiled beside the baseline and chosen when it runs */
#else
#define DPVD_X86 0
#endif

/* Helpers have to become part of their callers: only so are they compiled for the callers' instruction sets. */
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

INLINE double as_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint64_t bits_of_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

enum { BLOCK_PAIRS = 1024, BYTES_PER_PAIR = 12, BLOCK_BYTES = BLOCK_PAIRS * BYTES_PER_PAIR };

/* Choose the code for this processor, once, before the first draw. */
void choose_transform(void);
/* Fill out[0..count) with std * N(0, 1); count is at most 2 * BLOCK_PAIRS. `words` holds three planes of
   (count + 1) / 2 words: high and low halves for the radius, then angles. */
void transform_block(const uint32_t *words, float *out, size_t count, float std);

/* The 15 round keys of AES-256. */
typedef struct {
    unsigned char bytes[15 * 16];
} round_keys;

/* Choose the AES instructions of this processor, once, and return their name; NULL if it has none, and then no function
   below that takes a key may be called. */
const char *choose_cipher(void);
void expand_key(const unsigned char key[32], round_keys *keys);
/* Write bytes start .. start + size of the key stream in counter mode, from counter 0 and any byte on. */
void write_key_stream(const round_keys *keys, uint64_t start, unsigned char *out, size_t size);

/* Bytes of key stream, or of other random bits, that `count` draws take. */
size_t bytes_for(size_t count);
/* Draws of any number, by blocks as above. */
void draw_from_stream(const round_keys *keys, uint64_t start, float *out, size_t count, float std, int threads);
void draw_from_bytes(const unsigned char *raw, float *out, size_t count, float std);

/* Noise for sums that must be protected: two 64-bit words for each pair. Half as many pairs to a
   block as above: its words, draws, sums and parameters fit the first-level cache together. */
enum { EXACT_PAIRS = 512, EXACT_BYTES_PER_PAIR = 16 };
enum { EXACT_BLOCK_BYTES = EXACT_PAIRS * EXACT_BYTES_PER_PAIR };

/* What noise is added to. */
typedef struct {
    void *sums;
    void *parameters; /* of the same type and number, and no part of the sums; or NULL */
    size_t size;      /* of an entry: that of float or double */
    size_t count;
} entries;

/* The grid that sums and noise are rounded to. */
typedef struct {
    double units_per_one; /* a power of two */
    double units_per_std; /* at most 2^47 */
    double factor;        /* what a unit becomes in the result */
} grid;

/* Choose the code for this processor, once, before the first release, and return its name. */
const char *choose_release(void);
/* Bytes of key stream, or of other random bits, that `count` entries take. */
size_t exact_bytes_for(size_t count);
/* Fill out[0..count) with N(0, 1). */
void exact_normals(const unsigned char *raw, double *out, size_t count);
/* parameters += factor * noisy and sums = 0, or sums = factor * noisy; noisy as in release.c. */
void release_from_bytes(const unsigned char *raw, const entries *entries, const grid *grid);
void release_from_stream(const round_keys *keys, uint64_t start, const entries *entries,
                         const grid *grid, int threads);

/* Choose the code for this processor, once, before the first call of add_dawson. */
void choose_dawson(void);
/* out[i] += outer * D(inner * x[i]) for i below count; x may be out. */
void add_dawson(float *out, const float *x, size_t count, float inner, float outer, int threads);

/* Choose the code for this processor, once, before the first call of row_squares. */
void choose_squares(void);
/* out[i] = sum over j of (scale[j] * x[i * columns + j])^2, for i below rows; no scale is NULL. out overlaps neither. */
void row_squares(const float *x, const float *scale, float *out, size_t rows, size_t columns, int threads);

#endif
