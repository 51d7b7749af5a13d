/* jinja_print.c - prints values: Python's str() and repr(), and json.dumps as transformers' tojson calls it. */
#include "text/jinja_impl.h"
#include <math.h>

/* repr(float): the fewest digits that read back as the same number; with an exponent below 1e-4 and from 1e16 on. */
void tr_jinja_print_float(double f, struct tr_str *out)
{
    char digits[40];
    if (isnan(f) || isinf(f)) {
        tr_str_addf(out, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    int n_digits = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", n_digits, f);
    while (strtod(digits, NULL) != f && ++n_digits < 17);
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16)
        tr_str_addf(out, "%.*s%s", (int)(strchr(digits, 'e') - digits), digits, strchr(digits, 'e'));
    else
        tr_str_addf(out, "%.*f", n_digits > exponent ? n_digits - exponent : 1, f);
}

/* Characters above ASCII that repr() escapes: separators, formats, private use. Unassigned characters, which repr()
 * escapes too, are not recognised. */
static bool is_hidden(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } rows[] = {
        { 0x7f, 0xa0 },       { 0xad, 0xad },       { 0x600, 0x605 },     { 0x61c, 0x61c },     { 0x6dd, 0x6dd },
        { 0x70f, 0x70f },     { 0x890, 0x891 },     { 0x8e2, 0x8e2 },     { 0x1680, 0x1680 },   { 0x180e, 0x180e },
        { 0x2000, 0x200f },   { 0x2028, 0x202f },   { 0x205f, 0x206f },   { 0x3000, 0x3000 },   { 0xe000, 0xf8ff },
        { 0xfeff, 0xfeff },   { 0xfff0, 0xfffb },   { 0xfffe, 0xffff },   { 0x110bd, 0x110bd }, { 0x110cd, 0x110cd },
        { 0x13430, 0x1343f }, { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0xe00ff }, { 0xe01f0, 0x10ffff },
    };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (c >= rows[i].first && c <= rows[i].last)
            return true;
    return false;
}

static void repr_str(struct tr_jinja_eval *e, const struct tr_jinja_str *s, struct tr_str *out)
{
    if (!tr_jinja_step(e, s->n))
        return;
    char quote = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    tr_str_addf(out, "%c", quote);
    for (size_t i = 0; i < s->n;) {
        size_t len = tr_jinja_char_len(s->p + i, s->n - i);
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        if (c == (uint32_t)quote || c == '\\')
            tr_str_addf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            tr_str_addf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || is_hidden(c))
            tr_str_addf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        else
            tr_str_add(out, s->p + i, len);
        i += len;
    }
    tr_str_addf(out, "%c", quote);
}

static void repr_pairs(struct tr_jinja_eval *e, const struct tr_jinja_dict *d, struct tr_str *out, int depth)
{
    tr_str_add(out, "{", 1);
    for (size_t i = 0; i < d->n && e->st == TR_OK; i++) {
        if (i > 0)
            tr_str_add(out, ", ", 2);
        tr_jinja_repr(e, d->p[i].key, out, depth + 1);
        tr_str_add(out, ": ", 2);
        tr_jinja_repr(e, d->p[i].value, out, depth + 1);
    }
    tr_str_add(out, "}", 1);
}

static void repr_items(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_str *out, int depth)
{
    bool is_tuple = v.kind == K_TUPLE;
    tr_str_add(out, is_tuple ? "(" : "[", 1);
    for (size_t i = 0; i < v.seq->n && e->st == TR_OK; i++) {
        if (i > 0)
            tr_str_add(out, ", ", 2);
        tr_jinja_repr(e, v.seq->v[i], out, depth + 1);
    }
    if (is_tuple && v.seq->n == 1)
        tr_str_add(out, ",", 1);
    tr_str_add(out, is_tuple ? ")" : "]", 1);
}

