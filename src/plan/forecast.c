/* forecast.c - from what a layer costs to what a step costs: stages, their order, the gradients' way, the update.
 *
 * The order of stages is the trainer's own (tr_order_open), played with these costs. With many micro-batches only the
 * first few and the last few differ from a steady state, so the play stops there and the busiest rank's time goes on
 * in a straight line. Rejected: a closed formula for the step (first and last stage cost more than the others).
 */
#include "plan/forecast.h"
#include "parallel/parallel.h"
#include <math.h>
#include <stdlib.h>

static const char *const axis_names[TR_TIME_AXES] = { "tp", "cp", "ep", "pp", "dp" };
static const char *const bytes_names[TR_BYTES_KINDS] = { "params", "grads", "state", "acts", "work", "library" };

const char *tr_axis_cost_name(enum tr_axis_cost a)
{
    return axis_names[a];
}

const char *tr_bytes_kind_name(enum tr_bytes_kind k)
{
    return bytes_names[k];
}

/* ---- what may be asked ---- */

static enum tr_status need(bool is_so, const char *what, double value, const char *fix)
{
    return is_so ? TR_OK : tr_fail(TR_USAGE, "%s %.15g %s", what, value, fix);
}

static double nearest_divisor(double n, double want)
{
    double d = want < n ? floor(want) : n;
    while (d > 1 && fmod(n, d) != 0)
        d--;
    return d;
}

enum tr_status tr_forecast_check(const struct tr_ask *a)
{
    const struct tr_shape_cost *s = &a->shape;
    enum tr_status st = TR_OK;
    char fix[96];
    struct {
        const char *what;
        double value, most;
    } sizes[] = { { "layers", s->layers, 1e4 },
                  { "hidden size", s->hidden, 1e6 },
                  { "heads", s->heads, 1e5 },
                  { "kv heads", s->kv_heads, 1e5 },
                  { "head size", s->head_dim, 1e5 },
                  { "ffn size", s->ffn, 1e7 },
                  { "vocabulary", s->vocab, 1e8 },
                  { "sequence length", a->seq, 1e9 },
                  { "micro-batch", a->micro, 1e6 },
                  { "global batch", a->global, 1e9 },
                  { "tp", a->tp, 1e6 },
                  { "pp", a->pp, 1e6 },
                  { "pp_chunks", a->chunks, 1e4 },
                  { "cp", a->cp, 1e6 },
                  { "dp", a->dp, 1e6 },
                  { "ep", a->ep, 1e6 } };
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++) {
        (void)tr_format(fix, sizeof fix, "is outside 1 to %.0f", sizes[i].most);
        TR_TRY(need(sizes[i].value >= 1 && sizes[i].value <= sizes[i].most, sizes[i].what, sizes[i].value, fix));
    }
    double chips = (double)a->tp * a->pp * a->cp * a->dp;
    TR_TRY(need(chips <= 1e6, "a layout of", chips, "chips is more than 1000000"));
    (void)tr_format(fix, sizeof fix, "does not divide %.0f heads; try %.0f", s->heads,
                    nearest_divisor(s->heads, a->tp));
    TR_TRY(need(fmod(s->heads, a->tp) == 0, "tp", a->tp, fix));
    (void)tr_format(fix, sizeof fix, "is more than the %.0f layers", s->layers);
    TR_TRY(need((double)a->pp * a->chunks <= s->layers + 2, "pp x pp_chunks", (double)a->pp * a->chunks, fix));
    (void)tr_format(fix, sizeof fix, "is not a multiple of dp %d; try %.0f", a->dp,
                    a->dp * fmax(1, floor(a->global / a->dp)));
    TR_TRY(need(fmod(a->global, a->dp) == 0, "a global batch of", a->global, fix));
    (void)tr_format(fix, sizeof fix, "does not divide the sequence of %.0f tokens", a->seq);
    TR_TRY(need(fmod(a->seq, a->cp) == 0, "cp", a->cp, fix));
out:
    return st;
}

/* ---- the pipeline ---- */

struct stages {
    double (*turn)[4];
    double message, busiest; /* a micro-batch on the rank with most work */
    int p, v;
};

/* Micro-batches after which another one only adds the busiest rank's time. */
static int steady_micro(int p, int m)
{
    int few = 3 * p + m % p;
    return m > few + p ? few : m;
}

