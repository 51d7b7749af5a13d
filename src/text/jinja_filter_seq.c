/* jinja_filter_seq.c - filters on lists and dicts.
 *
 * The result of map, select, ... is a generator in jinja2. Here it is computed at once and marked as a generator, so
 * that length, [] and print refuse it as Python does.
 */
#include "text/jinja_impl.h"

TR_JINJA_FN(f_length)
{
    if (v.kind == K_STR)
        return tr_jinja_int((int64_t)tr_jinja_n_chars(v.s));
    if (v.kind == K_DICT)
        return tr_jinja_int((int64_t)v.d->n);
    if (v.kind == K_UNDEF)
        return tr_jinja_int(0);
    if (!tr_jinja_is_seq(v) || v.kind == K_GEN)
        return tr_jinja_fail(e, "a %s has no length; use |list first", tr_jinja_kind(v));
    return tr_jinja_int((int64_t)v.seq->n);
}

TR_JINJA_FN(f_list)
{
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    struct tr_jinja_val out = tr_jinja_seq(e, K_LIST, in->n);
    if (out.seq->n && tr_jinja_step(e, in->n / 4))
        memcpy(out.seq->v, in->v, in->n * sizeof *in->v);
    return out;
}

TR_JINJA_FN(f_first)
{
    if (v.kind == K_STR && v.s->n > 0)
        return tr_jinja_str_ref(e, v.s->p, tr_jinja_char_len(v.s->p, v.s->n));
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    return in->n ? in->v[0] : tr_jinja_undef(e, "no first item, the sequence was empty");
}

TR_JINJA_FN(f_last)
{
    if (v.kind == K_GEN)
        return tr_jinja_fail(e, "last cannot read a generator; use |list first");
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    return in->n ? in->v[in->n - 1] : tr_jinja_undef(e, "no last item, the sequence was empty");
}

TR_JINJA_FN(f_reverse)
{
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    struct tr_jinja_val out = tr_jinja_seq(e, v.kind == K_GEN ? K_LIST : K_GEN, in->n);
    struct tr_str text = { 0 };
    for (size_t i = 0; i < out.seq->n && tr_jinja_step(e, 0); i++)
        out.seq->v[i] = in->v[in->n - 1 - i];
    if (v.kind != K_STR)
        return out;
    for (size_t i = 0; i < out.seq->n && e->st == TR_OK; i++)
        tr_str_add(&text, out.seq->v[i].s->p, out.seq->v[i].s->n);
    return tr_jinja_str_take(e, &text);
}

/* Follows "a.b.0" into nested values; a part of digits is an index. `other` replaces an undefined result, unless it is
 * K_MISSING. */
static struct tr_jinja_val path(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_jinja_val attr,
                                struct tr_jinja_val other)
{
    if (attr.kind == K_INT)
        return tr_jinja_item(e, v, attr);
    if (attr.kind != K_STR)
        return tr_jinja_fail(e, "an attribute's name must be a str, not %s", tr_jinja_kind(attr));
    const char *p = attr.s->p, *end = p + attr.s->n;
    while (p <= end && e->st == TR_OK) {
        const char *dot = p < end ? memchr(p, '.', (size_t)(end - p)) : NULL;
        size_t n = (size_t)((dot ? dot : end) - p);
        bool is_number = n > 0 && n < 10;
        int64_t i = 0;
        for (size_t k = 0; k < n && is_number; k++) {
            is_number = p[k] >= '0' && p[k] <= '9';
            i = i * 10 + (p[k] - '0');
        }
        v = tr_jinja_item(e, v, is_number ? tr_jinja_int(i) : tr_jinja_str_ref(e, p, n));
        if (v.kind == K_UNDEF && other.kind != K_MISSING)
            v = other;
        p += n + 1;
    }
    return v;
}

static bool is_given(struct tr_jinja_val v)
{
    return v.kind != K_MISSING && v.kind != K_NONE;
}

TR_JINJA_FN(f_join)
{
    struct tr_str out = { 0 };
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    const struct tr_jinja_str *by = a[0].kind == K_MISSING ? NULL : tr_jinja_text(e, a[0]);
    for (size_t i = 0; i < in->n && tr_jinja_step(e, 1); i++) {
        if (i > 0 && by)
            tr_str_add(&out, by->p, by->n);
        tr_jinja_print(e, is_given(a[1]) ? path(e, in->v[i], a[1], (struct tr_jinja_val){ 0 }) : in->v[i], &out);
        tr_jinja_check_length(e, "join", out.n);
    }
    return tr_jinja_str_take(e, &out);
}

