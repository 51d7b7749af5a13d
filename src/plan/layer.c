/* layer.c - the operations of one layer, of the head, and what they take: products by shape, attention by kind, the
 * rest by bytes. Backward of a product is two of the same flops. Formulas of bytes kept are Korthikanti's (2022, table
 * 2).
 */
#include "plan/forecast.h"
#include <math.h>

enum { FORWARD, BACKWARD };

/* What tensor cores reach in attention kernels, forward and backward, of the 16-bit peak, heads of 128 and long rows.
 * Smaller heads leave more exponentials for a product, short rows more of the diagonal, half of which is thrown away
 * (measured on an H200: 0.45 of the peak with heads of 128 and 4096 tokens, 0.29 with 64 and 2048, 0.25 with 1024).
 * On Ampere, whose exponentials keep up, heads of 64 lose a tenth (FlashAttention-2's paper: 171 beside 189). */
struct core_share {
    double forward, backward;
};
double tr_core_share(int generation, const struct tr_impl *impl, double head_dim, double seq, bool is_backward)
{
    static const struct core_share ampere[] = { { 0, 0 }, { 0.48, 0.40 }, { 0.60, 0.50 }, { 0.60, 0.52 } };
    static const struct core_share hopper[] = { { 0, 0 }, { 0.28, 0.23 }, { 0.38, 0.32 }, { 0.60, 0.48 } };
    static const struct core_share blackwell[] = { { 0, 0 }, { 0.20, 0.16 }, { 0.28, 0.22 }, { 0.55, 0.42 } };
    static const struct core_share ultra[] = { { 0, 0 }, { 0.20, 0.16 }, { 0.28, 0.22 }, { 0.75, 0.55 } };
    bool is_large = generation >= 90 && generation < 120; /* data centre; an RTX has no wide tensor units */
    struct core_share c = (!is_large          ? ampere
                           : generation < 100 ? hopper
                           : generation < 103 ? blackwell
                                              : ultra)[impl->attention];
    double by_head = head_dim >= 128 ? 1 : pow(head_dim / 128, is_large ? 0.6 : 0.15), by_row = seq / (seq + 256);
    return impl->core * by_head * by_row * (is_backward ? c.backward : c.forward);
}

struct price {
    const struct tr_forecast_query *a;
    struct tr_chip chip; /* with this trainer's share of products */
    double time[2];      /* forward, backward */
    double flops;        /* forward */
    double streamed;     /* forward, of what is no product */
    double cast;         /* bytes moved for casts, forward; backward twice */
};

/* y = x W: and in backward dx = dy W^T and, where W learns, dW = dy^T x. */
static void product(struct price *p, enum tr_precision precision, double count, double m, double n, double k)
{
    if (m * n * k == 0)
        return;
    p->time[FORWARD] += tr_cost_gemm(&p->chip, precision, count, m, n, k);
    p->time[BACKWARD] += tr_cost_gemm(&p->chip, precision, count, m, k, n);
    if (!p->a->is_frozen)
        p->time[BACKWARD] += tr_cost_gemm(&p->chip, precision, count, n, k, m);
    /* a group of products is launched one by one */
    p->time[FORWARD] += (count - 1) * p->chip.launch_s;
    p->time[BACKWARD] += (p->a->is_frozen ? 1 : 2) * (count - 1) * p->chip.launch_s;
    p->flops += 2 * count * m * n * k;
    if (precision == TR_PRECISION_FP8 || precision == TR_PRECISION_FP4 || p->a->casts_rows)
        p->cast += p->a->impl->cast_bytes * count * (m * k + n * k / 4);
}

static void stream(struct price *p, double forward, double backward)
{
    double f = p->a->impl->fusion;
    p->streamed += tr_cost_stream(&p->chip, f * forward);
    p->time[FORWARD] += tr_cost_stream(&p->chip, f * forward);
    p->time[BACKWARD] += tr_cost_stream(&p->chip, f * backward);
}

static double tokens_of(const struct tr_forecast_query *a)
{
    return a->seq * a->micro / a->cp;
}

