/* grad.c - pass: emits the backward of a segment. Each op has one rule that emits its backward (rules.h).
 *
 * The pass walks forward nodes in reverse. The gradient of a value is a value like any other and is written once. Where
 * an op can add to an existing gradient (its addend), the sum needs no op of its own. Gradients of column slices are
 * slices of one gradient, so q/k/v need no concatenation. The head computes loss and gradient in one op, so its forward
 * node is dropped. Last, what no gradient of a parameter and no gradient for the segment before needs is dropped: where
 * nothing in front of a value learns, its gradient costs nothing. Rejected: a tape at run time (the plan must know
 * every byte before step 0).
 */
#include "parallel/parallel_impl.h"
#include "parallel/rules.h"
#include <stdlib.h>

struct grads {
    struct tr_program *p;
    const struct tr_pass_ctx *ctx;
    tr_val *of; /* gradient of each forward value, or TR_NONE */
    int n_of;
    bool *is_dead; /* forward nodes that their backward replaces */
    int n_forward;
    tr_val lse; /* of a head whose gradient is not made together with its loss */
};

static bool wants_grad(const struct grads *g, tr_val v)
{
    return v != TR_NONE && (g->p->value[v].kind == TR_V_TEMP || g->p->value[v].kind == TR_V_IN);
}

static tr_val like(struct grads *g, tr_val v)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "d_%.80s", g->p->value[v].name);
    return tr_value_like(g->p, v, name);
}

/* A slice is a part of another value, and its gradient is the same part of that value's gradient. */
static bool is_slice(const struct grads *g, tr_val v)
{
    return g->p->value[v].base != TR_NONE && !g->p->value[v].is_alias;
}

static bool is_covered(const struct grads *g, tr_val base)
{
    int64_t cols = 0;
    for (tr_val v = 0; v < g->n_of; v++)
        cols += g->p->value[v].base == base && is_slice(g, v) ? g->p->value[v].cols : 0;
    return cols == g->p->value[base].cols;
}

/* The slice that is a term of the sum v, if its gradient has no place yet. */
static tr_val slice_in_sum(const struct grads *g, tr_val v)
{
    for (int i = 0; i < g->n_forward; i++) {
        const struct tr_node *n = &g->p->node[i];
        for (int k = 0; n->op == TR_OP_ADD && n->out[0] == v && k < 2; k++)
            if (is_slice(g, n->in[k]) && g->of[n->in[k]] == TR_NONE)
                return n->in[k];
    }
    return TR_NONE;
}

/* A new gradient of v. That of a sum is also that of its terms, so it is written where the slice among them needs it.
 */
static tr_val fresh(struct grads *g, tr_val v)
{
    if (!is_slice(g, v)) {
        tr_val term = g->of[v] == TR_NONE ? slice_in_sum(g, v) : TR_NONE;
        if (term == TR_NONE)
            return like(g, v);
        v = term;
    }
    struct tr_value x = g->p->value[v];
    if (g->of[x.base] == TR_NONE) {
        g->of[x.base] = like(g, x.base);
        if (!is_covered(g, x.base)) /* columns that no op reads have no gradient */
            tr_node_add(g->p, TR_OP_ZERO, TR_BACKWARD_INPUT)->out[0] = g->of[x.base];
    }
    return tr_value_view(g->p, g->of[x.base], x.col, x.cols, "d_slice");
}

/* Where an op writes the gradient of v; *addend is what must be added to it (TR_NONE at the first contribution). */
static tr_val begin(struct grads *g, tr_val v, tr_val *addend)
{
    *addend = g->of[v];
    TR_BUG_ON(*addend != TR_NONE && is_slice(g, v));
    return fresh(g, v);
}

/* Ends what begin() began. An op that cannot add has written `got`; then a node of its own adds the addend. */
static void finish(struct grads *g, tr_val v, tr_val got, tr_val addend)
{
    if (addend != TR_NONE) {
        tr_val sum = like(g, v);
        tr_node_put(g->p, TR_OP_ADD, TR_BACKWARD_INPUT, TR_VALS(addend, got), TR_VALS(sum), NULL);
        got = sum;
    }
    g->of[v] = got;
}

static bool is_frozen(const struct grads *g, tr_val param)
{
    return param == TR_NONE || g->p->param[g->p->value[param].slot].is_frozen;
}

