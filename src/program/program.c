/* program.c - storage, copying and printing of programs. */
#include "program/program.h"
#include <stdlib.h>

enum { N_FIRST = 32 };

/* The arrays are never empty: when memory runs out, a builder goes on writing into the last element (see grow) and
 * reads p->failed at the end. */
enum tr_status tr_program_open(const char *name, struct tr_program **out)
{
    struct tr_program *p = calloc(1, sizeof *p);
    if (p) {
        p->n_values_cap = p->n_nodes_cap = p->n_params_cap = N_FIRST;
        p->value = calloc(N_FIRST, sizeof *p->value);
        p->node = calloc(N_FIRST, sizeof *p->node);
        p->param = calloc(N_FIRST, sizeof *p->param);
    }
    if (!p || !p->value || !p->node || !p->param) {
        tr_program_close(p);
        return tr_fail(TR_NOMEM, "program %s: out of memory", name);
    }
    (void)tr_format(p->name, sizeof p->name, "%s", name);
    p->in = p->out = p->dout = p->din = TR_NONE;
    *out = p;
    return TR_OK;
}

void tr_program_close(struct tr_program *p)
{
    if (!p)
        return;
    free(p->value);
    free(p->node);
    free(p->param);
    free(p);
}

static bool copy_array(void *dst, const void *src, size_t n, size_t size)
{
    void *mem = calloc(n ? n : 1, size);
    if (mem && n)
        memcpy(mem, src, n * size);
    memcpy(dst, &mem, sizeof mem);
    return mem != NULL;
}

enum tr_status tr_program_copy(const struct tr_program *p, struct tr_program **out)
{
    struct tr_program *q = NULL;
    TR_PASS(TR_ALLOC(q, 1, "program %s", p->name));
    *q = *p;
    q->n_values_cap = (size_t)tr_max64(p->n_values, 1);
    q->n_nodes_cap = (size_t)tr_max64(p->n_nodes, 1);
    q->n_params_cap = (size_t)tr_max64(p->n_params, 1);
    q->value = NULL;
    q->node = NULL;
    q->param = NULL;
    if (!copy_array(&q->value, p->value, (size_t)p->n_values, sizeof *p->value) ||
        !copy_array(&q->node, p->node, (size_t)p->n_nodes, sizeof *p->node) ||
        !copy_array(&q->param, p->param, (size_t)p->n_params, sizeof *p->param)) {
        tr_program_close(q);
        return tr_fail(TR_NOMEM, "program %s: out of memory", p->name);
    }
    *out = q;
    return TR_OK;
}

/* Makes room for one more element. On failure the caller writes into the last element instead, which does no harm. */
static bool grow(struct tr_program *p, void *array, int n, size_t *n_cap, size_t size)
{
    bool ok = tr_room(array, size, (size_t)n + 1, n_cap, "program %s", p->name) == TR_OK;
    if (!ok)
        p->failed = TR_NOMEM;
    return ok;
}

tr_val tr_value_add(struct tr_program *p, enum tr_value_kind kind, enum tr_dtype dtype, int64_t rows, int64_t cols,
                    const char *name)
{
    if (!grow(p, &p->value, p->n_values, &p->n_values_cap, sizeof *p->value))
        return p->n_values - 1;
    struct tr_value *v = &p->value[p->n_values];
    *v = (struct tr_value){ .kind = kind, .dtype = dtype, .rows = rows, .cols = cols, .base = TR_NONE };
    (void)tr_format(v->name, sizeof v->name, "%s", name);
    return p->n_values++;
}

tr_val tr_value_fixed(struct tr_program *p, enum tr_value_kind kind, enum tr_dtype dtype, int64_t rows, int64_t cols,
                      const char *name)
{
    tr_val v = tr_value_add(p, kind, dtype, rows, cols, name);
    p->value[v].dtype_is_fixed = true;
    return v;
}

tr_val tr_value_given(struct tr_program *p, enum tr_value_kind kind, int slot, enum tr_dtype dtype, int64_t rows,
                      int64_t cols, const char *name)
{
    for (tr_val v = 0; v < p->n_values; v++)
        if (p->value[v].kind == kind && p->value[v].slot == slot)
            return v;
    tr_val v = tr_value_fixed(p, kind, dtype, rows, cols, name);
    p->value[v].slot = slot;
    return v;
}

tr_val tr_value_batch(struct tr_program *p, enum tr_batch_slot slot, int64_t rows)
{
    return tr_value_given(p, TR_V_BATCH, (int)slot, tr_batch_dtype(slot), rows, 1, tr_batch_name(slot));
}

tr_val tr_value_view(struct tr_program *p, tr_val base, int64_t col, int64_t cols, const char *name)
{
    struct tr_value b = p->value[base];
    TR_BUG_ON(col < 0 || col + cols > b.cols);
    tr_val v = tr_value_add(p, b.kind, b.dtype, b.rows, cols, name);
    p->value[v].base = base;
    p->value[v].col = col;
    p->value[v].slot = b.slot;
    p->value[v].dtype_is_fixed = b.dtype_is_fixed;
    return v;
}

