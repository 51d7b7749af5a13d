/* play.c - the step of a compiled run: the actions of every pipeline rank, each on its own clock, joined by messages.
 *
 * This plays the schedule that `train` runs, with the same waits, and not a model of it. Ranks that differ only in
 * their data do the same work, so one rank of each pipeline stage is played. Traffic inside an action (tensor, context)
 * is part of the time of that action. On GPUs gathers and reductions run in a stream of their own, from the action that
 * posts them to the action that waits for them. CPU ranks move the bytes themselves, so there nothing overlaps.
 */
#include "plan/price.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct segment_price {
    double phase[3], comm[3]; /* seconds of kernels and of collectives in forward, backward input, backward weight */
};

struct player {
    const struct tr_compiled *c;
    const struct tr_schedule *s; /* that of training */
    struct tr_price price;
    struct segment_price *program;                   /* by program */
    double clock, kernels, waits, comm[TR_AXES + 1]; /* the last: copies between host and device */
    double met;                                      /* `kernels` at the moment when ranks last waited for each other */
    bool has_stream;                                 /* gathers and reductions run in a stream of their own */
    double stream_at, posted;  /* when the stream has done all posted work; the seconds of that work */
    double copy_at[2], copied; /* the same of copies to the device, and from it */
    double host_at;            /* when the host has done its updates; it has waited for the norm before them */
    struct under_way {
        double at;            /* when the transfer is done; 0: none is under way */
        int axis;             /* enum tr_axis; TR_AXES: a copy */
    } * under_way;            /* by action */
    int next, n_ranks, n_all; /* next action; ranks of the pipeline; ranks in all */
    double norm_at;           /* when this rank has summed its part of the gradient norm; 0: not yet */
    /* a peer receives messages in the order in which they were sent */
    double *sent;        /* when each message arrives; those to peer q begin at first[q] */
    int *first, *n_sent; /* by peer */
    int *n_asked;        /* by peer: how many receives were posted */
    int *from, *ordinal; /* by message: the peer of a receive (-1: a send), its number among that peer's messages */
};

static void price_programs(struct player *p)
{
    const struct tr_schedule *s = p->s;
    for (int i = 0; i < s->n_programs; i++) {
        const struct tr_program *g = s->program[i];
        for (int k = 0; k < g->n_nodes; k++) {
            p->program[i].phase[g->node[k].phase] += tr_price_node(&p->price, g, &g->node[k]);
            p->program[i].comm[g->node[k].phase] += tr_price_traffic(&p->price, g, &g->node[k]);
        }
    }
}

static void run_comm(struct player *p, int axis, double t)
{
    p->clock += t;
    p->comm[axis] += t;
}

/* ---- gathers and reductions ---- */

/* Posts a transfer at this action. An action that waits for it cannot start before the transfer is done. */
static void post(struct player *p, const struct tr_action *a, enum tr_axis axis, double t)
{
    if (!p->has_stream || a->stream != TR_STREAM_COMM) {
        run_comm(p, (int)axis, t);
        return;
    }
    p->stream_at = fmax(p->stream_at, p->clock) + t;
    p->posted += t;
    p->under_way[a - p->s->action] = (struct under_way){ p->stream_at, (int)axis };
}

/* Waits for the posted transfers that the action needs. Messages of other ranks are not among them. */
static void wait_for_posted(struct player *p, const struct tr_action *a)
{
    for (int i = 0; i < a->n_waits; i++) {
        struct under_way *x = &p->under_way[p->s->wait[a->first_wait + i].action];
        if (x->at > 0)
            run_comm(p, x->axis, fmax(0, x->at - p->clock));
        x->at = 0;
    }
}

