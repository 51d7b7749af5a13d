/* jinja_tree.h - tokens, tree and parser of templates. One node type for all kinds: which fields a kind uses is written
 * where the parser makes it. */
#ifndef TR_TEXT_JINJA_TREE_H
#define TR_TEXT_JINJA_TREE_H

#include "text/jinja_impl.h"

enum node_kind {
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

struct arg {
    const char *name; /* NULL: positional */
    struct node *value;
    bool is_star; /* *value: its items are positional arguments */
};

/* a, b, c and list by kind; see the parser where each is made. */
struct node {
    enum node_kind kind;
    enum op op;
    int line, depth;
    struct node *a, *b, *c, *d;
    struct node **list;
    size_t n_list;
    struct arg *args;
    size_t n_args;
    const char *name; /* interned: equal names are equal pointers */
    struct val value;
    const struct builtin *fn;
};

/* ---- lexer and parser ---- */

enum token_kind {
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

struct token {
    enum token_kind kind;
    int line;
    const char *p; /* text; of T_STR and T_DATA what it stands for */
    size_t n;
    char op[3]; /* T_OP, NUL-terminated */
};

struct tr_jinja {
    struct arena mem;
    char *what;
    struct token *tokens;
    size_t n_tokens, n_nodes;
    const char **names; /* hash table of interned names */
    size_t n_names;
    const char *name_loop, *name_caller; /* NULL: the template does not hold them */
    struct node *body;
    bool has_generation;
    struct tr_hash128 hash; /* of the text */
};

enum tr_status tr_j_lex(struct tr_jinja *t, char *text, size_t n);
enum tr_status tr_j_parse(struct tr_jinja *t);
/* The interned name, or NULL: the template does not hold it (add false), too many names or no memory. */
const char *tr_j_intern(struct tr_jinja *t, const char *p, size_t n, bool add);

struct parser { /* errors are sticky here too: after one, cur() is the end of the template */
    struct tr_jinja *t;
    enum tr_status st;
    size_t at;
    int depth, n_loops;
};
const struct token *tr_j_cur(const struct parser *p);
void tr_j_next(struct parser *p);
bool tr_j_is_op(const struct parser *p, const char *op);
bool tr_j_is_name(const struct parser *p, const char *name);
bool tr_j_skip_op(struct parser *p, const char *op);
bool tr_j_skip_name(struct parser *p, const char *name);
void tr_j_expect_op(struct parser *p, const char *op);
const char *tr_j_expect_name(struct parser *p);
void tr_j_syntax(struct parser *p, const char *fmt, ...) TR_PRINTF(2, 3);
struct node *tr_j_node(struct parser *p, enum node_kind kind, int line);
void tr_j_adopt(struct parser *p, struct node *n, const struct node *child); /* keeps depth, refuses a too deep tree */
struct list {                                                                /* nodes on their way into node.list */
    struct node **p;
    size_t n, n_cap;
};
void tr_j_list_add(struct parser *p, struct list *l, struct node *n);
void tr_j_set_list(struct parser *p, struct node *n, const struct list *l);
void tr_j_set_args(struct parser *p, struct node *n, const struct arg *args, size_t n_args); /* copies */
struct node *tr_j_expr(struct parser *p, bool with_cond);
struct node *tr_j_tuple(struct parser *p, bool with_cond, const char *end_name); /* also `a, b` */
struct node *tr_j_target(struct parser *p, bool with_ns);
struct node *tr_j_filters(struct parser *p, struct node *in, bool is_inline);
void tr_j_call_args(struct parser *p, struct node *n);

#endif
