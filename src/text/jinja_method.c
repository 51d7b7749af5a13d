/* jinja_method.c - methods of str, dict, list and loop. A method that Python has and that is not supported here is a
 * row without a function: calling it is refused with its name, whereas an unknown attribute would be undefined. */
#include "text/jinja_impl.h"

static bool is_given(struct tr_jinja_val v)
{
    return v.kind != K_MISSING && v.kind != K_NONE;
}

static const struct tr_jinja_str *need_str(struct tr_jinja_eval *e, struct tr_jinja_val v, const char *what)
{
    static const struct tr_jinja_str empty = { "", 0, 0, false };
    if (v.kind == K_STR)
        return v.s;
    tr_jinja_fail(e, "%s needs a str, not %s", what, tr_jinja_kind(v));
    return &empty;
}

static struct tr_jinja_val strip(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_jinja_val chars, bool left,
                                 bool right)
{
    const char *p = v.s->p;
    size_t n = v.s->n;
    const struct tr_jinja_str *set = is_given(chars) ? need_str(e, chars, "strip") : NULL;
    if (!tr_jinja_step(e, set ? (n / 64 + 1) * (set->n / 64) : 0)) /* each character is looked for in all of them */
        return v;
    tr_jinja_strip(&p, &n, set, left, right);
    return tr_jinja_str_ref(e, p, n);
}

/* clang-format off */
TR_JINJA_RETURNS(s_strip, strip(e, v, a[0], true, true))
TR_JINJA_RETURNS(s_lstrip, strip(e, v, a[0], true, false))
TR_JINJA_RETURNS(s_rstrip, strip(e, v, a[0], false, true))
TR_JINJA_RETURNS(s_upper, tr_jinja_case(e, v.s, CASE_UPPER))
TR_JINJA_RETURNS(s_lower, tr_jinja_case(e, v.s, CASE_LOWER))
TR_JINJA_RETURNS(s_title, tr_jinja_case(e, v.s, CASE_TITLE))
TR_JINJA_RETURNS(s_capitalize, tr_jinja_case(e, v.s, CASE_CAPITAL))
/* clang-format on */

TR_JINJA_FN(s_replace)
{
    int64_t max = -1;
    const struct tr_jinja_str *from = need_str(e, a[0], "replace"), *to = need_str(e, a[1], "replace");
    if (a[2].kind != K_MISSING && !tr_jinja_as_int(e, a[2], "replace: count", &max))
        return v;
    return tr_jinja_replace(e, v.s, from, to, max);
}

/* Whether the string begins or ends with a string, or with one of a tuple of strings. */
static struct tr_jinja_val has_end(struct tr_jinja_eval *e, const struct tr_jinja_str *s, struct tr_jinja_val part,
                                   bool at_start)
{
    struct tr_jinja_val one = part;
    const struct tr_jinja_val *parts = part.kind == K_TUPLE ? part.seq->v : &one;
    for (size_t i = 0; i < (part.kind == K_TUPLE ? part.seq->n : 1); i++) {
        const struct tr_jinja_str *x = need_str(e, parts[i], "startswith and endswith");
        if (tr_jinja_step(e, x->n / 64) && x->n <= s->n &&
            memcmp(at_start ? s->p : s->p + s->n - x->n, x->p, x->n) == 0)
            return tr_jinja_bool(true);
    }
    return tr_jinja_bool(false);
}

/* clang-format off */
TR_JINJA_RETURNS(s_startswith, has_end(e, v.s, a[0], true))
TR_JINJA_RETURNS(s_endswith, has_end(e, v.s, a[0], false))
/* clang-format on */

static struct tr_jinja_val remove_end(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_jinja_val part,
                                      bool at_start)
{
    const struct tr_jinja_str *x = need_str(e, part, "removeprefix and removesuffix");
    struct tr_jinja_val hit = has_end(e, v.s, part, at_start);
    if (!hit.b)
        return v;
    return tr_jinja_str_ref(e, v.s->p + (at_start ? x->n : 0), v.s->n - x->n);
}

/* clang-format off */
TR_JINJA_RETURNS(s_removeprefix, remove_end(e, v, a[0], true))
TR_JINJA_RETURNS(s_removesuffix, remove_end(e, v, a[0], false))
/* clang-format on */

static const char *last_hit(const struct tr_jinja_str *s, size_t n, const struct tr_jinja_str *part)
{
    for (size_t i = n < part->n ? 0 : n - part->n + 1; i-- > 0;)
        if (memcmp(s->p + i, part->p, part->n) == 0)
            return s->p + i;
    return NULL;
}

