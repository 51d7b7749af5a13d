/* jinja_value.c - makes, compares and iterates over the values of templates, with Python's meaning.
 *
 * Dicts are arrays that are searched in order, because messages and tool schemas hold a few keys. The search counts as
 * steps.
 */
#include "text/jinja_impl.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>

struct tr_jinja_chunk {
    struct tr_jinja_chunk *next;
    size_t n, n_cap;
    max_align_t p[];
};

void *tr_jinja_alloc(struct tr_jinja_arena *a, size_t n)
{
    enum { CHUNK = 32 << 10 };
    size_t step = sizeof(max_align_t);
    if (n > a->n_max - a->n_used)
        return NULL;
    n = tr_round_up(n ? n : 1, step);
    struct tr_jinja_chunk *c = a->head;
    if (!c || c->n_cap - c->n < n) {
        size_t n_cap = n > CHUNK / 4 ? n : CHUNK;
        c = calloc(1, sizeof *c + n_cap);
        if (!c)
            return NULL;
        c->n_cap = n_cap;
        bool is_large = n > CHUNK / 4 && a->head; /* is linked after the open chunk, which still has room */
        c->next = is_large ? a->head->next : a->head;
        if (is_large)
            a->head->next = c;
        else
            a->head = c;
    }
    void *p = (char *)c->p + c->n;
    c->n += n;
    a->n_used += n < a->n_max - a->n_used ? n : a->n_max - a->n_used;
    return p;
}

