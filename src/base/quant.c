/* quant.c - 4-bit blocks and double quantisation, bit for bit as bitsandbytes computes them on a CPU.
 *
 * Three of its habits are kept because bytes must be equal: a whole block is multiplied by 1 / absmax, but a short last
 * block is divided by absmax; absmax is taken as at least 1e-38 where it divides (and is stored so for a short block);
 * and a scale is given the code of the nearest of 65,536 steps of [-1, 1], not of the scale itself.
 */
#include "base/quant.h"
#include "base/banned.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

enum { BLOCK = TR_Q4_BLOCK, NEST = TR_Q4_NEST, N_STEPS = 65536 };

#define LEAST_ABSMAX 1e-38f

static const float values[TR_Q4_COUNT][16] = {
    [TR_NF4] = { -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
                 -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
                 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f,
                 0.7229568362236023f, 1.0f },
    /* sign, 2 bits of exponent, 1 of mantissa, divided by the largest one */
    [TR_FP4] = { 0.0f, 0.0625f / 12, 8.0f / 12, 12.0f / 12, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12, -0.0f,
                 -0.0625f / 12, -8.0f / 12, -12.0f / 12, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12 },
};

/* Codes in ascending order of their values. FP4 has two zeros; the order of the two is bitsandbytes'. */
static const uint8_t ascending[TR_Q4_COUNT][16] = {
    [TR_NF4] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
    [TR_FP4] = { 11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3 },
};

static const struct tr_storage_format formats[] = {
    [TR_NF4] = { "nf4", BLOCK, 2, { { "", TR_U8, 2 }, { ".absmax", TR_F32, BLOCK } } },
    [TR_FP4] = { "fp4", BLOCK, 2, { { "", TR_U8, 2 }, { ".absmax", TR_F32, BLOCK } } },
};
_Static_assert(TR_COUNT_OF(formats) == TR_Q4_COUNT, "one format for each type");

const struct tr_storage_format *tr_storage_q4(enum tr_q4 q)
{
    TR_BUG_ON((unsigned)q >= TR_Q4_COUNT);
    return &formats[q];
}

const float *tr_q4_values(enum tr_q4 q)
{
    TR_BUG_ON((unsigned)q >= TR_Q4_COUNT);
    return values[q];
}

/* ---- 4-bit blocks ---- */

/* As integers, because compilers do not reorder a maximum of floats. */
static float largest_of_block(const float x[BLOCK])
{
    int32_t most = 0;
    for (int i = 0; i < BLOCK; i++) {
        int32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7fffffff;
        most = u > most ? u : most;
    }
    float f;
    memcpy(&f, &most, sizeof f);
    return f;
}

/* The number of middles below each element, and pairs of their codes. */
static void encode_scaled(const float x[BLOCK], const float middle[15], const uint8_t code[16], uint8_t out[BLOCK / 2])
{
    int32_t k[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        float v = x[i];
        k[i] = (v > middle[0]) + (v > middle[1]) + (v > middle[2]) + (v > middle[3]) + (v > middle[4]) +
               (v > middle[5]) + (v > middle[6]) + (v > middle[7]) + (v > middle[8]) + (v > middle[9]) +
               (v > middle[10]) + (v > middle[11]) + (v > middle[12]) + (v > middle[13]) + (v > middle[14]);
    }
    for (int i = 0; i < BLOCK / 2; i++)
        out[i] = (uint8_t)(code[k[2 * i]] << 4 | code[k[2 * i + 1]]);
}

