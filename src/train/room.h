/* room.h - does a run fit this host? Asked before step 0, and answered with the numbers and with what to change. */
#ifndef TR_TRAIN_ROOM_H
#define TR_TRAIN_ROOM_H

#include "build/build.h"

/* Memory of this process alone: what is compiled against the host, its cgroups and the limits of the process. TR_USAGE
 * has what is needed, what there is, and what sets that limit; with a setup that trains also options that fit. s NULL:
 * no setup, `advice` says what to change. */
enum tr_status tr_room_check(const struct tr_compiled *c, const struct tr_setup *s, const char *advice);
/* The same of all ranks of every host together. Collective: all ranks get the same answer. */
enum tr_status tr_room_check_hosts(struct tr_mesh *mesh, const struct tr_setup *s);

/* The device or the host has refused the memory that the plan asks for: TR_USAGE with the cause, which is the error
 * text, and with options that need at most three quarters of it. */
enum tr_status tr_room_refused(const struct tr_setup *s);

/* ---- disk (disk.c) ---- */

struct tr_disk_need {
    uint64_t model_bytes, checkpoint_bytes; /* with the small files beside the weights */
    uint64_t file_bytes;                    /* of the largest file */
};
void tr_disk_need(const struct tr_setup *s, struct tr_disk_need *out);
/* Checkpoints that are on the disk at once, at most, of those made after step `from`; n_there: older ones. */
int64_t tr_disk_saves(const struct tr_config *cfg, int64_t from, int64_t total, int64_t n_there);
/* All of them and the model against the room where the output directory is, and ulimit -f. total_steps 0: not known
 * yet, one checkpoint must fit. */
enum tr_status tr_disk_check(const struct tr_setup *s, int64_t total_steps);
/* Takes the room of the model until it is released, or until the process ends. *fd -1: the file system cannot. */
enum tr_status tr_disk_reserve(const struct tr_setup *s, int *fd);
void tr_disk_release(int *fd);

#endif
