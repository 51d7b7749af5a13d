/* exec.c - runs a schedule: for each action, each op of its program phase, views resolved from planned offsets.
 *
 * There is one loop for training, evaluation and generation, on any device; which kernel column runs is decided once at
 * open. Whether a gradient is stored or added to is known by whether this step has touched it before, so no gradient
 * is ever cleared.
 */
#include "train/exec_impl.h"
#include <math.h>
#include <stdlib.h>

static void no_arithmetic(const struct tr_call *c)
{
    (void)c;
}

/* Arenas that collectives read and write: shared with the peers, so that nothing is copied on the way. */
static bool is_shared(const struct tr_compiled *c, int arena)
{
    bool is_split = c->opt.layout.size[TR_AXIS_TP] > 1 || c->opt.layout.size[TR_AXIS_CP] > 1;
    switch (arena) {
    case TR_A_PARAMS:
    case TR_A_GRADS:
        return true;
    case TR_A_ACTS:
        return c->n_stages > 1 || is_split;
    default:
        return arena == TR_A_WORK && is_split;
    }
}

size_t tr_exec_shared_bytes(const struct tr_compiled *c)
{
    size_t sum = 0;
    for (int a = 0; a < TR_A_COUNT; a++)
        sum += is_shared(c, a) ? tr_round_up(c->bytes[a], TR_COMM_ALIGN) : 0;
    return sum;
}

/* Arenas of the host, whatever the device. */
static bool is_host(int arena)
{
    return arena == TR_A_DATA || arena == TR_A_SAVE || arena == TR_A_STAGING;
}

static enum tr_status reserve(struct tr_exec *e, int arena)
{
    void *base = NULL;
    size_t bytes = e->c->bytes[arena];
    enum tr_status st = TR_OK;
    if (e->mesh && is_shared(e->c, arena) && bytes) {
        st = tr_comm_reserve(e->mesh->all, bytes, &base);
        e->dev->reserved_bytes += st == TR_OK ? bytes : 0;
        e->dev->n_reserves++;
    } else {
        const struct tr_device_ops *ops = e->dev->ops;
        st = (is_host(arena) ? ops->reserve_host : ops->reserve)(e->dev, bytes, tr_arena_name((enum tr_arena_id)arena),
                                                                 &base);
    }
    e->base[arena] = base;
    return st;
}

enum tr_status tr_exec_open(const struct tr_compiled *c, struct tr_device *dev, struct tr_pool *pool,
                            struct tr_mesh *mesh, uint64_t seed, struct tr_exec **out)
{
    enum tr_status st = TR_OK;
    struct tr_exec *e = calloc(1, sizeof *e);
    if (!e)
        return tr_fail(TR_NOMEM, "executor: out of memory");
    e->c = c;
    e->dev = dev;
    e->pool = pool;
    e->mesh = mesh;
    e->seed = seed;
    e->reducing = -1;
    bool is_phantom = strcmp(dev->ops->name, "phantom") == 0, is_cuda = strcmp(dev->ops->name, "cuda") == 0;
    for (int i = 0; i < TR_OP_COUNT; i++)
        e->kernel[i] = is_phantom ? no_arithmetic
                       : is_cuda  ? tr_op_cuda((enum tr_opcode)i)
                                  : tr_op_cpu_fast((enum tr_opcode)i);
    e->is_touched = calloc((size_t)c->model->n_params, sizeof *e->is_touched);
    e->is_summed = calloc((size_t)c->n_homes, sizeof *e->is_summed);
    e->pending = calloc((size_t)c->n_homes, sizeof *e->pending);
    e->norms = calloc((size_t)c->norm_first[c->model->n_params] + 1, sizeof *e->norms);
    e->losses = calloc((size_t)c->opt.layout.data_size * (size_t)(c->opt.n_micro + 1), sizeof *e->losses);
    e->message = calloc((size_t)(c->train.n_messages + c->eval.n_messages) + 1, sizeof *e->message);
    e->n_documents = calloc((size_t)tr_max64(1, c->opt.n_micro), sizeof *e->n_documents);
    if (!e->n_documents || !e->is_touched || !e->is_summed || !e->pending || !e->norms || !e->losses || !e->message)
        TR_TRY(tr_fail(TR_NOMEM, "executor: out of memory"));
    TR_TRY(tr_exec_recordings_open(e));
    e->may_record = is_cuda && !getenv("TR_FAIL"); /* a failpoint is passed when it happens, not when it is noted */
    dev->may_choose = c->opt.any_order;
    if (is_cuda)
        TR_TRY(tr_op_cuda_open(dev));
    for (int a = 0; a < TR_A_COUNT; a++)
        TR_TRY(reserve(e, a));
    for (int i = 0; i < TR_C_COUNT; i++) {
        const struct tr_model *m = c->model;
        if (c->eval_model && c->eval_model->const_rows[i] > m->const_rows[i])
            m = c->eval_model;
        if (m->constant[i])
            dev->ops->upload(dev, e->base[TR_A_PARAMS] + c->constant[i], m->constant[i],
                             (size_t)(m->const_rows[i] * m->const_cols[i]) * sizeof(float));
    }
    if (c->bytes[TR_A_OPTIM])
        dev->ops->clear(dev, e->base[TR_A_OPTIM], c->bytes[TR_A_OPTIM]);
    if (!dev->ops->is_host && c->bytes[TR_A_GRADS])
        dev->ops->clear(dev, e->base[TR_A_GRADS], c->bytes[TR_A_GRADS]);
out:
    if (st == TR_OK)
        *out = e;
    else
        tr_exec_close(e);
    return st;
}

