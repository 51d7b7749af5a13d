/* jinja_value.h - the values of templates, and the functions on values that need no template.
 *
 * Values are immutable, because the sandbox forbids changing lists and dicts. So strings and items are shared freely,
 * and one arena per rendering holds everything.
 */
#ifndef TR_TEXT_JINJA_VALUE_H
#define TR_TEXT_JINJA_VALUE_H

#include "text/jinja.h"

struct tr_jinja_eval; /* of jinja_impl.h: the arena, and the first error */

enum tr_jinja_kind {
    K_MISSING, /* no such variable, argument or key; a template never sees this kind */
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
    K_GEN,  /* the result of map, select, ...: can be iterated over once */
    K_DICT,
    K_NS,
    K_MACRO,
    K_FUNC,
    K_METHOD,
    K_LOOP,
    K_COUNT,
};

struct tr_jinja_str {
    const char *p;
    size_t n;
    size_t n_chars; /* SIZE_MAX: not counted yet */
    bool is_safe;   /* the result of |safe or |e; jinja2 would escape a string that + adds to it */
};

struct tr_jinja_val {
    enum tr_jinja_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct tr_jinja_str *s; /* K_UNDEF: the name of the undefined thing, for the message */
        struct tr_jinja_seq *seq;
        struct tr_jinja_dict *d;
        struct tr_jinja_macro *macro;
        struct tr_jinja_method *method;
        struct tr_jinja_loop *loop;
        const struct tr_jinja_builtin *fn;
    };
};

struct tr_jinja_seq {
    struct tr_jinja_val *v;
    size_t n;
    bool is_spent; /* K_GEN */
};

struct tr_jinja_pair {
    struct tr_jinja_val key, value;
};
struct tr_jinja_dict {
    struct tr_jinja_pair *p;
    size_t n, n_cap;
};

struct tr_jinja_method {
    struct tr_jinja_val self;
    const struct tr_jinja_builtin *fn;
};

struct tr_jinja_loop {
    struct tr_jinja_seq *items;
    size_t at;
    int depth;
    struct tr_jinja_val last_changed; /* of loop.changed() */
};

static inline struct tr_jinja_val tr_jinja_bool(bool b)
{
    return (struct tr_jinja_val){ .kind = K_BOOL, .b = b };
}
static inline struct tr_jinja_val tr_jinja_int(int64_t i)
{
    return (struct tr_jinja_val){ .kind = K_INT, .i = i };
}
static inline struct tr_jinja_val tr_jinja_float(double f)
{
    return (struct tr_jinja_val){ .kind = K_FLOAT, .f = f };
}
static inline struct tr_jinja_val tr_jinja_none(void)
{
    return (struct tr_jinja_val){ .kind = K_NONE };
}

struct tr_jinja_val tr_jinja_str(struct tr_jinja_eval *e, const char *p, size_t n);     /* copies */
struct tr_jinja_val tr_jinja_str_ref(struct tr_jinja_eval *e, const char *p, size_t n); /* p outlives the rendering */
struct tr_jinja_val tr_jinja_str_take(struct tr_jinja_eval *e, struct tr_str *s);       /* copies, releases s */
struct tr_jinja_val tr_jinja_undef(struct tr_jinja_eval *e, const char *fmt, ...) TR_PRINTF(2, 3);
/* A sequence of n items, which the caller fills. */
struct tr_jinja_val tr_jinja_seq(struct tr_jinja_eval *e, enum tr_jinja_kind kind, size_t n);
struct tr_jinja_val tr_jinja_dict(struct tr_jinja_eval *e, size_t n_cap);
void tr_jinja_dict_set(struct tr_jinja_eval *e, struct tr_jinja_dict *d, struct tr_jinja_val key,
                       struct tr_jinja_val value);
/* K_MISSING: the dict does not hold the key. */
struct tr_jinja_val tr_jinja_dict_get(struct tr_jinja_eval *e, const struct tr_jinja_dict *d, struct tr_jinja_val key);
struct tr_jinja_val tr_jinja_of_json(struct tr_jinja_eval *e, const cJSON *j, size_t n_items, int depth);

const char *tr_jinja_kind(struct tr_jinja_val v); /* Python's name of the type */
bool tr_jinja_truth(struct tr_jinja_val v);
bool tr_jinja_eq(struct tr_jinja_eval *e, struct tr_jinja_val a, struct tr_jinja_val b);
/* < 0, 0 or > 0. Fails on values that Python cannot order. */
int tr_jinja_cmp(struct tr_jinja_eval *e, struct tr_jinja_val a, struct tr_jinja_val b);
bool tr_jinja_is_number(struct tr_jinja_val v); /* bool, int, float */
bool tr_jinja_is_seq(struct tr_jinja_val v);    /* any kind that uses `seq` */
double tr_jinja_real(struct tr_jinja_val v);
bool tr_jinja_as_int(struct tr_jinja_eval *e, struct tr_jinja_val v, const char *what, int64_t *out); /* int or bool */
/* The items of an iterable; fails on others; never NULL. */
struct tr_jinja_seq *tr_jinja_iter(struct tr_jinja_eval *e, struct tr_jinja_val v);
void tr_jinja_print(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_str *out); /* str(v) */
void tr_jinja_repr(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_str *out, int depth);
void tr_jinja_print_float(double f, struct tr_str *out);
struct tr_jinja_str *tr_jinja_text(struct tr_jinja_eval *e, struct tr_jinja_val v); /* str(v) as a string; never NULL */
void tr_jinja_json(struct tr_jinja_eval *e, struct tr_jinja_val v, const struct tr_jinja_val *a, struct tr_str *out);

/* ---- text ---- */

size_t tr_jinja_char_len(const char *p, size_t n); /* bytes of the character at p; a stray byte counts as one */
uint32_t tr_jinja_char(const char *p, size_t n);
size_t tr_jinja_put_char(uint32_t c, char out[4]);
bool tr_jinja_is_space(uint32_t c);
size_t tr_jinja_n_chars(struct tr_jinja_str *s);
size_t tr_jinja_byte_of(const struct tr_jinja_str *s, size_t i_char);
/* Strips these characters from the ends; chars NULL: white space. */
void tr_jinja_strip(const char **p, size_t *n, const struct tr_jinja_str *chars, bool left, bool right);
bool tr_jinja_has_case(uint32_t c); /* letters above ASCII */
enum tr_jinja_letter_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL };
struct tr_jinja_val tr_jinja_case(struct tr_jinja_eval *e, const struct tr_jinja_str *s, enum tr_jinja_letter_case how);
struct tr_jinja_val tr_jinja_replace(struct tr_jinja_eval *e, const struct tr_jinja_str *s,
                                     const struct tr_jinja_str *from, const struct tr_jinja_str *to, int64_t max);

#endif
