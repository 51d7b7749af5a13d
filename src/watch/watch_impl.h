/* watch_impl.h - what the files of this room share. */
#ifndef TR_WATCH_WATCH_IMPL_H
#define TR_WATCH_WATCH_IMPL_H

#include "watch/watch.h"

/* Gradient norms by layer and step, from grad_norms.jsonl. When all columns are used, every second one goes. */
enum { HEAT_ROWS = 512, HEAT_COLUMNS = 1024, HEAT_LINE_BYTES = 1 << 20, HEAT_NAME = 40 };
struct heat {
    struct tr_tail *tail;
    int n_rows, n_columns;
    int64_t stride, n_seen; /* one of `stride` lines is kept */
    char (*name)[HEAT_NAME];
    int64_t *step;
    float (*norm)[HEAT_COLUMNS]; /* by row */
};
void tr_heat_release(struct heat *h);
bool tr_heat_refresh(struct heat *h, const char *dir); /* true: it has changed */
void tr_heat_json(const struct heat *h, struct tr_str *out);

/* A list of lines, bounded in number and in bytes: the oldest go. */
enum { NOTES_MAX = 4096, NOTES_BYTES = 4 << 20 };
struct notes {
    char *line[NOTES_MAX];    /* a ring */
    int64_t after[NOTES_MAX]; /* the step before the event, as the log has them */
    size_t first, n, bytes;
};

/* Evaluations of one set of data. */
enum { EVAL_SETS_MAX = 16, EVAL_NAME = 65 };
struct eval_set {
    char name[EVAL_NAME]; /* "": the run has one set, without a name */
    struct tr_series rows;
};

enum { ONCE_KINDS = 7, PLANS_MAX = 1024 };
struct tr_watch_run {
    char dir[TR_PATH_MAX], path[TR_PATH_MAX]; /* path: of the events */
    struct tr_events *events;                 /* NULL: not there yet */
    struct tr_series steps;
    struct eval_set eval[EVAL_SETS_MAX]; /* the first is the one that chooses the best step */
    int n_evals;
    struct notes notes, samples; /* samples: texts that the model has generated; so many would push out checkpoints */
    char *once[ONCE_KINDS], *plan[PLANS_MAX];
    int n_plans;
    bool has_ended, is_paused; /* by the log */
    char status[16];           /* of the last end */
    int64_t total_steps;       /* 0: not known */
    struct tr_ranks ranks;
    struct heat heat;
    struct tr_str timeline; /* as it was made of the profile of timeline_time, and of the layout of timeline_version */
    int64_t timeline_time;
    uint64_t timeline_version;
    uint64_t version; /* grows when a refresh finds something */
};

/* Parts of the page's data that are files of their own. */
void tr_log_json(const struct tr_watch_run *w, int64_t which, struct tr_str *out);
/* The end of a rank's log in whole lines, closed by a zero; 0: there is none. */
size_t tr_log_tail(const struct tr_watch_run *w, int rank, char *buf, size_t cap);
void tr_timeline_panel(struct tr_watch_run *w, struct tr_str *out);
void tr_health_json(const struct tr_watch_run *w, struct tr_str *out);

#endif
