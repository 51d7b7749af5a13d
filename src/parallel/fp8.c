/* fp8.c - pass, after grad: products of linears in 8-bit floats, forward and both gradients.
 *
 * Every operand (activation, weight, gradient of an output) is quantised once, straight and transposed, because a
 * product reads both sides along the summed dim. The scale comes from the operand's own largest element: of the current
 * value, or with delayed scales of the amax history. The backward reads the transposed 8-bit copy of a forward operand,
 * so fewer bytes are saved than without fp8. The head, attention and every op that is no product stay as they are, and
 * so does evaluation. Linears with a dim that is not a multiple of 16 and those of adapters stay as they are too.
 * Delayed scales are an option and not the default: they save one read, but they are state to save, and an element that
 * grows is clipped.
 */
#include "parallel/parallel_impl.h"
#include "parallel/rules.h"
#include <stdlib.h>

struct quant {
    tr_val of, q, qt, scale;
};

struct fp8 {
    struct tr_program *p;
    enum tr_dtype gradient; /* 8-bit dtype of gradients; all other operands are e4m3 */
    bool has_history;
    struct quant *quant;
    int n_quants;
};

static tr_val add_value(struct tr_program *p, enum tr_dtype dtype, int64_t rows, int64_t cols, const char *what,
                        tr_val of)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%s_%.80s", what, p->value[of].name);
    return tr_value_fixed(p, TR_V_TEMP, dtype, rows, cols, name);
}

static const struct quant *find(const struct fp8 *f, tr_val v)
{
    for (int i = 0; i < f->n_quants; i++)
        if (f->quant[i].of == v)
            return &f->quant[i];
    return NULL;
}

/* The 8-bit copies of v. The first call for v emits the ops that make them. */
static struct quant quant_of(struct fp8 *f, tr_val v, enum tr_phase phase)
{
    const struct quant *known = find(f, v);
    if (known)
        return *known;
    struct tr_program *p = f->p;
    int64_t rows = p->value[v].rows, cols = p->value[v].cols;
    enum tr_dtype dtype = phase == TR_FORWARD ? TR_E4M3 : f->gradient;
    struct quant q = { .of = v }; /* assigned one by one: C leaves the order inside an initializer open */
    q.q = add_value(p, dtype, rows, cols, "q", v);
    q.qt = add_value(p, dtype, cols, rows, "qt", v);
    q.scale = add_value(p, TR_F32, 1, 1, "scale", v);
    struct tr_node *n = tr_node_put(p, TR_OP_QUANT, phase, TR_VALS(v), TR_VALS(q.q, q.qt, q.scale), NULL);
    if (f->has_history) {
        n->out[3] = add_value(p, TR_F32, 1, 2, "past", v);
        p->value[n->out[3]].kind = TR_V_AMAX;
        p->value[n->out[3]].slot = f->n_quants;
    }
    f->quant[f->n_quants++] = q;
    return q;
}

static bool is_even(const struct tr_program *p, tr_val v)
{
    return p->value[v].rows % 16 == 0 && p->value[v].cols % 16 == 0;
}

/* Emits y (+)= a b^T, with the addend of the old node. */
static void product(struct fp8 *f, const struct tr_node *old, tr_val a, tr_val scale_a, tr_val b, tr_val scale_b,
                    tr_val bias, tr_val addend)
{
    tr_node_put(f->p, TR_OP_MATMUL8, old->phase, TR_VALS(a, scale_a, b, scale_b, bias, addend), TR_VALS(old->out[0]),
                &(struct tr_attr){ .is_gradient = old->phase != TR_FORWARD });
}

/* Is v a parameter of an adapter, or its gradient? */
static bool is_adapter(const struct tr_program *p, tr_val v)
{
    return v != TR_NONE && p->param[p->value[v].slot].in_adapter;
}

