/* jinja.c - opening and rendering a template: the limits, the statements.
 *
 * Scopes are a chain searched from the inside. A loop pass, macro call, set block, with and generation block open one;
 * if does not. That is jinja2's rule without its compile-time symbol tables.
 */
#include "text/jinja_tree.h"
#include <stdarg.h>

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

void tr_marks_release(struct tr_marks *s)
{
    free(s->p);
    *s = (struct tr_marks){ 0 };
}

enum tr_status tr_marks_add(struct tr_marks *s, size_t begin, size_t end)
{
    if (s->n == s->n_cap) {
        size_t n_cap = s->n_cap ? s->n_cap * 2 : 8;
        struct tr_mark *p = realloc(s->p, n_cap * sizeof *p);
        if (!p)
            return tr_fail(TR_NOMEM, "no memory for %zu spans", n_cap);
        s->p = p;
        s->n_cap = n_cap;
    }
    s->p[s->n++] = (struct tr_mark){ begin, end };
    return TR_OK;
}

const char *tr_j_intern(struct tr_jinja *t, const char *p, size_t n, bool add)
{
    enum { SLOTS = 2 * TR_J_MAX_NAMES };
    if (!t->names && !(t->names = tr_j_alloc(&t->mem, SLOTS * sizeof *t->names)))
        return NULL;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)p[i]) * 1099511628211u;
    size_t at = (size_t)(hash % SLOTS);
    for (; t->names[at]; at = (at + 1) % SLOTS)
        if (strlen(t->names[at]) == n && memcmp(t->names[at], p, n) == 0)
            return t->names[at];
    char *name = add && t->n_names < TR_J_MAX_NAMES ? tr_j_alloc(&t->mem, n + 1) : NULL;
    if (!name)
        return NULL;
    memcpy(name, p, n);
    t->n_names++;
    t->names[at] = name;
    return name;
}

static enum tr_status check_text(const char *text, size_t n, const char *what)
{
    if (n > TR_J_MAX_TEMPLATE)
        return tr_fail(TR_USAGE, "%s: a template of %zu bytes is too large; the limit is %d", what, n,
                       TR_J_MAX_TEMPLATE);
    for (size_t i = 0; i < n;) {
        size_t len = text[i] ? tr_utf8_len(text + i, n - i) : 0;
        if (len == 0)
            return tr_fail(TR_USAGE, "%s: byte %zu of the template is not UTF-8 text", what, i);
        i += len;
    }
    return TR_OK;
}

enum tr_status tr_jinja_open(const char *text, size_t n, const char *what, struct tr_jinja **out)
{
    enum tr_status st = TR_OK;
    struct tr_jinja *t = calloc(1, sizeof *t);
    char *copy = NULL;
    TR_TRY(check_text(text, n, what));
    if (t) {
        t->mem.n_max = TR_J_MAX_MEMORY;
        copy = tr_j_alloc(&t->mem, n + 1);
        t->what = tr_j_alloc(&t->mem, strlen(what) + 1);
    }
    if (!t || !copy || !t->what)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for template %s", what));
    memcpy(copy, text, n);
    memcpy(t->what, what, strlen(what));
    t->hash = tr_hash(text, n);
    TR_TRY(tr_j_lex(t, copy, n));
    TR_TRY(tr_j_parse(t));
    t->name_loop = tr_j_intern(t, "loop", 4, false);
    t->name_caller = tr_j_intern(t, "caller", 6, false);
    free(t->tokens);
    t->tokens = NULL;
    *out = t;
    t = NULL;
out:
    tr_jinja_close(t);
    return st;
}

void tr_jinja_close(struct tr_jinja *t)
{
    if (!t)
        return;
    free(t->tokens);
    tr_j_arena_release(&t->mem);
    free(t);
}

bool tr_jinja_has_generation(const struct tr_jinja *t)
{
    return t->has_generation;
}

struct val tr_j_fail(struct eval *e, const char *fmt, ...)
{
    static struct str nothing = { "", 0, 0, false };
    char text[400], shown[800];
    va_list args;
    if (e->st == TR_OK) {
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        e->st = tr_fail(TR_USAGE, "%s:%d: %s", e->t->what, e->line, tr_escape(text, shown, sizeof shown));
    }
    return (struct val){ .kind = K_UNDEF, .s = &nothing };
}

bool tr_j_step(struct eval *e, size_t n)
{
    if (e->st != TR_OK)
        return false;
    if (n >= (size_t)(TR_J_MAX_STEPS - e->n_steps)) {
        tr_j_fail(e, "the template takes more than %d steps", TR_J_MAX_STEPS);
        return false;
    }
    e->n_steps += (int64_t)n + 1;
    return true;
}

