/* play.c - the step of a compiled run: the actions of every pipeline rank, each on its own clock, joined by messages.
 *
 * This is the schedule that `train` runs, not a model of one: what waits here waits there. Ranks that differ only in
 * the data they see do the same, so one rank of each pipeline place is played. Traffic inside an action (tensor,
 * context) is part of its time. On GPUs gathers and reductions run in a stream of their own, from where they are
 * posted to where `train` waits for them; on a host, whose ranks move the bytes themselves, nothing runs behind them.
 */
#include "plan/price.h"
#include <math.h>
#include <stdlib.h>

struct segment_price {
    double phase[3], comm[3]; /* forward, backward input, backward weight: kernels; collectives */
};

struct player {
    const struct tr_compiled *c;
    struct tr_price price;
    struct segment_price *program; /* by program */
    double clock, kernels, waits, comm[TR_AXES];
    double met;               /* kernels' time when ranks last waited for each other */
    bool *is_summed;          /* by bucket: this step's gradients have been there before */
    bool has_stream;          /* of its own, for gathers and reductions */
    double stream_at, posted; /* when that is through with what was posted; seconds of it */
    struct travelling {
        double at; /* when it is there */
        enum tr_axis axis;
    } * travelling;           /* by bucket */
    int reducing;             /* bucket whose shards are on their way; -1: none */
    int next, n_ranks, n_all; /* ranks of the pipeline, of everything */
    double norm_at;           /* when this rank's part of the gradients' norm was summed; 0: not yet */
    /* messages to a peer are received in the order they were sent in */
    double *sent;        /* when each is there: those to peer q from first[q] on */
    int *first, *n_sent; /* by peer */
    int *n_asked;        /* by peer: receives posted */
    int *from, *ordinal; /* by message: a receive's peer (-1: a send) and its number */
};

static void price_programs(struct player *p)
{
    const struct tr_schedule *s = &p->c->train;
    for (int i = 0; i < s->n_programs; i++) {
        const struct tr_program *g = s->program[i];
        for (int k = 0; k < g->n_nodes; k++) {
            p->program[i].phase[g->node[k].phase] += tr_price_node(&p->price, g, &g->node[k]);
            p->program[i].comm[g->node[k].phase] += tr_price_traffic(&p->price, g, &g->node[k]);
        }
    }
}

static void run_comm(struct player *p, enum tr_axis axis, double t)
{
    p->clock += t;
    p->comm[axis] += t;
}

/* ---- gathers and reductions ---- */

static void settle(struct player *p, int bucket)
{
    struct travelling *x = &p->travelling[bucket];
    run_comm(p, x->axis, fmax(0, x->at - p->clock));
    x->at = 0;
}

static void settle_all(struct player *p)
{
    for (int i = 0; i < p->c->n_buckets; i++)
        settle(p, i);
}

static void post(struct player *p, enum tr_axis axis, int bucket, double t)
{
    if (!p->has_stream) {
        run_comm(p, axis, t);
        return;
    }
    settle(p, bucket); /* one at a time for a bucket */
    p->stream_at = fmax(p->stream_at, p->clock) + t;
    p->posted += t;
    p->travelling[bucket] = (struct travelling){ p->stream_at, axis };
}

static void run_segment(struct player *p, const struct tr_action *a)
{
    for (int i = 0; i < a->n_buckets; i++)
        settle(p, a->bucket[i]);
    double behind = fmax(0, p->stream_at - p->clock);
    const struct segment_price *s = &p->program[p->c->train.program_of[a->segment]];
    bool is_input = a->kind == TR_DO_BACKWARD || a->kind == TR_DO_BACKWARD_INPUT;
    bool is_weight = a->kind == TR_DO_BACKWARD || a->kind == TR_DO_BACKWARD_WEIGHT;
    double t =
        (a->kind == TR_DO_FORWARD ? s->phase[0] : 0) + (is_input ? s->phase[1] : 0) + (is_weight ? s->phase[2] : 0);
    double talk =
        (a->kind == TR_DO_FORWARD ? s->comm[0] : 0) + (is_input ? s->comm[1] : 0) + (is_weight ? s->comm[2] : 0);
    if (talk > 0) /* after every few kernels the slower rank's time counts */
        talk += t * p->price.machine->meet_share;
    p->clock += t + talk;
    p->kernels += t;
    run_comm(p, TR_AXIS_DP, TR_CONTENTION * fmin(behind, t));
    if (talk > 0)
        p->met = p->kernels;
    p->comm[p->price.size[TR_AXIS_TP] > 1 ? TR_AXIS_TP : TR_AXIS_CP] += talk;
}

