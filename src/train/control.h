/* control.h - private to train: requests of `trireme ctl` to a running training, and what of them outlives it.
 *
 * A request is one file, OUTPUT/.trireme/request, signed under a key that only the user of the run can read. Rank 0
 * looks for it between steps; all ranks act on what it found. Values that were set are a ledger: entries {step, key,
 * value} that hold from that step on. The ledger is on the disk before its newest entry counts, and a copy is in every
 * checkpoint, so that a resume from any of them makes the same steps again.
 */
#ifndef TR_TRAIN_CONTROL_H
#define TR_TRAIN_CONTROL_H

#include "train/train.h"

enum { TR_LEDGER_MAX = 256 };
struct tr_ledger_entry {
    int64_t step; /* steps before it: the value holds for the step after */
    int key;      /* row of the table of values that can be set */
    double value;
};
struct tr_ledger {
    int n;
    struct tr_ledger_entry entry[TR_LEDGER_MAX]; /* in the order of steps */
};

/* [{"step", "key", "value"}]: as it stands in state.json and in the ledger's own file. */
void tr_ledger_write(const struct tr_ledger *l, struct tr_str *out);
/* j NULL or no array: an empty ledger. TR_USAGE: a key that this build does not know, or too many entries. */
enum tr_status tr_ledger_read(const cJSON *j, const char *what, struct tr_ledger *l);
/* An entry of the same step and key is replaced; where there is no room, nothing is done. */
void tr_ledger_put(struct tr_ledger *l, const struct tr_ledger_entry *e);
/* Puts all entries of `more`. */
void tr_ledger_merge(struct tr_ledger *l, const struct tr_ledger *more);
/* The values that hold when `step` steps were made, over those of the options. */
void tr_ledger_apply(const struct tr_ledger *l, int64_t step, struct tr_config *cfg);

/* OUTPUT/control.json. Absent: empty. */
enum tr_status tr_ledger_load(const char *output, struct tr_ledger *l);
enum tr_status tr_ledger_save(const char *output, const struct tr_ledger *l);

struct tr_control_request {
    enum tr_control_action action;
    int key; /* of TR_CONTROL_SET */
    double value;
    char id[33];
    char why[256]; /* action NONE: why it was refused */
};
const char *tr_control_key_name(int key);

struct tr_control;
/* A fresh key; a request that an earlier start has not read is removed. */
enum tr_status tr_control_open(const char *output, struct tr_control **out);
void tr_control_close(struct tr_control *c); /* NULL is fine */
/* false: there is no request. Costs one system call then. A request that is refused has action NONE. c NULL: none. */
bool tr_control_poll(struct tr_control *c, struct tr_control_request *out);

#endif