void tr_q4_encode(enum tr_q4 q, const float *x, int64_t n, uint8_t *codes, float *absmax)
{
    TR_BUG_ON((unsigned)q >= TR_Q4_COUNT);
    const uint8_t *code = ascending[q];
    float middle[15], scaled[BLOCK];
    uint8_t last[BLOCK / 2];
    for (int i = 0; i < 15; i++)
        middle[i] = (values[q][code[i]] + values[q][code[i + 1]]) / 2;
    for (; n >= BLOCK; x += BLOCK, codes += BLOCK / 2, n -= BLOCK) {
        float most = largest_of_block(x), inverse = 1.0f / (most < LEAST_ABSMAX ? LEAST_ABSMAX : most);
        *absmax++ = most;
        for (int i = 0; i < BLOCK; i++)
            scaled[i] = x[i] * inverse;
        encode_scaled(scaled, middle, code, codes);
    }
    if (n == 0)
        return;
    memset(scaled, 0, sizeof scaled); /* the padding of an odd tensor has the code of zero */
    memcpy(scaled, x, (size_t)n * sizeof *x);
    float most = largest_of_block(scaled);
    *absmax = most < LEAST_ABSMAX ? LEAST_ABSMAX : most;
    for (int i = 0; i < BLOCK; i++)
        scaled[i] /= *absmax;
    encode_scaled(scaled, middle, code, last);
    memcpy(codes, last, (size_t)(n + 1) / 2);
}

/* A block has 16 different results at most: they are made once, and elements are looked up. */
#define DECODE(name, type)                                                                                             \
    static void name(const uint8_t *codes, int64_t first, int64_t n, const void *of, void *dst)                        \
    {                                                                                                                  \
        const type *table = of;                                                                                        \
        type *to = dst;                                                                                                \
        if (n > 0 && first % 2) {                                                                                      \
            *to++ = table[codes[first / 2] & 15];                                                                      \
            first++;                                                                                                   \
            n--;                                                                                                       \
        }                                                                                                              \
        codes += first / 2;                                                                                            \
        for (int64_t i = 0; i < n / 2; i++) {                                                                          \
            uint8_t both = codes[i];                                                                                   \
            to[2 * i] = table[both >> 4];                                                                              \
            to[2 * i + 1] = table[both & 15];                                                                          \
        }                                                                                                              \
        if (n % 2)                                                                                                     \
            to[n - 1] = table[codes[n / 2] >> 4];                                                                      \
    }
DECODE(decode_32, uint32_t)
DECODE(decode_16, uint16_t)
#undef DECODE

void tr_q4_decode(enum tr_q4 q, const uint8_t *codes, const float *absmax, int64_t first, int64_t n, void *dst,
                  enum tr_dtype dtype)
{
    TR_BUG_ON((unsigned)q >= TR_Q4_COUNT || (dtype != TR_F32 && dtype != TR_BF16 && dtype != TR_F16));
    char *to = dst;
    for (int64_t at = first, end = first + n, n_now; at < end; at += n_now) {
        float scaled[16];
        uint32_t table[16];
        n_now = tr_min64(end - at, BLOCK - at % BLOCK);
        for (int i = 0; i < 16; i++)
            scaled[i] = values[q][i] * absmax[at / BLOCK];
        tr_convert(scaled, TR_F32, table, dtype, 16);
        (dtype == TR_F32 ? decode_32 : decode_16)(codes, at, n_now, table, to);
        to += (size_t)n_now * tr_dtype_bytes(dtype);
    }
}

/* ---- the dynamic map ---- */

static int ascending_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* For each power of ten from 1e-6 to 1: the middles of equal parts of [0.1, 1], twice as many parts each time. */
void tr_dynamic_map(bool is_signed, float out[256])
{
    static const float power[7] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f };
    int n = 0;
    for (int e = 0; e < 7; e++) {
        int n_parts = is_signed ? 1 << e : 2 << e;
        double step = (double)((1.0f - 0.1f) / (float)n_parts);
        float edge[2] = { 0.1f, 0 };
        for (int i = 1; i <= n_parts; i++, edge[0] = edge[1]) {
            /* from the nearer end and rounded once, as torch.linspace does */
            edge[1] = (float)(i < (n_parts + 1) / 2 ? (double)0.1f + step * i : 1.0 - step * (n_parts - i));
            float middle = power[e] * ((edge[0] + edge[1]) / 2);
            out[n++] = middle;
            if (is_signed)
                out[n++] = -middle;
        }
    }
    out[n++] = 0.0f;
    out[n++] = 1.0f;
    TR_BUG_ON(n != 256);
    qsort(out, 256, sizeof *out, ascending_floats);
}