static size_t last_hit_steps(const struct tr_jinja_str *s, const struct tr_jinja_str *part)
{
    return (s->n / 4 + 1) * (part->n / 64 + 1);
}

/* The place of the part, in characters; -1: not found. */
static struct tr_jinja_val find(struct tr_jinja_eval *e, struct tr_jinja_val v, const struct tr_jinja_val *a,
                                bool from_end)
{
    const struct tr_jinja_str *part = need_str(e, a[0], "find");
    if (a[1].kind != K_MISSING)
        return tr_jinja_fail(e, "find with a start is not supported");
    if (!tr_jinja_step(e, from_end ? last_hit_steps(v.s, part) : v.s->n / 64))
        return v;
    const char *hit = from_end ? last_hit(v.s, v.s->n, part) : memmem(v.s->p, v.s->n, part->p, part->n);
    if (!hit)
        return tr_jinja_int(-1);
    struct tr_jinja_str before = { v.s->p, (size_t)(hit - v.s->p), SIZE_MAX, false };
    return tr_jinja_int((int64_t)tr_jinja_n_chars(&before));
}

/* clang-format off */
TR_JINJA_RETURNS(s_find, find(e, v, a, false))
TR_JINJA_RETURNS(s_rfind, find(e, v, a, true))
/* clang-format on */

TR_JINJA_FN(s_index)
{
    struct tr_jinja_val at = find(e, v, a, false);
    return at.kind == K_INT && at.i < 0 ? tr_jinja_fail(e, "index: the string does not hold the part") : at;
}

TR_JINJA_FN(s_count)
{
    const struct tr_jinja_str *part = need_str(e, a[0], "count");
    int64_t n = 0;
    if (part->n == 0)
        return tr_jinja_int((int64_t)tr_jinja_n_chars(v.s) + 1);
    for (size_t i = 0; i < v.s->n && tr_jinja_step(e, 1); n++) {
        const char *hit = memmem(v.s->p + i, v.s->n - i, part->p, part->n);
        if (!hit)
            break;
        i = (size_t)(hit - v.s->p) + part->n;
    }
    return tr_jinja_int(n);
}

/* ---- split ---- */

struct split_parts {
    struct tr_jinja_eval *e;
    struct tr_jinja_val *v;
    size_t n, n_cap;
};

static void add_part(struct split_parts *l, const char *p, size_t n)
{
    if (l->n == l->n_cap) {
        size_t n_cap = l->n_cap ? l->n_cap * 2 : 8;
        struct tr_jinja_val *more = tr_jinja_get(l->e, n_cap * sizeof *more);
        if (!more)
            return;
        if (l->n)
            memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->n_cap = n_cap;
    }
    l->v[l->n++] = tr_jinja_str_ref(l->e, p, n);
}

static struct tr_jinja_val part_list(struct split_parts *l, bool is_reverse)
{
    struct tr_jinja_val out = tr_jinja_seq(l->e, K_LIST, l->n);
    for (size_t i = 0; i < out.seq->n; i++)
        out.seq->v[i] = l->v[is_reverse ? l->n - 1 - i : i];
    return out;
}

/* Splits at runs of white space. */
static struct tr_jinja_val split_blanks(struct tr_jinja_eval *e, const struct tr_jinja_str *s, int64_t max)
{
    struct split_parts l = { .e = e };
    size_t i = 0;
    for (;;) {
        while (i < s->n && tr_jinja_is_space(tr_jinja_char(s->p + i, s->n - i)))
            i += tr_jinja_char_len(s->p + i, s->n - i);
        if (i == s->n || !tr_jinja_step(e, 1))
            break;
        size_t from = i;
        if (max >= 0 && (int64_t)l.n == max) {
            const char *p = s->p + from;
            size_t n = s->n - from;
            add_part(&l, p, n);
            break;
        }
        while (i < s->n && !tr_jinja_is_space(tr_jinja_char(s->p + i, s->n - i)))
            i += tr_jinja_char_len(s->p + i, s->n - i);
        add_part(&l, s->p + from, i - from);
    }
    return part_list(&l, false);
}

