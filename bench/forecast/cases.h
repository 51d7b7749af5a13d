/* cases.h - published results as rows of a csv file, and the forecast of each. */
#ifndef FORECAST_CASES_H
#define FORECAST_CASES_H

#include "forecast/trainers.h"

/* One text field for each column. Fields point into the text of the file, which is split in place. */
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
    char fault[80]; /* why no field of this row can be trusted; "": all can */
    double published;
    /* the question that the fields were read as; valid when has_ask */
    struct tr_forecast_query query; /* its machine and impl point to those below, set by tr_case_predict */
    struct tr_machine machine;
    const struct tr_trainer *trainer;
    struct tr_impl impl; /* the trainer's, changed where the source says more */
    bool has_ask;
    char note[96];    /* what was assumed where the row states nothing, or nothing known; "": nothing */
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
/* Fills query, machine, trainer, impl; or reason. */
void tr_case_resolve(struct tr_case *c);
/* Fills predicted, or reason. */
void tr_case_predict(struct tr_case *c);
/* Adds to note. */
void tr_case_note(struct tr_case *c, const char *what);
/* |predicted - published| / published in percent. */
double tr_case_error(const struct tr_case *c);
/* The release in the name of the source: "Megatron-Bridge performance summary 26.04.01" -> 26.04; 0: the source names
 * another trainer, or no release. */
double tr_case_release(const struct tr_case *c, const char *trainer);
/* True when id, source or model say that this is fine-tuning; *is_frozen: only adapters are trained. */
bool tr_case_is_tuning(const struct tr_case *c, bool *is_frozen);
/* True when the column holds the word, in upper or lower case. */
bool tr_case_has(const struct tr_case *c, enum tr_case_column k, const char *word);
bool tr_case_is_throughput(const struct tr_case *c);
/* Every row, then a summary by source; as_json: one object a line, the last one has the totals. */
void tr_cases_print(const struct tr_cases *c, bool as_json, struct tr_str *out);

#endif
