/* What the parts of the extension share: key stream in, noise out; the slope of a divergence; sums of squares. */

#ifndef DPVD_KERNELS_H
#define DPVD_KERNELS_H

#include <stddef.h>
#include <stdint.h>

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

enum { BLOCK_PAIRS = 1024, BYTES_PER_PAIR = 12, BLOCK_BYTES = BLOCK_PAIRS * BYTES_PER_PAIR };

/* Choose the code for this processor, once, before the first draw, and return its name. */
const char *choose_transform(void);
/* Fill out[0..count) with std * N(0, 1), or add that to it; count is at most 2 * BLOCK_PAIRS. `words` holds three
   planes of (count + 1) / 2 words: high and low halves for the radius, then angles. */
void transform_block(const uint32_t *words, float *out, size_t count, float std, int add);

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
void draw_from_stream(const round_keys *keys, uint64_t start, float *out, size_t count, float std, int add, int threads);
void draw_from_bytes(const unsigned char *raw, float *out, size_t count, float std, int add);

/* Choose the code for this processor, once, before the first call of add_dawson. */
void choose_dawson(void);
/* out[i] += outer * D(inner * x[i]) for i below count; x may be out. */
void add_dawson(float *out, const float *x, size_t count, float inner, float outer, int threads);

/* Choose the code for this processor, once, before the first call of row_squares. */
void choose_squares(void);
/* out[i] = sum over j of (scale[j] * x[i * columns + j])^2, for i below rows; no scale is NULL. out overlaps neither. */
void row_squares(const float *x, const float *scale, float *out, size_t rows, size_t columns, int threads);

#endif
