/* jinja_expr.c - parses expressions into a tree, by recursive descent in jinja2's order of precedence
 * (if-else, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix, filter and test). */
#include "text/jinja_tree.h"
#include <errno.h>

static struct tr_jinja_node *unary(struct tr_jinja_parser *p, bool with_filter);

static struct tr_jinja_node *with1(struct tr_jinja_parser *p, enum tr_jinja_node_kind kind, int line,
                                   struct tr_jinja_node *a)
{
    struct tr_jinja_node *n = tr_jinja_node(p, kind, line);
    if (p->st == TR_OK)
        n->a = a;
    tr_jinja_adopt(p, n, a);
    return n;
}

static struct tr_jinja_node *with2(struct tr_jinja_parser *p, enum tr_jinja_node_kind kind, int line,
                                   struct tr_jinja_node *a, struct tr_jinja_node *b)
{
    struct tr_jinja_node *n = with1(p, kind, line, a);
    if (p->st == TR_OK)
        n->b = b;
    tr_jinja_adopt(p, n, b);
    return n;
}

static struct tr_jinja_node *constant(struct tr_jinja_parser *p, int line, struct tr_jinja_val v)
{
    struct tr_jinja_node *n = tr_jinja_node(p, N_CONST, line);
    if (p->st == TR_OK)
        n->value = v;
    return n;
}

static struct tr_jinja_val string_const(struct tr_jinja_parser *p, const char *text, size_t n)
{
    struct tr_jinja_str *s = p->st == TR_OK ? tr_jinja_alloc(&p->t->mem, sizeof *s) : NULL;
    if (!s) {
        if (p->st == TR_OK)
            p->st = tr_fail(TR_NOMEM, "no memory for a template's strings");
        return tr_jinja_none();
    }
    *s = (struct tr_jinja_str){ text, n, SIZE_MAX, false };
    tr_jinja_n_chars(s); /* counted now, because rendering must not write to the tree */
    return (struct tr_jinja_val){ .kind = K_STR, .s = s };
}

/* Adjacent string literals are one string, as in Python. */
static struct tr_jinja_val read_strings(struct tr_jinja_parser *p)
{
    struct tr_str all = { 0 };
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    tr_jinja_next(p);
    if (tr_jinja_cur(p)->kind != T_STR)
        return string_const(p, t->p, t->n);
    tr_str_add(&all, t->p, t->n);
    for (; tr_jinja_cur(p)->kind == T_STR; tr_jinja_next(p))
        tr_str_add(&all, tr_jinja_cur(p)->p, tr_jinja_cur(p)->n);
    char *text = tr_str_ok(&all) ? tr_jinja_alloc(&p->t->mem, all.n + 1) : NULL;
    size_t n = all.n;
    if (text)
        memcpy(text, all.p, n);
    else if (p->st == TR_OK)
        p->st = tr_fail(TR_NOMEM, "no memory for a template's strings");
    tr_str_release(&all);
    return string_const(p, text, n);
}

static struct tr_jinja_val read_number(struct tr_jinja_parser *p)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    char text[64];
    struct tr_jinja_val v = tr_jinja_int(0);
    if (t->n >= sizeof text) {
        tr_jinja_syntax(p, "a number has %zu digits, which is too long", t->n);
        return v;
    }
    memcpy(text, t->p, t->n);
    text[t->n] = 0;
    errno = 0;
    if (t->kind == T_FLOAT)
        v = tr_jinja_float(strtod(text, NULL));
    else
        v.i = strtoll(text, NULL, 10);
    if (errno && t->kind == T_INT)
        tr_jinja_syntax(p, "the number %s is too large", text);
    tr_jinja_next(p);
    return v;
}