static enum tr_status play(const struct tr_ask *a, const struct stages *s, double n_micro, double *length)
{
    struct tr_order *o = NULL;
    struct tr_order_times times;
    enum tr_status st = TR_OK;
    int m = (int)n_micro, v = s->v;
    if (v > 1 && m % s->p != 0) /* orders of others, which groups of pp do not fill: as if they did */
        m = (m / s->p + 1) * s->p;
    int few = steady_micro(s->p, m);
    const char *name = a->schedule ? a->schedule : v > 1 ? "interleaved" : "1f1b";
    TR_TRY(tr_order_open(name, s->p, v, few, &o));
    struct tr_order_costs costs = { .turn = (const double(*)[4])s->turn, .message = s->message };
    TR_TRY(tr_order_play_costs(o, &costs, &times, NULL, NULL));
    *length = times.length + (n_micro - few) * s->busiest;
out:
    tr_order_close(o);
    return st;
}

/* ---- sharded weights: gathered before a layer, its gradients scattered after ---- */

struct layer_time {
    double forward, backward; /* with what is not hidden of every axis */
    double kernels;           /* both, compute alone */
    double exposed[TR_TIME_AXES], comm[TR_TIME_AXES];
};

static void add_axis(struct layer_time *t, enum tr_axis_cost axis, double forward, double backward, double hidden_f,
                     double hidden_b)
{
    t->forward += forward * (1 - hidden_f);
    t->backward += backward * (1 - hidden_b);
    t->exposed[axis] += forward * (1 - hidden_f) + backward * (1 - hidden_b);
    t->comm[axis] += forward + backward;
}

static double dp_seconds(const struct tr_ask *a, enum tr_collective kind, double bytes)
{
    double n = a->shard > 0 ? a->shard : (double)a->dp * a->cp;
    struct tr_machine m = *a->machine;
    struct tr_group g = tr_group_of(&m, n, a->tp);
    m.slow.share *= a->impl->dp_share;
    return tr_cost_collective(&m, kind, g, bytes);
}

static struct layer_time layer_time(const struct tr_ask *a, const struct tr_layer_cost *c, double params)
{
    const struct tr_impl *im = a->impl;
    struct layer_time t = { .forward = c->forward_s, .backward = c->backward_s + c->again_s };
    t.kernels = t.forward + t.backward;
    add_axis(&t, TR_TIME_TP, c->tp_s[0], c->tp_s[1] + c->tp_again_s, im->tp_hidden, im->tp_hidden_bwd);
    add_axis(&t, TR_TIME_CP, c->cp_s[0], c->cp_s[1], im->cp_hidden, im->cp_hidden);
    add_axis(&t, TR_TIME_EP, c->ep_s[0], c->ep_s[1] + c->ep_again_s, im->ep_hidden, im->ep_hidden);
    if (a->zero == 3 && a->dp * a->cp > 1) {
        double gather = dp_seconds(a, TR_COST_ALL_GATHER, 2 * params);
        double scatter = dp_seconds(a, TR_COST_REDUCE_SCATTER, im->grad_bytes * params);
        double hidden = im->dp_hidden; /* what hides is what the layer's own kernels last */
        double f = fmax(gather - hidden * t.forward, gather * (1 - hidden));
        double b = fmax(gather + scatter - hidden * t.backward, (gather + scatter) * (1 - hidden));
        t.forward += fmax(f, 0);
        t.backward += fmax(b, 0);
        t.exposed[TR_TIME_DP] += fmax(f, 0) + fmax(b, 0);
        t.comm[TR_TIME_DP] += 2 * gather + scatter;
    }
    return t;
}

/* ---- bytes ---- */

static double rank_params(const struct tr_ask *a)
{
    const struct tr_shape_cost *s = &a->shape;
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0, dense = s->layers - moe;
    double sparse = s->experts > 0 ? s->experts * (s->is_gated ? 3 : 2) * s->hidden * s->ffn : 0;
    double n = dense * tr_shape_layer_params(s, true) + moe * (tr_shape_layer_params(s, false) - sparse);
    double table = s->vocab * s->hidden * (a->pp == 1 && !s->is_tied ? 2 : 1);
    double even = a->impl->is_balanced ? (n + table) / a->pp : n / a->pp + table;
    return even / a->tp + moe * sparse / a->pp / a->ep;
}

