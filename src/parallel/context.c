/* context.c - pass: the tokens of each row are split over the context axis.
 *
 * Every op but attention works token by token, so its values only lose the rows of other ranks. Attention needs the
 * keys of whole rows. Ulysses: an exchange before attention trades this rank's tokens of all heads for all tokens of
 * this rank's heads, and an exchange after it trades back. Where there are fewer key heads than ranks, several ranks
 * receive the same key head. Ring: keys and values travel from rank to rank. Each rank holds a piece from the front and
 * a piece from the back of a row, so that causal work is even. Attention reads the batch values that describe tokens
 * (begin; with dropout also sample and position) for the whole row. Rejected: gathering keys and values on every rank,
 * because each rank would hold all heads of a whole row.
 */
#include "parallel/parallel_impl.h"
#include "parallel/rules.h"

struct context {
    struct tr_program *p;
    int size, rank;
    enum tr_cp_mode mode;
};

int tr_context_runs(const struct tr_layout *l, int64_t row_tokens, int64_t first[TR_MAX_RUNS], int64_t *n)
{
    int size = l->size[TR_AXIS_CP], rank = l->coord[TR_AXIS_CP], n_runs = l->cp_mode == TR_CP_RING ? 2 : 1;
    *n = row_tokens / (size * n_runs);
    first[0] = rank * *n;
    first[1] = (2 * size - 1 - rank) * *n;
    return n_runs;
}

/* The same batch value for all tokens of the row. */
static tr_val whole_batch(struct context *c, tr_val v)
{
    if (v == TR_NONE || c->p->value[v].kind != TR_V_BATCH)
        return v;
    struct tr_value x = c->p->value[v];
    tr_val out = tr_value_fixed(c->p, TR_V_BATCH, x.dtype, x.rows * c->size, x.cols, x.name);
    c->p->value[out].slot = x.slot;
    c->p->value[out].is_whole = true;
    return out;
}

static void exchange(struct context *c, const struct tr_attr *a, int32_t n_heads, bool inverse, tr_val in, tr_val out)
{
    struct tr_attr attr = {
        .axis = TR_AXIS_CP, .n_heads_q = n_heads, .head_dim = a->head_dim, .seq_len = a->seq_len, .inverse = inverse
    };
    tr_node_put(c->p, TR_OP_ALL_TO_ALL, TR_FORWARD, TR_VALS(in), TR_VALS(out), &attr);
}

/* All tokens of this rank's share of v's heads. */
static tr_val heads_of(struct context *c, tr_val v, int32_t n_heads, int32_t head_dim)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%.80s.heads", c->p->value[v].name);
    tr_val out = tr_value_like(c->p, v, name);
    c->p->value[out].rows *= c->size;
    c->p->value[out].cols = (int64_t)n_heads * head_dim;
    return out;
}

static void ring(struct context *c, struct tr_node n)
{
    for (int k = 3; k < TR_MAX_IN; k++)
        n.in[k] = whole_batch(c, n.in[k]);
    n.op = TR_OP_RING_ATTENTION;
    n.attr.axis = TR_AXIS_CP;
    *tr_node_add(c->p, n.op, n.phase) = n;
}

static void ulysses(struct context *c, struct tr_node n)
{
    const struct tr_attr a = n.attr;
    int32_t n_q = a.n_heads_q / c->size, n_kv = a.n_heads_kv >= c->size ? a.n_heads_kv / c->size : 1;
    tr_val o = n.out[0];
    for (int k = 0; k < 3; k++) {
        tr_val all = heads_of(c, n.in[k], k ? n_kv : n_q, a.head_dim);
        exchange(c, &a, k ? a.n_heads_kv : a.n_heads_q, false, n.in[k], all);
        n.in[k] = all;
    }
    for (int k = 3; k < TR_MAX_IN; k++)
        n.in[k] = whole_batch(c, n.in[k]);
    n.out[0] = heads_of(c, o, n_q, a.head_dim);
    c->p->value[n.out[1]].rows *= c->size;
    c->p->value[n.out[1]].cols = n_q;
    n.attr.n_heads_q = n_q;
    n.attr.n_heads_kv = n_kv;
    n.attr.first += (int64_t)c->rank * n_q;
    *tr_node_add(c->p, n.op, n.phase) = n;
    exchange(c, &a, a.n_heads_q, true, n.out[0], o);
}

static void apply_attention(struct context *c, struct tr_node n)
{
    (c->mode == TR_CP_RING ? ring : ulysses)(c, n);
}

/* An op that works token by token needs no change: its values have already lost the rows of other ranks. */
static void apply_rows(struct context *c, struct tr_node n)
{
    *tr_node_add(c->p, n.op, n.phase) = n;
}

/* A rank adds up its own tokens of each document. The sums of the whole micro-batch are then added over ranks, so that
 * each rank has the log-probability of every document. */
static void apply_doc_sums(struct context *c, struct tr_node n)
{
    tr_val all = n.out[0];
    c->p->value[all].rows *= c->size;
    n.out[0] = tr_value_like(c->p, all, "sums.part");
    *tr_node_add(c->p, n.op, n.phase) = n;
    tr_node_put(c->p, TR_OP_ALL_REDUCE, n.phase, TR_VALS(n.out[0]), TR_VALS(all),
                &(struct tr_attr){ .axis = TR_AXIS_CP });
}

struct context_rule {
    void (*apply)(struct context *c, struct tr_node n);
    const char *reason; /* apply NULL: why there is none */
};
static const struct context_rule rule_rows = { apply_rows, NULL }, rule_attention = { apply_attention, NULL },
                                 rule_doc_sums = { apply_doc_sums, NULL }, rule_later = { NULL, TR_WHY_LATER },
                                 rule_update = { NULL, TR_WHY_UPDATE };

static const struct context_rule *const rules[TR_OP_COUNT] = {
#define X(id, tensor, context, grad, fp8) [TR_OP_##id] = &rule_##context,
    TR_RULE_LIST(X)
#undef X
};

enum tr_status tr_pass_context(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    struct context c = {
        .p = p, .size = ctx->layout.size[TR_AXIS_CP], .rank = ctx->layout.coord[TR_AXIS_CP], .mode = ctx->layout.cp_mode
    };
    struct tr_program *from = NULL;
    if (c.size <= 1)
        return TR_OK;
    TR_PASS(tr_program_copy(p, &from));
    for (int v = 0; v < p->n_values; v++)
        if (tr_value_has_tokens(&p->value[v])) {
            TR_BUG_ON(p->value[v].rows % c.size || p->value[v].row % c.size);
            p->value[v].rows /= c.size;
            p->value[v].row /= c.size;
        }
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct context_rule *rule = rules[from->node[i].op];
        if (!rule->apply)
            tr_no_rule("context", from, from->node[i].op, rule->reason);
        rule->apply(&c, from->node[i]);
    }
    tr_program_close(from);
    return p->failed;
}
