/* shard.c - level-2 pass: data parallel and ZeRO. When parameters are gathered and gradients reduced.
 *
 * zero 0: gradients are summed after the last micro-batch; everything is whole. 1: each rank keeps the sum of its
 * shard, updates it, and the new parameters are gathered. 2: gradients of a segment exist whole only from its first
 * backward to its reduction, micro-batch by micro-batch. 3: parameters exist whole only around the actions that read
 * them, and the next action's are gathered one action ahead. One rank: nothing to do, nothing is added.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

struct pass {
    struct tr_compiled *c;
    const struct tr_model *m;
    struct tr_schedule *s;
    struct tr_action *from; /* as the pipeline left it */
    int n_from, n_cap;
    struct tr_sim values, grads;
    size_t *value_at, *grad_at; /* by bucket; SIZE_MAX: not here */
    int *n_split;               /* by bucket: backwards whose input part is done and whose weight part is not */
    enum tr_status st;
    size_t travelling; /* gradients on their way to their shards: SIZE_MAX = none */
};

static void emit(struct pass *p, const struct tr_action *a)
{
    if (p->s->n_actions == p->n_cap) {
        int cap = p->n_cap ? 2 * p->n_cap : 256;
        struct tr_action *mem = realloc(p->s->action, (size_t)cap * sizeof *mem);
        if (!mem) {
            p->st = tr_fail(TR_NOMEM, "schedule: out of memory");
            return;
        }
        p->s->action = mem;
        p->n_cap = cap;
    }
    p->s->action[p->s->n_actions++] = *a;
}

/* What happens to bucket `to`, in the place where the values and gradients of `bucket` are. */
static void emit_to(struct pass *p, enum tr_action_kind kind, int to, int bucket, int micro)
{
    struct tr_action a = { .kind = kind, .segment = to, .micro = micro, .n_buckets = 1, .bucket = { bucket } };
    a.value[0] = p->value_at[bucket];
    a.grad[0] = p->grad_at[bucket];
    emit(p, &a);
}

static void emit_bucket(struct pass *p, enum tr_action_kind kind, int bucket, int micro)
{
    emit_to(p, kind, bucket, bucket, micro);
}

/* The gradients of the later use make room for those of the earlier one; the last time they are complete. */
static void emit_second_use(struct pass *p, int shared, int micro)
{
    int second = p->m->n_segments + 1;
    TR_BUG_ON(shared != p->m->n_segments);
    emit_to(p, TR_DO_TREE_ADD, second, shared, micro);
    if (p->c->opt.layout.data_size > 1 && micro == p->c->opt.n_micro - 1)
        emit_bucket(p, TR_DO_REDUCE, second, micro);
}

static bool is_compute(const struct tr_action *a)
{
    return a->kind <= TR_DO_BACKWARD_WEIGHT;
}

static bool is_backward(const struct tr_action *a)
{
    return is_compute(a) && a->kind != TR_DO_FORWARD;
}

/* The weight part of a backward reads activations and gradients only. */
static bool reads_params(const struct tr_action *a)
{
    return is_compute(a) && a->kind != TR_DO_BACKWARD_WEIGHT;
}

/* Buckets of the parameters a segment reads. */
static void find_buckets(const struct pass *p, struct tr_action *a)
{
    const struct tr_segment *seg = &p->m->segment[a->segment];
    a->n_buckets = 0;
    for (int k = 0; k < p->m->program[seg->program]->n_params; k++) {
        int bucket = p->c->place[seg->param[k]].bucket, i = 0;
        while (i < a->n_buckets && a->bucket[i] != bucket)
            i++;
        TR_BUG_ON(i == TR_MAX_BUCKETS);
        if (i == a->n_buckets)
            a->bucket[a->n_buckets++] = bucket;
    }
}

static bool has_bucket(const struct tr_action *a, int bucket)
{
    for (int i = 0; i < a->n_buckets; i++)
        if (a->bucket[i] == bucket)
            return true;
    return false;
}

static const struct tr_action *next_reader(const struct pass *p, int i)
{
    for (i++; i < p->n_from; i++)
        if (reads_params(&p->from[i]))
            return &p->from[i];
    return NULL;
}

/* The last backward that adds to this bucket's gradients: of the micro-batch, or (whole_step) of the step. */
static bool is_last_touch(const struct pass *p, int i, int bucket, bool whole_step)
{
    for (int k = i + 1; k < p->n_from; k++)
        if (is_backward(&p->from[k]) && has_bucket(&p->from[k], bucket) &&
            (whole_step || p->from[k].micro == p->from[i].micro))
            return false;
    return true;
}

static void gather_for(struct pass *p, const struct tr_action *a, int micro)
{
    size_t size = tr_dtype_bytes(p->c->opt.compute_dtype);
    for (int i = 0; a && i < a->n_buckets; i++)
        if (p->value_at[a->bucket[i]] == SIZE_MAX) {
            p->value_at[a->bucket[i]] = tr_sim_alloc(&p->values, (size_t)p->c->bucket[a->bucket[i]].n * size);
            emit_bucket(p, TR_DO_GATHER, a->bucket[i], micro);
        }
}

