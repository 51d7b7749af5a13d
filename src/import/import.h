/* import.h - room header of import: configuration files of other trainers, read as options of this one.
 *
 * A tool is a table of rows (deepspeed.c, accelerate.c, hf.c, trl.c, llamafactory.c, axolotl.c, torchtune.c): a key of
 * theirs, a verdict, what it sets here, a sentence. Nothing of a file is dropped silently: every key becomes an item of
 * one of five lists. Which options exist, and which values they take, is asked of the caller, so that a row for an
 * option that comes later turns from "cannot" to "taken" by itself.
 */
#ifndef TR_IMPORT_IMPORT_H
#define TR_IMPORT_IMPORT_H

#include "base/base.h"

enum tr_import_verdict {
    TR_IMPORT_TAKEN,   /* it sets an option of ours, or says what is so here anyway */
    TR_IMPORT_DECIDED, /* without effect here: there is nothing to choose, or it is off */
    TR_IMPORT_DIFFERS, /* taken, or left out, with another meaning; `why` says how */
    TR_IMPORT_CANNOT,  /* it changes the training and there is nothing like it here */
    TR_IMPORT_UNKNOWN, /* no row has it; `why` is the nearest name */
    TR_IMPORT_COUNT
};

struct tr_import_item {
    enum tr_import_verdict verdict;
    const char *file;
    size_t line;            /* 0: the key is not in the file, and its default there is not ours */
    const char *key;        /* as the file has it: datasets[0].path */
    const char *value;      /* "" for an empty one */
    const char *option;     /* ours, or NULL; "launch --nproc-per-node" belongs before the verb */
    const char *set;        /* what the option gets; NULL: its own value, whatever gives it ("auto") */
    const char *why;        /* may be NULL */
    bool is_more, is_given; /* a further item of a list; false: an equal value was given before */
};

struct tr_import;

/* What the caller knows of options. */
struct tr_import_target {
    void *ctx;
    bool (*is_option)(void *ctx, const char *name);
    bool (*is_list)(void *ctx, const char *option);
    /* Whether the option would take the value; if not, the reason is in `why`. */
    bool (*can_set)(void *ctx, const char *option, const char *value, char *why, size_t n_why);
};

/* Names of tools, for --from; NULL-terminated. */
extern const char *const tr_import_tools[];

/* The tool whose file this is, by its keys; NULL: it is not one of another tool. TR_USAGE: it could be of several. */
enum tr_status tr_import_detect(const char *path, const char *text, size_t n, const struct tr_import_target *target,
                                const char **tool);

/* Reads the files, and those that they name, as one configuration. from: a tool, or NULL to detect. skip: keys that may
 * be left out although they cannot be had (they become decided). TR_USAGE: not readable, or no tool's. */
enum tr_status tr_import_open(const char *const *files, size_t n_files, const char *from, const char *const *skip,
                              size_t n_skip, const struct tr_import_target *target, struct tr_import **out);
void tr_import_close(struct tr_import *im);

size_t tr_import_count(const struct tr_import *im);
const struct tr_import_item *tr_import_at(const struct tr_import *im, size_t i);
/* Takes back what an option was given; its items become "differs" with this reason. */
void tr_import_drop(struct tr_import *im, const char *option, const char *why);
bool tr_import_is_done(const struct tr_import *im); /* nothing that cannot be, nothing unknown */

void tr_import_yaml(const struct tr_import *im, struct tr_str *out);   /* a run file of ours */
void tr_import_report(const struct tr_import *im, struct tr_str *out); /* the lists, for people */
/* The lists and the options, one object on one line. `own` appends the value of an option that keeps its own. */
void tr_import_json(const struct tr_import *im, void (*own)(void *ctx, const char *option, struct tr_str *out),
                    struct tr_str *out);
void tr_import_page(struct tr_str *out); /* docs/guide/import-keys.md, from the tables */
/* For tests: the verdict of a key of a tool with any value. TR_IMPORT_UNKNOWN: no row. */
enum tr_import_verdict tr_import_verdict_of(const char *tool, const char *key);

#endif