TR_JINJA_FN(s_split)
{
    int64_t max = -1;
    struct split_parts l = { .e = e };
    if (a[1].kind != K_MISSING && !tr_jinja_as_int(e, a[1], "split: maxsplit", &max))
        return v;
    if (!is_given(a[0]))
        return split_blanks(e, v.s, max);
    const struct tr_jinja_str *by = need_str(e, a[0], "split");
    if (by->n == 0)
        return tr_jinja_fail(e, "split at an empty text");
    size_t i = 0;
    while ((max < 0 || (int64_t)l.n < max) && tr_jinja_step(e, 1)) {
        const char *hit = memmem(v.s->p + i, v.s->n - i, by->p, by->n);
        if (!hit)
            break;
        add_part(&l, v.s->p + i, (size_t)(hit - v.s->p) - i);
        i = (size_t)(hit - v.s->p) + by->n;
    }
    add_part(&l, v.s->p + i, v.s->n - i);
    return part_list(&l, false);
}

TR_JINJA_FN(s_rsplit)
{
    int64_t max = -1;
    struct split_parts l = { .e = e };
    if (a[1].kind != K_MISSING && !tr_jinja_as_int(e, a[1], "rsplit: maxsplit", &max))
        return v;
    if (!is_given(a[0]))
        return max < 0 ? split_blanks(e, v.s, max)
                       : tr_jinja_fail(e, "rsplit at white space with maxsplit is not supported");
    const struct tr_jinja_str *by = need_str(e, a[0], "rsplit");
    if (by->n == 0)
        return tr_jinja_fail(e, "split at an empty text");
    size_t end = v.s->n;
    if (!tr_jinja_step(e, last_hit_steps(v.s, by)))
        return v;
    while ((max < 0 || (int64_t)l.n < max) && tr_jinja_step(e, 1)) {
        const char *hit = last_hit(v.s, end, by);
        if (!hit)
            break;
        size_t from = (size_t)(hit - v.s->p) + by->n;
        add_part(&l, v.s->p + from, end - from);
        end = from - by->n;
    }
    add_part(&l, v.s->p, end);
    return part_list(&l, true);
}

TR_JINJA_FN(s_splitlines)
{
    struct split_parts l = { .e = e };
    if (tr_jinja_truth(a[0]))
        return tr_jinja_fail(e, "splitlines with keepends is not supported");
    for (size_t i = 0, from = 0; i <= v.s->n && tr_jinja_step(e, 0);) {
        uint32_t c = i < v.s->n ? tr_jinja_char(v.s->p + i, v.s->n - i) : '\n';
        size_t len = i < v.s->n ? tr_jinja_char_len(v.s->p + i, v.s->n - i) : 1;
        bool is_break = (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (is_break && (i < v.s->n || from < i))
            add_part(&l, v.s->p + from, i - from);
        if (c == '\r' && i + 1 < v.s->n && v.s->p[i + 1] == '\n')
            len = 2;
        i += len;
        from = is_break ? i : from;
    }
    return part_list(&l, false);
}

TR_JINJA_FN(s_join)
{
    struct tr_str out = { 0 };
    const struct tr_jinja_seq *in = tr_jinja_iter(e, a[0]);
    for (size_t i = 0; i < in->n && tr_jinja_step(e, 1) && out.n <= TR_JINJA_MAX_OUTPUT; i++) {
        const struct tr_jinja_str *x = need_str(e, in->v[i], "join");
        if (i > 0)
            tr_str_add(&out, v.s->p, v.s->n);
        tr_str_add(&out, x->p, x->n);
    }
    tr_jinja_check_length(e, "join", out.n);
    return tr_jinja_str_take(e, &out);
}

/* Whether the string is not empty and all of its characters are of one kind. Only ASCII, because Python's Unicode
 * tables are not rebuilt here. */
static struct tr_jinja_val all_are(struct tr_jinja_eval *e, const struct tr_jinja_str *s, bool digits, bool letters)
{
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if ((unsigned char)c >= 0x80)
            return tr_jinja_fail(e, "isdigit, isalpha and isalnum are supported for ASCII text only");
        bool is_digit = c >= '0' && c <= '9', is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!(digits && is_digit) && !(letters && is_letter))
            return tr_jinja_bool(false);
    }
    return tr_jinja_bool(s->n > 0);
}

/* clang-format off */
TR_JINJA_RETURNS(s_isdigit, all_are(e, v.s, true, false))
TR_JINJA_RETURNS(s_isalpha, all_are(e, v.s, false, true))
TR_JINJA_RETURNS(s_isalnum, all_are(e, v.s, true, true))
/* clang-format on */

