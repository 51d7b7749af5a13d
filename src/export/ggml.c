/* ggml.c - the table of element types, and those with one scale for a block of 32. See ggml.h. */
#include "export/ggml.h"
#include <math.h>

enum { BLOCK = 32, HALF = BLOCK / 2 };

/* The element of the largest magnitude, with its sign; of several the first. */
static float largest(const float *x)
{
    float most = 0, value = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > most) {
            most = fabsf(x[i]);
            value = x[i];
        }
    return value;
}

/* A code is rounded by adding half a step and dropping the rest. The scale of a block of tiny elements may be 0 or its
 * inverse infinite; what comes of that is cut to the range, because a cast of it to int has no meaning in C. */
static uint8_t code_of(float x, int most)
{
    return (uint8_t)(x >= (float)most ? most : x > 0 ? (int)x : 0);
}

static void encode_q8_0(const float *x, uint8_t *out)
{
    float d = fabsf(largest(x)) / 127, inverse = d != 0 ? 1 / d : 0;
    tr_ggml_put_half(out, d);
    for (int i = 0; i < BLOCK; i++)
        out[2 + i] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, roundf(x[i] * inverse)));
}

static void decode_q8_0(const uint8_t *in, float *x)
{
    float d = tr_ggml_half(in);
    for (int i = 0; i < BLOCK; i++)
        x[i] = (float)(int8_t)in[2 + i] * d;
}

/* The largest element gets code 0, so d has the opposite sign: the range of codes reaches one step further there. */
static void encode_q4_0(const float *x, uint8_t *out)
{
    float d = largest(x) / -8, inverse = d != 0 ? 1 / d : 0;
    tr_ggml_put_half(out, d);
    for (int i = 0; i < HALF; i++) {
        float low = x[i] * inverse, high = x[i + HALF] * inverse;
        out[2 + i] = (uint8_t)(code_of(low + 8.5f, 15) | code_of(high + 8.5f, 15) << 4);
    }
}

static void decode_q4_0(const uint8_t *in, float *x)
{
    float d = tr_ggml_half(in);
    for (int i = 0; i < HALF; i++) {
        x[i] = (float)((in[2 + i] & 15) - 8) * d;
        x[i + HALF] = (float)((in[2 + i] >> 4) - 8) * d;
    }
}

/* Codes of 5 bits: 16 bytes with the lower four of two elements, before them a word with the fifth of all. */
static void put_codes5(const uint8_t code[BLOCK], uint8_t *out)
{
    uint32_t high = 0;
    for (int i = 0; i < BLOCK; i++)
        high |= (uint32_t)(code[i] >> 4) << i;
    memcpy(out, &high, sizeof high);
    for (int i = 0; i < HALF; i++)
        out[sizeof high + (size_t)i] = (uint8_t)((code[i] & 15) | code[i + HALF] << 4);
}

static void get_codes5(const uint8_t *in, uint8_t code[BLOCK])
{
    uint32_t high;
    memcpy(&high, in, sizeof high);
    for (int i = 0; i < BLOCK; i++) {
        uint8_t low = in[sizeof high + (size_t)(i % HALF)];
        code[i] = (uint8_t)((i < HALF ? low & 15 : low >> 4) | (int)(high >> i & 1) << 4);
    }
}

static void encode_q5_0(const float *x, uint8_t *out)
{
    float d = largest(x) / -16, inverse = d != 0 ? 1 / d : 0;
    uint8_t code[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        float scaled = x[i] * inverse;
        code[i] = code_of(scaled + 16.5f, 31);
    }
    tr_ggml_put_half(out, d);
    put_codes5(code, out + 2);
}

static void decode_q5_0(const uint8_t *in, float *x)
{
    float d = tr_ggml_half(in);
    uint8_t code[BLOCK];
    get_codes5(in + 2, code);
    for (int i = 0; i < BLOCK; i++)
        x[i] = (float)(code[i] - 16) * d;
}

