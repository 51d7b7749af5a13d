/* jinja_impl.h - the state of the template evaluator and the functions that its files share.
 *
 * Errors are sticky: the first error is kept in eval.st, later calls work on harmless values without effect, and every
 * loop stops at tr_jinja_step(). That keeps the evaluator free of cleanup paths.
 */
#ifndef TR_TEXT_JINJA_IMPL_H
#define TR_TEXT_JINJA_IMPL_H

#include "text/jinja_value.h"

enum {
    TR_JINJA_MAX_TEMPLATE = 1 << 20,
    TR_JINJA_MAX_TOKENS = 1 << 18,
    TR_JINJA_MAX_NODES = 1 << 17,
    TR_JINJA_MAX_NAMES = 4096,
    TR_JINJA_MAX_TREE = 200,  /* depth of the tree */
    TR_JINJA_MAX_DEPTH = 600, /* of evaluation, macro calls included */
    TR_JINJA_MAX_STEPS = 10 * 1000 * 1000,
    TR_JINJA_MAX_OUTPUT = 16 << 20,
    TR_JINJA_MAX_MEMORY = 256 << 20,
    TR_JINJA_MAX_RANGE = 100000, /* the limit of jinja2's sandbox */
    TR_JINJA_MAX_PARAMS = 6,
};

struct tr_jinja_arena {
    struct tr_jinja_chunk *head;
    size_t n_used, n_max;
};
void *tr_jinja_alloc(struct tr_jinja_arena *a, size_t n); /* zeroed; NULL over n_max or out of memory */
void tr_jinja_arena_release(struct tr_jinja_arena *a);

/* ---- tables of functions ---- */

struct tr_jinja_kwarg {
    const char *name;
    struct tr_jinja_val value;
};
struct tr_jinja_args {
    const struct tr_jinja_val *pos;
    const struct tr_jinja_kwarg *kw;
    size_t n_pos, n_kw;
    struct tr_jinja_macro *caller; /* the body of a {% call %} */
};

typedef struct tr_jinja_val tr_jinja_builtin_fn(struct tr_jinja_eval *e, struct tr_jinja_val self,
                                                const struct tr_jinja_val *a, const struct tr_jinja_args *raw);

/* Defines one: v is what it is called on. Few need all that they are given. */
#define TR_JINJA_FN(name)                                                                                              \
    static struct tr_jinja_val name(TR_UNUSED struct tr_jinja_eval *e, TR_UNUSED struct tr_jinja_val v,                \
                                    TR_UNUSED const struct tr_jinja_val *a, TR_UNUSED const struct tr_jinja_args *raw)
/* One that is a single expression. */
#define TR_JINJA_RETURNS(name, value)                                                                                  \
    TR_JINJA_FN(name)                                                                                                  \
    {                                                                                                                  \
        return value;                                                                                                  \
    }

/* One row of a table of filters, tests, methods or functions. params holds the names in order, with "!" after a
 * required one; "*" means that the function reads `raw` itself. fn is NULL for a name that exists in jinja2 or Python
 * and is refused here. */
struct tr_jinja_builtin {
    const char *name, *params;
    tr_jinja_builtin_fn *fn;
};

/* The text with the characters of HTML replaced; one that is |safe stays. The result is safe. */
struct tr_jinja_val tr_jinja_escape(struct tr_jinja_eval *e, struct tr_jinja_val v);
const struct tr_jinja_builtin *tr_jinja_filter(const char *name);
const struct tr_jinja_builtin *tr_jinja_filter_text(const char *name); /* the two halves of the filter table */
const struct tr_jinja_builtin *tr_jinja_filter_seq(const char *name);
const struct tr_jinja_builtin *tr_jinja_test(const char *name);
const struct tr_jinja_builtin *tr_jinja_global(const char *name);
const struct tr_jinja_builtin *tr_jinja_method(enum tr_jinja_kind kind, const char *name, size_t n);
const struct tr_jinja_builtin *tr_jinja_find(const struct tr_jinja_builtin *rows, size_t n_rows, const char *name,
                                             size_t n);