/* [a, b] or {k: v}. node.list holds the items, or key, value, key, value, ... */
static struct tr_jinja_node *literal(struct tr_jinja_parser *p, int line, bool is_dict)
{
    struct tr_jinja_node *n = tr_jinja_node(p, is_dict ? N_DICT : N_LIST, line);
    struct tr_jinja_list list = { 0 };
    const char *close = is_dict ? "}" : "]";
    tr_jinja_next(p);
    while (p->st == TR_OK && !tr_jinja_is_op(p, close)) {
        if (list.n > 0)
            tr_jinja_expect_op(p, ",");
        if (tr_jinja_is_op(p, close))
            break;
        tr_jinja_list_add(p, &list, tr_jinja_expr(p, true));
        if (is_dict) {
            tr_jinja_expect_op(p, ":");
            tr_jinja_list_add(p, &list, tr_jinja_expr(p, true));
        }
    }
    tr_jinja_expect_op(p, close);
    tr_jinja_set_list(p, n, &list);
    return n;
}

static bool skip_either(struct tr_jinja_parser *p, const char *lower, const char *upper)
{
    return tr_jinja_skip_name(p, lower) || tr_jinja_skip_name(p, upper);
}

static struct tr_jinja_node *name_or_constant(struct tr_jinja_parser *p, int line)
{
    if (skip_either(p, "true", "True"))
        return constant(p, line, tr_jinja_bool(true));
    if (skip_either(p, "false", "False"))
        return constant(p, line, tr_jinja_bool(false));
    if (skip_either(p, "none", "None"))
        return constant(p, line, tr_jinja_none());
    struct tr_jinja_node *n = tr_jinja_node(p, N_NAME, line);
    const char *name = tr_jinja_expect_name(p);
    if (p->st == TR_OK)
        n->name = name;
    return n;
}

/* `( ... )`: an expression; or a tuple, when it holds a comma or nothing. */
static struct tr_jinja_node *parenthesis(struct tr_jinja_parser *p, int line)
{
    tr_jinja_next(p);
    struct tr_jinja_node *n = tr_jinja_is_op(p, ")") ? tr_jinja_node(p, N_TUPLE, line) : tr_jinja_tuple(p, true, NULL);
    tr_jinja_expect_op(p, ")");
    return n;
}

static struct tr_jinja_node *primary(struct tr_jinja_parser *p)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    int line = t->line;
    if (t->kind == T_NAME)
        return name_or_constant(p, line);
    if (t->kind == T_STR)
        return constant(p, line, read_strings(p));
    if (t->kind == T_INT || t->kind == T_FLOAT)
        return constant(p, line, read_number(p));
    if (tr_jinja_is_op(p, "("))
        return parenthesis(p, line);
    if (tr_jinja_is_op(p, "["))
        return literal(p, line, false);
    if (tr_jinja_is_op(p, "{"))
        return literal(p, line, true);
    tr_jinja_syntax(p, "expected an expression, found \"%.*s\"", (int)(t->n < 40 ? t->n : 40), t->p);
    return tr_jinja_node(p, N_CONST, line);
}

void tr_jinja_call_args(struct tr_jinja_parser *p, struct tr_jinja_node *n)
{
    struct tr_jinja_arg args[64];
    size_t n_args = 0;
    tr_jinja_expect_op(p, "(");
    while (p->st == TR_OK && !tr_jinja_is_op(p, ")")) {
        if (n_args > 0)
            tr_jinja_expect_op(p, ",");
        if (tr_jinja_is_op(p, ")"))
            break;
        if (tr_jinja_is_op(p, "**"))
            tr_jinja_syntax(p, "** in a call is not supported");
        if (n_args == TR_COUNT_OF(args)) {
            tr_jinja_syntax(p, "more than %zu arguments", n_args);
            return;
        }
        const struct tr_jinja_token *next = tr_jinja_cur(p)->kind == T_NAME ? tr_jinja_cur(p) + 1 : NULL;
        bool is_named = next && next->kind == T_OP && strcmp(next->op, "=") == 0;
        args[n_args].name = is_named ? tr_jinja_expect_name(p) : NULL;
        args[n_args].is_star = !is_named && tr_jinja_skip_op(p, "*");
        if (is_named)
            tr_jinja_next(p);
        else if (n_args > 0 && (args[n_args - 1].name || args[n_args - 1].is_star))
            tr_jinja_syntax(p, "a positional argument follows a named argument or *");
        args[n_args].value = tr_jinja_expr(p, true);
        tr_jinja_adopt(p, n, args[n_args].value);
        n_args++;
    }
    tr_jinja_expect_op(p, ")");
    tr_jinja_set_args(p, n, args, n_args);
}