/* A copy waits for what it needs on its own stream: arithmetic goes on. CPU ranks copy by themselves. */
static void post_copy(struct player *p, const struct tr_action *a)
{
    size_t stays = a->kind == TR_DO_STORE ? tr_bucket_grad_bytes_on_host(&p->c->place, a->of) : 0;
    double bytes = (double)(p->s->buffer[a->use[0].buffer].bytes - stays),
           *at = &p->copy_at[a->stream == TR_STREAM_OUT];
    const struct tr_machine *m = p->price.machine;
    bool is_on_disk =
        a->kind == TR_DO_BRING ? p->c->place.has_values_on_disk : a->of >= 0 && p->c->place.has_states_on_disk;
    double start = fmax(*at, p->clock),
           rate = is_on_disk && m->disk_rate > 0 ? fmin(m->disk_rate, m->host_rate) : m->host_rate;
    for (int i = 0; i < a->n_waits; i++) {
        struct under_way *x = &p->under_way[p->s->wait[a->first_wait + i].action];
        start = fmax(start, x->at);
        x->at = 0;
    }
    if (!p->has_stream || rate <= 0) {
        run_comm(p, TR_AXES, tr_cost_stream(&p->price.chip, 2 * bytes));
        return;
    }
    *at = start + bytes / rate;
    p->copied += bytes / rate;
    p->under_way[a - p->s->action] = (struct under_way){ *at, TR_AXES };
}

static void run_segment(struct player *p, const struct tr_action *a)
{
    double behind = fmax(0, p->stream_at - p->clock);
    const struct segment_price *s = &p->program[p->s->program_of[a->segment]];
    bool is_input = a->kind == TR_DO_BACKWARD || a->kind == TR_DO_BACKWARD_INPUT;
    bool is_weight = a->kind == TR_DO_BACKWARD || a->kind == TR_DO_BACKWARD_WEIGHT;
    double t =
        (a->kind == TR_DO_FORWARD ? s->phase[0] : 0) + (is_input ? s->phase[1] : 0) + (is_weight ? s->phase[2] : 0);
    double talk =
        (a->kind == TR_DO_FORWARD ? s->comm[0] : 0) + (is_input ? s->comm[1] : 0) + (is_weight ? s->comm[2] : 0);
    if (talk > 0) /* ranks meet after every few kernels, and the slowest one sets the time */
        talk += t * p->price.machine->meet_share;
    p->clock += t + talk;
    p->kernels += t;
    run_comm(p, TR_AXIS_DP, TR_CONTENTION * fmin(behind, t));
    if (talk > 0)
        p->met = p->kernels;
    p->comm[tr_layout_splits(&p->c->opt.layout, TR_ON(TR_AXIS_TP)) ? TR_AXIS_TP : TR_AXIS_CP] += talk;
}

static void run_kernel(struct player *p, double t)
{
    p->clock += t;
    p->kernels += t;
}

/* All ranks wait for the slowest one: a delay of any rank since they last met delays all of them. */
static void meet(struct player *p, enum tr_axis axis)
{
    run_comm(p, (int)axis, p->price.machine->meet_far_share * (p->kernels - p->met));
    p->met = p->kernels;
}

/* Seconds of one hop of the reduction of a bucket's gradients. */
static double hop_s(const struct player *p, const struct tr_bucket *b, const struct tr_hop *h)
{
    const struct tr_machine *m = p->price.machine;
    double bytes = (double)h->n * (double)tr_dtype_bytes(p->c->opt.grad_dtype), t = 0;
    double held = bytes * (double)b->shard_n / (double)b->n; /* bytes of this rank's shard */
    if (h->is_scatter)
        return tr_cost_collective(m, TR_COST_REDUCE_SCATTER, tr_price_group(&p->price, TR_AXIS_SHARD), bytes);
    if (h->axes == TR_ON(TR_AXIS_TP))
        return tr_cost_collective(m, TR_COST_ALL_REDUCE, tr_price_group(&p->price, TR_AXIS_TP), bytes);
    for (int a = TR_AXIS_DP; a <= TR_AXIS_CP; a++)
        if (h->axes >> a & 1)
            t += tr_cost_collective(m, TR_COST_ALL_REDUCE, tr_price_group(&p->price, (enum tr_axis)a), held);
    return t;
}

