/* blocks.c - the vocabulary model files are written in: each function adds one op (or two) and returns its value.
 *
 * The first use of a name creates the parameter; every later use returns the same one. Shapes are checked here, so a
 * model file with shapes that do not match stops when the program is built, and not in a kernel.
 */
#include "model/model_impl.h"
#include <math.h>
#include <stdlib.h>

const struct tr_hparams *tr_build_hparams(const struct tr_build *b)
{
    return b->hp;
}

static tr_val temp(struct tr_build *b, int64_t cols, const char *name)
{
    return tr_value_add(b->p, TR_V_TEMP, TR_F32, b->n_tokens, cols, name);
}

static tr_val fixed_f32(struct tr_build *b, int64_t cols, const char *name)
{
    return tr_value_fixed(b->p, TR_V_TEMP, TR_F32, b->n_tokens, cols, name);
}

static int64_t cols_of(const struct tr_build *b, tr_val v)
{
    return b->p->value[v].cols;
}

static tr_val batch(struct tr_build *b, enum tr_batch_slot slot)
{
    return tr_value_batch(b->p, slot, b->n_tokens);
}

static tr_val step_buffer(struct tr_build *b)
{
    return tr_value_given(b->p, TR_V_STEP, 0, TR_F32, 1, TR_STEP_COUNT, "step");
}

static tr_val rope_table(struct tr_build *b, int slot)
{
    return tr_value_given(b->p, TR_V_CONST, slot, TR_F32, b->n_positions, b->hp->rope[slot].dim,
                          slot == TR_C_ROPE ? "rope" : "rope_local");
}

/* Returns the value of parameter <name><suffix>. std 0: the model's initializer_range. */
static tr_val param(struct tr_build *b, const char *name, const char *suffix, int n_dims, int64_t rows, int64_t cols,
                    enum tr_init init, double std)
{
    struct tr_program *p = b->p;
    char full[TR_NAME_MAX];
    if (tr_format(full, sizeof full, "%s%s", name, suffix) != TR_OK)
        p->failed = TR_USAGE;
    for (int i = 0; i < p->n_values; i++)
        if (p->value[i].kind == TR_V_PARAM && strcmp(p->value[i].name, full) == 0) {
            TR_BUG_ON(p->value[i].rows != rows || p->value[i].cols != cols);
            return i;
        }
    struct tr_local_param l = { .is_global = b->kind < 0,
                                .n_dims = n_dims,
                                .rows = rows,
                                .cols = cols,
                                .init = init,
                                .init_std = (float)(std > 0 ? std : b->hp->init_std) };
    memcpy(l.name, full, sizeof full);
    return tr_param_add(p, &l);
}

static struct tr_node *put(struct tr_build *b, enum tr_opcode op, struct tr_vals in, struct tr_vals out,
                           const struct tr_attr *attr)
{
    return tr_node_put(b->p, op, TR_FORWARD, in, out, attr);
}

/* An op of one input whose output has the same shape. */
static tr_val op1(struct tr_build *b, enum tr_opcode op, tr_val x, const char *name, const struct tr_attr *attr)
{
    tr_val y = temp(b, cols_of(b, x), name);
    put(b, op, TR_VALS(x), TR_VALS(y), attr);
    return y;
}

/* NEFTune: noise on what the embedding gives, while training. Its size falls with the root of the numbers of a row, as
 * in transformers, which adds it behind a factor that is a part of the embedding (Gemma). */
static tr_val noisy(struct tr_build *b, tr_val x)
{
    const struct tr_hparams *hp = b->hp;
    if (b->noise <= 0)
        return x;
    double size = b->noise / sqrt((double)b->sequence_length * (double)cols_of(b, x));
    struct tr_attr attr = { .scale = (float)(hp->scales_table ? size / hp->embed_scale : size),
                            .key = (uint64_t)++b->n_dropouts };
    tr_val y = temp(b, cols_of(b, x), "noisy");
    put(b, TR_OP_NOISE, TR_VALS(x, batch(b, TR_B_SAMPLE), batch(b, TR_B_POSITIONS), step_buffer(b)), TR_VALS(y), &attr);
    return y;
}

/* Columns of the table of tokens. */
static int64_t token_cols(const struct tr_hparams *hp)
{
    return hp->token_cols ? hp->token_cols : hp->hidden;
}

