/* jinja_test.c - the tests behind `is` and the global functions. */
#include "text/jinja_impl.h"
#include <time.h>

/* clang-format off */
TR_JINJA_RETURNS(is_defined, tr_jinja_bool(v.kind != K_UNDEF))
TR_JINJA_RETURNS(is_undefined, tr_jinja_bool(v.kind == K_UNDEF))
TR_JINJA_RETURNS(is_none, tr_jinja_bool(v.kind == K_NONE))
TR_JINJA_RETURNS(is_boolean, tr_jinja_bool(v.kind == K_BOOL))
TR_JINJA_RETURNS(is_true, tr_jinja_bool(v.kind == K_BOOL && v.b))
TR_JINJA_RETURNS(is_false, tr_jinja_bool(v.kind == K_BOOL && !v.b))
TR_JINJA_RETURNS(is_integer, tr_jinja_bool(v.kind == K_INT))
TR_JINJA_RETURNS(is_float, tr_jinja_bool(v.kind == K_FLOAT))
TR_JINJA_RETURNS(is_number, tr_jinja_bool(tr_jinja_is_number(v)))
TR_JINJA_RETURNS(is_string, tr_jinja_bool(v.kind == K_STR))
TR_JINJA_RETURNS(is_mapping, tr_jinja_bool(v.kind == K_DICT))
TR_JINJA_RETURNS(is_iterable, tr_jinja_bool(tr_jinja_is_seq(v) || v.kind == K_STR || v.kind == K_DICT ||
                  v.kind == K_UNDEF || v.kind == K_LOOP))
/* has len() and []: for jinja2, dicts are sequences; views and generators are not */
TR_JINJA_RETURNS(is_sequence, tr_jinja_bool(v.kind == K_LIST || v.kind == K_TUPLE || v.kind == K_RANGE ||
                  v.kind == K_STR || v.kind == K_DICT || v.kind == K_UNDEF))
TR_JINJA_RETURNS(is_callable, tr_jinja_bool(v.kind == K_MACRO || v.kind == K_FUNC || v.kind == K_METHOD ||
                  v.kind == K_UNDEF))
/* clang-format on */

static bool remainder_is(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_jinja_val by, int64_t wanted)
{
    return tr_jinja_eq(e, tr_jinja_binary(e, OP_MOD, v, by), tr_jinja_int(wanted)) && e->st == TR_OK;
}

/* clang-format off */
TR_JINJA_RETURNS(is_odd, tr_jinja_bool(remainder_is(e, v, tr_jinja_int(2), 1)))
TR_JINJA_RETURNS(is_even, tr_jinja_bool(remainder_is(e, v, tr_jinja_int(2), 0)))
TR_JINJA_RETURNS(is_divisible, tr_jinja_bool(remainder_is(e, v, a[0], 0)))
/* clang-format on */

/* Whether the string holds letters and all of them have this case. */
static bool has_only_case(struct tr_jinja_eval *e, struct tr_jinja_val v, bool is_upper)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v);
    bool has_letter = false;
    for (size_t i = 0; i < s->n; i += tr_jinja_char_len(s->p + i, s->n - i)) {
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        if (tr_jinja_has_case(c)) {
            tr_jinja_fail(e, "the case of U+%04X is not known; only ASCII letters have case here", (unsigned)c);
            return false;
        }
        bool up = c >= 'A' && c <= 'Z', low = c >= 'a' && c <= 'z';
        if (is_upper ? low : up)
            return false;
        has_letter = has_letter || up || low;
    }
    return has_letter;
}

/* clang-format off */
TR_JINJA_RETURNS(is_lower, tr_jinja_bool(has_only_case(e, v, false)))
TR_JINJA_RETURNS(is_upper, tr_jinja_bool(has_only_case(e, v, true)))
TR_JINJA_RETURNS(is_in, tr_jinja_bool(tr_jinja_compare(e, OP_IN, v, a[0])))
TR_JINJA_RETURNS(is_eq, tr_jinja_bool(tr_jinja_compare(e, OP_EQ, v, a[0])))
TR_JINJA_RETURNS(is_ne, tr_jinja_bool(tr_jinja_compare(e, OP_NE, v, a[0])))
TR_JINJA_RETURNS(is_lt, tr_jinja_bool(tr_jinja_compare(e, OP_LT, v, a[0])))
TR_JINJA_RETURNS(is_le, tr_jinja_bool(tr_jinja_compare(e, OP_LE, v, a[0])))
TR_JINJA_RETURNS(is_gt, tr_jinja_bool(tr_jinja_compare(e, OP_GT, v, a[0])))
TR_JINJA_RETURNS(is_ge, tr_jinja_bool(tr_jinja_compare(e, OP_GE, v, a[0])))
/* clang-format on */

TR_JINJA_FN(is_sameas)
{
    if (v.kind != a[0].kind)
        return tr_jinja_bool(false);
    if (v.kind == K_BOOL || v.kind == K_NONE)
        return tr_jinja_bool(tr_jinja_eq(e, v, a[0]));
    if (v.kind < K_LIST)
        return tr_jinja_fail(e, "sameas of two %s values is not defined", tr_jinja_kind(v));
    return tr_jinja_bool(v.seq == a[0].seq);
}

