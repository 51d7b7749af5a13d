/* jinja_parse.c - parses statements into a tree. Expressions are in jinja_expr.c.
 *
 * The parser looks up filters, tests and tags, so an unknown one is refused when the template is opened, even in a
 * branch that is never taken.
 */
#include "text/jinja_tree.h"
#include <stdarg.h>

const struct tr_jinja_token *tr_jinja_cur(const struct tr_jinja_parser *p)
{
    return &p->t->tokens[p->st == TR_OK ? p->at : p->t->n_tokens - 1];
}

void tr_jinja_next(struct tr_jinja_parser *p)
{
    if (p->at + 1 < p->t->n_tokens)
        p->at++;
}

void tr_jinja_syntax(struct tr_jinja_parser *p, const char *fmt, ...)
{
    char text[256];
    va_list args;
    if (p->st != TR_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->st = tr_fail(TR_USAGE, "%s:%d: %s", p->t->what, tr_jinja_cur(p)->line, text);
}

static void unexpected(struct tr_jinja_parser *p, const char *wanted)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    static const char *const names[] = { "text", "{%", "%}", "{{", "}}", "", "a string", "", "", "", "the end" };
    char got[64], shown[128];
    size_t n = t->n < sizeof got ? t->n : sizeof got - 1;
    memcpy(got, t->p, n);
    got[n] = 0;
    tr_jinja_syntax(p, "expected %s, found %s", wanted,
                    names[t->kind][0] ? names[t->kind] : tr_escape(got, shown, sizeof shown));
}

bool tr_jinja_is_op(const struct tr_jinja_parser *p, const char *op)
{
    return tr_jinja_cur(p)->kind == T_OP && strcmp(tr_jinja_cur(p)->op, op) == 0;
}

bool tr_jinja_is_name(const struct tr_jinja_parser *p, const char *name)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    return t->kind == T_NAME && t->n == strlen(name) && memcmp(t->p, name, t->n) == 0;
}

bool tr_jinja_skip_op(struct tr_jinja_parser *p, const char *op)
{
    bool hit = tr_jinja_is_op(p, op);
    if (hit)
        tr_jinja_next(p);
    return hit;
}

bool tr_jinja_skip_name(struct tr_jinja_parser *p, const char *name)
{
    bool hit = tr_jinja_is_name(p, name);
    if (hit)
        tr_jinja_next(p);
    return hit;
}

void tr_jinja_expect_op(struct tr_jinja_parser *p, const char *op)
{
    if (!tr_jinja_skip_op(p, op))
        unexpected(p, op);
}

const char *tr_jinja_expect_name(struct tr_jinja_parser *p)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    if (t->kind != T_NAME) {
        unexpected(p, "a name");
        return "";
    }
    const char *name = tr_jinja_intern(p->t, t->p, t->n, true);
    if (!name)
        tr_jinja_syntax(p, "more than %d different names, or no memory", TR_JINJA_MAX_NAMES);
    tr_jinja_next(p);
    return name ? name : "";
}

static void expect(struct tr_jinja_parser *p, enum tr_jinja_token_kind kind, const char *wanted)
{
    if (tr_jinja_cur(p)->kind == kind)
        tr_jinja_next(p);
    else
        unexpected(p, wanted);
}

