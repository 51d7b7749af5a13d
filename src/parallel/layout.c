/* layout.c - pass: lifetimes inside a segment -> offsets.
 *
 * A value that the forward makes and the backward reads goes into the saved slab (one slab per micro-batch in flight).
 * Every other value lives in the work arena, which all actions share because one stream runs one action at a time.
 * Where an op may overwrite an input that no later op reads, its output takes the place of the input. The scratch of a
 * kernel is one more value that lives for one node: the largest scratch (attention's backward, logits) is needed where
 * few values live, so it seldom adds to the arena.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

size_t tr_sim_alloc(struct tr_sim *s, size_t bytes)
{
    size_t at = 0;
    int i = 0;
    bytes = tr_round_up(bytes ? bytes : 1, TR_ALIGN);
    for (; i < s->n_live && s->live[i].offset - at < bytes; i++)
        at = s->live[i].offset + s->live[i].bytes;
    if (s->n_live == s->n_cap) {
        int cap = s->n_cap ? 2 * s->n_cap : 64;
        struct tr_sim_block *mem = realloc(s->live, (size_t)cap * sizeof *mem);
        if (!mem) {
            s->failed = tr_fail(TR_NOMEM, "memory planning: out of memory");
            return 0;
        }
        s->live = mem;
        s->n_cap = cap;
    }
    memmove(&s->live[i + 1], &s->live[i], (size_t)(s->n_live - i) * sizeof *s->live);
    s->live[i] = (struct tr_sim_block){ at, bytes };
    s->n_live++;
    if (at + bytes > s->peak)
        s->peak = at + bytes;
    return at;
}

void tr_sim_free(struct tr_sim *s, size_t offset)
{
    for (int i = 0; i < s->n_live; i++)
        if (s->live[i].offset == offset) {
            memmove(&s->live[i], &s->live[i + 1], (size_t)(s->n_live - i - 1) * sizeof *s->live);
            s->n_live--;
            return;
        }
    TR_BUG_ON(s->failed == TR_OK);
}

void tr_sim_release(struct tr_sim *s)
{
    free(s->live);
    *s = (struct tr_sim){ 0 };
}

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

/* Places the scratch of a node for the time in which its inputs and outputs have their places. */
static void place_scratch(const struct tr_program *p, const struct tr_pass_ctx *ctx, struct tr_node *n,
                          struct tr_sim *sim)
{
    struct tr_call c;
    tr_node_call(p, n, &c);
    size_t bytes = ctx->column->scratch(&c, ctx->n_threads);
    n->scratch = 0;
    if (bytes == 0)
        return;
    n->scratch = tr_sim_alloc(sim, bytes);
    if (sim->failed == TR_OK)
        tr_sim_free(sim, n->scratch);
}

static void place_work(struct tr_program *p, struct span *span, enum part part, const struct tr_pass_ctx *ctx,
                       struct tr_sim *sim)
{
    for (int i = 0; i < p->n_nodes; i++) {
        struct tr_node *n = &p->node[i];
        if (part_of(n, ctx->splits_backward) != part)
            continue;
        for (int k = 0; k < TR_MAX_OUT; k++) {
            tr_val v = tr_value_root(p, n->out[k]);
            if (v == TR_NONE || !is_passing(p, v) || span[v].first != i || span[v].is_owner)
                continue;
            if (takes_place(p, span, n, i, v)) {
                tr_val in = n->in[alias_slot(n->op)];
                p->value[v].offset = p->value[in].offset;
                span[in].is_owner = false;
            } else {
                p->value[v].offset = tr_sim_alloc(sim, tr_value_bytes(p, v));
            }
            span[v].is_owner = true;
        }
        place_scratch(p, ctx, n, sim);
        for (int v = 0; v < p->n_values; v++)
            if (span[v].is_owner && span[v].last == i) {
                tr_sim_free(sim, p->value[v].offset);
                span[v].is_owner = false;
            }
    }
    TR_BUG_ON(sim->n_live != 0 && sim->failed == TR_OK);
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
    struct tr_sim sim = { 0 };
    if (st == TR_OK && !span)
        st = tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    if (st != TR_OK)
        goto out;
    for (int i = 0; i < p->n_values; i++)
        span[i] = (struct span){ .first = -1, .last = -1 };
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
    for (int part = FORWARD; part < N_PARTS; part++)
        place_work(p, span, (enum part)part, ctx, &sim);
    p->work_bytes = sim.peak;
    st = sim.failed == TR_OK ? check_calls(p, ctx) : sim.failed;
out:
    tr_sim_release(&sim);
    free(span);
    return st;
}
