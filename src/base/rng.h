/* rng.h - counter-based random numbers: Philox4x32-10. A number is a function of (key, counter), never of history. */
#ifndef TR_BASE_RNG_H
#define TR_BASE_RNG_H

#include "base/compiler.h"

struct tr_philox {
    uint32_t v[4];
};

/* 128 random bits for this 64-bit key and 128-bit counter (hi:lo). */
struct tr_philox tr_philox(uint64_t key, uint64_t hi, uint64_t lo);

/* Key of a named stream below a seed: init of one tensor, shuffle of one epoch, ... */
uint64_t tr_rng_key(uint64_t seed, const char *stream, uint64_t index);

static inline float tr_u01(uint32_t u) /* (0, 1), never 0 or 1: 23 bits keep the +0.5 exact in float */
{
    return ((float)(u >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

/* n normals with mean 0 at positions first.. of the stream `key` (Box-Muller on Philox; position i never depends on n).
 */
void tr_normal_fill(uint64_t key, uint64_t first, float stddev, float *out, size_t n);

/* The same, uniform in (-bound, bound). */
void tr_uniform_fill(uint64_t key, uint64_t first, float bound, float *out, size_t n);

/* Position i of a keyed permutation of [0, n): a Feistel network with cycle walking, O(1) memory. */
uint64_t tr_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