static struct tr_dynamic finders[2]; /* unsigned, signed */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void make_finders(void)
{
    for (int s = 0; s < 2; s++) {
        struct tr_dynamic *d = &finders[s];
        tr_dynamic_map(s, d->value);
        d->zero = s ? 127 : 0;
        TR_BUG_ON(d->value[d->zero] != 0.0f);
        for (int i = 0; i < 256; i++)
            d->border[i] = i < 255 ? (d->value[i] + d->value[i + 1]) / 2 : INFINITY;
        int code = d->zero;
        for (uint32_t k = 0; k < TR_DYNAMIC_CELLS; k++) {
            float first = float_of_bits((TR_DYNAMIC_CELL0 + k) << 16);
            while (first > d->border[code])
                code++;
            d->cell[k] = (uint8_t)code;
            float last = float_of_bits(((TR_DYNAMIC_CELL0 + k) << 16) + 0xffff);
            TR_BUG_ON(k + 1 < TR_DYNAMIC_CELLS && code < 254 && last > d->border[code + 1]);
        }
        TR_BUG_ON(float_of_bits(TR_DYNAMIC_CELL0 << 16) > d->border[d->zero]);
    }
}

const struct tr_dynamic *tr_dynamic(bool is_signed)
{
    (void)pthread_once(&once, make_finders);
    return &finders[is_signed];
}

/* ---- double quantisation ---- */

enum { LEVELS = 4, ROWS = 4, LANES = 8 };

static int bits_of(int64_t x)
{
    int n = 0;
    for (; x > 0; x >>= 1)
        n++;
    return n;
}

/* Adds x[i] to sum[i % width], i < n_rounds * width, through LEVELS sums: each takes the one below when that has added
 * `step` numbers, so that numbers of like size meet. */
static void add_in_levels(const float *x, int64_t n_rounds, int width, float *sum)
{
    float level[LEVELS][ROWS * LANES] = { { 0 } };
    int power = n_rounds <= 2 ? 4 : (int)tr_max64(4, bits_of(n_rounds - 1) / LEVELS);
    int64_t step = INT64_C(1) << power;
    for (int64_t i = 0; i < n_rounds;) {
        for (int k = 0; k < width; k++)
            level[0][k] += x[i * width + k];
        i++;
        if (i % step != 0)
            continue;
        for (int l = 1; l < LEVELS; l++) {
            for (int k = 0; k < width; k++) {
                level[l][k] += level[l - 1][k];
                level[l - 1][k] = 0;
            }
            if ((i >> (l * power)) % step != 0)
                break;
        }
    }
    for (int k = 0; k < width; k++) {
        for (int l = 1; l < LEVELS; l++)
            level[0][k] += level[l][k];
        sum[k] = level[0][k];
    }
}

/* The sum as torch makes it: four rows of vectors of eight floats; below eight numbers, of one float. */
static float torch_sum(const float *x, int64_t n)
{
    int lanes = n >= LANES ? LANES : 1;
    int64_t n_vectors = n / lanes, n_rounds = n_vectors / ROWS;
    float sum[ROWS * LANES], total = 0;
    add_in_levels(x, n_rounds, ROWS * lanes, sum);
    for (int64_t i = n_rounds * ROWS; i < n_vectors; i++)
        for (int k = 0; k < lanes; k++)
            sum[k] += x[i * lanes + k];
    for (int row = 1; row < ROWS; row++)
        for (int k = 0; k < lanes; k++)
            sum[k] += sum[row * lanes + k];
    for (int64_t i = n_vectors * lanes; i < n; i++)
        total += x[i];
    for (int k = 0; k < lanes; k++)
        total += sum[k];
    return total;
}

