/* config_impl.h - the option row, the loader, and what the files of this room share. */
#ifndef TR_CONFIG_CONFIG_IMPL_H
#define TR_CONFIG_CONFIG_IMPL_H

#include "config/config.h"
#include "import/import.h"

enum option_type {
    OPTION_BOOL,
    OPTION_INT,
    OPTION_REAL,
    OPTION_BYTES,
    OPTION_STR,
    OPTION_CHOICE,
    OPTION_DATA,   /* PATH[:weight], repeatable */
    OPTION_WORDS,  /* comma list, repeatable */
    OPTION_SUM,    /* comma list of WORD[:WEIGHT], words of `choices`; its field is the text */
    OPTION_OBJECT, /* a JSON object, or a map of a file; its field is the text */
    OPTION_SET     /* --set itself: no field */
};

/* A word of a choice. The first row with a value is its canonical spelling; a NULL word ends the list. */
struct choice {
    const char *word;
    int value;
};

struct option {
    const char *name, *group;
    const char *aliases; /* space separated; one with a dot matches only as it stands ("optim.name") */
    enum option_type type;
    size_t at;        /* offset in struct tr_config */
    const char *def;  /* text, read like any other value; NULL = not given */
    const char *bare; /* the value of `--name` alone; NULL = a value is required */
    const char *word; /* a word that stands for -1 ("auto"); may be NULL */
    double lo, hi;    /* both included; for OPTION_REAL is_open excludes hi */
    bool is_open;
    bool is_cli_only; /* refused in files */
    bool has_names;   /* OPTION_WORDS: items are NAME=VALUE, which a file may write as a map */
    const struct choice *choices;
    size_t at_dir;  /* where the DIR of a word that ends in :DIR goes; 0: no word does */
    unsigned verbs; /* bit per enum tr_verb */
    const char *arg, *help;
};

/* Names that set another option: `--bf16` is `--dtype bfloat16`. */
struct old_option {
    const char *name, *target;      /* target NULL: accepted and ignored */
    const char *if_true, *if_false; /* NULL: that value changes nothing */
    bool is_share;                  /* instead of a bool: a number in [0, 1) handed on as it is */
    const char *notice;
};

/* Does its help list the words that it takes? */
static inline bool tr_option_has_words(const struct option *opt)
{
    return opt->type == OPTION_CHOICE || opt->type == OPTION_SUM;
}

/* May a file write it as a list? */
static inline bool tr_option_is_list(const struct option *opt)
{
    return opt->type == OPTION_DATA || opt->type == OPTION_WORDS || opt->type == OPTION_SUM;
}

extern const struct option tr_options[];
extern const struct old_option tr_rewrites[];
/* Names that other trainers have and this one does not: what to write instead. NULL: no such name. */
const char *tr_hint_find(const char *key);
extern const char *const tr_groups[]; /* NULL-terminated, in help order */
enum { N_OPTIONS_MAX = 224 };
size_t tr_option_count(void);
/* key: normalised (no dashes), plain or "group.name". NULL when no row of this verb has it. */
const struct option *tr_option_find(enum tr_verb verb, const char *key);
const struct option *tr_option_find_any(const char *key); /* of any verb */
const struct old_option *tr_rewrite_find(const char *key);
bool tr_option_is_for(const struct option *opt, enum tr_verb verb);
const char *tr_verb_words(enum tr_verb verb); /* what follows it in its usage line */
/* i-th word of a space separated list into buf; false when there are fewer. */
bool tr_word_at(const char *list, size_t i, char *buf, size_t n_buf);

/* How rows of a device follow from those of a step; a run on another layout lets them follow again. */
#define ROWS_THAT_DIVIDE "largest divisor of train_batch_size / dp up to the default"

enum level { LEVEL_DEFAULT, LEVEL_DERIVED, LEVEL_RUN, LEVEL_ENV, LEVEL_FILE, LEVEL_SET, LEVEL_CLI, LEVEL_COUNT };

struct origin {
    enum level level;
    const char *text;
};

struct loader;
struct foreign { /* files of other trainers; l only while they are loaded */
    struct loader *l;
    struct tr_import_target target;
    struct tr_import *import;
};

struct config_full {
    struct tr_config pub; /* first: tr_config_close gets a pointer to it */
    struct foreign foreign;
    struct origin origins[N_OPTIONS_MAX];
    struct tr_str notices;
    struct tr_owned *kept;
};

struct loader {
    const char *world_size; /* WORLD_SIZE of the environment, or NULL */
    struct config_full *c;
    struct tr_config scratch; /* takes values that a higher level overrides, so that they are checked too */
    const char *seen[LEVEL_COUNT][N_OPTIONS_MAX]; /* the spelling a level used */
    int level, n_items;                           /* of the value at hand; list items so far */
    struct tr_str errors;
    size_t n_errors;
    bool is_nomem;
    bool is_import;   /* config import: what cannot be had is reported, not refused, and no run is checked */
    bool is_file_cut; /* the file could not be read to its end: an option that seems missing may be in the rest */
};

/* One value from one place. `where` leads messages and becomes the origin. is_more: next item of the same list. */
enum { KEY_MAX = 128, WHERE_MAX = 512 };
struct given {
    enum level level;
    const char *key, *value;
    const char *where;
    bool is_more;
};
void tr_loader_error(struct loader *l, const char *fmt, ...) TR_PRINTF(2, 3);
void tr_loader_notice(struct loader *l, const char *fmt, ...) TR_PRINTF(2, 3);
void *tr_loader_keep(struct loader *l, const void *bytes,
                     size_t n_bytes); /* a copy that the config owns; NULL: out of memory */
void tr_loader_give(struct loader *l, const struct given *g);
void tr_loader_file(struct loader *l, const char *path);
void tr_loader_yaml(struct loader *l, const char *name, const char *text, size_t n);
void tr_loader_check(struct loader *l);                            /* cross-field */
void tr_loader_preference(struct loader *l);                       /* of these, preference.c's */
void tr_loader_idle(struct loader *l);                             /* options without effect */
bool tr_loader_is_given(const struct loader *l, const char *name); /* by anybody */
bool tr_loader_is_default(struct loader *l, const char *name);     /* its value is */
/* Was the option given, with another value than its default, and not by the run that a verb looks at? */
bool tr_loader_is_chosen(struct loader *l, const char *name);
const struct tr_import_target *tr_loader_target(struct loader *l);
void tr_loader_foreign(struct loader *l, const char *const *files, size_t n_files);
void tr_loader_arguments(struct loader *l, int argc, char *const *argv);
void tr_loader_environment(struct loader *l, char *const *envp);
void tr_loader_hub(struct loader *l, char *const *envp); /* names of the hub become directories of its cache */
void tr_loader_recorded(struct loader *l);               /* after all that a user gives */
void tr_loader_of_run(struct loader *l);                 /* for verbs on a run: its options */

/* Reads text into the option's field of cfg; TR_USAGE with the cause. Lists append. */
enum tr_status tr_value_parse(struct loader *l, const struct option *opt, const char *text, struct tr_config *cfg);
bool tr_bool_parse(const char *text, bool *out);
/* Appends the value as a user would type it, or as JSON. */
void tr_value_print(const struct tr_config *cfg, const struct option *opt, bool as_json, struct tr_str *out);

#endif
