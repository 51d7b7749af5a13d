/* jinja_eval.c - expressions: the walk over the tree, arguments, calls. */
#include "text/jinja_tree.h"

static struct val eval_items(struct eval *e, const struct node *n)
{
    struct val v = tr_j_seq(e, n->kind == N_LIST ? K_LIST : K_TUPLE, n->n_list);
    for (size_t i = 0; i < v.seq->n && e->st == TR_OK; i++)
        v.seq->v[i] = tr_j_eval(e, n->list[i]);
    return v;
}

static struct val eval_dict(struct eval *e, const struct node *n)
{
    struct val v = tr_j_dict(e, n->n_list / 2);
    for (size_t i = 0; i + 1 < n->n_list && e->st == TR_OK; i += 2) {
        struct val key = tr_j_eval(e, n->list[i]);
        tr_j_dict_set(e, v.d, key, tr_j_eval(e, n->list[i + 1]));
    }
    return v;
}

static struct val eval_slice(struct eval *e, const struct node *n)
{
    struct val obj = tr_j_eval(e, n->a);
    const struct node *parts[3] = { n->b, n->c, n->d };
    struct val bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = parts[i] ? tr_j_eval(e, parts[i]) : tr_j_none();
    return tr_j_slice(e, obj, bounds);
}

/* In the arena, not on the stack: frames of a recursion stay small. */
static struct args eval_args(struct eval *e, const struct node *n)
{
    struct args args = { 0 };
    const struct seq *star = NULL;
    struct val *pos = tr_j_get(e, n->n_args * sizeof *pos);
    struct kwarg *kw = tr_j_get(e, n->n_args * sizeof *kw);
    for (size_t i = 0; i < n->n_args && kw && e->st == TR_OK; i++) {
        struct val v = tr_j_eval(e, n->args[i].value);
        if (n->args[i].is_star)
            star = tr_j_iter(e, v);
        else if (n->args[i].name)
            kw[args.n_kw++] = (struct kwarg){ n->args[i].name, v };
        else
            pos[args.n_pos++] = v;
    }
    struct val *more = star && star->n ? tr_j_get(e, (args.n_pos + star->n) * sizeof *more) : NULL;
    if (more) {
        memcpy(more, pos, args.n_pos * sizeof *more);
        memcpy(more + args.n_pos, star->v, star->n * sizeof *more);
        args.n_pos += star->n;
        pos = more;
    }
    args.pos = pos;
    args.kw = kw;
    return args;
}

struct val tr_j_eval_filter(struct eval *e, const struct node *n, struct val in)
{
    struct args args = eval_args(e, n);
    e->line = n->line;
    return tr_j_call_builtin(e, n->fn, in, &args);
}

struct val tr_j_eval_call(struct eval *e, const struct node *n, struct macro *caller)
{
    struct val fn = tr_j_eval(e, n->a);
    struct args args = eval_args(e, n);
    args.caller = caller;
    e->line = n->line;
    return tr_j_call(e, fn, &args);
}

static struct val eval_test(struct eval *e, const struct node *n)
{
    struct val in = tr_j_eval(e, n->a);
    return tr_j_eval_filter(e, n, in);
}

static struct val eval_concat(struct eval *e, const struct node *n)
{
    struct tr_str text = { 0 };
    for (size_t i = 0; i < n->n_list && e->st == TR_OK; i++) {
        tr_j_print(e, tr_j_eval(e, n->list[i]), &text);
        if (text.n > TR_J_MAX_OUTPUT)
            tr_j_fail(e, "a text is larger than %d MiB", TR_J_MAX_OUTPUT >> 20);
    }
    return tr_j_str_take(e, &text);
}

static struct val eval_compare(struct eval *e, const struct node *n)
{
    struct val left = tr_j_eval(e, n->a);
    for (size_t i = 0; i < n->n_list; i++) {
        struct val right = tr_j_eval(e, n->list[i]->b);
        if (!tr_j_compare(e, n->list[i]->op, left, right))
            return tr_j_bool(false);
        left = right;
    }
    return tr_j_bool(true);
}

static struct val eval_sign(struct eval *e, const struct node *n)
{
    struct val v = tr_j_eval(e, n->a);
    if (!tr_j_is_number(v))
        return v.kind == K_UNDEF ? tr_j_fail(e, "%.*s", (int)v.s->n, v.s->p)
                                 : tr_j_fail(e, "a %s has no sign", tr_j_kind(v));
    if (v.kind == K_FLOAT)
        return tr_j_float(n->kind == N_NEG ? -v.f : v.f);
    int64_t i = v.kind == K_BOOL ? v.b : v.i;
    if (n->kind == N_POS)
        return tr_j_int(i);
    return i == INT64_MIN ? tr_j_fail(e, "a number is larger than 64 bits") : tr_j_int(-i);
}

static struct val eval_cond(struct eval *e, const struct node *n)
{
    if (tr_j_truth(tr_j_eval(e, n->b)))
        return tr_j_eval(e, n->a);
    return n->c ? tr_j_eval(e, n->c) : tr_j_undef(e, "the inline if on line %d has no else", n->line);
}

