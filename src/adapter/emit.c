/* emit.c - the nodes of a target: what stands in adapt.c as formulas. */
#include "adapter/adapt_impl.h"

enum { FIRST_DROPOUT = 16 }; /* models number their own dropouts from 1 */

static tr_val new_value(struct tr_program *p, tr_val like, int64_t cols, const char *what)
{
    char name[TR_NAME_MAX];
    (void)tr_format(name, sizeof name, "%.80s.%s", p->value[like].name, what);
    tr_val v = tr_value_like(p, like, name);
    p->value[v].cols = cols;
    return v;
}

static tr_val emit(struct tr_program *p, enum tr_opcode op, tr_val a, tr_val b, tr_val c, tr_val out)
{
    tr_node_put(p, op, TR_FORWARD, TR_VALS(a, b, c), TR_VALS(out), NULL);
    return out;
}

static tr_val emit_scale(struct tr_program *p, tr_val x, double factor)
{
    if ((float)factor == 1.0f)
        return x;
    tr_val y = new_value(p, x, p->value[x].cols, "scaled");
    tr_node_put(p, TR_OP_SCALE, TR_FORWARD, TR_VALS(x), TR_VALS(y), &(struct tr_attr){ .scale = (float)factor });
    return y;
}

/* The number of a linear among those of its program, targets or not. */
static int linear_number(const struct tr_program *from, int node)
{
    int k = 0;
    for (int i = 0; i < node; i++)
        k += from->node[i].op == TR_OP_LINEAR;
    return k;
}

static tr_val emit_dropout(const struct adapting *x, struct tr_program *p, tr_val in, int number)
{
    tr_val sample = tr_value_batch(p, TR_B_SAMPLE, x->m->n_tokens);
    tr_val position = tr_value_batch(p, TR_B_POSITIONS, x->m->n_tokens);
    tr_val step = tr_value_given(p, TR_V_STEP, 0, TR_F32, 1, TR_STEP_COUNT, "step");
    tr_val y = new_value(p, in, p->value[in].cols, "dropout");
    struct tr_attr attr = { .dropout_p = (float)x->a->dropout, .key = (uint64_t)(FIRST_DROPOUT + number) };
    tr_node_put(p, TR_OP_DROPOUT, TR_FORWARD, TR_VALS(in, sample, position, step), TR_VALS(y), &attr);
    return y;
}

static tr_val emit_add(struct tr_program *p, tr_val a, tr_val b, tr_val out)
{
    return emit(p, TR_OP_ADD, a, b, TR_NONE, out);
}

/* s B A of what A made. */
static tr_val emit_delta(struct tr_program *p, const struct site *s, tr_val u, tr_val y)
{
    bool has_bias = s->bias != TR_NONE; /* it is scaled too */
    u = has_bias ? u : emit_scale(p, u, s->target->scale);
    tr_val d = emit(p, TR_OP_LINEAR, u, s->b, s->bias, new_value(p, y, p->value[y].cols, "delta"));
    return has_bias ? emit_scale(p, d, s->target->scale) : d;
}

static tr_val emit_base(struct tr_program *p, struct tr_node n, tr_val x, tr_val bias, const char *what)
{
    n.in[0] = x;
    n.in[2] = bias;
    n.out[0] = new_value(p, n.out[0], p->value[n.out[0]].cols, what);
    *tr_node_add(p, n.op, n.phase) = n;
    return n.out[0];
}

/* x m / |W + s B A| + bias */
static tr_val emit_magnitude(struct tr_program *p, const struct site *s, const struct tr_node *n, tr_val x, tr_val bias,
                             tr_val out)
{
    tr_val squares = tr_value_fixed(p, TR_V_TEMP, TR_F32, 1, p->value[out].cols, "squares");
    p->value[squares].is_of_weights = true;
    struct tr_attr attr = { .scale = (float)s->target->scale, .weight_is_in_out = n->attr.weight_is_in_out };
    tr_node_put(p, TR_OP_ROW_SQUARES, TR_FORWARD, TR_VALS(n->in[1], s->a, s->b, s->start_a, s->start_b),
                TR_VALS(squares), &attr);
    tr_node_put(p, TR_OP_COL_SCALE, TR_FORWARD, TR_VALS(x, s->magnitude, squares, bias), TR_VALS(out), NULL);
    return out;
}