/* `[...]` after a: an item (b) or a slice (b:c:d, each may be NULL). */
static struct tr_jinja_node *subscript(struct tr_jinja_parser *p, struct tr_jinja_node *a)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *part[3] = { NULL }, *n;
    size_t i = 0;
    tr_jinja_next(p);
    for (;;) {
        if (!tr_jinja_is_op(p, ":") && !tr_jinja_is_op(p, "]"))
            part[i] = tr_jinja_expr(p, true);
        if (i == 2 || !tr_jinja_skip_op(p, ":"))
            break;
        i++;
    }
    if (i == 0 && !part[0])
        tr_jinja_syntax(p, "expected an expression in [ ]");
    n = with2(p, i ? N_SLICE : N_ITEM, line, a, part[0]);
    if (p->st == TR_OK) {
        n->c = part[1];
        n->d = part[2];
    }
    tr_jinja_adopt(p, n, part[1]);
    tr_jinja_adopt(p, n, part[2]);
    if (tr_jinja_is_op(p, ","))
        tr_jinja_syntax(p, "a tuple in [ ] is not supported");
    tr_jinja_expect_op(p, "]");
    return n;
}

static struct tr_jinja_node *attribute(struct tr_jinja_parser *p, struct tr_jinja_node *a)
{
    int line = tr_jinja_cur(p)->line;
    tr_jinja_next(p);
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    if (t->kind == T_INT)
        return with2(p, N_ITEM, line, a, constant(p, line, read_number(p)));
    struct tr_jinja_node *n = with1(p, N_ATTR, line, a);
    tr_jinja_expect_name(p);
    struct tr_jinja_val name = string_const(p, t->p, t->n);
    if (p->st == TR_OK)
        n->value = name;
    return n;
}

static struct tr_jinja_node *call(struct tr_jinja_parser *p, struct tr_jinja_node *a)
{
    struct tr_jinja_node *n = with1(p, N_CALL, tr_jinja_cur(p)->line, a);
    tr_jinja_call_args(p, n);
    return n;
}

static struct tr_jinja_node *postfix(struct tr_jinja_parser *p, struct tr_jinja_node *n)
{
    while (p->st == TR_OK) {
        if (tr_jinja_is_op(p, "."))
            n = attribute(p, n);
        else if (tr_jinja_is_op(p, "["))
            n = subscript(p, n);
        else if (tr_jinja_is_op(p, "("))
            n = call(p, n);
        else
            break;
    }
    return n;
}

/* a: the input (NULL: the rendering of the block around it); fn; args. */
struct tr_jinja_node *tr_jinja_filters(struct tr_jinja_parser *p, struct tr_jinja_node *in, bool is_inline)
{
    while (p->st == TR_OK && (is_inline || tr_jinja_skip_op(p, "|"))) {
        struct tr_jinja_node *n = with1(p, N_FILTER, tr_jinja_cur(p)->line, in);
        const char *name = tr_jinja_expect_name(p);
        const struct tr_jinja_builtin *fn = tr_jinja_filter(name);
        if (!fn && p->n_ifs == 0)
            tr_jinja_syntax(p, "unknown filter \"%s\"", name);
        if (p->st == TR_OK) {
            n->fn = fn;
            n->name = name;
        }
        if (tr_jinja_is_op(p, "("))
            tr_jinja_call_args(p, n);
        in = n;
        is_inline = false;
    }
    return in;
}