static void bytes_of(const struct tr_ask *a, const struct tr_layer_cost *layer, const struct tr_layer_cost *head,
                     double n_micro, struct tr_forecast *f)
{
    double d = a->shard > 0 ? a->shard : (double)a->dp * a->cp, n = f->rank_parameters, p = a->pp;
    double in_flight = fmin(n_micro, p), more = a->chunks > 1 ? 1 + (p - 1) / (p * a->chunks) : 1;
    f->bytes[TR_BYTES_PARAMS] = a->param_bytes * n / (a->zero >= 3 ? d : 1);
    f->bytes[TR_BYTES_GRADS] = a->grad_bytes * n / (a->zero >= 2 ? d : 1);
    f->bytes[TR_BYTES_STATE] = a->state_bytes * n / (a->zero >= 1 ? d : 1);
    f->bytes[TR_BYTES_ACTS] = in_flight * more * a->shape.layers / p * layer->kept_bytes;
    double gathered = a->zero >= 3 ? 2 * 2 * n / a->shape.layers : 0;
    f->bytes[TR_BYTES_WORK] = gathered + (a->keep == TR_KEEP_ALL ? 0 : layer->one_bytes) +
                              (a->pp == 1 ? head->kept_bytes + head->one_bytes : 0);
    f->bytes[TR_BYTES_LIBRARY] = a->impl->library_bytes;
    f->total_bytes = 0;
    for (int k = 0; k < TR_BYTES_KINDS; k++)
        f->total_bytes += f->bytes[k];
}

/* ---- the step ---- */

/* Gradients to their owners and weights back, where weights are whole during the step. */
static void add_reduce(const struct tr_ask *a, double last_backward, struct tr_forecast *f)
{
    double n = (double)a->dp * a->cp;
    if (n <= 1 || a->zero >= 3)
        return;
    double bytes = f->rank_parameters, grads = a->impl->grad_bytes * bytes;
    double t = a->zero == 0
                   ? dp_seconds(a, TR_COST_ALL_REDUCE, grads)
                   : dp_seconds(a, TR_COST_REDUCE_SCATTER, grads) + dp_seconds(a, TR_COST_ALL_GATHER, 2 * bytes);
    double hidden = fmin(a->impl->dp_hidden * t, last_backward);
    f->comm_s[TR_TIME_DP] += t;
    f->exposed_s[TR_TIME_DP] += t - hidden;
}

static double optimizer_seconds(const struct tr_ask *a, const struct tr_forecast *f)
{
    double d = a->shard > 0 ? a->shard : (double)a->dp * a->cp;
    double n = f->rank_parameters / (a->zero >= 1 ? d : 1);
    return tr_cost_stream(&a->machine->chip, n * (2 * a->state_bytes + a->grad_bytes * 2 + a->param_bytes));
}

static void set_flops(const struct tr_ask *a, struct tr_forecast *f)
{
    double tokens = a->global * a->seq;
    f->flops = tokens * tr_convention_flops(a, TR_FLOPS_CAUSAL);
    f->hardware_flops = f->flops * (a->keep == TR_KEEP_INPUT ? 4.0 / 3 : a->keep == TR_KEEP_ALL ? 1 : 7.0 / 6);
}

static enum tr_status forecast_kept(const struct tr_ask *a, struct tr_forecast *f)
{
    enum tr_status st = TR_OK;
    const struct tr_shape_cost *s = &a->shape;
    struct tr_layer_cost sparse = { 0 }, dense, head;
    double n_moe = s->experts > 0 ? s->layers - s->dense_layers : 0, n_dense = s->layers - n_moe;
    int p = a->pp, v = a->chunks, n_stages = p * v;
    double n_micro = ceil(a->global / a->dp / a->micro);
    struct stages stages = { .p = p, .v = v, .turn = calloc((size_t)n_stages, sizeof *stages.turn) };
    if (!stages.turn)
        TR_TRY(tr_fail(TR_NOMEM, "forecast: out of memory"));
    tr_layer_cost(a, true, &dense);
    if (n_moe > 0)
        tr_layer_cost(a, false, &sparse);
    tr_head_cost(a, &head);
    double per_layer = tr_shape_layer_params(s, true) / a->tp;
    double per_sparse = n_moe > 0 ? (tr_shape_layer_params(s, false) -
                                     s->experts * (s->is_gated ? 3 : 2) * s->hidden * s->ffn * (1 - 1.0 / a->ep)) /
                                        a->tp
                                  : 0;
    struct layer_time td = layer_time(a, &dense, per_layer), ts = layer_time(a, &sparse, per_sparse);
    struct layer_time th = layer_time(a, &head, s->vocab * s->hidden / a->tp);