/* Seconds of one kernel that walks over n elements: the gradient norm or the optimizer. */
static double pass_over(const struct player *p, double n, double bytes, enum tr_op_cost kind)
{
    const struct tr_chip *chip = &p->price.chip;
    return chip->all.op_s[kind] > 0 ? n * chip->all.op_s[kind] : tr_cost_stream(chip, n * bytes);
}

/* Seconds for the norm of the gradients that this rank owns. */
static double norm_s(const struct player *p)
{
    double n = 0;
    for (int i = 0; i < p->c->place.n_buckets && !tr_bucket_is_frozen(p->c->place.model, i); i++)
        n += (double)p->c->place.bucket[i].shard_n;
    return pass_over(p, n, (double)tr_dtype_bytes(p->c->opt.grad_dtype), TR_COST_SUMSQ);
}

static void reduce(struct player *p, const struct tr_action *a)
{
    const struct tr_bucket *b = &p->c->place.bucket[a->of];
    const struct tr_hop *h = &b->hop[a->hop];
    double t = hop_s(p, b, h);
    if (h->is_scatter && t > 0)
        meet(p, TR_AXIS_DP);
    post(p, a, h->axes == TR_ON(TR_AXIS_TP) ? TR_AXIS_TP : TR_AXIS_DP, t);
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

static void receive(struct player *p, const struct tr_action *a)
{
    p->from[a->message] = a->peer;
    p->ordinal[a->message] = p->n_asked[a->peer]++;
}

/* False: the message that the action waits for is not sent yet. */
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

static double update_s(const struct player *p, int bucket)
{
    enum tr_fate fate = tr_bucket_fate(p->c->place.model, bucket);
    double n = (double)p->c->place.bucket[bucket].shard_n;
    return pass_over(p, n, tr_update_bytes(&p->c->place.states, fate), TR_COST_UPDATE);
}

/* Seconds of the phases on whole matrices that this rank runs for a bucket. */
static double whole_s(const struct player *p, int bucket)
{
    const struct tr_placement *x = &p->c->place;
    const struct tr_optim *o = p->c->opt.optim;
    double t = 0;
    for (int i = 0; i < x->model->n_params; i++) {
        struct tr_matrix part[TR_MAX_MATRICES];
        bool is_here =
            x->param[i].bucket == bucket && tr_whole_owner(x, i) == (x->layout->zero ? x->layout->shard_rank : 0);
        int n = is_here ? tr_param_matrices(&x->model->param[i], part) : 0;
        for (int k = 0; k < n * o->n_phases; k++) {
            struct tr_call c = { .op = o->phase[k / n].op };
            c.out[0] = (struct tr_view){ .dtype = TR_BF16, .rows = part[k % n].rows, .cols = part[k % n].cols };
            t += o->phase[k / n].is_whole ? tr_price_call(&p->price, &c) : 0;
        }
    }
    return t;
}

/* Runs them. Ranks exchange the directions before and after. */
static void run_whole(struct player *p, int bucket)
{
    const struct tr_machine *m = p->price.machine;
    double bytes = (double)p->c->place.bucket[bucket].n * (double)tr_dtype_bytes(TR_BF16),
           size = p->price.size[TR_AXIS_TP];
    if (tr_bucket_fate(p->c->place.model, bucket) != TR_LEARNS || !p->c->opt.optim->has_direction)
        return;
    run_kernel(p, whole_s(p, bucket));
    if (p->c->opt.layout.zero >= 1)
        run_comm(p, TR_AXIS_SHARD,
                 tr_cost_collective(m, TR_COST_ALL_GATHER, tr_price_group(&p->price, TR_AXIS_SHARD), bytes) +
                     tr_cost_collective(m, TR_COST_REDUCE_SCATTER, tr_price_group(&p->price, TR_AXIS_SHARD), bytes));
    run_comm(p, TR_AXIS_TP,
             tr_cost_collective(m, TR_COST_ALL_GATHER, tr_price_group(&p->price, TR_AXIS_TP), size * bytes));
}

/* The norm is over all gradients, so no rank updates before every rank has summed its part. False: not yet. */
static bool clip(struct player *all, int rank)
{
    struct player *p = &all[rank];
    double last = 0;
    if (p->norm_at == 0 && p->n_all > p->n_ranks) /* else only stages meet, one by one */
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

/* price_FORWARD ...: advance the clock of a rank by one action of each kind. False: the action waits for another rank
 * and must be tried again. */
#define PRICE(id)                                                                                                      \
    static bool price_##id(TR_UNUSED struct player *all, TR_UNUSED int rank, TR_UNUSED const struct tr_action *a)

PRICE(FORWARD)
{
    run_segment(&all[rank], a);
    return true;
}

PRICE(BACKWARD)
{
    return price_FORWARD(all, rank, a);
}

PRICE(BACKWARD_INPUT)
{
    return price_FORWARD(all, rank, a);
}

PRICE(BACKWARD_WEIGHT)
{
    return price_FORWARD(all, rank, a);
}

PRICE(SEND)
{
    send(&all[rank], a);
    return true;
}

PRICE(RECV)
{
    receive(&all[rank], a);
    return true;
}

PRICE(WAIT)
{
    return wait_for(&all[rank], all, rank, a);
}

PRICE(GATHER)
{
    struct player *p = &all[rank];
    double bytes = (double)tr_bucket_bytes(&p->c->place, a->of, p->c->place.bucket[a->of].n);
    post(p, a, TR_AXIS_SHARD,
         tr_cost_collective(p->price.machine, TR_COST_ALL_GATHER, tr_price_group(&p->price, TR_AXIS_SHARD), bytes));
    return true;
}

PRICE(REDUCE)
{
    reduce(&all[rank], a);
    return true;
}

PRICE(ADD)
{
    struct player *p = &all[rank];
    double bytes = 3 * (double)tr_dtype_bytes(p->c->opt.grad_dtype);
    run_comm(p, TR_AXIS_DP, pass_over(p, (double)p->c->place.bucket[a->of].shard_n, bytes, TR_COST_ADD));
    return true;
}

PRICE(TREE_ADD)
{
    struct player *p = &all[rank];
    double bytes = 3 * (double)tr_dtype_bytes(p->c->opt.grad_dtype);
    run_kernel(p, pass_over(p, (double)p->c->place.bucket[a->of].n, bytes, TR_COST_ADD));
    return true;
}

PRICE(TIE)
{
    struct player *p = &all[rank];
    double bytes = (double)p->c->place.bucket[a->of].n * (double)tr_dtype_bytes(p->c->opt.grad_dtype);
    run_comm(p, TR_AXIS_PP,
             tr_cost_collective(p->price.machine, TR_COST_ALL_REDUCE, tr_price_group(&p->price, TR_AXIS_PP), bytes));
    return true;
}

PRICE(GRAD_IN)
{
    post_copy(&all[rank], a);
    return true;
}

PRICE(GRAD_OUT)
{
    return price_GRAD_IN(all, rank, a);
}

/* The norm of one bucket costs nothing here: the last norm has the time of all. */
PRICE(NORM)
{
    return a->of >= 0 || clip(all, rank);
}

/* These actions read a few numbers; fixed_s of the machine includes their time. */
PRICE(LOSS)
{
    return true;
}

PRICE(CLIP)
{
    all[rank].host_at = all[rank].clock;
    return price_LOSS(all, rank, a);
}

PRICE(AMAX_IN)
{
    return price_LOSS(all, rank, a);
}

PRICE(AMAX_OUT)
{
    return price_LOSS(all, rank, a);
}

PRICE(FETCH)
{
    post_copy(&all[rank], a);
    return true;
}

PRICE(STORE)
{
    return price_FETCH(all, rank, a);
}

PRICE(STOW)
{
    return price_FETCH(all, rank, a);
}

PRICE(UNSTOW)
{
    return price_FETCH(all, rank, a);
}

PRICE(BRING)
{
    return price_FETCH(all, rank, a);
}

/* What is issued behind it begins when the host is done; what was issued before goes on. Memory that feeds a link in
 * both directions at once moves twice the link's bytes: torch's fused AdamW on the 16 cores of an H200's host
 * updates 4.1 G parameters/s of 28 bytes, and the link has 55 GB/s each way. */
PRICE(UPDATE_HOST)
{
    struct player *p = &all[rank];
    enum tr_fate fate = tr_bucket_fate(p->c->place.model, a->of);
    double bytes = (double)p->c->place.bucket[a->of].n * tr_update_bytes(&p->c->place.states, fate);
    if (!p->has_stream || p->price.machine->host_rate <= 0) {
        run_kernel(p, update_s(p, a->of));
        return true;
    }
    p->host_at += bytes / (2 * p->price.machine->host_rate);
    run_comm(p, TR_AXES, fmax(0, p->host_at - p->clock));
    for (int i = 0; i < 2; i++)
        p->copy_at[i] = fmax(p->copy_at[i], p->host_at);
    return true;
}

PRICE(UPDATE)
{
    run_kernel(&all[rank], update_s(&all[rank], a->of));
    run_whole(&all[rank], a->of);
    for (int axis = 0; axis < TR_AXES; axis++)
        run_comm(&all[rank], axis, tr_price_sums(&all[rank].price, all[rank].c, a->of, (enum tr_axis)axis));
    return true;
}

static bool (*const price_kind[])(struct player *all, int rank, const struct tr_action *a) = {
#define X(id, name, phase, failpoint, stream) price_##id,
    TR_ACTION_LIST(X)
#undef X
};
static_assert(TR_COUNT_OF(price_kind) == TR_ACTION_KINDS, "one price a kind");

static bool act(struct player *all, int rank, const struct tr_action *a)
{
    if (a->stream != TR_STREAM_IN && a->stream != TR_STREAM_OUT) /* which do not hold the arithmetic */
        wait_for_posted(&all[rank], a);
    return price_kind[a->kind](all, rank, a);
}

/* ---- the step ---- */

static enum tr_status player_open(const struct tr_compiled *c, int n_ranks, const struct tr_machine *m,
                                  struct player *p)
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    size_t n_messages = (size_t)s->n_messages + 1, n_peers = (size_t)n_ranks + 1;
    *p = (struct player){ .c = c, .s = s, .n_ranks = n_ranks, .n_all = 1, .has_stream = !m->is_shared };
    p->under_way = calloc((size_t)s->n_actions + 1, sizeof *p->under_way);
    p->program = calloc((size_t)s->n_programs + 1, sizeof *p->program);
    p->sent = calloc(n_messages, sizeof *p->sent);
    p->first = calloc(3 * n_peers + 2 * n_messages, sizeof *p->first);
    if (!p->program || !p->sent || !p->first || !p->under_way)
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
    free(p->under_way);
    free(p->program);
    free(p->sent);
    free(p->first);
}

static void sum_up(const struct player *all, int n_ranks, struct tr_forecast *out)
{
    const struct player *p = &all[0];
    const struct tr_model *m = p->c->place.model;
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
    out->exposed_s[TR_TIME_OFFLOAD] = p->comm[TR_AXES];
    memcpy(out->comm_s, out->exposed_s, sizeof out->comm_s);
    out->comm_s[TR_TIME_OFFLOAD] = fmax(p->copied, out->exposed_s[TR_TIME_OFFLOAD]);
    out->comm_s[TR_TIME_DP] = fmax(p->posted, out->exposed_s[TR_TIME_DP]);
    out->fixed_s = p->price.impl->fixed_s;
    out->step_s += out->fixed_s;
    double data = (double)p->price.size[TR_AXIS_DP] * p->price.size[TR_AXIS_SHARD];
    double tokens = (double)m->n_tokens * p->c->opt.n_micro * data;
    out->tokens_per_s = tokens / out->step_s;
    out->flops = tokens * tr_flops_per_token(&p->c->place);
    double again = 0;
    for (int r = 0; r < n_ranks; r++)
        again += all[r].s->recompute_flops;
    out->hardware_flops = out->flops + again * data * p->price.size[TR_AXIS_TP] * p->price.size[TR_AXIS_CP];
}

static void play_step(int n_ranks, struct player *all)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n_ranks; r++)
            while (all[r].next < all[r].s->n_actions && act(all, r, &all[r].s->action[all[r].next])) {
                all[r].next++;
                moved = true;
            }
    }
}