/* Never returns NULL: after an error it returns a spare node, which is not evaluated. */
struct tr_jinja_node *tr_jinja_node(struct tr_jinja_parser *p, enum tr_jinja_node_kind kind, int line)
{
    static struct tr_jinja_node spare;
    struct tr_jinja_node *n = NULL;
    if (p->st == TR_OK && p->t->n_nodes++ >= TR_JINJA_MAX_NODES)
        tr_jinja_syntax(p, "more than %d nodes", TR_JINJA_MAX_NODES);
    if (p->st == TR_OK && !(n = tr_jinja_alloc(&p->t->mem, sizeof *n)))
        p->st = tr_fail(TR_NOMEM, "no memory for a template's tree");
    if (!n)
        return &spare;
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

void tr_jinja_adopt(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_node *child)
{
    if (p->st != TR_OK || !child)
        return;
    if (child->depth >= n->depth)
        n->depth = child->depth + 1;
    if (n->depth > TR_JINJA_MAX_TREE)
        tr_jinja_syntax(p, "nested more than %d deep", TR_JINJA_MAX_TREE);
}

void tr_jinja_list_add(struct tr_jinja_parser *p, struct tr_jinja_list *l, struct tr_jinja_node *n)
{
    if (p->st != TR_OK)
        return;
    if (l->n == l->n_cap) {
        size_t n_cap = l->n_cap ? l->n_cap * 2 : 4;
        struct tr_jinja_node **more = tr_jinja_alloc(&p->t->mem, n_cap * sizeof *more);
        if (!more) {
            p->st = tr_fail(TR_NOMEM, "no memory for a template's tree");
            return;
        }
        if (l->n)
            memcpy(more, l->p, l->n * sizeof *more);
        l->p = more;
        l->n_cap = n_cap;
    }
    l->p[l->n++] = n;
}

void tr_jinja_set_list(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_list *l)
{
    if (p->st != TR_OK)
        return;
    n->list = l->p;
    n->n_list = l->n;
    for (size_t i = 0; i < l->n; i++)
        tr_jinja_adopt(p, n, l->p[i]);
}

void tr_jinja_set_args(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_arg *args,
                       size_t n_args)
{
    if (p->st != TR_OK || n_args == 0)
        return;
    n->args = tr_jinja_alloc(&p->t->mem, n_args * sizeof *args);
    if (!n->args) {
        p->st = tr_fail(TR_NOMEM, "no memory for a template's tree");
        return;
    }
    memcpy(n->args, args, n_args * sizeof *args);
    n->n_args = n_args;
}

static struct tr_jinja_node *statement(struct tr_jinja_parser *p);

/* Parses statements up to a tag whose name is in `ends` ("" ends that list), and does not take the name. Without
 * `ends`: to the end of the template. */
static struct tr_jinja_node *body(struct tr_jinja_parser *p, const char *const *ends)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_BODY, tr_jinja_cur(p)->line);
    struct tr_jinja_list list = { 0 };
    while (p->st == TR_OK) {
        const struct tr_jinja_token *t = tr_jinja_cur(p);
        if (t->kind == T_EOF) {
            if (ends)
                unexpected(p, ends[0]);
            break;
        }
        tr_jinja_next(p);
        if (t->kind == T_DATA) {
            struct tr_jinja_node *data = tr_jinja_node(p, N_DATA, t->line);
            if (p->st == TR_OK) {
                struct tr_jinja_str *s = tr_jinja_alloc(&p->t->mem, sizeof *s);
                if (s)
                    *s = (struct tr_jinja_str){ t->p, t->n, SIZE_MAX, false };
                else
                    p->st = tr_fail(TR_NOMEM, "no memory for a template's tree");
                data->value = (struct tr_jinja_val){ .kind = K_STR, .s = s };
            }
            tr_jinja_list_add(p, &list, data);
        } else if (t->kind == T_VAR_BEGIN) {
            struct tr_jinja_node *print = tr_jinja_node(p, N_PRINT, t->line);
            struct tr_jinja_node *value = tr_jinja_tuple(p, true, NULL);
            if (p->st == TR_OK)
                print->a = value;
            tr_jinja_adopt(p, print, value);
            expect(p, T_VAR_END, "}}");
            tr_jinja_list_add(p, &list, print);
        } else { /* the lexer gives no other kind of token here */
            for (size_t i = 0; ends && ends[i]; i++)
                if (tr_jinja_is_name(p, ends[i]))
                    goto done;
            tr_jinja_list_add(p, &list, statement(p));
            expect(p, T_BLOCK_END, "%}");
        }
    }
done:
    tr_jinja_set_list(p, n, &list);
    return n;
}

/* `%} ... {% end`: takes the name of the end tag and leaves its "%}" to the caller of statement(). */
static struct tr_jinja_node *block(struct tr_jinja_parser *p, const char *end)
{
    const char *const ends[] = { end, NULL };
    tr_jinja_skip_op(p, ":");
    expect(p, T_BLOCK_END, "%}");
    struct tr_jinja_node *n = body(p, ends);
    tr_jinja_next(p);
    return n;
}

static void own(struct tr_jinja_parser *p, struct tr_jinja_node *n, struct tr_jinja_node **slot,
                struct tr_jinja_node *child)
{
    if (p->st == TR_OK)
        *slot = child;
    tr_jinja_adopt(p, n, child);
}

