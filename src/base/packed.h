/* packed.h - weights that a device holds in few bits: a row of grains.
 *
 * A grain is a run of elements of the flattened tensor with everything that is needed to decode it: its codes, then its
 * scale. It has whole bytes and begins on a multiple of 4, so grains can be cut, gathered and hashed like the elements
 * of any dtype. Files keep codes and scales in two tensors (the planes of tr_storage_format); two planes in memory
 * would need two offsets and two collectives for each bucket.
 */
#ifndef TR_BASE_PACKED_H
#define TR_BASE_PACKED_H

#include "base/dtype.h"

enum tr_packed { TR_NOT_PACKED, TR_PACKED_NF4, TR_PACKED_FP4, TR_PACKED_FP8, TR_PACKED_COUNT };
enum { TR_PACKED_GRAIN_MAX = 128 }; /* elements */

/* Its `grain` is the number of elements of a grain. */
const struct tr_storage_format *tr_packed_format(enum tr_packed p);
/* Bytes of one grain, and of the grains that hold n elements; the last one may be partly used. */
size_t tr_packed_grain_bytes(enum tr_packed p);
size_t tr_packed_bytes(enum tr_packed p, int64_t n);
const char *tr_packed_name(enum tr_packed p); /* "nf4" */
/* Is a code 4 bits? Only the scales of those are quantised twice. */
static inline bool tr_packed_is_q4(enum tr_packed p)
{
    return p == TR_PACKED_NF4 || p == TR_PACKED_FP4;
}

/* n finite elements, of which the first begins a grain; only a tensor's end may be inside one. */
void tr_packed_encode(enum tr_packed p, const float *x, int64_t n, void *grains);
/* Elements [first, first + n) of the tensor whose grains are given, rounded to dtype (F32, BF16 or F16). */
void tr_packed_decode(enum tr_packed p, const void *grains, int64_t first, int64_t n, void *dst, enum tr_dtype dtype);
/* The scales of n grains, out of them and into them. */
void tr_packed_get_scales(enum tr_packed p, const void *grains, int64_t n, float *scales);
void tr_packed_set_scales(enum tr_packed p, void *grains, int64_t n, const float *scales);
/* The grains of n elements whose codes and scales lie in two planes, as in a file. */
void tr_packed_join(enum tr_packed p, const uint8_t *codes, const float *scales, int64_t n, void *grains);

#endif