void tr_exec_close(struct tr_exec *e)
{
    if (!e)
        return;
    for (int a = 0; a < TR_A_COUNT; a++)
        if (e->base[a] && e->mesh && is_shared(e->c, a))
            e->dev->reserved_bytes -= e->c->bytes[a]; /* the mesh's to give back */
        else if (e->base[a])
            (is_host(a) ? e->dev->ops->release_host : e->dev->ops->release)(e->dev, e->base[a], e->c->bytes[a]);
    if (e->dev->library)
        tr_op_cuda_close(e->dev);
    tr_exec_recordings_close(e);
    free(e->n_documents);
    free(e->is_touched);
    free(e->is_summed);
    free(e->pending);
    free(e->norms);
    free(e->losses);
    free(e->message);
    free(e->checked);
    free(e);
}

void tr_exec_kernel(struct tr_exec *e, const struct tr_call *c)
{
    int at = tr_trace_op(e->trace, c);
    e->kernel[c->op](c);
    tr_trace_end(e->trace, at);
}

/* ---- one action ---- */

struct frame {
    struct tr_exec *e;
    const struct tr_model *m;
    const struct tr_program *p;
    const struct tr_action *a;
    const struct tr_batch *batch; /* as the device sees it */
    struct tr_batch local;        /* this rank's tokens of it */
};

static void *batch_ptr(const struct tr_batch *b, int32_t slot)
{
    switch (slot) {
    case TR_B_TOKENS:
        return b->tokens;
    case TR_B_TARGETS:
        return b->targets;
    case TR_B_POSITIONS:
        return b->positions;
    case TR_B_BEGIN:
        return b->begin;
    default:
        return b->sample;
    }
}

