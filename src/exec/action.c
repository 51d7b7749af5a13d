/* action.c - runs one action of a schedule: each op of its program phase, with views resolved from planned offsets.
 *
 * No gradient is ever cleared. The schedule says which gradients already hold a sum of this step; ops add to those and
 * overwrite the others.
 */
#include "exec/exec_impl.h"

struct frame {
    struct tr_exec *e;
    const struct tr_model *m;
    const struct tr_program *p;
    const struct tr_action *a;
    const struct tr_batch *batch; /* as the device sees it */
    struct tr_batch local;        /* this rank's tokens of it */
    uint64_t written;             /* gradients that this action has written to, by local parameter */
};

static size_t bucket_offset(const struct tr_action *a, int bucket, bool is_param)
{
    int i = 0;
    while (a->bucket[i] != bucket)
        TR_BUG_ON(++i >= a->n_buckets);
    return is_param ? a->value[i] : a->grad[i];
}

static char *root_ptr(const struct frame *f, tr_val root)
{
    const struct tr_exec *e = f->e;
    const struct tr_value *v = &f->p->value[root];
    const struct tr_segment *seg = &f->m->segment[f->a->segment];
    char *acts = e->base[TR_A_ACTS], *work = e->base[TR_A_WORK];
    switch (v->kind) {
    case TR_V_PARAM:
    case TR_V_GRAD: {
        const struct tr_param_place *at = &e->c->place.param[seg->param[v->slot]];
        bool is_param = v->kind == TR_V_PARAM;
        char *bucket = e->base[is_param ? TR_A_PARAMS : TR_A_GRADS] + bucket_offset(f->a, at->bucket, is_param);
        return bucket + (is_param ? tr_bucket_bytes(&e->c->place, at->bucket, at->at)
                                  : (size_t)at->at * tr_dtype_bytes(v->dtype));
    }
    case TR_V_CONST:
        return e->base[TR_A_PARAMS] + e->c->memory.constant[v->slot];
    case TR_V_BATCH:
        return (char *)tr_batch_part(v->is_whole ? f->batch : &f->local, (enum tr_batch_slot)v->slot) +
               (size_t)v->row * tr_dtype_bytes(v->dtype);
    case TR_V_STEP:
        return work + e->c->memory.step;
    case TR_V_LOSS:
        return work + e->c->memory.loss + (size_t)f->a->micro * (size_t)f->m->n_losses * sizeof(double);
    case TR_V_IN:
        return acts + f->a->in;
    case TR_V_DOUT:
        return acts + f->a->dout;
    case TR_V_CACHE: {
        size_t sequence = (size_t)(e->c->opt.cache_rows * v->cols) * tr_dtype_bytes(v->dtype);
        return e->base[TR_A_CACHE] + e->c->memory.cache[f->a->segment] + (v->slot ? e->c->memory.cache_bytes : 0) +
               (size_t)e->sequence * sequence;
    }
    case TR_V_AMAX:
        return work + e->c->memory.amax +
               ((size_t)f->a->segment * (size_t)e->c->memory.n_amax + (size_t)v->slot) * 2 * sizeof(float);
    case TR_V_TEMP:
        break;
    }
    if (root == f->p->out)
        return acts + f->a->out;
    if (root == f->p->din)
        return acts + f->a->din;
    return v->is_saved         ? acts + f->a->saved + v->offset
           : v->is_split_saved ? acts + f->a->split_saved + v->offset
                               : work + e->c->memory.temps + v->offset;
}

static struct tr_view view_of(const struct frame *f, tr_val v)
{
    if (v == TR_NONE)
        return (struct tr_view){ 0 };
    tr_val root = tr_value_root(f->p, v);
    const struct tr_value *x = &f->p->value[v];
    int64_t col = 0;
    for (tr_val w = v; f->p->value[w].base != TR_NONE; w = f->p->value[w].base)
        col += f->p->value[w].col;
    char *at = root_ptr(f, root) + (size_t)col * tr_dtype_bytes(x->dtype);
    /* what tensor-parallel ranks have gathered has the rows of each of them */
    bool is_cut = f->batch->n_used > 0 && x->rows % f->m->n_tokens == 0 && tr_value_has_tokens(&f->p->value[root]);
    return (struct tr_view){ .data = at,
                             .dtype = x->dtype,
                             .rows = is_cut ? x->rows / f->m->n_tokens * f->batch->n_used : x->rows,
                             .cols = x->cols,
                             .ld = f->p->value[root].cols };
}

/* A test: what lies behind the used rows of a value that an op is about to write becomes NaN, so that no later op can
 * read it unseen. */
static void poison_padding(const struct frame *f, tr_val v, const struct tr_view *used)
{
    const struct tr_value *x = v == TR_NONE ? NULL : &f->p->value[v];
    size_t elem = x ? tr_dtype_bytes(x->dtype) : 0;
    for (int64_t r = used->rows; x && r < x->rows; r++)
        memset((char *)used->data + (size_t)(r * used->ld) * elem, 0xff, (size_t)x->cols * elem);
}