void tr_jinja_arena_release(struct tr_jinja_arena *a)
{
    for (struct tr_jinja_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    a->head = NULL;
}

void *tr_jinja_get(struct tr_jinja_eval *e, size_t n)
{
    if (e->st != TR_OK)
        return NULL;
    void *p = tr_jinja_alloc(&e->mem, n);
    if (!p)
        tr_jinja_fail(e, "the template needs more than %d MiB of memory, which is the limit",
                      TR_JINJA_MAX_MEMORY >> 20);
    return p;
}

static struct tr_jinja_str no_text = { "", 0, 0, false }; /* stands for every string after an error; never written */
static struct tr_jinja_seq no_items;

struct tr_jinja_val tr_jinja_str_ref(struct tr_jinja_eval *e, const char *p, size_t n)
{
    struct tr_jinja_str *s = tr_jinja_get(e, sizeof *s);
    if (s)
        *s = (struct tr_jinja_str){ p, n, SIZE_MAX, false };
    return (struct tr_jinja_val){ .kind = K_STR, .s = s ? s : &no_text };
}

struct tr_jinja_val tr_jinja_str(struct tr_jinja_eval *e, const char *p, size_t n)
{
    char *copy = tr_jinja_get(e, n);
    if (!copy)
        return (struct tr_jinja_val){ .kind = K_STR, .s = &no_text };
    if (n)
        memcpy(copy, p, n);
    return tr_jinja_str_ref(e, copy, n);
}

struct tr_jinja_val tr_jinja_str_take(struct tr_jinja_eval *e, struct tr_str *s)
{
    if (!tr_str_ok(s) && e->st == TR_OK)
        e->st = tr_fail(TR_NOMEM, "no memory to render a template");
    if (s->p)
        tr_jinja_step(e, s->n / 64);
    struct tr_jinja_val v = tr_jinja_str(e, s->p ? s->p : "", s->p ? s->n : 0);
    tr_str_release(s);
    return v;
}

struct tr_jinja_val tr_jinja_undef(struct tr_jinja_eval *e, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct tr_jinja_val v = tr_jinja_str(e, text, strlen(text));
    v.kind = K_UNDEF;
    return v;
}

struct tr_jinja_val tr_jinja_seq(struct tr_jinja_eval *e, enum tr_jinja_kind kind, size_t n)
{
    struct tr_jinja_seq *s = NULL;
    size_t n_bytes;
    if (!tr_mul_size(n, sizeof(struct tr_jinja_val), &n_bytes))
        n_bytes = SIZE_MAX;
    struct tr_jinja_val *v = tr_jinja_get(e, n_bytes);
    if (v)
        s = tr_jinja_get(e, sizeof *s);
    if (s)
        *s = (struct tr_jinja_seq){ v, n, false };
    return (struct tr_jinja_val){ .kind = kind, .seq = s ? s : &no_items };
}

struct tr_jinja_val tr_jinja_dict(struct tr_jinja_eval *e, size_t n_cap)
{
    static struct tr_jinja_dict empty;
    size_t n_bytes;
    struct tr_jinja_dict *d = tr_jinja_get(e, sizeof *d);
    if (d && n_cap && tr_mul_size(n_cap, sizeof(struct tr_jinja_pair), &n_bytes) && (d->p = tr_jinja_get(e, n_bytes)))
        d->n_cap = n_cap;
    return (struct tr_jinja_val){ .kind = K_DICT, .d = d ? d : &empty };
}

static struct tr_jinja_pair *find(struct tr_jinja_eval *e, const struct tr_jinja_dict *d, struct tr_jinja_val key)
{
    if (!tr_jinja_step(e, d->n / 8))
        return NULL;
    for (size_t i = 0; i < d->n; i++)
        if (tr_jinja_eq(e, d->p[i].key, key))
            return &d->p[i];
    return NULL;
}

struct tr_jinja_val tr_jinja_dict_get(struct tr_jinja_eval *e, const struct tr_jinja_dict *d, struct tr_jinja_val key)
{
    struct tr_jinja_pair *p = find(e, d, key);
    return p ? p->value : (struct tr_jinja_val){ .kind = K_MISSING };
}

void tr_jinja_dict_set(struct tr_jinja_eval *e, struct tr_jinja_dict *d, struct tr_jinja_val key,
                       struct tr_jinja_val value)
{
    if (key.kind > K_STR && key.kind != K_TUPLE) {
        tr_jinja_fail(e, "a %s cannot be the key of a dict", tr_jinja_kind(key));
        return;
    }
    struct tr_jinja_pair *p = find(e, d, key);
    if (p)
        p->value = value;
    if (p || e->st != TR_OK)
        return;
    if (d->n == d->n_cap) {
        size_t n_cap = d->n_cap ? d->n_cap * 2 : 4;
        struct tr_jinja_pair *more = tr_jinja_get(e, n_cap * sizeof *more);
        if (!more)
            return;
        if (d->n)
            memcpy(more, d->p, d->n * sizeof *more);
        d->p = more;
        d->n_cap = n_cap;
    }
    d->p[d->n++] = (struct tr_jinja_pair){ key, value };
}

/* A number as Python's json module reads it: an int when it was spelled as one. tr_chat_parse keeps the spelling in
 * valuestring where a double would lose it. */
static struct tr_jinja_val number_of_json(struct tr_jinja_eval *e, const cJSON *j)
{
    double f = j->valuedouble;
    const char *text = j->valuestring;
    if (text && strpbrk(text, ".eE"))
        return tr_jinja_float(f);
    if (text) {
        errno = 0;
        int64_t i = strtoll(text, NULL, 10);
        return errno ? tr_jinja_fail(e, "the number %s is larger than 64 bits", text) : tr_jinja_int(i);
    }
    if (f != floor(f) || isinf(f))
        return tr_jinja_float(f);
    if (fabs(f) > 0x1p53)
        return tr_jinja_fail(e, "the number %.17g is not exact; write it as a string", f);
    return tr_jinja_int((int64_t)f);
}

struct tr_jinja_val tr_jinja_of_json(struct tr_jinja_eval *e, const cJSON *j, size_t n_items, int depth)
{
    size_t n = 0;
    if (!j || cJSON_IsNull(j))
        return tr_jinja_none();
    if (cJSON_IsBool(j))
        return tr_jinja_bool(cJSON_IsTrue(j));
    if (cJSON_IsNumber(j))
        return number_of_json(e, j);
    if (cJSON_IsString(j))
        return tr_jinja_str_ref(e, j->valuestring, strlen(j->valuestring));
    if (depth > 2 * TR_JSON_MAX_DEPTH)
        return tr_jinja_fail(e, "a value is nested more than %d deep", 2 * TR_JSON_MAX_DEPTH);
    for (const cJSON *c = j->child; c && n < n_items; c = c->next)
        n++;
    if (!tr_jinja_step(e, n))
        return tr_jinja_none();
    const cJSON *c = j->child;
    if (cJSON_IsArray(j)) {
        struct tr_jinja_val v = tr_jinja_seq(e, K_LIST, n);
        for (size_t i = 0; i < v.seq->n; i++, c = c->next)
            v.seq->v[i] = tr_jinja_of_json(e, c, SIZE_MAX, depth + 1);
        return v;
    }
    struct tr_jinja_val v = tr_jinja_dict(e, n);
    for (size_t i = 0; i < v.d->n_cap; i++, c = c->next) {
        v.d->p[i].key = tr_jinja_str_ref(e, c->string, strlen(c->string));
        v.d->p[i].value = tr_jinja_of_json(e, c, SIZE_MAX, depth + 1);
        v.d->n++;
    }
    return v;
}

const char *tr_jinja_kind(struct tr_jinja_val v)
{
    static const char *const names[] = { "nothing", "undefined", "NoneType", "bool",     "int",       "float",
                                         "str",     "list",      "tuple",    "range",    "dict view", "generator",
                                         "dict",    "namespace", "macro",    "function", "method",    "loop" };
    _Static_assert(TR_COUNT_OF(names) == K_COUNT, "one name a kind");
    return names[v.kind];
}

bool tr_jinja_is_number(struct tr_jinja_val v)
{
    return v.kind == K_BOOL || v.kind == K_INT || v.kind == K_FLOAT;
}

bool tr_jinja_is_seq(struct tr_jinja_val v)
{
    return v.kind >= K_LIST && v.kind <= K_GEN;
}

double tr_jinja_real(struct tr_jinja_val v)
{
    return v.kind == K_FLOAT ? v.f : v.kind == K_BOOL ? (double)v.b : v.kind == K_INT ? (double)v.i : 0;
}

bool tr_jinja_as_int(struct tr_jinja_eval *e, struct tr_jinja_val v, const char *what, int64_t *out)
{
    if (v.kind == K_INT || v.kind == K_BOOL) {
        *out = v.kind == K_INT ? v.i : v.b;
        return true;
    }
    tr_jinja_fail(e, "%s must be an int, not %s", what, tr_jinja_kind(v));
    return false;
}

bool tr_jinja_truth(struct tr_jinja_val v)
{
    switch (v.kind) {
    case K_MISSING:
    case K_UNDEF:
    case K_NONE:
        return false;
    case K_BOOL:
        return v.b;
    case K_INT:
        return v.i != 0;
    case K_FLOAT:
        return v.f != 0;
    case K_STR:
        return v.s->n > 0;
    case K_LIST:
    case K_TUPLE:
    case K_RANGE:
    case K_VIEW:
        return v.seq->n > 0;
    case K_DICT:
        return v.d->n > 0;
    default:
        return true;
    }
}

static int sign_of(double a, double b)
{
    return a < b ? -1 : a > b ? 1 : 0;
}

static int compare_numbers(struct tr_jinja_val a, struct tr_jinja_val b)
{
    if (a.kind == K_FLOAT || b.kind == K_FLOAT)
        return sign_of(tr_jinja_real(a), tr_jinja_real(b));
    int64_t x = a.kind == K_BOOL ? a.b : a.i, y = b.kind == K_BOOL ? b.b : b.i;
    return x < y ? -1 : x > y;
}

static bool equal_dicts(struct tr_jinja_eval *e, const struct tr_jinja_dict *a, const struct tr_jinja_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_val other = tr_jinja_dict_get(e, b, a->p[i].key);
        if (other.kind == K_MISSING || !tr_jinja_eq(e, a->p[i].value, other))
            return false;
    }
    return true;
}

