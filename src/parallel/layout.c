/* layout.c - pass: lifetimes inside a segment -> offsets.
 *
 * A value that the forward makes and the backward reads goes into the saved slab (one slab per micro-batch in flight).
 * Every other value lives in the work arena, which all actions share because one stream runs one action at a time.
 * Where an op may overwrite an input that no later op reads, its output takes the place of the input. The scratch of a
 * kernel is one more value that lives for one node: the largest scratch (attention's backward, logits) is needed where
 * few values live, so it seldom adds to the arena. All of them are placed at once, the largest first, each at the
 * lowest offset that is free while it lives. Rejected: places in the order of the program, which left holes of a fifth
 * of the arena between small values that live long.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

size_t tr_value_bytes(const struct tr_program *p, tr_val v)
{
    const struct tr_value *x = &p->value[v];
    return (size_t)(x->rows * x->cols) * tr_dtype_bytes(x->dtype);
}

/* The input that the first output of an op may overwrite, or -1. */
static int alias_slot(enum tr_opcode op)
{
    const struct tr_slot *in = tr_op_row(op)->in;
    for (int k = 0; k < TR_MAX_IN; k++)
        if (in[k].may_alias)
            return k;
    return -1;
}

/* Parts of a program that run at different times. */
enum part { FORWARD, BACKWARD, LATER, N_PARTS };

static enum part part_of(const struct tr_node *n, bool splits_backward)
{
    return n->phase == TR_FORWARD ? FORWARD : n->phase == TR_BACKWARD_WEIGHT && splits_backward ? LATER : BACKWARD;
}

struct span {
    int first, last; /* nodes */
    bool in[N_PARTS];
    bool is_owner; /* owns its place until `last`; false after another value took the place */
    int block;     /* of the work arena */
};

/* A range of the work arena and the nodes between which it is in use: values that take each other's place, or the
 * scratch of one node. */
struct work_block {
    int first, last;
    size_t bytes, offset;
};
struct work_blocks {
    struct work_block *all, **placed; /* placed: by offset */
    int n;
};

/* Boundary values (segment input, output and their gradients) belong to the schedule. */
static bool is_local(const struct tr_program *p, tr_val root)
{
    return p->value[root].kind == TR_V_TEMP && root != p->out && root != p->din;
}

static void touch(const struct tr_program *p, struct span *span, tr_val v, int node, enum part part)
{
    if (v == TR_NONE)
        return;
    struct span *s = &span[tr_value_root(p, v)];
    if (s->first < 0)
        s->first = node;
    s->last = node;
    s->in[part] = true;
}

/* Does the value live in the work arena, for the time of one action? */
static bool is_passing(const struct tr_program *p, tr_val root)
{
    return is_local(p, root) && !p->value[root].is_saved && !p->value[root].is_split_saved;
}

static bool takes_place(const struct tr_program *p, const struct span *span, const struct tr_node *n, int node,
                        tr_val out)
{
    int k = alias_slot(n->op);
    if (k < 0 || out != n->out[0] || n->in[k] == TR_NONE)
        return false;
    tr_val in = n->in[k];
    const struct tr_value *a = &p->value[in], *b = &p->value[out];
    if (a->base != TR_NONE || b->base != TR_NONE || !is_passing(p, in) || !is_passing(p, out))
        return false;
    for (int j = 0; j < TR_MAX_IN; j++)
        if (j != k && n->in[j] != TR_NONE && tr_value_root(p, n->in[j]) == in)
            return false;
    return span[in].last == node && span[in].is_owner && a->rows == b->rows && a->cols == b->cols &&
           a->dtype == b->dtype;
}

static int add_block(struct work_blocks *b, int first, int last, size_t bytes)
{
    b->all[b->n] = (struct work_block){ first, last, tr_round_up(bytes ? bytes : 1, TR_ALIGN), 0 };
    return b->n++;
}

/* Finds the blocks of the work arena: one for each value, or for each chain of values that take each other's place, and
 * one for the scratch of each node. A passing value is first met as an output. */
static void find_blocks(const struct tr_program *p, const struct tr_pass_ctx *ctx, struct span *span, int *scratch,
                        struct work_blocks *b)
{
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_node *n = &p->node[i];
        struct tr_call c;
        for (int k = 0; k < TR_MAX_OUT; k++) {
            tr_val v = tr_value_root(p, n->out[k]);
            if (v == TR_NONE || !is_passing(p, v) || span[v].first != i || span[v].is_owner)
                continue;
            if (takes_place(p, span, n, i, v)) {
                tr_val in = n->in[alias_slot(n->op)];
                span[v].block = span[in].block;
                b->all[span[v].block].last = span[v].last;
                span[in].is_owner = false;
            } else {
                span[v].block = add_block(b, i, span[v].last, tr_value_bytes(p, v));
            }
            span[v].is_owner = true;
        }
        tr_node_call(p, n, &c);
        size_t bytes = ctx->column->scratch(&c, ctx->n_threads);
        scratch[i] = bytes ? add_block(b, i, i, bytes) : -1;
    }
}

/* The largest first; equal ones in the order of the program. */
static int by_size(const void *a, const void *b)
{
    const struct work_block *x = *(struct work_block *const *)a, *y = *(struct work_block *const *)b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : (x > y) - (x < y);
}