/* -s B0 A0 x: what the base of PiSSA and OLoRA is without. */
static tr_val emit_start(struct tr_program *p, const struct site *s, tr_val x, tr_val y)
{
    tr_val u = emit(p, TR_OP_LINEAR, x, s->start_a, TR_NONE, new_value(p, x, s->target->r, "start"));
    u = emit_scale(p, u, -s->target->scale);
    return emit(p, TR_OP_LINEAR, u, s->start_b, TR_NONE, new_value(p, y, p->value[y].cols, "started"));
}

/* What A and B give beyond what they began with, which the base is without: s B A x' - s B0 A0 x. Where nothing has
 * been learnt this is exactly zero. */
static tr_val emit_change(struct tr_program *p, const struct site *s, tr_val x, tr_val y, tr_val delta)
{
    if (s->start_a == TR_NONE)
        return delta;
    return emit_add(p, delta, emit_start(p, s, x, y), new_value(p, y, p->value[y].cols, "change"));
}

/* The product of the base without its start. */
static tr_val emit_rest(struct tr_program *p, const struct site *s, tr_val x, tr_val base)
{
    if (s->start_a == TR_NONE)
        return base;
    return emit_add(p, base, emit_start(p, s, x, base), new_value(p, base, p->value[base].cols, "rest"));
}

/* With dropout PEFT scales what the dropped input gives, and leaves the base as it is:
 * y = W x + b + (m / |W + s B A| (W x' + s B A x') - W x'). */
static void emit_dora(struct tr_program *p, const struct site *s, struct tr_node n, tr_val dropped)
{
    tr_val y = n.out[0], x = n.in[0], bias = n.in[2];
    bool has_dropout = dropped != x;
    tr_val u = emit(p, TR_OP_LINEAR, dropped, s->a, TR_NONE, new_value(p, dropped, s->target->r, "lora"));
    tr_val base = has_dropout ? emit_rest(p, s, x, emit_base(p, n, x, bias, "base")) : TR_NONE;
    tr_val seen = emit_base(p, n, dropped, TR_NONE, "seen"), d = emit_delta(p, s, u, y);
    seen = has_dropout ? emit_rest(p, s, dropped, seen) : seen;
    d = has_dropout ? d : emit_change(p, s, x, y, d);
    tr_val sum = emit_add(p, seen, d, new_value(p, y, p->value[y].cols, "adapted"));
    if (!has_dropout) {
        (void)emit_magnitude(p, s, &n, sum, bias, y);
        return;
    }
    tr_val scaled = emit_magnitude(p, s, &n, sum, TR_NONE, new_value(p, y, p->value[y].cols, "dora"));
    tr_val minus = emit_scale(p, seen, -1);
    (void)emit_add(p, base, emit_add(p, minus, scaled, new_value(p, y, p->value[y].cols, "more")), y);
}

static void emit_embedding(struct tr_program *p, const struct site *s, struct tr_node n)
{
    tr_val y = n.out[0], base = new_value(p, y, p->value[y].cols, "base");
    struct tr_node column = n;
    n.out[0] = base;
    *tr_node_add(p, n.op, n.phase) = n;
    column.in[1] = s->a;
    column.out[0] = new_value(p, y, s->target->r, "lora");
    column.attr.weight_is_in_out = true;
    *tr_node_add(p, n.op, n.phase) = column;
    tr_val d = emit_delta(p, s, column.out[0], y);
    if (s->magnitude == TR_NONE) {
        (void)emit_add(p, base, d, y);
        return;
    }
    tr_val sum = emit_add(p, base, d, new_value(p, y, p->value[y].cols, "adapted"));
    n.attr.weight_is_in_out = true; /* a table has a row for each token, and columns are its outputs */
    (void)emit_magnitude(p, s, &n, sum, TR_NONE, y);
}

/* Emits a linear that is a target. dropped: the input of its A. The head's matrix is held without its start, as the
 * loss reads it (load_start.c). */