static size_t home_offset(const struct tr_action *a, int home, bool is_param)
{
    int i = 0;
    while (a->home[i] != home)
        TR_BUG_ON(++i >= a->n_homes);
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
        const struct tr_param_place *at = &e->c->place[seg->param[v->slot]];
        bool is_param = v->kind == TR_V_PARAM;
        char *flat = e->base[is_param ? TR_A_PARAMS : TR_A_GRADS] + home_offset(f->a, at->home, is_param);
        return flat + (size_t)at->at * tr_dtype_bytes(v->dtype);
    }
    case TR_V_CONST:
        return e->base[TR_A_PARAMS] + e->c->constant[v->slot];
    case TR_V_BATCH:
        return (char *)batch_ptr(v->is_whole ? f->batch : &f->local, v->slot) +
               (size_t)v->row * tr_dtype_bytes(v->dtype);
    case TR_V_STEP:
        return work + e->c->step;
    case TR_V_LOSS:
        return work + e->c->loss + (size_t)f->a->micro * sizeof(double);
    case TR_V_IN:
        return acts + f->a->in;
    case TR_V_DOUT:
        return acts + f->a->dout;
    case TR_V_CACHE:
    case TR_V_CACHE_NEW: {
        int64_t row = v->kind == TR_V_CACHE ? 0 : e->cache_row;
        size_t skip = (size_t)(row * v->cols) * tr_dtype_bytes(v->dtype) + (v->slot ? e->c->cache_bytes : 0);
        return e->base[TR_A_CACHE] + e->c->cache[f->a->segment] + skip;
    }
    case TR_V_TEMP:
        break;
    }
    if (root == f->p->out)
        return acts + f->a->out;
    if (root == f->p->din)
        return acts + f->a->din;
    return v->is_saved  ? acts + f->a->saved + v->offset
           : v->is_kept ? acts + f->a->kept + v->offset
                        : work + e->c->temps + v->offset;
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
    return (struct tr_view){
        .data = at, .dtype = x->dtype, .rows = x->rows, .cols = x->cols, .ld = f->p->value[root].cols
    };
}

/* Sets accumulate for gradients and running sums: the first touch of a step stores, later ones add. */
static void mark_touches(const struct frame *f, const struct tr_node *n, struct tr_call *c)
{
    for (int i = 0; i < TR_MAX_OUT; i++) {
        if (n->out[i] == TR_NONE)
            continue;
        const struct tr_value *v = &f->p->value[n->out[i]];
        bool *touched = NULL;
        if (v->kind == TR_V_GRAD)
            touched = &f->e->is_touched[f->m->segment[f->a->segment].param[v->slot]];
        else if (v->kind == TR_V_LOSS) /* each micro-batch has its own */
            f->e->loss_is_touched = true;
        if (touched) {
            c->accumulate[i] = *touched;
            *touched = true;
        }
    }
}

static bool is_of(enum tr_phase phase, enum tr_action_kind kind)
{
    switch (phase) {
    case TR_FORWARD:
        return kind == TR_DO_FORWARD;
    case TR_BACKWARD_INPUT:
        return kind == TR_DO_BACKWARD || kind == TR_DO_BACKWARD_INPUT;
    default:
        return kind == TR_DO_BACKWARD || kind == TR_DO_BACKWARD_WEIGHT;
    }
}

static enum tr_status run_nodes(const struct frame *f)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < f->p->n_nodes && st == TR_OK; i++) {
        const struct tr_node *n = &f->p->node[i];
        if (!is_of(n->phase, f->a->kind))
            continue;
        struct tr_call c = { .op = n->op,
                             .attr = n->attr,
                             .pool = f->e->pool,
                             .scratch = f->e->base[TR_A_WORK] + f->e->c->scratch,
                             .dev = f->e->dev,
                             .n_documents = f->e->n_documents[f->a->micro] };
        for (int k = 0; k < TR_MAX_IN; k++)
            c.in[k] = view_of(f, n->in[k]);
        for (int k = 0; k < TR_MAX_OUT; k++)
            c.out[k] = view_of(f, n->out[k]);
        if (n->attr.dropout_p > 0) /* one stream per site and layer, the same forward and backward */
            c.attr.key = tr_rng_key(f->e->seed, "dropout",
                                    (uint64_t)(f->m->segment[f->a->segment].layer + 1) * 64 + n->attr.key);
        mark_touches(f, n, &c);
        if (tr_op_is_collective(n->op))
            st = tr_exec_collective(f->e, &c);
        else
            tr_exec_kernel(f->e, &c);
    }
    return st;
}

static struct tr_view flat(char *base, enum tr_dtype dtype, int64_t n)
{
    return (struct tr_view){ .data = base, .dtype = dtype, .rows = 1, .cols = n, .ld = n };
}

