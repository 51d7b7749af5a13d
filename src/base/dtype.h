/* dtype.h - element types and their traits, scalar conversions (round to nearest even), and storage formats. */
#ifndef TR_BASE_DTYPE_H
#define TR_BASE_DTYPE_H

#include "base/status.h"
#include <string.h>

/* X(enum, bits, name in safetensors, name, codec to and from float32; raw: none) */
#define TR_DTYPE_LIST(X)                                                                                               \
    X(F32, 32, "F32", "float32", f32)                                                                                  \
    X(BF16, 16, "BF16", "bfloat16", bf16)                                                                              \
    X(F16, 16, "F16", "float16", f16)                                                                                  \
    X(F64, 64, "F64", "float64", f64)                                                                                  \
    X(I32, 32, "I32", "int32", raw)                                                                                    \
    X(I64, 64, "I64", "int64", raw)                                                                                    \
    X(U8, 8, "U8", "uint8", raw)                                                                                       \
    X(I8, 8, "I8", "int8", raw)                                                                                        \
    X(E4M3, 8, "F8_E4M3", "float8_e4m3fn", e4m3)                                                                       \
    X(E5M2, 8, "F8_E5M2", "float8_e5m2", e5m2)

enum tr_dtype {
#define X(id, bits, st_name, name, codec) TR_##id,
    TR_DTYPE_LIST(X)
#undef X
        TR_DTYPE_COUNT
};

struct tr_dtype_traits {
    const char *name, *st_name; /* "bfloat16"; in safetensors: "BF16" */
    uint8_t bits;
    /* n elements, to and from float32; NULL: raw, bytes that only copies touch. */
    void (*to_f32)(const void *src, float *dst, size_t n);
    void (*from_f32)(const float *src, void *dst, size_t n);
};
const struct tr_dtype_traits *tr_dtype_traits(enum tr_dtype d);
size_t tr_dtype_bytes(enum tr_dtype d);            /* of one element */
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

/* 8-bit floats. e4m3 has 4 bits of exponent and 3 of mantissa, and is at most 448; e5m2 has 5 and 2, is at most 57344,
 * and is the upper half of a float16. Values above the largest finite one, infinity included, become that one. */
#define TR_E4M3_MOST 448.0f
#define TR_E5M2_MOST 57344.0f
float tr_f32_of_e4m3(uint8_t b);
uint8_t tr_e4m3_of_f32(float f);
float tr_f32_of_e5m2(uint8_t b);
uint8_t tr_e5m2_of_f32(float f);

/* n elements between any two types that are not raw; src and dst must not overlap unless equal and same type. */
void tr_convert(const void *src, enum tr_dtype src_dtype, void *dst, enum tr_dtype dst_dtype, size_t n);

/* How a tensor is stored: planes, each of a plain dtype. A plain format has one plane; a quantised one has more (packed
 * codes, the scale of each block, ...), so that every plane keeps whole elements of a known size. */
struct tr_plane {
    const char *suffix; /* of the tensor's name in files: "" for the first plane */
    enum tr_dtype dtype;
    int32_t per; /* elements of the tensor behind one element here; 0: one for the whole tensor */
};
enum { TR_PLANES_MAX = 4 };
struct tr_storage_format {
    const char *name;
    int32_t grain; /* shards and tensor-parallel cuts of the flattened tensor are multiples of so many elements */
    int32_t n_planes;
    struct tr_plane plane[TR_PLANES_MAX];
};
/* Bytes of one plane, and of all, for a tensor of n elements; a last block may be short. */
size_t tr_plane_bytes(const struct tr_plane *p, int64_t n);
size_t tr_storage_bytes(const struct tr_storage_format *f, int64_t n);

#endif