void tr_jinja_repr(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_str *out, int depth)
{
    if (!tr_jinja_step(e, 1))
        return;
    if (depth > TR_JINJA_MAX_TREE || out->n > TR_JINJA_MAX_OUTPUT) {
        tr_jinja_fail(e, "a value is too deep or too long to be printed");
        return;
    }
    if (v.kind == K_STR && v.s->is_safe)
        tr_jinja_fail(e, "printing a |safe string inside a list or dict is not supported");
    else if (v.kind == K_STR)
        repr_str(e, v.s, out);
    else if (v.kind == K_UNDEF)
        tr_str_addf(out, "Undefined");
    else if (v.kind == K_LIST || v.kind == K_TUPLE)
        repr_items(e, v, out, depth);
    else if (v.kind == K_DICT)
        repr_pairs(e, v.d, out, depth);
    else
        tr_jinja_print(e, v, out);
}

void tr_jinja_print(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_str *out)
{
    switch (v.kind) {
    case K_MISSING:
    case K_UNDEF:
        break;
    case K_NONE:
        tr_str_addf(out, "None");
        break;
    case K_BOOL:
        tr_str_addf(out, "%s", v.b ? "True" : "False");
        break;
    case K_INT:
        tr_str_addf(out, "%" PRId64, v.i);
        break;
    case K_FLOAT:
        tr_jinja_print_float(v.f, out);
        break;
    case K_STR:
        tr_str_add(out, v.s->p, v.s->n);
        break;
    case K_LIST:
    case K_TUPLE:
    case K_DICT:
        tr_jinja_repr(e, v, out, 0);
        break;
    default:
        tr_jinja_fail(e, "a %s cannot be printed; use |list first", tr_jinja_kind(v));
    }
}

struct tr_jinja_str *tr_jinja_text(struct tr_jinja_eval *e, struct tr_jinja_val v)
{
    struct tr_str out = { 0 };
    if (v.kind == K_STR)
        return v.s;
    tr_jinja_print(e, v, &out);
    return tr_jinja_str_take(e, &out).s;
}

/* ---- json.dumps ---- */

struct dumper {
    struct tr_jinja_eval *e;
    struct tr_str *out;
    const struct tr_jinja_str *indent; /* NULL: one line */
    const struct tr_jinja_str *item, *colon;
    bool is_ascii, is_sorted;
};

static void json_str(struct dumper *d, const struct tr_jinja_str *s)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    if (!tr_jinja_step(d->e, s->n)) /* an escaped byte is printed by itself */
        return;
    tr_str_add(d->out, "\"", 1);
    for (size_t i = 0; i < s->n;) {
        size_t len = tr_jinja_char_len(s->p + i, s->n - i);
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        const char *short_form = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (short_form)
            tr_str_addf(d->out, "\\%c", to[short_form - from]);
        else if (c >= 0x10000 && d->is_ascii)
            tr_str_addf(d->out, "\\u%04x\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10),
                        0xdc00 + (unsigned)((c - 0x10000) & 0x3ff));
        else if (c < 0x20 || (c >= 0x7f && d->is_ascii))
            tr_str_addf(d->out, "\\u%04x", (unsigned)c);
        else
            tr_str_add(d->out, s->p + i, len);
        i += len;
    }
    tr_str_add(d->out, "\"", 1);
}

static void json_line(struct dumper *d, int depth)
{
    if (!d->indent)
        return;
    tr_str_add(d->out, "\n", 1);
    for (int i = 0; i < depth && tr_jinja_step(d->e, 1) && d->out->n <= TR_JINJA_MAX_OUTPUT; i++)
        tr_str_add(d->out, d->indent->p, d->indent->n);
}

static void json_value(struct dumper *d, struct tr_jinja_val v, int depth);

static void json_key(struct dumper *d, struct tr_jinja_val key)
{
    if (key.kind == K_STR || key.kind > K_STR) {
        if (key.kind == K_STR)
            json_str(d, key.s);
        else
            tr_jinja_fail(d->e, "tojson: a %s cannot be a key", tr_jinja_kind(key));
        return;
    }
    tr_str_add(d->out, "\"", 1);
    json_value(d, key, 0);
    tr_str_add(d->out, "\"", 1);
}

/* Sorts the pairs by their keys. Insertion sort, because sort_keys is rare and schemas are small; each comparison
 * counts as a step. */