void tr_j_emit(struct eval *e, const char *p, size_t n)
{
    if (e->st != TR_OK)
        return;
    if (n > TR_J_MAX_OUTPUT - e->out->n) {
        tr_j_fail(e, "the rendering is larger than %d MiB", TR_J_MAX_OUTPUT >> 20);
        return;
    }
    tr_str_add(e->out, p, n);
    if (!tr_str_ok(e->out))
        e->st = tr_fail(TR_NOMEM, "no memory to render a template");
}

/* ---- scopes ---- */

static struct scope *open_scope(struct eval *e, struct scope *up)
{
    struct scope *old = e->scope, *s = tr_j_get(e, sizeof *s);
    if (s) {
        s->up = up;
        e->scope = s;
    }
    return old;
}

static void bind(struct eval *e, const char *name, struct val v)
{
    struct scope *s = e->scope;
    if (!tr_j_step(e, s->n / 8))
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->b[i].name == name) {
            s->b[i].value = v;
            return;
        }
    if (s->n == s->n_cap) {
        size_t n_cap = s->n_cap ? s->n_cap * 2 : 4;
        struct binding *more = tr_j_get(e, n_cap * sizeof *more);
        if (!more)
            return;
        if (s->n)
            memcpy(more, s->b, s->n * sizeof *more);
        s->b = more;
        s->n_cap = n_cap;
    }
    s->b[s->n++] = (struct binding){ name, v };
}

struct val tr_j_lookup(struct eval *e, const char *name)
{
    for (const struct scope *s = e->scope; s && tr_j_step(e, s->n / 8); s = s->up)
        for (size_t i = 0; i < s->n; i++)
            if (s->b[i].name == name)
                return s->b[i].value;
    const struct builtin *fn = tr_j_global(name);
    if (fn)
        return (struct val){ .kind = K_FUNC, .fn = fn };
    return tr_j_undef(e, "'%s' is undefined", name);
}

static void assign_ns(struct eval *e, const struct node *target, struct val v)
{
    struct val ns = tr_j_lookup(e, target->name);
    const struct str *attr = target->value.s;
    if (ns.kind != K_NS)
        tr_j_fail(e, "%s is a %s; only a namespace has attributes that can be set", target->name, tr_j_kind(ns));
    else if (attr->n > 0 && attr->p[0] == '_')
        tr_j_fail(e, "a namespace cannot hold names with a leading underscore");
    else
        tr_j_dict_set(e, ns.d, target->value, v);
}

static void assign(struct eval *e, const struct node *target, struct val v)
{
    if (target->kind == N_NSREF) {
        assign_ns(e, target, v);
    } else if (target->kind == N_NAME) {
        bind(e, target->name, v);
    } else {
        const struct seq *items = tr_j_iter(e, v);
        if (items->n != target->n_list)
            tr_j_fail(e, "%zu values cannot be assigned to %zu names", items->n, target->n_list);
        for (size_t i = 0; i < target->n_list && e->st == TR_OK; i++)
            assign(e, target->list[i], items->v[i]);
    }
}

/* ---- statements ---- */

static enum flow exec(struct eval *e, const struct node *n);

static struct val capture(struct eval *e, const struct node *body)
{
    struct tr_str text = { 0 }, *out = e->out;
    e->out = &text;
    e->n_captures++;
    exec(e, body);
    e->n_captures--;
    e->out = out;
    return tr_j_str_take(e, &text);
}

static struct val capture_scoped(struct eval *e, const struct node *body)
{
    struct scope *old = open_scope(e, e->scope);
    struct val v = capture(e, body);
    e->scope = old;
    return v;
}

static enum flow exec_if(struct eval *e, const struct node *n)
{
    for (size_t i = 0; i + 1 < n->n_list; i += 2)
        if (tr_j_truth(tr_j_eval(e, n->list[i])))
            return exec(e, n->list[i + 1]);
    return n->a ? exec(e, n->a) : FLOW_NEXT;
}

/* The items that pass the loop's `if`. */
static struct seq *loop_items(struct eval *e, const struct node *n)
{
    struct seq *all = tr_j_iter(e, tr_j_eval(e, n->b));
    if (!n->c)
        return all;
    struct seq *kept = tr_j_seq(e, K_LIST, all->n).seq;
    size_t n_kept = 0;
    for (size_t i = 0; i < all->n && tr_j_step(e, 1); i++) {
        struct scope *old = open_scope(e, e->scope);
        assign(e, n->a, all->v[i]);
        if (tr_j_truth(tr_j_eval(e, n->c)) && e->st == TR_OK)
            kept->v[n_kept++] = all->v[i];
        e->scope = old;
    }
    if (e->st == TR_OK)
        kept->n = n_kept;
    return kept;
}

