/* track.h - part of the room header: trackers, which show a run in other tools (TensorBoard, W&B, trackio, Prometheus).
 *
 * A thread reads events.jsonl as it grows and hands each event to the sinks that the user has chosen. So nothing of a
 * tracker is in the path of a step, no buffer can fill up, and every tracker shows what the log holds. A sink that
 * fails (disk full, directory gone) is closed with one warning; training goes on.
 */
#ifndef TR_OBSERVE_TRACK_H
#define TR_OBSERVE_TRACK_H

#include "base/base.h"

struct tr_track_options {
    const char *const *sinks; /* --report_to: names of the table, "all", "none" */
    size_t n_sinks;
    const char *metrics_file; /* --metrics_file; NULL: none */
    const char *run_name;     /* NULL: the last part of output */
    const char *output;
    const char *config; /* JSON object: hyperparameters; NULL: none */
    int64_t first_step; /* the log holds no later step */
};

/* Refuses, before anything is written, names that no sink has and sinks that cannot work on this host. */
enum tr_status tr_track_check(const struct tr_track_options *opt);

#endif