/* Scores written out: batches of small products, softmax over (heads, s, s), and dropout where models have it. */
static void plain_core(struct price *p)
{
    const struct tr_forecast_query *a = p->a;
    double d = a->shape.head_dim, count = a->micro * a->shape.heads / a->tp, s = a->seq / a->cp, all = a->seq;
    double cells = count * s * all, dropped = a->shape.is_gated ? 0 : 5;
    count *= 1 - a->shape.local_share;
    cells *= 1 - a->shape.local_share;
    p->time[FORWARD] += tr_cost_gemm(&p->chip, TR_PRECISION_16, count, s, all, d) +
                        tr_cost_gemm(&p->chip, TR_PRECISION_16, count, s, d, all) +
                        tr_cost_stream(&p->chip, (4 + dropped) * cells);
    p->time[BACKWARD] += 2 * tr_cost_gemm(&p->chip, TR_PRECISION_16, count, s, all, d) +
                         2 * tr_cost_gemm(&p->chip, TR_PRECISION_16, count, s, d, all) +
                         tr_cost_stream(&p->chip, (6 + dropped) * cells);
    p->flops += 4 * cells * d;
}

/* One kernel, or one for each block that comes round, causal: half of the cells; backward does five products for
 * forward's two. */
static void fused_core(struct price *p)
{
    const struct tr_forecast_query *a = p->a;
    const struct tr_shape_cost *s = &a->shape;
    double forward = tr_core_share(p->chip.generation, a->impl, s->head_dim, a->seq / a->cp, false);
    double backward = tr_core_share(p->chip.generation, a->impl, s->head_dim, a->seq / a->cp, true);
    double width = s->q_rank > 0 ? (2 * s->head_dim + s->rope_dim) / 2 : s->head_dim;
    double flops = 4 * tokens_of(a) * (a->seq / 2) * (1 - s->local_share) * width * s->heads / a->tp;
    double uneven = 1 + a->impl->cp_uneven * (1 - 1.0 / a->cp); /* whole: the last rank's rows see twice the mean */
    double peak = p->chip.peak[TR_PRECISION_16] / uneven;
    p->time[FORWARD] += flops / (peak * forward) + a->cp * p->chip.launch_s;
    p->time[BACKWARD] += 2.5 * flops / (peak * backward) + 2 * a->cp * p->chip.launch_s;
    p->flops += flops;
}

static void attention_products(struct price *p)
{
    const struct tr_forecast_query *a = p->a;
    const struct tr_shape_cost *s = &a->shape;
    double T = tokens_of(a), h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, t = a->tp;
    enum tr_precision precision = a->precision == TR_PRECISION_FP4 ? TR_PRECISION_FP8 : a->precision;
    if (s->q_rank > 0) {
        product(p, precision, 1, T, s->q_rank, h);
        product(p, precision, 1, T, s->heads * (s->head_dim + s->rope_dim) / t, s->q_rank);
        product(p, precision, 1, T, s->kv_rank + s->rope_dim, h);
        product(p, precision, 1, T, s->heads * 2 * s->head_dim / t, s->kv_rank);
    } else {
        product(p, a->precision, 1, T, (q + 2 * kv) / t, h);
    }
    product(p, a->precision, 1, T, h, q / t);
}

static void mlp_products(struct price *p, double ffn, double count, double T, double t)
{
    const struct tr_shape_cost *s = &p->a->shape;
    product(p, p->a->precision, count, T, (s->is_gated ? 2 : 1) * ffn / t, s->hidden);
    product(p, p->a->precision, count, T, s->hidden, ffn / t);
    double bytes = count * T * ffn / t;
    stream(p, (s->is_gated ? 6 : 4) * bytes, (s->is_gated ? 10 : 6) * bytes);
}

/* Experts of this rank, tokens spread evenly; permuting tokens there and back moves each copy `permute` times. Scores,
 * top k, counts, sorting and the exchanges are small kernels, whose launches are what they cost. */
enum { ROUTING_KERNELS = 24 };
static void experts(struct price *p)
{
    const struct tr_forecast_query *a = p->a;
    const struct tr_shape_cost *s = &a->shape;
    double T = tokens_of(a) / a->tp, parts = a->splits_experts ? a->tp : 1, here = s->experts / a->ep;
    mlp_products(p, s->ffn, here, T * parts * s->top_k / here, parts);
    product(p, TR_PRECISION_16, 1, T, s->experts, s->hidden);
    double moved = a->impl->permute * 4 * T * s->top_k * s->hidden;
    p->time[FORWARD] += tr_cost_stream(&p->chip, moved) + ROUTING_KERNELS * p->chip.launch_s;
    p->time[BACKWARD] += tr_cost_stream(&p->chip, moved) + ROUTING_KERNELS * p->chip.launch_s;
    if (s->shared_ffn > 0)
        mlp_products(p, s->shared_ffn, 1, tokens_of(a), a->tp);
}

