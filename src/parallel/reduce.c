/* reduce.c - level-2 pass: how gradients are accumulated and summed over ranks.
 *
 * The pass decides which gradients a backward overwrites and which it adds to, so that none is ever cleared. It decides
 * when gradients are summed over ranks: after the last micro-batch, or with zero 2 and 3 after every micro-batch,
 * because the whole gradients of a bucket exist only from its first backward to its reduction. In a reproducible layout
 * each micro-batch is added along the tree first.
 *
 * Gradients that live on the host have a slot from the first backward of a micro-batch that writes them to the last one
 * (grad-out); the next micro-batch adds to what comes back from there (grad-in), so the sums are those of a run that
 * keeps them. A slot is free STAYS segments later, when the copy has had time to end. The squares of a bucket are
 * summed before its slot goes for the last time.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

enum { STAYS = 2 }; /* segments that run before the slot of gradients on their way to the host is free */

struct leaving {
    int buffer, bucket, number; /* number: readers before it left */
};

struct reduce_pass {
    struct tr_emit e;
    int grad_zero;
    int *last_of_step, *last_of_micro; /* by bucket, and by micro-batch: the last backward that adds to its gradients */
    int *whole;                        /* by bucket: the slot that holds its gradients (zero 2 and 3), -1: none does */
    int *n_split;                      /* by bucket: backwards whose input part is done and whose weight part is not */
    bool *is_touched;        /* by parameter: its gradient already holds a sum of this step, or of this reduction */
    bool *is_summed;         /* by bucket: its shard of gradients already holds a sum of this step */
    int reducing;            /* slot of the gradients that are being reduced, -1: none */
    int number;              /* readers so far */
    struct leaving *leaving; /* slots whose gradients are on their way to the host */
    int n_leaving;
};

static bool is_backward(const struct tr_action *a)
{
    return tr_action_has_program(a) && a->kind != TR_DO_FORWARD;
}

static int *last_at(const struct reduce_pass *p, int bucket, int micro)
{
    return &p->last_of_micro[(size_t)bucket * (size_t)p->e.c->opt.n_micro + (size_t)micro];
}

/* Is action i the last backward that adds to the gradients of the bucket, in its micro-batch or (whole_step) in the
 * step? */
static bool is_last_touch(const struct reduce_pass *p, int i, int bucket, bool whole_step)
{
    return (whole_step ? p->last_of_step[bucket] : *last_at(p, bucket, p->e.from[i].micro)) == i;
}

static void find_last_touches(struct reduce_pass *p)
{
    for (int i = 0; i < p->e.n_from; i++) {
        const struct tr_action *a = &p->e.from[i];
        for (int k = 0; is_backward(a) && k < a->n_buckets; k++)
            p->last_of_step[a->bucket[k]] = *last_at(p, a->bucket[k], a->micro) = i;
    }
}

/* Have its whole gradients a slot for a time? */
static bool comes_and_goes(const struct reduce_pass *p, int bucket)
{
    return p->grad_zero >= 2 || p->e.c->place.is_grad_on_host[bucket];
}

static int grad_buffer(const struct reduce_pass *p, int bucket)
{
    return comes_and_goes(p, bucket) ? p->whole[bucket] : tr_fixed_buffer(p->e.s, TR_BUF_GRAD, bucket);
}

/* The local parameters whose gradients this backward writes, a bit each. */
static uint64_t written(const struct reduce_pass *p, const struct tr_action *a)
{
    const struct tr_program *g = p->e.s->program[p->e.s->program_of[a->segment]];
    uint64_t bits = 0;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; tr_action_runs(a->kind, g->node[i].phase) && k < TR_MAX_OUT; k++) {
            tr_val v = g->node[i].out[k];
            if (v == TR_NONE || g->value[v].kind != TR_V_GRAD)
                continue;
            TR_BUG_ON(g->value[v].slot >= 64);
            bits |= UINT64_C(1) << g->value[v].slot;
        }
    return bits;
}

/* The local parameters in `bits` that lie in the bucket. */
static uint64_t of_bucket(const struct reduce_pass *p, const struct tr_action *a, uint64_t bits, int bucket)
{
    const int *param = p->e.s->model->segment[a->segment].param;
    for (int i = 0; i < 64; i++)
        if (bits >> i & 1 && p->e.c->place.param[param[i]].bucket != bucket)
            bits &= ~(UINT64_C(1) << i);
    return bits;
}

static void touch(struct reduce_pass *p, struct tr_action *a, uint64_t bits)
{
    const int *param = p->e.s->model->segment[a->segment].param;
    a->params = 0;
    for (int i = 0; i < 64; i++)
        if (bits >> i & 1) {
            a->params |= p->is_touched[param[i]] ? UINT64_C(1) << i : 0;
            p->is_touched[param[i]] = true;
        }
}

/* Emits an action on the gradients of a bucket. The gradients lie in the place of `bucket`; the action belongs to
 * bucket `of`. */
