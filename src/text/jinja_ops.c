/* jinja_ops.c - attributes, items, slices, arithmetic, comparison and % formatting, with Python's meaning. */
#include "text/jinja_impl.h"
#include <math.h>

static struct tr_jinja_val not_there(struct tr_jinja_eval *e, struct tr_jinja_val obj, struct tr_jinja_val name)
{
    if (name.kind == K_STR)
        return tr_jinja_undef(e, "'%s object' has no attribute '%.*s'", tr_jinja_kind(obj),
                              (int)(name.s->n < 60 ? name.s->n : 60), name.s->p);
    return tr_jinja_undef(e, "%s object has no such element", tr_jinja_kind(obj));
}

static bool is_undefined(struct tr_jinja_eval *e, struct tr_jinja_val v)
{
    if (v.kind == K_UNDEF)
        tr_jinja_fail(e, "%.*s", (int)v.s->n, v.s->p);
    return v.kind == K_UNDEF;
}

static struct tr_jinja_val loop_attr(struct tr_jinja_eval *e, const struct tr_jinja_loop *l, struct tr_jinja_val obj,
                                     struct tr_jinja_val name)
{
    enum { INDEX, INDEX0, REVINDEX, REVINDEX0, FIRST, LAST, LENGTH, PREVITEM, NEXTITEM, DEPTH, DEPTH0, N };
    static const char *const names[] = { "index",  "index0",   "revindex", "revindex0", "first", "last",
                                         "length", "previtem", "nextitem", "depth",     "depth0" };
    _Static_assert(TR_COUNT_OF(names) == N, "one name a row");
    int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    int i = 0;
    while (i < N && !(strlen(names[i]) == name.s->n && memcmp(names[i], name.s->p, name.s->n) == 0))
        i++;
    switch (i) {
    case INDEX:
        return tr_jinja_int(at + 1);
    case INDEX0:
        return tr_jinja_int(at);
    case REVINDEX:
        return tr_jinja_int(n - at);
    case REVINDEX0:
        return tr_jinja_int(n - at - 1);
    case FIRST:
        return tr_jinja_bool(at == 0);
    case LAST:
        return tr_jinja_bool(at == n - 1);
    case LENGTH:
        return tr_jinja_int(n);
    case PREVITEM:
        return at > 0 ? l->items->v[at - 1] : tr_jinja_undef(e, "there is no previous item");
    case NEXTITEM:
        return at + 1 < n ? l->items->v[at + 1] : tr_jinja_undef(e, "there is no next item");
    case DEPTH:
    case DEPTH0:
        return tr_jinja_int(l->depth - (i == DEPTH0));
    default:
        return not_there(e, obj, name);
    }
}

struct tr_jinja_val tr_jinja_attr(struct tr_jinja_eval *e, struct tr_jinja_val obj, struct tr_jinja_val name)
{
    if (is_undefined(e, obj))
        return obj;
    if (name.s->n > 1 && memcmp(name.s->p, "__", 2) == 0)
        return tr_jinja_fail(e, "names that begin with two underscores are not allowed");
    const struct tr_jinja_builtin *fn = tr_jinja_method(obj.kind, name.s->p, name.s->n);
    if (fn && obj.kind == K_STR && obj.s->is_safe)
        return tr_jinja_fail(e, "methods of a |safe or |escape string are not supported");
    if (fn) {
        struct tr_jinja_method *m = tr_jinja_get(e, sizeof *m);
        if (m)
            *m = (struct tr_jinja_method){ obj, fn };
        return m ? (struct tr_jinja_val){ .kind = K_METHOD, .method = m } : tr_jinja_none();
    }
    if (obj.kind == K_DICT || obj.kind == K_NS) {
        struct tr_jinja_val v = tr_jinja_dict_get(e, obj.d, name);
        return v.kind == K_MISSING ? not_there(e, obj, name) : v;
    }
    if (obj.kind == K_LOOP)
        return loop_attr(e, obj.loop, obj, name);
    if (obj.kind == K_MACRO || obj.kind == K_FUNC || obj.kind == K_METHOD)
        return tr_jinja_fail(e, "attributes of a %s are not supported", tr_jinja_kind(obj));
    return not_there(e, obj, name);
}