TR_JINJA_FN(f_items)
{
    if (v.kind != K_DICT && v.kind != K_UNDEF)
        return tr_jinja_fail(e, "items needs a dict, not %s", tr_jinja_kind(v));
    struct tr_jinja_val out = tr_jinja_seq(e, K_GEN, v.kind == K_DICT ? v.d->n : 0);
    for (size_t i = 0; i < out.seq->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_val pair = tr_jinja_seq(e, K_TUPLE, 2);
        if (pair.seq->n == 2) {
            pair.seq->v[0] = v.d->p[i].key;
            pair.seq->v[1] = v.d->p[i].value;
        }
        out.seq->v[i] = pair;
    }
    return out;
}

static const struct tr_jinja_kwarg *kwarg(const struct tr_jinja_args *raw, const char *name)
{
    return tr_row_find(raw->kw, raw->n_kw, sizeof *raw->kw, name);
}

/* map, select and the like take any false value for an empty list. */
static const struct tr_jinja_seq *items_if_true(struct tr_jinja_eval *e, struct tr_jinja_val v)
{
    static const struct tr_jinja_seq empty;
    return tr_jinja_truth(v) ? tr_jinja_iter(e, v) : &empty;
}

/* The filter or test whose name is argument i. Its own arguments follow that name. */
static const struct tr_jinja_builtin *named(struct tr_jinja_eval *e, const struct tr_jinja_args *raw, size_t i,
                                            const struct tr_jinja_builtin *(*find)(const char *),
                                            struct tr_jinja_args *rest)
{
    char name[32] = "";
    if (raw->pos[i].kind == K_STR && raw->pos[i].s->n < sizeof name)
        memcpy(name, raw->pos[i].s->p, raw->pos[i].s->n);
    const struct tr_jinja_builtin *fn = find(name);
    if (!fn)
        tr_jinja_fail(e, "unknown filter or test \"%s\"", name);
    *rest = (struct tr_jinja_args){
        .pos = raw->pos + i + 1, .n_pos = raw->n_pos - i - 1, .kw = raw->kw, .n_kw = raw->n_kw
    };
    return fn;
}

/* Calls a builtin on one item. map, select, ... may call builtins again, so each call counts as one level of depth. */
static struct tr_jinja_val call_nested(struct tr_jinja_eval *e, const struct tr_jinja_builtin *fn,
                                       struct tr_jinja_val item, const struct tr_jinja_args *args)
{
    struct tr_jinja_val v = tr_jinja_none();
    if (++e->depth > TR_JINJA_MAX_DEPTH)
        tr_jinja_fail(e, "filters are nested more than %d deep, which is the limit", TR_JINJA_MAX_DEPTH);
    else
        v = tr_jinja_call_builtin(e, fn, item, args);
    e->depth--;
    return v;
}

TR_JINJA_FN(f_map)
{
    const struct tr_jinja_seq *in = items_if_true(e, v);
    const struct tr_jinja_kwarg *attr = raw->n_pos == 0 ? kwarg(raw, "attribute") : NULL,
                                *other = kwarg(raw, "default");
    const struct tr_jinja_builtin *fn = NULL;
    struct tr_jinja_args rest = { 0 };
    struct tr_jinja_val none = { .kind = K_MISSING };
    if (attr && raw->n_kw > 1 + (other != NULL))
        return tr_jinja_fail(e, "map got an unknown argument; it takes a filter's name, or attribute= and default=");
    if (!attr && raw->n_pos == 0)
        return tr_jinja_fail(e, "map needs the name of a filter, or attribute=");
    if (!attr && !(fn = named(e, raw, 0, tr_jinja_filter, &rest)))
        return v;
    struct tr_jinja_val out = tr_jinja_seq(e, K_GEN, in->n);
    for (size_t i = 0; i < out.seq->n && tr_jinja_step(e, 1); i++)
        out.seq->v[i] = attr ? path(e, in->v[i], attr->value, other && is_given(other->value) ? other->value : none)
                             : call_nested(e, fn, in->v[i], &rest);
    return out;
}

/* select, reject, selectattr, rejectattr: the items that pass (or fail) a test, by themselves or by an attribute.
 * Without a test, truth decides. */
