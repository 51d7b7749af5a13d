/* jinja_tree.h - tokens, tree and parser of templates. All kinds of node have one type; the parser function that makes
 * a kind says which fields it uses. */
#ifndef TR_TEXT_JINJA_TREE_H
#define TR_TEXT_JINJA_TREE_H

#include "text/jinja_impl.h"

enum tr_jinja_node_kind {
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY,
    N_CONCAT,
    N_COMPARE,
    N_AND,
    N_OR,
    N_COND,
    N_NSREF,
    N_BODY,
    N_DATA,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SETBLOCK,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
};

struct tr_jinja_arg {
    const char *name; /* NULL: positional */
    struct tr_jinja_node *value;
    bool is_star; /* `*value` in a call: its items are positional arguments */
};

/* The meaning of a, b, c, d and list depends on the kind; see the parser function that makes it. */
struct tr_jinja_node {
    enum tr_jinja_node_kind kind;
    enum tr_jinja_op op;
    int line, depth;
    struct tr_jinja_node *a, *b, *c, *d;
    struct tr_jinja_node **list;
    size_t n_list;
    struct tr_jinja_arg *args;
    size_t n_args;
    const char *name; /* interned: equal names are equal pointers */
    struct tr_jinja_val value;
    const struct tr_jinja_builtin *fn;
};

/* ---- lexer and parser ---- */

enum tr_jinja_token_kind {
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STR,
    T_INT,
    T_FLOAT,
    T_OP,
    T_EOF,
};

struct tr_jinja_token {
    enum tr_jinja_token_kind kind;
    int line;
    const char *p; /* the text; of T_STR and T_DATA with escapes decoded and white space trimmed */
    size_t n;
    char op[3]; /* T_OP, NUL-terminated */
};

struct tr_jinja {
    struct tr_jinja_arena mem;
    char *what;
    struct tr_jinja_token *tokens;
    size_t n_tokens, n_nodes;
    const char **names; /* hash table of interned names */
    size_t n_names;
    const char *name_loop, *name_caller; /* NULL: the template does not hold them */
    struct tr_jinja_node *body;
    bool has_generation;
    struct tr_hash128 hash; /* of the text */
};

enum tr_status tr_jinja_lex(struct tr_jinja *t, char *text, size_t n);
enum tr_status tr_jinja_parse(struct tr_jinja *t);
/* The interned name. NULL: the template does not hold it (add is false), there are too many names, or no memory. */
const char *tr_jinja_intern(struct tr_jinja *t, const char *p, size_t n, bool add);

struct tr_jinja_parser { /* errors are sticky here too: after one, tr_jinja_cur() is the end of the template */
    struct tr_jinja *t;
    enum tr_status st;
    size_t at;
    int depth, n_loops, n_ifs; /* n_ifs: what is around; as in jinja2 a filter in an `if` need not be known */
};
const struct tr_jinja_token *tr_jinja_cur(const struct tr_jinja_parser *p);
void tr_jinja_next(struct tr_jinja_parser *p);
bool tr_jinja_is_op(const struct tr_jinja_parser *p, const char *op);
bool tr_jinja_is_name(const struct tr_jinja_parser *p, const char *name);
bool tr_jinja_skip_op(struct tr_jinja_parser *p, const char *op);
bool tr_jinja_skip_name(struct tr_jinja_parser *p, const char *name);
void tr_jinja_expect_op(struct tr_jinja_parser *p, const char *op);
const char *tr_jinja_expect_name(struct tr_jinja_parser *p);
void tr_jinja_syntax(struct tr_jinja_parser *p, const char *fmt, ...) TR_PRINTF(2, 3);
struct tr_jinja_node *tr_jinja_node(struct tr_jinja_parser *p, enum tr_jinja_node_kind kind, int line);
/* Updates the depth of n. Refuses a tree that is too deep. */
void tr_jinja_adopt(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_node *child);
struct tr_jinja_list { /* nodes that will become node.list */
    struct tr_jinja_node **p;
    size_t n, n_cap;
};
void tr_jinja_list_add(struct tr_jinja_parser *p, struct tr_jinja_list *l, struct tr_jinja_node *n);
void tr_jinja_set_list(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_list *l);
/* Copies the arguments into the node. */
void tr_jinja_set_args(struct tr_jinja_parser *p, struct tr_jinja_node *n, const struct tr_jinja_arg *args,
                       size_t n_args);
struct tr_jinja_node *tr_jinja_expr(struct tr_jinja_parser *p, bool with_cond);
struct tr_jinja_node *tr_jinja_tuple(struct tr_jinja_parser *p, bool with_cond, const char *end_name); /* also `a, b` */
struct tr_jinja_node *tr_jinja_target(struct tr_jinja_parser *p, bool with_ns);
struct tr_jinja_node *tr_jinja_filters(struct tr_jinja_parser *p, struct tr_jinja_node *in, bool is_inline);
void tr_jinja_call_args(struct tr_jinja_parser *p, struct tr_jinja_node *n);

#endif