/* Gives every block its offset; returns the bytes of all. */
static size_t place_blocks(struct work_blocks *b, struct work_block **todo)
{
    size_t peak = 0;
    for (int i = 0; i < b->n; i++)
        todo[i] = &b->all[i];
    qsort(todo, (size_t)b->n, sizeof(struct work_block *), by_size);
    for (int i = 0; i < b->n; i++) {
        struct work_block *x = todo[i];
        size_t at = 0;
        int k = 0;
        for (int j = 0; j < i; j++) {
            const struct work_block *y = b->placed[j];
            if (y->last < x->first || x->last < y->first)
                continue;
            if (y->offset >= at + x->bytes)
                break;
            at = y->offset + y->bytes > at ? y->offset + y->bytes : at;
        }
        x->offset = at;
        while (k < i && b->placed[k]->offset < at)
            k++;
        memmove(&b->placed[k + 1], &b->placed[k], (size_t)(i - k) * sizeof(struct work_block *));
        b->placed[k] = x;
        peak = at + x->bytes > peak ? at + x->bytes : peak;
    }
    return peak;
}

/* Places all values of one action, and the scratch of its kernels, in the work arena. */
static enum tr_status place_work(struct tr_program *p, struct span *span, const struct tr_pass_ctx *ctx)
{
    size_t n = (size_t)(p->n_values + p->n_nodes) + 1;
    struct work_blocks b = { .all = calloc(n, sizeof *b.all), .placed = calloc(2 * n, sizeof(struct work_block *)) };
    int *scratch = calloc((size_t)p->n_nodes + 1, sizeof *scratch);
    enum tr_status st = b.all && b.placed && scratch ? TR_OK : tr_fail(TR_NOMEM, "memory planning: out of memory");
    if (st == TR_OK) {
        find_blocks(p, ctx, span, scratch, &b);
        p->work_bytes = place_blocks(&b, b.placed + n);
    }
    for (int v = 0; st == TR_OK && v < p->n_values; v++)
        if (span[v].block >= 0)
            p->value[v].offset = b.all[span[v].block].offset;
    for (int i = 0; st == TR_OK && i < p->n_nodes; i++)
        p->node[i].scratch = scratch[i] >= 0 ? b.all[scratch[i]].offset : 0;
    free(b.all);
    free(b.placed);
    free(scratch);
    return st;
}

/* Moves weight parts behind all input parts. This is legal because a weight part makes only gradients of parameters,
 * which no input part reads. */
static enum tr_status move_weights(struct tr_program *p)
{
    struct tr_node *later = malloc((size_t)p->n_nodes * sizeof *later);
    int n = 0, n_later = 0;
    if (!later)
        return tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    for (int i = 0; i < p->n_nodes; i++)
        if (p->node[i].phase == TR_BACKWARD_WEIGHT)
            later[n_later++] = p->node[i];
        else
            p->node[n++] = p->node[i];
    memcpy(p->node + n, later, (size_t)n_later * sizeof *later);
    free(later);
    return TR_OK;
}

/* Appends a value that lives from one part to a later one to a slab, and returns its offset. */
static size_t slab_offset(const struct tr_program *p, tr_val v, size_t *slab)
{
    size_t at = *slab;
    *slab += tr_round_up(tr_value_bytes(p, v), TR_ALIGN);
    return at;
}

/* Refuses a plan with a call that the kernels of the device refuse. */
static enum tr_status check_calls(const struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    for (int i = 0; i < p->n_nodes; i++) {
        struct tr_call c;
        tr_node_call(p, &p->node[i], &c);
        const char *why = ctx->column->refuses(&c);
        if (why)
            return tr_fail(TR_USAGE, "program %s: op %s on device %s %s", p->name, tr_op_row(c.op)->name,
                           ctx->column->device, why);
    }
    return TR_OK;
}

enum tr_status tr_pass_layout(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    bool splits = ctx->splits_backward;
    enum tr_status st = splits ? move_weights(p) : TR_OK;
    struct span *span = malloc((size_t)p->n_values * sizeof *span);
    if (st == TR_OK && !span)
        st = tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    if (st != TR_OK)
        goto out;
    for (int i = 0; i < p->n_values; i++)
        span[i] = (struct span){ .first = -1, .last = -1, .block = -1 };
    for (int i = 0; i < p->n_nodes; i++) {
        for (int k = 0; k < TR_MAX_IN; k++)
            touch(p, span, p->node[i].in[k], i, part_of(&p->node[i], splits));
        for (int k = 0; k < TR_MAX_OUT; k++)
            touch(p, span, p->node[i].out[k], i, part_of(&p->node[i], splits));
    }
    p->saved_bytes = p->split_saved_bytes = 0;
    for (int v = 0; v < p->n_values; v++) {
        const bool *in = span[v].in;
        if (p->value[v].base != TR_NONE || !is_local(p, v))
            continue;
        p->value[v].is_saved = in[FORWARD] && (in[BACKWARD] || in[LATER]);
        p->value[v].is_split_saved = !in[FORWARD] && in[BACKWARD] && in[LATER];
        if (p->value[v].is_saved || p->value[v].is_split_saved)
            p->value[v].offset = slab_offset(p, v, p->value[v].is_saved ? &p->saved_bytes : &p->split_saved_bytes);
    }
    st = place_work(p, span, ctx);
    if (st == TR_OK)
        st = check_calls(p, ctx);
out:
    free(span);
    return st;
}