static bool starts_test_argument(const struct tr_jinja_parser *p)
{
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    if (t->kind == T_NAME)
        return !tr_jinja_is_name(p, "else") && !tr_jinja_is_name(p, "or") && !tr_jinja_is_name(p, "and");
    return t->kind == T_STR || t->kind == T_INT || t->kind == T_FLOAT || tr_jinja_is_op(p, "[") ||
           tr_jinja_is_op(p, "{");
}

static struct tr_jinja_node *test(struct tr_jinja_parser *p, struct tr_jinja_node *a)
{
    int line = tr_jinja_cur(p)->line;
    tr_jinja_next(p);
    bool is_not = tr_jinja_skip_name(p, "not");
    struct tr_jinja_node *n = with1(p, N_TEST, line, a);
    const char *name = tr_jinja_expect_name(p);
    const struct tr_jinja_builtin *fn = tr_jinja_test(name);
    if (!fn && p->n_ifs == 0)
        tr_jinja_syntax(p, "unknown test \"%s\"", name);
    if (p->st == TR_OK) {
        n->fn = fn;
        n->name = name;
    }
    if (tr_jinja_is_op(p, "(")) {
        tr_jinja_call_args(p, n);
    } else if (starts_test_argument(p)) {
        if (tr_jinja_is_name(p, "is"))
            tr_jinja_syntax(p, "tests cannot be chained with is");
        struct tr_jinja_node *value = postfix(p, primary(p));
        struct tr_jinja_arg *arg = p->st == TR_OK ? tr_jinja_alloc(&p->t->mem, sizeof *arg) : NULL;
        if (arg) {
            arg->value = value;
            n->args = arg;
            n->n_args = 1;
        }
        tr_jinja_adopt(p, n, value);
    }
    return is_not ? with1(p, N_NOT, line, n) : n;
}

static struct tr_jinja_node *unary(struct tr_jinja_parser *p, bool with_filter)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *n;
    if (++p->depth > TR_JINJA_MAX_TREE)
        tr_jinja_syntax(p, "nested more than %d deep", TR_JINJA_MAX_TREE);
    if (tr_jinja_skip_op(p, "-"))
        n = with1(p, N_NEG, line, unary(p, false));
    else if (tr_jinja_skip_op(p, "+"))
        n = with1(p, N_POS, line, unary(p, false));
    else
        n = primary(p);
    n = postfix(p, n);
    while (with_filter && p->st == TR_OK) {
        if (tr_jinja_is_op(p, "|"))
            n = tr_jinja_filters(p, n, false);
        else if (tr_jinja_is_name(p, "is"))
            n = test(p, n);
        else if (tr_jinja_is_op(p, "("))
            n = call(p, n);
        else
            break;
    }
    p->depth--;
    return n;
}

struct op_row {
    const char *text;
    enum tr_jinja_op op;
};

static bool skip_any(struct tr_jinja_parser *p, const struct op_row *rows, size_t n, enum tr_jinja_op *op)
{
    for (size_t i = 0; i < n; i++)
        if (tr_jinja_skip_op(p, rows[i].text)) {
            *op = rows[i].op;
            return true;
        }
    return false;
}

static struct tr_jinja_node *binary(struct tr_jinja_parser *p, int line, enum tr_jinja_op op, struct tr_jinja_node *a,
                                    struct tr_jinja_node *b)
{
    struct tr_jinja_node *n = with2(p, N_BINARY, line, a, b);
    if (p->st == TR_OK)
        n->op = op;
    return n;
}

static struct tr_jinja_node *power(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *n = unary(p, true);
    while (tr_jinja_skip_op(p, "**"))
        n = binary(p, line, OP_POW, n, unary(p, true));
    return n;
}

