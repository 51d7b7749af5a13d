/* dropout.h - which elements dropout keeps: a function of (key, step, token, place) that every kernel of every device
 * uses. C and CUDA C.
 *
 * A token has a number, sample + position: the place of the token in the stream of rows, so that tokens of a row have
 * consecutive numbers whatever the documents in it are. A counter of tr_philox7 gives eight numbers of 16 bits, and an
 * element is kept when its number is at least a threshold: p is rounded to a multiple of 2^-16, and the factor of kept
 * elements is that of the rounded p. Two elements of a step never share a number in a step of fewer than 2^32 tokens
 * and 2^16 heads.
 *
 * The eight of a counter: neighbouring columns of a token; of scores, two neighbouring keys (from an even number) and
 * four queries 8 apart (from a multiple of 32 on): in a fragment of a tensor core they lie in one lane, with queries as
 * rows and, once pairs of keys are dealt to rows 8 apart, with keys as rows, so lanes exchange nothing. Rejected: 32
 * bits an element and 10 rounds (three times the arithmetic); 8 bits (0.1 would be 0.098); a running generator of each
 * thread (its mask depends on layout and thread count).
 */
#ifndef TR_OPS_DROPOUT_H
#define TR_OPS_DROPOUT_H

#include <stdint.h>

#ifdef __CUDACC__
#define TR_OF_DROPOUT __host__ __device__ static inline
#else
#define TR_OF_DROPOUT static inline
#endif

/* Elements whose number is below it are dropped; 0: all are kept. */
TR_OF_DROPOUT uint32_t tr_drop_threshold(float p)
{
    uint32_t t = p > 0 ? (uint32_t)((double)p * 65536.0 + 0.5) : 0;
    return t < 65535 ? t : 65535;
}

/* The factor on kept elements. */
TR_OF_DROPOUT float tr_drop_scale(float p)
{
    return 65536.0f / (float)(65536 - tr_drop_threshold(p));
}

TR_OF_DROPOUT uint32_t tr_drop_token(int64_t sample, int32_t position)
{
    return (uint32_t)sample + (uint32_t)position;
}

/* Counters: the high half names the step (and the head), the low half the place. */
TR_OF_DROPOUT uint64_t tr_drop_hi_of_head(uint64_t step, int64_t head)
{
    return (uint64_t)head << 48 | (step & 0xffffffffffffu);
}

TR_OF_DROPOUT uint64_t tr_drop_lo_of_column(uint32_t token, int64_t column)
{
    return (uint64_t)token << 32 | (uint64_t)(column >> 3);
}

TR_OF_DROPOUT uint32_t tr_drop_group_of_query(uint32_t query)
{
    return (query >> 2 & ~7u) | (query & 7);
}

TR_OF_DROPOUT uint64_t tr_drop_lo_of_pair(uint32_t query, uint32_t key)
{
    return (uint64_t)tr_drop_group_of_query(query) << 32 | key >> 1;
}

/* Which of the eight numbers of a counter: 2 * word + half. */
TR_OF_DROPOUT int tr_drop_at_of_column(int64_t column)
{
    return (int)(column & 7);
}

TR_OF_DROPOUT int tr_drop_at_of_pair(uint32_t query, uint32_t key)
{
    return (int)((query >> 3 & 3) * 2 + (key & 1));
}

TR_OF_DROPOUT uint32_t tr_drop_number(uint32_t word, int at)
{
    return at & 1 ? word >> 16 : word & 0xffffu;
}

#endif
