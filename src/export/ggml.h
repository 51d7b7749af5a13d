/* ggml.h - element types of a GGUF file: how a block of floats is encoded, and what it decodes to.
 *
 * A row of a matrix is divided into blocks, each with its scale. Bytes are those of llama.cpp's reference quantiser
 * without an importance matrix, and decoded values those of its reference decoder, bit for bit
 * (tests/golden/check_gguf.py).
 */
#ifndef TR_EXPORT_GGML_H
#define TR_EXPORT_GGML_H

#include "base/base.h"

enum tr_ggml {
    TR_GGML_F32,
    TR_GGML_F16,
    TR_GGML_BF16,
    TR_GGML_Q4_0,
    TR_GGML_Q5_0,
    TR_GGML_Q5_1,
    TR_GGML_Q8_0,
    TR_GGML_Q4_K,
    TR_GGML_Q5_K,
    TR_GGML_Q6_K,
    TR_GGML_COUNT
};
enum { TR_GGML_BLOCK_MAX = 256 };

struct tr_ggml_type {
    const char *name;
    uint32_t id;                                  /* in a file */
    int64_t n;                                    /* elements of a block */
    size_t bytes;                                 /* of a block */
    enum tr_ggml for_short_rows;                  /* where rows are not whole blocks; itself: any row will do */
    enum tr_dtype dtype;                          /* of a type without blocks, which has no functions of its own */
    void (*encode)(const float *x, uint8_t *out); /* one block; x is finite */
    void (*decode)(const uint8_t *in, float *x);
};
const struct tr_ggml_type *tr_ggml_type(enum tr_ggml t);
/* The type itself where rows of `cols` elements are whole blocks, else what stands in for it. */
enum tr_ggml tr_ggml_for_row(enum tr_ggml t, int64_t cols);
/* n elements, a multiple of the block. */
size_t tr_ggml_bytes(enum tr_ggml t, int64_t n);
void tr_ggml_encode(enum tr_ggml t, const float *x, int64_t n, uint8_t *out);
void tr_ggml_decode(enum tr_ggml t, const uint8_t *in, int64_t n, float *x);

/* ggml_k.c: super-blocks of 256 elements, whose blocks have scales of few bits. */
void tr_ggml_encode_q4_k(const float *x, uint8_t *out);
void tr_ggml_decode_q4_k(const uint8_t *in, float *x);
void tr_ggml_encode_q5_k(const float *x, uint8_t *out);
void tr_ggml_decode_q5_k(const uint8_t *in, float *x);
void tr_ggml_encode_q6_k(const float *x, uint8_t *out);
void tr_ggml_decode_q6_k(const uint8_t *in, float *x);

/* A float16 at any address. */
static inline void tr_ggml_put_half(uint8_t *out, float x)
{
    uint16_t h = tr_f16_of_f32(x);
    memcpy(out, &h, sizeof h);
}
static inline float tr_ggml_half(const uint8_t *in)
{
    uint16_t h;
    memcpy(&h, in, sizeof h);
    return tr_f32_of_f16(h);
}

#endif