static struct tr_jinja_val char_at(struct tr_jinja_eval *e, struct tr_jinja_str *s, size_t i)
{
    size_t at = tr_jinja_byte_of(s, i);
    return tr_jinja_str_ref(e, s->p + at, tr_jinja_char_len(s->p + at, s->n - at));
}

struct tr_jinja_val tr_jinja_item(struct tr_jinja_eval *e, struct tr_jinja_val obj, struct tr_jinja_val key)
{
    if (is_undefined(e, obj))
        return obj;
    bool is_list = obj.kind == K_LIST || obj.kind == K_TUPLE || obj.kind == K_RANGE;
    if ((is_list || obj.kind == K_STR) && (key.kind == K_INT || key.kind == K_BOOL)) {
        int64_t n = (int64_t)(is_list ? obj.seq->n : tr_jinja_n_chars(obj.s)), i = key.kind == K_INT ? key.i : key.b;
        if (i < -n || i >= n || !tr_jinja_step(e, is_list ? 0 : obj.s->n / 64))
            return not_there(e, obj, key);
        i += i < 0 ? n : 0;
        return is_list ? obj.seq->v[i] : char_at(e, obj.s, (size_t)i);
    }
    if (obj.kind == K_DICT) {
        struct tr_jinja_val v = tr_jinja_dict_get(e, obj.d, key);
        if (v.kind != K_MISSING)
            return v;
    }
    return key.kind == K_STR ? tr_jinja_attr(e, obj, key) : not_there(e, obj, key);
}

/* Python's slice.indices(n). */
static bool slice_range(struct tr_jinja_eval *e, const struct tr_jinja_val bound[3], int64_t n, int64_t *first,
                        int64_t *step, size_t *count)
{
    int64_t v[3] = { 0, n, 1 };
    for (int i = 2; i >= 0; i--) {
        if (bound[i].kind != K_NONE && !tr_jinja_as_int(e, bound[i], "a slice's bound", &v[i]))
            return false;
        if (i == 2 && (v[2] == 0 || v[2] == INT64_MIN)) {
            tr_jinja_fail(e, "a slice's step cannot be %" PRId64, v[2]);
            return false;
        }
        if (i == 2)
            continue;
        int64_t lo = v[2] < 0 ? -1 : 0, hi = v[2] < 0 ? n - 1 : n;
        if (bound[i].kind == K_NONE)
            v[i] = (i == 0) == (v[2] > 0) ? lo : hi;
        else if (v[i] < 0)
            v[i] = tr_max64(v[i] < -n ? lo : v[i] + n, lo);
        else
            v[i] = tr_min64(v[i], hi);
    }
    int64_t span = v[2] > 0 ? v[1] - v[0] : v[0] - v[1], width = v[2] > 0 ? v[2] : -v[2];
    *first = v[0];
    *step = v[2];
    *count = span > 0 ? (size_t)((span - 1) / width + 1) : 0;
    return true;
}

static struct tr_jinja_val slice_str(struct tr_jinja_eval *e, struct tr_jinja_str *s, int64_t first, int64_t step,
                                     size_t count)
{
    if (count == 0)
        return tr_jinja_str_ref(e, "", 0);
    if (step == 1) {
        size_t from = tr_jinja_byte_of(s, (size_t)first), to = tr_jinja_byte_of(s, (size_t)first + count);
        return tr_jinja_str_ref(e, s->p + from, to - from);
    }
    const struct tr_jinja_seq *all = tr_jinja_iter(e, (struct tr_jinja_val){ .kind = K_STR, .s = s });
    struct tr_str out = { 0 };
    for (size_t i = 0; i < count && tr_jinja_step(e, 1); i++) {
        const struct tr_jinja_str *c = all->v[first + (int64_t)i * step].s;
        tr_str_add(&out, c->p, c->n);
    }
    return tr_jinja_str_take(e, &out);
}

