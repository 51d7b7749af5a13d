/* recompute.c - pass: forward values that the backward needs are not saved but recomputed.
 *
 * none: every value that the backward reads is saved. op: values of cheap ops (norms, activations) are recomputed from
 * values that are saved anyway. block: only the input of the segment is saved. When the backward reads a value that is
 * not saved, its forward node is copied in front of the reader, and so on for the inputs of that node. Kernels give the
 * same bits twice, so recompute never changes a result.
 */
#include "parallel/parallel_impl.h"
#include <stdlib.h>

struct remake {
    const struct tr_program *from; /* forward nodes and old values */
    struct tr_program *to;
    enum tr_recompute mode;
    tr_val *copy; /* of each root value: its recomputed copy, or TR_NONE */
    int *maker;   /* of each root value: forward node that makes it, or -1 */
};

static bool is_dropped(const struct remake *r, tr_val root)
{
    if (r->maker[root] < 0)
        return false;
    const struct tr_node *n = &r->from->node[r->maker[root]];
    if (r->mode == TR_RECOMPUTE_BLOCK)
        return true;
    return tr_op_row(n->op)->is_cheap && n->out[0] == root; /* statistics are small, so they are saved */
}

static tr_val recomputed(struct remake *r, tr_val v);

static void remake_node(struct remake *r, int i)
{
    struct tr_node n = r->from->node[i];
    for (int k = 0; k < TR_MAX_IN; k++)
        n.in[k] = recomputed(r, n.in[k]);
    for (int k = 0; k < TR_MAX_OUT; k++) {
        if (n.out[k] == TR_NONE || r->from->value[n.out[k]].kind != TR_V_TEMP)
            continue;
        char name[TR_NAME_MAX];
        (void)tr_format(name, sizeof name, "re_%.80s", r->from->value[n.out[k]].name);
        tr_val c = tr_value_like(r->to, n.out[k], name);
        if (is_dropped(r, n.out[k]))
            r->copy[n.out[k]] = c;
        n.out[k] = c;
    }
    struct tr_node *at = tr_node_add(r->to, n.op, TR_BACKWARD_INPUT);
    memcpy(at->in, n.in, sizeof at->in);
    memcpy(at->out, n.out, sizeof at->out);
    at->attr = n.attr;
}

/* The value to read instead of v in the backward. */
static tr_val recomputed(struct remake *r, tr_val v)
{
    if (v == TR_NONE || v >= r->from->n_values)
        return v;
    tr_val root = tr_value_root(r->from, v);
    if (!is_dropped(r, root))
        return v;
    if (r->copy[root] == TR_NONE)
        remake_node(r, r->maker[root]);
    if (root == v)
        return r->copy[root];
    struct tr_value x = r->from->value[v];
    return tr_value_view(r->to, r->copy[root], x.col, x.cols, x.name);
}

static enum tr_status rewrite(struct remake *r)
{
    for (int i = 0; i < r->from->n_nodes; i++) {
        struct tr_node n = r->from->node[i];
        if (n.phase != TR_FORWARD)
            for (int k = 0; k < TR_MAX_IN; k++)
                n.in[k] = recomputed(r, n.in[k]);
        struct tr_node *at = tr_node_add(r->to, n.op, n.phase);
        *at = n;
    }
    return r->to->failed;
}

enum tr_status tr_pass_recompute(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    if (!ctx->is_training || ctx->recompute == TR_RECOMPUTE_NONE)
        return TR_OK;
    struct tr_program *from = NULL;
    struct remake r = { .to = p, .mode = ctx->recompute };
    enum tr_status st = TR_OK;
    TR_TRY(tr_program_copy(p, &from));
    r.from = from;
    TR_TRY(TR_ALLOC(r.copy, (size_t)p->n_values, "program %s", p->name));
    TR_TRY(TR_ALLOC(r.maker, (size_t)p->n_values, "program %s", p->name));
    for (int i = 0; i < p->n_values; i++) {
        r.copy[i] = TR_NONE;
        r.maker[i] = -1;
    }
    for (int i = 0; i < p->n_nodes; i++)
        for (int k = 0; p->node[i].phase == TR_FORWARD && k < TR_MAX_OUT; k++)
            if (p->node[i].out[k] != TR_NONE)
                r.maker[p->node[i].out[k]] = i;
    p->n_nodes = 0;
    st = rewrite(&r);
out:
    tr_program_close(from);
    free(r.copy);
    free(r.maker);
    return st;
}
