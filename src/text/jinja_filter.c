/* jinja_filter.c - filters on strings and numbers. Filters on lists are in jinja_filter_seq.c.
 *
 * Each row of the table is a filter. Its parameters are bound by name and position before the function runs.
 */
#include "text/jinja_impl.h"
#include <math.h>

static struct tr_jinja_val keep_safe(struct tr_jinja_val v, const struct tr_jinja_str *from)
{
    if (v.s->n > 0 && from->is_safe)
        v.s->is_safe = true;
    return v;
}

TR_JINJA_FN(f_trim)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v), *chars = NULL;
    if (a[0].kind != K_MISSING && a[0].kind != K_NONE)
        chars = tr_jinja_text(e, a[0]);
    const char *p = s->p;
    size_t n = s->n;
    if (!tr_jinja_step(e, chars ? (n / 64 + 1) * (chars->n / 64) : 0)) /* each character is looked for in all of them */
        return v;
    tr_jinja_strip(&p, &n, chars, true, true);
    return keep_safe(tr_jinja_str_ref(e, p, n), s);
}

TR_JINJA_FN(f_string)
{
    return (struct tr_jinja_val){ .kind = K_STR, .s = tr_jinja_text(e, v) };
}

/* clang-format off */
TR_JINJA_RETURNS(f_upper, tr_jinja_case(e, tr_jinja_text(e, v), CASE_UPPER))
TR_JINJA_RETURNS(f_lower, tr_jinja_case(e, tr_jinja_text(e, v), CASE_LOWER))
TR_JINJA_RETURNS(f_capitalize, tr_jinja_case(e, tr_jinja_text(e, v), CASE_CAPITAL))
/* clang-format on */

/* This is not str.title(): a word begins only after white space or one of -({[<. */
TR_JINJA_FN(f_title)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v);
    struct tr_jinja_val lower = tr_jinja_case(e, s, CASE_LOWER);
    char *p = tr_jinja_get(e, lower.s->n + 1);
    bool is_start = true;
    for (size_t i = 0; p && i < lower.s->n; i++) {
        char c = lower.s->p[i];
        p[i] = is_start && c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
        is_start = tr_jinja_is_space((unsigned char)c & 0x80 ? 'x' : (uint32_t)c) || strchr("-({[<", c);
    }
    return p ? keep_safe(tr_jinja_str_ref(e, p, lower.s->n), s) : lower;
}

TR_JINJA_FN(f_replace)
{
    int64_t max = -1;
    if (a[2].kind != K_MISSING && a[2].kind != K_NONE && !tr_jinja_as_int(e, a[2], "replace: count", &max))
        return v;
    return tr_jinja_replace(e, tr_jinja_text(e, v), tr_jinja_text(e, a[0]), tr_jinja_text(e, a[1]), max);
}

TR_JINJA_FN(f_default)
{
    bool is_absent = v.kind == K_UNDEF || (tr_jinja_truth(a[1]) && !tr_jinja_truth(v));
    if (!is_absent)
        return v;
    return a[0].kind == K_MISSING ? tr_jinja_str_ref(e, "", 0) : a[0];
}

TR_JINJA_FN(f_tojson)
{
    struct tr_str out = { 0 };
    tr_jinja_json(e, v, a, &out);
    return tr_jinja_str_take(e, &out);
}

TR_JINJA_FN(f_safe)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v);
    struct tr_jinja_val out = tr_jinja_str_ref(e, s->p, s->n);
    if (e->st == TR_OK)
        out.s->is_safe = true;
    return out;
}

struct tr_jinja_val tr_jinja_escape(struct tr_jinja_eval *e, struct tr_jinja_val v)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v);
    struct tr_str out = { 0 };
    if (s->is_safe)
        return v;
    for (size_t i = 0; i < s->n; i++) {
        static const char from[] = "&<>'\"";
        static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
        const char *hit = s->p[i] ? strchr(from, s->p[i]) : NULL;
        tr_str_add(&out, hit ? to[hit - from] : s->p + i, hit ? strlen(to[hit - from]) : 1);
    }
    struct tr_jinja_val text = tr_jinja_str_take(e, &out);
    if (e->st == TR_OK)
        text.s->is_safe = true;
    return text;
}

TR_JINJA_RETURNS(f_escape, tr_jinja_escape(e, v))