struct tr_jinja_val tr_jinja_slice(struct tr_jinja_eval *e, struct tr_jinja_val obj, const struct tr_jinja_val bound[3])
{
    int64_t first = 0, step = 1;
    size_t count = 0;
    bool is_list = obj.kind == K_LIST || obj.kind == K_TUPLE || obj.kind == K_RANGE;
    if (is_undefined(e, obj))
        return obj;
    if (!is_list && obj.kind != K_STR)
        return tr_jinja_fail(e, "a %s cannot be sliced", tr_jinja_kind(obj));
    if (!tr_jinja_step(e, is_list ? 0 : obj.s->n / 64))
        return obj;
    size_t n = is_list ? obj.seq->n : tr_jinja_n_chars(obj.s);
    if (!slice_range(e, bound, (int64_t)n, &first, &step, &count))
        return obj;
    if (!is_list)
        return slice_str(e, obj.s, first, step, count);
    struct tr_jinja_val v = tr_jinja_seq(e, obj.kind, count);
    for (size_t i = 0; i < v.seq->n && tr_jinja_step(e, 0); i++)
        v.seq->v[i] = obj.seq->v[first + (int64_t)i * step];
    return v;
}

static struct tr_jinja_val repeat(struct tr_jinja_eval *e, struct tr_jinja_val v, int64_t times)
{
    size_t n = v.kind == K_STR ? v.s->n : v.seq->n, n_all;
    size_t n_times = times > 0 ? (size_t)times : 0;
    if (!tr_mul_size(n, n_times, &n_all) || n_all > TR_JINJA_MAX_OUTPUT || !tr_jinja_step(e, n_all / 16))
        return tr_jinja_fail(e, "a repetition of %zu times %zu items or bytes is too large", n_times, n);
    if (v.kind == K_STR) {
        char *p = tr_jinja_get(e, n_all);
        for (size_t i = 0; p && n > 0 && i < n_all; i += n)
            memcpy(p + i, v.s->p, n);
        return p ? tr_jinja_str_ref(e, p, n_all) : v;
    }
    struct tr_jinja_val out = tr_jinja_seq(e, v.kind, n_all);
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->v[i] = v.seq->v[i % n];
    return out;
}

static struct tr_jinja_val join_values(struct tr_jinja_eval *e, struct tr_jinja_val a, struct tr_jinja_val b)
{
    if (a.kind == K_STR) {
        bool is_safe = a.s->is_safe || b.s->is_safe; /* then the other one is escaped */
        if (is_safe) {
            a = tr_jinja_escape(e, a);
            b = tr_jinja_escape(e, b);
        }
        char *p = tr_jinja_get(e, a.s->n + b.s->n);
        if (!p)
            return a;
        memcpy(p, a.s->p, a.s->n);
        memcpy(p + a.s->n, b.s->p, b.s->n);
        struct tr_jinja_val out = tr_jinja_str_ref(e, p, a.s->n + b.s->n);
        if (e->st == TR_OK && is_safe)
            out.s->is_safe = true;
        return out;
    }
    struct tr_jinja_val out = tr_jinja_seq(e, a.kind, a.seq->n + b.seq->n);
    if (!tr_jinja_step(e, out.seq->n / 4))
        return out;
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->v[i] = i < a.seq->n ? a.seq->v[i] : b.seq->v[i - a.seq->n];
    return out;
}

static struct tr_jinja_val int_power(struct tr_jinja_eval *e, int64_t base, int64_t exponent)
{
    int64_t v = 1;
    if (exponent < 0)
        return base == 0 ? tr_jinja_fail(e, "zero cannot be raised to a negative power")
                         : tr_jinja_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1)
        return tr_jinja_int(exponent == 0 ? 1 : base);
    for (; exponent > 0; exponent--)
        if (exponent > 64 || __builtin_mul_overflow(v, base, &v))
            return base == -1 ? tr_jinja_int(exponent % 2 ? -v : v)
                              : tr_jinja_fail(e, "a power is larger than 64 bits");
    return tr_jinja_int(v);
}

