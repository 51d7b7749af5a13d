/* jinja_eval.c - evaluates expressions: the walk over the tree, arguments and calls. */
#include "text/jinja_tree.h"

static struct tr_jinja_val eval_items(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val v = tr_jinja_seq(e, n->kind == N_LIST ? K_LIST : K_TUPLE, n->n_list);
    for (size_t i = 0; i < v.seq->n && e->st == TR_OK; i++)
        v.seq->v[i] = tr_jinja_eval(e, n->list[i]);
    return v;
}

static struct tr_jinja_val eval_dict(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val v = tr_jinja_dict(e, n->n_list / 2);
    for (size_t i = 0; i + 1 < n->n_list && e->st == TR_OK; i += 2) {
        struct tr_jinja_val key = tr_jinja_eval(e, n->list[i]);
        tr_jinja_dict_set(e, v.d, key, tr_jinja_eval(e, n->list[i + 1]));
    }
    return v;
}

static struct tr_jinja_val eval_slice(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val obj = tr_jinja_eval(e, n->a);
    const struct tr_jinja_node *parts[3] = { n->b, n->c, n->d };
    struct tr_jinja_val bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = parts[i] ? tr_jinja_eval(e, parts[i]) : tr_jinja_none();
    return tr_jinja_slice(e, obj, bounds);
}