/* str.splitlines has more line breaks than \n. A string that holds one of those is refused. */
TR_JINJA_FN(f_indent)
{
    if (v.kind != K_STR)
        return tr_jinja_fail(e, "indent needs a str, not %s", tr_jinja_kind(v));
    const struct tr_jinja_str *s = v.s;
    struct tr_jinja_val by = a[0];
    bool first = tr_jinja_truth(a[1]), blank = tr_jinja_truth(a[2]);
    struct tr_str out = { 0 };
    if (by.kind != K_STR)
        by = tr_jinja_binary(e, OP_MUL, tr_jinja_str_ref(e, " ", 1), by.kind == K_MISSING ? tr_jinja_int(4) : by);
    if (by.kind != K_STR)
        return v;
    for (size_t i = 0; i < s->n; i += tr_jinja_char_len(s->p + i, s->n - i)) {
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        if ((c >= 0xb && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029)
            return tr_jinja_fail(e, "indent: the line break U+%04X is not supported", (unsigned)c);
    }
    for (size_t i = 0; i <= s->n && tr_jinja_step(e, 1) && out.n <= TR_JINJA_MAX_OUTPUT;) {
        const char *end = i < s->n ? memchr(s->p + i, '\n', s->n - i) : NULL;
        size_t n = end ? (size_t)(end - s->p) - i : s->n - i;
        if ((i == 0 && first) || (i > 0 && (blank || n > 0)))
            tr_str_add(&out, by.s->p, by.s->n);
        tr_str_add(&out, s->p + i, n);
        if (end)
            tr_str_add(&out, "\n", 1);
        i += n + 1;
    }
    tr_jinja_check_length(e, "indent", out.n);
    return keep_safe(tr_jinja_str_take(e, &out), s);
}

/* Whether the whole string, apart from white space around it, is a decimal number. */
static bool read_number(const struct tr_jinja_str *s, bool is_int, char buf[64])
{
    const char *p = s->p;
    size_t n = s->n;
    tr_jinja_strip(&p, &n, NULL, true, true);
    if (n == 0 || n > 62 || memchr(p, '_', n))
        return false;
    memcpy(buf, p, n);
    buf[n] = 0;
    const char *digits = buf + (buf[0] == '-' || buf[0] == '+');
    return is_int ? digits[0] && strspn(digits, "0123456789") == strlen(digits)
                  : strspn(digits, "0123456789.eE+-") == strlen(digits);
}

static bool read_float(const struct tr_jinja_str *s, double *out)
{
    char buf[64], *end;
    if (!read_number(s, false, buf))
        return false;
    *out = strtod(buf, &end);
    return end != buf && *end == 0;
}

TR_JINJA_FN(f_int)
{
    struct tr_jinja_val other = a[0].kind == K_MISSING ? tr_jinja_int(0) : a[0];
    char buf[64];
    double f = 0;
    if (a[1].kind != K_MISSING && !tr_jinja_eq(e, a[1], tr_jinja_int(10)))
        return tr_jinja_fail(e, "int: only base 10 is supported");
    if (v.kind == K_INT || v.kind == K_BOOL)
        return tr_jinja_int(v.kind == K_INT ? v.i : v.b);
    if (v.kind == K_STR && read_number(v.s, true, buf)) {
        if (strlen(buf) > 18)
            return tr_jinja_fail(e, "int: a number is larger than 64 bits");
        return tr_jinja_int(strtoll(buf, NULL, 10));
    }
    if (v.kind == K_FLOAT)
        f = v.f;
    else if (v.kind != K_STR || !read_float(v.s, &f))
        return v.kind == K_UNDEF ? tr_jinja_fail(e, "%.*s", (int)v.s->n, v.s->p) : other;
    if (isnan(f) || isinf(f))
        return other;
    return fabs(f) < 0x1p63 ? tr_jinja_int((int64_t)f) : tr_jinja_fail(e, "int: a number is larger than 64 bits");
}

TR_JINJA_FN(f_float)
{
    double f;
    if (tr_jinja_is_number(v))
        return tr_jinja_float(tr_jinja_real(v));
    if (v.kind == K_UNDEF)
        return tr_jinja_fail(e, "%.*s", (int)v.s->n, v.s->p);
    if (v.kind == K_STR && read_float(v.s, &f))
        return tr_jinja_float(f);
    return a[0].kind == K_MISSING ? tr_jinja_float(0) : a[0];
}

TR_JINJA_FN(f_abs)
{
    if (v.kind == K_FLOAT)
        return tr_jinja_float(fabs(v.f));
    int64_t i;
    if (!tr_jinja_as_int(e, v, "abs: the value", &i))
        return v;
    return i == INT64_MIN ? tr_jinja_fail(e, "abs: a number is larger than 64 bits") : tr_jinja_int(i < 0 ? -i : i);
}

/* round(value, precision, method). The method "common" is Python's round: on the exact decimal value, ties to even. */
TR_JINJA_FN(f_round)
{
    int64_t digits = 0;
    char buf[400];
    if (!tr_jinja_is_number(v) || (a[0].kind != K_MISSING && !tr_jinja_as_int(e, a[0], "round: precision", &digits)))
        return tr_jinja_fail(e, "round needs a number, not %s", tr_jinja_kind(v));
    const struct tr_jinja_str *method = a[1].kind == K_MISSING ? NULL : tr_jinja_text(e, a[1]);
    double f = tr_jinja_real(v), scale = pow(10, (double)digits);
    if (digits < 0 || digits > 20 || !isfinite(f))
        return tr_jinja_fail(e, "round: a precision of %" PRId64 " or a value of %g is not supported", digits, f);
    if (!method || (method->n == 6 && memcmp(method->p, "common", 6) == 0)) {
        if (v.kind != K_FLOAT)
            return tr_jinja_int(v.kind == K_INT ? v.i : v.b); /* round() of an int with digits stays an int */
        snprintf(buf, sizeof buf, "%.*f", (int)digits, f);    /* glibc prints exactly, ties to even */
        return tr_jinja_float(strtod(buf, NULL));
    }
    if (method->n == 4 && memcmp(method->p, "ceil", 4) == 0)
        return tr_jinja_float(ceil(f * scale) / scale);
    if (method->n == 5 && memcmp(method->p, "floor", 5) == 0)
        return tr_jinja_float(floor(f * scale) / scale);
    return tr_jinja_fail(e, "round: the method must be common, ceil or floor");
}

TR_JINJA_FN(f_format)
{
    if (raw->n_kw > 0)
        return tr_jinja_fail(e, "format: named values are not supported");
    return tr_jinja_percent(e, tr_jinja_text(e, v), raw->pos, raw->n_pos);
}

TR_JINJA_FN(f_wordcount)
{
    const struct tr_jinja_str *s = tr_jinja_text(e, v);
    int64_t n = 0;
    bool in_word = false;
    for (size_t i = 0; i < s->n; i += tr_jinja_char_len(s->p + i, s->n - i)) {
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        if (c >= 0x80)
            return tr_jinja_fail(e, "wordcount: only ASCII text is supported");
        bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        n += is_word && !in_word;
        in_word = is_word;
    }
    return tr_jinja_int(n);
}

const struct tr_jinja_builtin *tr_jinja_filter_text(const char *name)
{
    static const struct tr_jinja_builtin rows[] = {
        { "trim", "chars", f_trim },
        { "string", "", f_string },
        { "upper", "", f_upper },
        { "lower", "", f_lower },
        { "capitalize", "", f_capitalize },
        { "title", "", f_title },
        { "replace", "old! new! count", f_replace },
        { "default", "default_value boolean", f_default },
        { "d", "default_value boolean", f_default },
        { "tojson", "ensure_ascii indent separators sort_keys", f_tojson },
        { "safe", "", f_safe },
        { "escape", "", f_escape },
        { "e", "", f_escape },
        { "indent", "width first blank", f_indent },
        { "int", "default base", f_int },
        { "float", "default", f_float },
        { "abs", "", f_abs },
        { "round", "precision method", f_round },
        { "format", "*", f_format },
        { "wordcount", "", f_wordcount },
    };
    return tr_jinja_find(rows, TR_COUNT_OF(rows), name, strlen(name));
}

const struct tr_jinja_builtin *tr_jinja_filter(const char *name)
{
    const struct tr_jinja_builtin *fn = tr_jinja_filter_text(name);
    return fn ? fn : tr_jinja_filter_seq(name);
}