static struct tr_call call_of(struct tr_exec *e, enum tr_opcode op)
{
    return (struct tr_call){ .op = op, .pool = e->pool, .scratch = e->base[TR_A_WORK] + e->c->scratch, .dev = e->dev };
}

static struct tr_view step_view(struct tr_exec *e)
{
    return flat(e->base[TR_A_WORK] + e->c->step, TR_F32, TR_STEP_COUNT);
}

/* Of what all ranks of an axis hold, the first counts. */
static bool is_counted(const struct tr_exec *e, int param)
{
    const struct tr_param_place *p = &e->c->place[param];
    bool is_first = p->cut.is_split || e->c->opt.layout.coord[TR_AXIS_TP] == 0;
    return p->n > 0 && is_first && tr_param_is_first(e->c, param);
}

static void sum_squares(struct tr_exec *e, int param, char *norms)
{
    const struct tr_param_place *p = &e->c->place[param];
    int first_slot = e->c->norm_first[param];
    int64_t first = 0, n = 0, end = p->first + p->n,
            piece = e->c->opt.layout.in_order ? TR_NORM_PIECE : tr_max64(end, 1);
    const char *grad = tr_exec_at(e, TR_S_GRAD, param, &first, &n);
    for (int64_t at = p->first; at < end; at += piece) {
        struct tr_call c = call_of(e, TR_OP_SUMSQ);
        c.in[0] = flat((char *)(uintptr_t)grad + (size_t)at * tr_dtype_bytes(e->c->opt.grad_dtype),
                       e->c->opt.grad_dtype, tr_min64(piece, end - at));
        c.out[0] = flat(norms + (size_t)(first_slot + at / piece) * sizeof(double), TR_F64, 1);
        tr_exec_kernel(e, &c);
    }
}

/* Squares of all gradients, each rank its own elements, each parameter once. */
static void run_norm(struct tr_exec *e)
{
    char *norm_at = e->base[TR_A_WORK] + e->c->norm;
    e->dev->ops->clear(e->dev, norm_at, (size_t)e->c->norm_first[e->c->model->n_params] * sizeof(double));
    if (!e->dev->ops->is_host && !e->mesh && !e->c->opt.layout.in_order) {
        /* All of the arena is gradients, and padding is zero: one sum. A launch a parameter costs more. */
        struct tr_call c = call_of(e, TR_OP_SUMSQ);
        c.in[0] = flat(e->base[TR_A_GRADS], e->c->opt.grad_dtype,
                       (int64_t)(e->c->bytes[TR_A_GRADS] / tr_dtype_bytes(e->c->opt.grad_dtype)));
        c.out[0] = flat(norm_at, TR_F64, 1);
        tr_exec_kernel(e, &c);
        return;
    }
    for (int i = 0; i < e->c->model->n_params; i++)
        if (is_counted(e, i))
            sum_squares(e, i, norm_at);
}

/* The norm, summed in the order of parameters, so that no split of them over stages changes a bit; then the clip factor
 * into the step buffer. */
static enum tr_status run_clip(struct tr_exec *e, double max_norm, double *norm)
{
    size_t n = (size_t)e->c->norm_first[e->c->model->n_params];
    enum tr_status st = TR_OK;
    e->dev->ops->download(e->dev, e->norms, e->base[TR_A_WORK] + e->c->norm, n * sizeof(double));
    if (e->mesh && e->c->opt.layout.zero >= 1) /* else every rank has summed everything */
        TR_TRY(tr_exec_sum(e->mesh->axis[TR_AXIS_SHARD], "gradient norms over shards", e->norms, n));
    if (e->mesh)
        TR_TRY(tr_exec_sum(e->mesh->axis[TR_AXIS_TP], "gradient norms over parts", e->norms, n));
    if (e->mesh)
        TR_TRY(tr_exec_sum(e->mesh->axis[TR_AXIS_PP], "gradient norms over stages", e->norms, n));
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += e->norms[i];
    *norm = sqrt(sum);
    float clip = tr_clip_factor(*norm, max_norm);
    e->dev->ops->upload(e->dev, e->base[TR_A_WORK] + e->c->step + TR_STEP_CLIP * sizeof clip, &clip, sizeof clip);
out:
    return st;
}