TR_JINJA_FN(s_isspace)
{
    const char *p = v.s->p;
    size_t n = v.s->n;
    tr_jinja_strip(&p, &n, NULL, true, false);
    return tr_jinja_bool(v.s->n > 0 && n == 0);
}

/* clang-format off */
TR_JINJA_RETURNS(s_isupper, tr_jinja_test("upper")->fn(e, v, a, raw))
TR_JINJA_RETURNS(s_islower, tr_jinja_test("lower")->fn(e, v, a, raw))
/* clang-format on */

/* "{} {0} {name}".format(...): only plain fields are supported. */
static struct tr_jinja_val field(struct tr_jinja_eval *e, const char *p, size_t n, size_t *n_auto,
                                 const struct tr_jinja_args *raw)
{
    size_t i = 0;
    bool is_number = n < 4;
    for (size_t k = 0; k < n && is_number; k++) {
        is_number = p[k] >= '0' && p[k] <= '9';
        i = i * 10 + (size_t)(p[k] - '0');
    }
    if (is_number)
        i = n ? i : (*n_auto)++;
    if (is_number && i < raw->n_pos)
        return raw->pos[i];
    for (size_t k = 0; k < raw->n_kw; k++)
        if (strlen(raw->kw[k].name) == n && memcmp(raw->kw[k].name, p, n) == 0)
            return raw->kw[k].value;
    return tr_jinja_fail(e, "format: the field {%.*s} has no value or is not supported", (int)(n < 40 ? n : 40), p);
}

TR_JINJA_FN(s_format)
{
    struct tr_str out = { 0 };
    size_t n_auto = 0;
    for (size_t i = 0; i < v.s->n && tr_jinja_step(e, 0) && out.n <= TR_JINJA_MAX_OUTPUT; i++) {
        const char *p = v.s->p + i, *end;
        bool is_double = i + 1 < v.s->n && p[1] == p[0];
        if (*p != '{' && *p != '}') {
            tr_str_add(&out, p, 1);
        } else if (is_double) {
            tr_str_add(&out, p, 1);
            i++;
        } else if (*p == '{' && (end = memchr(p, '}', v.s->n - i))) {
            tr_jinja_print(e, field(e, p + 1, (size_t)(end - p) - 1, &n_auto, raw), &out);
            i = (size_t)(end - v.s->p);
        } else {
            tr_jinja_fail(e, "format: a single brace; write {{ or }} for the character itself");
        }
    }
    tr_jinja_check_length(e, "format", out.n);
    return tr_jinja_str_take(e, &out);
}

/* ---- dict, list, loop ---- */

TR_JINJA_FN(d_get)
{
    struct tr_jinja_val got = tr_jinja_dict_get(e, v.d, a[0]);
    if (got.kind != K_MISSING)
        return got;
    return a[1].kind == K_MISSING ? tr_jinja_none() : a[1];
}

static struct tr_jinja_val view(struct tr_jinja_eval *e, const struct tr_jinja_dict *d, bool has_key, bool has_value)
{
    struct tr_jinja_val out = tr_jinja_seq(e, K_VIEW, d->n);
    for (size_t i = 0; i < out.seq->n && tr_jinja_step(e, 0); i++) {
        if (has_key && has_value) {
            out.seq->v[i] = tr_jinja_seq(e, K_TUPLE, 2);
            if (out.seq->v[i].seq->n != 2)
                break;
            out.seq->v[i].seq->v[0] = d->p[i].key;
            out.seq->v[i].seq->v[1] = d->p[i].value;
        } else {
            out.seq->v[i] = has_key ? d->p[i].key : d->p[i].value;
        }
    }
    return out;
}

/* clang-format off */
TR_JINJA_RETURNS(d_items, view(e, v.d, true, true))
TR_JINJA_RETURNS(d_keys, view(e, v.d, true, false))
TR_JINJA_RETURNS(d_values, view(e, v.d, false, true))
/* clang-format on */

TR_JINJA_FN(l_index)
{
    for (size_t i = 0; i < v.seq->n && tr_jinja_step(e, 0); i++)
        if (tr_jinja_eq(e, v.seq->v[i], a[0]))
            return tr_jinja_int((int64_t)i);
    return tr_jinja_fail(e, "index: the value is not in the list");
}

TR_JINJA_FN(l_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.seq->n && tr_jinja_step(e, 0); i++)
        n += tr_jinja_eq(e, v.seq->v[i], a[0]);
    return tr_jinja_int(n);
}

