/* sha256.c - SHA-256 (FIPS 180-4) and HMAC (RFC 2104): proves who sent a message, not only that it is whole.
 *
 * Used for a few small frames a second, hence the plain form. Rejected: a crypto library for one function.
 */
#include "base/misc.h"
#include <string.h>
#include "base/banned.h"

static const uint32_t round_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
};

struct sha {
    uint32_t h[8];
    uint64_t n_bytes;
    unsigned char block[64];
};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void mix(struct sha *s)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25), choose = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + e + choose + round_k[i] + w[i];
        uint32_t a = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + a + most;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
}

static void begin(struct sha *s)
{
    static const uint32_t start[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(s->h, start, sizeof start);
    s->n_bytes = 0;
}

static void add(struct sha *s, const void *p, size_t n)
{
    const unsigned char *from = p;
    for (size_t i = 0; i < n; i++) {
        s->block[s->n_bytes++ % 64] = from[i];
        if (s->n_bytes % 64 == 0)
            mix(s);
    }
}

static void end(struct sha *s, unsigned char out[TR_SHA256_BYTES])
{
    static const unsigned char one = 0x80, zero = 0;
    uint64_t bits = s->n_bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    add(s, &one, 1);
    while (s->n_bytes % 64 != 56)
        add(s, &zero, 1);
    add(s, length, sizeof length);
    for (int i = 0; i < 32; i++)
        out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void tr_sha256(const void *p, size_t n, unsigned char out[TR_SHA256_BYTES])
{
    struct sha s;
    begin(&s);
    add(&s, p, n);
    end(&s, out);
}

void tr_hmac_sha256(const void *key, size_t n_key, const struct tr_bytes *parts, size_t n_parts,
                    unsigned char out[TR_SHA256_BYTES])
{
    struct sha s;
    unsigned char k[64] = { 0 }, pad[64], inner[TR_SHA256_BYTES];
    if (n_key > sizeof k)
        tr_sha256(key, n_key, k);
    else
        memcpy(k, key, n_key);
    for (size_t i = 0; i < sizeof k; i++)
        pad[i] = k[i] ^ 0x36;
    begin(&s);
    add(&s, pad, sizeof pad);
    for (size_t i = 0; i < n_parts; i++)
        add(&s, parts[i].p, parts[i].n);
    end(&s, inner);
    for (size_t i = 0; i < sizeof k; i++)
        pad[i] = k[i] ^ 0x5c;
    begin(&s);
    add(&s, pad, sizeof pad);
    add(&s, inner, sizeof inner);
    end(&s, out);
}

bool tr_same_bytes(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    unsigned char diff = 0;
    for (size_t i = 0; i < n; i++)
        diff |= x[i] ^ y[i];
    return diff == 0;
}