static struct tr_jinja_val int_binary(struct tr_jinja_eval *e, enum tr_jinja_op op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool overflows = false;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tr_jinja_fail(e, "division by zero");
    if (op == OP_DIV)
        return tr_jinja_float((double)a / (double)b);
    if (op == OP_POW)
        return int_power(e, a, b);
    if (op == OP_ADD) {
        overflows = __builtin_add_overflow(a, b, &v);
    } else if (op == OP_SUB) {
        overflows = __builtin_sub_overflow(a, b, &v);
    } else if (op == OP_MUL) {
        overflows = __builtin_mul_overflow(a, b, &v);
    } else if (b == -1) { /* INT64_MIN / -1 has no result */
        overflows = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
    } else {
        bool rounds_down = a % b != 0 && (a < 0) != (b < 0);
        v = op == OP_MOD ? a % b + (rounds_down ? b : 0) : a / b - rounds_down;
    }
    return overflows ? tr_jinja_fail(e, "a number is larger than 64 bits") : tr_jinja_int(v);
}

static struct tr_jinja_val float_binary(struct tr_jinja_eval *e, enum tr_jinja_op op, double a, double b)
{
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tr_jinja_fail(e, "division by zero");
    double rest = op == OP_MOD || op == OP_FLOORDIV ? fmod(a, b) : 0;
    if (rest != 0 && (rest < 0) != (b < 0))
        rest += b;
    switch (op) {
    case OP_ADD:
        return tr_jinja_float(a + b);
    case OP_SUB:
        return tr_jinja_float(a - b);
    case OP_MUL:
        return tr_jinja_float(a * b);
    case OP_DIV:
        return tr_jinja_float(a / b);
    case OP_MOD:
        return tr_jinja_float(rest);
    case OP_FLOORDIV:
        return tr_jinja_float(floor((a - rest) / b + 0.5));
    default:
        if (a < 0 && b != floor(b))
            return tr_jinja_fail(e, "a negative number cannot be raised to a fractional power");
        return tr_jinja_float(pow(a, b));
    }
}

struct tr_jinja_val tr_jinja_binary(struct tr_jinja_eval *e, enum tr_jinja_op op, struct tr_jinja_val a,
                                    struct tr_jinja_val b)
{
    if (is_undefined(e, a) || is_undefined(e, b))
        return tr_jinja_none();
    if (op == OP_MOD && a.kind == K_STR) {
        bool is_tuple = b.kind == K_TUPLE;
        return tr_jinja_percent(e, a.s, is_tuple ? b.seq->v : &b, is_tuple ? b.seq->n : 1);
    }
    if (tr_jinja_is_number(a) && tr_jinja_is_number(b)) {
        if (a.kind == K_FLOAT || b.kind == K_FLOAT)
            return float_binary(e, op, tr_jinja_real(a), tr_jinja_real(b));
        return int_binary(e, op, a.kind == K_BOOL ? a.b : a.i, b.kind == K_BOOL ? b.b : b.i);
    }
    bool a_joins = a.kind == K_STR || a.kind == K_LIST || a.kind == K_TUPLE;
    bool b_joins = b.kind == K_STR || b.kind == K_LIST || b.kind == K_TUPLE;
    if (op == OP_ADD && a_joins && a.kind == b.kind)
        return join_values(e, a, b);
    if (op == OP_MUL && a_joins && (b.kind == K_INT || b.kind == K_BOOL))
        return repeat(e, a, b.kind == K_INT ? b.i : b.b);
    if (op == OP_MUL && b_joins && (a.kind == K_INT || a.kind == K_BOOL))
        return repeat(e, b, a.kind == K_INT ? a.i : a.b);
    static const char *const texts[] = { "+", "-", "*", "/", "//", "%", "**" };
    return tr_jinja_fail(e, "%s %s %s has no meaning", tr_jinja_kind(a), texts[op], tr_jinja_kind(b));
}

