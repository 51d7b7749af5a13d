/* jinja.c - opens and renders a template: its limits and its statements.
 *
 * Scopes form a chain that is searched from the inside out. Each pass of a loop, macro call, set block, with block and
 * generation block opens a scope; an if block does not. That is jinja2's rule, without its compile-time symbol tables.
 */
#include "text/jinja_tree.h"
#include <stdarg.h>

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

void tr_jinja_spans_release(struct tr_jinja_spans *s)
{
    free(s->p);
    *s = (struct tr_jinja_spans){ 0 };
}

enum tr_status tr_jinja_spans_add(struct tr_jinja_spans *s, size_t begin, size_t end)
{
    TR_PASS(TR_ROOM(s->p, s->n + 1, &s->n_cap, "%zu spans", s->n + 1));
    s->p[s->n++] = (struct tr_jinja_span){ begin, end };
    return TR_OK;
}

const char *tr_jinja_intern(struct tr_jinja *t, const char *p, size_t n, bool add)
{
    enum { SLOTS = 2 * TR_JINJA_MAX_NAMES };
    if (!t->names && !(t->names = tr_jinja_alloc(&t->mem, SLOTS * sizeof *t->names)))
        return NULL;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)p[i]) * 1099511628211u;
    size_t at = (size_t)(hash % SLOTS);
    for (; t->names[at]; at = (at + 1) % SLOTS)
        if (strlen(t->names[at]) == n && memcmp(t->names[at], p, n) == 0)
            return t->names[at];
    char *name = add && t->n_names < TR_JINJA_MAX_NAMES ? tr_jinja_alloc(&t->mem, n + 1) : NULL;
    if (!name)
        return NULL;
    memcpy(name, p, n);
    t->n_names++;
    t->names[at] = name;
    return name;
}

static enum tr_status check_text(const char *text, size_t n, const char *what)
{
    if (n > TR_JINJA_MAX_TEMPLATE)
        return tr_fail(TR_USAGE, "%s: the template has %zu bytes; the limit is %d", what, n, TR_JINJA_MAX_TEMPLATE);
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
        t->mem.n_max = TR_JINJA_MAX_MEMORY;
        copy = tr_jinja_alloc(&t->mem, n + 1);
        t->what = tr_jinja_alloc(&t->mem, strlen(what) + 1);
    }
    if (!t || !copy || !t->what)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for template %s", what));
    memcpy(copy, text, n);
    memcpy(t->what, what, strlen(what));
    t->hash = tr_hash(text, n);
    TR_TRY(tr_jinja_lex(t, copy, n));
    TR_TRY(tr_jinja_parse(t));
    t->name_loop = tr_jinja_intern(t, "loop", 4, false);
    t->name_caller = tr_jinja_intern(t, "caller", 6, false);
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
    tr_jinja_arena_release(&t->mem);
    free(t);
}

bool tr_jinja_has_generation(const struct tr_jinja *t)
{
    return t->has_generation;
}

struct tr_jinja_val tr_jinja_fail(struct tr_jinja_eval *e, const char *fmt, ...)
{
    static struct tr_jinja_str nothing = { "", 0, 0, false };
    char text[400], shown[800];
    va_list args;
    if (e->st == TR_OK) {
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        e->st = tr_fail(TR_USAGE, "%s:%d: %s", e->t->what, e->line, tr_escape(text, shown, sizeof shown));
    }
    return (struct tr_jinja_val){ .kind = K_UNDEF, .s = &nothing };
}

bool tr_jinja_step(struct tr_jinja_eval *e, size_t n)
{
    if (e->st != TR_OK)
        return false;
    if (n >= (size_t)(e->most_steps - e->n_steps)) {
        tr_jinja_fail(e, "the template takes more than %" PRId64 " steps, which is the limit", e->most_steps);
        e->n_steps = e->most_steps;
        return false;
    }
    e->n_steps += (int64_t)n + 1;
    return true;
}

void tr_jinja_emit(struct tr_jinja_eval *e, const char *p, size_t n)
{
    if (!tr_jinja_step(e, n / 64))
        return;
    if (n > TR_JINJA_MAX_OUTPUT - e->out->n) {
        tr_jinja_fail(e, "the rendering is larger than %d MiB, which is the limit", TR_JINJA_MAX_OUTPUT >> 20);
        return;
    }
    tr_str_add(e->out, p, n);
    if (!tr_str_ok(e->out))
        e->st = tr_fail(TR_NOMEM, "no memory to render a template");
}