static void run_kernel(struct player *p, double t)
{
    p->clock += t;
    p->kernels += t;
}

/* Ranks wait for the last of them: what one was held up by since they met counts for all. */
static void meet(struct player *p, enum tr_axis axis)
{
    run_comm(p, axis, p->price.machine->meet_far_share * (p->kernels - p->met));
    p->met = p->kernels;
}

static double over_data(const struct player *p, enum tr_collective kind, double bytes)
{
    const struct tr_machine *m = p->price.machine;
    struct tr_group g = tr_price_group(&p->price, TR_AXIS_SHARD);
    struct tr_group replicas = tr_price_group(&p->price, TR_AXIS_DP);
    double t = tr_cost_collective(m, kind, g, bytes);
    if (kind != TR_COST_ALL_GATHER)
        t += tr_cost_collective(m, TR_COST_ALL_REDUCE, replicas, bytes / g.n);
    return t + (p->price.size[TR_AXIS_CP] > 1 && kind != TR_COST_ALL_GATHER
                    ? tr_cost_collective(m, TR_COST_ALL_REDUCE, tr_price_group(&p->price, TR_AXIS_CP), bytes / g.n)
                    : 0);
}

/* Elements passed over by one kernel: the norm of gradients, or the optimizer. */
static double pass_over(const struct player *p, double n, double bytes, enum tr_op_cost kind)
{
    const struct tr_chip *chip = &p->price.chip;
    return chip->all.op_s[kind] > 0 ? n * chip->all.op_s[kind] : tr_cost_stream(chip, n * bytes);
}

/* The norm of what this rank owns of the gradients. */
static double norm_s(const struct player *p)
{
    double n = 0;
    for (int i = 0; i < p->c->n_buckets; i++)
        n += (double)p->c->bucket[i].shard_n;
    return pass_over(p, n, (double)tr_dtype_bytes(p->c->opt.grad_dtype), TR_COST_SUMSQ);
}

/* Shards of one bucket are waited for before the next one's start, and added to those of earlier micro-batches. */
static void reduce(struct player *p, int bucket)
{
    const struct tr_compile_options *o = &p->c->opt;
    double grad = (double)tr_dtype_bytes(o->grad_dtype), bytes = (double)p->c->bucket[bucket].n * grad;
    double t = over_data(p, o->layout.zero ? TR_COST_REDUCE_SCATTER : TR_COST_ALL_REDUCE, bytes);
    if (o->layout.zero && t > 0)
        meet(p, TR_AXIS_DP);
    if (o->layout.zero && p->reducing >= 0)
        settle(p, p->reducing);
    if (o->layout.zero && p->is_summed[bucket])
        run_comm(p, TR_AXIS_DP, pass_over(p, (double)p->c->bucket[bucket].shard_n, 3 * grad, TR_COST_ADD));
    p->is_summed[bucket] = true;
    p->reducing = bucket;
    post(p, TR_AXIS_DP, bucket, t);
}

/* ---- messages ---- */

static void send(struct player *p, const struct tr_action *a)
{
    struct tr_group pair = tr_price_group(&p->price, TR_AXIS_PP);
    double bytes = (double)a->count * (double)tr_dtype_bytes(a->dtype);
    pair.n = 2;
    p->from[a->message] = -1;
    p->sent[p->first[a->peer] + p->n_sent[a->peer]++] =
        p->clock + tr_cost_collective(p->price.machine, TR_COST_SEND, pair, bytes);
}

static void ask(struct player *p, const struct tr_action *a)
{
    p->from[a->message] = a->peer;
    p->ordinal[a->message] = p->n_asked[a->peer]++;
}

/* False: what it waits for is not sent yet. */
static bool wait_for(struct player *p, const struct player *all, int rank, const struct tr_action *a)
{
    int from = p->from[a->message];
    if (from < 0)
        return true;
    if (p->ordinal[a->message] >= all[from].n_sent[rank])
        return false;
    double at = all[from].sent[all[from].first[rank] + p->ordinal[a->message]];
    if (at > p->clock) {
        p->waits += at - p->clock;
        p->clock = at;
    }
    return true;
}

/* ---- one action ---- */

static double update_s(const struct player *p, const struct tr_bucket *f)
{
    const struct tr_compile_options *o = &p->c->opt;
    double bytes =
        2 * ((double)tr_dtype_bytes(o->master_dtype) + o->n_moments * (double)tr_dtype_bytes(o->moment_dtype)) +
        (double)tr_dtype_bytes(o->grad_dtype) + (double)tr_dtype_bytes(o->compute_dtype);
    return pass_over(p, (double)f->shard_n, bytes, TR_COST_UPDATE);
}

