/* forecast.c - from the cost of a layer to the cost of a step: stages, pipeline schedule, gradient traffic, update.
 *
 * The pipeline schedule is the one that the trainer runs (tr_pipe_open), played with these costs. With many
 * micro-batches only the first few and the last few differ from a steady state, so fewer are played and each further
 * one adds the time of the busiest rank. Rejected: a closed formula for the step (first and last stage cost more than
 * the others).
 */
#include "plan/forecast_impl.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const axis_names[TR_TIME_AXES] = { "tp", "cp", "ep", "pp", "dp", "offload" };
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

struct tr_forecast_query tr_forecast_query_of_one(const struct tr_machine *machine)
{
    return (struct tr_forecast_query){ .machine = machine,
                                       .impl = &tr_impl_trireme,
                                       .tp = 1,
                                       .pp = 1,
                                       .cp = 1,
                                       .dp = 1,
                                       .ep = 1,
                                       .chunks = 1,
                                       .micro = 1,
                                       .global = 1,
                                       .precision = TR_PRECISION_16,
                                       .param_bytes = 2,
                                       .grad_bytes = 4,
                                       .gather_bytes = 2,
                                       .state_bytes = 12 };
}

/* Texts are made only for a size that is refused: a search checks a hundred thousand layouts. */
static enum tr_status refuse(const char *what, double value, const char *fmt, ...) TR_PRINTF(3, 4);
static enum tr_status refuse(const char *what, double value, const char *fmt, ...)
{
    char fix[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fix, sizeof fix, fmt, ap);
    va_end(ap);
    return tr_fail(TR_USAGE, "%s %.15g %s", what, value, fix);
}

/* The rules that every trainer has. Other trainers' layouts may break the rest of the table: they pad a vocabulary or
 * interleave any number of micro-batches. */
static enum tr_status check_legal(const struct tr_forecast_query *a)
{
    static const enum tr_legal_id shared[] = { TR_LEGAL_TP_HEADS,    TR_LEGAL_EP_EXPERTS,  TR_LEGAL_CHUNKS_SEGMENTS,
                                               TR_LEGAL_PP_SEGMENTS, TR_LEGAL_BATCH_OF_DP, TR_LEGAL_MICRO_ROWS,
                                               TR_LEGAL_CP_ROW };
    const struct tr_shape_cost *s = &a->shape;
    struct tr_legal_query q = { .pp = a->pp,
                                .dp = a->dp,
                                .cp = a->cp,
                                .tp = a->tp,
                                .ep = a->ep,
                                .pp_chunks = a->chunks,
                                .sp = a->has_sp,
                                .train_batch_size = (int64_t)a->global,
                                .micro_rows = (int64_t)a->micro,
                                .model = { .n_heads_q = (int64_t)s->heads,
                                           .n_heads_kv = (int64_t)s->kv_heads,
                                           .ffn = (int64_t)s->ffn,
                                           .vocab = (int64_t)s->vocab,
                                           .n_segments = (int64_t)s->layers + 2,
                                           .row_tokens = (int64_t)a->seq,
                                           .n_experts = (int64_t)s->experts } };
    return tr_legal_check_rules(&q, shared, TR_COUNT_OF(shared));
}

