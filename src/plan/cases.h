/* cases.h - published results as rows of a csv file, and what the forecast says of each. */
#ifndef TR_PLAN_CASES_H
#define TR_PLAN_CASES_H

#include "plan/forecast.h"

/* One text field a column; rows point into the text, which is cut up in place. */
/* clang-format off */
#define TR_CASE_COLUMNS(X)                                                                                             \
    X(id)                                                                                                              \
    X(source)                                                                                                          \
    X(model) X(layers) X(hidden) X(heads) X(kv_heads) X(ffn) X(vocab) X(seq) X(gpu) X(gpus) X(tp) X(pp) X(vpp) X(cp)   \
        X(dp) X(ep) X(micro_batch) X(global_batch) X(recompute) X(precision) X(zero_stage) X(metric) X(value)          \
            X(verified)
/* clang-format on */
enum tr_case_column {
#define X(name) TR_CASE_##name,
    TR_CASE_COLUMNS(X)
#undef X
        TR_CASE_N_COLUMNS
};

struct tr_case {
    const char *field[TR_CASE_N_COLUMNS];
    int line;
    char fault[80]; /* of the row itself: no fields can be trusted; "": none */
    double published;
    /* what it was read as, when it could be */
    struct tr_ask ask; /* machine and impl: pointers to those below, set by tr_case_predict */
    struct tr_machine machine;
    struct tr_impl impl;
    bool has_ask;
    char note[96];    /* what was taken for something that was not stated or not known; "": nothing */
    char reason[160]; /* why there is no prediction; "": there is one */
    double predicted;
};

struct tr_cases {
    struct tr_case *row;
    size_t n;
    char *text;
};

/* At most 64 MiB and 100,000 rows; quoting as in RFC 4180. TR_USAGE names line and column. */
enum tr_status tr_cases_read(const char *path, struct tr_cases *out);
void tr_cases_release(struct tr_cases *c);
/* Fills ask, machine, impl; or reason. */
void tr_case_resolve(struct tr_case *c);
/* Fills predicted, or reason. */
void tr_case_predict(struct tr_case *c);
/* Adds to note. */
void tr_case_note(struct tr_case *c, const char *what);
/* |predicted - published| / published in percent. */
double tr_case_error(const struct tr_case *c);
/* "Megatron-Bridge performance summary 26.04.01" -> 26.04; 0: another trainer, or no release. */
double tr_case_release(const struct tr_case *c, const char *trainer);
/* Its id, source or model says that a trained model is trained further; *is_frozen: by adapters beside it. */
bool tr_case_is_tuning(const struct tr_case *c, bool *is_frozen);
/* A column holds a word, in any case. */
bool tr_case_has(const struct tr_case *c, enum tr_case_column k, const char *word);
bool tr_case_is_throughput(const struct tr_case *c);
/* Every row and a summary by source; json: one object a line, the last with the totals. */
void tr_cases_print(const struct tr_cases *c, bool as_json, struct tr_str *out);

#endif