/* The code of the nearest step of [-1, 1]: how many middles of the map lie below the step. */
static uint8_t dynamic_code(const float middle[255], float x)
{
    x = !(x > -1.0f) ? -1.0f : x > 1.0f ? 1.0f : x; /* a NaN is no step: it becomes the first */
    int step = (int)((x + 1.0f) * 0.5f * (N_STEPS - 1) + 0.5f), lo = 0, hi = 255;
    float at = -1.0f + 2.0f * (float)step / (N_STEPS - 1);
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (middle[mid] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return (uint8_t)lo;
}

void tr_q4_nest(const float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset)
{
    float map[256], middle[255];
    tr_dynamic_map(true, map);
    for (int i = 0; i < 255; i++)
        middle[i] = 0.5f * (map[i] + map[i + 1]);
    *offset = n > 0 ? torch_sum(absmax, n) / (float)n : 0.0f;
    for (int64_t at = 0; at < n; at += NEST) {
        int64_t n_now = tr_min64(NEST, n - at);
        float most = 0;
        for (int64_t i = 0; i < n_now; i++)
            most = fmaxf(most, fabsf(absmax[at + i] - *offset));
        *nested++ = most;
        float inverse = 1.0f / most;
        for (int64_t i = 0; i < n_now; i++)
            codes[at + i] = most == 0 ? 0 : dynamic_code(middle, (absmax[at + i] - *offset) * inverse);
    }
}

void tr_q4_unnest(const float map[256], const uint8_t *codes, const float *nested, float offset, int64_t first,
                  int64_t n, float *absmax)
{
    for (int64_t i = 0; i < n; i++)
        absmax[i] = map[codes[first + i]] * nested[(first + i) / NEST] + offset;
}

/* ---- 8-bit floats, and MXFP4 ---- */

static const struct tr_storage_format f8 = {
    "fp8", TR_F8_BLOCK, 2, { { "", TR_E4M3, 1 }, { ".scale", TR_F32, TR_F8_BLOCK } }
};

const struct tr_storage_format *tr_storage_f8(void)
{
    return &f8;
}

/* By bits: sign, 4 of exponent, 3 of mantissa, moved into a float of 2^-120 times the value, so that denormals are
 * right too; 0x7f is NaN. */
static inline float f8_value(uint8_t code)
{
    uint32_t b = code, u = (b & 0x80) << 24 | (b & 0x7f) << 20, nan = (b & 0x7f) == 0x7f ? 0x7fc00000u : 0;
    float x;
    memcpy(&x, &u, sizeof x);
    x *= 0x1p120f;
    memcpy(&u, &x, sizeof u);
    u |= nan;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Compilers take a loop of known length many elements at a time. */
void tr_f8_values(const uint8_t *codes, int64_t n, float *out)
{
    for (; n >= 64; n -= 64, codes += 64, out += 64)
        for (int i = 0; i < 64; i++)
            out[i] = f8_value(codes[i]);
    for (int64_t i = 0; i < n; i++)
        out[i] = f8_value(codes[i]);
}

void tr_f8_decode(const uint8_t *codes, const float *scale, int64_t first, int64_t n, void *dst, enum tr_dtype dtype)
{
    char *to = dst;
    for (int64_t at = first, end = first + n, n_now; at < end; at += n_now) {
        float x[TR_F8_BLOCK] = { 0 }, s = scale[at / TR_F8_BLOCK];
        n_now = tr_min64(end - at, TR_F8_BLOCK - at % TR_F8_BLOCK);
        tr_f8_values(codes + at, n_now, x);
        for (int i = 0; i < TR_F8_BLOCK; i++)
            x[i] *= s;
        tr_convert(x, TR_F32, to, dtype, (size_t)n_now);
        to += (size_t)n_now * tr_dtype_bytes(dtype);
    }
}

float tr_mx4_value(unsigned code, unsigned scale)
{
    static const float e2m1[8] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f };
    float x = scale == 255 ? NAN : ldexpf(e2m1[code & 7], (int)scale - 127);
    return code & 8 ? -x : x;
}