static bool contains(struct tr_jinja_eval *e, struct tr_jinja_val box, struct tr_jinja_val v)
{
    if (box.kind == K_STR) {
        if (v.kind != K_STR) {
            tr_jinja_fail(e, "a %s cannot be in a str", tr_jinja_kind(v));
            return false;
        }
        return tr_jinja_step(e, (box.s->n + v.s->n) / 16) && memmem(box.s->p, box.s->n, v.s->p, v.s->n) != NULL;
    }
    if (box.kind == K_DICT)
        return tr_jinja_dict_get(e, box.d, v).kind != K_MISSING;
    const struct tr_jinja_seq *items = tr_jinja_iter(e, box);
    for (size_t i = 0; i < items->n && tr_jinja_step(e, 0); i++)
        if (tr_jinja_eq(e, items->v[i], v))
            return true;
    return false;
}

bool tr_jinja_compare(struct tr_jinja_eval *e, enum tr_jinja_op op, struct tr_jinja_val a, struct tr_jinja_val b)
{
    if (op == OP_IN || op == OP_NOTIN)
        return contains(e, b, a) == (op == OP_IN);
    if (op == OP_EQ || op == OP_NE)
        return tr_jinja_eq(e, a, b) == (op == OP_EQ);
    if (is_undefined(e, a) || is_undefined(e, b))
        return false;
    bool has_nan = (a.kind == K_FLOAT && isnan(a.f)) || (b.kind == K_FLOAT && isnan(b.f));
    if (has_nan && tr_jinja_is_number(a) && tr_jinja_is_number(b))
        return false;
    int order = tr_jinja_cmp(e, a, b);
    return op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
}

/* Runs one conversion of a % format. Its flags, width, precision and letter are [p, p + n). */
static void percent_one(struct tr_jinja_eval *e, const char *p, size_t n, struct tr_jinja_val v, struct tr_str *out)
{
    char spec[24];
    char letter = p[n - 1];
    if (letter == 's' || letter == 'r') {
        if (n > 1)
            tr_jinja_fail(e, "%% format with a width for text is not supported");
        else if (letter == 's')
            tr_jinja_print(e, v, out);
        else
            tr_jinja_repr(e, v, out, 0);
        return;
    }
    if (!tr_jinja_is_number(v)) {
        tr_jinja_fail(e, "%%%c needs a number, not %s", letter, tr_jinja_kind(v));
        return;
    }
    spec[0] = '%';
    memcpy(spec + 1, p, n - 1);
    bool is_int = strchr("dixX", letter) != NULL;
    snprintf(spec + n, sizeof spec - n, is_int ? "ll%c" : "%c", letter);
    if (!is_int)
        tr_str_addf(out, spec, tr_jinja_real(v));
    else if (v.kind == K_FLOAT && fabs(v.f) > 0x1p62)
        tr_jinja_fail(e, "a number is larger than 64 bits");
    else
        tr_str_addf(out, spec, v.kind == K_FLOAT ? (long long)v.f : v.kind == K_BOOL ? (long long)v.b : (long long)v.i);
}

struct tr_jinja_val tr_jinja_percent(struct tr_jinja_eval *e, const struct tr_jinja_str *format,
                                     const struct tr_jinja_val *v, size_t n)
{
    struct tr_str out = { 0 };
    size_t n_used = 0;
    for (size_t i = 0; i < format->n && tr_jinja_step(e, 0);) {
        const char *p = format->p + i;
        if (*p != '%') {
            tr_str_add(&out, p, 1);
            i++;
            continue;
        }
        size_t len = 1;
        while (i + len < format->n && strchr("0123456789.+-", p[len]) && p[len] && len < 5)
            len++;
        bool is_known = i + len < format->n && p[len] && strchr("sdirfxX%", p[len]);
        if (!is_known || out.n > TR_JINJA_MAX_OUTPUT)
            tr_jinja_fail(e, "a %% format is unknown, or its result is too long");
        else if (p[len] == '%')
            tr_str_add(&out, "%", 1);
        else if (n_used == n)
            tr_jinja_fail(e, "%zu values are too few for the %% format", n);
        else
            percent_one(e, p + 1, len, v[n_used++], &out);
        i += len + 1;
    }
    if (n_used < n)
        tr_jinja_fail(e, "%zu values are too many for the %% format", n);
    return tr_jinja_str_take(e, &out);
}