/* Tokens to their experts. Inside a domain a copy for each expert; between domains one for each domain that holds any
 * of them, which passes it on. */
static double exchange(const struct tr_machine *m, struct tr_group g, double bytes, double top_k)
{
    double domains = g.n / g.in, away = (domains - 1) * (1 - pow(1 - 1 / domains, top_k));
    struct tr_group in = { g.in, g.in };
    double t = tr_cost_collective(m, TR_COST_ALL_TO_ALL, in, bytes * top_k);
    return domains > 1 ? t + m->slow.latency_s + bytes * away / (m->slow.rate * m->slow.share) : t;
}

/* Traffic of the tensor, context and expert axes, all of it. */
static void traffic(const struct tr_forecast_query *a, bool is_dense, struct tr_layer_cost *out)
{
    const struct tr_shape_cost *s = &a->shape;
    const struct tr_machine *m = a->machine;
    double T = tokens_of(a), bytes = 2 * T * s->hidden, tp = 0;
    struct tr_group g = tr_group_of(m, a->tp, 1);
    if (a->tp > 1)
        tp = a->has_sp ? tr_cost_collective(m, TR_COST_ALL_GATHER, g, bytes) +
                             tr_cost_collective(m, TR_COST_REDUCE_SCATTER, g, bytes)
                       : tr_cost_collective(m, TR_COST_ALL_REDUCE, g, bytes);
    bool has_experts = s->experts > 0 && !is_dense;
    double n_pairs = has_experts && s->shared_ffn == 0 ? 1 : 2; /* experts exchange tokens instead */
    if (has_experts && a->splits_experts)                       /* every copy of a token to all parts of its expert */
        n_pairs = 1 + s->top_k;
    out->tp_s[FORWARD] = out->tp_s[BACKWARD] = n_pairs * tp;
    if (a->has_sp && a->tp > 1) /* what was split is gathered once more for the weights' gradients */
        out->tp_s[BACKWARD] += n_pairs * tr_cost_collective(m, TR_COST_ALL_GATHER, g, bytes);
    if (a->cp > 1) {
        double kv = 2 * 2 * T * a->cp * s->kv_heads * s->head_dim / a->tp;
        struct tr_group c = tr_group_of(m, a->cp, a->tp);
        out->cp_s[FORWARD] = tr_cost_collective(m, TR_COST_ALL_GATHER, c, kv);
        out->cp_s[BACKWARD] = 2 * out->cp_s[FORWARD];
    }
    if (has_experts && a->ep > 1) {
        struct tr_group e = tr_group_of(m, a->ep, a->ep * a->tp > m->domain ? a->tp : 1);
        out->ep_s[FORWARD] = out->ep_s[BACKWARD] = 2 * exchange(m, e, 2 * T / a->tp * s->hidden, s->top_k);
    }
}

/* Korthikanti's components: a layer's input twice (norms), what attention keeps, what the MLP keeps. */
static void bytes_of(const struct tr_forecast_query *a, bool is_dense, struct tr_layer_cost *out)
{
    const struct tr_shape_cost *s = &a->shape;
    double T = tokens_of(a), h = s->hidden, t = a->tp, rows = a->has_sp ? t : 1;
    double q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, masks = s->is_gated ? 0 : 2;
    double wide = s->experts > 0 && !is_dense ? s->top_k * s->ffn / t + s->shared_ffn / t
                                              : (s->experts > 0 ? s->dense_ffn : s->ffn) / t;
    double moe = s->experts > 0 && !is_dense ? 4 * s->top_k * h / t : 0;
    double small = a->precision > TR_PRECISION_16 ? 0.6 : 1; /* inputs of fp8 products are kept in fp8 */
    double inner = small * ((4 * q + 4 * kv) / t + (s->is_gated ? 8 : 4) * wide + moe);
    double outer = (8 + masks) * h / rows;
    double scores = a->impl->attention == TR_ATTENTION_PLAIN ? 5 * s->heads / t * a->seq : 4 * s->heads / t;
    double n_wide = s->is_gated ? 2 : 1;
    double products =
        (4 * q + 4 * kv) / t + 2 * n_wide * wide + 8 * h / rows; /* what they give, and the rows between */
    double full = T * (inner + outer + scores);
    if (a->impl->keeps_products) /* and what norms and the activation give */
        full = T * (products + 4 * h / rows + 2 * wide + scores);
    out->one_bytes = full;
    out->split_bytes = T * (products - 2 * q / t - 4 * h / rows); /* gradients of what products gave */
    if (a->keep != TR_KEEP_ALL)                                   /* and what went into them, computed again */
        out->split_bytes += T * 2 * (2 * h / rows + q / t + wide);
    switch (a->keep) {
    case TR_KEEP_INPUT:
        out->kept_bytes = 2 * T * h / rows;
        break;
    case TR_KEEP_CORE:
        out->kept_bytes = T * (inner + outer);
        break;
    case TR_KEEP_OP: /* the input, attention's output, products' outputs: all, or every second one's */
        out->kept_bytes = a->impl->keeps_products ? T * products
                                                  : T * (2 * h / rows + (2 * kv + 2 * q) / t + 2 * wide + 2 * h / rows);
        break;
    case TR_KEEP_HALF:
        out->kept_bytes = (full + 2 * T * h / rows) / 2;
        break;
    default:
        out->kept_bytes = full;
    }
}

