/* row_attention.c - rows of attention in its forms, and of rotary positions. */
#include "ops/ops.h"

/* How many pairs (row, row that it sees) n_rows rows have in full documents of seq_len rows. */
static double visible_pairs(const struct tr_attr *a, int64_t n_rows)
{
    double len = (double)(a->seq_len > 0 ? a->seq_len : n_rows);
    double window = a->window > 0 && a->window < len ? a->window : len;
    double per_document = window * (window + 1) / 2 + (len - window) * window;
    return len > 0 ? per_document * (double)n_rows / len : 0;
}

static double pair_flops(const struct tr_call *c, double n_products)
{
    double heads = 2.0 * (double)c->attr.n_heads_q * (double)c->attr.head_dim;
    return n_products * heads * visible_pairs(&c->attr, c->in[0].rows);
}

static double forward_flops(const struct tr_call *c) /* q.k and p.v */
{
    return pair_flops(c, 2.0);
}

static double backward_flops(const struct tr_call *c) /* dv, do.v, dq, dk */
{
    return pair_flops(c, 4.0);
}

/* Slots that the forms of attention share. `n` counts the rows of begin, sample and position: N of this rank, or M of
 * all context ranks. */
/* clang-format off */
#define QKV     { "q", "(N, Hd)" }, { "k", "(N, Kd)" }, { "v", "(N, Kd)" }
#define RESULTS { "o", "(N, Hd)" }, { "lse", "(N, H) F32" }
#define GRADS   { "dq", "(N, Hd)" }, { "dk", "(N, Kd)" }, { "dv", "(N, Kd)" }
#define TOKENS(n)                                                                                                      \
    { "begin", "(" n ", 1) I32" }, { "sample", "(" n ", 1) I64", .is_optional = true },                                \
    { "position", "(" n ", 1) I32", .is_optional = true }, { "step", "(1, S) F32", .is_optional = true }
/* clang-format on */

/* Row p of table: cos[r/2], sin[r/2] of position p; r <= head_dim columns rotate as pairs (i, i + r/2) of each head, or
 * (2i, 2i + 1) where they are interleaved; the other columns are copied. attr: head_dim, is_interleaved, inverse
 * (rotate back) */
const struct tr_op_row tr_row_rope = {
    .name = "rope",
    .in = { { "x", "(N, D)" }, { "position", "(N, 1) I32" }, { "table", "(P, r) F32" } },
    .out = { { "y", "(N, D)" } },
    .price = TR_PRICE_ROPE,
};

/* x has a group of heads for each key head: its query heads, the key head, the value head. y = all query heads | all
 * key heads | all value heads. attr: n_heads_q and n_heads_kv (only their ratio counts, so a part of the groups needs
 * no other attr), head_dim, inverse (from y back to x) */
const struct tr_op_row tr_row_regroup = {
    .name = "regroup",
    .in = { { "x", "(N, D)" } },
    .out = { { "y", "(N, D)" } },
};

/* Row i sees rows max(begin[i], i - window + 1) .. i. s = softcap(scale * q.k), o = sum_j dropout(softmax(s))_j v_j,
 * lse = log sum exp s (before dropout). Query head h reads key head h / (H / K). sample, position and step are present
 * only with dropout.
 * Ring attention calls it on blocks: q (and o, lse) are rows from row_q on of the N rows that begin, sample and
 * position describe, k and v are rows from row_k on. A row that sees no key of the block has o = 0, lse = -inf;
 * accumulate merges o and lse with those of other blocks of keys.
 * attr: n_heads_q, n_heads_kv, head_dim, scale, window, softcap, dropout_p, key, first, row_q, row_k */
const struct tr_op_row tr_row_attention = {
    .name = "attention",
    .in = { QKV, TOKENS("N") },
    .out = { RESULTS },
    .flops = forward_flops,
    .price = TR_PRICE_ATTENTION,
};

/* Works on blocks as attention does; accumulate adds to dq, dk and dv. attr: as attention, any_order */
const struct tr_op_row tr_row_attention_bwd = {
    .name = "attention_bwd",
    .in = { { "do", "(N, Hd)" }, QKV, RESULTS, TOKENS("N") },
    .out = { GRADS },
    .flops = backward_flops,
    .price = TR_PRICE_ATTENTION_BWD,
};

/* A cache holds C / s rows for each of s = N / seq_len sequences, one behind the other (seq_len 0: of one sequence).
 * Row i of x becomes row `row[i]` of its sequence; -1: of none, it is padding. The other rows of the cache stay. attr:
 * seq_len */
const struct tr_op_row tr_row_cache_put = {
    .name = "cache_put",
    .in = { { "x", "(N, D)" }, { "row", "(N, 1) I32" } },
    .out = { { "cache", "(C, D)" } },
};

/* Decoding from such a cache: row i sees rows max(0, p - window + 1) .. p of its sequence in k and v, p = position[i].
 * attr: as attention, seq_len */
const struct tr_op_row tr_row_attention_cached = {
    .name = "attention_cached",
    .in = { { "q", "(N, Hd)" }, { "k", "(C, Kd)" }, { "v", "(C, Kd)" }, { "position", "(N, 1) I32" } },
    .out = { { "o", "(N, Hd)" } },
};

/* Attention of this rank's N tokens; begin, sample and position describe all M tokens. Keys and values travel around
 * the ring of ranks. A row is split into 2 * ranks pieces; rank r holds pieces r and 2 * ranks - 1 - r, so that each
 * rank has the same work. */
const struct tr_op_row tr_row_ring_attention = {
    .name = "ring_attention",
    .in = { QKV, TOKENS("M") },
    .out = { RESULTS },
    .flops = forward_flops,
    .price = TR_PRICE_RING,
    .is_collective = true,
};

const struct tr_op_row tr_row_ring_attention_bwd = {
    .name = "ring_attention_bwd",
    .in = { { "do", "(N, Hd)" }, QKV, RESULTS, TOKENS("M") },
    .out = { GRADS },
    .flops = backward_flops,
    .price = TR_PRICE_RING_BWD,
    .is_collective = true,
};
