/* quant.h - 4-bit numbers in blocks, and the 8-bit numbers that their scales are stored in, as bitsandbytes has them.
 *
 * A tensor is flattened and divided into blocks of 64 elements; the last block may be short. A block keeps its largest
 * magnitude (absmax, float32) and a code of 4 bits for each element: the nearest of 16 values in [-1, 1] to element /
 * absmax. Two codes make a byte, the earlier element in the high half. Functions work on ranges, so that threads can
 * share a tensor, and the bytes do not depend on how it is shared.
 *
 * Codes, absmax and decoded elements are those of bitsandbytes on a CPU, bit for bit (tests/golden/check_quant.py).
 */
#ifndef TR_BASE_QUANT_H
#define TR_BASE_QUANT_H

#include "base/dtype.h"

enum tr_q4 { TR_NF4, TR_FP4, TR_Q4_COUNT };
enum { TR_Q4_BLOCK = 64, TR_Q4_NEST = 256 };

/* Planes: codes (U8 for 2 elements), ".absmax" (F32 for 64). Named "nf4" and "fp4". */
const struct tr_storage_format *tr_storage_q4(enum tr_q4 q);
/* The 16 values, by code. */
const float *tr_q4_values(enum tr_q4 q);

/* n finite elements, of which the first begins a block; the last block is short only where the tensor ends.
 * codes: (n + 1) / 2 bytes; absmax: one for each block. */
void tr_q4_encode(enum tr_q4 q, const float *x, int64_t n, uint8_t *codes, float *absmax);
/* Elements [first, first + n) of the tensor whose planes are given: value * absmax in float32, rounded to dtype. */
void tr_q4_decode(enum tr_q4 q, const uint8_t *codes, const float *absmax, int64_t first, int64_t n, void *dst,
                  enum tr_dtype dtype);

/* The dynamic map: 256 values in [-1, 1], dense near zero, in ascending order. Unsigned: in [0, 1]. */
void tr_dynamic_map(bool is_signed, float out[256]);

/* Finds codes of the dynamic map without a search. A cell is a range of floats with the same 16 high bits; at most one
 * border between two codes lies in a cell. */
enum { TR_DYNAMIC_CELL0 = 0x3380, TR_DYNAMIC_CELLS = 0x3f80 - TR_DYNAMIC_CELL0 + 1, TR_DYNAMIC_BLOCK = 256 };
struct tr_dynamic {
    float value[256], border[256];  /* border: between a code and the next */
    uint8_t cell[TR_DYNAMIC_CELLS]; /* from 2^-24 to 1: the code of its first float */
    uint8_t zero;                   /* the code of 0 */
};
const struct tr_dynamic *tr_dynamic(bool is_signed);
/* The code of the value nearest to x, for x from 0 to 1. */
static inline uint8_t tr_dynamic_code(const struct tr_dynamic *d, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t cell = (int32_t)(bits << 1 >> 17) - TR_DYNAMIC_CELL0; /* without the sign of -0 */
    if (cell < 0)
        return d->zero;
    uint8_t code = d->cell[cell < TR_DYNAMIC_CELLS ? cell : TR_DYNAMIC_CELLS - 1];
    return (uint8_t)(code + (x > d->border[code]));
}
/* The signed code of x, from -1 to 1. A negative number gets a negative value: the sign of a moment is kept. */
static inline uint8_t tr_dynamic_code_signed(const struct tr_dynamic *d, float x)
{
    int code = tr_dynamic_code(d, x < 0 ? -x : x), turned = 2 * d->zero - code;
    return (uint8_t)(x >= 0 ? code : turned < 0 ? 0 : turned == d->zero ? turned - 1 : turned);
}

/* Double quantisation: all absmax of one tensor, less their mean (*offset), in blocks of 256 of the dynamic map. codes:
 * n bytes; nested: the largest magnitude of each block. The mean is summed in the order of torch on one CPU thread,
 * which is that of any number of threads below 32,768 absmax; other orders differ in the last bits of *offset. */
void tr_q4_nest(const float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset);
/* absmax [first, first + n) of a tensor. map: the tensor's own, where a file has one. */
void tr_q4_unnest(const float map[256], const uint8_t *codes, const float *nested, float offset, int64_t first,
                  int64_t n, float *absmax);

/* 8-bit floats (e4m3) with a scale for each 128 elements: planes codes, ".scale" (F32). Named "fp8". */
enum { TR_F8_BLOCK = 128 };
const struct tr_storage_format *tr_storage_f8(void);
/* Values of codes, without scales. */
void tr_f8_values(const uint8_t *codes, int64_t n, float *out);
/* Elements [first, first + n) of a tensor: value * scale in float32, rounded to dtype. */
void tr_f8_decode(const uint8_t *codes, const float *scale, int64_t first, int64_t n, void *dst, enum tr_dtype dtype);

/* MXFP4: a code of 4 bits (e2m1) times the power of 2 that 32 elements share; NaN for scale 255. */
float tr_mx4_value(unsigned code, unsigned scale);

#endif
