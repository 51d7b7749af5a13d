/* ref_optim.c - the definition of the optimizers. One element at a time; state in F32 or BF16.
 *
 * BF16 state is rounded stochastically: rounding to nearest would drop every update below 2^-9 of the value, and
 * (1 - beta2) is below that.
 */
#include "base/quant.h"
#include "ops/cpu/ref.h"
#include <math.h>

struct optim_ref {
    double lr, clip, beta1, beta2, eps, keep, bias1, bias2; /* keep: the factor that weight decay leaves on p */
    uint64_t step;
};

static struct optim_ref optim_init(const struct tr_call *c)
{
    const float *s = c->in[1].data;
    double decay = c->attr.decay ? (double)s[TR_STEP_DECAY] : 0.0;
    return (struct optim_ref){ .lr = (double)s[TR_STEP_LR],
                               .clip = (double)s[TR_STEP_CLIP],
                               .beta1 = (double)s[TR_STEP_BETA1],
                               .beta2 = (double)s[TR_STEP_BETA2],
                               .eps = (double)s[TR_STEP_EPS],
                               .keep = 1.0 - (double)s[TR_STEP_LR] * decay,
                               .bias1 = (double)s[TR_STEP_BIAS1],
                               .bias2 = (double)s[TR_STEP_BIAS2],
                               .step = tr_step_number(s) };
}

/* Stores element i of p (k = 0), m (1) or v (2), rounded with its 16 random bits. */
static void put_state(const struct tr_call *c, const struct optim_ref *o, int k, int64_t i, double x)
{
    const struct tr_view *v = &c->out[k ? 1 + k : 0];
    if (v->dtype == TR_BF16) {
        uint64_t e = (uint64_t)(c->attr.first + i);
        uint32_t w = tr_philox(c->attr.key, o->step, e / 4).v[e % 4];
        uint32_t random = k == 0 ? w : k == 1 ? w >> 16 : w * 0x9E3779B1u >> 16;
        ((uint16_t *)v->data)[i] = tr_bf16_randomly((float)x, random);
    } else {
        tr_ref_put(v, 0, i, x);
    }
}

/* Stores the new p and its copy in the compute dtype. */
static void put_p(const struct tr_call *c, const struct optim_ref *o, int64_t i, double x)
{
    put_state(c, o, 0, i, x);
    if (c->out[1].data)
        tr_ref_put(&c->out[1], 0, i, tr_ref_get(&c->out[0], 0, i));
}

void tr_ref_put_p(const struct tr_call *c, int64_t i, double x)
{
    struct optim_ref o = optim_init(c);
    put_p(c, &o, i, x);
}

void tr_ref_ADAMW(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    for (int64_t i = 0; i < c->out[0].cols; i++) {
        double g = tr_ref_get(&c->in[0], 0, i) * o.clip, p = tr_ref_get(&c->out[0], 0, i) * o.keep;
        double m = o.beta1 * tr_ref_get(&c->out[2], 0, i) + (1.0 - o.beta1) * g;
        double v = o.beta2 * tr_ref_get(&c->out[3], 0, i) + (1.0 - o.beta2) * g * g;
        put_p(c, &o, i, p - o.lr / o.bias1 * m / (sqrt(v) / sqrt(o.bias2) + o.eps));
        put_state(c, &o, 1, i, m);
        put_state(c, &o, 2, i, v);
    }
}

/* The code whose value is nearest to x. */
static uint8_t nearest(const float map[256], double x)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        best = fabs((double)map[i] - x) < fabs((double)map[best] - x) ? i : best;
    return (uint8_t)best;
}

/* The codes of a block of n elements, of which the largest is `most`. */
static void encode(const float map[256], const double *x, int64_t n, double most, uint8_t *code)
{
    for (int64_t i = 0; i < n; i++) {
        uint8_t found = nearest(map, most > 0 ? x[i] / most : 0);
        code[i] = (uint8_t)(found - (x[i] < 0 && map[found] >= 0.0f)); /* the sign stays */
    }
}

