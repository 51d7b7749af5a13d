/* jinja_ops.c - attributes, items, slices, arithmetic, comparison and % formatting, as Python does them. */
#include "text/jinja_impl.h"
#include <math.h>

static struct val not_there(struct eval *e, struct val obj, struct val name)
{
    if (name.kind == K_STR)
        return tr_j_undef(e, "'%s object' has no attribute '%.*s'", tr_j_kind(obj),
                          (int)(name.s->n < 60 ? name.s->n : 60), name.s->p);
    return tr_j_undef(e, "%s object has no such element", tr_j_kind(obj));
}

static bool is_undefined(struct eval *e, struct val v)
{
    if (v.kind == K_UNDEF)
        tr_j_fail(e, "%.*s", (int)v.s->n, v.s->p);
    return v.kind == K_UNDEF;
}

static struct val loop_attr(struct eval *e, const struct loop *l, struct val obj, struct val name)
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
        return tr_j_int(at + 1);
    case INDEX0:
        return tr_j_int(at);
    case REVINDEX:
        return tr_j_int(n - at);
    case REVINDEX0:
        return tr_j_int(n - at - 1);
    case FIRST:
        return tr_j_bool(at == 0);
    case LAST:
        return tr_j_bool(at == n - 1);
    case LENGTH:
        return tr_j_int(n);
    case PREVITEM:
        return at > 0 ? l->items->v[at - 1] : tr_j_undef(e, "there is no previous item");
    case NEXTITEM:
        return at + 1 < n ? l->items->v[at + 1] : tr_j_undef(e, "there is no next item");
    case DEPTH:
    case DEPTH0:
        return tr_j_int(l->depth - (i == DEPTH0));
    default:
        return not_there(e, obj, name);
    }
}

struct val tr_j_attr(struct eval *e, struct val obj, struct val name)
{
    if (is_undefined(e, obj))
        return obj;
    if (name.s->n > 1 && memcmp(name.s->p, "__", 2) == 0)
        return tr_j_fail(e, "names with two leading underscores are not allowed");
    const struct builtin *fn = tr_j_method(obj.kind, name.s->p, name.s->n);
    if (fn && obj.kind == K_STR && obj.s->is_safe)
        return tr_j_fail(e, "methods of a |safe or |escape string are not supported");
    if (fn) {
        struct method *m = tr_j_get(e, sizeof *m);
        if (m)
            *m = (struct method){ obj, fn };
        return m ? (struct val){ .kind = K_METHOD, .method = m } : tr_j_none();
    }
    if (obj.kind == K_DICT || obj.kind == K_NS) {
        struct val v = tr_j_dict_get(e, obj.d, name);
        return v.kind == K_MISSING ? not_there(e, obj, name) : v;
    }
    if (obj.kind == K_LOOP)
        return loop_attr(e, obj.loop, obj, name);
    if (obj.kind == K_MACRO || obj.kind == K_FUNC || obj.kind == K_METHOD)
        return tr_j_fail(e, "attributes of a %s are not supported", tr_j_kind(obj));
    return not_there(e, obj, name);
}

static struct val char_at(struct eval *e, struct str *s, size_t i)
{
    size_t at = tr_j_byte_of(s, i);
    return tr_j_str_ref(e, s->p + at, tr_j_char_len(s->p + at, s->n - at));
}

struct val tr_j_item(struct eval *e, struct val obj, struct val key)
{
    if (is_undefined(e, obj))
        return obj;
    bool is_list = obj.kind == K_LIST || obj.kind == K_TUPLE || obj.kind == K_RANGE;
    if ((is_list || obj.kind == K_STR) && (key.kind == K_INT || key.kind == K_BOOL)) {
        int64_t n = (int64_t)(is_list ? obj.seq->n : tr_j_n_chars(obj.s)), i = key.kind == K_INT ? key.i : key.b;
        if (i < -n || i >= n || !tr_j_step(e, is_list ? 0 : obj.s->n / 64))
            return not_there(e, obj, key);
        i += i < 0 ? n : 0;
        return is_list ? obj.seq->v[i] : char_at(e, obj.s, (size_t)i);
    }
    if (obj.kind == K_DICT) {
        struct val v = tr_j_dict_get(e, obj.d, key);
        if (v.kind != K_MISSING)
            return v;
    }
    return key.kind == K_STR ? tr_j_attr(e, obj, key) : not_there(e, obj, key);
}