struct tr_jinja_val tr_jinja_call_builtin(struct tr_jinja_eval *e, const struct tr_jinja_builtin *b,
                                          struct tr_jinja_val self, const struct tr_jinja_args *raw);

struct tr_jinja_node; /* of jinja_tree.h */

enum tr_jinja_op {
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

struct tr_jinja_macro {
    const struct tr_jinja_node *node;
    struct tr_jinja_scope *scope;
};

/* ---- evaluator ---- */

struct tr_jinja_binding {
    const char *name;
    struct tr_jinja_val value;
};
struct tr_jinja_scope {
    struct tr_jinja_scope *up;
    struct tr_jinja_binding *b;
    size_t n, n_cap;
};

struct tr_jinja_eval {
    const struct tr_jinja *t;
    struct tr_jinja_arena mem;
    enum tr_status st;
    int line, depth, loop_depth;
    int64_t n_steps, most_steps, now_s;
    struct tr_jinja_scope *scope;
    struct tr_str *out;
    int n_captures; /* > 0: output goes to a set block or macro, not to the text */
    struct tr_jinja_spans *spans;
};

/* Keeps the first error. Always returns K_UNDEF, so that a function can return it. */
struct tr_jinja_val tr_jinja_fail(struct tr_jinja_eval *e, const char *fmt, ...) TR_PRINTF(2, 3);
bool tr_jinja_step(struct tr_jinja_eval *e, size_t n); /* counts n steps of work; false: stop, there is an error */
void *tr_jinja_get(struct tr_jinja_eval *e, size_t n); /* from the rendering's arena; NULL after an error */
void tr_jinja_emit(struct tr_jinja_eval *e, const char *p, size_t n);
void tr_jinja_check_length(struct tr_jinja_eval *e, const char *what, size_t n); /* of a string that was made */

struct tr_jinja_val tr_jinja_eval(struct tr_jinja_eval *e, const struct tr_jinja_node *n);
struct tr_jinja_val tr_jinja_eval_filter(struct tr_jinja_eval *e, const struct tr_jinja_node *n,
                                         struct tr_jinja_val in);
struct tr_jinja_val tr_jinja_eval_call(struct tr_jinja_eval *e, const struct tr_jinja_node *n,
                                       struct tr_jinja_macro *caller);
struct tr_jinja_val tr_jinja_lookup(struct tr_jinja_eval *e, const char *name);
struct tr_jinja_val tr_jinja_call_macro(struct tr_jinja_eval *e, struct tr_jinja_macro *m,
                                        const struct tr_jinja_args *args);
struct tr_jinja_val tr_jinja_call(struct tr_jinja_eval *e, struct tr_jinja_val fn, const struct tr_jinja_args *args);
struct tr_jinja_val tr_jinja_attr(struct tr_jinja_eval *e, struct tr_jinja_val obj, struct tr_jinja_val name);
struct tr_jinja_val tr_jinja_item(struct tr_jinja_eval *e, struct tr_jinja_val obj, struct tr_jinja_val key);
struct tr_jinja_val tr_jinja_slice(struct tr_jinja_eval *e, struct tr_jinja_val obj,
                                   const struct tr_jinja_val bound[3]);
struct tr_jinja_val tr_jinja_binary(struct tr_jinja_eval *e, enum tr_jinja_op op, struct tr_jinja_val a,
                                    struct tr_jinja_val b);
bool tr_jinja_compare(struct tr_jinja_eval *e, enum tr_jinja_op op, struct tr_jinja_val a, struct tr_jinja_val b);
struct tr_jinja_val tr_jinja_percent(struct tr_jinja_eval *e, const struct tr_jinja_str *format,
                                     const struct tr_jinja_val *v, size_t n);

#endif