static struct tr_jinja_dict *sorted(struct dumper *d, const struct tr_jinja_dict *in)
{
    struct tr_jinja_dict *out = tr_jinja_dict(d->e, in->n).d;
    for (size_t i = 0; i < out->n_cap && tr_jinja_step(d->e, i / 4 + 1); i++) {
        size_t at = i;
        for (; at > 0 && tr_jinja_cmp(d->e, out->p[at - 1].key, in->p[i].key) > 0; at--)
            out->p[at] = out->p[at - 1];
        out->p[at] = in->p[i];
        out->n++;
    }
    return out;
}

static void json_items(struct dumper *d, struct tr_jinja_val v, int depth)
{
    bool is_dict = v.kind == K_DICT;
    const struct tr_jinja_dict *pairs = is_dict && d->is_sorted ? sorted(d, v.d) : v.d;
    size_t n = is_dict ? pairs->n : v.seq->n;
    tr_str_add(d->out, is_dict ? "{" : "[", 1);
    for (size_t i = 0; i < n && d->e->st == TR_OK; i++) {
        if (i > 0)
            tr_str_add(d->out, d->item->p, d->item->n);
        json_line(d, depth + 1);
        if (is_dict) {
            json_key(d, pairs->p[i].key);
            tr_str_add(d->out, d->colon->p, d->colon->n);
        }
        json_value(d, is_dict ? pairs->p[i].value : v.seq->v[i], depth + 1);
    }
    if (n > 0)
        json_line(d, depth);
    tr_str_add(d->out, is_dict ? "}" : "]", 1);
}

static void json_value(struct dumper *d, struct tr_jinja_val v, int depth)
{
    if (!tr_jinja_step(d->e, 1))
        return;
    if (depth > TR_JINJA_MAX_TREE || d->out->n > TR_JINJA_MAX_OUTPUT)
        tr_jinja_fail(d->e, "tojson: a value is too deep or too long");
    else if (v.kind == K_STR)
        json_str(d, v.s);
    else if (v.kind == K_NONE)
        tr_str_addf(d->out, "null");
    else if (v.kind == K_BOOL)
        tr_str_addf(d->out, "%s", v.b ? "true" : "false");
    else if (v.kind == K_FLOAT && !isfinite(v.f))
        tr_str_addf(d->out, "%s", isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (tr_jinja_is_number(v))
        tr_jinja_print(d->e, v, d->out);
    else if (v.kind == K_LIST || v.kind == K_TUPLE || v.kind == K_DICT)
        json_items(d, v, depth);
    else
        tr_jinja_fail(d->e, "tojson: a %s is not JSON", tr_jinja_kind(v));
}

/* a: ensure_ascii, indent, separators, sort_keys. */
void tr_jinja_json(struct tr_jinja_eval *e, struct tr_jinja_val v, const struct tr_jinja_val *a, struct tr_str *out)
{
    struct tr_jinja_str comma = { ", ", 2, 2, false }, colon = { ": ", 2, 2, false };
    struct dumper d = { e, out, NULL, &comma, &colon, tr_jinja_truth(a[0]), tr_jinja_truth(a[3]) };
    if (a[1].kind == K_STR) {
        d.indent = a[1].s;
    } else if (a[1].kind != K_MISSING && a[1].kind != K_NONE) {
        int64_t n = 0;
        static const char blanks[] = "                                ";
        if (!tr_jinja_as_int(e, a[1], "tojson: indent", &n) || n > 32) {
            tr_jinja_fail(e, "tojson: indent is more than 32, which is the limit");
            return;
        }
        d.indent = tr_jinja_str_ref(e, blanks, n > 0 ? (size_t)n : 0).s;
    }
    if (d.indent)
        comma.n = 1;
    if (a[2].kind == K_LIST || a[2].kind == K_TUPLE) {
        if (a[2].seq->n != 2 || a[2].seq->v[0].kind != K_STR || a[2].seq->v[1].kind != K_STR) {
            tr_jinja_fail(e, "tojson: separators must be two strings");
            return;
        }
        d.item = a[2].seq->v[0].s;
        d.colon = a[2].seq->v[1].s;
    }
    json_value(&d, v, 0);
}