tr_val tr_embed(struct tr_build *b, enum tr_batch_slot index, const char *name, int64_t rows, int index_offset)
{
    int64_t d = index == TR_B_TOKENS ? token_cols(b->hp) : b->hp->hidden;
    tr_val i = batch(b, index), w = param(b, name, ".weight", 2, rows, d, TR_INIT_NORMAL, 0);
    tr_val y = temp(b, d, index == TR_B_TOKENS ? "embed" : "embed_pos");
    put(b, TR_OP_EMBED, TR_VALS(i, w), TR_VALS(y), &(struct tr_attr){ .index_offset = index_offset, .scale = 1.0f });
    return index == TR_B_TOKENS ? noisy(b, y) : y;
}

static tr_val linear(struct tr_build *b, tr_val x, const char *name, int64_t n_out, bool has_bias, bool is_in_out,
                     double std)
{
    int64_t n_in = cols_of(b, x);
    tr_val w = is_in_out ? param(b, name, ".weight", 2, n_in, n_out, TR_INIT_NORMAL, std)
                         : param(b, name, ".weight", 2, n_out, n_in, TR_INIT_NORMAL, std);
    tr_val bias = has_bias ? param(b, name, ".bias", 1, 1, n_out, TR_INIT_ZEROS, 0) : TR_NONE;
    b->p->param[b->p->value[w].slot].out_dim = is_in_out;
    if (has_bias)
        b->p->param[b->p->value[bias].slot].out_dim = is_in_out;
    tr_val y = temp(b, n_out, name);
    put(b, TR_OP_LINEAR, TR_VALS(x, w, bias), TR_VALS(y), &(struct tr_attr){ .weight_is_in_out = is_in_out });
    return y;
}

tr_val tr_linear(struct tr_build *b, tr_val x, const char *name, int64_t n_out, bool has_bias)
{
    return linear(b, x, name, n_out, has_bias, false, 0);
}

tr_val tr_conv1d(struct tr_build *b, tr_val x, const char *name, int64_t n_out, double init_std)
{
    return linear(b, x, name, n_out, true, true, init_std);
}

tr_val tr_layernorm(struct tr_build *b, tr_val x, const char *name)
{
    int64_t d = cols_of(b, x);
    tr_val w = param(b, name, ".weight", 1, 1, d, TR_INIT_ONES, 0);
    tr_val bias = b->hp->norms_lack_bias ? TR_NONE : param(b, name, ".bias", 1, 1, d, TR_INIT_ZEROS, 0);
    tr_val y = temp(b, d, name), stats = fixed_f32(b, 2, "stats");
    put(b, TR_OP_LAYERNORM, TR_VALS(x, w, bias), TR_VALS(y, stats), &(struct tr_attr){ .eps = (float)b->hp->norm_eps });
    return y;
}

static tr_val rmsnorm(struct tr_build *b, tr_val x, const char *name, double weight_offset, int64_t group)
{
    int64_t d = cols_of(b, x);
    tr_val w = param(b, name, ".weight", 1, 1, group, weight_offset > 0 ? TR_INIT_ZEROS : TR_INIT_ONES, 0);
    tr_val y = temp(b, d, name), rstd = fixed_f32(b, d / group, "rstd");
    struct tr_attr attr = { .eps = (float)b->hp->norm_eps,
                            .weight_offset = (float)weight_offset,
                            .group = (int32_t)group };
    put(b, TR_OP_RMSNORM, TR_VALS(x, w), TR_VALS(y, rstd), &attr);
    return y;
}

tr_val tr_rmsnorm(struct tr_build *b, tr_val x, const char *name, double weight_offset)
{
    return rmsnorm(b, x, name, weight_offset, cols_of(b, x));
}

tr_val tr_headnorm(struct tr_build *b, tr_val x, const char *name, double weight_offset)
{
    return rmsnorm(b, x, name, weight_offset, b->hp->head_dim);
}

tr_val tr_rope(struct tr_build *b, tr_val x)
{
    int slot = b->hp->kind[b->kind].rope;
    if (slot == TR_NONE)
        return x;
    tr_val pos = batch(b, TR_B_POSITIONS), table = rope_table(b, slot);
    tr_val y = temp(b, cols_of(b, x), "rope");
    struct tr_attr attr = { .head_dim = (int32_t)b->hp->head_dim, .is_interleaved = b->hp->rope[slot].is_interleaved };
    put(b, TR_OP_ROPE, TR_VALS(x, pos, table), TR_VALS(y), &attr);
    return y;
}