static void run_update(struct tr_exec *e, enum tr_optim_kind kind, int segment)
{
    const struct tr_optim *o = tr_optim_row(kind);
    for (int i = 0; i < e->c->model->n_params; i++) {
        const struct tr_param_place *p = &e->c->place[i];
        if (p->home != segment || p->n == 0)
            continue;
        struct tr_call c = call_of(e, o->op);
        struct tr_view v[TR_STATE_COUNT] = { 0 };
        for (int what = 0; what < TR_STATE_COUNT; what++) {
            if (!tr_exec_has(e, (enum tr_state)what))
                continue;
            int64_t first = 0, n = 0;
            enum tr_dtype dtype = tr_exec_dtype(e, (enum tr_state)what);
            char *at = tr_exec_at(e, (enum tr_state)what, i, &first, &n);
            v[what] = flat(at + (size_t)p->first * tr_dtype_bytes(dtype), dtype, p->n);
        }
        bool has_master = v[TR_S_MASTER].data != NULL;
        c.in[0] = v[TR_S_GRAD];
        c.in[1] = step_view(e);
        c.out[0] = has_master ? v[TR_S_MASTER] : v[TR_S_VALUE];
        c.out[1] = v[TR_S_M];
        c.out[2] = v[TR_S_V];
        c.out[3] = has_master ? v[TR_S_VALUE] : (struct tr_view){ 0 };
        c.attr.decay = e->c->model->param[i].has_decay;
        c.attr.first = p->first + (p->cut.is_split ? e->c->opt.layout.coord[TR_AXIS_TP] * p->cut.n_held : 0);
        c.attr.key = tr_rng_key(e->seed, e->c->model->param[i].name, 1);
        tr_exec_kernel(e, &c);
    }
}

/* ---- steps ---- */

/* No gradient holds anything of this step. */
static void forget_touches(struct tr_exec *e)
{
    memset(e->is_touched, 0, (size_t)e->c->model->n_params * sizeof *e->is_touched);
    memset(e->is_summed, 0, (size_t)e->c->n_homes * sizeof *e->is_summed);
    e->loss_is_touched = false;
}

static void begin_step(struct tr_exec *e, const float *values)
{
    forget_touches(e);
    if (e->mesh)
        (void)tr_mesh_waited_us(e->mesh, NULL); /* by what was before this step */
    if (values)
        e->dev->ops->upload(e->dev, e->base[TR_A_WORK] + e->c->step, values, TR_STEP_COUNT * sizeof *values);
}

/* Micro-batch i as the device sees it: in place, or its copy in the work arena. */
static struct tr_batch batch_on_device(const struct tr_exec *e, const struct tr_batch *host, int64_t n, int i)
{
    return e->dev->ops->is_host ? *host
                                : tr_batch_in(e->base[TR_A_WORK] + e->c->batch + (size_t)i * e->c->opt.batch_bytes, n);
}

/* 0 when one goes over the end of a row of tokens. */
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

/* Copies batches to a device that does not see host memory. They must stay as they are until the step is done. */
static void send_batches(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *micro, int n)
{
    int at = e->dev->ops->is_host ? -1 : tr_trace_copy(e->trace, "batches", (size_t)n * e->c->opt.batch_bytes);
    for (int i = 0; !e->dev->ops->is_host && i < n; i++) {
        struct tr_batch to = batch_on_device(e, &micro[i], m->n_tokens, i);
        for (int slot = 0; slot < TR_B_COUNT; slot++)
            e->dev->ops->send(e->dev, batch_ptr(&to, slot), batch_ptr(&micro[i], slot),
                              (size_t)m->n_tokens * (slot == TR_B_SAMPLE ? sizeof(int64_t) : sizeof(int32_t)));
        e->n_documents[i] = count_documents(&micro[i], m->n_tokens, m->sequence_length);
    }
    tr_trace_end(e->trace, at);
}