/* The gradient of a parameter. TR_NONE for a frozen one: kernels skip that output. */
static tr_val param_grad(struct grads *g, tr_val v)
{
    if (is_frozen(g, v))
        return TR_NONE;
    struct tr_value x = g->p->value[v];
    for (int i = 0; i < g->p->n_values; i++)
        if (g->p->value[i].kind == TR_V_GRAD && g->p->value[i].slot == x.slot)
            return i;
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "d_%.80s", x.name);
    tr_val out = tr_value_fixed(g->p, TR_V_GRAD, g->ctx->grad_dtype, x.rows, x.cols, name);
    g->p->value[out].slot = x.slot;
    return out;
}

static void grad_embed(struct grads *g, const struct tr_node *f)
{
    tr_val dw = param_grad(g, f->in[1]);
    if (dw == TR_NONE)
        return;
    tr_node_put(g->p, TR_OP_EMBED_DW, TR_BACKWARD_WEIGHT, TR_VALS(f->in[0], g->of[f->out[0]]), TR_VALS(dw), &f->attr);
}

static void grad_linear(struct grads *g, const struct tr_node *f)
{
    tr_val dy = g->of[f->out[0]], addend;
    if (wants_grad(g, f->in[0])) {
        tr_val dx = begin(g, f->in[0], &addend);
        tr_node_put(g->p, TR_OP_LINEAR_DX, TR_BACKWARD_INPUT, TR_VALS(dy, f->in[1], addend), TR_VALS(dx), &f->attr);
        g->of[f->in[0]] = dx;
    }
    tr_val dw = param_grad(g, f->in[1]), bias = f->in[2] != TR_NONE ? f->in[2] : f->in[3], db = param_grad(g, bias);
    if (dw == TR_NONE && db == TR_NONE)
        return;
    tr_node_put(g->p, TR_OP_LINEAR_DW, TR_BACKWARD_WEIGHT, TR_VALS(dy, f->in[0]), TR_VALS(dw, db), &f->attr);
}

static void grad_norm(struct grads *g, const struct tr_node *f)
{
    bool is_layer = f->op == TR_OP_LAYERNORM;
    tr_val addend, dx = begin(g, f->in[0], &addend);
    tr_val dw = param_grad(g, f->in[1]), db = is_layer ? param_grad(g, f->in[2]) : TR_NONE;
    /* kernels write both or none, so a temporary takes the gradient of the frozen one */
    if (is_layer && (dw == TR_NONE) != (db == TR_NONE)) {
        tr_val *dropped = dw == TR_NONE ? &dw : &db;
        *dropped = tr_value_fixed(g->p, TR_V_TEMP, g->ctx->grad_dtype, 1, g->p->value[f->in[1]].cols, "dropped");
    }
    tr_node_put(g->p, is_layer ? TR_OP_LAYERNORM_BWD : TR_OP_RMSNORM_BWD, TR_BACKWARD_INPUT,
                TR_VALS(g->of[f->out[0]], f->in[0], f->in[1], f->out[1], addend), TR_VALS(dx, dw, db), &f->attr);
    g->of[f->in[0]] = dx;
}

/* Ops whose backward is the same op on the gradient: rope (rotating back), regroup, scale, dropout (same mask),
 * all_to_all (inverse). */
static void grad_self(struct grads *g, const struct tr_node *f)
{
    tr_val addend, dx = begin(g, f->in[0], &addend);
    struct tr_node *n = tr_node_add(g->p, f->op, TR_BACKWARD_INPUT);
    memcpy(n->in, f->in, sizeof n->in);
    n->in[0] = g->of[f->out[0]];
    n->out[0] = dx;
    n->attr = f->attr;
    n->attr.inverse = !f->attr.inverse;
    finish(g, f->in[0], dx, addend);
}

/* What an op adds is no function of its input. */
static void grad_through(struct grads *g, const struct tr_node *f)
{
    finish(g, f->in[0], g->of[f->out[0]], g->of[f->in[0]]);
}

