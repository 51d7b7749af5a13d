/* ggml_k.c - types with super-blocks of 256: blocks of 32 with a scale and a least value of 6 bits (Q4_K, Q5_K), or of
 * 16 with a scale of 8 bits (Q6_K).
 *
 * Scales are found by trying a few and keeping the one with the least weighted error. The sums are float and in the
 * order of the elements, as in llama.cpp: another order would give other codes. */
#include "export/ggml.h"
#include <math.h>

enum { SUPER = 256, BLOCK = 32, N_BLOCKS = SUPER / BLOCK, SMALL = 16, N_SMALL = SUPER / SMALL };
static const float too_small = 1e-15f;

static int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* Half to even. Quotients of tiny numbers may be infinite or no number, which int has no place for. */
static int nearest(float x)
{
    return (int)fmaxf(-4194303, fminf(4194303, rintf(x)));
}

/* ---- blocks with a scale and a least value: x = scale * code + least, least <= 0 ---- */

struct fit {
    const float *x;
    int most; /* the largest code */
    float weight[BLOCK];
    float sum_w, sum_wx;
    float scale, least, error;
    uint8_t code[BLOCK];
};

static float error_of(const struct fit *f, float scale, float least, const uint8_t code[BLOCK])
{
    float sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        float d = scale * (float)code[i] + least - f->x[i];
        d = d * d;
        sum += f->weight[i] * d;
    }
    return sum;
}

/* Codes for one guess of the scale, then the scale and least value that suit these codes best (weighted squares). The
 * next guess starts from the least value that was best so far. */
static void try_scale(struct fit *f, float steps, float high)
{
    uint8_t code[BLOCK];
    float least = f->least, inverse = steps / (high - least), sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < BLOCK; i++) {
        int l = clamp(nearest(inverse * (f->x[i] - least)), 0, f->most);
        float w = f->weight[i], fl = (float)l;
        code[i] = (uint8_t)l;
        sum_l += w * fl;
        sum_l2 += w * fl * fl;
        sum_xl += w * fl * f->x[i];
    }
    float det = f->sum_w * sum_l2 - sum_l * sum_l;
    if (!(det > 0))
        return;
    float scale = (f->sum_w * sum_xl - f->sum_wx * sum_l) / det;
    float low = (sum_l2 * f->sum_wx - sum_l * sum_xl) / det;
    if (low > 0) {
        low = 0;
        scale = sum_xl / sum_l2;
    }
    float error = error_of(f, scale, low, code);
    if (error < f->error) {
        f->error = error;
        f->scale = scale;
        f->least = low;
        memcpy(f->code, code, sizeof code);
    }
}