/* N_IF. list: test, body, test, body, ...; a: else. */
static struct tr_jinja_node *parse_if(struct tr_jinja_parser *p, int line)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct tr_jinja_node *n = tr_jinja_node(p, N_IF, line);
    struct tr_jinja_list list = { 0 };
    bool more = true;
    p->n_ifs++;
    while (more && p->st == TR_OK) {
        tr_jinja_list_add(p, &list, tr_jinja_tuple(p, false, NULL));
        tr_jinja_skip_op(p, ":");
        expect(p, T_BLOCK_END, "%}");
        tr_jinja_list_add(p, &list, body(p, ends));
        more = tr_jinja_skip_name(p, "elif");
    }
    if (tr_jinja_skip_name(p, "else"))
        own(p, n, &n->a, block(p, "endif"));
    else
        tr_jinja_next(p);
    p->n_ifs--;
    tr_jinja_set_list(p, n, &list);
    return n;
}

/* N_FOR. a: target, b: iterable, c: if, d: else, list[0]: body. */
static struct tr_jinja_node *parse_for(struct tr_jinja_parser *p, int line)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct tr_jinja_node *n = tr_jinja_node(p, N_FOR, line);
    struct tr_jinja_list list = { 0 };
    own(p, n, &n->a, tr_jinja_target(p, false));
    if (!tr_jinja_skip_name(p, "in"))
        unexpected(p, "in");
    own(p, n, &n->b, tr_jinja_tuple(p, false, "recursive"));
    if (tr_jinja_skip_name(p, "if"))
        own(p, n, &n->c, tr_jinja_expr(p, true));
    if (tr_jinja_is_name(p, "recursive"))
        tr_jinja_syntax(p, "recursive loops are not supported");
    tr_jinja_skip_op(p, ":");
    expect(p, T_BLOCK_END, "%}");
    p->n_loops++;
    tr_jinja_list_add(p, &list, body(p, ends));
    p->n_loops--;
    if (tr_jinja_skip_name(p, "else"))
        own(p, n, &n->d, block(p, "endfor"));
    else
        tr_jinja_next(p);
    tr_jinja_set_list(p, n, &list);
    return n;
}

/* A body that jinja2 compiles to a function: break and continue in it cannot reach the loops around it. */
static struct tr_jinja_node *closed_block(struct tr_jinja_parser *p, const char *end)
{
    int n_loops = p->n_loops;
    p->n_loops = 0;
    struct tr_jinja_node *n = block(p, end);
    p->n_loops = n_loops;
    return n;
}

/* N_SET: a = b. N_SETBLOCK: a = the rendering of body b, passed through the filters c (whose innermost input is NULL).
 */
static struct tr_jinja_node *parse_set(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_SET, line);
    own(p, n, &n->a, tr_jinja_target(p, true));
    if (tr_jinja_skip_op(p, "=")) {
        own(p, n, &n->b, tr_jinja_tuple(p, true, NULL));
        return n;
    }
    if (p->st == TR_OK)
        n->kind = N_SETBLOCK;
    own(p, n, &n->c, tr_jinja_filters(p, NULL, false));
    own(p, n, &n->b, block(p, "endset"));
    return n;
}

/* args: the parameters with their defaults (value NULL: no default). */
static void signature(struct tr_jinja_parser *p, struct tr_jinja_node *n)
{
    struct tr_jinja_arg args[64];
    size_t n_args = 0;
    tr_jinja_expect_op(p, "(");
    while (p->st == TR_OK && !tr_jinja_is_op(p, ")")) {
        if (n_args > 0)
            tr_jinja_expect_op(p, ",");
        if (n_args == TR_COUNT_OF(args)) {
            tr_jinja_syntax(p, "more than %zu parameters", n_args);
            return;
        }
        args[n_args] = (struct tr_jinja_arg){ .name = tr_jinja_expect_name(p) };
        args[n_args].value = tr_jinja_skip_op(p, "=") ? tr_jinja_expr(p, true) : NULL;
        if (n_args > 0 && args[n_args - 1].value && !args[n_args].value)
            tr_jinja_syntax(p, "a parameter without a default follows one with a default");
        tr_jinja_adopt(p, n, args[n_args].value);
        n_args++;
    }
    tr_jinja_expect_op(p, ")");
    tr_jinja_set_args(p, n, args, n_args);
}