static struct tr_jinja_val pick(struct tr_jinja_eval *e, struct tr_jinja_val v, const struct tr_jinja_args *raw,
                                bool has_attr, bool wanted)
{
    const struct tr_jinja_seq *in = items_if_true(e, v);
    size_t n_first = has_attr ? 1 : 0, n = 0;
    struct tr_jinja_args rest = { 0 };
    const struct tr_jinja_builtin *fn = NULL;
    if (raw->n_pos < n_first)
        return tr_jinja_fail(e, "selectattr and rejectattr need an attribute's name");
    if (raw->n_pos > n_first && !(fn = named(e, raw, n_first, tr_jinja_test, &rest)))
        return v;
    struct tr_jinja_val out = tr_jinja_seq(e, K_GEN, in->n);
    for (size_t i = 0; i < in->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_val x = has_attr ? path(e, in->v[i], raw->pos[0], (struct tr_jinja_val){ 0 }) : in->v[i];
        bool is_kept = tr_jinja_truth(fn ? call_nested(e, fn, x, &rest) : x) == wanted;
        if (is_kept && e->st == TR_OK)
            out.seq->v[n++] = in->v[i];
    }
    if (e->st == TR_OK)
        out.seq->n = n;
    return out;
}

/* clang-format off */
TR_JINJA_RETURNS(f_select, pick(e, v, raw, false, true))
TR_JINJA_RETURNS(f_reject, pick(e, v, raw, false, false))
TR_JINJA_RETURNS(f_selectattr, pick(e, v, raw, true, true))
TR_JINJA_RETURNS(f_rejectattr, pick(e, v, raw, true, false))
/* clang-format on */

/* The key that sort, unique, min and max compare: an attribute or the item, in lower case unless case_sensitive. */
static struct tr_jinja_val sort_key(struct tr_jinja_eval *e, struct tr_jinja_val v, struct tr_jinja_val attr,
                                    struct tr_jinja_val case_sensitive)
{
    if (is_given(attr)) {
        if (attr.kind == K_STR && memchr(attr.s->p, ',', attr.s->n))
            return tr_jinja_fail(e, "sorting by several attributes is not supported");
        v = path(e, v, attr, (struct tr_jinja_val){ 0 });
    }
    return v.kind == K_STR && !tr_jinja_truth(case_sensitive) ? tr_jinja_case(e, v.s, CASE_LOWER) : v;
}

/* Stable insertion sort of n items by their keys. Templates sort a handful of items, and each comparison counts as a
 * step. */
static void sort_items(struct tr_jinja_eval *e, struct tr_jinja_val *items, struct tr_jinja_val *keys, size_t n,
                       bool is_reverse)
{
    for (size_t i = 1; i < n; i++) {
        struct tr_jinja_val item = items[i], key = keys[i];
        size_t at = i;
        for (; at > 0 && tr_jinja_step(e, 0); at--) {
            int order = tr_jinja_cmp(e, keys[at - 1], key);
            if (is_reverse ? order >= 0 : order <= 0)
                break;
            items[at] = items[at - 1];
            keys[at] = keys[at - 1];
        }
        items[at] = item;
        keys[at] = key;
    }
}

TR_JINJA_FN(f_sort)
{
    struct tr_jinja_val out = f_list(e, v, a, raw), keys = tr_jinja_seq(e, K_LIST, out.seq->n);
    for (size_t i = 0; i < keys.seq->n && tr_jinja_step(e, 1); i++)
        keys.seq->v[i] = sort_key(e, out.seq->v[i], a[2], a[1]);
    if (e->st == TR_OK)
        sort_items(e, out.seq->v, keys.seq->v, out.seq->n, tr_jinja_truth(a[0]));
    return out;
}

TR_JINJA_FN(f_dictsort)
{
    bool by_value = a[1].kind == K_STR && a[1].s->n == 5 && memcmp(a[1].s->p, "value", 5) == 0;
    bool by_key = a[1].kind == K_STR && a[1].s->n == 3 && memcmp(a[1].s->p, "key", 3) == 0;
    if (v.kind != K_DICT || (is_given(a[1]) && !by_value && !by_key))
        return tr_jinja_fail(e, "dictsort needs a dict, and by must be \"key\" or \"value\"");
    struct tr_jinja_val out = f_items(e, v, a, raw), keys = tr_jinja_seq(e, K_LIST, out.seq->n);
    out.kind = K_LIST;
    for (size_t i = 0; i < keys.seq->n && tr_jinja_step(e, 1); i++)
        keys.seq->v[i] = sort_key(e, by_value ? v.d->p[i].value : v.d->p[i].key, (struct tr_jinja_val){ 0 }, a[0]);
    if (e->st == TR_OK)
        sort_items(e, out.seq->v, keys.seq->v, out.seq->n, tr_jinja_truth(a[2]));
    return out;
}