static struct tr_jinja_node *product(struct tr_jinja_parser *p)
{
    static const struct op_row rows[] = { { "*", OP_MUL }, { "/", OP_DIV }, { "//", OP_FLOORDIV }, { "%", OP_MOD } };
    int line = tr_jinja_cur(p)->line;
    enum tr_jinja_op op = OP_MUL;
    struct tr_jinja_node *n = power(p);
    while (skip_any(p, rows, TR_COUNT_OF(rows), &op))
        n = binary(p, line, op, n, power(p));
    return n;
}

static struct tr_jinja_node *concat(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *first = product(p);
    if (!tr_jinja_is_op(p, "~"))
        return first;
    struct tr_jinja_node *n = tr_jinja_node(p, N_CONCAT, line);
    struct tr_jinja_list list = { 0 };
    tr_jinja_list_add(p, &list, first);
    while (tr_jinja_skip_op(p, "~"))
        tr_jinja_list_add(p, &list, product(p));
    tr_jinja_set_list(p, n, &list);
    return n;
}

static struct tr_jinja_node *sum(struct tr_jinja_parser *p)
{
    static const struct op_row rows[] = { { "+", OP_ADD }, { "-", OP_SUB } };
    int line = tr_jinja_cur(p)->line;
    enum tr_jinja_op op = OP_ADD;
    struct tr_jinja_node *n = concat(p);
    while (skip_any(p, rows, TR_COUNT_OF(rows), &op))
        n = binary(p, line, op, n, concat(p));
    return n;
}

static bool skip_compare(struct tr_jinja_parser *p, enum tr_jinja_op *op)
{
    static const struct op_row rows[] = { { "==", OP_EQ }, { "!=", OP_NE }, { "<", OP_LT },
                                          { "<=", OP_LE }, { ">", OP_GT },  { ">=", OP_GE } };
    if (skip_any(p, rows, TR_COUNT_OF(rows), op))
        return true;
    if (tr_jinja_skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    const struct tr_jinja_token *next = tr_jinja_is_name(p, "not") ? tr_jinja_cur(p) + 1 : NULL;
    if (!next || next->kind != T_NAME || next->n != 2 || memcmp(next->p, "in", 2) != 0)
        return false;
    tr_jinja_next(p);
    tr_jinja_next(p);
    *op = OP_NOTIN;
    return true;
}

/* a, then node.list with one N_BINARY (op, b) for each comparison. a < b < c compares neighbours. */
static struct tr_jinja_node *compare(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *first = sum(p), *n = NULL;
    struct tr_jinja_list list = { 0 };
    enum tr_jinja_op op = OP_EQ;
    while (skip_compare(p, &op))
        tr_jinja_list_add(p, &list, binary(p, line, op, NULL, sum(p)));
    if (list.n == 0)
        return first;
    n = with1(p, N_COMPARE, line, first);
    tr_jinja_set_list(p, n, &list);
    return n;
}

static struct tr_jinja_node *negation(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    if (!tr_jinja_skip_name(p, "not"))
        return compare(p);
    if (++p->depth > TR_JINJA_MAX_TREE)
        tr_jinja_syntax(p, "nested more than %d deep", TR_JINJA_MAX_TREE);
    struct tr_jinja_node *n = with1(p, N_NOT, line, negation(p));
    p->depth--;
    return n;
}

static struct tr_jinja_node *conjunction(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *n = negation(p);
    while (tr_jinja_skip_name(p, "and"))
        n = with2(p, N_AND, line, n, negation(p));
    return n;
}

static struct tr_jinja_node *disjunction(struct tr_jinja_parser *p)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *n = conjunction(p);
    while (tr_jinja_skip_name(p, "or"))
        n = with2(p, N_OR, line, n, conjunction(p));
    return n;
}