const struct tr_jinja_builtin *tr_jinja_test(const char *name)
{
    static const struct tr_jinja_builtin rows[] = {
        { "defined", "", is_defined },
        { "undefined", "", is_undefined },
        { "none", "", is_none },
        { "boolean", "", is_boolean },
        { "true", "", is_true },
        { "false", "", is_false },
        { "integer", "", is_integer },
        { "float", "", is_float },
        { "number", "", is_number },
        { "string", "", is_string },
        { "mapping", "", is_mapping },
        { "iterable", "", is_iterable },
        { "sequence", "", is_sequence },
        { "callable", "", is_callable },
        { "odd", "", is_odd },
        { "even", "", is_even },
        { "divisibleby", "num!", is_divisible },
        { "lower", "", is_lower },
        { "upper", "", is_upper },
        { "in", "seq!", is_in },
        { "sameas", "other!", is_sameas },
        { "equalto", "b!", is_eq },
        { "eq", "b!", is_eq },
        { "==", "b!", is_eq },
        { "ne", "b!", is_ne },
        { "!=", "b!", is_ne },
        { "lt", "b!", is_lt },
        { "lessthan", "b!", is_lt },
        { "<", "b!", is_lt },
        { "le", "b!", is_le },
        { "<=", "b!", is_le },
        { "gt", "b!", is_gt },
        { "greaterthan", "b!", is_gt },
        { ">", "b!", is_gt },
        { "ge", "b!", is_ge },
        { ">=", "b!", is_ge },
    };
    return tr_jinja_find(rows, TR_COUNT_OF(rows), name, strlen(name));
}

/* ---- global functions ---- */

TR_JINJA_FN(fn_range)
{
    int64_t n[3] = { 0, 0, 1 }, count = 0;
    size_t n_args = 0;
    while (n_args < 3 && a[n_args].kind != K_MISSING) {
        if (!tr_jinja_as_int(e, a[n_args], "range: a bound", &n[n_args]))
            return v;
        n_args++;
    }
    if (n_args == 1) {
        n[1] = n[0];
        n[0] = 0;
    }
    if (n[2] == 0)
        return tr_jinja_fail(e, "range: the step is 0");
    for (int64_t x = n[0]; (n[2] > 0 ? x < n[1] : x > n[1]) && count <= TR_JINJA_MAX_RANGE; count++)
        if (__builtin_add_overflow(x, n[2], &x))
            x = n[1];
    if (count > TR_JINJA_MAX_RANGE)
        return tr_jinja_fail(e, "range: more than %d items", TR_JINJA_MAX_RANGE);
    struct tr_jinja_val out = tr_jinja_seq(e, K_RANGE, (size_t)count);
    for (size_t i = 0; i < out.seq->n && tr_jinja_step(e, 0); i++)
        out.seq->v[i] = tr_jinja_int(n[0] + (int64_t)i * n[2]);
    return out;
}

/* dict(mapping or pairs, name=value, ...) */
TR_JINJA_FN(fn_dict)
{
    struct tr_jinja_val out = tr_jinja_dict(e, raw->n_kw);
    if (raw->n_pos > 1)
        return tr_jinja_fail(e, "dict: more than one positional argument");
    if (raw->n_pos == 1 && raw->pos[0].kind == K_DICT) {
        const struct tr_jinja_dict *from = raw->pos[0].d;
        for (size_t i = 0; i < from->n && e->st == TR_OK; i++)
            tr_jinja_dict_set(e, out.d, from->p[i].key, from->p[i].value);
    } else if (raw->n_pos == 1) {
        const struct tr_jinja_seq *pairs = tr_jinja_iter(e, raw->pos[0]);
        for (size_t i = 0; i < pairs->n && tr_jinja_step(e, 0); i++) {
            const struct tr_jinja_seq *pair = tr_jinja_iter(e, pairs->v[i]);
            if (pair->n != 2)
                return tr_jinja_fail(e, "dict: item %zu is not a pair", i);
            tr_jinja_dict_set(e, out.d, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < raw->n_kw && e->st == TR_OK; i++)
        tr_jinja_dict_set(e, out.d, tr_jinja_str_ref(e, raw->kw[i].name, strlen(raw->kw[i].name)), raw->kw[i].value);
    return out;
}

TR_JINJA_FN(fn_namespace)
{
    struct tr_jinja_val out = fn_dict(e, v, a, raw);
    if (out.kind != K_DICT)
        return out;
    for (size_t i = 0; i < out.d->n; i++)
        if (out.d->p[i].key.kind == K_STR && out.d->p[i].key.s->n > 0 && out.d->p[i].key.s->p[0] == '_')
            return tr_jinja_fail(e, "a namespace cannot hold names that begin with an underscore");
    out.kind = K_NS;
    return out;
}

TR_JINJA_FN(fn_raise)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, a[0]);
    return tr_jinja_fail(e, "the template raised an exception: %.*s", (int)(s->n < 300 ? s->n : 300), s->p);
}

TR_JINJA_FN(fn_strftime)
{
    char format[128], text[512];
    struct tm tm;
    time_t now = (time_t)e->now_s;
    const struct tr_jinja_str *s = tr_jinja_text(e, a[0]);
    if (s->n == 0)
        return tr_jinja_str_ref(e, "", 0);
    if (s->n >= sizeof format || !gmtime_r(&now, &tm))
        return tr_jinja_fail(e, "strftime_now: a format of %zu bytes is too long, or the clock is wrong", s->n);
    memcpy(format, s->p, s->n);
    format[s->n] = 0;
    size_t n = strftime(text, sizeof text, format, &tm);
    return n ? tr_jinja_str(e, text, n) : tr_jinja_fail(e, "strftime_now: the format gives an empty or too long text");
}

const struct tr_jinja_builtin *tr_jinja_global(const char *name)
{
    static const struct tr_jinja_builtin rows[] = {
        { "range", "start! stop step", fn_range },
        { "dict", "*", fn_dict },
        { "namespace", "*", fn_namespace },
        { "raise_exception", "message!", fn_raise },
        { "strftime_now", "format!", fn_strftime },
        { "cycler", "*", NULL },
        { "joiner", "*", NULL },
        { "lipsum", "*", NULL },
    };
    return tr_jinja_find(rows, TR_COUNT_OF(rows), name, strlen(name));
}