static void grad_attention(struct grads *g, const struct tr_node *f)
{
    tr_val addend[3], d[3];
    for (int i = 0; i < 3; i++)
        d[i] = begin(g, f->in[i], &addend[i]);
    bool is_ring = f->op == TR_OP_RING_ATTENTION;
    const tr_val *in = f->in; /* from 3 on: begin, then sample, position and step when there is dropout */
    tr_node_put(g->p, is_ring ? TR_OP_RING_ATTENTION_BWD : TR_OP_ATTENTION_BWD, TR_BACKWARD_INPUT,
                TR_VALS(g->of[f->out[0]], in[0], in[1], in[2], f->out[0], f->out[1], in[3], in[4], in[5], in[6]),
                TR_VALS(d[0], d[1], d[2]), &f->attr);
    for (int i = 0; i < 3; i++)
        finish(g, f->in[i], d[i], addend[i]);
}

static void grad_act(struct grads *g, const struct tr_node *f)
{
    tr_val addend, dx = begin(g, f->in[0], &addend);
    tr_node_put(g->p, TR_OP_ACT_BWD, TR_BACKWARD_INPUT, TR_VALS(g->of[f->out[0]], f->in[0]), TR_VALS(dx), &f->attr);
    finish(g, f->in[0], dx, addend);
}

static void grad_col_scale(struct grads *g, const struct tr_node *f)
{
    tr_val addend, dx = begin(g, f->in[0], &addend);
    tr_val bias = f->in[3] != TR_NONE ? f->in[3] : f->in[4], dm = param_grad(g, f->in[1]), db = param_grad(g, bias);
    tr_node_put(g->p, TR_OP_COL_SCALE_BWD, TR_BACKWARD_INPUT, TR_VALS(g->of[f->out[0]], f->in[0], f->in[1], f->in[2]),
                TR_VALS(dx, dm, db), NULL);
    finish(g, f->in[0], dx, addend);
}

static void grad_glu(struct grads *g, const struct tr_node *f)
{
    tr_val add_g, add_u, dg = begin(g, f->in[0], &add_g), du = begin(g, f->in[1], &add_u);
    tr_node_put(g->p, TR_OP_GLU_BWD, TR_BACKWARD_INPUT, TR_VALS(g->of[f->out[0]], f->in[0], f->in[1]), TR_VALS(dg, du),
                &f->attr);
    finish(g, f->in[0], dg, add_g);
    finish(g, f->in[1], du, add_u);
}

static void grad_add(struct grads *g, const struct tr_node *f)
{
    for (int i = 0; i < 2; i++) {
        tr_val dy = g->of[f->out[0]];
        TR_BUG_ON(is_slice(g, f->in[i]) && tr_value_root(g->p, dy) != g->of[g->p->value[f->in[i]].base]);
        finish(g, f->in[i], dy, g->of[f->in[i]]);
    }
}

/* Adds the losses of tokens to the running sum. */
static void add_losses(struct grads *g, tr_val loss)
{
    tr_val sum = TR_NONE;
    for (int i = 0; i < g->p->n_values; i++)
        if (g->p->value[i].kind == TR_V_LOSS)
            sum = i;
    tr_node_put(g->p, TR_OP_SUM, TR_BACKWARD_INPUT, TR_VALS(loss), TR_VALS(sum), NULL);
}

/* The gradient of a value that nothing else reads. */
static tr_val fresh_of(struct grads *g, tr_val v)
{
    tr_val addend, d = begin(g, v, &addend);
    TR_BUG_ON(addend != TR_NONE);
    return g->of[v] = d;
}

/* The gradient of the head from what its forward has left. in: x, W, bias, target and step, as head_grad has them.
 * weight: a factor for each token, or none. */
struct head_parts {
    const tr_val *in;
    tr_val lse, logits, u, b, weight;
};

static void add_head_grad(struct grads *g, const struct tr_node *f, const struct head_parts *h)
{
    tr_val addend, dx = begin(g, h->in[0], &addend), dw = param_grad(g, h->in[1]), db = param_grad(g, h->in[2]);
    TR_BUG_ON(addend != TR_NONE);
    struct tr_node *n = tr_node_put(g->p, TR_OP_HEAD_GRAD, TR_BACKWARD_INPUT,
                                    TR_VALS(h->in[0], h->in[1], h->in[2], h->in[3], h->in[4], h->lse, h->logits),
                                    TR_VALS(dx, dw, db), &f->attr);
    if (h->u != TR_NONE) { /* an adapter of the head */
        n->in[7] = h->u;
        n->in[8] = h->b;
        n->out[3] = fresh_of(g, h->u);
        n->out[4] = param_grad(g, h->b);
    }
    n->in[TR_HEAD_WEIGHT] = h->weight;
    g->of[h->in[0]] = dx;
}