static void encode_q5_1(const float *x, uint8_t *out)
{
    float least = x[0], most = x[0];
    for (int i = 1; i < BLOCK; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    float d = (most - least) / 31, inverse = d != 0 ? 1 / d : 0;
    uint8_t code[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        float scaled = (x[i] - least) * inverse;
        code[i] = code_of(scaled + 0.5f, 31);
    }
    tr_ggml_put_half(out, d);
    tr_ggml_put_half(out + 2, least);
    put_codes5(code, out + 4);
}

static void decode_q5_1(const uint8_t *in, float *x)
{
    float d = tr_ggml_half(in), least = tr_ggml_half(in + 2);
    uint8_t code[BLOCK];
    get_codes5(in + 4, code);
    for (int i = 0; i < BLOCK; i++)
        x[i] = (float)code[i] * d + least;
}

static const struct tr_ggml_type types[] = {
    [TR_GGML_F32] = { "F32", 0, 1, 4, TR_GGML_F32, TR_F32, NULL, NULL },
    [TR_GGML_F16] = { "F16", 1, 1, 2, TR_GGML_F16, TR_F16, NULL, NULL },
    [TR_GGML_BF16] = { "BF16", 30, 1, 2, TR_GGML_BF16, TR_BF16, NULL, NULL },
    [TR_GGML_Q4_0] = { "Q4_0", 2, BLOCK, 18, TR_GGML_F16, TR_U8, encode_q4_0, decode_q4_0 },
    [TR_GGML_Q5_0] = { "Q5_0", 6, BLOCK, 22, TR_GGML_F16, TR_U8, encode_q5_0, decode_q5_0 },
    [TR_GGML_Q5_1] = { "Q5_1", 7, BLOCK, 24, TR_GGML_F16, TR_U8, encode_q5_1, decode_q5_1 },
    [TR_GGML_Q8_0] = { "Q8_0", 8, BLOCK, 34, TR_GGML_F16, TR_U8, encode_q8_0, decode_q8_0 },
    [TR_GGML_Q4_K] = { "Q4_K", 12, 256, 144, TR_GGML_Q5_0, TR_U8, tr_ggml_encode_q4_k, tr_ggml_decode_q4_k },
    [TR_GGML_Q5_K] = { "Q5_K", 13, 256, 176, TR_GGML_Q5_1, TR_U8, tr_ggml_encode_q5_k, tr_ggml_decode_q5_k },
    [TR_GGML_Q6_K] = { "Q6_K", 14, 256, 210, TR_GGML_Q8_0, TR_U8, tr_ggml_encode_q6_k, tr_ggml_decode_q6_k },
};
_Static_assert(TR_COUNT_OF(types) == TR_GGML_COUNT, "a row for each type");

const struct tr_ggml_type *tr_ggml_type(enum tr_ggml t)
{
    return &types[t];
}

enum tr_ggml tr_ggml_for_row(enum tr_ggml t, int64_t cols)
{
    while (cols % types[t].n != 0)
        t = types[t].for_short_rows;
    return t;
}

size_t tr_ggml_bytes(enum tr_ggml t, int64_t n)
{
    return (size_t)(n / types[t].n) * types[t].bytes;
}

void tr_ggml_encode(enum tr_ggml t, const float *x, int64_t n, uint8_t *out)
{
    if (types[t].n == 1)
        tr_convert(x, TR_F32, out, types[t].dtype, (size_t)n);
    for (int64_t i = 0; types[t].n > 1 && i < n; i += types[t].n, out += types[t].bytes)
        types[t].encode(x + i, out);
}

void tr_ggml_decode(enum tr_ggml t, const uint8_t *in, int64_t n, float *x)
{
    if (types[t].n == 1)
        tr_convert(in, types[t].dtype, x, TR_F32, (size_t)n);
    for (int64_t i = 0; types[t].n > 1 && i < n; i += types[t].n, in += types[t].bytes)
        types[t].decode(in, x + i);
}