TR_JINJA_FN(loop_cycle)
{
    return raw->n_pos ? raw->pos[v.loop->at % raw->n_pos] : tr_jinja_fail(e, "cycle needs at least one value");
}

TR_JINJA_FN(loop_changed)
{
    struct tr_jinja_val now = tr_jinja_seq(e, K_TUPLE, raw->n_pos);
    for (size_t i = 0; i < now.seq->n; i++)
        now.seq->v[i] = raw->pos[i];
    bool is_changed = v.loop->last_changed.kind == K_MISSING || !tr_jinja_eq(e, v.loop->last_changed, now);
    v.loop->last_changed = now;
    return tr_jinja_bool(is_changed);
}

const struct tr_jinja_builtin *tr_jinja_method(enum tr_jinja_kind kind, const char *name, size_t n)
{
    static const struct tr_jinja_builtin str_rows[] = {
        { "strip", "chars", s_strip },
        { "lstrip", "chars", s_lstrip },
        { "rstrip", "chars", s_rstrip },
        { "upper", "", s_upper },
        { "lower", "", s_lower },
        { "title", "", s_title },
        { "capitalize", "", s_capitalize },
        { "replace", "old! new! count", s_replace },
        { "startswith", "prefix!", s_startswith },
        { "endswith", "suffix!", s_endswith },
        { "removeprefix", "prefix!", s_removeprefix },
        { "removesuffix", "suffix!", s_removesuffix },
        { "find", "sub! start", s_find },
        { "rfind", "sub! start", s_rfind },
        { "index", "sub! start", s_index },
        { "count", "sub!", s_count },
        { "split", "sep maxsplit", s_split },
        { "rsplit", "sep maxsplit", s_rsplit },
        { "splitlines", "keepends", s_splitlines },
        { "join", "iterable!", s_join },
        { "format", "*", s_format },
        { "isdigit", "", s_isdigit },
        { "isnumeric", "", s_isdigit },
        { "isdecimal", "", s_isdigit },
        { "isalpha", "", s_isalpha },
        { "isalnum", "", s_isalnum },
        { "isspace", "", s_isspace },
        { "isupper", "", s_isupper },
        { "islower", "", s_islower },
        { "casefold", "*", NULL },
        { "center", "*", NULL },
        { "encode", "*", NULL },
        { "expandtabs", "*", NULL },
        { "format_map", "*", NULL },
        { "isascii", "*", NULL },
        { "isidentifier", "*", NULL },
        { "isprintable", "*", NULL },
        { "istitle", "*", NULL },
        { "ljust", "*", NULL },
        { "maketrans", "*", NULL },
        { "partition", "*", NULL },
        { "rindex", "*", NULL },
        { "rjust", "*", NULL },
        { "rpartition", "*", NULL },
        { "swapcase", "*", NULL },
        { "translate", "*", NULL },
        { "zfill", "*", NULL },
    };
    static const struct tr_jinja_builtin dict_rows[] = {
        { "get", "key! default", d_get }, { "items", "", d_items }, { "keys", "", d_keys },
        { "values", "", d_values },       { "clear", "*", NULL },   { "copy", "*", NULL },
        { "fromkeys", "*", NULL },        { "pop", "*", NULL },     { "popitem", "*", NULL },
        { "setdefault", "*", NULL },      { "update", "*", NULL },
    };
    static const struct tr_jinja_builtin list_rows[] = {
        { "index", "value!", l_index }, { "count", "value!", l_count }, { "append", "*", NULL }, { "clear", "*", NULL },
        { "copy", "*", NULL },          { "extend", "*", NULL },        { "insert", "*", NULL }, { "pop", "*", NULL },
        { "remove", "*", NULL },        { "reverse", "*", NULL },       { "sort", "*", NULL },
    };
    static const struct tr_jinja_builtin loop_rows[] = { { "cycle", "*", loop_cycle },
                                                         { "changed", "*", loop_changed } };
    switch (kind) {
    case K_STR:
        return tr_jinja_find(str_rows, TR_COUNT_OF(str_rows), name, n);
    case K_DICT:
        return tr_jinja_find(dict_rows, TR_COUNT_OF(dict_rows), name, n);
    case K_LIST:
        return tr_jinja_find(list_rows, TR_COUNT_OF(list_rows), name, n);
    case K_TUPLE:
    case K_RANGE:
        return tr_jinja_find(list_rows, 2, name, n);
    case K_LOOP:
        return tr_jinja_find(loop_rows, TR_COUNT_OF(loop_rows), name, n);
    default:
        return NULL;
    }
}
