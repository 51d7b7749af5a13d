/* cache.c - pass: for generation, attention reads keys and values of all positions so far from a cache. New rows are
 * put there first. Linears may take a kernel for a single row; the rest of the program does not change. */
#include "parallel/parallel_impl.h"

/* Keys (0) or values (1) of as many sequences as the program has rows of tokens. */
static tr_val cache_value(struct tr_program *p, const struct tr_node *n, int64_t cache_rows, int slot)
{
    struct tr_value x = p->value[n->in[1 + slot]];
    int64_t n_sequences = x.rows / n->attr.seq_len;
    tr_val v = tr_value_add(p, TR_V_CACHE, x.dtype, n_sequences * cache_rows, x.cols, "cache");
    p->value[v].slot = slot;
    return v;
}

/* The batch says of every token where it goes: its place in the cache is `begin` (base/batch.h). */
static void read_cache(struct tr_program *p, struct tr_node n, int64_t cache_rows)
{
    int64_t rows = p->value[n.in[0]].rows;
    tr_val row = tr_value_batch(p, TR_B_BEGIN, rows);
    /* a block without rope has no positions value yet */
    tr_val position = tr_value_batch(p, TR_B_POSITIONS, rows);
    for (int k = 0; k < 2; k++) {
        tr_val cache = cache_value(p, &n, cache_rows, k);
        tr_node_put(p, TR_OP_CACHE_PUT, TR_FORWARD, TR_VALS(n.in[1 + k], row), TR_VALS(cache),
                    &(struct tr_attr){ .seq_len = n.attr.seq_len });
        n.in[1 + k] = cache;
    }
    n.op = TR_OP_ATTENTION_CACHED;
    n.in[3] = position;
    n.out[1] = TR_NONE;
    *tr_node_add(p, n.op, n.phase) = n;
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
        if (n.op == TR_OP_ATTENTION) {
            read_cache(p, n, ctx->cache_rows);
            continue;
        }
        n.attr.is_decoded = n.op == TR_OP_LINEAR;
        *tr_node_add(p, n.op, n.phase) = n;
    }
    tr_program_close(from);
    return p->failed;
}