/* ---- scopes ---- */

static struct tr_jinja_scope *open_scope(struct tr_jinja_eval *e, struct tr_jinja_scope *up)
{
    struct tr_jinja_scope *old = e->scope, *s = tr_jinja_get(e, sizeof *s);
    if (s) {
        s->up = up;
        e->scope = s;
    }
    return old;
}

static void bind(struct tr_jinja_eval *e, const char *name, struct tr_jinja_val v)
{
    struct tr_jinja_scope *s = e->scope;
    if (!tr_jinja_step(e, s->n / 8))
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->b[i].name == name) {
            s->b[i].value = v;
            return;
        }
    if (s->n == s->n_cap) {
        size_t n_cap = s->n_cap ? s->n_cap * 2 : 4;
        struct tr_jinja_binding *more = tr_jinja_get(e, n_cap * sizeof *more);
        if (!more)
            return;
        if (s->n)
            memcpy(more, s->b, s->n * sizeof *more);
        s->b = more;
        s->n_cap = n_cap;
    }
    s->b[s->n++] = (struct tr_jinja_binding){ name, v };
}

struct tr_jinja_val tr_jinja_lookup(struct tr_jinja_eval *e, const char *name)
{
    for (const struct tr_jinja_scope *s = e->scope; s && tr_jinja_step(e, s->n / 8); s = s->up)
        for (size_t i = 0; i < s->n; i++)
            if (s->b[i].name == name)
                return s->b[i].value;
    const struct tr_jinja_builtin *fn = tr_jinja_global(name);
    if (fn)
        return (struct tr_jinja_val){ .kind = K_FUNC, .fn = fn };
    return tr_jinja_undef(e, "'%s' is undefined", name);
}

static void assign_ns(struct tr_jinja_eval *e, const struct tr_jinja_node *target, struct tr_jinja_val v)
{
    struct tr_jinja_val ns = tr_jinja_lookup(e, target->name);
    const struct tr_jinja_str *attr = target->value.s;
    if (ns.kind != K_NS)
        tr_jinja_fail(e, "%s is a %s; only a namespace has attributes that can be set", target->name,
                      tr_jinja_kind(ns));
    else if (attr->n > 0 && attr->p[0] == '_')
        tr_jinja_fail(e, "a namespace cannot hold names that begin with an underscore");
    else
        tr_jinja_dict_set(e, ns.d, target->value, v);
}

static void assign(struct tr_jinja_eval *e, const struct tr_jinja_node *target, struct tr_jinja_val v)
{
    if (target->kind == N_NSREF) {
        assign_ns(e, target, v);
    } else if (target->kind == N_NAME) {
        bind(e, target->name, v);
    } else {
        const struct tr_jinja_seq *items = tr_jinja_iter(e, v);
        if (items->n != target->n_list)
            tr_jinja_fail(e, "%zu values cannot be assigned to %zu names", items->n, target->n_list);
        for (size_t i = 0; i < target->n_list && e->st == TR_OK; i++)
            assign(e, target->list[i], items->v[i]);
    }
}

/* ---- statements ---- */

static enum flow exec(struct tr_jinja_eval *e, const struct tr_jinja_node *n);

static struct tr_jinja_val capture(struct tr_jinja_eval *e, const struct tr_jinja_node *body)
{
    struct tr_str text = { 0 }, *out = e->out;
    e->out = &text;
    e->n_captures++;
    exec(e, body);
    e->n_captures--;
    e->out = out;
    return tr_jinja_str_take(e, &text);
}

static struct tr_jinja_val capture_scoped(struct tr_jinja_eval *e, const struct tr_jinja_node *body)
{
    struct tr_jinja_scope *old = open_scope(e, e->scope);
    struct tr_jinja_val v = capture(e, body);
    e->scope = old;
    return v;
}

static enum flow exec_if(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    for (size_t i = 0; i + 1 < n->n_list; i += 2)
        if (tr_jinja_truth(tr_jinja_eval(e, n->list[i])))
            return exec(e, n->list[i + 1]);
    return n->a ? exec(e, n->a) : FLOW_NEXT;
}