static void emit_linear(struct tr_program *p, const struct site *s, struct tr_node n, tr_val dropped)
{
    tr_val y = n.out[0], base = emit_base(p, n, n.in[0], n.in[2], "base");
    tr_val u = emit(p, TR_OP_LINEAR, dropped, s->a, TR_NONE, new_value(p, dropped, s->target->r, "lora"));
    tr_val d = emit_delta(p, s, u, y);
    (void)emit_add(p, base, s->is_head ? d : emit_change(p, s, n.in[0], y, d), y);
}

/* What A of a site reads. The mask has the number of the linear, so it does not depend on what is targeted. */
static tr_val input_of_a(const struct adapting *x, struct tr_program *p, const struct tr_program *from,
                         const struct site *s)
{
    tr_val in = from->node[s->node].in[0];
    bool drops = x->is_training && x->a->dropout > 0;
    return drops ? emit_dropout(x, p, in, linear_number(from, s->node)) : in;
}

/* The loss adds u B^T to its logits: s B A x without a value of their size. */
static void emit_head(struct tr_program *p, const struct site *s, struct tr_node n, tr_val dropped)
{
    tr_val u = emit(p, TR_OP_LINEAR, dropped, s->a, TR_NONE, new_value(p, dropped, s->target->r, "lora"));
    n.in[tr_head_u(n.op)] = emit_scale(p, u, s->target->scale);
    n.in[tr_head_u(n.op) + 1] = s->b;
    *tr_node_add(p, n.op, n.phase) = n;
}

static tr_val emit_rows(struct tr_program *p, tr_val x, tr_val rows, tr_val y, int64_t cols, bool is_in_out)
{
    tr_val out = emit(p, TR_OP_LINEAR, x, rows, TR_NONE, new_value(p, y, cols, "rows"));
    p->node[p->n_nodes - 1].attr.weight_is_in_out = is_in_out;
    return out;
}

/* E[i] - E0[i] + E1[i]: where token i has a row that learns, the first two cancel exactly; elsewhere the last two are
 * zero. */
static void emit_token_rows(struct tr_program *p, const struct site *s, struct tr_node n)
{
    tr_val y = n.out[0];
    int64_t cols = p->value[y].cols;
    struct tr_node pick = n;
    n.out[0] = new_value(p, y, cols, "base");
    *tr_node_add(p, n.op, n.phase) = n;
    pick.in[1] = s->pick;
    pick.out[0] = new_value(p, y, p->value[s->pick].cols, "pick");
    *tr_node_add(p, n.op, n.phase) = pick;
    tr_val rest =
        emit_add(p, n.out[0], emit_rows(p, pick.out[0], s->rows_minus, y, cols, true), new_value(p, y, cols, "others"));
    (void)emit_add(p, rest, emit_rows(p, pick.out[0], s->rows, y, cols, true), y);
}

/* The logits of the head get u pick^T, with u = E1 x - E0 x. */
static void emit_token_logits(struct tr_program *p, const struct site *s, struct tr_node n)
{
    tr_val x = n.in[0], y = n.out[0];
    int64_t n_rows = p->value[s->pick].cols;
    tr_val minus = emit_rows(p, x, s->rows_minus, x, n_rows, false), now = emit_rows(p, x, s->rows, x, n_rows, false);
    tr_val u = emit_add(p, minus, now, new_value(p, x, n_rows, "tokens"));
    if (n.op == TR_OP_HEAD_LOSS) {
        n.in[tr_head_u(n.op)] = u;
        n.in[tr_head_u(n.op) + 1] = s->pick;
        *tr_node_add(p, n.op, n.phase) = n;
        return;
    }
    tr_val base = emit_base(p, n, x, n.in[2], "base");
    (void)emit_add(p, base, emit_rows(p, u, s->pick, y, p->value[y].cols, false), y);
}

void tr_adapt_emit(const struct adapting *x, struct tr_program *p, const struct tr_program *from, const struct site *s)
{
    struct tr_node n = from->node[s->node];
    if (s->pick != TR_NONE)
        (s->is_head ? emit_token_logits : emit_token_rows)(p, s, n);
    else if (n.op == TR_OP_EMBED)
        emit_embedding(p, s, n);
    else if (n.op == TR_OP_HEAD_LOSS)
        emit_head(p, s, n, input_of_a(x, p, from, s));
    else
        (s->magnitude == TR_NONE ? emit_linear : emit_dora)(p, s, n, input_of_a(x, p, from, s));
}