static struct tr_action *emit_bucket(struct reduce_pass *p, enum tr_action_kind kind, int of, int bucket, int segment,
                                     int micro)
{
    struct tr_action *a = tr_emit_new(&p->e, kind, TR_PART_GRADIENTS, segment, micro);
    a->of = of;
    a->n_buckets = 1;
    a->bucket[0] = bucket;
    (void)tr_use_add(a, grad_buffer(p, bucket), TR_AS_GRAD, true);
    return a;
}

static void tree_add(struct reduce_pass *p, int of, int bucket, const struct tr_action *from, uint64_t bits)
{
    const int *param = p->e.s->model->segment[from->segment].param;
    struct tr_action *a = emit_bucket(p, TR_DO_TREE_ADD, of, bucket, from->segment, from->micro);
    a->params = of_bucket(p, from, bits, bucket);
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_LEVELS, of), TR_AS_OTHER, true);
    if (of != bucket)
        (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, of), TR_AS_OTHER, true);
    for (int i = 0; i < 64; i++)
        if (a->params >> i & 1)
            p->is_touched[param[i]] = false;
}

/* Emits the first hop. The first shard of a step goes to its final place. Later shards go to the staging buffer and are
 * added later. */
static void reduce(struct reduce_pass *p, int bucket, int micro)
{
    const struct tr_compiled *c = p->e.c;
    const struct tr_layout *l = &c->opt.layout;
    struct tr_action *a = emit_bucket(p, TR_DO_REDUCE, bucket, bucket, -1, micro);
    bool is_scatter = c->place.bucket[bucket].hop[0].is_scatter;
    a->is_first = !p->is_summed[bucket];
    p->is_summed[bucket] |= is_scatter;
    if (l->in_order || tr_has_wire(&c->opt)) /* consists of several kernels and collectives, one after the other */
        a->stream = TR_STREAM_COMPUTE;
    if (l->in_order || tr_has_wire(&c->opt) || (is_scatter && !a->is_first))
        (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_STAGING, -1), TR_AS_OTHER, true);
    if (p->grad_zero < 2)
        return;
    if (a->is_first)
        (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, bucket), TR_AS_OTHER, true);
    if (p->reducing >= 0) /* the schedule waits for that reduction before this one starts */
        tr_use_free(a, p->reducing);
    p->reducing = p->whole[bucket];
    p->whole[bucket] = -1;
    for (int i = 0; i < p->e.s->model->n_params; i++) /* the next backward gets a new buffer */
        if (c->place.param[i].bucket == bucket)
            p->is_touched[i] = false;
}

/* Adds the gradients of the second use along the tree, so that the first use can take their buffer. After the last
 * micro-batch they are complete. */
static void second_use(struct reduce_pass *p, int shared, const struct tr_action *from, uint64_t bits)
{
    int second = shared + 1;
    TR_BUG_ON(tr_bucket_segment(p->e.s->model, shared) != p->e.s->model->n_segments);
    tree_add(p, second, shared, from, bits);
    if (p->e.c->opt.layout.data_size > 1 && from->micro == p->e.c->opt.n_micro - 1)
        reduce(p, second, from->micro);
}

/* ---- gradients on the host ---- */

/* Does the next reader after action i write gradients of the bucket? */
static bool is_next(const struct reduce_pass *p, int i, int bucket)
{
    for (i++; i < p->e.n_from && !tr_action_reads_params(&p->e.from[i]);)
        i++;
    return i < p->e.n_from && is_backward(&p->e.from[i]) && tr_action_has_bucket(&p->e.from[i], bucket);
}

/* Gradients that other micro-batches have a sum of come to a new slot. */
static void bring_grads(struct reduce_pass *p, int bucket, int micro, size_t bytes)
{
    bool is_sum = false;
    for (int k = 0; k < p->e.s->model->n_params; k++)
        is_sum |= p->is_touched[k] && p->e.c->place.param[k].bucket == bucket;
    if (!is_sum || !p->e.c->place.is_grad_on_host[bucket])
        return;
    p->whole[bucket] = tr_slot_add(&p->e, TR_BUF_GRADS, bucket, bytes);
    struct tr_action *a = emit_bucket(p, TR_DO_GRAD_IN, bucket, bucket, -1, micro);
    a->use[0].takes = true;
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, bucket), TR_AS_OTHER, false);
}

/* After the last backward of a micro-batch, and of a step, that writes them. */
static void leave_grads(struct reduce_pass *p, int i, int bucket, bool is_last)
{
    struct tr_action *a;
    int slot = p->whole[bucket], micro = p->e.from[i].micro;
    if (is_last) {
        a = emit_bucket(p, TR_DO_NORM, bucket, bucket, -1, micro);
        a->use[0].writes = false;
    } else if (is_next(p, i, bucket)) {
        return; /* there is no time to go and come back */
    }
    a = emit_bucket(p, TR_DO_GRAD_OUT, bucket, bucket, -1, micro);
    a->use[0].writes = false;
    (void)tr_use_add(a, tr_fixed_buffer(p->e.s, TR_BUF_GRAD, bucket), TR_AS_OTHER, true);
    p->leaving[p->n_leaving++] = (struct leaving){ slot, bucket, p->number };
    p->whole[bucket] = -1;
}

