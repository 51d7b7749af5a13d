/* dtype.h - element types, their sizes and HF/safetensors names, and scalar conversions (round to nearest even). */
#ifndef TR_BASE_DTYPE_H
#define TR_BASE_DTYPE_H

#include "base/status.h"
#include <string.h>

#define TR_DTYPE_LIST(X)                                                                                               \
    X(F32, 4, "F32", "float32")                                                                                        \
    X(BF16, 2, "BF16", "bfloat16")                                                                                     \
    X(F16, 2, "F16", "float16")                                                                                        \
    X(F64, 8, "F64", "float64")                                                                                        \
    X(I32, 4, "I32", "int32")                                                                                          \
    X(I64, 8, "I64", "int64")                                                                                          \
    X(U8, 1, "U8", "uint8")                                                                                            \
    X(E5M2, 1, "F8_E5M2", "float8_e5m2")

enum tr_dtype {
#define X(name, bytes, st_name, hf_name) TR_##name,
    TR_DTYPE_LIST(X)
#undef X
        TR_DTYPE_COUNT
};

size_t tr_dtype_bytes(enum tr_dtype d);
const char *tr_dtype_name(enum tr_dtype d);        /* "bfloat16" */
const char *tr_dtype_safetensors(enum tr_dtype d); /* "BF16" */
/* By either name; TR_USAGE lists the legal ones. */
enum tr_status tr_dtype_parse(const char *name, enum tr_dtype *out);

static inline float tr_f32_of_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t tr_bf16_of_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN, never rounded up to infinity */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float tr_f32_of_f16(uint16_t h);
uint16_t tr_f16_of_f32(float f);

/* 8-bit floats, e4m3: 4 exponent bits, 3 of the mantissa, at most 448; e5m2: 5 and 2, at most 57344, half a float16.
 * What is more becomes the most: infinity too. */
#define TR_E4M3_MOST 448.0f
#define TR_E5M2_MOST 57344.0f
float tr_f32_of_e4m3(uint8_t b);
uint8_t tr_e4m3_of_f32(float f);
float tr_f32_of_e5m2(uint8_t b);
uint8_t tr_e5m2_of_f32(float f);

/* n elements between any two float types; src and dst must not overlap unless equal and same type. */
void tr_convert(const void *src, enum tr_dtype src_dtype, void *dst, enum tr_dtype dst_dtype, size_t n);

#endif