/* Python's slice.indices(n). */
static bool slice_range(struct eval *e, const struct val bound[3], int64_t n, int64_t *first, int64_t *step,
                        size_t *count)
{
    int64_t v[3] = { 0, n, 1 };
    for (int i = 2; i >= 0; i--) {
        if (bound[i].kind != K_NONE && !tr_j_as_int(e, bound[i], "a slice's bound", &v[i]))
            return false;
        if (i == 2 && (v[2] == 0 || v[2] == INT64_MIN)) {
            tr_j_fail(e, "a slice's step cannot be %" PRId64, v[2]);
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

static struct val slice_str(struct eval *e, struct str *s, int64_t first, int64_t step, size_t count)
{
    if (count == 0)
        return tr_j_str_ref(e, "", 0);
    if (step == 1) {
        size_t from = tr_j_byte_of(s, (size_t)first), to = tr_j_byte_of(s, (size_t)first + count);
        return tr_j_str_ref(e, s->p + from, to - from);
    }
    const struct seq *all = tr_j_iter(e, (struct val){ .kind = K_STR, .s = s });
    struct tr_str out = { 0 };
    for (size_t i = 0; i < count && tr_j_step(e, 1); i++) {
        const struct str *c = all->v[first + (int64_t)i * step].s;
        tr_str_add(&out, c->p, c->n);
    }
    return tr_j_str_take(e, &out);
}

struct val tr_j_slice(struct eval *e, struct val obj, const struct val bound[3])
{
    int64_t first = 0, step = 1;
    size_t count = 0;
    bool is_list = obj.kind == K_LIST || obj.kind == K_TUPLE || obj.kind == K_RANGE;
    if (is_undefined(e, obj))
        return obj;
    if (!is_list && obj.kind != K_STR)
        return tr_j_fail(e, "a %s cannot be sliced", tr_j_kind(obj));
    if (!tr_j_step(e, is_list ? 0 : obj.s->n / 64))
        return obj;
    size_t n = is_list ? obj.seq->n : tr_j_n_chars(obj.s);
    if (!slice_range(e, bound, (int64_t)n, &first, &step, &count))
        return obj;
    if (!is_list)
        return slice_str(e, obj.s, first, step, count);
    struct val v = tr_j_seq(e, obj.kind, count);
    for (size_t i = 0; i < v.seq->n && tr_j_step(e, 0); i++)
        v.seq->v[i] = obj.seq->v[first + (int64_t)i * step];
    return v;
}

static struct val repeat(struct eval *e, struct val v, int64_t times)
{
    size_t n = v.kind == K_STR ? v.s->n : v.seq->n, n_all;
    size_t n_times = times > 0 ? (size_t)times : 0;
    if (!tr_mul_size(n, n_times, &n_all) || n_all > TR_J_MAX_OUTPUT || !tr_j_step(e, n_all / 16))
        return tr_j_fail(e, "a repetition of %zu times %zu is too large", n_times, n);
    if (v.kind == K_STR) {
        char *p = tr_j_get(e, n_all);
        for (size_t i = 0; p && n > 0 && i < n_all; i += n)
            memcpy(p + i, v.s->p, n);
        return p ? tr_j_str_ref(e, p, n_all) : v;
    }
    struct val out = tr_j_seq(e, v.kind, n_all);
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->v[i] = v.seq->v[i % n];
    return out;
}

static struct val join_values(struct eval *e, struct val a, struct val b)
{
    if (a.kind == K_STR) {
        if (a.s->is_safe || b.s->is_safe)
            return tr_j_fail(e, "+ with a |safe or |escape string is not supported; use ~");
        char *p = tr_j_get(e, a.s->n + b.s->n);
        if (!p)
            return a;
        memcpy(p, a.s->p, a.s->n);
        memcpy(p + a.s->n, b.s->p, b.s->n);
        return tr_j_str_ref(e, p, a.s->n + b.s->n);
    }
    struct val out = tr_j_seq(e, a.kind, a.seq->n + b.seq->n);
    if (!tr_j_step(e, out.seq->n / 4))
        return out;
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->v[i] = i < a.seq->n ? a.seq->v[i] : b.seq->v[i - a.seq->n];
    return out;
}

static struct val int_power(struct eval *e, int64_t base, int64_t exponent)
{
    int64_t v = 1;
    if (exponent < 0)
        return base == 0 ? tr_j_fail(e, "zero to a negative power") : tr_j_float(pow((double)base, (double)exponent));
    if (base == 0 || base == 1)
        return tr_j_int(exponent == 0 ? 1 : base);
    for (; exponent > 0; exponent--)
        if (exponent > 64 || __builtin_mul_overflow(v, base, &v))
            return base == -1 ? tr_j_int(exponent % 2 ? -v : v) : tr_j_fail(e, "a power is larger than 64 bits");
    return tr_j_int(v);
}

static struct val int_binary(struct eval *e, enum op op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool overflows = false;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tr_j_fail(e, "division by zero");
    if (op == OP_DIV)
        return tr_j_float((double)a / (double)b);
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
    return overflows ? tr_j_fail(e, "a number is larger than 64 bits") : tr_j_int(v);
}

static struct val float_binary(struct eval *e, enum op op, double a, double b)
{
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return tr_j_fail(e, "division by zero");
    double rest = op == OP_MOD || op == OP_FLOORDIV ? fmod(a, b) : 0;
    if (rest != 0 && (rest < 0) != (b < 0))
        rest += b;
    switch (op) {
    case OP_ADD:
        return tr_j_float(a + b);
    case OP_SUB:
        return tr_j_float(a - b);
    case OP_MUL:
        return tr_j_float(a * b);
    case OP_DIV:
        return tr_j_float(a / b);
    case OP_MOD:
        return tr_j_float(rest);
    case OP_FLOORDIV:
        return tr_j_float(floor((a - rest) / b + 0.5));
    default:
        if (a < 0 && b != floor(b))
            return tr_j_fail(e, "a negative number to a broken power");
        return tr_j_float(pow(a, b));
    }
}

struct val tr_j_binary(struct eval *e, enum op op, struct val a, struct val b)
{
    if (is_undefined(e, a) || is_undefined(e, b))
        return tr_j_none();
    if (op == OP_MOD && a.kind == K_STR) {
        bool is_tuple = b.kind == K_TUPLE;
        return tr_j_percent(e, a.s, is_tuple ? b.seq->v : &b, is_tuple ? b.seq->n : 1);
    }
    if (tr_j_is_number(a) && tr_j_is_number(b)) {
        if (a.kind == K_FLOAT || b.kind == K_FLOAT)
            return float_binary(e, op, tr_j_real(a), tr_j_real(b));
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
    return tr_j_fail(e, "%s %s %s has no meaning", tr_j_kind(a), texts[op], tr_j_kind(b));
}

static bool contains(struct eval *e, struct val box, struct val v)
{
    if (box.kind == K_STR) {
        if (v.kind != K_STR) {
            tr_j_fail(e, "a %s cannot be in a str", tr_j_kind(v));
            return false;
        }
        return tr_j_step(e, box.s->n / 64) && memmem(box.s->p, box.s->n, v.s->p, v.s->n) != NULL;
    }
    if (box.kind == K_DICT)
        return tr_j_dict_get(e, box.d, v).kind != K_MISSING;
    const struct seq *items = tr_j_iter(e, box);
    for (size_t i = 0; i < items->n && tr_j_step(e, 0); i++)
        if (tr_j_eq(e, items->v[i], v))
            return true;
    return false;
}

bool tr_j_compare(struct eval *e, enum op op, struct val a, struct val b)
{
    if (op == OP_IN || op == OP_NOTIN)
        return contains(e, b, a) == (op == OP_IN);
    if (op == OP_EQ || op == OP_NE)
        return tr_j_eq(e, a, b) == (op == OP_EQ);
    if (is_undefined(e, a) || is_undefined(e, b))
        return false;
    bool has_nan = (a.kind == K_FLOAT && isnan(a.f)) || (b.kind == K_FLOAT && isnan(b.f));
    if (has_nan && tr_j_is_number(a) && tr_j_is_number(b))
        return false;
    int order = tr_j_cmp(e, a, b);
    return op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
}

/* One conversion of a % format: flags, width, precision and letter lie in [p, p + n). */
static void percent_one(struct eval *e, const char *p, size_t n, struct val v, struct tr_str *out)
{
    char spec[24];
    char letter = p[n - 1];
    if (letter == 's' || letter == 'r') {
        if (n > 1)
            tr_j_fail(e, "%% format with a width for text is not supported");
        else if (letter == 's')
            tr_j_print(e, v, out);
        else
            tr_j_repr(e, v, out, 0);
        return;
    }
    if (!tr_j_is_number(v)) {
        tr_j_fail(e, "%%%c needs a number, not %s", letter, tr_j_kind(v));
        return;
    }
    spec[0] = '%';
    memcpy(spec + 1, p, n - 1);
    bool is_int = strchr("dixX", letter) != NULL;
    snprintf(spec + n, sizeof spec - n, is_int ? "ll%c" : "%c", letter);
    if (!is_int)
        tr_str_addf(out, spec, tr_j_real(v));
    else if (v.kind == K_FLOAT && fabs(v.f) > 0x1p62)
        tr_j_fail(e, "a number is larger than 64 bits");
    else
        tr_str_addf(out, spec, v.kind == K_FLOAT ? (long long)v.f : v.kind == K_BOOL ? (long long)v.b : (long long)v.i);
}

struct val tr_j_percent(struct eval *e, const struct str *format, const struct val *v, size_t n)
{
    struct tr_str out = { 0 };
    size_t n_used = 0;
    for (size_t i = 0; i < format->n && tr_j_step(e, 0);) {
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
        if (!is_known || out.n > TR_J_MAX_OUTPUT)
            tr_j_fail(e, "an unknown %% format, or its result is too long");
        else if (p[len] == '%')
            tr_str_add(&out, "%", 1);
        else if (n_used == n)
            tr_j_fail(e, "%zu values are too few for the format", n);
        else
            percent_one(e, p + 1, len, v[n_used++], &out);
        i += len + 1;
    }
    if (n_used < n)
        tr_j_fail(e, "%zu values are too many for the format", n);
    return tr_j_str_take(e, &out);
}