static void fit_block(struct fit *f, const float *x, int most, float first, int n_tries)
{
    float squares = 0, low = x[0], high = x[0];
    for (int i = 0; i < BLOCK; i++)
        squares += x[i] * x[i];
    float rms = sqrtf(squares / BLOCK);
    *f = (struct fit){ .x = x, .most = most };
    for (int i = 0; i < BLOCK; i++) {
        f->weight[i] = rms + fabsf(x[i]);
        f->sum_w += f->weight[i];
        f->sum_wx += f->weight[i] * x[i];
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    low = low > 0 ? 0 : low;
    f->least = low;
    if (high == low)
        return;
    float inverse = (float)most / (high - low);
    f->scale = 1 / inverse;
    for (int i = 0; i < BLOCK; i++)
        f->code[i] = (uint8_t)clamp(nearest(inverse * (x[i] - low)), 0, most);
    f->error = error_of(f, f->scale, low, f->code);
    for (int k = 0; k <= n_tries; k++)
        try_scale(f, first + 0.1f * (float)k + (float)most, high);
}

/* Eight scales and eight least values of 6 bits in 12 bytes: those of blocks 0 to 3 fill the lower six bits of a byte
 * each; of the others four bits share a byte, and two are in the upper bits of the first eight. */
static void put_scale(uint8_t s[12], int i, int scale, int least)
{
    if (i < 4) {
        s[i] = (uint8_t)scale;
        s[i + 4] = (uint8_t)least;
        return;
    }
    s[i + 4] = (uint8_t)((scale & 15) | (least & 15) << 4);
    s[i - 4] = (uint8_t)(s[i - 4] | (scale >> 4) << 6);
    s[i] = (uint8_t)(s[i] | (least >> 4) << 6);
}

static void get_scale(const uint8_t s[12], int i, float *scale, float *least)
{
    *scale = (float)(i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
    *least = (float)(i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | (s[i] >> 6) << 4);
}

/* d, the scale of scales; the scale of least values; the 12 bytes; codes go to the caller. */
static void encode_scales(const float *x, int most, float first, int n_tries, uint8_t *out, uint8_t code[SUPER])
{
    struct fit f[N_BLOCKS];
    float most_scale = 0, most_least = 0;
    for (int i = 0; i < N_BLOCKS; i++) {
        fit_block(&f[i], x + BLOCK * i, most, first, n_tries);
        most_scale = f[i].scale > most_scale ? f[i].scale : most_scale;
        most_least = -f[i].least > most_least ? -f[i].least : most_least;
        memcpy(code + BLOCK * i, f[i].code, BLOCK);
    }
    float per_scale = most_scale > 0 ? 63 / most_scale : 0, per_least = most_least > 0 ? 63 / most_least : 0;
    memset(out + 4, 0, 12);
    for (int i = 0; i < N_BLOCKS; i++)
        put_scale(out + 4, i, clamp(nearest(per_scale * f[i].scale) & 255, 0, 63),
                  clamp(nearest(per_least * -f[i].least) & 255, 0, 63));
    tr_ggml_put_half(out, most_scale / 63);
    tr_ggml_put_half(out + 2, most_least / 63);
    for (int i = 0; i < N_BLOCKS; i++) {
        float scale, least;
        get_scale(out + 4, i, &scale, &least);
        scale *= tr_ggml_half(out);
        least *= tr_ggml_half(out + 2);
        for (int k = BLOCK * i; scale != 0 && k < BLOCK * (i + 1); k++)
            code[k] = (uint8_t)clamp(nearest((x[k] + least) / scale), 0, most);
    }
}

static void decode_codes(const uint8_t *in, const uint8_t code[SUPER], float *x)
{
    for (int i = 0; i < N_BLOCKS; i++) {
        float scale, least;
        get_scale(in + 4, i, &scale, &least);
        scale *= tr_ggml_half(in);
        least *= tr_ggml_half(in + 2);
        for (int k = BLOCK * i; k < BLOCK * (i + 1); k++)
            x[k] = scale * (float)code[k] - least;
    }
}

/* Four bits of two elements that are 32 apart share a byte. */
static void put_low(const uint8_t code[SUPER], uint8_t *out)
{
    for (int i = 0; i < SUPER / 2; i++) {
        int at = i / BLOCK * 2 * BLOCK + i % BLOCK;
        out[i] = (uint8_t)((code[at] & 15) | (code[at + BLOCK] & 15) << 4);
    }
}

static void get_low(const uint8_t *in, uint8_t code[SUPER])
{
    for (int i = 0; i < SUPER / 2; i++) {
        int at = i / BLOCK * 2 * BLOCK + i % BLOCK;
        code[at] = in[i] & 15;
        code[at + BLOCK] = in[i] >> 4;
    }
}

void tr_ggml_encode_q4_k(const float *x, uint8_t *out)
{
    uint8_t code[SUPER];
    encode_scales(x, 15, -1, 20, out, code);
    put_low(code, out + 16);
}

void tr_ggml_decode_q4_k(const uint8_t *in, float *x)
{
    uint8_t code[SUPER];
    get_low(in + 16, code);
    decode_codes(in, code, x);
}

/* The fifth bits: byte l has those of elements l of the eight blocks. */
void tr_ggml_encode_q5_k(const float *x, uint8_t *out)
{
    uint8_t code[SUPER];
    encode_scales(x, 31, -0.5f, 15, out, code);
    memset(out + 16, 0, BLOCK);
    for (int i = 0; i < SUPER; i++)
        out[16 + i % BLOCK] = (uint8_t)(out[16 + i % BLOCK] | (code[i] >> 4) << (i / BLOCK));
    put_low(code, out + 16 + BLOCK);
}

void tr_ggml_decode_q5_k(const uint8_t *in, float *x)
{
    uint8_t code[SUPER];
    get_low(in + 16 + BLOCK, code);
    for (int i = 0; i < SUPER; i++)
        code[i] = (uint8_t)(code[i] | (in[16 + i % BLOCK] >> (i / BLOCK) & 1) << 4);
    decode_codes(in, code, x);
}

/* ---- blocks of 16 with a scale: x = scale * (code - 32) ---- */

/* The codes of one guess of the inverse scale; the two sums say how well they fit, weighted by x * x. */
static void try_codes(const float *x, float inverse, float *sum_lx, float *sum_l2, int8_t code[SMALL])
{
    *sum_lx = *sum_l2 = 0;
    for (int i = 0; i < SMALL; i++) {
        int l = clamp(nearest(inverse * x[i]), -32, 31);
        float w = x[i] * x[i], fl = (float)l;
        code[i] = (int8_t)l;
        *sum_lx += w * x[i] * fl;
        *sum_l2 += w * fl * fl;
    }
}

static float fit_small(const float *x, int8_t best_code[SMALL])
{
    float most = 0, value = 0, sum_lx, sum_l2;
    memset(best_code, -32, SMALL);
    for (int i = 0; i < SMALL; i++)
        if (fabsf(x[i]) > most) {
            most = fabsf(x[i]);
            value = x[i];
        }
    if (most < too_small)
        return 0;
    try_codes(x, -32 / value, &sum_lx, &sum_l2, best_code);
    float scale = sum_l2 != 0 ? sum_lx / sum_l2 : 0, best = scale * sum_lx;
    for (int k = -9; k <= 9; k++) {
        int8_t code[SMALL];
        if (k == 0)
            continue;
        try_codes(x, -(32 + 0.1f * (float)k) / value, &sum_lx, &sum_l2, code);
        if (sum_l2 > 0 && sum_lx * sum_lx > best * sum_l2) {
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
            memcpy(best_code, code, SMALL);
        }
    }
    return scale;
}

enum { Q6_HIGH = SUPER / 2, Q6_SCALES = Q6_HIGH + SUPER / 4, Q6_D = Q6_SCALES + N_SMALL, Q6_BYTES = Q6_D + 2 };

/* Of each 128 elements: byte l has four bits of elements l and l + 64, byte l + 32 of l + 32 and l + 96, and a third
 * one the upper two bits of all four. */
static void put_codes6(const int8_t code[SUPER], uint8_t *out)
{
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < BLOCK; l++) {
            uint8_t q[4];
            for (int k = 0; k < 4; k++)
                q[k] = (uint8_t)(code[128 * half + BLOCK * k + l] + 32);
            out[64 * half + l] = (uint8_t)((q[0] & 15) | (q[2] & 15) << 4);
            out[64 * half + BLOCK + l] = (uint8_t)((q[1] & 15) | (q[3] & 15) << 4);
            out[Q6_HIGH + BLOCK * half + l] =
                (uint8_t)(q[0] >> 4 | (q[1] >> 4) << 2 | (q[2] >> 4) << 4 | (q[3] >> 4) << 6);
        }
}

void tr_ggml_encode_q6_k(const float *x, uint8_t *out)
{
    int8_t code[SUPER];
    float scale[N_SMALL], most = 0;
    for (int i = 0; i < N_SMALL; i++) {
        scale[i] = fit_small(x + SMALL * i, code + SMALL * i);
        most = fabsf(scale[i]) > fabsf(most) ? scale[i] : most;
    }
    if (fabsf(most) < too_small) {
        memset(out, 0, Q6_BYTES);
        return;
    }
    float inverse = -128 / most;
    tr_ggml_put_half(out + Q6_D, 1 / inverse);
    for (int i = 0; i < N_SMALL; i++) {
        int s = nearest(inverse * scale[i]);
        s = s > 127 ? 127 : s;
        out[Q6_SCALES + i] = (uint8_t)(int8_t)s;
        float d = tr_ggml_half(out + Q6_D) * (float)s;
        for (int k = SMALL * i; d != 0 && k < SMALL * (i + 1); k++)
            code[k] = (int8_t)clamp(nearest(x[k] / d), -32, 31);
    }
    put_codes6(code, out);
}

void tr_ggml_decode_q6_k(const uint8_t *in, float *x)
{
    for (int i = 0; i < SUPER; i++) {
        int half = i / 128, k = i % 128 / BLOCK, l = i % BLOCK;
        int low = in[64 * half + BLOCK * (k & 1) + l] >> (k >= 2 ? 4 : 0) & 15;
        int high = in[Q6_HIGH + BLOCK * half + l] >> (2 * k) & 3;
        float d = tr_ggml_half(in + Q6_D) * (float)(int8_t)in[Q6_SCALES + i / SMALL];
        x[i] = d * (float)((low | high << 4) - 32);
    }
}