    *f = (struct tr_forecast){ .chips = (double)a->tp * p * a->cp * a->dp, .n_micro = n_micro, .keep = a->keep };
    f->parameters = tr_shape_params(s);
    f->rank_parameters = rank_params(a);
    double forward = n_dense * td.forward + n_moe * ts.forward, backward = n_dense * td.backward + n_moe * ts.backward;
    double send =
        p > 1 ? tr_cost_collective(a->machine, TR_COST_SEND, tr_group_of(a->machine, 2, (double)a->tp * a->cp * a->dp),
                                   2 * a->seq * a->micro / a->cp * s->hidden / (a->has_sp ? a->tp : 1))
              : 0;
    double paid = send * (1 - a->impl->pp_hidden), tail = a->impl->is_balanced ? (th.forward + th.backward) : 0;
    for (int k = 0; k < n_stages; k++) {
        double share = 1.0 / n_stages, *t = stages.turn[k];
        double even_f = (forward + (tail > 0 ? th.forward : 0)) * share,
               even_b = (backward + (tail > 0 ? th.backward : 0)) * share;
        t[0] = even_f + (tail == 0 && k == n_stages - 1 ? th.forward : 0) + (k < n_stages - 1 ? paid : 0);
        t[1] = even_b + (tail == 0 && k == n_stages - 1 ? th.backward : 0) + (k > 0 ? paid : 0);
        t[2] = t[3] = t[1] / 2;
    }
    stages.message = send * a->impl->pp_hidden;
    double rank_most = 0, rank_sum = 0;
    for (int r = 0; r < p; r++) {
        double busy = 0;
        for (int c = 0; c < v; c++)
            busy += stages.turn[c * p + r][0] + stages.turn[c * p + r][1];
        rank_most = fmax(rank_most, busy);
        rank_sum += busy;
    }
    stages.busiest = rank_most;
    double length = n_micro * rank_most;
    if (p > 1 && !a->is_bound)
        TR_TRY(play(a, &stages, n_micro, &length));
    if (a->turns)
        memcpy(a->turns, stages.turn, (size_t)n_stages * sizeof *stages.turn);
    f->message_s = stages.message;
    f->bubble_s = length - n_micro * rank_sum / p;
    f->compute_s = n_micro * (n_dense * td.kernels + n_moe * ts.kernels + th.kernels) / p;
    for (int k = 0; k < TR_TIME_AXES; k++) {
        f->comm_s[k] = n_micro * (n_dense * td.comm[k] + n_moe * ts.comm[k] + th.comm[k]) / p;
        f->exposed_s[k] = n_micro * (n_dense * td.exposed[k] + n_moe * ts.exposed[k] + th.exposed[k]) / p;
    }
    f->comm_s[TR_TIME_PP] = n_micro * v * 2 * send;
    f->exposed_s[TR_TIME_PP] = n_micro * v * 2 * paid;
    add_reduce(a, stages.turn[0][1] * v, f);
    f->optimizer_s = optimizer_seconds(a, f);
    f->fixed_s = a->impl->fixed_s;
    f->step_s = length + (a->zero < 3 ? f->exposed_s[TR_TIME_DP] : 0) + f->optimizer_s + f->fixed_s;
    f->tokens_per_s = a->global * a->seq / f->step_s;
    f->layer_forward_s = n_moe > 0 ? ts.forward : td.forward;
    f->layer_backward_s = n_moe > 0 ? ts.backward : td.backward;
    set_flops(a, f);
    bytes_of(a, n_moe > 0 ? &sparse : &dense, &head, n_micro, f);
out:
    free(stages.turn);
    return st;
}

enum tr_status tr_forecast(const struct tr_ask *a, struct tr_forecast *out)
{
    enum tr_status st = tr_forecast_check(a);
    struct tr_ask b = *a;
    if (st != TR_OK)
        return st;
    if (a->keep == TR_KEEP_AUTO)
        b.keep = TR_KEEP_ALL;
    st = forecast_kept(&b, out);
    if (st != TR_OK || a->keep != TR_KEEP_AUTO || out->total_bytes <= 0.95 * a->machine->chip.memory_bytes)
        return st;
    b.keep = TR_KEEP_INPUT;
    return forecast_kept(&b, out);
}
