/* case_call.h - turns a row of cases.h into a tr_call with data.
 *
 * Every buffer starts as 0xff bytes: a NaN in each float type, so a kernel that reads padding or an output it should
 * overwrite shows it, and bytes around a view that are no longer 0xff were written by mistake.
 */
#ifndef TR_TESTS_OPS_CASE_CALL_H
#define TR_TESTS_OPS_CASE_CALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/case_fill.h"

enum { N_VIEWS = TR_MAX_IN + TR_MAX_OUT, GUARD = 64 };

struct mode {
    const char *name;
    enum tr_dtype act, grad, state, stat;
    bool is_padded;  /* views are column slices of wider values */
    bool accumulate; /* acc outputs start with numbers */
};

struct built {
    const struct op_case *row;
    struct tr_call c;
    char label[96];
    char row_dim[N_VIEWS]; /* size letter of each view's rows; inputs first, outputs from TR_MAX_IN */
    unsigned char *base[N_VIEWS];
    size_t n_bytes[N_VIEWS];
};

static inline struct tr_view *view_of(struct built *b, int i)
{
    return i < TR_MAX_IN ? &b->c.in[i] : &b->c.out[i - TR_MAX_IN];
}

static const struct op_shape *shape_of(enum tr_opcode op)
{
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++)
        if (shapes[i].op == op)
            return &shapes[i];
    fail_msg("op %d has no row in shapes", (int)op);
    return NULL;
}

static inline int64_t size_of(const struct op_case *r, char letter)
{
    const struct tr_attr *a = &r->attr;
    int64_t group = a->group ? a->group : r->d;
    switch (letter) {
    case 'N':
        return r->n;
    case 'D':
        return r->d;
    case 'A':
        return r->n * r->d;
    case 'F':
        return 1 + r->n + r->d;
    case 'O':
        return r->o;
    case 'V':
        return r->v;
    case 'W':
        return a->weight_is_in_out ? r->d : r->o;
    case 'w':
        return a->weight_is_in_out ? r->o : r->d;
    case 'T':
        return a->weight_is_in_out ? r->d : r->v;
    case 't':
        return a->weight_is_in_out ? r->v : r->d;
    case 'g':
        return group;
    case 'G':
        return r->d / group;
    case 'Q':
        return (int64_t)a->n_heads_q * a->head_dim;
    case 'K':
        return (int64_t)a->n_heads_kv * a->head_dim;
    case 'H':
        return a->n_heads_q;
    case 'R':
        return r->rope_cols;
    case 'S':
        return TR_STEP_COUNT;
    case 'E':
        return (r->d + TR_DYNAMIC_BLOCK - 1) / TR_DYNAMIC_BLOCK;
    case 'B':
        return (int64_t)(tr_packed_bytes((enum tr_packed)a->packed, r->d * r->o) /
                         tr_packed_grain_bytes((enum tr_packed)a->packed));
    case 'J':
        return r->has_more ? 3 : 2;
    case 'L':
        return r->has_more ? TR_DOC_ALL_SUMS : TR_DOC_SUMS;
    case 'b':
        return (int64_t)tr_packed_grain_bytes((enum tr_packed)a->packed);
    default:
        return letter - '0';
    }
}

static inline enum tr_dtype dtype_of(const struct mode *m, const struct op_case *r, char kind)
{
    switch (kind) {
    case 'a':
        return m->act;
    case 'f':
    case 'e':
    case 'r':
        return m->stat;
    case 'k':
    case 'w':
    case 'y':
        return TR_F32;
    case 'g':
        return m->grad;
    case 'P':
    case 'm':
    case 'v':
        return m->state;
    case 'c':
        return m->act != TR_F32 ? TR_F32 : m->is_padded ? TR_F16 : TR_BF16;
    case 'd':
        return TR_BF16;
    case 'D':
    case 'F':
        return TR_F64;
    case 'z':
        return TR_F32;
    case 's':
        return TR_I64;
    case 'q':
        return r->e5m2 == 1 ? TR_E5M2 : TR_E4M3;
    case 'h':
        return r->e5m2 == 2 ? TR_E5M2 : TR_E4M3;
    case 'x':
    case 'u':
        return TR_U8;
    default:
        return TR_I32;
    }
}