static struct val eval_logic(struct eval *e, const struct node *n)
{
    if (n->kind == N_NOT)
        return tr_j_bool(!tr_j_truth(tr_j_eval(e, n->a)));
    struct val v = tr_j_eval(e, n->a);
    return tr_j_truth(v) == (n->kind == N_OR) ? v : tr_j_eval(e, n->b);
}

static struct val eval_access(struct eval *e, const struct node *n)
{
    struct val obj = tr_j_eval(e, n->a);
    if (n->kind == N_ATTR)
        return tr_j_attr(e, obj, n->value);
    struct val key = tr_j_eval(e, n->b);
    return tr_j_item(e, obj, key);
}

static struct val eval_binary(struct eval *e, const struct node *n)
{
    struct val a = tr_j_eval(e, n->a);
    struct val b = tr_j_eval(e, n->b);
    return tr_j_binary(e, n->op, a, b);
}

static struct val eval_kind(struct eval *e, const struct node *n)
{
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return tr_j_lookup(e, n->name);
    case N_LIST:
    case N_TUPLE:
        return eval_items(e, n);
    case N_DICT:
        return eval_dict(e, n);
    case N_ATTR:
    case N_ITEM:
        return eval_access(e, n);
    case N_SLICE:
        return eval_slice(e, n);
    case N_CALL:
        return tr_j_eval_call(e, n, NULL);
    case N_FILTER:
    case N_TEST:
        return eval_test(e, n);
    case N_NOT:
    case N_AND:
    case N_OR:
        return eval_logic(e, n);
    case N_NEG:
    case N_POS:
        return eval_sign(e, n);
    case N_BINARY:
        return eval_binary(e, n);
    case N_CONCAT:
        return eval_concat(e, n);
    case N_COMPARE:
        return eval_compare(e, n);
    default:
        return eval_cond(e, n);
    }
}

struct val tr_j_eval(struct eval *e, const struct node *n)
{
    if (!tr_j_step(e, 1))
        return tr_j_fail(e, "stopped"); /* keeps the first error */
    if (++e->depth > TR_J_MAX_DEPTH)
        tr_j_fail(e, "the template runs more than %d levels deep", TR_J_MAX_DEPTH);
    e->line = n->line;
    struct val v = eval_kind(e, n);
    e->depth--;
    return v;
}

struct val tr_j_call(struct eval *e, struct val fn, const struct args *args)
{
    if (fn.kind == K_MACRO && fn.macro)
        return tr_j_call_macro(e, fn.macro, args);
    if (fn.kind == K_FUNC)
        return tr_j_call_builtin(e, fn.fn, tr_j_none(), args);
    if (fn.kind == K_METHOD)
        return tr_j_call_builtin(e, fn.method->fn, fn.method->self, args);
    if (fn.kind == K_UNDEF)
        return tr_j_fail(e, "%.*s", (int)fn.s->n, fn.s->p);
    return tr_j_fail(e, "a %s cannot be called", tr_j_kind(fn));
}

/* The parameter at *p: its name's length; moves *p behind it. */
static size_t next_param(const char **p, const char **name, bool *is_required)
{
    *name = *p;
    size_t n = strcspn(*p, " !");
    *is_required = (*p)[n] == '!';
    *p += n + *is_required;
    *p += **p == ' ';
    return n;
}

struct val tr_j_call_builtin(struct eval *e, const struct builtin *b, struct val self, const struct args *raw)
{
    struct val a[TR_J_MAX_PARAMS] = { 0 };
    size_t n = 0, n_used = 0;
    if (e->st != TR_OK)
        return tr_j_fail(e, "stopped");
    if (!b->fn)
        return tr_j_fail(e, "\"%s\" is not supported in chat templates", b->name);
    if (strcmp(b->params, "*") == 0)
        return b->fn(e, self, a, raw);
    for (const char *p = b->params, *name; *p; n++) {
        bool is_required;
        size_t n_name = next_param(&p, &name, &is_required);
        if (n < raw->n_pos)
            a[n] = raw->pos[n];
        for (size_t k = 0; k < raw->n_kw; k++)
            if (strlen(raw->kw[k].name) == n_name && memcmp(raw->kw[k].name, name, n_name) == 0) {
                a[n] = raw->kw[k].value;
                n_used++;
            }
        if (is_required && a[n].kind == K_MISSING)
            return tr_j_fail(e, "%s needs the argument \"%.*s\"", b->name, (int)n_name, name);
    }
    if (raw->n_pos > n)
        return tr_j_fail(e, "%s takes at most %zu arguments, not %zu", b->name, n, raw->n_pos);
    if (n_used < raw->n_kw)
        return tr_j_fail(e, "%s does not know the argument \"%s\"", b->name, raw->kw[n_used].name);
    return b->fn(e, self, a, raw);
}

const struct builtin *tr_j_find(const struct builtin *rows, size_t n_rows, const char *name, size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}