/* The items for which the loop's `if` is true. */
static struct tr_jinja_seq *loop_items(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_seq *all = tr_jinja_iter(e, tr_jinja_eval(e, n->b));
    if (!n->c)
        return all;
    struct tr_jinja_seq *kept = tr_jinja_seq(e, K_LIST, all->n).seq;
    size_t n_kept = 0;
    for (size_t i = 0; i < all->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_scope *old = open_scope(e, e->scope);
        assign(e, n->a, all->v[i]);
        if (tr_jinja_truth(tr_jinja_eval(e, n->c)) && e->st == TR_OK)
            kept->v[n_kept++] = all->v[i];
        e->scope = old;
    }
    if (e->st == TR_OK)
        kept->n = n_kept;
    return kept;
}

static enum flow exec_for(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_loop *loop = tr_jinja_get(e, sizeof *loop);
    struct tr_jinja_seq *items = loop_items(e, n);
    if (!loop || e->st != TR_OK)
        return FLOW_NEXT;
    if (items->n == 0)
        return n->d ? exec(e, n->d) : FLOW_NEXT;
    *loop = (struct tr_jinja_loop){ .items = items, .depth = ++e->loop_depth };
    for (size_t i = 0; i < items->n && tr_jinja_step(e, 1); i++) {
        struct tr_jinja_scope *old = open_scope(e, e->scope);
        loop->at = i;
        assign(e, n->a, items->v[i]);
        if (e->t->name_loop)
            bind(e, e->t->name_loop, (struct tr_jinja_val){ .kind = K_LOOP, .loop = loop });
        enum flow flow = exec(e, n->list[0]);
        e->scope = old;
        if (flow == FLOW_BREAK)
            break;
    }
    e->loop_depth--;
    return FLOW_NEXT;
}

static struct tr_jinja_val apply_filters(struct tr_jinja_eval *e, const struct tr_jinja_node *n, struct tr_jinja_val in)
{
    if (!n)
        return in;
    return tr_jinja_eval_filter(e, n, n->a ? apply_filters(e, n->a, in) : in);
}

static struct tr_jinja_macro *make_macro(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_macro *m = tr_jinja_get(e, sizeof *m);
    if (m)
        *m = (struct tr_jinja_macro){ n, e->scope };
    return m;
}

static void exec_call(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_macro *caller = make_macro(e, n->b);
    if (!caller)
        return;
    const struct tr_jinja_str *text = tr_jinja_text(e, tr_jinja_eval_call(e, n->a, caller));
    tr_jinja_emit(e, text->p, text->n);
}

static enum flow exec_with(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_scope *outer = e->scope, *old = open_scope(e, outer), *inner = e->scope;
    for (size_t i = 0; i + 1 < n->n_list && e->st == TR_OK; i += 2) {
        e->scope = outer; /* a value cannot use a name of the same with block */
        struct tr_jinja_val v = tr_jinja_eval(e, n->list[i + 1]);
        e->scope = inner;
        assign(e, n->list[i], v);
    }
    enum flow flow = exec(e, n->b);
    e->scope = old;
    return flow;
}

static void exec_generation(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    size_t begin = e->out->n;
    struct tr_jinja_scope *old = open_scope(e, e->scope);
    exec(e, n->b);
    e->scope = old;
    if (!e->spans || e->st != TR_OK)
        return;
    if (e->n_captures > 0)
        tr_jinja_fail(
            e,
            "a generation block inside a macro or set block has no known place in the text; move it out of the block");
    else
        e->st = tr_jinja_spans_add(e->spans, begin, e->out->n);
}

static enum flow exec_list(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    enum flow flow = FLOW_NEXT;
    for (size_t i = 0; i < n->n_list && flow == FLOW_NEXT && e->st == TR_OK; i++)
        flow = exec(e, n->list[i]);
    return flow;
}

static void exec_print(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    struct tr_jinja_val v = tr_jinja_eval(e, n->a);
    if (v.kind == K_STR) {
        tr_jinja_emit(e, v.s->p, v.s->n);
        return;
    }
    const struct tr_jinja_str *text = tr_jinja_text(e, v);
    tr_jinja_emit(e, text->p, text->n);
}

/* Statements that never break or continue a loop: the next statement always follows. */
static void exec_plain(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    if (n->kind == N_DATA) {
        tr_jinja_emit(e, n->value.s->p, n->value.s->n);
    } else if (n->kind == N_PRINT) {
        exec_print(e, n);
    } else if (n->kind == N_SET) {
        assign(e, n->a, tr_jinja_eval(e, n->b));
    } else if (n->kind == N_SETBLOCK) {
        assign(e, n->a, apply_filters(e, n->c, capture_scoped(e, n->b)));
    } else if (n->kind == N_MACRO) {
        bind(e, n->name, (struct tr_jinja_val){ .kind = K_MACRO, .macro = make_macro(e, n) });
    } else if (n->kind == N_CALLBLOCK) {
        exec_call(e, n);
    } else if (n->kind == N_FILTERBLOCK) {
        const struct tr_jinja_str *text = tr_jinja_text(e, apply_filters(e, n->c, capture_scoped(e, n->b)));
        tr_jinja_emit(e, text->p, text->n);
    } else if (n->kind == N_GENERATION) {
        exec_generation(e, n);
    }
}