static bool equal_items(struct tr_jinja_eval *e, const struct tr_jinja_seq *a, const struct tr_jinja_seq *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && tr_jinja_step(e, 1); i++)
        if (!tr_jinja_eq(e, a->v[i], b->v[i]))
            return false;
    return true;
}

bool tr_jinja_eq(struct tr_jinja_eval *e, struct tr_jinja_val a, struct tr_jinja_val b)
{
    if (tr_jinja_is_number(a) && tr_jinja_is_number(b)) {
        bool has_nan = (a.kind == K_FLOAT && isnan(a.f)) || (b.kind == K_FLOAT && isnan(b.f));
        return !has_nan && compare_numbers(a, b) == 0;
    }
    if (a.kind != b.kind)
        return false;
    if (a.kind == K_UNDEF || a.kind == K_NONE)
        return true;
    if (a.kind == K_STR)
        return a.s->n == b.s->n && tr_jinja_step(e, a.s->n / 64) && memcmp(a.s->p, b.s->p, a.s->n) == 0;
    if (a.kind == K_FUNC)
        return a.fn == b.fn;
    if (a.kind != K_DICT && a.kind != K_LIST && a.kind != K_TUPLE && a.kind != K_RANGE)
        return a.seq == b.seq; /* the same object */
    bool is_equal = false;
    if (++e->depth > TR_JINJA_MAX_DEPTH)
        tr_jinja_fail(e, "values are nested too deeply to be compared");
    else
        is_equal = a.kind == K_DICT ? equal_dicts(e, a.d, b.d) : equal_items(e, a.seq, b.seq);
    e->depth--;
    return is_equal;
}