/* N_MACRO. name; args; b: body. */
static struct tr_jinja_node *parse_macro(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_MACRO, line);
    const char *name = tr_jinja_expect_name(p);
    if (p->st == TR_OK)
        n->name = name;
    signature(p, n);
    own(p, n, &n->b, closed_block(p, "endmacro"));
    return n;
}

/* N_CALLBLOCK. a: the call; b: a macro node, which is `caller` inside the macro. */
static struct tr_jinja_node *parse_call(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_CALLBLOCK, line), *caller = tr_jinja_node(p, N_MACRO, line);
    if (p->st == TR_OK)
        caller->name = "caller";
    if (tr_jinja_is_op(p, "("))
        signature(p, caller);
    struct tr_jinja_node *call = tr_jinja_expr(p, true);
    if (p->st == TR_OK && call->kind != N_CALL)
        tr_jinja_syntax(p, "expected a call");
    own(p, n, &n->a, call);
    own(p, caller, &caller->b, closed_block(p, "endcall"));
    own(p, n, &n->b, caller);
    return n;
}

/* N_FILTERBLOCK. c: filters; b: body. */
static struct tr_jinja_node *parse_filter(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_FILTERBLOCK, line);
    own(p, n, &n->c, tr_jinja_filters(p, NULL, true));
    own(p, n, &n->b, block(p, "endfilter"));
    return n;
}

/* N_WITH. list: target, value, target, value, ...; b: body. */
static struct tr_jinja_node *parse_with(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_WITH, line);
    struct tr_jinja_list list = { 0 };
    while (p->st == TR_OK && tr_jinja_cur(p)->kind != T_BLOCK_END) {
        if (list.n > 0)
            tr_jinja_expect_op(p, ",");
        tr_jinja_list_add(p, &list, tr_jinja_target(p, false));
        tr_jinja_expect_op(p, "=");
        tr_jinja_list_add(p, &list, tr_jinja_expr(p, true));
    }
    tr_jinja_set_list(p, n, &list);
    own(p, n, &n->b, block(p, "endwith"));
    return n;
}

/* N_GENERATION. b: body. */
static struct tr_jinja_node *parse_generation(struct tr_jinja_parser *p, int line)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_GENERATION, line);
    p->t->has_generation = true;
    own(p, n, &n->b, closed_block(p, "endgeneration"));
    return n;
}

static struct tr_jinja_node *parse_jump(struct tr_jinja_parser *p, int line, enum tr_jinja_node_kind kind)
{
    if (p->n_loops == 0)
        tr_jinja_syntax(p, "break or continue stands outside a loop");
    return tr_jinja_node(p, kind, line);
}

static struct tr_jinja_node *parse_break(struct tr_jinja_parser *p, int line)
{
    return parse_jump(p, line, N_BREAK);
}

static struct tr_jinja_node *parse_continue(struct tr_jinja_parser *p, int line)
{
    return parse_jump(p, line, N_CONTINUE);
}

static struct tr_jinja_node *statement(struct tr_jinja_parser *p)
{
    static const struct {
        const char *name;
        struct tr_jinja_node *(*parse)(struct tr_jinja_parser *p, int line);
    } tags[] = {
        { "if", parse_if },
        { "for", parse_for },
        { "set", parse_set },
        { "macro", parse_macro },
        { "call", parse_call },
        { "filter", parse_filter },
        { "with", parse_with },
        { "break", parse_break },
        { "continue", parse_continue },
        { "generation", parse_generation },
    };
    struct tr_jinja_node *n = NULL;
    int line = tr_jinja_cur(p)->line;
    if (++p->depth > TR_JINJA_MAX_TREE / 2)
        tr_jinja_syntax(p, "blocks are nested more than %d deep", TR_JINJA_MAX_TREE / 2);
    for (size_t i = 0; i < TR_COUNT_OF(tags) && !n; i++)
        if (tr_jinja_skip_name(p, tags[i].name))
            n = tags[i].parse(p, line);
    if (!n) {
        const struct tr_jinja_token *t = tr_jinja_cur(p);
        tr_jinja_syntax(p, "unknown tag \"%.*s\"", (int)(t->n < 60 ? t->n : 60), t->p);
        n = tr_jinja_node(p, N_BODY, line);
    }
    p->depth--;
    return n;
}

enum tr_status tr_jinja_parse(struct tr_jinja *t)
{
    struct tr_jinja_parser p = { .t = t };
    t->body = body(&p, NULL);
    return p.st;
}
