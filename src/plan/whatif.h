/* whatif.h - part of the room header: the speed of a model on clusters of any size, and the cost of a token budget. */
#ifndef TR_PLAN_WHATIF_H
#define TR_PLAN_WHATIF_H

#include "plan/search.h"

/* "15T", "300B", "1e9". */
enum tr_status tr_tokens_parse(const char *text, double *out);

/* What a budget depends on besides the layout. price or mttf_hours 0: that of the machine. */
struct tr_budget {
    double tokens; /* 0: no budget was given */
    double price, mttf_hours, restart_s;
};

/* Failures come at random with a mean distance. Each costs the work since the last checkpoint and a restart.
 * Checkpoints cost time whether or not anything fails. */
struct tr_failures {
    double between_s;    /* mean time between two failures of the cluster */
    double checkpoint_s; /* all hosts write it together, and training waits */
    double interval_s;   /* between checkpoints: Daly's optimum (2006) */
    double share;        /* share of the time that makes progress */
};
void tr_failures_of(const struct tr_search_result *x, const struct tr_budget *b, struct tr_failures *out);
/* The optimum for a checkpoint of `cost` and a failure every `between`. */
double tr_daly_interval(double cost, double between);
/* Progress over time, exactly for exponential failures (Daly 2006, equation 20). */
double tr_daly_share(double interval, double cost, double restart, double between);

/* Days and dollars without and with failures, and how often to save. */
void tr_budget_text(const struct tr_search_result *x, const struct tr_budget *b, struct tr_str *out);
void tr_budget_json(const struct tr_search_result *x, const struct tr_budget *b, struct tr_str *out); /* an object */

/* One point of a scaling curve; n 0 in `search`: nothing fits or is legal. */
struct tr_scale_point {
    int gpus;
    bool has_layout;
    struct tr_search_result best;
    double n_legal, least_bytes;
};
/* Points for counts "1,8,64" or "auto": powers of two to 65,536, and 100,000. *out is freed by the caller. */
enum tr_status tr_scale_counts(const char *text, int **out, int *n);
void tr_scale_text(const struct tr_scale_point *p, int n, const struct tr_budget *b, double room_bytes,
                   struct tr_str *out);
void tr_scale_json(const struct tr_scale_point *p, int n, const struct tr_budget *b, struct tr_str *out);

/* A model under each strategy (table.c): plain data parallel, ZeRO 1 to 3, tensor, pipeline, and the best of all. */
enum { TR_STRATEGIES = 7 };
struct tr_table_row {
    const char *model;
    double parameters;
    struct tr_scale_point cell[TR_STRATEGIES];
};
/* Fills the cells. machine outlives the row; s is scratch. */
enum tr_status tr_table_find(const struct tr_search_query *q, const struct tr_machine *machine, struct tr_search *s,
                             struct tr_table_row *row);
/* q: of any row; the cluster and the batch are those of all. */
void tr_table_text(const struct tr_table_row *row, int n, const struct tr_search_query *q, struct tr_str *out);
void tr_table_json(const struct tr_table_row *row, int n, const struct tr_search_query *q, struct tr_str *out);

#endif