int tr_jinja_cmp(struct tr_jinja_eval *e, struct tr_jinja_val a, struct tr_jinja_val b)
{
    if (tr_jinja_is_number(a) && tr_jinja_is_number(b))
        return compare_numbers(a, b);
    if (a.kind == K_STR && b.kind == K_STR) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int order = 0;
        if (n && tr_jinja_step(e, n / 64))
            order = memcmp(a.s->p, b.s->p, n); /* byte order is code point order in UTF-8 */
        return order ? order : (a.s->n > b.s->n) - (a.s->n < b.s->n);
    }
    if (a.kind != b.kind || (a.kind != K_LIST && a.kind != K_TUPLE)) {
        tr_jinja_fail(e, "%s and %s have no order", tr_jinja_kind(a), tr_jinja_kind(b));
        return 0;
    }
    int order = 0;
    if (++e->depth > TR_JINJA_MAX_DEPTH)
        tr_jinja_fail(e, "values are nested too deeply to be compared");
    for (size_t i = 0; i < a.seq->n && i < b.seq->n && order == 0 && tr_jinja_step(e, 1); i++)
        if (!tr_jinja_eq(e, a.seq->v[i], b.seq->v[i]))
            order = tr_jinja_cmp(e, a.seq->v[i], b.seq->v[i]);
    e->depth--;
    return order ? order : (a.seq->n > b.seq->n) - (a.seq->n < b.seq->n);
}

static struct tr_jinja_seq *characters(struct tr_jinja_eval *e, struct tr_jinja_str *s)
{
    struct tr_jinja_val v = tr_jinja_seq(e, K_LIST, tr_jinja_n_chars(s));
    for (size_t i = 0, at = 0; i < v.seq->n && tr_jinja_step(e, 1); i++) {
        size_t len = tr_jinja_char_len(s->p + at, s->n - at);
        v.seq->v[i] = tr_jinja_str_ref(e, s->p + at, len);
        at += len;
    }
    return v.seq;
}

struct tr_jinja_seq *tr_jinja_iter(struct tr_jinja_eval *e, struct tr_jinja_val v)
{
    if (v.kind == K_GEN) {
        bool is_spent = v.seq->is_spent;
        if (v.seq != &no_items)
            v.seq->is_spent = true;
        return is_spent ? &no_items : v.seq;
    }
    if (tr_jinja_is_seq(v))
        return v.seq;
    if (v.kind == K_STR)
        return characters(e, v.s);
    if (v.kind == K_DICT) {
        struct tr_jinja_val keys = tr_jinja_seq(e, K_LIST, v.d->n);
        for (size_t i = 0; i < keys.seq->n; i++)
            keys.seq->v[i] = v.d->p[i].key;
        return keys.seq;
    }
    if (v.kind != K_UNDEF)
        tr_jinja_fail(e, "a %s cannot be iterated over", tr_jinja_kind(v));
    return &no_items;
}