/* The arguments live in the arena, not on the stack, so that the frames of a recursion stay small. */
static struct tr_jinja_args eval_args(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_args args = { 0 };
    const struct tr_jinja_seq *star = NULL;
    struct tr_jinja_val *pos = tr_jinja_get(e, n->n_args * sizeof *pos);
    struct tr_jinja_kwarg *kw = tr_jinja_get(e, n->n_args * sizeof *kw);
    for (size_t i = 0; i < n->n_args && kw && e->st == TR_OK; i++) {
        struct tr_jinja_val v = tr_jinja_eval(e, n->args[i].value);
        if (n->args[i].is_star)
            star = tr_jinja_iter(e, v);
        else if (n->args[i].name)
            kw[args.n_kw++] = (struct tr_jinja_kwarg){ n->args[i].name, v };
        else
            pos[args.n_pos++] = v;
    }
    struct tr_jinja_val *more = star && star->n ? tr_jinja_get(e, (args.n_pos + star->n) * sizeof *more) : NULL;
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

struct tr_jinja_val tr_jinja_eval_filter(struct tr_jinja_eval *e, const struct tr_jinja_node *n, struct tr_jinja_val in)
{
    struct tr_jinja_args args = eval_args(e, n);
    e->line = n->line;
    if (!n->fn)
        tr_jinja_fail(e, "unknown %s \"%s\"", n->kind == N_TEST ? "test" : "filter", n->name);
    return n->fn ? tr_jinja_call_builtin(e, n->fn, in, &args) : (struct tr_jinja_val){ 0 };
}

struct tr_jinja_val tr_jinja_eval_call(struct tr_jinja_eval *e, const struct tr_jinja_node *n,
                                       struct tr_jinja_macro *caller)
{
    struct tr_jinja_val fn = tr_jinja_eval(e, n->a);
    struct tr_jinja_args args = eval_args(e, n);
    args.caller = caller;
    e->line = n->line;
    return tr_jinja_call(e, fn, &args);
}

static struct tr_jinja_val eval_test(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val in = tr_jinja_eval(e, n->a);
    return tr_jinja_eval_filter(e, n, in);
}

static struct tr_jinja_val eval_concat(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_str text = { 0 };
    for (size_t i = 0; i < n->n_list && e->st == TR_OK; i++) {
        tr_jinja_print(e, tr_jinja_eval(e, n->list[i]), &text);
        if (text.n > TR_JINJA_MAX_OUTPUT)
            tr_jinja_fail(e, "a string is larger than %d MiB, which is the limit", TR_JINJA_MAX_OUTPUT >> 20);
    }
    return tr_jinja_str_take(e, &text);
}

static struct tr_jinja_val eval_compare(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val left = tr_jinja_eval(e, n->a);
    for (size_t i = 0; i < n->n_list; i++) {
        struct tr_jinja_val right = tr_jinja_eval(e, n->list[i]->b);
        if (!tr_jinja_compare(e, n->list[i]->op, left, right))
            return tr_jinja_bool(false);
        left = right;
    }
    return tr_jinja_bool(true);
}

static struct tr_jinja_val eval_sign(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val v = tr_jinja_eval(e, n->a);
    if (!tr_jinja_is_number(v))
        return v.kind == K_UNDEF ? tr_jinja_fail(e, "%.*s", (int)v.s->n, v.s->p)
                                 : tr_jinja_fail(e, "a %s has no sign", tr_jinja_kind(v));
    if (v.kind == K_FLOAT)
        return tr_jinja_float(n->kind == N_NEG ? -v.f : v.f);
    int64_t i = v.kind == K_BOOL ? v.b : v.i;
    if (n->kind == N_POS)
        return tr_jinja_int(i);
    return i == INT64_MIN ? tr_jinja_fail(e, "a number is larger than 64 bits") : tr_jinja_int(-i);
}

static struct tr_jinja_val eval_cond(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    if (tr_jinja_truth(tr_jinja_eval(e, n->b)))
        return tr_jinja_eval(e, n->a);
    return n->c ? tr_jinja_eval(e, n->c) : tr_jinja_undef(e, "the inline if on line %d has no else", n->line);
}

static struct tr_jinja_val eval_logic(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    if (n->kind == N_NOT)
        return tr_jinja_bool(!tr_jinja_truth(tr_jinja_eval(e, n->a)));
    struct tr_jinja_val v = tr_jinja_eval(e, n->a);
    return tr_jinja_truth(v) == (n->kind == N_OR) ? v : tr_jinja_eval(e, n->b);
}

static struct tr_jinja_val eval_access(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val obj = tr_jinja_eval(e, n->a);
    if (n->kind == N_ATTR)
        return tr_jinja_attr(e, obj, n->value);
    struct tr_jinja_val key = tr_jinja_eval(e, n->b);
    return tr_jinja_item(e, obj, key);
}

static struct tr_jinja_val eval_binary(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val a = tr_jinja_eval(e, n->a);
    struct tr_jinja_val b = tr_jinja_eval(e, n->b);
    return tr_jinja_binary(e, n->op, a, b);
}

static struct tr_jinja_val eval_kind(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    switch (n->kind) {
    case N_CONST:
        return n->value;
    case N_NAME:
        return tr_jinja_lookup(e, n->name);
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
        return tr_jinja_eval_call(e, n, NULL);
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

struct tr_jinja_val tr_jinja_eval(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    if (!tr_jinja_step(e, 1))
        return tr_jinja_fail(e, "stopped"); /* keeps the first error */
    if (++e->depth > TR_JINJA_MAX_DEPTH)
        tr_jinja_fail(e, "the template is evaluated more than %d levels deep, which is the limit", TR_JINJA_MAX_DEPTH);
    e->line = n->line;
    struct tr_jinja_val v = eval_kind(e, n);
    e->depth--;
    return v;
}

struct tr_jinja_val tr_jinja_call(struct tr_jinja_eval *e, struct tr_jinja_val fn, const struct tr_jinja_args *args)
{
    if (fn.kind == K_MACRO && fn.macro)
        return tr_jinja_call_macro(e, fn.macro, args);
    if (fn.kind == K_FUNC)
        return tr_jinja_call_builtin(e, fn.fn, tr_jinja_none(), args);
    if (fn.kind == K_METHOD)
        return tr_jinja_call_builtin(e, fn.method->fn, fn.method->self, args);
    if (fn.kind == K_UNDEF)
        return tr_jinja_fail(e, "%.*s", (int)fn.s->n, fn.s->p);
    return tr_jinja_fail(e, "a %s cannot be called", tr_jinja_kind(fn));
}

/* The length of the parameter's name at *p. Moves *p past it. */
static size_t next_param(const char **p, const char **name, bool *is_required)
{
    *name = *p;
    size_t n = strcspn(*p, " !");
    *is_required = (*p)[n] == '!';
    *p += n + *is_required;
    *p += **p == ' ';
    return n;
}

/* A filter, method or test costs what it may read: 16 bytes of a string are a step. */
static bool charge(struct tr_jinja_eval *e, struct tr_jinja_val self, const struct tr_jinja_args *args)
{
    size_t n = self.kind == K_STR ? self.s->n / 16 : 0;
    for (size_t i = 0; i < args->n_pos; i++)
        n += args->pos[i].kind == K_STR ? args->pos[i].s->n / 16 : 0;
    for (size_t i = 0; i < args->n_kw; i++)
        n += args->kw[i].value.kind == K_STR ? args->kw[i].value.s->n / 16 : 0;
    return tr_jinja_step(e, n);
}

struct tr_jinja_val tr_jinja_call_builtin(struct tr_jinja_eval *e, const struct tr_jinja_builtin *b,
                                          struct tr_jinja_val self, const struct tr_jinja_args *raw)
{
    struct tr_jinja_val a[TR_JINJA_MAX_PARAMS] = { 0 };
    size_t n = 0, n_used = 0;
    if (!charge(e, self, raw))
        return tr_jinja_fail(e, "stopped");
    if (!b->fn)
        return tr_jinja_fail(e, "\"%s\" is not supported in chat templates", b->name);
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
            return tr_jinja_fail(e, "%s needs the argument \"%.*s\"", b->name, (int)n_name, name);
    }
    if (raw->n_pos > n)
        return tr_jinja_fail(e, "%s takes at most %zu arguments, not %zu", b->name, n, raw->n_pos);
    if (n_used < raw->n_kw)
        return tr_jinja_fail(e, "%s does not know the argument \"%s\"", b->name, raw->kw[n_used].name);
    return b->fn(e, self, a, raw);
}

const struct tr_jinja_builtin *tr_jinja_find(const struct tr_jinja_builtin *rows, size_t n_rows, const char *name,
                                             size_t n)
{
    for (size_t i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}
