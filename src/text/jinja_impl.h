/* jinja_impl.h - the evaluator of templates, as its parts share it.
 *
 * Errors are sticky: the first one is kept in eval.st, later work is a no-op on harmless values, and every loop stops
 * at tr_j_step(). That keeps the evaluator free of cleanup paths.
 */
#ifndef TR_TEXT_JINJA_IMPL_H
#define TR_TEXT_JINJA_IMPL_H

#include "text/jinja_value.h"

enum {
    TR_J_MAX_TEMPLATE = 1 << 20,
    TR_J_MAX_TOKENS = 1 << 18,
    TR_J_MAX_NODES = 1 << 17,
    TR_J_MAX_NAMES = 4096,
    TR_J_MAX_TREE = 200,  /* depth of the tree */
    TR_J_MAX_DEPTH = 600, /* of evaluation, through macro calls */
    TR_J_MAX_STEPS = 10 * 1000 * 1000,
    TR_J_MAX_OUTPUT = 16 << 20,
    TR_J_MAX_MEMORY = 256 << 20,
    TR_J_MAX_RANGE = 100000, /* as jinja2's sandbox */
    TR_J_MAX_PARAMS = 6,
};

struct arena {
    struct chunk *head;
    size_t n_used, n_max;
};
void *tr_j_alloc(struct arena *a, size_t n); /* zeroed; NULL over n_max or out of memory */
void tr_j_arena_release(struct arena *a);

/* ---- tables of functions ---- */

struct kwarg {
    const char *name;
    struct val value;
};
struct args {
    const struct val *pos;
    const struct kwarg *kw;
    size_t n_pos, n_kw;
    struct macro *caller; /* the body of a {% call %} */
};

typedef struct val builtin_fn(struct eval *e, struct val self, const struct val *a, const struct args *raw);

/* One row of a table of filters, tests, methods or functions. params: names in order, "!" behind a required one; "*" =
 * the function reads raw itself. fn NULL: a name jinja2 or Python knows and we refuse. */
struct builtin {
    const char *name, *params;
    builtin_fn *fn;
};

const struct builtin *tr_j_filter(const char *name);
const struct builtin *tr_j_filter_text(const char *name); /* the two halves of the filter table */
const struct builtin *tr_j_filter_seq(const char *name);
const struct builtin *tr_j_test(const char *name);
const struct builtin *tr_j_global(const char *name);
const struct builtin *tr_j_method(enum kind kind, const char *name, size_t n);
const struct builtin *tr_j_find(const struct builtin *rows, size_t n_rows, const char *name, size_t n);
struct val tr_j_call_builtin(struct eval *e, const struct builtin *b, struct val self, const struct args *raw);

struct node; /* of jinja_tree.h */

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN
};

struct macro {
    const struct node *node;
    struct scope *scope;
};

/* ---- evaluator ---- */

struct binding {
    const char *name;
    struct val value;
};
struct scope {
    struct scope *up;
    struct binding *b;
    size_t n, n_cap;
};

struct eval {
    const struct tr_jinja *t;
    struct arena mem;
    enum tr_status st;
    int line, depth, loop_depth;
    int64_t n_steps, now_s;
    struct scope *scope;
    struct tr_str *out;
    int n_captures; /* output goes to a set block or macro, not to the text */
    struct tr_marks *spans;
};

/* Always returns K_UNDEF, so that a function can end with it. */
struct val tr_j_fail(struct eval *e, const char *fmt, ...) TR_PRINTF(2, 3);
bool tr_j_step(struct eval *e, size_t n); /* n units of work; false: stop, there is an error */
void *tr_j_get(struct eval *e, size_t n); /* from the rendering's arena; NULL after an error */
void tr_j_emit(struct eval *e, const char *p, size_t n);

struct val tr_j_eval(struct eval *e, const struct node *n);
struct val tr_j_eval_filter(struct eval *e, const struct node *n, struct val in);
struct val tr_j_eval_call(struct eval *e, const struct node *n, struct macro *caller);
struct val tr_j_lookup(struct eval *e, const char *name);
struct val tr_j_call_macro(struct eval *e, struct macro *m, const struct args *args);
struct val tr_j_call(struct eval *e, struct val fn, const struct args *args);
struct val tr_j_attr(struct eval *e, struct val obj, struct val name);
struct val tr_j_item(struct eval *e, struct val obj, struct val key);
struct val tr_j_slice(struct eval *e, struct val obj, const struct val bound[3]);
struct val tr_j_binary(struct eval *e, enum op op, struct val a, struct val b);
bool tr_j_compare(struct eval *e, enum op op, struct val a, struct val b);
struct val tr_j_percent(struct eval *e, const struct str *format, const struct val *v, size_t n);

#endif
