/* rng.c - Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and what is built on
 * it.
 *
 * Invariant: every output is a pure function of its arguments, so it never depends on rank, thread or history. Normals
 * are computed in double and rounded once: the last bit does not depend on which libm variant a core selects.
 */
#include "base/rng.h"
#include "base/philox7.h"
#include "base/misc.h"
#include <math.h>
#include "base/banned.h"

static inline struct tr_philox philox(int n_rounds, uint64_t key, uint64_t hi, uint64_t lo)
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < n_rounds; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct tr_philox){ { c0, c1, c2, c3 } };
}

struct tr_philox tr_philox(uint64_t key, uint64_t hi, uint64_t lo)
{
    return philox(10, key, hi, lo);
}

struct tr_philox tr_philox7(uint64_t key, uint64_t hi, uint64_t lo)
{
    return philox(7, key, hi, lo);
}

static uint64_t first64(struct tr_philox r)
{
    return (uint64_t)r.v[1] << 32 | r.v[0];
}

uint64_t tr_rng_key(uint64_t seed, const char *stream, uint64_t index)
{
    return first64(tr_philox(seed, tr_hash(stream, strlen(stream)).lo, index));
}

/* Two standard normals from two words; the first word is never 0 after the half step, so the logarithm is finite. */
static void box_muller(uint32_t a, uint32_t b, double *x, double *y)
{
    const double two_pi = 6.283185307179586476925;
    double radius = sqrt(-2.0 * log(((double)a + 0.5) * 0x1p-32));
    double angle = two_pi * ((double)b + 0.5) * 0x1p-32;
    *x = radius * cos(angle);
    *y = radius * sin(angle);
}

void tr_normal_fill(uint64_t key, uint64_t first, float stddev, float *out, size_t n)
{
    size_t lane = first % 4;
    uint64_t block = first / 4;
    for (size_t i = 0; i < n; block++, lane = 0) {
        struct tr_philox r = tr_philox(key, 0, block);
        double z[4];
        box_muller(r.v[0], r.v[1], &z[0], &z[1]);
        box_muller(r.v[2], r.v[3], &z[2], &z[3]);
        for (; lane < 4 && i < n; lane++)
            out[i++] = (float)(z[lane] * (double)stddev);
    }
}

void tr_uniform_fill(uint64_t key, uint64_t first, float bound, float *out, size_t n)
{
    size_t lane = first % 4;
    uint64_t block = first / 4;
    for (size_t i = 0; i < n; block++, lane = 0) {
        struct tr_philox r = tr_philox(key, 0, block);
        for (; lane < 4 && i < n; lane++)
            out[i++] = (2 * tr_u01(r.v[lane]) - 1) * bound;
    }
}

/* The 64-bit finaliser of MurmurHash3: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* The network permutes the smallest square 4^h >= n; walking on from values outside [0, n) follows a cycle that
 * contains i, so it comes back inside, after fewer than four steps on average. */
uint64_t tr_permute(uint64_t key, uint64_t n, uint64_t i)
{
    TR_BUG_ON(i >= n);
    unsigned half = 1;
    while (half < 32 && (n - 1) >> (2 * half))
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    struct tr_philox keys[2] = { tr_philox(key, n, 0), tr_philox(key, n, 1) };
    do {
        uint64_t left = i >> half, right = i & mask;
        for (int round = 0; round < 8; round++) {
            uint64_t round_key = (uint64_t)keys[round / 4].v[round % 4] << 32;
            uint64_t next = left ^ (mix(right + round_key) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
