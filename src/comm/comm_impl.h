/* comm_impl.h - what the engines share: their rows and the reduction. */
#ifndef TR_COMM_COMM_IMPL_H
#define TR_COMM_COMM_IMPL_H

#include "comm/comm.h"

extern const struct tr_comm_ops tr_comm_self, tr_comm_shm, tr_comm_phantom;

/* out[j][i] = op over p = 0 .. n_in - 1, in this order, of in[p][i], for i < count and every j < n_out. An output may
 * be one of the inputs. Same bits for any instruction set, any n_out and any cut of [0, count). */
void tr_reduce(enum tr_dtype dtype, enum tr_reduce_op op, const void *const *in, int n_in, void *const *out, int n_out,
               size_t count);

/* memcpy whose stores go past the caches: of buffers too large to stay there, it spares reading what it overwrites. */
void tr_copy_past_cache(void *restrict dst, const void *restrict src, size_t bytes);

static inline bool tr_coll_reduces(enum tr_coll_kind kind)
{
    return kind == TR_ALL_REDUCE || kind == TR_REDUCE_SCATTER;
}

#endif
