/* cache.c - pass: for generation, attention reads keys and values of all positions so far from a cache. New rows are
 * put there first. Linears may take a kernel for a single row; the rest of the program does not change. */
#include "parallel/parallel_impl.h"

static tr_val cache_value(struct tr_program *p, enum tr_value_kind kind, tr_val like, int64_t rows, int slot)
{
    struct tr_value x = p->value[like];
    tr_val v = tr_value_add(p, kind, x.dtype, rows, x.cols, kind == TR_V_CACHE ? "cache" : "cache_new");
    p->value[v].slot = slot;
    return v;
}

enum tr_status tr_pass_cache(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    if (ctx->cache_rows == 0)
        return TR_OK;
    struct tr_program *from = NULL;
    TR_PASS(tr_program_copy(p, &from));
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        struct tr_node n = from->node[i];
        tr_val cache[2];
        for (int k = 0; n.op == TR_OP_ATTENTION && k < 2; k++) {
            tr_val now = cache_value(p, TR_V_CACHE_NEW, n.in[1 + k], p->value[n.in[1 + k]].rows, k);
            cache[k] = cache_value(p, TR_V_CACHE, n.in[1 + k], ctx->cache_rows, k);
            tr_node_put(p, TR_OP_CAST, TR_FORWARD, TR_VALS(n.in[1 + k]), TR_VALS(now), NULL);
        }
        /* a block without rope has no positions value yet */
        tr_val position = n.op == TR_OP_ATTENTION ? tr_value_batch(p, TR_B_POSITIONS, p->value[n.in[0]].rows) : TR_NONE;
        struct tr_node *to = tr_node_add(p, n.op, n.phase);
        *to = n;
        to->attr.is_decoded = n.op == TR_OP_LINEAR;
        if (n.op == TR_OP_ATTENTION) {
            to->op = TR_OP_ATTENTION_CACHED;
            to->in[1] = cache[0];
            to->in[2] = cache[1];
            to->in[3] = position;
            to->out[1] = TR_NONE;
        }
    }
    tr_program_close(from);
    return p->failed;
}