static double again(const struct tr_forecast_query *a, double core, double streamed, double whole)
{
    switch (a->keep) {
    case TR_KEEP_CORE:
        return core;
    case TR_KEEP_OP:
        return a->impl->keeps_products ? streamed : 0.5 * (whole - core);
    case TR_KEEP_HALF:
        return 0.5 * whole;
    case TR_KEEP_INPUT:
        return whole;
    default:
        return 0;
    }
}

static struct price price_open(const struct tr_forecast_query *a)
{
    struct price p = { .a = a, .chip = a->machine->chip };
    p.chip.held = a->impl->product;
    p.chip.launch_s += a->impl->kernel_s;
    return p;
}

void tr_layer_cost(const struct tr_forecast_query *a, bool is_dense, struct tr_layer_cost *out)
{
    const struct tr_shape_cost *s = &a->shape;
    struct price p = price_open(a);
    double T = tokens_of(a), h = s->hidden, rows = a->has_sp ? a->tp : 1;
    double q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    *out = (struct tr_layer_cost){ 0 };
    attention_products(&p);
    double before = p.time[FORWARD];
    if (a->impl->attention == TR_ATTENTION_PLAIN)
        plain_core(&p);
    else
        fused_core(&p);
    double core = p.time[FORWARD] - before;
    if (s->experts > 0 && !is_dense)
        experts(&p);
    else
        mlp_products(&p, s->experts > 0 ? s->dense_ffn : s->ffn, 1, T, a->tp);
    /* two norms (r, w), two residual adds (2 r, w), rotation of q and k; backward reads once more */
    stream(&p, T * (20 * h / rows + 4 * (q + kv) / a->tp), T * (26 * h / rows + 4 * (q + kv) / a->tp));
    p.time[FORWARD] += p.cast / (p.chip.memory_rate * p.chip.stream_share);
    p.time[BACKWARD] += 2 * p.cast / (p.chip.memory_rate * p.chip.stream_share);
    out->forward_s = p.time[FORWARD];
    out->backward_s = p.time[BACKWARD];
    out->again_s = again(a, core, p.streamed, p.time[FORWARD]);
    out->flops = p.flops;
    traffic(a, is_dense, out);
    out->tp_again_s = again(a, 0, 0, out->tp_s[FORWARD]);
    out->ep_again_s = again(a, 0, 0, out->ep_s[FORWARD]);
    bytes_of(a, is_dense, out);
}

enum { HEAD_WORKSPACE = 64 << 20 }; /* of a product: bytes */

/* The last norm, logits in 16 bit, the loss in float: read, shifted, summed, written as its own gradient. */
void tr_head_cost(const struct tr_forecast_query *a, struct tr_layer_cost *out)
{
    struct price p = price_open(a);
    double T = tokens_of(a), v = ceil(a->shape.vocab / a->tp), h = a->shape.hidden;
    *out = (struct tr_layer_cost){ 0 };
    product(&p, a->precision == TR_PRECISION_FP32 ? TR_PRECISION_FP32 : TR_PRECISION_16, 1, T, ceil(v / 8) * 8, h);
    stream(&p, 10 * T * v, 6 * T * v);
    out->forward_s = p.time[FORWARD];
    out->backward_s = p.time[BACKWARD];
    out->flops = p.flops;
    out->kept_bytes = T * (4 * h / (a->has_sp ? a->tp : 1) + a->impl->logits_bytes * v);
    if (a->impl->keeps_products)
        out->kept_bytes += HEAD_WORKSPACE;
}
