/* The key stream of AES-256 in counter mode, by the processor's own AES instructions: they take the same time for
   every key, as tables in memory would not. Without them there is no cipher here, and OpenSSL's is used.

   References: FIPS 197 (2001), sections 5.1 and 5.2; NIST SP 800-38A (2001), section 6.5. */

#include <string.h>

#include "kernels.h"

#if DPVD_X86

#include <cpuid.h>
#include <immintrin.h>

enum { ROUNDS = 14, AT_ONCE = 8, CIPHER_BLOCK = 16 }; /* measured: 8 registers hide the latency of a round */

/* Key expansion, equation by equation of FIPS 197, section 5.2: every new word is its left neighbour xor the word
   eight back; `mixed` is what the first word of four takes in beside. */
__attribute__((target("aes"))) static __m128i next_round_key(__m128i before_last, __m128i mixed) {
    __m128i key = before_last;
    for (int i = 0; i < 3; i++) {
        before_last = _mm_slli_si128(before_last, 4);
        key = _mm_xor_si128(key, before_last);
    }
    return _mm_xor_si128(key, mixed);
}

/* The instruction takes its round constant as part of its code. */
#define ROTATED(key, constant) _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, constant), 0xFF)
#define PLAIN(key) _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, 0), 0xAA)
#define TWO_ROUND_KEYS(i, constant)                           \
    k[i] = next_round_key(k[i - 2], ROTATED(k[i - 1], constant)); \
    k[i + 1] = next_round_key(k[i - 1], PLAIN(k[i]))

__attribute__((target("aes"))) void expand_key(const unsigned char key[32], round_keys *keys) {
    __m128i k[ROUNDS + 2];
    k[0] = _mm_loadu_si128((const __m128i *)key);
    k[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    TWO_ROUND_KEYS(2, 0x01);
    TWO_ROUND_KEYS(4, 0x02);
    TWO_ROUND_KEYS(6, 0x04);
    TWO_ROUND_KEYS(8, 0x08);
    TWO_ROUND_KEYS(10, 0x10);
    TWO_ROUND_KEYS(12, 0x20);
    k[14] = next_round_key(k[12], ROTATED(k[13], 0x40));
    memcpy(keys->bytes, k, sizeof keys->bytes);
}

/* Write blocks `counter`, `counter + 1`, ... of the key stream. */
typedef void write_blocks(const round_keys *keys, uint64_t counter, unsigned char *out, size_t blocks);

/* A counter block is 16 bytes, most significant first; a counter below 2^64 fills the last eight. */
__attribute__((target("aes,ssse3"))) static void write_blocks_aesni(const round_keys *keys, uint64_t counter,
                                                                     unsigned char *out, size_t blocks) {
    const __m128i reverse = _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0);
    __m128i k[ROUNDS + 1], state[AT_ONCE];
    unsigned char spare[sizeof state];
    memcpy(k, keys->bytes, sizeof k);
    for (size_t done = 0; done < blocks; done += AT_ONCE) {
        size_t now = blocks - done < AT_ONCE ? blocks - done : AT_ONCE;
        for (int i = 0; i < AT_ONCE; i++) {
            __m128i block = _mm_set_epi64x((long long)(counter + done + (size_t)i), 0);
            state[i] = _mm_xor_si128(_mm_shuffle_epi8(block, reverse), k[0]);
        }
        for (int round = 1; round < ROUNDS; round++)
            for (int i = 0; i < AT_ONCE; i++) state[i] = _mm_aesenc_si128(state[i], k[round]);
        unsigned char *target = now == AT_ONCE ? out + done * CIPHER_BLOCK : spare;
        for (int i = 0; i < AT_ONCE; i++)
            _mm_storeu_si128((__m128i *)target + i, _mm_aesenclast_si128(state[i], k[ROUNDS]));
        if (target == spare) memcpy(out + done * CIPHER_BLOCK, spare, now * CIPHER_BLOCK);
    }
}

/* The same, two blocks to a register. */
__attribute__((target("vaes,avx2"))) static void write_blocks_vaes(const round_keys *keys, uint64_t counter,
                                                                    unsigned char *out, size_t blocks) {
    const __m256i reverse = _mm256_broadcastsi128_si256(
        _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0));
    __m256i k[ROUNDS + 1], state[AT_ONCE];
    unsigned char spare[sizeof state];
    for (int i = 0; i <= ROUNDS; i++)
        k[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(keys->bytes + CIPHER_BLOCK * i)));
    for (size_t done = 0; done < blocks; done += 2 * AT_ONCE) {
        size_t now = blocks - done < 2 * AT_ONCE ? blocks - done : 2 * AT_ONCE;
        for (int i = 0; i < AT_ONCE; i++) {
            long long first = (long long)(counter + done + 2 * (size_t)i);
            __m256i pair = _mm256_set_epi64x(first + 1, 0, first, 0);
            state[i] = _mm256_xor_si256(_mm256_shuffle_epi8(pair, reverse), k[0]);
        }
        for (int round = 1; round < ROUNDS; round++)
            for (int i = 0; i < AT_ONCE; i++) state[i] = _mm256_aesenc_epi128(state[i], k[round]);
        unsigned char *target = now == 2 * AT_ONCE ? out + done * CIPHER_BLOCK : spare;
        for (int i = 0; i < AT_ONCE; i++)
            _mm256_storeu_si256((__m256i *)target + i, _mm256_aesenclast_epi128(state[i], k[ROUNDS]));
        if (target == spare) memcpy(out + done * CIPHER_BLOCK, spare, now * CIPHER_BLOCK);
    }
}

/* Whether a bit of register ecx is set; __builtin_cpu_supports does not know these names with every compiler. */
static int has(unsigned leaf, unsigned bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(leaf, 0, &a, &b, &c, &d) && (c >> bit & 1);
}

static write_blocks *chosen_cipher;

/* Called once: asking the processor takes microseconds in a virtual machine. */
const char *choose_cipher(void) {
    if (!has(1, 25) || !has(1, 9)) return NULL; /* AES and SSSE3 */
    int vaes = __builtin_cpu_supports("avx2") && has(7, 9);
    chosen_cipher = vaes ? write_blocks_vaes : write_blocks_aesni;
    return vaes ? "vaes" : "aes-ni";
}

void write_key_stream(const round_keys *keys, uint64_t start, unsigned char *out, size_t size) {
    unsigned char block[CIPHER_BLOCK];
    uint64_t counter = start / CIPHER_BLOCK;
    size_t skipped = (size_t)(start % CIPHER_BLOCK);
    if (skipped && size) {
        size_t head = CIPHER_BLOCK - skipped < size ? CIPHER_BLOCK - skipped : size;
        chosen_cipher(keys, counter++, block, 1);
        memcpy(out, block + skipped, head);
        out += head, size -= head;
    }
    size_t whole = size / CIPHER_BLOCK, tail = size % CIPHER_BLOCK;
    chosen_cipher(keys, counter, out, whole);
    if (tail) {
        chosen_cipher(keys, counter + whole, block, 1);
        memcpy(out + whole * CIPHER_BLOCK, block, tail);
    }
}

#else

const char *choose_cipher(void) { return NULL; }

void expand_key(const unsigned char key[32], round_keys *keys) { (void)key, (void)keys; }

void write_key_stream(const round_keys *keys, uint64_t start, unsigned char *out, size_t size) {
    (void)keys, (void)start, (void)out, (void)size;
}

#endif