/* Starts the next step with the transfers that this step left under way. False: there are none. */
static bool begin_again(int n_ranks, struct player *all)
{
    double end = 0;
    bool is_left = false;
    for (int r = 0; r < n_ranks; r++)
        end = fmax(end, all[r].clock);
    for (int r = 0; r < n_ranks; r++) {
        struct player *p = &all[r];
        for (int i = 0; i < p->s->n_actions; i++) {
            p->under_way[i].at = fmax(0, p->under_way[i].at - end);
            is_left |= p->under_way[i].at > 0;
        }
        p->stream_at = fmax(0, p->stream_at - end);
        for (int k = 0; k < 2; k++)
            p->copy_at[k] = fmax(0, p->copy_at[k] - end);
    }
    for (int r = 0; r < n_ranks && is_left; r++) {
        struct player *p = &all[r];
        p->clock = p->kernels = p->waits = p->met = p->norm_at = p->posted = p->copied = 0;
        p->next = 0;
        memset(p->comm, 0, sizeof p->comm);
        memset(p->n_sent, 0, (size_t)n_ranks * sizeof *p->n_sent);
        memset(p->n_asked, 0, (size_t)n_ranks * sizeof *p->n_asked);
    }
    return is_left;
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
    play_step(n_ranks, all);
    if (begin_again(n_ranks, all))
        play_step(n_ranks, all);
    sum_up(all, n_ranks, out);
out:
    for (int r = 0; r < n_ranks; r++)
        player_release(&all[r]);
    free(all);
    return st;
}