/* N_COND: a if b else c (NULL: undefined). */
struct tr_jinja_node *tr_jinja_expr(struct tr_jinja_parser *p, bool with_cond)
{
    int line = tr_jinja_cur(p)->line;
    if (++p->depth > TR_JINJA_MAX_TREE)
        tr_jinja_syntax(p, "nested more than %d deep", TR_JINJA_MAX_TREE);
    struct tr_jinja_node *n = disjunction(p);
    while (with_cond && tr_jinja_skip_name(p, "if")) {
        n = with2(p, N_COND, line, n, disjunction(p));
        struct tr_jinja_node *other = tr_jinja_skip_name(p, "else") ? tr_jinja_expr(p, true) : NULL;
        if (p->st == TR_OK)
            n->c = other;
        tr_jinja_adopt(p, n, other);
    }
    p->depth--;
    return n;
}

struct tr_jinja_node *tr_jinja_tuple(struct tr_jinja_parser *p, bool with_cond, const char *end_name)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *first = tr_jinja_expr(p, with_cond);
    if (!tr_jinja_is_op(p, ","))
        return first;
    struct tr_jinja_node *n = tr_jinja_node(p, N_TUPLE, line);
    struct tr_jinja_list list = { 0 };
    tr_jinja_list_add(p, &list, first);
    while (p->st == TR_OK && tr_jinja_skip_op(p, ",")) {
        enum tr_jinja_token_kind kind = tr_jinja_cur(p)->kind;
        if (kind == T_VAR_END || kind == T_BLOCK_END || tr_jinja_is_op(p, ")") ||
            (end_name && tr_jinja_is_name(p, end_name)))
            break;
        tr_jinja_list_add(p, &list, tr_jinja_expr(p, with_cond));
    }
    tr_jinja_set_list(p, n, &list);
    return n;
}

static struct tr_jinja_node *one_target(struct tr_jinja_parser *p, bool with_ns)
{
    int line = tr_jinja_cur(p)->line;
    if (tr_jinja_skip_op(p, "(")) {
        if (++p->depth > TR_JINJA_MAX_TREE)
            tr_jinja_syntax(p, "nested more than %d deep", TR_JINJA_MAX_TREE);
        struct tr_jinja_node *n = tr_jinja_target(p, with_ns);
        p->depth--;
        tr_jinja_expect_op(p, ")");
        return n;
    }
    static const char *const reserved[] = { "true", "false", "none", "True", "False", "None" };
    for (size_t i = 0; i < TR_COUNT_OF(reserved); i++)
        if (tr_jinja_is_name(p, reserved[i]))
            tr_jinja_syntax(p, "cannot assign to %s", reserved[i]);
    struct tr_jinja_node *n = tr_jinja_node(p, N_NAME, line);
    const char *name = tr_jinja_expect_name(p);
    if (p->st == TR_OK)
        n->name = name;
    if (!with_ns || !tr_jinja_skip_op(p, "."))
        return n;
    const struct tr_jinja_token *t = tr_jinja_cur(p);
    tr_jinja_expect_name(p);
    struct tr_jinja_val attr = string_const(p, t->p, t->n);
    if (p->st == TR_OK) {
        n->kind = N_NSREF;
        n->value = attr;
    }
    return n;
}

/* The target of an assignment: a name, a tuple of names, or ns.attribute. */
struct tr_jinja_node *tr_jinja_target(struct tr_jinja_parser *p, bool with_ns)
{
    int line = tr_jinja_cur(p)->line;
    struct tr_jinja_node *first = one_target(p, with_ns);
    if (!tr_jinja_is_op(p, ","))
        return first;
    struct tr_jinja_node *n = tr_jinja_node(p, N_TUPLE, line);
    struct tr_jinja_list list = { 0 };
    tr_jinja_list_add(p, &list, first);
    while (p->st == TR_OK && tr_jinja_skip_op(p, ",")) {
        if (tr_jinja_is_name(p, "in") || tr_jinja_is_op(p, ")") || tr_jinja_is_op(p, "="))
            break;
        tr_jinja_list_add(p, &list, one_target(p, with_ns));
    }
    tr_jinja_set_list(p, n, &list);
    return n;
}