static inline void add_view(struct built *b, const struct mode *m, int i, char kind, char rows, char cols)
{
    struct tr_view *v = view_of(b, i);
    *v = (struct tr_view){ .dtype = dtype_of(m, b->row, kind),
                           .rows = size_of(b->row, rows),
                           .cols = size_of(b->row, cols) };
    bool is_padded = m->is_padded && kind != 'x';
    v->ld = v->cols + (is_padded ? 3 : 0);
    size_t elem = tr_dtype_bytes(v->dtype), skip = is_padded ? elem : 0;
    b->row_dim[i] = rows;
    b->n_bytes[i] = tr_round_up((size_t)(v->rows * v->ld) * elem + skip, 64) + 64;
    b->base[i] = aligned_alloc(64, b->n_bytes[i]);
    assert_non_null(b->base[i]);
    memset(b->base[i], 0xff, b->n_bytes[i]);
    v->data = b->base[i] + skip;
    /* Outputs: optimizer state is read; acc outputs are read when they accumulate; the rest starts as NaN. */
    bool is_state = strchr("PmvkuwdFy", kind) != NULL;
    bool is_acc = i >= TR_MAX_IN && b->c.accumulate[i - TR_MAX_IN];
    if (i < TR_MAX_IN || is_state || is_acc)
        fill(b->row, v, kind,
             (uint64_t)b->c.op * N_VIEWS + (uint64_t)i); /* dy must not equal x: some errors cancel then */
}

static inline void add_views(struct built *b, const struct mode *m, const char *spec, int first)
{
    for (int i = first; *spec; i++) {
        bool is_optional = *spec == '?', needs_dropout = *spec == '%', needs_more = *spec == '~';
        spec += is_optional || needs_dropout || needs_more;
        bool is_absent = *spec == '-' || (is_optional && b->row->is_bare) ||
                         (needs_dropout && b->row->attr.dropout_p <= 0) || (needs_more && !b->row->has_more);
        if (!is_absent)
            add_view(b, m, i, spec[0], spec[1], spec[2]);
        spec += *spec == '-' ? 1 : 3;
        spec += *spec == ' ';
    }
}

/* Random inputs, NaN outputs. */
static inline void build(struct built *b, const struct op_case *row, enum tr_opcode op, const struct mode *m)
{
    const struct op_shape *s = shape_of(op);
    *b = (struct built){ .row = row, .c = { .op = op, .attr = row->attr } };
    snprintf(b->label, sizeof b->label, "%s (%s, %s)", tr_op_row(op)->name, row->label, m->name);
    for (int i = 0; i < TR_MAX_OUT; i++)
        b->c.accumulate[i] = m->accumulate && tr_op_row(op)->out[i].accumulates;
    add_views(b, m, s->in, 0);
    add_views(b, m, s->out, TR_MAX_IN);
}

static inline void copy_view(const struct tr_view *from, const struct tr_view *to)
{
    size_t elem = tr_dtype_bytes(to->dtype);
    if (!from->data || !to->data)
        return;
    assert_int_equal(from->dtype, to->dtype);
    for (int64_t row = 0; row < to->rows; row++)
        memcpy((char *)to->data + (size_t)(row * to->ld) * elem,
               (const char *)from->data + (size_t)(row * from->ld) * elem, (size_t)to->cols * elem);
}

/* A backward call whose inputs come from a forward call that has run. */
static inline void build_backward(struct built *b, struct built *forward, const struct op_grad *g, const struct mode *m)
{
    build(b, forward->row, g->backward, m);
    if (g->backward == TR_OP_ROPE || g->backward == TR_OP_REGROUP)
        b->c.attr.inverse = !b->c.attr.inverse;
    for (int i = 0; g->in[i]; i++) {
        char from = g->in[i];
        if (from >= '0' && from <= '9')
            copy_view(&forward->c.in[from - '0'], &b->c.in[i]);
        else if (from == 'A' || from == 'B')
            copy_view(&forward->c.out[from - 'A'], &b->c.in[i]);
    }
}

static inline void release(struct built *b)
{
    for (int i = 0; i < N_VIEWS; i++)
        free(b->base[i]);
    free(b->c.scratch);
    *b = (struct built){ 0 };
}

static inline void run_kernel(struct built *b, tr_kernel kernel, struct tr_pool *pool)
{
    size_t bytes = tr_op_scratch(&b->c, tr_pool_threads(pool));
    unsigned char *scratch = aligned_alloc(64, tr_round_up(bytes, 64) + GUARD);
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes + GUARD);
    b->c.scratch = scratch;
    b->c.pool = pool;
    kernel(&b->c);
    for (size_t i = 0; i < GUARD; i++)
        if (scratch[bytes + i] != 0xff)
            fail_msg("%s writes past its %zu scratch bytes", b->label, bytes);
    free(scratch);
    b->c.scratch = NULL;
}

static inline void run_fast(struct built *b, struct tr_pool *pool)
{
    run_kernel(b, tr_op_cpu_fast(b->c.op), pool);
}

#endif
