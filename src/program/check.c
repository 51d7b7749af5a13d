/* check.c - checks that every node of a program agrees with the row of its op: the slots, their shapes and their
 * dtypes. It runs after a model is built and after every pass, so the program stops at the pass that made a bad node,
 * and not in a kernel. */
#include "program/program.h"
#include <assert.h>

enum { N_LETTERS = 'z' - 'A' + 1 };

struct node_check {
    const struct tr_program *p;
    const struct tr_node *n;
    const char *after;       /* who made the program: "the model file" or "pass grad" */
    uint64_t known;          /* a bit for each letter whose size is known */
    int64_t size[N_LETTERS]; /* valid where the bit is set */
};
static_assert(N_LETTERS <= 64, "a bit for each letter");

static void know(struct node_check *c, char letter, int64_t size)
{
    if (size > 0) {
        c->known |= (uint64_t)1 << (letter - 'A');
        c->size[letter - 'A'] = size;
    }
}

TR_NORETURN static void bad_node(const struct node_check *c, const char *slot, const char *what)
{
    char text[512];
    (void)tr_format(text, sizeof text, "program %s after %s: node %d, op %s, slot %s: %s", c->p->name, c->after,
                    (int)(c->n - c->p->node), tr_op_row(c->n->op)->name, slot, what);
    tr_bug(__FILE__, __LINE__, text);
}

/* Does n agree with a size like "Hd"? A letter that is not known yet becomes known. Moves *at past the size. */
static bool size_fits(struct node_check *c, const char **at, int64_t n)
{
    int64_t known = 1;
    int n_unknown = 0;
    char unknown = 0, letter;
    for (; (letter = **at) >= '0'; (*at)++) { /* blanks, commas and brackets are all below */
        if (letter < 'A') {
            known *= letter - '0';
        } else if (c->known >> (letter - 'A') & 1) {
            known *= c->size[letter - 'A'];
        } else {
            unknown = letter;
            n_unknown++;
        }
    }
    if (n_unknown == 0)
        return n == known;
    if (known > 1 && n % known != 0)
        return false;
    if (n_unknown == 1)
        know(c, unknown, known > 1 ? n / known : n);
    return true;
}

/* Checks the dtype after the shape, "I32", "I64", "F32", "F64" or "U8", if there is one. No node of a program has
 * another one. */
static bool dtype_fits(const char *name, enum tr_dtype dtype)
{
    bool is_wide = *name && name[1] == '6';
    if (*name == 'I')
        return dtype == (is_wide ? TR_I64 : TR_I32);
    if (*name == 'U')
        return dtype == TR_U8;
    return *name != 'F' || dtype == (is_wide ? TR_F64 : TR_F32);
}

static void check_slot(struct node_check *c, const struct tr_slot *slot, tr_val v)
{
    char text[256];
    if (v == TR_NONE) {
        if (slot->name && slot->shape && !slot->is_optional)
            bad_node(c, slot->name, "is empty and not optional");
        return;
    }
    if (!slot->name || !slot->shape)
        bad_node(c, slot->name ? slot->name : "(none)", "the op has no such slot, but the node has a value there");
    if (v < 0 || v >= c->p->n_values)
        bad_node(c, slot->name, "is no value of this program");
    const struct tr_value *x = &c->p->value[v];
    bool is_turned = slot->is_weight && c->n->attr.weight_is_in_out;
    const char *at = slot->shape + 1;
    bool fits = size_fits(c, &at, is_turned ? x->cols : x->rows);
    at += 2; /* ", " */
    fits = size_fits(c, &at, is_turned ? x->rows : x->cols) && fits;
    at++; /* ")", then perhaps " F32" */
    if (fits && dtype_fits(at + (*at == ' '), x->dtype))
        return;
    (void)tr_format(text, sizeof text, "value %s#%d is %s (%" PRId64 ", %" PRId64 "), the row says %s%s", x->name,
                    (int)v, tr_dtype_name(x->dtype), x->rows, x->cols, slot->shape, is_turned ? " transposed" : "");
    bad_node(c, slot->name, text);
}

/* No node may read a value after a kernel has destroyed its contents. */
static void check_overwritten(const struct node_check *c, tr_val v, const char *slot)
{
    tr_val root = tr_value_root(c->p, v);
    for (const struct tr_node *n = c->n + 1; n < c->p->node + c->p->n_nodes; n++)
        for (int k = 0; k < TR_MAX_IN; k++)
            if (n->in[k] != TR_NONE && tr_value_root(c->p, n->in[k]) == root)
                bad_node(c, slot, "is overwritten here and read by a later node");
}

static void check_node(struct node_check *c)
{
    const struct tr_op_row *row = tr_op_row(c->n->op);
    const struct tr_attr *a = &c->n->attr;
    c->known = 0;
    know(c, 'H', a->n_heads_q);
    know(c, 'K', a->n_heads_kv);
    know(c, 'd', a->head_dim);
    know(c, 'g', a->group);
    know(c, 'S', TR_STEP_COUNT);
    for (int k = 0; k < TR_MAX_IN; k++) {
        check_slot(c, &row->in[k], c->n->in[k]);
        if (row->in[k].is_overwritten && c->n->in[k] != TR_NONE)
            check_overwritten(c, c->n->in[k], row->in[k].name);
    }
    for (int k = 0; k < TR_MAX_OUT; k++)
        check_slot(c, &row->out[k], c->n->out[k]);
}

void tr_program_check(const struct tr_program *p, const char *after)
{
    struct node_check c = { .p = p, .after = after };
    if (p->failed != TR_OK) /* memory ran out while it was built, so it is incomplete; its builder reports that */
        return;
    for (int i = 0; i < p->n_nodes; i++) {
        c.n = &p->node[i];
        check_node(&c);
    }
}
