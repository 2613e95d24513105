/* Runs the kernels on buffers of exactly the size they may touch; compiled with sanitizers by test_kernels.py. */

#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

#ifndef MISSING
#define MISSING 0 /* bytes that every buffer is too small, to see that it would be noticed */
#endif

static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 31, 33, 2047, 2048, 2049, 4095, 4097, 100001};

static void *exactly(size_t size) {
    void *memory = malloc(size > MISSING ? size - MISSING : 1);
    if (memory == NULL) abort();
    return memory;
}

int main(void) {
    unsigned char key[32] = {1, 2, 3};
    round_keys keys;
    double total = 0;
    choose_transform();
    choose_dawson();
    choose_squares();
    int has_cipher = choose_cipher() != NULL;
    if (has_cipher) expand_key(key, &keys);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t count = sizes[s], size = bytes_for(count);
        float *out = exactly(count * sizeof *out);
        unsigned char *raw = exactly(size);
        for (size_t i = 0; i < size; i++) raw[i] = (unsigned char)(i * 131 + s);
        draw_from_bytes(raw, out, count, 2.0f, 0);
        for (int offset = 0; has_cipher && offset < 17; offset += 4) {
            write_key_stream(&keys, (uint64_t)offset, raw, size);
            draw_from_stream(&keys, (uint64_t)offset, out, count, 2.0f, 1, 2);
        }
        add_dawson(out, out, count, 0.7f, 0.5f, 2);
        for (size_t i = 0; i < count; i++) total += out[i];
        for (size_t rows = 1; rows <= 3; rows += 2) {
            float *squares = exactly(rows * sizeof *squares);
            if (count % rows == 0) row_squares(out, rows > 1 ? out : NULL, squares, rows, count / rows, 2);
            free(squares);
        }
        free(out);
        free(raw);
    }
    printf("%g\n", total);
    return total == total ? 0 : 1;
}