/* A reader frees the slots that left some time ago, or whose gradients come back for the next one. */
static void free_slots(struct reduce_pass *p, int i, struct tr_action *a)
{
    int n = 0;
    p->number++;
    for (int k = 0; k < p->n_leaving; k++) {
        struct leaving *x = &p->leaving[k];
        if (p->number - x->number >= STAYS || is_next(p, i, x->bucket))
            tr_use_free(a, x->buffer);
        else
            p->leaving[n++] = *x;
    }
    p->n_leaving = n;
}

static void pass_backward(struct reduce_pass *p, int i)
{
    const struct tr_layout *l = &p->e.c->opt.layout;
    struct tr_action from = p->e.from[i];
    uint64_t bits = written(p, &from);
    size_t size = tr_dtype_bytes(p->e.c->opt.grad_dtype);
    /* the input part and the weight part write gradients of different parameters */
    bool is_part = from.kind == TR_DO_BACKWARD_INPUT;
    int n_buckets = 0; /* buckets of parameters that learn stand first */
    while (n_buckets < from.n_buckets && !tr_bucket_is_frozen(p->e.s->model, from.bucket[n_buckets]))
        n_buckets++;
    for (int k = 0; k < n_buckets; k++)
        if (comes_and_goes(p, from.bucket[k]) && p->whole[from.bucket[k]] < 0)
            bring_grads(p, from.bucket[k], from.micro, (size_t)p->e.c->place.bucket[from.bucket[k]].n * size);
    struct tr_action *a = tr_emit(&p->e, &from);
    for (int k = 0; k < n_buckets; k++) {
        bool is_new = comes_and_goes(p, from.bucket[k]) && p->whole[from.bucket[k]] < 0;
        if (is_new)
            p->whole[from.bucket[k]] =
                tr_slot_add(&p->e, TR_BUF_GRADS, from.bucket[k], (size_t)p->e.c->place.bucket[from.bucket[k]].n * size);
        struct tr_buffer_use *u = tr_use_add(a, grad_buffer(p, from.bucket[k]), TR_AS_GRAD, true);
        u->index = (uint8_t)k;
        u->takes = is_new;
    }
    touch(p, a, bits);
    if (tr_action_reads_params(&from))
        free_slots(p, i, a);
    for (int k = 0; k < n_buckets; k++) {
        int bucket = from.bucket[k], *n_split = &p->n_split[bucket];
        *n_split += is_part ? 1 : from.kind == TR_DO_BACKWARD_WEIGHT ? -1 : 0;
        /* Between the parts of a split backward a buffer holds the gradients of only some parameters, so it is not
         * complete. */
        bool is_done = is_last_touch(p, i, bucket, p->grad_zero < 2) && *n_split == 0;
        bool is_last_of_micro = is_last_touch(p, i, bucket, false);
        if (l->in_order && p->e.c->opt.n_micro > 1 && (is_last_of_micro || is_part))
            tree_add(p, bucket, bucket, &from, bits);
        if (l->in_order && !is_last_of_micro && !is_part)
            second_use(p, bucket, &from, bits);
        if (l->data_size * l->size[TR_AXIS_CP] > 1 && is_done)
            reduce(p, bucket, from.micro);
        if (p->e.c->place.is_grad_on_host[bucket] && is_last_of_micro && *n_split == 0)
            leave_grads(p, i, bucket, is_done);
    }
}

enum tr_status tr_pass_reduce(const struct tr_compiled *c, struct tr_schedule *s)
{
    struct reduce_pass p = { .grad_zero = tr_grad_zero(&c->opt.layout), .reducing = -1 };
    if (s->purpose != TR_FOR_TRAIN)
        return TR_OK;
    size_t n_buckets = (size_t)c->place.n_buckets;
    int *mem = calloc((3 + (size_t)c->opt.n_micro) * n_buckets, sizeof *mem);
    p.is_touched = calloc((size_t)c->place.model->n_params + 1, sizeof *p.is_touched);
    p.is_summed = calloc((size_t)c->place.n_buckets, sizeof *p.is_summed);
    p.leaving = calloc((size_t)c->place.n_buckets, sizeof *p.leaving);
    enum tr_status st =
        mem && p.is_touched && p.is_summed && p.leaving ? TR_OK : tr_fail(TR_NOMEM, "schedule: out of memory");
    if (st == TR_OK) {
        p.whole = mem;
        p.n_split = p.whole + n_buckets;
        p.last_of_step = p.n_split + n_buckets;
        p.last_of_micro = p.last_of_step + n_buckets;
        for (int i = 0; i < c->place.n_buckets; i++)
            p.whole[i] = -1;
        tr_emit_begin(&p.e, c, s);
        find_last_touches(&p);
        for (int i = 0; i < p.e.n_from; i++)
            if (is_backward(&p.e.from[i])) {
                pass_backward(&p, i);
            } else {
                struct tr_action *a = tr_emit(&p.e, &p.e.from[i]);
                if (tr_action_reads_params(a))
                    free_slots(&p, i, a);
            }
        st = tr_emit_end(&p.e);
    }
    free(mem);
    free(p.is_touched);
    free(p.is_summed);
    free(p.leaving);
    return st;
}