tr_val tr_value_alias(struct tr_program *p, tr_val base, const char *name)
{
    tr_val v = tr_value_view(p, base, 0, p->value[base].cols, name);
    p->value[v].is_alias = true;
    return v;
}

tr_val tr_value_like(struct tr_program *p, tr_val v, const char *name)
{
    struct tr_value a = p->value[v];
    tr_val out = tr_value_add(p, TR_V_TEMP, a.dtype, a.rows, a.cols, name);
    p->value[out].dtype_is_fixed = a.dtype_is_fixed;
    p->value[out].is_of_weights = a.is_of_weights;
    return out;
}

struct tr_node *tr_node_add(struct tr_program *p, enum tr_opcode op, enum tr_phase phase)
{
    static struct tr_node sink; /* written only when memory ran out; p->failed says so */
    struct tr_node *n = &sink;
    if (grow(p, &p->node, p->n_nodes, &p->n_nodes_cap, sizeof *p->node))
        n = &p->node[p->n_nodes++];
    *n = (struct tr_node){ .op = op, .phase = phase };
    for (int i = 0; i < TR_MAX_IN; i++)
        n->in[i] = TR_NONE;
    for (int i = 0; i < TR_MAX_OUT; i++)
        n->out[i] = TR_NONE;
    return n;
}

struct tr_node *tr_node_put(struct tr_program *p, enum tr_opcode op, enum tr_phase phase, struct tr_vals in,
                            struct tr_vals out, const struct tr_attr *attr)
{
    struct tr_node *n = tr_node_add(p, op, phase);
    TR_BUG_ON(in.n > TR_MAX_IN || out.n > TR_MAX_OUT);
    memcpy(n->in, in.v, in.n * sizeof *n->in);
    memcpy(n->out, out.v, out.n * sizeof *n->out);
    if (attr)
        n->attr = *attr;
    return n;
}

tr_val tr_param_add(struct tr_program *p, const struct tr_local_param *l)
{
    tr_val v = tr_value_add(p, TR_V_PARAM, TR_F32, l->rows, l->cols, l->name);
    if (!grow(p, &p->param, p->n_params, &p->n_params_cap, sizeof *p->param))
        return v;
    p->param[p->n_params] = *l;
    p->value[v].slot = p->n_params++;
    return v;
}

tr_val tr_value_root(const struct tr_program *p, tr_val v)
{
    while (v != TR_NONE && p->value[v].base != TR_NONE)
        v = p->value[v].base;
    return v;
}

static struct tr_view shape_of(const struct tr_program *p, tr_val v)
{
    if (v == TR_NONE)
        return (struct tr_view){ 0 };
    const struct tr_value *x = &p->value[v];
    return (struct tr_view){
        .dtype = x->dtype, .rows = x->rows, .cols = x->cols, .ld = p->value[tr_value_root(p, v)].cols
    };
}

void tr_node_call(const struct tr_program *p, const struct tr_node *n, struct tr_call *out)
{
    *out = (struct tr_call){ .op = n->op, .attr = n->attr };
    for (int i = 0; i < TR_MAX_IN; i++)
        out->in[i] = shape_of(p, n->in[i]);
    for (int i = 0; i < TR_MAX_OUT; i++)
        out->out[i] = shape_of(p, n->out[i]);
}

double tr_program_flops(const struct tr_program *p, enum tr_phase phase)
{
    double sum = 0;
    for (int i = 0; i < p->n_nodes; i++) {
        struct tr_call c;
        if (p->node[i].phase != phase)
            continue;
        tr_node_call(p, &p->node[i], &c);
        sum += tr_op_flops(&c);
    }
    return sum;
}

static void print_slots(const struct tr_program *p, const struct tr_slot *slot, const tr_val *v, int n,
                        struct tr_str *out)
{
    const char *sep = "";
    while (n > 0 && v[n - 1] == TR_NONE)
        n--;
    for (int i = 0; i < n; i++) {
        tr_str_addf(out, "%s%s:", sep, slot[i].name ? slot[i].name : "?");
        if (v[i] == TR_NONE)
            tr_str_addf(out, "-");
        else
            tr_str_addf(out, "%s#%d", p->value[v[i]].name, (int)v[i]);
        sep = ", ";
    }
}

void tr_program_print(const struct tr_program *p, struct tr_str *out)
{
    static const char *const phase[] = { "forward", "backward", "weight" };
    tr_str_addf(out, "segment %s: %d ops, %d values\n", p->name, p->n_nodes, p->n_values);
    for (int i = 0; i < p->n_nodes; i++) {
        const struct tr_node *n = &p->node[i];
        const struct tr_op_row *row = tr_op_row(n->op);
        const struct tr_value *o = &p->value[n->out[0] == TR_NONE ? 0 : n->out[0]];
        tr_str_addf(out, "  %-8s ", phase[n->phase]);
        print_slots(p, row->out, n->out, TR_MAX_OUT, out);
        tr_str_addf(out, " = %s(", row->name);
        print_slots(p, row->in, n->in, TR_MAX_IN, out);
        tr_str_addf(out, ")  %s (%" PRId64 ", %" PRId64 ")%s\n", tr_dtype_name(o->dtype), o->rows, o->cols,
                    o->is_saved ? " saved" : "");
    }
}