void tr_split_heads(struct tr_build *b, tr_val x, tr_val *q, tr_val *k, tr_val *v)
{
    const struct tr_hparams *hp = b->hp;
    int64_t n_q = hp->n_heads_q * hp->head_dim, n_kv = hp->n_heads_kv * hp->head_dim;
    TR_BUG_ON(cols_of(b, x) != n_q + 2 * n_kv);
    tr_val y = op1(b, TR_OP_REGROUP, x, "qkv",
                   &(struct tr_attr){ .n_heads_q = (int32_t)hp->n_heads_q,
                                      .n_heads_kv = (int32_t)hp->n_heads_kv,
                                      .head_dim = (int32_t)hp->head_dim });
    *v = tr_slice(b, y, n_q + n_kv, n_kv);
    *k = tr_slice(b, y, n_q, n_kv);
    *q = tr_slice(b, y, 0, n_q);
}

/* Numbers the dropout sites of one program 1, 2, ...; the executor adds seed and layer, so that every site has a random
 * stream of its own. */
static void set_dropout(struct tr_build *b, struct tr_node *n, int first_in, double p)
{
    n->in[first_in] = batch(b, TR_B_SAMPLE);
    n->in[first_in + 1] = batch(b, TR_B_POSITIONS);
    n->in[first_in + 2] = step_buffer(b);
    n->attr.dropout_p = (float)p;
    n->attr.key = (uint64_t)++b->n_dropouts;
}

tr_val tr_attention(struct tr_build *b, tr_val q, tr_val k, tr_val v)
{
    const struct tr_hparams *hp = b->hp;
    TR_BUG_ON(cols_of(b, q) != hp->n_heads_q * hp->head_dim || cols_of(b, k) != hp->n_heads_kv * hp->head_dim);
    tr_val begin = batch(b, TR_B_BEGIN), o = temp(b, cols_of(b, q), "attn"), lse = fixed_f32(b, hp->n_heads_q, "lse");
    struct tr_attr attr = {
        .n_heads_q = (int32_t)hp->n_heads_q,
        .n_heads_kv = (int32_t)hp->n_heads_kv,
        .head_dim = (int32_t)hp->head_dim,
        .window = (int32_t)hp->kind[b->kind].window,
        .scale = (float)hp->attn_scale,
        .softcap = (float)hp->attn_softcap,
        .seq_len = b->sequence_length,
    };
    struct tr_node *n = put(b, TR_OP_ATTENTION, TR_VALS(q, k, v, begin), TR_VALS(o, lse), &attr);
    if (hp->dropout_attn > 0)
        set_dropout(b, n, 4, hp->dropout_attn);
    return o;
}

tr_val tr_act(struct tr_build *b, tr_val x)
{
    return op1(b, TR_OP_ACT, x, "act", &(struct tr_attr){ .act = b->hp->act });
}

tr_val tr_glu(struct tr_build *b, tr_val g, tr_val u)
{
    tr_val y = temp(b, cols_of(b, g), "glu");
    put(b, TR_OP_GLU, TR_VALS(g, u), TR_VALS(y), &(struct tr_attr){ .act = b->hp->act });
    return y;
}

tr_val tr_add(struct tr_build *b, tr_val x, tr_val y)
{
    TR_BUG_ON(cols_of(b, x) != cols_of(b, y));
    tr_val z = temp(b, cols_of(b, x), "x");
    put(b, TR_OP_ADD, TR_VALS(x, y), TR_VALS(z), NULL);
    return z;
}

tr_val tr_scale(struct tr_build *b, tr_val x, double factor)
{
    if (factor == 1)
        return x;
    return op1(b, TR_OP_SCALE, x, "scaled", &(struct tr_attr){ .scale = (float)factor });
}

tr_val tr_dropout(struct tr_build *b, tr_val x, double p)
{
    if (p <= 0)
        return x;
    tr_val y = temp(b, cols_of(b, x), "dropout");
    set_dropout(b, put(b, TR_OP_DROPOUT, TR_VALS(x), TR_VALS(y), NULL), 1, p);
    return y;
}

tr_val tr_slice(struct tr_build *b, tr_val x, int64_t col, int64_t n_cols)
{
    return tr_value_view(b->p, x, col, n_cols, "slice");
}

/* The row of x that the first target names: a prompt needs the logits of its last token only. */
static tr_val last_row(struct tr_build *b, tr_val x)
{
    tr_val index = batch(b, TR_B_TARGETS), y = temp(b, cols_of(b, x), "last");
    b->p->value[index].rows = b->p->value[y].rows = 1;
    put(b, TR_OP_EMBED, TR_VALS(index, x), TR_VALS(y), &(struct tr_attr){ .scale = 1.0f });
    return y;
}

