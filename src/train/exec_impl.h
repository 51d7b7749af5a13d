/* exec_impl.h - private to the executor: the part that talks to peers (exec_comm.c). */
#ifndef TR_TRAIN_EXEC_IMPL_H
#define TR_TRAIN_EXEC_IMPL_H

#include "train/exec.h"

struct tr_pending {
    struct tr_comm *comm; /* NULL: nothing on its way */
    tr_ticket ticket;
};

enum tr_status tr_exec_post_gather(struct tr_exec *e, const struct tr_action *a);
enum tr_status tr_exec_post_reduce(struct tr_exec *e, const struct tr_action *a);
/* An op that talks to peers. */
enum tr_status tr_exec_collective(struct tr_exec *e, const struct tr_call *c);
/* Waits for what is on its way for this home. */
enum tr_status tr_exec_settle(struct tr_exec *e, int home);
/* Sum of one number over the ranks with other tokens, or (is_shard) over those with other shards. */
enum tr_status tr_exec_sum(struct tr_exec *e, bool is_shard, const char *site, double *x);

#endif