enum tr_status tr_forecast_check(const struct tr_forecast_query *a)
{
    const struct tr_shape_cost *s = &a->shape;
    const struct {
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
    for (size_t i = 0; i < TR_COUNT_OF(sizes); i++)
        if (!(sizes[i].value >= 1 && sizes[i].value <= sizes[i].most))
            return refuse(sizes[i].what, sizes[i].value, "is outside 1 to %.0f", sizes[i].most);
    double chips = (double)a->tp * a->pp * a->cp * a->dp;
    if (!(chips <= 1e6))
        return refuse("a layout of", chips, "chips is more than 1000000");
    if (!(s->experts >= 0 && s->experts <= 1e6))
        return refuse("experts", s->experts, "is outside 0 to 1000000");
    if (!(s->kv_heads <= s->heads))
        return refuse("kv heads", s->kv_heads, "is more than %.0f heads", s->heads);
    return check_legal(a);
}

/* ---- the pipeline ---- */

struct stages {
    double (*slot)[4];
    double message;
    double busiest, mean; /* a micro-batch on the rank with most work, and on all of them */
    int p, v;
};

/* The number of micro-batches to play: a further one would only add the time of the busiest rank. */
static int steady_micro(int p, int m)
{
    int few = 2 * p + m % p;
    return m > few + p ? few : m;
}

static double busy_s(const struct stages *s, int r)
{
    double busy = 0;
    for (int c = 0; c < s->v; c++)
        busy += s->slot[c * s->p + r][TR_DO_FORWARD] + s->slot[c * s->p + r][TR_DO_BACKWARD];
    return busy;
}

/* A time that the schedule cannot beat; without a schedule, one that no schedule beats. A rank waits for the first
 * micro-batch to come through the stages before it, works on all of them, and its last gradient goes back through those
 * stages. Where backward is in two parts, work on weights may fill that last wait. */
static double least_length(const struct tr_forecast_query *a, const struct stages *s, double n_micro)
{
    double least = n_micro * s->busiest, around = 0;
    bool is_whole = a->schedule && tr_pipe_is_named(a->schedule) && strcmp(a->schedule, "zb") != 0;
    for (int r = 0; r < s->p && a->schedule; r++) {
        least = fmax(least, around + n_micro * busy_s(s, r));
        around += s->slot[r][TR_DO_FORWARD] + s->message;
        around += is_whole ? s->slot[r][TR_DO_BACKWARD] + s->message : 0;
    }
    return least;
}

static enum tr_status play(const struct tr_forecast_query *a, const struct stages *s, double n_micro,
                           struct tr_pipes *pipes, double *length)
{
    int m = (int)n_micro, v = s->v;
    if (v > 1 && m % s->p != 0) /* other trainers interleave any number; we play whole groups of pp */
        m = (m / s->p + 1) * s->p;
    int few = steady_micro(s->p, m);
    const char *name = a->schedule ? a->schedule : v > 1 ? "interleaved" : "1f1b";
    struct tr_pipe_key key = { name, s->p, v, few };
    struct tr_pipe_costs costs = { .slot = (const double(*)[4])s->slot, .message = s->message };
    enum tr_status st = tr_pipes_play(pipes, &key, &costs, length);
    *length += (n_micro - few) * s->busiest;
    return st;
}

/* ---- a layer's time with its traffic ---- */

struct layer_time {
    double forward, backward; /* kernels, and the traffic of every axis that is not hidden */
    double kernels;           /* forward and backward, without traffic */
    double exposed[TR_TIME_AXES], comm[TR_TIME_AXES];
};

static void add_axis(struct layer_time *t, enum tr_axis_cost axis, const double comm[2], const double hidden[2])
{
    double *time[2] = { &t->forward, &t->backward };
    for (int k = 0; k < 2; k++) {
        double paid = comm[k] * (1 - hidden[k]) + TR_CONTENTION * comm[k] * hidden[k];
        *time[k] += paid;
        t->exposed[axis] += paid;
        t->comm[axis] += comm[k];
    }
}

/* Hides the share `hidden` of the traffic, but no more than there are kernels to hide it behind. */
static void add_behind(struct layer_time *t, enum tr_axis_cost axis, const double comm[2], double hidden)
{
    double *time[2] = { &t->forward, &t->backward };
    for (int k = 0; k < 2; k++) {
        double behind = fmin(hidden * comm[k], *time[k] / (1 + TR_CONTENTION));
        double paid = comm[k] - behind + TR_CONTENTION * behind;
        *time[k] += paid;
        t->exposed[axis] += paid;
        t->comm[axis] += comm[k];
    }
}

/* Ranks that hold the same part of the model are a->tp apart. */
static double dp_seconds(const struct tr_forecast_query *a, enum tr_collective kind, double bytes)
{
    struct tr_machine m = *a->machine;
    m.slow.share *= a->impl->dp_share;
    struct tr_group g = tr_group_of(&m, tr_shard_size(a), a->tp);
    if (a->impl->uses_one_card && g.n > g.in)
        g.in = 1;
    double t = tr_cost_collective(&m, kind, g, bytes);
    double replicas = (double)a->dp * a->cp / tr_shard_size(a);
    if (kind != TR_COST_ALL_GATHER && replicas > 1) /* replicas of a shard add up what each has summed */
        t += tr_cost_collective(&m, TR_COST_ALL_REDUCE, tr_group_of(&m, replicas, a->tp * tr_shard_size(a)),
                                bytes / tr_shard_size(a));
    return t;
}

/* On a CPU the ranks of a host move the bytes themselves, so nothing is hidden. */
static double dp_hidden(const struct tr_forecast_query *a)
{
    return a->machine->is_shared ? 0 : a->impl->dp_hidden;
}

/* ZeRO 3: weights are gathered before a layer, forward and backward, and its gradients scattered after it. All of it
 * may hide behind the kernels of the layer, as prefetching one layer ahead does. */
static void add_shards(const struct tr_forecast_query *a, double params, struct layer_time *t)
{
    if (a->zero < 3 || tr_shard_size(a) <= 1)
        return;
    double gather = dp_seconds(a, TR_COST_ALL_GATHER, a->gather_bytes * params);
    double scatter =
        a->sync_last || a->is_frozen ? 0 : dp_seconds(a, TR_COST_REDUCE_SCATTER, a->impl->grad_bytes * params);
    add_behind(t, TR_TIME_DP, (const double[]){ gather, gather + scatter }, dp_hidden(a));
}

static struct layer_time layer_time(const struct tr_forecast_query *a, const struct tr_layer_cost *c, double params)
{
    const struct tr_impl *im = a->impl;
    double cast = a->cast_bytes * params / (a->machine->chip.memory_rate * a->machine->chip.stream_share);
    struct layer_time t = { .forward = c->forward_s + cast, .backward = c->backward_s + c->again_s + cast };
    t.kernels = t.forward + t.backward;
    const double tp[2] = { c->tp_s[0], c->tp_s[1] + c->tp_again_s }, ep[2] = { c->ep_s[0], c->ep_s[1] + c->ep_again_s };
    add_axis(&t, TR_TIME_TP, tp, (const double[]){ im->tp_hidden, im->tp_hidden });
    add_axis(&t, TR_TIME_CP, c->cp_s, (const double[]){ im->cp_hidden, im->cp_hidden });
    if (im->overlaps_experts && a->chunks > 1 && a->ep * a->tp > a->machine->domain)
        add_behind(&t, TR_TIME_EP, ep, TR_ASYNCHRONOUS);
    else
        add_axis(&t, TR_TIME_EP, ep, (const double[]){ im->ep_hidden, im->ep_hidden });
    add_shards(a, params, &t);
    return t;
}

/* ---- the step ---- */

struct parts { /* of a model: layers without experts, with them, and the head */
    double n_dense, n_sparse, n_heads;
    struct tr_layer_cost dense, sparse, head;
    struct layer_time dense_t, sparse_t, head_t;
};

/* TR_KEEP_AUTO: the share `again` of the layers saves its input alone and recomputes, the others save everything. */
static void mixed_cost(const struct tr_forecast_query *a, bool is_dense, double again, struct tr_layer_cost *out)
{
    struct tr_layer_cost less;
    struct tr_forecast_query b = *a;
    if (a->keep != TR_KEEP_AUTO) {
        tr_layer_cost(a, is_dense, out);
        return;
    }
    b.keep = TR_KEEP_ALL;
    tr_layer_cost(&b, is_dense, out);
    b.keep = TR_KEEP_INPUT;
    tr_layer_cost(&b, is_dense, &less);
    out->again_s = again * less.again_s;
    out->tp_again_s = again * less.tp_again_s;
    out->ep_again_s = again * less.ep_again_s;
    out->kept_bytes = (1 - again) * out->kept_bytes + again * less.kept_bytes;
}

static void price_parts(const struct tr_forecast_query *a, double again, struct parts *p)
{
    const struct tr_shape_cost *s = &a->shape;
    *p = (struct parts){ .n_heads = 1 + s->n_further };
    p->n_sparse = s->experts > 0 ? s->layers - s->dense_layers + s->n_further : 0;
    p->n_dense = s->experts > 0 ? s->dense_layers : s->layers + s->n_further;
    tr_head_cost(a, &p->head);
    p->head_t = layer_time(a, &p->head, s->vocab * s->hidden / a->tp);
    if (p->n_dense > 0) {
        mixed_cost(a, true, again, &p->dense);
        p->dense_t = layer_time(a, &p->dense, tr_shape_layer_params(s, true) / a->tp);
    }
    if (p->n_sparse > 0) {
        double others = tr_shape_layer_params(s, false) - tr_shape_expert_params(s);
        mixed_cost(a, false, again, &p->sparse);
        p->sparse_t = layer_time(a, &p->sparse, others / a->tp + tr_shape_expert_params(s) / a->ep);
    }
}

static double of_all(const struct parts *p, double dense, double sparse, double head)
{
    return p->n_dense * dense + p->n_sparse * sparse + p->n_heads * head;
}

static double send_seconds(const struct tr_forecast_query *a)
{
    bool is_split = a->has_sp || a->impl->splits_sends;
    double bytes = 2 * a->seq * a->micro / a->cp * a->shape.hidden;
    struct tr_group pair = tr_group_of(a->machine, 2, (double)a->tp * a->cp * a->dp);
    if (a->pp == 1)
        return 0;
    double t = tr_cost_collective(a->machine, TR_COST_SEND, pair, is_split ? bytes / a->tp : bytes);
    if (is_split && !a->has_sp)
        t += tr_cost_collective(a->machine, TR_COST_ALL_GATHER, tr_group_of(a->machine, a->tp, 1), bytes);
    return t;
}

/* Layers are spread evenly over the stages. The head is spread with them where the trainer balances stages, else the
 * last stage has it. Where the layers do not divide into the stages but two more would, embedding and head count as
 * those two. */
static void fill_stages(const struct tr_forecast_query *a, const struct parts *p, double send, struct stages *s)
{
    int n = s->p * s->v;
    double paid = send * (1 - a->impl->pp_hidden), layers = a->shape.layers;
    bool has_places =
        n > 1 && !a->impl->cuts_by_flops && a->shape.n_further == 0 && fmod(layers, n) != 0 && fmod(layers + 2, n) == 0;
    bool is_even = a->impl->is_balanced && !has_places;
    double forward = of_all(p, p->dense_t.forward, p->sparse_t.forward, is_even ? p->head_t.forward : 0);
    double backward = of_all(p, p->dense_t.backward, p->sparse_t.backward, is_even ? p->head_t.backward : 0);
    s->message = send - paid;
    for (int k = 0; k < n; k++) {
        bool is_last = k == n - 1, is_end = k == 0 || is_last;
        double share = has_places ? ((layers + 2) / n - is_end) / layers : 1.0 / n;
        double heads = is_last && !is_even ? p->n_heads : 0, *t = s->slot[k];
        t[TR_DO_FORWARD] = share * forward + heads * p->head_t.forward + (is_last ? 0 : paid);
        t[TR_DO_BACKWARD] = share * backward + heads * p->head_t.backward + (k > 0 ? paid : 0);
        t[TR_DO_BACKWARD_INPUT] = t[TR_DO_BACKWARD_WEIGHT] = t[TR_DO_BACKWARD] / 2;
    }
    for (int r = 0; r < s->p; r++) {
        double busy = busy_s(s, r);
        s->busiest = fmax(s->busiest, busy);
        s->mean += busy / s->p;
    }
}

/* Gradients to their owners behind the last backward, and weights back behind the first forward, where weights are
 * whole during the step. */
static double reduce_seconds(const struct tr_forecast_query *a, const struct stages *s, struct tr_forecast *f)
{
    double n = (double)a->dp * a->cp, whole = f->rank_parameters, grads = a->impl->grad_bytes * whole;
    double times = a->zero == 2 && a->impl->reduces_each && !a->sync_last ? f->n_micro : 1;
    if (n <= 1 || a->is_frozen || (a->zero >= 3 && !a->sync_last))
        return 0;
    double t = a->zero == 0 ? dp_seconds(a, TR_COST_ALL_REDUCE, grads)
                            : times * dp_seconds(a, TR_COST_REDUCE_SCATTER, grads) +
                                  (a->zero < 3 ? dp_seconds(a, TR_COST_ALL_GATHER, 2 * whole) : 0);
    double room = s->v * (s->slot[0][TR_DO_BACKWARD] + (a->zero >= 1 ? s->slot[0][TR_DO_FORWARD] : 0));
    double behind = fmin(dp_hidden(a) * t, room), paid = t - behind + TR_CONTENTION * behind;
    f->comm_s[TR_TIME_DP] += t;
    f->exposed_s[TR_TIME_DP] += paid;
    return paid;
}

static double optimizer_seconds(const struct tr_forecast_query *a, const struct tr_forecast *f)
{
    return tr_cost_stream(&a->machine->chip,
                          tr_owned_params(a, f) * (2 * a->state_bytes + 2 * a->grad_bytes + a->param_bytes));
}

static void sum_up(const struct tr_forecast_query *a, const struct parts *p, const struct stages *s, double send,
                   double length, struct tr_forecast *f)
{
    double m = f->n_micro, each = m / a->pp;
    f->bubble_s = length - m * s->mean;
    f->compute_s = each * of_all(p, p->dense_t.kernels, p->sparse_t.kernels, p->head_t.kernels);
    for (int k = 0; k < TR_TIME_AXES; k++) {
        f->comm_s[k] = each * of_all(p, p->dense_t.comm[k], p->sparse_t.comm[k], p->head_t.comm[k]);
        f->exposed_s[k] = each * of_all(p, p->dense_t.exposed[k], p->sparse_t.exposed[k], p->head_t.exposed[k]);
    }
    f->comm_s[TR_TIME_PP] = m * s->v * 2 * send;
    f->exposed_s[TR_TIME_PP] = m * s->v * 2 * (send - s->message);
    f->optimizer_s = optimizer_seconds(a, f);
    f->fixed_s = a->impl->fixed_s;
    f->step_s = length + reduce_seconds(a, s, f) + f->optimizer_s + f->fixed_s;
    f->tokens_per_s = a->global * a->seq / f->step_s;
    f->layer_forward_s = p->n_sparse > 0 ? p->sparse_t.forward : p->dense_t.forward;
    f->layer_backward_s = p->n_sparse > 0 ? p->sparse_t.backward : p->dense_t.backward;
    f->flops = a->global * a->seq * tr_token_flops(a);
    double whole = of_all(p, p->dense.forward_s, p->sparse.forward_s, 0);
    f->hardware_flops = f->flops * (1 + of_all(p, p->dense.again_s, p->sparse.again_s, 0) / whole / 3);
}

static enum tr_status forecast_with(const struct tr_forecast_query *a, double again, struct tr_pipes *pipes,
                                    struct tr_forecast *f)
{
    enum tr_status st = TR_OK;
    struct parts parts;
    struct stages stages = { .p = a->pp, .v = a->chunks };
    stages.slot = calloc((size_t)(a->pp * a->chunks), sizeof *stages.slot);
    if (!stages.slot)
        return tr_fail(TR_NOMEM, "forecast: out of memory");
    *f = (struct tr_forecast){ .chips = (double)a->tp * a->pp * a->cp * a->dp,
                               .n_micro = ceil(a->global / a->dp / a->micro),
                               .keep = a->keep,
                               .again = again,
                               .parameters = tr_shape_params(&a->shape) };
    price_parts(a, again, &parts);
    const struct tr_layer_cost *layer = parts.n_sparse > 0 ? &parts.sparse : &parts.dense;
    tr_forecast_bytes(a, layer, &parts.head, f);
    double send = send_seconds(a), length;
    fill_stages(a, &parts, send, &stages);
    length = least_length(a, &stages, f->n_micro);
    if (a->pp > 1 && !a->is_bound)
        TR_TRY(play(a, &stages, f->n_micro, pipes, &length));
    if (a->slots)
        memcpy(a->slots, stages.slot, (size_t)(a->pp * a->chunks) * sizeof *stages.slot);
    f->message_s = stages.message;
    sum_up(a, &parts, &stages, send, length, f);
out:
    free(stages.slot);
    return st;
}

enum tr_status tr_forecast_again(const struct tr_forecast_query *a, struct tr_pipes *pipes, struct tr_forecast *out)
{
    enum tr_status st = tr_forecast_check(a);
    if (st == TR_OK)
        st = forecast_with(a, 0, pipes, out);
    double room = 0.95 * a->machine->chip.memory_bytes;
    if (st != TR_OK || a->keep != TR_KEEP_AUTO || out->total_bytes <= room)
        return st;
    struct tr_forecast least;
    st = forecast_with(a, 1, pipes, &least);
    if (st != TR_OK || least.total_bytes >= out->total_bytes)
        return st;
    return forecast_with(a, fmin(1, (out->total_bytes - room) / (out->total_bytes - least.total_bytes)), pipes, out);
}

enum tr_status tr_forecast(const struct tr_forecast_query *a, struct tr_forecast *out)
{
    return tr_forecast_again(a, NULL, out);
}