/* Everything but clip and update: what train, eval and generate share. */
static enum tr_status run_action(struct tr_exec *e, const struct tr_model *m, const struct tr_schedule *s,
                                 const struct tr_action *a, const struct tr_batch *micro)
{
    switch (a->kind) {
    case TR_DO_GATHER:
        return tr_exec_post_gather(e, a);
    case TR_DO_REDUCE:
        return tr_exec_post_reduce(e, a);
    case TR_DO_REDUCE_TP:
        return tr_exec_post_reduce_tp(e, a);
    case TR_DO_SEND:
    case TR_DO_RECV:
    case TR_DO_WAIT:
        return tr_exec_message(e, a);
    case TR_DO_TIE:
        return tr_exec_tie(e, a);
    case TR_DO_FOLD:
        tr_exec_fold(e, a);
        return TR_OK;
    default:
        break;
    }
    struct tr_batch batch = batch_on_device(e, &micro[a->micro], m->n_tokens, a->micro);
    struct frame f = { .e = e, .m = m, .p = s->program[s->program_of[a->segment]], .a = a, .batch = &batch };
    enum tr_status st = TR_OK;
    f.local = e->c->opt.layout.size[TR_AXIS_CP] > 1 ? tr_exec_local(e, m, &micro[a->micro]) : batch;
    for (int i = 0; i < a->n_homes && st == TR_OK; i++)
        st = tr_exec_settle(e, a->home[i]);
    return st == TR_OK ? run_nodes(&f) : st;
}

static double read_loss(struct tr_exec *e)
{
    double loss = 0;
    if (e->loss_is_touched) /* else another stage has it */
        e->dev->ops->download(e->dev, &loss, e->base[TR_A_WORK] + e->c->loss, sizeof loss);
    return loss;
}

static enum tr_status settle_all(struct tr_exec *e)
{
    enum tr_status st = TR_OK;
    for (int h = 0; h < e->c->n_homes && st == TR_OK; h++)
        st = tr_exec_settle(e, h);
    return st;
}

/* The actions in front of the clip: forward, backward, and the sums over ranks. */
static enum tr_status run_gradients(struct tr_exec *e, const struct tr_batch *micro)
{
    const struct tr_schedule *s = &e->c->train;
    enum tr_status st = TR_OK;
    forget_touches(e);
    for (int i = 0; i < s->n_actions && s->action[i].kind != TR_DO_CLIP; i++) {
        TR_TRY(tr_exec_pass(e, &s->action[i]));
        int at = tr_trace_action(e->trace, &s->action[i]);
        TR_TRY(run_action(e, e->c->model, s, &s->action[i], micro));
        tr_trace_end(e->trace, at);
        tr_exec_poison(e, &s->action[i]);
        if (e->on_action)
            e->on_action(e->on_action_ctx, &s->action[i]);
    }
out:
    return st;
}

static enum tr_status make_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT])
{
    enum tr_status st = TR_OK;
    begin_step(e, values);
    send_batches(e, e->c->model, micro, e->c->opt.n_micro);
    if (tr_exec_replay(e, TR_HALF_GRADIENTS)) {
        e->loss_is_touched = true;
        return TR_OK;
    }
    bool is_recording = tr_exec_record(e, TR_HALF_GRADIENTS);
    TR_TRY(run_gradients(e, micro));
    if (is_recording && !tr_exec_recorded(e, TR_HALF_GRADIENTS))
        TR_TRY(run_gradients(e, micro));
    TR_TRY(settle_all(e));
out:
    return st;
}

enum tr_status tr_exec_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT],
                                 double *loss_sum)
{
    enum tr_status st = TR_OK;
    TR_TRY(make_gradients(e, micro, values));
    TR_TRY(tr_exec_read_losses(e, loss_sum));
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}

enum tr_status tr_exec_measure(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                               const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    TR_TRY(make_gradients(e, micro, values));
    TR_TRY(tr_exec_pass(e, &(struct tr_action){ .kind = TR_DO_CLIP }));
    run_norm(e);
    TR_TRY(tr_exec_read_losses(e, &out->loss_sum));
    TR_TRY(run_clip(e, cfg->max_grad_norm, &out->grad_norm));
out:
    return st;
}

