/* series.h - part of the room header: the numbers of a run's steps in columns, and a curve of them with few points. */
#ifndef TR_WATCH_SERIES_H
#define TR_WATCH_SERIES_H

#include "observe/observe.h"

#define TR_SERIES_LIST(X)                                                                                              \
    X(LOSS, loss)                                                                                                      \
    X(GRAD_NORM, grad_norm)                                                                                            \
    X(LR, lr)                                                                                                          \
    X(LOSS_SCALE, loss_scale)                                                                                          \
    X(TOKENS, tokens)                                                                                                  \
    X(TOKENS_PER_S, tokens_per_s)                                                                                      \
    X(MFU, mfu)                                                                                                        \
    X(DATA_WAIT_S, data_wait_s)                                                                                        \
    X(COMM_EXPOSED_S, comm_exposed_s)                                                                                  \
    X(REWARDS_ACCURACY, rewards_accuracy)                                                                              \
    X(REWARDS_MARGIN, rewards_margin)                                                                                  \
    X(ACC, acc)                                                                                                        \
    X(ACC_NORM, acc_norm)

enum tr_series_column {
#define X(id, name) TR_SERIES_##id,
    TR_SERIES_LIST(X)
#undef X
        TR_SERIES_COLUMNS
};
const char *tr_series_name(enum tr_series_column c);

enum { TR_SERIES_MAX_ROWS = 1 << 23, TR_SERIES_MAX_POINTS = 4000 };

/* A row is an event; steps ascend. float holds what a curve shows; NaN: the event did not say. A column exists from its
 * first value on, so ask tr_series_at. Zero is empty. */
struct tr_series {
    size_t n, cap;
    int64_t *step;
    double *time;
    float *column[TR_SERIES_COLUMNS];
};
double tr_series_at(const struct tr_series *s, enum tr_series_column c, size_t row);
void tr_series_release(struct tr_series *s);
void tr_series_clear(struct tr_series *s);
/* An event of an earlier step than the last takes the place of the rows from there on: the run went back to a
 * checkpoint. Rows beyond TR_SERIES_MAX_ROWS are left out. */
enum tr_status tr_series_add(struct tr_series *s, const struct tr_event *e);

/* Rows of steps from..to (both included). */
struct tr_series_part {
    size_t first, end;
};
struct tr_series_part tr_series_between(const struct tr_series *s, int64_t from, int64_t to);
/* Of the finite values of rows first..end; all NaN: there are none. */
struct tr_series_span {
    double min, max, mean;
};
struct tr_series_span tr_series_span(const struct tr_series *s, enum tr_series_column c, size_t first, size_t end);
/* Members of a JSON object: "rows", "first", "last" (steps of all rows), "step" (the middle of each point) and of every
 * column that has a value its means, and where a point stands for several rows their extremes. At most n_points points,
 * of as many rows each. */
void tr_series_json(const struct tr_series *s, int64_t from, int64_t to, size_t n_points, struct tr_str *out);

#endif
