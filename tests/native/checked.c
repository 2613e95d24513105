/* Runs the kernels on buffers of exactly the size they may touch; compiled with sanitizers by test_kernels.py. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Sums of one type, with parameters and without, from bytes and from the stream. */
static double release_all(const round_keys *keys, size_t count, size_t size) {
    const grid grid = {1024.0, 1024.0, 1e-3};
    double total = 0;
    unsigned char *raw = exactly(exact_bytes_for(count));
    double *normals = exactly(count * sizeof *normals);
    for (size_t i = 0; i < exact_bytes_for(count); i++) raw[i] = (unsigned char)(i * 131);
    exact_normals(raw, normals, count);
    for (size_t i = 0; i < count; i++) total += normals[i];
    for (int with_parameters = 0; with_parameters < 2; with_parameters++) {
        entries entries = {exactly(count * size), with_parameters ? exactly(count * size) : NULL, size, count};
        memset(entries.sums, 0, count * size);
        if (with_parameters) memset(entries.parameters, 0, count * size);
        release_from_bytes(raw, &entries, &grid);
        if (keys != NULL) release_from_stream(keys, 5, &entries, &grid, 2);
        free(entries.sums);
        free(entries.parameters);
    }
    free(normals);
    free(raw);
    return total;
}

int main(void) {
    unsigned char key[32] = {1, 2, 3};
    round_keys keys;
    double total = 0;
    choose_transform();
    choose_release();
    choose_dawson();
    choose_squares();
    int has_cipher = choose_cipher() != NULL;
    if (has_cipher) expand_key(key, &keys);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t count = sizes[s], size = bytes_for(count);
        float *out = exactly(count * sizeof *out);
        unsigned char *raw = exactly(size);
        for (size_t i = 0; i < size; i++) raw[i] = (unsigned char)(i * 131 + s);
        draw_from_bytes(raw, out, count, 2.0f);
        for (int offset = 0; has_cipher && offset < 17; offset += 4) {
            write_key_stream(&keys, (uint64_t)offset, raw, size);
            draw_from_stream(&keys, (uint64_t)offset, out, count, 2.0f, 2);
        }
        total += release_all(has_cipher ? &keys : NULL, count, sizeof(float));
        total += release_all(has_cipher ? &keys : NULL, count, sizeof(double));
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