/* The loss of each token and what its gradient needs later: the stats of a vocabulary of which this rank holds all. */
static tr_val add_loss_and_lse(struct tr_program *p, const struct tr_node *f, enum tr_phase phase)
{
    const tr_val *in = f->in;
    int64_t n_stats = f->out[1] != TR_NONE ? 3 : 2;
    tr_val stats = tr_value_fixed(p, TR_V_TEMP, TR_F32, p->value[f->out[0]].rows, n_stats, "stats");
    tr_val lse = tr_value_like(p, f->out[0], "lse");
    tr_node_put(p, TR_OP_HEAD_STATS, phase, TR_VALS(in[0], in[1], in[2], in[3], in[5], in[6]), TR_VALS(stats),
                &f->attr);
    tr_node_put(p, TR_OP_HEAD_COMBINE, phase, TR_VALS(stats), TR_VALS(f->out[0], lse, f->out[1]), &f->attr);
    return lse;
}

/* Loss and gradient in one op; or, where a pair of answers gives each token a weight or the loss is regularised, the
 * gradient after the loss: such losses are rare, so the op that is fastest need not know them. */
static void grad_head(struct grads *g, const struct tr_node *f)
{
    if (g->of[f->out[0]] != TR_NONE) {
        struct head_parts h = { f->in, g->lse, TR_NONE, f->in[5], f->in[6], g->of[f->out[0]] };
        add_head_grad(g, f, &h);
        return;
    }
    if (f->attr.smoothing > 0 || f->attr.z_loss > 0) {
        tr_val lse = add_loss_and_lse(g->p, f, TR_BACKWARD_INPUT);
        add_head_grad(g, f, &(struct head_parts){ f->in, lse, TR_NONE, f->in[5], f->in[6], TR_NONE });
        add_losses(g, f->out[0]);
        return;
    }
    tr_val addend, dx = begin(g, f->in[0], &addend);
    tr_val dw = param_grad(g, f->in[1]), db = param_grad(g, f->in[2]);
    TR_BUG_ON(addend != TR_NONE);
    struct tr_node *n = tr_node_put(g->p, TR_OP_HEAD_LOSS_GRAD, TR_BACKWARD_INPUT, (struct tr_vals){ f->in, TR_MAX_IN },
                                    TR_VALS(f->out[0], dx, dw, db), &f->attr);
    if (f->in[5] != TR_NONE) { /* an adapter of the head */
        n->out[4] = fresh_of(g, f->in[5]);
        n->out[5] = param_grad(g, f->in[6]);
    }
    g->of[f->in[0]] = dx;
    add_losses(g, f->out[0]);
}

/* Moves the forward node that makes v, and the nodes it reads from, into the backward. */
static void defer(struct grads *g, tr_val v)
{
    for (int i = 0; i < g->n_forward; i++) {
        struct tr_node f = g->p->node[i];
        if (f.out[0] != v)
            continue;
        g->is_dead[i] = true;
        if (f.op == TR_OP_HEAD_LOSS) {
            g->lse = add_loss_and_lse(g->p, &f, TR_BACKWARD_INPUT);
            return;
        }
        if (f.op != TR_OP_HEAD_STATS)
            defer(g, f.in[0]);
        f.phase = TR_BACKWARD_INPUT;
        *tr_node_add(g->p, f.op, f.phase) = f;
        return;
    }
}

/* The head where each rank holds a part of the vocabulary. Inputs 1 to 8 are x, W, bias, target, step, logits, u and B.
 * All of it runs in the backward, so that logits are never saved. */
static void grad_head_combine(struct grads *g, const struct tr_node *f)
{
    tr_val weight = g->of[f->out[0]];
    if (weight == TR_NONE)
        defer(g, f->out[0]);
    struct head_parts h = { f->in + 1, f->out[1], f->in[6], f->in[7], f->in[8], weight };
    add_head_grad(g, f, &h);
    if (weight == TR_NONE)
        add_losses(g, f->out[0]);
}