/* The norm is of all gradients: nobody updates before the last rank has its part. False: some have not. */
static bool clip(struct player *all, int rank)
{
    struct player *p = &all[rank];
    double last = 0;
    settle_all(p);
    if (p->norm_at == 0 && p->n_all > p->n_ranks) /* a pipeline's stages arrive one after the other */
        meet(p, TR_AXIS_DP);
    if (p->norm_at == 0) {
        run_kernel(p, norm_s(p));
        p->norm_at = p->clock;
    }
    for (int r = 0; r < p->n_ranks; r++) {
        if (all[r].norm_at == 0)
            return false;
        last = fmax(last, all[r].norm_at);
    }
    p->waits += last - p->clock;
    p->clock = last;
    return true;
}

/* False: it waits for a message that is not sent yet. */
static bool act(struct player *all, int rank, const struct tr_action *a)
{
    struct player *p = &all[rank];
    const struct tr_compile_options *o = &p->c->opt;
    double grad = (double)tr_dtype_bytes(o->grad_dtype), value = (double)tr_dtype_bytes(o->compute_dtype);
    const struct tr_bucket *f = a->segment >= 0 && a->segment < p->c->n_buckets ? &p->c->bucket[a->segment] : NULL;
    double n = f ? (double)f->n : 0;
    switch (a->kind) {
    case TR_DO_GATHER:
        post(p, TR_AXIS_SHARD, a->segment, over_data(p, TR_COST_ALL_GATHER, n * value));
        break;
    case TR_DO_REDUCE:
        reduce(p, a->segment);
        break;
    case TR_DO_REDUCE_TP:
        post(p, TR_AXIS_TP, a->segment,
             tr_cost_collective(p->price.machine, TR_COST_ALL_REDUCE, tr_price_group(&p->price, TR_AXIS_TP),
                                (double)f->n_partial * grad));
        break;
    case TR_DO_CLIP:
        return clip(all, rank);
    case TR_DO_UPDATE:
        run_kernel(p, update_s(p, f));
        break;
    case TR_DO_TREE_ADD:
        run_kernel(p, pass_over(p, n, 3 * grad, TR_COST_ADD));
        break;
    case TR_DO_SEND:
        send(p, a);
        break;
    case TR_DO_RECV:
        ask(p, a);
        break;
    case TR_DO_WAIT:
        return wait_for(p, all, rank, a);
    case TR_DO_TIE:
        settle(p, a->segment);
        run_comm(
            p, TR_AXIS_PP,
            tr_cost_collective(p->price.machine, TR_COST_ALL_REDUCE, tr_price_group(&p->price, TR_AXIS_PP), n * grad));
        break;
    default:
        run_segment(p, a);
    }
    return true;
}

/* ---- the step ---- */

static enum tr_status player_open(const struct tr_compiled *c, int n_ranks, const struct tr_machine *m,
                                  struct player *p)
{
    const struct tr_schedule *s = &c->train;
    size_t n_messages = (size_t)s->n_messages + 1, n_peers = (size_t)n_ranks + 1;
    *p = (struct player){ .c = c, .n_ranks = n_ranks, .n_all = 1, .has_stream = !m->is_shared, .reducing = -1 };
    p->is_summed = calloc((size_t)c->n_buckets + 1, sizeof *p->is_summed);
    p->travelling = calloc((size_t)c->n_buckets + 1, sizeof *p->travelling);
    p->program = calloc((size_t)s->n_programs + 1, sizeof *p->program);
    p->sent = calloc(n_messages, sizeof *p->sent);
    p->first = calloc(3 * n_peers + 2 * n_messages, sizeof *p->first);
    if (!p->program || !p->sent || !p->first || !p->is_summed || !p->travelling)
        return tr_fail(TR_NOMEM, "forecast: out of memory");
    p->n_sent = p->first + n_peers;
    p->n_asked = p->n_sent + n_peers;
    p->from = p->n_asked + n_peers;
    p->ordinal = p->from + n_messages;
    for (int i = 0; i < s->n_actions; i++)
        if (s->action[i].kind == TR_DO_SEND)
            p->first[s->action[i].peer + 1]++;
    for (int q = 0; q < n_ranks; q++)
        p->first[q + 1] += p->first[q];
    tr_price_open(c, m, &p->price);
    for (int a = 0; a < TR_AXES; a++)
        p->n_all *= p->price.size[a];
    price_programs(p);
    return TR_OK;
}

static void player_release(struct player *p)
{
    free(p->is_summed);
    free(p->travelling);
    free(p->program);
    free(p->sent);
    free(p->first);
}

