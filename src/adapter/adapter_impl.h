/* adapter_impl.h - private to the adapter room. */
#ifndef TR_ADAPTER_IMPL_H
#define TR_ADAPTER_IMPL_H

#include "adapter/adapter.h"

enum {
    ADAPTER_FILE_MAX = 4 << 20,
    ADAPTER_LIST_MAX = 1 << 16,
    ADAPTER_RANK_MAX = 1 << 20,
};

/* ---- regex.c ---- */

/* Where the text K of a pattern stands in the expression that PEFT matches. */
enum pattern_form {
    PATTERN_WHOLE,  /* K, the whole name */
    PATTERN_SAVED,  /* (^|.*\.)K($|\..*) */
    PATTERN_SUFFIX, /* (.*\.)?(K)$ */
    PATTERN_LAYER,  /* (?:^|.*?\.)K\.(\d+)\. */
    PATTERN_FORMS
};
struct pattern {
    const char *text; /* not owned */
    enum pattern_form form;
    void *code; /* pcre2_code; NULL: the text has no operator but the dot, and is compared */
};
/* n_regexes counts the patterns that need PCRE2, over all lists of an adapter. */
enum tr_status tr_adapter_pattern_init(struct pattern *p, enum pattern_form form, const char *text, int *n_regexes);
void tr_adapter_pattern_release(struct pattern *p);
/* layer (may be NULL): the number that PATTERN_LAYER found. */
enum tr_status tr_adapter_pattern_match(const struct pattern *p, const char *name, bool *is_match, int64_t *layer);

struct tr_adapter_regexes {
    struct pattern *target, *exclude, *saved, *layer, *rank, *alpha; /* NULL: the list has no patterns */
    size_t n_target, n_exclude, n_saved, n_layer, n_rank, n_alpha;
};
/* Compiles the patterns of a whole adapter. */
enum tr_status tr_adapter_compile(struct tr_adapter *a);
void tr_adapter_forget(struct tr_adapter *a);

/* ---- config.c ---- */

/* A copy of n words in one allocation: free((void *)w.item). */
enum tr_status tr_adapter_words(const char *const *item, size_t n, struct tr_words *out);
/* "true", "pissa_niter_4" ... */
enum tr_status tr_adapter_parse_init(const char *text, bool is_read, struct tr_adapter *a);
/* Rules between the keys, for files and options alike; compiles the patterns. */
enum tr_status tr_adapter_check(struct tr_adapter *a);

/* ---- module.c ---- */

/* All modules as HF's named_modules() has them: those with parameters, and those that only hold others or have none. */
struct module_list {
    struct tr_adapter_module *module;
    size_t n;
    char (*other)[TR_NAME_MAX];
    size_t n_other;
};
enum tr_status tr_adapter_list(const struct tr_model *m, struct module_list *out);
/* Is this parameter of a segment the module lm_head? Of a tied model it is the table of tokens. */
bool tr_adapter_is_head(const struct tr_model *m, int segment, int param);
void tr_adapter_list_release(struct module_list *l);
/* PEFT's default targets of the family; NULL: it has none. Blank-separated. */
const char *tr_adapter_family_targets(const char *model_type);

/* ---- tokens.c ---- */

enum tr_status tr_adapter_read_tokens(const cJSON *config, struct tr_adapter *a);
/* Of options: ID, ..., or NAME=ID, ... */
enum tr_status tr_adapter_take_tokens(const struct tr_words *w, struct tr_adapter *a);
/* The value of trainable_token_indices in a file; NULL: out of memory. */
cJSON *tr_adapter_tokens_json(const struct tr_adapter *a);
void tr_adapter_free_tokens(struct tr_adapter *a);
/* Sets `tokens` of the modules and counts what is trained of them. */
enum tr_status tr_adapter_choose_tokens(const struct tr_adapter *a, const struct tr_model *m, struct module_list *l,
                                        int64_t *n_trained);

/* ---- config.c ---- */

/* null, a whole number, or a list of them. */
enum tr_status tr_adapter_read_ints(const cJSON *v, const char *key, int64_t **out, size_t *n_out);

/* ---- target.c ---- */

bool tr_adapter_is_saved(const struct tr_adapter *a, const char *name);

#endif