void tr_ref_ADAMW8(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    float map[2][256];
    uint8_t *code[2] = { c->out[2].data, c->out[3].data };
    tr_dynamic_map(true, map[0]);
    tr_dynamic_map(false, map[1]);
    for (int64_t at = 0; at < c->out[0].cols; at += TR_DYNAMIC_BLOCK) {
        double x[2][TR_DYNAMIC_BLOCK], most[2] = { 0 };
        int64_t n = tr_min64(TR_DYNAMIC_BLOCK, c->out[0].cols - at), b = at / TR_DYNAMIC_BLOCK;
        for (int64_t i = 0; i < n; i++) {
            double g = tr_ref_get(&c->in[0], 0, at + i) * o.clip, p = tr_ref_get(&c->out[0], 0, at + i);
            for (int k = 0; k < 2; k++)
                x[k][i] = (double)map[k][code[k][at + i]] * tr_ref_get(&c->out[4 + k], 0, b);
            x[0][i] = o.beta1 * x[0][i] + (1.0 - o.beta1) * g;
            x[1][i] = o.beta2 * x[1][i] + (1.0 - o.beta2) * g * g;
            put_p(c, &o, at + i, (p - o.lr / o.bias1 * x[0][i] / (sqrt(x[1][i]) / sqrt(o.bias2) + o.eps)) * o.keep);
            for (int k = 0; k < 2; k++)
                most[k] = fmax(most[k], fabs(x[k][i]));
        }
        for (int k = 0; k < 2; k++) {
            tr_ref_put(&c->out[4 + k], 0, b, most[k]);
            encode(map[k], x[k], n, most[k], code[k] + at);
        }
    }
}

void tr_ref_LION8(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    float map[256];
    uint8_t *code = c->out[2].data;
    tr_dynamic_map(true, map);
    for (int64_t at = 0; at < c->out[0].cols; at += TR_DYNAMIC_BLOCK) {
        double x[TR_DYNAMIC_BLOCK], most = 0;
        int64_t n = tr_min64(TR_DYNAMIC_BLOCK, c->out[0].cols - at), b = at / TR_DYNAMIC_BLOCK;
        for (int64_t i = 0; i < n; i++) {
            double g = tr_ref_get(&c->in[0], 0, at + i) * o.clip, p = tr_ref_get(&c->out[0], 0, at + i) * o.keep;
            double m = (double)map[code[at + i]] * tr_ref_get(&c->out[3], 0, b), u = o.beta1 * m + (1.0 - o.beta1) * g;
            put_p(c, &o, at + i, p - o.lr * (double)((u > 0) - (u < 0)));
            x[i] = o.beta2 * m + (1.0 - o.beta2) * g;
            most = fmax(most, fabs(x[i]));
        }
        tr_ref_put(&c->out[3], 0, b, most);
        encode(map, x, n, most, code + at);
    }
}

void tr_ref_LION(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    for (int64_t i = 0; i < c->out[0].cols; i++) {
        double g = tr_ref_get(&c->in[0], 0, i) * o.clip, p = tr_ref_get(&c->out[0], 0, i) * o.keep;
        double m = tr_ref_get(&c->out[2], 0, i), u = o.beta1 * m + (1.0 - o.beta1) * g;
        put_p(c, &o, i, p - o.lr * (double)((u > 0) - (u < 0)));
        put_state(c, &o, 1, i, o.beta2 * m + (1.0 - o.beta2) * g);
    }
}

void tr_ref_SGD(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    for (int64_t i = 0; i < c->out[0].cols; i++) {
        double g = tr_ref_get(&c->in[0], 0, i) * o.clip, p = tr_ref_get(&c->out[0], 0, i) * o.keep;
        double m = c->out[2].data ? o.beta1 * tr_ref_get(&c->out[2], 0, i) + g : g;
        put_p(c, &o, i, p - o.lr * m);
        if (c->out[2].data)
            put_state(c, &o, 1, i, m);
    }
}

void tr_ref_MUON(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    double rest = 1.0 - (double)((const float *)c->in[1].data)[TR_STEP_MOMENTUM];
    for (int64_t i = 0; i < c->out[2].cols; i++) {
        double g = tr_ref_get(&c->in[0], 0, i) * o.clip, m = tr_ref_get(&c->out[2], 0, i);
        m += rest * (g - m);
        put_state(c, &o, 1, i, m);
        tr_ref_put(&c->out[3], 0, i, m + rest * (g - m));
    }
}

void tr_ref_MUON_APPLY(const struct tr_call *c)
{
    struct optim_ref o = optim_init(c);
    for (int64_t i = 0; i < c->out[0].cols; i++)
        put_p(c, &o, i, tr_ref_get(&c->out[0], 0, i) * o.keep - o.lr * tr_ref_get(&c->out[3], 0, i));
}