TR_JINJA_FN(f_unique)
{
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    struct tr_jinja_val out = tr_jinja_seq(e, K_GEN, in->n), keys = tr_jinja_seq(e, K_LIST, in->n);
    size_t n = 0;
    for (size_t i = 0; i < in->n && tr_jinja_step(e, n / 4 + 1); i++) {
        struct tr_jinja_val key = sort_key(e, in->v[i], a[1], a[0]);
        size_t k = 0;
        while (k < n && !tr_jinja_eq(e, keys.seq->v[k], key))
            k++;
        if (k < n || e->st != TR_OK)
            continue;
        keys.seq->v[n] = key;
        out.seq->v[n++] = in->v[i];
    }
    if (e->st == TR_OK)
        out.seq->n = n;
    return out;
}

static struct tr_jinja_val extreme(struct tr_jinja_eval *e, struct tr_jinja_val v, const struct tr_jinja_val *a,
                                   int wanted)
{
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    if (in->n == 0)
        return tr_jinja_undef(e, "no aggregated item, the sequence was empty");
    size_t best = 0;
    struct tr_jinja_val best_key = sort_key(e, in->v[0], a[1], a[0]);
    for (size_t i = 1; i < in->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_val key = sort_key(e, in->v[i], a[1], a[0]);
        int order = tr_jinja_cmp(e, key, best_key);
        if (wanted < 0 ? order < 0 : order > 0) {
            best = i;
            best_key = key;
        }
    }
    return in->v[best];
}

/* clang-format off */
TR_JINJA_RETURNS(f_min, extreme(e, v, a, -1))
TR_JINJA_RETURNS(f_max, extreme(e, v, a, 1))
/* clang-format on */

TR_JINJA_FN(f_sum)
{
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    struct tr_jinja_val sum = a[1].kind == K_MISSING ? tr_jinja_int(0) : a[1];
    if (sum.kind == K_STR)
        return tr_jinja_fail(e, "sum cannot add strings; use join");
    for (size_t i = 0; i < in->n && tr_jinja_step(e, 1); i++)
        sum = tr_jinja_binary(e, OP_ADD, sum,
                              is_given(a[0]) ? path(e, in->v[i], a[0], (struct tr_jinja_val){ 0 }) : in->v[i]);
    return sum;
}

TR_JINJA_FN(f_batch)
{
    int64_t width = 0;
    const struct tr_jinja_seq *in = tr_jinja_iter(e, v);
    if (!tr_jinja_as_int(e, a[0], "batch: linecount", &width) || width < 1 || width > TR_JINJA_MAX_RANGE)
        return tr_jinja_fail(e, "batch: a linecount of %" PRId64 " is not supported", width);
    size_t n_row = (size_t)width, n_rows = in->n / n_row + (in->n % n_row != 0);
    struct tr_jinja_val out = tr_jinja_seq(e, K_GEN, n_rows);
    for (size_t r = 0; r < out.seq->n && tr_jinja_step(e, n_row / 4); r++) {
        size_t n_left = in->n - r * n_row, n_here = n_left < n_row && !is_given(a[1]) ? n_left : n_row;
        struct tr_jinja_val row = tr_jinja_seq(e, K_LIST, n_here);
        for (size_t i = 0; i < row.seq->n; i++)
            row.seq->v[i] = i < n_left ? in->v[r * n_row + i] : a[1];
        out.seq->v[r] = row;
    }
    return out;
}

TR_JINJA_FN(f_attr)
{
    if (a[0].kind != K_STR || v.kind == K_DICT)
        return tr_jinja_fail(e, "attr of a %s is not supported; write x.name", tr_jinja_kind(v));
    return tr_jinja_attr(e, v, a[0]);
}

const struct tr_jinja_builtin *tr_jinja_filter_seq(const char *name)
{
    static const struct tr_jinja_builtin rows[] = {
        { "length", "", f_length },
        { "count", "", f_length },
        { "list", "", f_list },
        { "first", "", f_first },
        { "last", "", f_last },
        { "reverse", "", f_reverse },
        { "join", "d attribute", f_join },
        { "items", "", f_items },
        { "map", "*", f_map },
        { "select", "*", f_select },
        { "reject", "*", f_reject },
        { "selectattr", "*", f_selectattr },
        { "rejectattr", "*", f_rejectattr },
        { "sort", "reverse case_sensitive attribute", f_sort },
        { "dictsort", "case_sensitive by reverse", f_dictsort },
        { "unique", "case_sensitive attribute", f_unique },
        { "min", "case_sensitive attribute", f_min },
        { "max", "case_sensitive attribute", f_max },
        { "sum", "attribute start", f_sum },
        { "batch", "linecount! fill_with", f_batch },
        { "attr", "name!", f_attr },
    };
    return tr_jinja_find(rows, TR_COUNT_OF(rows), name, strlen(name));
}
