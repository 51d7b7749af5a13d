/* fast_optim.c - the optimizers: gradient, weight and moments in one pass over memory.
 *
 * Factors that do not depend on the element are formed in double, once per piece. Random numbers are drawn only when a
 * state is BF16.
 */
#include "base/quant.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd.h"
#include <math.h>

struct optim {
    struct run g, state[3], copy; /* state: p, m, v */
    float lr, clip, keep;         /* keep: the factor that weight decay leaves on p */
    float beta1, rest1, beta2, rest2, eps;
    float lr_bias1, inv_root_bias2;
    bool is_random; /* some state is BF16 */
    uint64_t key, step;
    int64_t first;
};

static inline bool is_bf16(struct run r)
{
    return r.is_half && !r.is_f16;
}

static struct optim optim_init(const struct tr_call *c)
{
    const float *s = c->in[1].data;
    double lr = (double)s[TR_STEP_LR], decay = c->attr.decay ? (double)s[TR_STEP_DECAY] : 0.0;
    struct optim o = { .g = run_at(&c->in[0], 0, 0),
                       .copy = run_at(&c->out[1], 0, 0),
                       .lr = s[TR_STEP_LR],
                       .clip = s[TR_STEP_CLIP],
                       .keep = (float)(1.0 - lr * decay),
                       .beta1 = s[TR_STEP_BETA1],
                       .rest1 = (float)(1.0 - (double)s[TR_STEP_BETA1]),
                       .beta2 = s[TR_STEP_BETA2],
                       .rest2 = (float)(1.0 - (double)s[TR_STEP_BETA2]),
                       .eps = s[TR_STEP_EPS],
                       .lr_bias1 = (float)(lr / (double)s[TR_STEP_BIAS1]),
                       .inv_root_bias2 = (float)(1.0 / sqrt((double)s[TR_STEP_BIAS2])),
                       .key = c->attr.key,
                       .step = tr_step_number(s),
                       .first = c->attr.first };
    for (int k = 0; k < 3; k++) {
        o.state[k] = run_at(&c->out[k ? 1 + k : 0], 0, 0);
        o.is_random |= o.state[k].p && is_bf16(o.state[k]);
    }
    return o;
}

/* Adds 16 random bits below the bits that stay, then truncates, so the expected value is x. Inf and NaN stay. */
static inline vf round_randomly(vf x, vu random)
{
    vu u = (vu)x;
    vi is_special = (vi)(u & 0x7f800000u) == 0x7f800000;
    return v_select(is_special, x, (vf)((u + (random & 0xffffu)) & 0xffff0000u));
}

/* The random bits of TR_LANES elements from i on, for p, m and v. Four neighbours share a counter; each has one of its
 * words. */
static inline void draw(const struct optim *o, int64_t i, vu random[3])
{
    typedef uint32_t words
        __attribute__((vector_size(TR_LANES * 2))); /* the words of half as many counters; half of the words are used */
    uint64_t first = (uint64_t)(o->first + i);
    vu w;
    if (first % 4 == 0) {
        vl word[4];
        v_philox(10, o->key, o->step, v_count_from(first / 4), word);
        for (int k = 0; k < 4; k++) {
            words narrow = __builtin_convertvector(word[k], words);
            for (int j = 0; j < TR_LANES / 4; j++)
                w[4 * j + k] = narrow[j];
        }
    } else { /* a shard that begins inside a group of four elements */
        for (uint64_t j = 0; j < TR_LANES; j++)
            w[j] = tr_philox(o->key, o->step, (first + j) / 4).v[(first + j) % 4];
    }
    random[0] = w;
    random[1] = w >> 16;
    random[2] = w * 0x9E3779B1u >> 16;
}

/* Stores the new state at i: p and its copy, m, and v where the optimizer has it. */
TR_FORCE_INLINE void put(const struct optim *o, int64_t i, int64_t end, const vf *new_state, int n_states)
{
    vu random[3] = { 0 };
    if (o->is_random)
        draw(o, i, random);
#pragma GCC unroll 16
    for (int k = 0; k < n_states; k++) {
        vf x = is_bf16(o->state[k]) ? round_randomly(new_state[k], random[k]) : new_state[k];
        v_store(o->state[k], i, end, x);
        if (k == 0 && o->copy.p)
            v_store(o->copy, i, end, x);
    }
}