/* Sets `accumulate` for gradients: the first write of a step stores, later writes add. */
static void mark_accumulate(struct frame *f, const struct tr_node *n, struct tr_call *c)
{
    for (int i = 0; i < TR_MAX_OUT; i++) {
        if (n->out[i] == TR_NONE || f->p->value[n->out[i]].kind != TR_V_GRAD)
            continue;
        uint64_t bit = UINT64_C(1) << f->p->value[n->out[i]].slot;
        c->accumulate[i] = ((f->a->params | f->written) & bit) != 0;
        f->written |= bit;
    }
}

static enum tr_status run_nodes(struct frame *f)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < f->p->n_nodes && st == TR_OK; i++) {
        const struct tr_node *n = &f->p->node[i];
        if (!tr_action_runs(f->a->kind, n->phase))
            continue;
        struct tr_call c = tr_exec_call(f->e, n->op);
        c.scratch = f->e->base[TR_A_WORK] + f->e->c->memory.temps + n->scratch;
        c.attr = n->attr;
        c.n_documents = f->e->n_documents[f->a->micro];
        for (int k = 0; k < TR_MAX_IN; k++)
            c.in[k] = view_of(f, n->in[k]);
        for (int k = 0; k < TR_MAX_OUT; k++)
            c.out[k] = view_of(f, n->out[k]);
        for (int k = 0; f->e->poisons && k < TR_MAX_OUT; k++)
            poison_padding(f, n->out[k], &c.out[k]);
        if (n->attr.key != 0) /* one random stream per site and layer; forward and backward use the same */
            c.attr.key = tr_rng_key(f->e->seed, "dropout",
                                    (uint64_t)(f->m->segment[f->a->segment].layer + 1) * 64 + n->attr.key);
        mark_accumulate(f, n, &c);
        if (tr_op_is_collective(n->op))
            st = tr_exec_collective(f->e, &c);
        else
            tr_exec_kernel(f->e, &c);
    }
    return st;
}

/* Micro-batch i as the device sees it: in place, or its copy in the work arena. */
static struct tr_batch batch_on_device(const struct tr_exec *e, const struct tr_batch *host, int64_t n, int i)
{
    return e->dev->row->is_host
               ? *host
               : tr_batch_in(e->base[TR_A_WORK] + e->c->memory.batch + (size_t)i * e->c->opt.batch_bytes, n);
}

/* Returns 0 when a document crosses the end of a row of tokens. */
static int64_t count_documents(const struct tr_batch *b, int64_t n, int64_t length)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % length == 0 && b->begin[i] != i)
            return 0;
        sum += b->begin[i] == i;
    }
    return sum;
}

void tr_exec_send_batches(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *micro, int n)
{
    int at = e->dev->row->is_host ? -1 : tr_trace_copy(e->trace, "batches", (size_t)n * e->c->opt.batch_bytes);
    for (int i = 0; !e->dev->row->is_host && i < n; i++) {
        struct tr_batch to = batch_on_device(e, &micro[i], m->n_tokens, i);
        for (enum tr_batch_slot slot = 0; slot < TR_B_COUNT; slot++)
            if (tr_batch_part(&micro[i], slot)) /* else no program of this run reads it */
                tr_device_copy(e->dev, TR_STREAM_COMPUTE, tr_batch_part(&to, slot), tr_batch_part(&micro[i], slot),
                               (size_t)m->n_tokens * tr_batch_elem_bytes(slot));
        e->n_documents[i] = count_documents(&micro[i], m->n_tokens, m->sequence_length);
    }
    tr_trace_end(e->trace, at);
}

bool tr_exec_takes_dense(const struct tr_exec *e)
{
    const struct tr_layout *l = &e->c->opt.layout;
    return e->dev->row->is_host && !tr_layout_splits(l, TR_ON(TR_AXIS_CP)) && !l->sp && !e->c->opt.fp8;
}

static enum tr_status compute(struct tr_run *r, const struct tr_action *a)
{
    struct tr_exec *e = r->e;
    struct tr_batch batch = batch_on_device(e, &r->micro[a->micro], r->s->model->n_tokens, a->micro);
    struct frame f = {
        .e = e, .m = r->s->model, .p = r->s->program[r->s->program_of[a->segment]], .a = a, .batch = &batch
    };
    bool is_split = tr_layout_splits(&e->c->opt.layout, TR_ON(TR_AXIS_CP)) && !tr_purpose_has_cache(r->s->purpose);
    f.local = is_split ? tr_exec_local(e, r->s->model, &r->micro[a->micro]) : batch;
    return run_nodes(&f);
}

enum tr_status tr_run_FORWARD(struct tr_run *r, const struct tr_action *a)
{
    return compute(r, a);
}

enum tr_status tr_run_BACKWARD(struct tr_run *r, const struct tr_action *a)
{
    return compute(r, a);
}

enum tr_status tr_run_BACKWARD_INPUT(struct tr_run *r, const struct tr_action *a)
{
    return compute(r, a);
}

enum tr_status tr_run_BACKWARD_WEIGHT(struct tr_run *r, const struct tr_action *a)
{
    return compute(r, a);
}