static enum flow exec_for(struct eval *e, const struct node *n)
{
    struct loop *loop = tr_j_get(e, sizeof *loop);
    struct seq *items = loop_items(e, n);
    if (!loop || e->st != TR_OK)
        return FLOW_NEXT;
    if (items->n == 0)
        return n->d ? exec(e, n->d) : FLOW_NEXT;
    *loop = (struct loop){ .items = items, .depth = ++e->loop_depth };
    for (size_t i = 0; i < items->n && tr_j_step(e, 1); i++) {
        struct scope *old = open_scope(e, e->scope);
        loop->at = i;
        assign(e, n->a, items->v[i]);
        if (e->t->name_loop)
            bind(e, e->t->name_loop, (struct val){ .kind = K_LOOP, .loop = loop });
        enum flow flow = exec(e, n->list[0]);
        e->scope = old;
        if (flow == FLOW_BREAK)
            break;
    }
    e->loop_depth--;
    return FLOW_NEXT;
}

static struct val apply_filters(struct eval *e, const struct node *n, struct val in)
{
    if (!n)
        return in;
    return tr_j_eval_filter(e, n, n->a ? apply_filters(e, n->a, in) : in);
}

static struct macro *make_macro(struct eval *e, const struct node *n)
{
    struct macro *m = tr_j_get(e, sizeof *m);
    if (m)
        *m = (struct macro){ n, e->scope };
    return m;
}

static void exec_call(struct eval *e, const struct node *n)
{
    struct macro *caller = make_macro(e, n->b);
    if (!caller)
        return;
    const struct str *text = tr_j_text(e, tr_j_eval_call(e, n->a, caller));
    tr_j_emit(e, text->p, text->n);
}

static enum flow exec_with(struct eval *e, const struct node *n)
{
    struct scope *outer = e->scope, *old = open_scope(e, outer), *inner = e->scope;
    for (size_t i = 0; i + 1 < n->n_list && e->st == TR_OK; i += 2) {
        e->scope = outer; /* the values do not see each other */
        struct val v = tr_j_eval(e, n->list[i + 1]);
        e->scope = inner;
        assign(e, n->list[i], v);
    }
    enum flow flow = exec(e, n->b);
    e->scope = old;
    return flow;
}

static void exec_generation(struct eval *e, const struct node *n)
{
    size_t begin = e->out->n;
    struct scope *old = open_scope(e, e->scope);
    exec(e, n->b);
    e->scope = old;
    if (!e->spans || e->st != TR_OK)
        return;
    if (e->n_captures > 0)
        tr_j_fail(e, "a generation block inside of a macro or set block has no place in the text");
    else
        e->st = tr_marks_add(e->spans, begin, e->out->n);
}

static enum flow exec_list(struct eval *e, const struct node *n)
{
    enum flow flow = FLOW_NEXT;
    for (size_t i = 0; i < n->n_list && flow == FLOW_NEXT && e->st == TR_OK; i++)
        flow = exec(e, n->list[i]);
    return flow;
}

static void exec_print(struct eval *e, const struct node *n)
{
    struct val v = tr_j_eval(e, n->a);
    if (v.kind == K_STR) {
        tr_j_emit(e, v.s->p, v.s->n);
        return;
    }
    const struct str *text = tr_j_text(e, v);
    tr_j_emit(e, text->p, text->n);
}

/* Statements that run on to the next one, whatever happens in them. */
static void exec_plain(struct eval *e, const struct node *n)
{
    if (n->kind == N_DATA) {
        tr_j_emit(e, n->value.s->p, n->value.s->n);
    } else if (n->kind == N_PRINT) {
        exec_print(e, n);
    } else if (n->kind == N_SET) {
        assign(e, n->a, tr_j_eval(e, n->b));
    } else if (n->kind == N_SETBLOCK) {
        assign(e, n->a, apply_filters(e, n->c, capture_scoped(e, n->b)));
    } else if (n->kind == N_MACRO) {
        bind(e, n->name, (struct val){ .kind = K_MACRO, .macro = make_macro(e, n) });
    } else if (n->kind == N_CALLBLOCK) {
        exec_call(e, n);
    } else if (n->kind == N_FILTERBLOCK) {
        const struct str *text = tr_j_text(e, apply_filters(e, n->c, capture_scoped(e, n->b)));
        tr_j_emit(e, text->p, text->n);
    } else if (n->kind == N_GENERATION) {
        exec_generation(e, n);
    }
}