/* The actions behind the clip. */
static enum tr_status run_updates(struct tr_exec *e, const struct tr_config *cfg)
{
    const struct tr_schedule *s = &e->c->train;
    enum tr_status st = TR_OK;
    int i = 0;
    while (s->action[i].kind != TR_DO_CLIP)
        i++;
    for (i++; i < s->n_actions; i++) {
        TR_TRY(tr_exec_pass(e, &s->action[i]));
        int at = tr_trace_action(e->trace, &s->action[i]);
        if (s->action[i].kind == TR_DO_UPDATE)
            run_update(e, cfg->optim, s->action[i].segment);
        else
            TR_TRY(run_action(e, e->c->model, s, &s->action[i], NULL));
        tr_trace_end(e->trace, at);
    }
out:
    return st;
}

enum tr_status tr_exec_update(struct tr_exec *e, const struct tr_config *cfg, struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    if (!tr_exec_replay(e, TR_HALF_UPDATE)) {
        bool is_recording = tr_exec_record(e, TR_HALF_UPDATE);
        TR_TRY(run_updates(e, cfg));
        if (is_recording && !tr_exec_recorded(e, TR_HALF_UPDATE))
            TR_TRY(run_updates(e, cfg));
    }
    TR_TRY(settle_all(e));
    TR_TRY(e->dev->ops->sync(e->dev));
    out->exposed_s = out->wait_s = 0;
    if (e->mesh) {
        int64_t stages_us = 0;
        out->exposed_s = (double)tr_mesh_waited_us(e->mesh, &stages_us) * 1e-6;
        out->wait_s = (double)stages_us * 1e-6;
    }
out:
    return st;
}

enum tr_status tr_exec_step(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                            const float values[TR_STEP_COUNT], struct tr_step_result *out)
{
    enum tr_status st = TR_OK;
    TR_TRY(tr_exec_measure(e, cfg, micro, values, out));
    if (!isfinite(out->loss_sum) || !isfinite(out->grad_norm))
        TR_TRY(tr_fail(TR_NUMBERS, "loss %g and gradient norm %g are not finite; no parameter was changed",
                       out->loss_sum, out->grad_norm));
    TR_TRY(tr_exec_update(e, cfg, out));
out:
    return st;
}

enum tr_status tr_exec_eval(struct tr_exec *e, const struct tr_batch *batch, double *loss_sum)
{
    const struct tr_schedule *s = &e->c->eval;
    enum tr_status st = TR_OK;
    begin_step(e, NULL);
    send_batches(e, e->c->eval_model, batch, 1);
    for (int i = 0; i < s->n_actions; i++) {
        tr_phase_enter(TR_PHASE_EVAL, tr_exec_place(e->c->eval_model, s->action[i].segment), 0);
        TR_TRY(run_action(e, e->c->eval_model, s, &s->action[i], batch));
    }
    *loss_sum = read_loss(e);
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}

enum tr_status tr_exec_logits(struct tr_exec *e, bool is_decode, int64_t first_position, const struct tr_batch *batch,
                              const float **logits)
{
    const struct tr_schedule *s = is_decode ? &e->c->decode : &e->c->eval;
    enum tr_status st = TR_OK;
    TR_BUG_ON(s->n_actions == 0);
    const struct tr_model *m = is_decode ? e->c->decode_model : e->c->eval_model;
    e->cache_row = first_position;
    send_batches(e, m, batch, 1);
    for (int i = 0; i < s->n_actions; i++)
        TR_TRY(run_action(e, m, s, &s->action[i], batch));
    char *at = e->base[TR_A_ACTS] + s->action[s->n_actions - 1].out;
    if (!e->dev->ops->is_host) {
        char *copy = e->base[TR_A_SAVE] + e->c->logits;
        e->dev->ops->download(e->dev, copy, at, (size_t)(m->n_tokens * m->hp.vocab) * sizeof(float));
        at = copy;
    }
    *logits = (const float *)(const void *)at;
    TR_TRY(e->dev->ops->sync(e->dev));
out:
    return st;
}