static void adamw_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    (void)row;
    for (int64_t i = col; i < end; i += TR_LANES) {
        vf g = v_load(o.g, i, end) * o.clip;
        vf p = v_load(o.state[0], i, end) * o.keep;
        vf m = v_load(o.state[1], i, end) * o.beta1 + g * o.rest1;
        vf v = v_load(o.state[2], i, end) * o.beta2 + g * g * o.rest2;
        p -= m * o.lr_bias1 / (v_sqrt(v) * o.inv_root_bias2 + o.eps);
        put(&o, i, end, (vf[]){ p, m, v }, 3);
    }
}

void TR_FAST(adamw)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, adamw_piece);
}

/* The moments of a block of n elements; the elements that a short block lacks are 0. */
static void decode(const struct tr_dynamic *map, const uint8_t *code, int64_t n, float most, float *x)
{
    for (int64_t i = 0; i < TR_DYNAMIC_BLOCK; i++)
        x[i] = i < n ? map->value[code[i]] * most : 0.0f;
}

static void encode(const struct tr_dynamic *map, bool is_signed, const float *x, int64_t n, vf largest, float *most,
                   uint8_t *code)
{
    float lane[TR_LANES];
    memcpy(lane, &largest, sizeof lane);
    *most = 0.0f;
    for (int l = 0; l < TR_LANES; l++)
        *most = lane[l] > *most ? lane[l] : *most;
    for (int64_t i = 0; i < n; i++) {
        float part = *most > 0.0f ? x[i] / *most : 0.0f;
        code[i] = is_signed ? tr_dynamic_code_signed(map, part) : tr_dynamic_code(map, part);
    }
}

/* One block of 256 elements, or the last ones of a tensor. */
static void adamw8_block(const struct tr_call *c, const struct optim *o, int64_t first, int64_t end)
{
    const struct tr_dynamic *map_m = tr_dynamic(true), *map_v = tr_dynamic(false);
    uint8_t *code_m = (uint8_t *)c->out[2].data + first, *code_v = (uint8_t *)c->out[3].data + first;
    float *max_m = (float *)c->out[4].data + first / TR_DYNAMIC_BLOCK,
          *max_v = (float *)c->out[5].data + first / TR_DYNAMIC_BLOCK;
    float m[TR_DYNAMIC_BLOCK], v[TR_DYNAMIC_BLOCK];
    int64_t n = end - first;
    vf most_m = v_set(0.0f), most_v = v_set(0.0f);
    decode(map_m, code_m, n, *max_m, m);
    decode(map_v, code_v, n, *max_v, v);
    for (int64_t i = 0; i < n; i += TR_LANES) {
        vf g = v_load(o->g, first + i, end) * o->clip, p = v_load(o->state[0], first + i, end), x, y;
        memcpy(&x, m + i, sizeof x);
        memcpy(&y, v + i, sizeof y);
        x = x * o->beta1 + g * o->rest1;
        y = y * o->beta2 + g * g * o->rest2;
        p -= x * o->lr_bias1 / (v_sqrt(y) * o->inv_root_bias2 + o->eps);
        put(o, first + i, end, (vf[]){ p * o->keep }, 1);
        memcpy(m + i, &x, sizeof x);
        memcpy(v + i, &y, sizeof y);
        most_m = v_select(v_abs(x) > most_m, v_abs(x), most_m);
        most_v = v_select(y > most_v, y, most_v);
    }
    encode(map_m, true, m, n, most_m, max_m, code_m);
    encode(map_v, false, v, n, most_v, max_v, code_v);
}

static void adamw8_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    (void)row;
    o.is_random = is_bf16(o.state[0]);
    for (int64_t i = col; i < end; i += TR_DYNAMIC_BLOCK)
        adamw8_block(c, &o, i, tr_min64(i + TR_DYNAMIC_BLOCK, end));
}

void TR_FAST(adamw8)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, adamw8_piece);
}

