/* import_impl.h - the row, the tree of a file, and what the files of this room share. */
#ifndef TR_IMPORT_IMPORT_IMPL_H
#define TR_IMPORT_IMPORT_IMPL_H

#include "import/import.h"

enum { IMPORT_FILE_MAX = 1 << 20, IMPORT_KEY_MAX = 256 };

/* ---- a file as a list of leaves, in its order (tree.c) ---- */

struct leaf {
    const char *path; /* for rows: datasets[].path */
    const char *key;  /* for people: datasets[0].path */
    const char *text; /* of a list of plain values: the items with commas between */
    const char *const *items;
    size_t n_items; /* items: 0 unless is_list */
    size_t line;
    bool is_null, is_list;
};

struct tool;
struct tree {
    const char *path;
    const struct tool *tool;
    struct leaf *leaves;
    size_t n_leaves, n_cap;
    struct tr_owned **kept; /* where texts live */
};

/* YAML or JSON. TR_USAGE with file:line. */
enum tr_status tr_tree_read(struct tree *t, const char *text, size_t n);
/* The first leaf with this path; NULL: none, or its value is empty. */
const struct leaf *tr_tree_find(const struct tree *t, const char *path);
/* The leaf `name` of the entry of a list, or of the map, in which `leaf` stands; NULL: none, or its value is empty. */
const struct leaf *tr_tree_beside(const struct tree *t, const struct leaf *leaf, const char *name);
bool tr_tree_has(const struct tree *t, const char *path); /* the path, or anything below it */

/* ---- rows (rows.c) ---- */

struct import_row;
/* A row that needs more than text: it reports its items itself. */
typedef void row_fn(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row);
/* The value that `$` stands for; false: this row does not match after all. */
typedef bool convert_fn(const struct tree *t, const struct leaf *leaf, char *out, size_t n_out);

struct import_row {
    const char *key; /* one or more, blanks between; `*` stands for any text */
    /* Words, blanks between, one of which must match: a text with `*`, or a class. @off: false, no, none, 0, empty;
     * @on: anything else; @share: a number inside (0, 1); @many: a number of 1 or more; @absent: the key is not there.
     * NULL: any value. Case does not count. */
    const char *value;
    enum tr_import_verdict verdict;
    const char *sets; /* "dtype=bfloat16 sp": names and values; `$` is the value, `$0` and `$1` items of a list, @own
                         the option's own value. A name alone: name=$. NULL: nothing */
    const char *why;
    const char *when; /* "key=words": another key of the file must match too; "!key=words": must not */
    convert_fn *convert;
    row_fn *apply;
    bool or_next;     /* where the option is not there or refuses the value, the next row is tried */
    const char *part; /* the value names a file of this tool, or the keys below are its */
};

struct tool {
    const char *name, *title;
    const struct import_row *rows;         /* ends with a NULL key */
    const struct tool *base;               /* keys without a row here are looked up there */
    bool takes_ours;                       /* keys without any row that are options of ours stand for themselves */
    bool (*is_mine)(const struct tree *t); /* the signature; NULL: by keys that only it has */
};

extern const struct tool tr_tool_deepspeed, tr_tool_accelerate, tr_tool_hf, tr_tool_trl, tr_tool_llamafactory,
    tr_tool_axolotl, tr_tool_torchtune;
extern const struct tool *const tr_tools[];
const struct tool *tr_tool_find(const char *name);

bool tr_text_like(const char *pattern, size_t n_pattern, const char *text); /* `*`, no case */
bool tr_words_match(const char *words, const struct leaf *leaf);            /* leaf NULL: the key is not there */
/* Whether one of the row's keys matches the path. */
bool tr_row_has_key(const struct import_row *row, const char *path);
/* Whether keys of rows lie below the path: an empty map of theirs. */
bool tr_rows_have_section(const struct tool *tool, const char *path);
void tr_import_leaf(struct tr_import *im, const struct tree *t, const struct leaf *leaf);
/* One row, for a row_fn that decides whether it applies. */
void tr_import_row(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct import_row *row);
void tr_import_absent(struct tr_import *im, const struct tree *t); /* defaults of the tool that are not ours */

/* ---- items (open.c) ---- */

struct tr_import {
    const struct tr_import_target *target;
    struct tr_import_item *items;
    size_t n_items, n_cap;
    struct tree *trees[16];
    size_t n_trees;
    int depth; /* of files that name files */
    const char *const *skip;
    size_t n_skip;
    struct tr_owned *kept;
    bool is_nomem;
};

/* Adds an item; texts are copied. option NULL or set NULL: nothing is given. */
void tr_import_add(struct tr_import *im, const struct tree *t, const struct leaf *leaf, enum tr_import_verdict verdict,
                   const char *option, const char *set, const char *why);
const struct tr_import_item *tr_import_given(const struct tr_import *im, const char *option);
/* A file that leaf names: looked for as it stands, then beside the file and above it. */
void tr_import_part(struct tr_import *im, const struct tree *t, const struct leaf *leaf, const struct tool *tool);
bool tr_import_locate(const struct tree *t, const char *name, char out[TR_PATH_MAX]);

/* ---- shared by tables ---- */
#define TAKEN   .verdict = TR_IMPORT_TAKEN
#define DECIDED .verdict = TR_IMPORT_DECIDED
#define DIFFERS .verdict = TR_IMPORT_DIFFERS
#define CANNOT  .verdict = TR_IMPORT_CANNOT
#define END_OF_ROWS                                                                                                    \
    {                                                                                                                  \
        .key = NULL                                                                                                    \
    }
/* A switch that cannot be on. */
#define NOT_ON(keys, sentence)                                                                                         \
    {                                                                                                                  \
        .key = (keys), .value = "@on", CANNOT, .why = (sentence)                                                       \
    }
#define IDLE(keys, sentence)                                                                                           \
    {                                                                                                                  \
        .key = (keys), DECIDED, .why = (sentence)                                                                      \
    }
/* The same name here, or another one for the same thing. */
#define SAME(keys, option)                                                                                             \
    {                                                                                                                  \
        .key = (keys), TAKEN, .sets = (option)                                                                         \
    }

#endif
