/* observe_impl.h - the handle, and what the files of this room share. */
#ifndef TR_OBSERVE_OBSERVE_IMPL_H
#define TR_OBSERVE_OBSERVE_IMPL_H

#include "observe/observe.h"

#include <sys/types.h>

/* Bounded text in memory of the caller. Text that does not fit is left out, and is_cut is set. */
struct line {
    char *p;
    size_t n, n_cap;
    bool is_cut;
};
void tr_line_addf(struct line *s, const char *fmt, ...) TR_PRINTF(2, 3);
void tr_line_json(struct line *s, const char *text);                        /* quoted and escaped */
void tr_line_real(struct line *s, const char *key, double x, int n_digits); /* ,"key":x; not finite = null */

/* Loss history for the curve: bins of equal width; when all are used, neighbours merge and the width doubles. */
enum { N_BINS = 1024 };
struct history {
    double sum[N_BINS];
    int64_t count[N_BINS];
    int64_t first_step, last_step, bin_steps;
};
void tr_history_add(struct history *h, int64_t step, double loss);
size_t tr_history_get(const struct history *h, double out[N_BINS]);

/* track.c */
struct tr_track;
struct tr_track_mail {
    char text[4096];   /* lines for the terminal; "": none */
    char system[8192]; /* members of a `system` event; "": none */
};
/* *out NULL: no tracker is chosen. */
enum tr_status tr_track_open(const struct tr_track_options *opt, const char *events_path, const char *run_id,
                             int64_t total_steps, struct tr_track **out);
/* false: there is nothing. Costs one load then. t may be NULL. */
bool tr_track_take(struct tr_track *t, struct tr_track_mail *out);
/* Waits until the sinks have every event, at most 10 s; false: a disk does not answer, and they do not have them all.
 */
bool tr_track_close(struct tr_track *t, struct tr_track_mail *last);

struct tr_observe {
    struct tr_observe_options opt;
    char run[128];
    int events_fd; /* -1 = none */
    bool is_torn;  /* the file ends inside a line */
    bool is_bar_drawn;
    bool is_view_blocked, is_view_closed;
    bool was_reported; /* the first lost event line */
    int64_t last_draw_us;
    double step_s;             /* moving average, for the ETA */
    struct tr_event_step last; /* samples not kept */
    bool has_step, is_last_printed;
    struct tr_observe_lost lost;
    struct history history;
    struct tr_track *track; /* NULL: none */
    struct tr_track_mail mail;
    char text[4096];                 /* one view text */
    char buffer[TR_EVENT_MAX_BYTES]; /* one event line */
};

/* view.c */
void tr_view_step(struct tr_observe *o, const struct tr_event_step *e);
void tr_view_end(struct tr_observe *o, const struct tr_event_end *e);
void tr_view_say(struct tr_observe *o, const char *text);
/* term.c. Guarded: a write() whose SIGPIPE or SIGXFSZ becomes errno. Term: waits at most wait_ms; false: not written.
 */
ssize_t tr_guarded_write(int fd, const void *p, size_t n);
bool tr_term_write(struct tr_observe *o, const char *text, size_t n, int wait_ms);

#endif
