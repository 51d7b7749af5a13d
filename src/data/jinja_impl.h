/* jinja_impl.h - values and evaluator of templates, as their parts share them.
 *
 * Values are immutable (the sandbox forbids changing lists and dicts), so strings and items are shared freely and one
 * arena per rendering holds everything. Errors are sticky: the first one is kept in eval.st, later work is a no-op on
 * harmless values, and every loop stops at tr_j_step(). That keeps the evaluator free of cleanup paths.
 */
#ifndef TR_DATA_JINJA_IMPL_H
#define TR_DATA_JINJA_IMPL_H

#include "data/jinja.h"

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

/* ---- values ---- */

enum kind {
    K_MISSING, /* no such variable, argument or key: never seen by a template */
    K_UNDEF,
    K_NONE,
    K_BOOL,
    K_INT,
    K_FLOAT,
    K_STR,
    K_LIST,
    K_TUPLE,
    K_RANGE,
    K_VIEW, /* keys(), values(), items() */
    K_GEN,  /* what map, select, ... give: can be walked once */
    K_DICT,
    K_NS,
    K_MACRO,
    K_FUNC,
    K_METHOD,
    K_LOOP,
    K_COUNT,
};

struct str {
    const char *p;
    size_t n;
    size_t n_chars; /* SIZE_MAX: not counted yet */
    bool is_safe;   /* came out of |safe or |e: jinja2 escapes what + adds to it */
};

struct val {
    enum kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct str *s; /* K_UNDEF: what is undefined, for the message */
        struct seq *seq;
        struct dict *d;
        struct macro *macro;
        struct method *method;
        struct loop *loop;
        const struct builtin *fn;
    };
};

struct seq {
    struct val *v;
    size_t n;
    bool is_spent; /* K_GEN */
};

struct pair {
    struct val key, value;
};
struct dict {
    struct pair *p;
    size_t n, n_cap;
};

struct method {
    struct val self;
    const struct builtin *fn;
};

struct loop {
    struct seq *items;
    size_t at;
    int depth;
    struct val last_changed; /* of loop.changed() */
};

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

struct eval;
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

/* ---- value helpers ---- */

static inline struct val tr_j_bool(bool b)
{
    return (struct val){ .kind = K_BOOL, .b = b };
}
static inline struct val tr_j_int(int64_t i)
{
    return (struct val){ .kind = K_INT, .i = i };
}
static inline struct val tr_j_float(double f)
{
    return (struct val){ .kind = K_FLOAT, .f = f };
}
static inline struct val tr_j_none(void)
{
    return (struct val){ .kind = K_NONE };
}

struct val tr_j_str(struct eval *e, const char *p, size_t n);     /* copies */
struct val tr_j_str_ref(struct eval *e, const char *p, size_t n); /* p outlives the rendering */
struct val tr_j_str_take(struct eval *e, struct tr_str *s);       /* copies, releases s */
struct val tr_j_undef(struct eval *e, const char *fmt, ...) TR_PRINTF(2, 3);
struct val tr_j_seq(struct eval *e, enum kind kind, size_t n); /* n items to be filled */
struct val tr_j_dict(struct eval *e, size_t n_cap);
void tr_j_dict_set(struct eval *e, struct dict *d, struct val key, struct val value);
struct val tr_j_dict_get(struct eval *e, const struct dict *d, struct val key); /* K_MISSING */
struct val tr_j_dict_cstr(struct eval *e, const struct dict *d, const char *key);
struct val tr_j_of_json(struct eval *e, const cJSON *j, size_t n_items, int depth);

const char *tr_j_kind(struct val v); /* Python's name of the type */
bool tr_j_truth(struct val v);
bool tr_j_eq(struct eval *e, struct val a, struct val b);
int tr_j_cmp(struct eval *e, struct val a, struct val b); /* fails on what Python cannot order */
bool tr_j_is_number(struct val v);                        /* bool, int, float */
bool tr_j_is_seq(struct val v);                           /* anything with a seq */
double tr_j_real(struct val v);
bool tr_j_as_int(struct eval *e, struct val v, const char *what, int64_t *out); /* int or bool */
struct seq *tr_j_iter(struct eval *e, struct val v);               /* of any iterable; fails on others; never NULL */
void tr_j_print(struct eval *e, struct val v, struct tr_str *out); /* str(v) */
void tr_j_repr(struct eval *e, struct val v, struct tr_str *out, int depth);
void tr_j_print_float(double f, struct tr_str *out);
struct str *tr_j_text(struct eval *e, struct val v); /* str(v) as a string; never NULL */
void tr_j_json(struct eval *e, struct val v, const struct val *a, struct tr_str *out);

/* ---- text helpers ---- */

size_t tr_j_char_len(const char *p, size_t n); /* bytes of the character at p; a stray byte counts as one */
uint32_t tr_j_char(const char *p, size_t n);
size_t tr_j_put_char(uint32_t c, char out[4]);
bool tr_j_is_space(uint32_t c);
size_t tr_j_n_chars(struct str *s);
size_t tr_j_byte_of(const struct str *s, size_t i_char);
void tr_j_strip(const char **p, size_t *n, const struct str *chars, bool left, bool right); /* chars NULL: blanks */
bool tr_j_has_case(uint32_t c);                                                             /* letters above ASCII */
enum letter_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL };
struct val tr_j_case(struct eval *e, const struct str *s, enum letter_case how);
struct val tr_j_replace(struct eval *e, const struct str *s, const struct str *from, const struct str *to, int64_t max);

#endif