static enum flow exec(struct eval *e, const struct node *n)
{
    enum flow flow = FLOW_NEXT;
    if (!tr_j_step(e, 1))
        return FLOW_NEXT;
    if (++e->depth > TR_J_MAX_DEPTH)
        tr_j_fail(e, "the template runs more than %d levels deep", TR_J_MAX_DEPTH);
    if (n->kind != N_BODY)
        e->line = n->line;
    if (e->st != TR_OK) {
        e->depth--;
        return FLOW_NEXT;
    }
    switch (n->kind) {
    case N_BODY:
        flow = exec_list(e, n);
        break;
    case N_IF:
        flow = exec_if(e, n);
        break;
    case N_FOR:
        flow = exec_for(e, n);
        break;
    case N_WITH:
        flow = exec_with(e, n);
        break;
    case N_BREAK:
        flow = FLOW_BREAK;
        break;
    case N_CONTINUE:
        flow = FLOW_CONTINUE;
        break;
    default:
        exec_plain(e, n);
    }
    e->depth--;
    return flow;
}

static void bind_params(struct eval *e, const struct node *n, const struct args *args)
{
    for (size_t i = 0; i < n->n_args && e->st == TR_OK; i++) {
        struct val v = { .kind = K_MISSING };
        for (size_t k = 0; k < args->n_kw; k++)
            if (strcmp(args->kw[k].name, n->args[i].name) == 0)
                v = args->kw[k].value;
        if (v.kind != K_MISSING && i < args->n_pos)
            tr_j_fail(e, "macro %s got two values for %s", n->name, n->args[i].name);
        if (i < args->n_pos)
            v = args->pos[i];
        if (v.kind == K_MISSING && n->args[i].value)
            v = tr_j_eval(e, n->args[i].value);
        if (v.kind == K_MISSING)
            v = tr_j_undef(e, "parameter '%s' was not provided", n->args[i].name);
        bind(e, n->args[i].name, v);
    }
}

struct val tr_j_call_macro(struct eval *e, struct macro *m, const struct args *args)
{
    const struct node *n = m->node;
    if (args->n_pos > n->n_args)
        return tr_j_fail(e, "macro %s takes %zu arguments, not %zu", n->name, n->n_args, args->n_pos);
    for (size_t k = 0; k < args->n_kw; k++) {
        size_t i = 0;
        while (i < n->n_args && strcmp(args->kw[k].name, n->args[i].name) != 0)
            i++;
        if (i == n->n_args)
            return tr_j_fail(e, "macro %s has no parameter %s", n->name, args->kw[k].name);
    }
    struct scope *old = open_scope(e, m->scope);
    int loop_depth = e->loop_depth;
    e->loop_depth = 0;
    bind_params(e, n, args);
    if (e->t->name_caller && strcmp(n->name, "caller") != 0)
        bind(e, e->t->name_caller,
             args->caller ? (struct val){ .kind = K_MACRO, .macro = args->caller }
                          : tr_j_undef(e, "no caller defined"));
    int line = e->line;
    struct val v = capture(e, n->b);
    if (e->st == TR_OK)
        e->line = line;
    e->loop_depth = loop_depth;
    e->scope = old;
    return v;
}

enum tr_status tr_jinja_render(const struct tr_jinja *t, const struct tr_jinja_var *vars, size_t n_vars, int64_t now_s,
                               struct tr_str *out, struct tr_marks *spans)
{
    struct tr_str text = { 0 };
    struct scope root = { 0 };
    struct eval e = { .t = t, .mem.n_max = TR_J_MAX_MEMORY, .now_s = now_s, .scope = &root, .out = &text };
    size_t n_spans = spans ? spans->n : 0;
    e.spans = spans;
    for (size_t i = 0; i < n_vars; i++) { /* what the template never names is not even converted */
        const char *name = tr_j_intern((struct tr_jinja *)(uintptr_t)t, vars[i].name, strlen(vars[i].name), false);
        if (name)
            bind(&e, name, tr_j_of_json(&e, vars[i].value, vars[i].n_items, 0));
    }
    exec(&e, t->body);
    if (e.st == TR_OK) {
        tr_str_add(out, text.p ? text.p : "", text.n);
        if (!tr_str_ok(out))
            e.st = tr_fail(TR_NOMEM, "no memory for a rendering of %zu bytes", text.n);
    } else if (spans) {
        spans->n = n_spans;
    }
    tr_str_release(&text);
    tr_j_arena_release(&e.mem);
    return e.st;
}