static enum flow exec(struct tr_jinja_eval *e, const struct tr_jinja_node *n)
{
    enum flow flow = FLOW_NEXT;
    if (!tr_jinja_step(e, 1))
        return FLOW_NEXT;
    if (++e->depth > TR_JINJA_MAX_DEPTH)
        tr_jinja_fail(e, "the template is evaluated more than %d levels deep, which is the limit", TR_JINJA_MAX_DEPTH);
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

static void bind_params(struct tr_jinja_eval *e, const struct tr_jinja_node *n, const struct tr_jinja_args *args)
{
    for (size_t i = 0; i < n->n_args && e->st == TR_OK; i++) {
        struct tr_jinja_val v = { .kind = K_MISSING };
        for (size_t k = 0; k < args->n_kw; k++)
            if (strcmp(args->kw[k].name, n->args[i].name) == 0)
                v = args->kw[k].value;
        if (v.kind != K_MISSING && i < args->n_pos)
            tr_jinja_fail(e, "macro %s got two values for %s", n->name, n->args[i].name);
        if (i < args->n_pos)
            v = args->pos[i];
        if (v.kind == K_MISSING && n->args[i].value)
            v = tr_jinja_eval(e, n->args[i].value);
        if (v.kind == K_MISSING)
            v = tr_jinja_undef(e, "parameter '%s' was not provided", n->args[i].name);
        bind(e, n->args[i].name, v);
    }
}

struct tr_jinja_val tr_jinja_call_macro(struct tr_jinja_eval *e, struct tr_jinja_macro *m,
                                        const struct tr_jinja_args *args)
{
    const struct tr_jinja_node *n = m->node;
    if (args->n_pos > n->n_args)
        return tr_jinja_fail(e, "macro %s takes %zu arguments, not %zu", n->name, n->n_args, args->n_pos);
    for (size_t k = 0; k < args->n_kw; k++) {
        size_t i = 0;
        while (i < n->n_args && strcmp(args->kw[k].name, n->args[i].name) != 0)
            i++;
        if (i == n->n_args)
            return tr_jinja_fail(e, "macro %s has no parameter %s", n->name, args->kw[k].name);
    }
    struct tr_jinja_scope *old = open_scope(e, m->scope);
    int loop_depth = e->loop_depth;
    e->loop_depth = 0;
    bind_params(e, n, args);
    if (e->t->name_caller && strcmp(n->name, "caller") != 0)
        bind(e, e->t->name_caller,
             args->caller ? (struct tr_jinja_val){ .kind = K_MACRO, .macro = args->caller }
                          : tr_jinja_undef(e, "no caller defined"));
    int line = e->line;
    struct tr_jinja_val v = capture(e, n->b);
    if (e->st == TR_OK)
        e->line = line;
    e->loop_depth = loop_depth;
    e->scope = old;
    return v;
}

enum tr_status tr_jinja_render(const struct tr_jinja *t, const struct tr_jinja_var *vars, size_t n_vars, int64_t now_s,
                               struct tr_str *out, struct tr_jinja_spans *spans)
{
    struct tr_str text = { 0 };
    struct tr_jinja_scope root = { 0 };
    struct tr_jinja_eval e = { .t = t, .mem.n_max = TR_JINJA_MAX_MEMORY, .now_s = now_s, .scope = &root, .out = &text };
    size_t n_spans = spans ? spans->n : 0;
    e.spans = spans;
    e.most_steps = tr_min64(TR_JINJA_MAX_STEPS, tr_work_left());
    for (size_t i = 0; i < n_vars; i++) { /* a variable that the template never names is not converted */
        const char *name = tr_jinja_intern((struct tr_jinja *)(uintptr_t)t, vars[i].name, strlen(vars[i].name), false);
        if (name)
            bind(&e, name, tr_jinja_of_json(&e, vars[i].value, vars[i].n_items, 0));
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
    tr_jinja_arena_release(&e.mem);
    tr_work_take(e.n_steps);
    return e.st;
}