/* ---- by kernel ---- */

static enum tr_opcode kernel_of(enum tr_opcode op)
{
    return op == TR_OP_RING_ATTENTION ? TR_OP_ATTENTION : op == TR_OP_RING_ATTENTION_BWD ? TR_OP_ATTENTION_BWD : op;
}

void tr_price_kernels(const struct tr_compiled *c, const struct tr_machine *m, double out[TR_OP_COUNT])
{
    const struct tr_schedule *s = &c->schedule[TR_FOR_TRAIN];
    struct player p = { .c = c, .s = s };
    tr_price_open(c, m, &p.price);
    for (int i = 0; i < TR_OP_COUNT; i++)
        out[i] = 0;
    for (int i = 0; i < s->n_actions; i++) {
        const struct tr_action *a = &s->action[i];
        const struct tr_program *g = tr_action_has_program(a) ? s->program[s->program_of[a->segment]] : NULL;
        for (int k = 0; g && k < g->n_nodes; k++)
            if (tr_action_runs(a->kind, g->node[k].phase))
                out[kernel_of(g->node[k].op)] += tr_price_node(&p.price, g, &g->node[k]);
        if (a->kind == TR_DO_UPDATE || (a->kind == TR_DO_UPDATE_HOST && m->is_shared))
            out[c->opt.optim->phase[0].op] += update_s(&p, a->of);
    }
    out[TR_OP_SUMSQ] += norm_s(&p);
}