static void release_after(struct pass *p, const struct tr_action *a, const struct tr_action *next)
{
    for (int i = 0; i < a->n_buckets; i++)
        if (!next || !has_bucket(next, a->bucket[i])) {
            tr_sim_free(&p->values, p->value_at[a->bucket[i]]);
            p->value_at[a->bucket[i]] = SIZE_MAX;
        }
}

static void pass_compute(struct pass *p, int i, int zero)
{
    struct tr_action a = p->from[i];
    const struct tr_layout *l = &p->c->opt.layout;
    int grad_zero = tr_grad_zero(l);
    const struct tr_action *next = next_reader(p, i);
    size_t size = tr_dtype_bytes(p->c->opt.grad_dtype);
    if (zero >= 3 && reads_params(&a)) {
        gather_for(p, &a, a.micro);
        gather_for(p, next, a.micro); /* one ahead: it travels while this action computes */
    }
    for (int h = 0; h < a.n_buckets; h++) {
        if (grad_zero >= 2 && is_backward(&a) && p->grad_at[a.bucket[h]] == SIZE_MAX)
            p->grad_at[a.bucket[h]] = tr_sim_alloc(&p->grads, (size_t)p->c->bucket[a.bucket[h]].n * size);
        a.value[h] = p->value_at[a.bucket[h]];
        a.grad[h] = p->grad_at[a.bucket[h]];
    }
    emit(p, &a);
    for (int h = 0; h < a.n_buckets && is_backward(&a); h++) {
        int *n_split = &p->n_split[a.bucket[h]];
        *n_split += a.kind == TR_DO_BACKWARD_INPUT ? 1 : a.kind == TR_DO_BACKWARD_WEIGHT ? -1 : 0;
        /* A split buffer holds some parameters' share of a micro-batch and not others': it is not done. */
        bool is_done = is_last_touch(p, i, a.bucket[h], grad_zero < 2) && *n_split == 0;
        bool is_last_of_micro = is_last_touch(p, i, a.bucket[h], false);
        bool is_part = a.kind == TR_DO_BACKWARD_INPUT; /* its parameters are others than the weight part's */
        if (l->in_order && p->c->opt.n_micro > 1 && (is_last_of_micro || is_part))
            emit_bucket(p, TR_DO_TREE_ADD, a.bucket[h], a.micro);
        if (l->in_order && !is_last_of_micro && !is_part)
            emit_second_use(p, a.bucket[h], a.micro);
        if (l->data_size * l->size[TR_AXIS_CP] > 1 && is_done) {
            emit_bucket(p, TR_DO_REDUCE, a.bucket[h], a.micro);
            if (grad_zero >= 2) { /* it travels while the next bucket computes, whose own reduction waits for it */
                if (p->travelling != SIZE_MAX)
                    tr_sim_free(&p->grads, p->travelling);
                p->travelling = p->grad_at[a.bucket[h]];
                p->grad_at[a.bucket[h]] = SIZE_MAX;
            }
        }
    }
    if (zero >= 3 && reads_params(&a))
        release_after(p, &a, next);
}

enum tr_status tr_pass_shard(struct tr_compiled *c, const struct tr_model *m, struct tr_schedule *s)
{
    int zero = c->opt.layout.zero, n = c->n_buckets;
    struct pass p = { .c = c, .m = m, .s = s, .from = s->action, .n_from = s->n_actions, .travelling = SIZE_MAX };
    size_t *mem = malloc(2 * (size_t)n * sizeof *mem);
    p.n_split = calloc((size_t)n, sizeof *p.n_split);
    if (!mem || !p.n_split) {
        free(mem);
        free(p.n_split);
        return tr_fail(TR_NOMEM, "schedule: out of memory");
    }
    p.value_at = mem;
    p.grad_at = mem + n;
    for (int i = 0; i < 2 * n; i++)
        mem[i] = SIZE_MAX;
    s->action = NULL;
    s->n_actions = 0;
    for (int i = 0; i < p.n_from; i++)
        if (is_compute(&p.from[i]))
            find_buckets(&p, &p.from[i]);
    for (int i = 0; i < p.n_from && p.st == TR_OK; i++) {
        if (is_compute(&p.from[i])) {
            pass_compute(&p, i, zero);
            continue;
        }
        for (int h = 0; h < n && p.from[i].kind == TR_DO_CLIP; h++)
            if (c->bucket[h].n_partial > 0)
                emit_bucket(&p, TR_DO_REDUCE_TP, h, 0);
        emit(&p, &p.from[i]);
        if (p.from[i].kind == TR_DO_UPDATE && (zero == 1 || zero == 2) && c->bucket[p.from[i].segment].n > 0)
            emit_bucket(&p, TR_DO_GATHER, p.from[i].segment, 0);
    }
    s->value_bytes = p.values.peak;
    s->grad_bytes = p.grads.peak;
    if (p.st == TR_OK)
        p.st = p.values.failed != TR_OK ? p.values.failed : p.grads.failed;
    tr_sim_release(&p.values);
    tr_sim_release(&p.grads);
    free(p.from);
    free(p.n_split);
    free(mem);
    return p.st;
}