/* The loss of a pair needs both of its documents before the gradient of any token, so everything from the losses of
 * tokens on runs in the backward, in front of the gradient of the head. What it gives is a weight for each token. */
static void grad_pair_loss(struct grads *g, const struct tr_node *f)
{
    int i = 0;
    while (g->p->node[i].op != TR_OP_DOC_SUMS)
        i++;
    tr_val loss = g->p->node[i].in[0];
    defer(g, f->out[0]);
    add_losses(g, f->out[0]);
    g->of[loss] = f->out[1];
}

/* The weight of a token is known after its loss, so that here too the gradient of the head follows both. */
static void grad_dft_loss(struct grads *g, const struct tr_node *f)
{
    defer(g, f->out[0]);
    add_losses(g, f->out[0]);
    g->of[f->in[0]] = f->out[1];
}

/* The weights are in the batch, but the head that makes loss and gradient in one op has none, so this is as above. */
static void grad_weigh_loss(struct grads *g, const struct tr_node *f)
{
    defer(g, f->out[0]);
    add_losses(g, f->out[0]);
    g->of[f->in[0]] = f->in[1];
}

/* A sum over ranks passes the gradient of the sum on unchanged. The other collectives are undone: each rank gets the
 * gradient of what it gave. */
static void grad_collective(struct grads *g, const struct tr_node *f)
{
    tr_val dy = g->of[f->out[0]], addend = g->of[f->in[0]];
    if (f->op == TR_OP_ALL_REDUCE) {
        finish(g, f->in[0], dy, addend);
        return;
    }
    tr_val dx = begin(g, f->in[0], &addend);
    enum tr_opcode op = f->op == TR_OP_ALL_GATHER       ? TR_OP_REDUCE_SCATTER
                        : f->op == TR_OP_REDUCE_SCATTER ? TR_OP_ALL_GATHER
                                                        : TR_OP_ALL_REDUCE;
    tr_node_put(g->p, op, TR_BACKWARD_INPUT, TR_VALS(dy), TR_VALS(dx), &f->attr);
    finish(g, f->in[0], dx, addend);
}

/* The sum of losses: the backward of the head adds them, so the forward node is dropped. */
static void grad_sum(struct grads *g, const struct tr_node *f)
{
    (void)g;
    (void)f;
}

struct grad_rule {
    void (*emit)(struct grads *g, const struct tr_node *f);
    /* gradients start at this op; its backward does the work of the forward too, so the forward node is dropped */
    bool is_end;
    const char *reason; /* emit NULL: why there is none */
};
static const struct grad_rule rule_embed = { .emit = grad_embed }, rule_linear = { .emit = grad_linear },
                              rule_norm = { .emit = grad_norm }, rule_self = { .emit = grad_self },
                              rule_through = { .emit = grad_through },
                              rule_dft_loss = { .emit = grad_dft_loss, .is_end = true },
                              rule_weigh_loss = { .emit = grad_weigh_loss, .is_end = true },
                              rule_attention = { .emit = grad_attention }, rule_act = { .emit = grad_act },
                              rule_glu = { .emit = grad_glu }, rule_add = { .emit = grad_add },
                              rule_head = { .emit = grad_head, .is_end = true },
                              rule_head_combine = { .emit = grad_head_combine, .is_end = true },
                              rule_sum = { .emit = grad_sum, .is_end = true },
                              rule_pair_loss = { .emit = grad_pair_loss, .is_end = true },
                              rule_collective = { .emit = grad_collective }, rule_later = { .reason = TR_WHY_LATER },
                              rule_col_scale = { .emit = grad_col_scale },
                              rule_constant = { .reason = TR_WHY_CONSTANT },
                              rule_backward = { .reason = TR_WHY_BACKWARD },
                              rule_in_combine = { .reason = TR_WHY_IN_COMBINE },
                              rule_in_pair = { .reason = TR_WHY_IN_PAIR },
                              rule_inference = { .reason = TR_WHY_INFERENCE },
                              rule_update = { .reason = TR_WHY_UPDATE };

static const struct grad_rule *const rules[TR_OP_COUNT] = {
#define X(id, tensor, context, grad, fp8) [TR_OP_##id] = &rule_##grad,
    TR_RULE_LIST(X)
#undef X
};