static void logits(struct tr_build *b, tr_val x, tr_val w)
{
    tr_val row = b->wants_last ? last_row(b, x) : x, z = fixed_f32(b, b->hp->vocab, "logits");
    b->p->value[z].rows = b->p->value[row].rows;
    put(b, TR_OP_LINEAR, TR_VALS(row, w), TR_VALS(z), NULL);
    b->p->out = z;
}

static tr_val token_weight(struct tr_build *b)
{
    return b->pair.weighs_tokens ? batch(b, TR_B_WEIGHT) : TR_NONE;
}

/* The sums of documents from the losses of their tokens. Evaluation gives them as its output: that is how the
 * log-probabilities of a reference and of choices are read. */
static tr_val doc_sums(struct tr_build *b, tr_val loss, tr_val squares)
{
    tr_val sums = fixed_f32(b, tr_doc_sums(&b->pair), "sums");
    tr_val target = batch(b, TR_B_TARGETS), begin = batch(b, TR_B_BEGIN), ref = batch(b, TR_B_VALUE);
    tr_val match = b->pair.is_matched ? batch(b, TR_B_MATCH) : TR_NONE;
    put(b, TR_OP_DOC_SUMS, TR_VALS(loss, target, begin, ref, token_weight(b), squares, match), TR_VALS(sums), NULL);
    if (b->gives_sums)
        b->p->out = sums;
    return sums;
}

/* What pairs of documents say. */
static tr_val pair_loss(struct tr_build *b, tr_val loss, tr_val squares)
{
    tr_val sums = doc_sums(b, loss, squares), parts = fixed_f32(b, TR_METRICS, "parts"),
           weight = fixed_f32(b, 1, "weight");
    tr_val begin = batch(b, TR_B_BEGIN), position = batch(b, TR_B_POSITIONS), other = batch(b, TR_B_OTHER);
    tr_val step = tr_pair_has_labels(&b->pair) ? step_buffer(b) : TR_NONE;
    put(b, TR_OP_PAIR_LOSS, TR_VALS(sums, begin, position, other, step, token_weight(b)), TR_VALS(parts, weight),
        &(struct tr_attr){ .pair = b->pair });
    return parts;
}

static tr_val dft_loss(struct tr_build *b, tr_val loss)
{
    tr_val parts = fixed_f32(b, 1, "parts"), weight = fixed_f32(b, 1, "weight");
    put(b, TR_OP_DFT_LOSS, TR_VALS(loss), TR_VALS(parts, weight), NULL);
    return parts;
}

static tr_val weigh_loss(struct tr_build *b, tr_val loss)
{
    tr_val parts = fixed_f32(b, 1, "parts");
    put(b, TR_OP_WEIGH_LOSS, TR_VALS(loss, batch(b, TR_B_WEIGHT)), TR_VALS(parts), NULL);
    return parts;
}

void tr_head(struct tr_build *b, tr_val x, const char *name)
{
    tr_val w = param(b, name, ".weight", 2, b->hp->vocab, token_cols(b->hp), TR_INIT_NORMAL, 0);
    if (b->wants_logits) {
        logits(b, x, w);
        return;
    }
    tr_val target = batch(b, TR_B_TARGETS), loss = fixed_f32(b, 1, "loss");
    bool has_pairs = tr_pair_is_on(&b->pair);
    tr_val sum = tr_value_fixed(b->p, TR_V_LOSS, TR_F64, 1, has_pairs ? TR_METRICS : 1, "loss_sum");
    tr_val step = step_buffer(b); /* the backward reads it */
    tr_val squares = b->pair.weighs_pairs ? fixed_f32(b, 1, "squares") : TR_NONE;
    put(b, TR_OP_HEAD_LOSS, TR_VALS(x, w, TR_NONE, target, step), TR_VALS(loss, squares),
        &(struct tr_attr){ .scale = 1.0f,
                           .softcap = (float)b->hp->final_softcap,
                           .smoothing = (float)b->label_smoothing,
                           .smoothing_each = (float)(b->label_smoothing / (double)b->hp->vocab),
                           .z_loss = (float)b->z_loss });
    tr_val terms = has_pairs       ? pair_loss(b, loss, squares)
                   : b->is_dft     ? dft_loss(b, loss)
                   : b->is_weighed ? weigh_loss(b, loss)
                                   : loss;
    if (b->gives_sums && !has_pairs)
        (void)doc_sums(b, loss, TR_NONE);
    put(b, TR_OP_SUM, TR_VALS(terms), TR_VALS(sum), NULL);
}