/* The learning rate with the sign of the average. */
static inline vf lion_move(const struct optim *o, vf m, vf g)
{
    vf u = m * o->beta1 + g * o->rest1;
    return v_select(u > 0.0f, v_set(o->lr), v_select(u < 0.0f, v_set(-o->lr), v_set(0.0f)));
}

static void lion_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    (void)row;
    for (int64_t i = col; i < end; i += TR_LANES) {
        vf g = v_load(o.g, i, end) * o.clip, m = v_load(o.state[1], i, end);
        vf p = v_load(o.state[0], i, end) * o.keep - lion_move(&o, m, g);
        put(&o, i, end, (vf[]){ p, m * o.beta2 + g * o.rest2 }, 2);
    }
}

void TR_FAST(lion)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, lion_piece);
}

static void lion8_block(const struct tr_call *c, const struct optim *o, int64_t first, int64_t end)
{
    const struct tr_dynamic *map = tr_dynamic(true);
    uint8_t *code = (uint8_t *)c->out[2].data + first;
    float *max_m = (float *)c->out[3].data + first / TR_DYNAMIC_BLOCK, m[TR_DYNAMIC_BLOCK];
    int64_t n = end - first;
    vf most = v_set(0.0f);
    decode(map, code, n, *max_m, m);
    for (int64_t i = 0; i < n; i += TR_LANES) {
        vf g = v_load(o->g, first + i, end) * o->clip, x;
        memcpy(&x, m + i, sizeof x);
        put(o, first + i, end, (vf[]){ v_load(o->state[0], first + i, end) * o->keep - lion_move(o, x, g) }, 1);
        x = x * o->beta2 + g * o->rest2;
        memcpy(m + i, &x, sizeof x);
        most = v_select(v_abs(x) > most, v_abs(x), most);
    }
    encode(map, true, m, n, most, max_m, code);
}

static void lion8_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    (void)row;
    o.is_random = is_bf16(o.state[0]);
    for (int64_t i = col; i < end; i += TR_DYNAMIC_BLOCK)
        lion8_block(c, &o, i, tr_min64(i + TR_DYNAMIC_BLOCK, end));
}

void TR_FAST(lion8)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, lion8_piece);
}

static void sgd_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    int n_states = o.state[1].p ? 2 : 1;
    (void)row;
    for (int64_t i = col; i < end; i += TR_LANES) {
        vf m = v_load(o.g, i, end) * o.clip;
        if (n_states == 2)
            m += v_load(o.state[1], i, end) * o.beta1;
        put(&o, i, end, (vf[]){ v_load(o.state[0], i, end) * o.keep - m * o.lr, m }, n_states);
    }
}

void TR_FAST(sgd)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, sgd_piece);
}

static void muon_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    struct run d = run_at(&c->out[3], 0, 0);
    float rest = (float)(1.0 - (double)((const float *)c->in[1].data)[TR_STEP_MOMENTUM]);
    vu random[3] = { 0 };
    (void)row;
    for (int64_t i = col; i < end; i += TR_LANES) {
        vf g = v_load(o.g, i, end) * o.clip, m = v_load(o.state[1], i, end);
        m += (g - m) * rest;
        if (is_bf16(o.state[1]))
            draw(&o, i, random);
        v_store(o.state[1], i, end, is_bf16(o.state[1]) ? round_randomly(m, random[1]) : m);
        v_store(d, i, end, m + (g - m) * rest);
    }
}

void TR_FAST(muon)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[2].cols, TR_PIECE, muon_piece);
}

static void muon_apply_piece(const struct tr_call *c, int64_t row, int64_t col, int64_t end)
{
    struct optim o = optim_init(c);
    struct run d = run_at(&c->out[3], 0, 0);
    (void)row;
    o.is_random = is_bf16(o.state[0]);
    for (int64_t i = col; i < end; i += TR_LANES)
        put(&o, i, end, (vf[]){ v_load(o.state[0], i, end) * o.keep - v_load(d, i, end) * o.lr }, 1);
}

void TR_FAST(muon_apply)(const struct tr_call *c)
{
    tr_fast_run(c, 1, c->out[0].cols, TR_PIECE, muon_apply_piece);
}