static void drop_dead(struct grads *g, int n_forward)
{
    int kept = 0;
    for (int i = 0; i < g->p->n_nodes; i++)
        if (i >= n_forward || !g->is_dead[i])
            g->p->node[kept++] = g->p->node[i];
    g->p->n_nodes = kept;
}

static bool is_wanted(const struct tr_program *p, const bool *is_read, tr_val v)
{
    tr_val root = tr_value_root(p, v);
    return root != TR_NONE && (p->value[root].kind != TR_V_TEMP || root == p->din || is_read[root]);
}

/* Drops backward nodes from which nothing leads to a result. Readers stand behind makers, so one way back is enough. */
static void drop_unread(struct tr_program *p, bool *is_read)
{
    int first = p->n_nodes;
    for (int i = p->n_nodes - 1; i >= 0; i--) {
        struct tr_node n = p->node[i];
        bool is_live = n.phase == TR_FORWARD;
        for (int k = 0; k < TR_MAX_OUT; k++)
            is_live |= is_wanted(p, is_read, n.out[k]);
        for (int k = 0; is_live && k < TR_MAX_IN; k++)
            if (n.in[k] != TR_NONE)
                is_read[tr_value_root(p, n.in[k])] = true;
        if (is_live)
            p->node[--first] = n;
    }
    memmove(p->node, p->node + first, (size_t)(p->n_nodes - first) * sizeof *p->node);
    p->n_nodes -= first;
}

/* Evaluation of pairs makes the losses of tokens by the ops of training, so that a reference has the bits of the model
 * that it was: before the first update, rewards are 0. */
static enum tr_status evaluate_pairs(struct tr_program *p)
{
    struct tr_program *from = NULL;
    bool has_pairs = false;
    for (int i = 0; i < p->n_nodes; i++)
        has_pairs |= p->node[i].op == TR_OP_PAIR_LOSS;
    enum tr_status st = has_pairs ? tr_program_copy(p, &from) : TR_OK;
    if (!has_pairs || st != TR_OK)
        return st;
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct tr_node *n = &from->node[i];
        if (n->op == TR_OP_HEAD_LOSS)
            (void)add_loss_and_lse(p, n, TR_FORWARD);
        else
            *tr_node_add(p, n->op, n->phase) = *n;
    }
    tr_program_close(from);
    return p->failed;
}

enum tr_status tr_pass_grad(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    if (!ctx->is_training)
        return evaluate_pairs(p);
    struct grads g = { .p = p, .ctx = ctx, .n_of = p->n_values, .lse = TR_NONE };
    int n_forward = g.n_forward = p->n_nodes;
    g.of = malloc((size_t)p->n_values * sizeof *g.of);
    g.is_dead = calloc((size_t)n_forward + 1, sizeof *g.is_dead);
    if (!g.of || !g.is_dead) {
        free(g.of);
        free(g.is_dead);
        return tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    }
    for (int i = 0; i < g.n_of; i++)
        g.of[i] = TR_NONE;
    if (p->out != TR_NONE && !ctx->skips_dout) {
        struct tr_value y = p->value[p->out];
        p->dout = tr_value_add(p, TR_V_DOUT, y.dtype, y.rows, y.cols, "dout");
        g.of[p->out] = p->dout;
    }
    for (int i = n_forward - 1; i >= 0; i--) {
        struct tr_node f = p->node[i];
        const struct grad_rule *rule = rules[f.op];
        if (g.of[f.out[0]] == TR_NONE && !rule->is_end)
            continue;
        if (!rule->emit)
            tr_no_rule("grad", p, f.op, rule->reason);
        rule->emit(&g, &f);
        g.is_dead[i] |= rule->is_end;
    }
    p->din = p->in == TR_NONE || ctx->skips_din ? TR_NONE : g.of[p->in];
    TR_BUG_ON(p->din != TR_NONE && p->din == p->dout);
    drop_dead(&g, n_forward);
    free(g.of);
    free(g.is_dead);
    bool *is_read = NULL;
    TR_PASS(TR_ALLOC(is_read, (size_t)p->n_values, "program %s", p->name));
    drop_unread(p, is_read);
    free(is_read);
    return p->failed;
}
