/* observe.h - room header of observe: what a run reports. events.jsonl is the source of truth; the terminal
 * view is made from the same structs.
 *
 * Nothing here can stop a training: a line that cannot be written (disk full, terminal closed or stopped) is counted,
 * reported once, and the run goes on. No step allocates memory.
 */
#ifndef TR_OBSERVE_OBSERVE_H
#define TR_OBSERVE_OBSERVE_H

#include "base/base.h"
#include "observe/phase.h"
#include "observe/read.h"
#include "observe/tail.h"
#include "observe/track.h"

enum { TR_EVENT_SCHEMA = 1, TR_EVENT_MAX_BYTES = 65536 };

struct tr_event_arena {
    const char *name;
    uint64_t bytes;
};
struct tr_event_range { /* sample ids first..last, both included */
    int64_t first, last;
};

/* What a step or an evaluation says of pairs: means over them. Of answers with labels: means over those that are
 * desirable, n_chosen of n, and over the others; a reward is right or wrong of pairs only. */
struct tr_event_pairs {
    bool has, has_labels;
    double rewards_chosen, rewards_rejected, rewards_accuracy, logps_chosen, logps_rejected;
    double kl; /* of labels: the distance from the reference that the loss starts from */
    int64_t n, n_chosen;
};
/* Its numbers with their names, and a line for people; the first returns how many there are. */
struct tr_named_number {
    const char *name;
    double value;
};
enum { TR_PAIRS_NUMBERS = 7 };
int tr_pairs_numbers(const struct tr_event_pairs *p, struct tr_named_number out[TR_PAIRS_NUMBERS]);
int tr_pairs_text(const struct tr_event_pairs *p, double loss, char *out, size_t n_out); /* as snprintf */

/* Multiple choice: shares of n items whose right choice is the likeliest, as it is, by character and by byte. */
struct tr_event_choices {
    int64_t n; /* 0: there are none */
    double acc, acc_norm, acc_bytes;
};

struct tr_event_plan {
    int rank;
    uint64_t total_bytes, reserved_bytes;
    const struct tr_event_arena *arenas;
    size_t n_arenas;
};
struct tr_event_step {
    int64_t step; /* 1 = after the first update */
    double loss, grad_norm, lr;
    int64_t tokens; /* of this step */
    double tokens_per_s;
    double mfu; /* share of peak, 0..1; negative = unknown */
    double data_wait_s, comm_exposed_s;
    const struct tr_event_range *samples;
    size_t n_samples;
    double loss_scale; /* of float16; 0 = none */
    struct tr_event_pairs pairs;
};
struct tr_event_eval {
    int64_t step;
    double loss, perplexity;
    int64_t tokens;
    bool has_no_loss;            /* of choices alone */
    struct tr_event_pairs pairs; /* then loss is that of pairs, and perplexity means nothing */
    struct tr_event_choices choices;
    const char *set; /* the name of the data; NULL: it has none */
    bool is_other;   /* of a set that does not choose the best step */
};
struct tr_event_sample {
    int64_t step;
    const char *prompt, *text; /* the log keeps 4096 bytes of each */
    size_t index, n;           /* which of the prompts of this step */
};
struct tr_event_checkpoint {
    int64_t step;
    const char *path;
    double stall_s, write_s;
    uint64_t bytes;
    bool verified;
};
struct tr_event_fault {
    int rank;
    const char *host, *phase, *action, *cause;
};
struct tr_event_end {
    const char *status; /* "done", "stopped", "failed" */
    int64_t steps, tokens;
    double seconds;
    double data_wait; /* share of the steps' time that was spent waiting for data */
    double comm_wait; /* share spent waiting for other ranks, mean over all ranks; negative: there are no other ranks */
    bool has_bubble; /* a pipeline: share of the steps' time that ranks waited for other stages, measured and by formula
                      */
    double bubble, bubble_formula;
};

/* What the terminal can do. tr_term_detect asks isatty, COLUMNS, TERM, NO_COLOR and the locale. */
struct tr_term {
    int fd;       /* -1 = no view */
    int columns;  /* 40 .. 500 */
    bool is_live; /* a progress line may be redrawn */
    bool has_color, has_unicode;
};
struct tr_term tr_term_detect(int fd);

struct tr_observe_options {
    const char *events_path; /* NULL = no file; appended to, created when absent */
    const char *run;         /* run id, on every line */
    struct tr_term term;
    bool json;                     /* event lines go to stdout too, until its reader stops reading */
    bool quiet;                    /* the terminal shows faults and the end only */
    int64_t total_steps;           /* 0 = unknown: no bar, no ETA */
    int64_t logging_steps;         /* plain lines: every n-th step, the first and the last; 0 = only the last */
    struct tr_track_options track; /* needs events_path */
};

struct tr_observe;
enum tr_status tr_observe_open(const struct tr_observe_options *opt, struct tr_observe **out);
void tr_observe_close(struct tr_observe *o); /* NULL is fine */

void tr_observe_plan(struct tr_observe *o, const struct tr_event_plan *e);
void tr_observe_step(struct tr_observe *o, const struct tr_event_step *e);
void tr_observe_eval(struct tr_observe *o, const struct tr_event_eval *e);
void tr_observe_sample(struct tr_observe *o, const struct tr_event_sample *e);
void tr_observe_checkpoint(struct tr_observe *o, const struct tr_event_checkpoint *e);
void tr_observe_fault(struct tr_observe *o, const struct tr_event_fault *e);
void tr_observe_end(struct tr_observe *o, const struct tr_event_end *e); /* also draws the loss curve */
/* An event that the caller defines: `fields` are members of a JSON object; `text` (NULL: none) is shown on the terminal
 * unless quiet. */
void tr_observe_note(struct tr_observe *o, const char *event, const char *fields, const char *text);
/* The gradient norm of each parameter after a step, in as many events as they need. */
void tr_observe_norms(struct tr_observe *o, int64_t step, const char *const *names, const double *norms, size_t n);
/* A line for the terminal only (a plan table, a notice), above the progress line. */
void tr_observe_message(struct tr_observe *o, const char *text);

/* Lines that could not be written so far. */
struct tr_observe_lost {
    uint64_t n_events, n_view;
};
struct tr_observe_lost tr_observe_lost(const struct tr_observe *o);

/* Cuts events.jsonl back to `step`: step, eval, sample and checkpoint lines of later steps go, and so do torn lines;
 * everything else keeps its bytes and its order. Atomic (old file or new file), memory bounded by one line. Reads the
 * tail only: torn lines before the last MiB stay. An absent file is fine. n_removed may be NULL. */
enum tr_status tr_events_truncate(const char *path, int64_t step, int64_t *n_removed);

/* A plot of n values over x_first..x_last, `columns` wide and `rows` high, labels included. Non-finite values are gaps.
 */
void tr_curve_draw(const double *y, size_t n, int64_t x_first, int64_t x_last, int columns, int rows, bool unicode,
                   struct tr_str *out);

#endif