/* The rules. False: the node stays as it is. */
static bool rewrite_linear(struct fp8 *f, const struct tr_node *old)
{
    if (!is_even(f->p, old->in[0]) || !is_even(f->p, old->in[1]) || is_adapter(f->p, old->in[1]))
        return false;
    struct quant x = quant_of(f, old->in[0], old->phase), w = quant_of(f, old->in[1], old->phase);
    product(f, old, x.q, x.scale, old->attr.weight_is_in_out ? w.qt : w.q, w.scale, old->in[2], TR_NONE);
    return true;
}

static bool rewrite_linear_dx(struct fp8 *f, const struct tr_node *old)
{
    if (!find(f, old->in[1]))
        return false;
    struct quant dy = quant_of(f, old->in[0], old->phase), w = *find(f, old->in[1]);
    product(f, old, dy.q, dy.scale, old->attr.weight_is_in_out ? w.q : w.qt, w.scale, TR_NONE, old->in[2]);
    return true;
}

static bool rewrite_linear_dw(struct fp8 *f, const struct tr_node *old)
{
    if (!find(f, old->in[1]) || !is_even(f->p, old->in[0]) || old->out[0] == TR_NONE || is_adapter(f->p, old->out[0]))
        return false;
    struct quant dy = quant_of(f, old->in[0], old->phase), x = *find(f, old->in[1]);
    bool in_out = old->attr.weight_is_in_out;
    struct quant a = in_out ? x : dy, b = in_out ? dy : x;
    product(f, old, a.qt, a.scale, b.qt, b.scale, TR_NONE, TR_NONE);
    if (old->out[1] !=
        TR_NONE) { /* a linear_dw without its product still sums the columns of the unquantised gradient */
        struct tr_node *n = tr_node_add(f->p, TR_OP_LINEAR_DW, old->phase);
        *n = *old;
        n->out[0] = TR_NONE;
    }
    return true;
}

static bool rewrite_same(struct fp8 *f, const struct tr_node *old)
{
    (void)f;
    (void)old;
    return false;
}

struct fp8_rule {
    bool (*rewrite)(struct fp8 *f, const struct tr_node *old);
    const char *reason; /* rewrite NULL: why there is none */
};
static const struct fp8_rule rule_same = { rewrite_same, NULL }, rule_linear = { rewrite_linear, NULL },
                             rule_linear_dx = { rewrite_linear_dx, NULL }, rule_linear_dw = { rewrite_linear_dw, NULL },
                             rule_later = { NULL, TR_WHY_LATER }, rule_inference = { NULL, TR_WHY_INFERENCE },
                             rule_update = { NULL, TR_WHY_UPDATE };

static const struct fp8_rule *const rules[TR_OP_COUNT] = {
#define X(id, tensor, context, grad, fp8) [TR_OP_##id] = &rule_##fp8,
    TR_RULE_LIST(X)
#undef X
};

enum tr_status tr_pass_fp8(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    enum tr_status st = TR_OK;
    struct tr_program *from = NULL;
    struct fp8 f = { .p = p, .gradient = ctx->fp8_e5m2 ? TR_E5M2 : TR_E4M3, .has_history = ctx->fp8_history };
    if (!ctx->fp8 || !ctx->is_training)
        return TR_OK;
    TR_TRY(tr_program_copy(p, &from));
    TR_TRY(TR_ALLOC(f.quant, (size_t)p->n_nodes * 2 + 1, "program %s", p->name));
    p->n_nodes = 0;
    for (int i = 0; i < from->n_nodes; i++) {
        const struct tr_node *old = &from->node[i];
        const struct fp8_rule *rule = rules[old->op];
        if (!rule->rewrite)
            tr_no_rule("fp8", from, old->op, rule->reason);
        if (!rule->rewrite(&f, old))
            *tr_node_add(p, old->op, old->phase) = *old;
    }
    st = p->failed;
out:
    tr_program_close(from);
    free(f.quant);
    return st;
}