static void sum_up(const struct player *all, int n_ranks, struct tr_forecast *out)
{
    const struct player *p = &all[0];
    const struct tr_model *m = p->c->model;
    *out = (struct tr_forecast){ .n_micro = p->c->opt.n_micro, .chips = 1, .parameters = (double)m->n_elements };
    for (int a = 0; a < TR_AXES; a++)
        out->chips *= p->price.size[a];
    for (int r = 0; r < n_ranks; r++) {
        out->step_s = fmax(out->step_s, all[r].clock);
        out->compute_s = fmax(out->compute_s, all[r].kernels);
    }
    for (int r = 0; r < n_ranks; r++)
        out->bubble_s += (all[r].waits + out->step_s - all[r].clock) / n_ranks;
    out->exposed_s[TR_TIME_TP] = p->comm[TR_AXIS_TP];
    out->exposed_s[TR_TIME_CP] = p->comm[TR_AXIS_CP];
    out->exposed_s[TR_TIME_PP] = p->comm[TR_AXIS_PP];
    out->exposed_s[TR_TIME_DP] = p->comm[TR_AXIS_DP] + p->comm[TR_AXIS_SHARD];
    memcpy(out->comm_s, out->exposed_s, sizeof out->comm_s);
    out->comm_s[TR_TIME_DP] = fmax(p->posted, out->exposed_s[TR_TIME_DP]);
    out->fixed_s = p->price.impl->fixed_s;
    out->step_s += out->fixed_s;
    double data = (double)p->price.size[TR_AXIS_DP] * p->price.size[TR_AXIS_SHARD];
    double tokens = (double)m->n_tokens * p->c->opt.n_micro * data;
    out->tokens_per_s = tokens / out->step_s;
    out->flops = tokens * tr_model_flops_per_token(m);
    double again = 0;
    for (int r = 0; r < n_ranks; r++)
        again += all[r].c->train.recompute_flops;
    out->hardware_flops = out->flops + again * data * p->price.size[TR_AXIS_TP] * p->price.size[TR_AXIS_CP];
}

enum tr_status tr_play_compiled(const struct tr_compiled *const *c, int n_ranks, const struct tr_machine *m,
                                struct tr_forecast *out)
{
    enum tr_status st = TR_OK;
    struct player *all = calloc((size_t)n_ranks, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "forecast: out of memory");
    for (int r = 0; r < n_ranks; r++)
        TR_TRY(player_open(c[r], n_ranks, m, &all[r]));
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n_ranks; r++)
            while (all[r].next < c[r]->train.n_actions && act(all, r, &c[r]->train.action[all[r].next])) {
                all[r].next++;
                moved = true;
            }
    }
    for (int r = 0; r < n_ranks; r++)
        settle_all(&all[r]);
    sum_up(all, n_ranks, out);
out:
    for (int r = 0; r < n_ranks; r++)
        player_release(&all[r]);
    free(all);
    return st;
}

/* ---- by kernel ---- */

static bool is_of(enum tr_phase phase, enum tr_action_kind kind)
{
    if (kind == TR_DO_BACKWARD)
        return phase != TR_FORWARD;
    return kind == (phase == TR_FORWARD          ? TR_DO_FORWARD
                    : phase == TR_BACKWARD_INPUT ? TR_DO_BACKWARD_INPUT
                                                 : TR_DO_BACKWARD_WEIGHT);
}

static enum tr_opcode kernel_of(enum tr_opcode op)
{
    return op == TR_OP_RING_ATTENTION ? TR_OP_ATTENTION : op == TR_OP_RING_ATTENTION_BWD ? TR_OP_ATTENTION_BWD : op;
}

void tr_price_kernels(const struct tr_compiled *c, const struct tr_machine *m, enum tr_opcode update,
                      double out[TR_OP_COUNT])
{
    const struct tr_schedule *s = &c->train;
    struct player p = { .c = c };
    tr_price_open(c, m, &p.price);
    for (int i = 0; i < TR_OP_COUNT; i++)
        out[i] = 0;
    for (int i = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        const struct tr_program *g = a->kind <= TR_DO_BACKWARD_WEIGHT ? s->program[s->program_of[a->segment]] : NULL;
        for (int k = 0; g && k < g->n_nodes; k++)
            if (is_of(g->node[k].phase, a->kind))
                out[kernel_of(g->node[k].op)] += tr_price_node(&p.price, g, &g->node[k]);
        if (a->kind == TR_DO_UPDATE)
            out[update] += update_s(&p, &c->bucket[a->segment]);
    }
    out[TR_OP_SUMSQ] += norm_s(&p);
}
