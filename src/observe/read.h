/* read.h - part of the room header: events.jsonl read back, event by event.
 *
 * The only reader of that file. A line that cannot be an event (torn by a crash or a full disk, longer than any line
 * that is written, not JSON) is skipped and counted; a last line that only lacks its newline is whole.
 */
#ifndef TR_OBSERVE_READ_H
#define TR_OBSERVE_READ_H

#include "base/base.h"

enum tr_event_kind {
    TR_EVENT_STEP,
    TR_EVENT_EVAL,
    TR_EVENT_CHECKPOINT,
    TR_EVENT_SAMPLE,
    TR_EVENT_NORMS, /* gradient norms of all parameters; from here up, events belong to a step */
    TR_EVENT_LAYOUT,
    TR_EVENT_END,
    TR_EVENT_OTHER /* plan, fault, notes of callers */
};

struct tr_event {
    enum tr_event_kind kind;
    const char *text; /* the line, without its newline */
    size_t n;
    const cJSON *json; /* all of its members; NULL for a step that is read in brief */
    int64_t step;      /* step, eval, checkpoint, sample, grad_norms; else -1 */
    /* Numbers that the kind does not have, or that were not finite, are NaN. */
    double time;                                                      /* seconds since 1970 */
    double loss, grad_norm, lr;                                       /* step; eval: loss */
    double mfu, loss_scale;                                           /* step */
    double tokens, tokens_per_s, data_wait_s, comm_exposed_s, bubble; /* step; bubble: end */
    double stall_s;                                                   /* checkpoint */
    double rewards_accuracy, rewards_margin;                          /* step, eval: of preferences */
    double acc, acc_norm;                                             /* eval: of multiple choice */
    bool has_samples;
    int64_t first_sample, last_sample; /* step: the first range of sample ids, both ends included */
};

struct tr_events;
/* tail_bytes > 0: only the events that begin in the last so many bytes. A path that does not exist: TR_IO. */
enum tr_status tr_events_open(const char *path, uint64_t tail_bytes, struct tr_events **out);
/* From a place that tr_events_at() gave. */
enum tr_status tr_events_open_at(const char *path, uint64_t at, struct tr_events **out);
void tr_events_close(struct tr_events *r); /* NULL is fine */
/* The next event, valid until the next call; false: there are no more. r NULL: none. */
bool tr_events_next(struct tr_events *r, struct tr_event *out);
/* The file grows: a last line without its newline is left for later, and a call of next after false reads what was
 * added. */
void tr_events_follow(struct tr_events *r);
/* The file that is followed was replaced or cut, as a resume does: open it again, from its beginning. */
bool tr_events_was_replaced(const struct tr_events *r);
/* From here on steps are read without a tree of their members (json NULL, has_samples false), their numbers to within a
 * unit in the last place: five times as fast, for readers of all steps of a long run. */
void tr_events_be_brief(struct tr_events *r);
int64_t tr_events_skipped(const struct tr_events *r);       /* lines so far that are no events */
uint64_t tr_events_at(const struct tr_events *r);           /* bytes of the file up to the end of the last event */
enum tr_status tr_events_failed(const struct tr_events *r); /* TR_IO: reading stopped before the end */

#endif
