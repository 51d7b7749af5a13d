/* jinja_value.h - the values of templates, and what can be done with them without a template.
 *
 * Values are immutable (the sandbox forbids changing lists and dicts), so strings and items are shared freely and one
 * arena per rendering holds everything.
 */
#ifndef TR_TEXT_JINJA_VALUE_H
#define TR_TEXT_JINJA_VALUE_H

#include "text/jinja.h"

struct eval; /* of jinja_impl.h: the arena, and the first error */

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

/* ---- text ---- */

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
