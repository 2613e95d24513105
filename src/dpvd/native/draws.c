/* Draws of any number, cut into blocks. */

#include <string.h>

#include "kernels.h"

/* Where block `index` of a draw of `count` begins in `out`, and how many draws it has. */
static size_t first_of(size_t index) { return index * 2 * BLOCK_PAIRS; }

static size_t draws_of(size_t index, size_t count) {
    size_t left = count - first_of(index);
    return left < 2 * BLOCK_PAIRS ? left : 2 * BLOCK_PAIRS;
}

static size_t blocks_for(size_t count) { return count / (2 * BLOCK_PAIRS) + (count % (2 * BLOCK_PAIRS) != 0); }

size_t bytes_for(size_t count) { return (count / 2 + count % 2) * BYTES_PER_PAIR; }

/* Blocks are independent, so any number of threads gives the same draws. The words of a block stay in the cache. */
void draw_from_stream(const round_keys *keys, uint64_t start, float *out, size_t count, float std,
                      int threads) {
    long long blocks = (long long)blocks_for(count);
    (void)threads; /* without OpenMP there is one */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (long long i = 0; i < blocks; i++) {
        uint32_t words[BLOCK_BYTES / sizeof(uint32_t)];
        size_t draws = draws_of((size_t)i, count);
        write_key_stream(keys, start + (uint64_t)i * BLOCK_BYTES, (unsigned char *)words, bytes_for(draws));
        transform_block(words, out + first_of((size_t)i), draws, std);
    }
}

void draw_from_bytes(const unsigned char *raw, float *out, size_t count, float std) {
    uint32_t words[BLOCK_BYTES / sizeof(uint32_t)];
    for (size_t i = 0; i < blocks_for(count); i++) {
        size_t draws = draws_of(i, count);
        memcpy(words, raw + i * BLOCK_BYTES, bytes_for(draws)); /* bytes need not be aligned as words */
        transform_block(words, out + first_of(i), draws, std);
    }
}
