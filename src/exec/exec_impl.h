/* exec_impl.h - private to the executor: what its files ask of each other. */
#ifndef TR_EXEC_IMPL_H
#define TR_EXEC_IMPL_H

#include "exec/exec.h"

struct tr_exec {
    const struct tr_compiled *c;
    struct tr_device *dev;
    struct tr_pool *pool;
    tr_kernel kernel[TR_OP_COUNT];
    char *base[TR_A_COUNT];
    struct tr_mesh *mesh, *own_mesh; /* own: of a caller that gave none, since this rank is alone */
    struct tr_trace *trace;          /* NULL: this step is not profiled */
    bool *is_touched;                /* by parameter: its gradient holds something of this step */
    bool *is_summed;                 /* by bucket: its shard of gradients holds something of this step */
    struct tr_pending *pending;      /* by bucket: a collective on its way */
    tr_ticket *message;              /* by message of a schedule: its send or receive */
    double *norms;                   /* sums of squares of gradients (tr_compiled.norm_first) */
    double *losses;                  /* by micro-batch, of all ranks with other tokens */
    bool joins_updates;              /* cuda: one launch for several parameters */
    bool may_record;                 /* cuda: halves of a step become graphs (graph.c) */
    struct tr_recording *recording;
    int64_t *n_documents; /* by micro-batch, where the device does not see host memory: how attention is cut */
    int reducing;         /* bucket whose gradients are on their way to their shards; -1: none */
    int64_t cache_row;    /* position of the first token of the batch at hand, when there is a cache */
    uint64_t seed;
    struct tr_amax_history amax;
    void *checked;      /* memory for reductions that are checked; NULL: they are not */
    tr_exec_look *look; /* NULL: no caller watches */
    void *look_ctx;
};

/* Is the segment that makes the loss on this rank? Else another stage has it. */
static inline bool tr_exec_has_loss(const struct tr_exec *e)
{
    return tr_segment_is_here(e->c, e->c->model->n_segments - 1);
}

struct tr_pending {
    struct tr_comm *comm; /* NULL: nothing on its way */
    tr_ticket ticket;
    char *shard, *sum; /* a shard of gradients that is coming; where it is added to, unless it is the first */
};

/* action.c: an action that is neither clip nor update, of any schedule. */
enum tr_status tr_exec_action(struct tr_exec *e, const struct tr_model *m, const struct tr_schedule *s,
                              const struct tr_action *a, const struct tr_batch *micro);
/* Copies batches to a device that does not see host memory. They must stay as they are until the step is done. */
void tr_exec_send_batches(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *micro, int n);

/* update.c. Norm: squares of all gradients, each rank its own elements, each parameter once. Clip: their sum over
 * ranks, without the loss scale, and the clip factor into the step buffer. Update bucket: the optimizer, on the
 * parameters that live there. */
void tr_exec_norm(struct tr_exec *e);
enum tr_status tr_exec_clip(struct tr_exec *e, double max_norm, double loss_scale, double *norm);
void tr_exec_update_bucket(struct tr_exec *e, enum tr_optim_kind kind, int bucket);

/* reduce.c: gathers, reductions and collectives inside programs. */
enum tr_status tr_exec_post_gather(struct tr_exec *e, const struct tr_action *a);
enum tr_status tr_exec_post_reduce(struct tr_exec *e, const struct tr_action *a);
enum tr_status tr_exec_post_reduce_tp(struct tr_exec *e, const struct tr_action *a);
/* An op that talks to peers. */
enum tr_status tr_exec_collective(struct tr_exec *e, const struct tr_call *c);
/* Runs an op's kernel. */
void tr_exec_kernel(struct tr_exec *e, const struct tr_call *c);
/* Waits for what is on its way for this bucket. */
enum tr_status tr_exec_settle(struct tr_exec *e, int bucket);
/* Sums n numbers over the ranks of one of the mesh's communicators. */
enum tr_status tr_exec_sum(struct tr_comm *comm, const char *site, double *x, size_t n);

/* graph.c: halves of a step that the device replays. record: true: what follows is noted down, until recorded has
 * run it as one; false from there: nothing has run, and it must be done as it is. */
enum tr_half { TR_HALF_GRADIENTS, TR_HALF_UPDATE };
enum tr_status tr_exec_recordings_open(struct tr_exec *e);
void tr_exec_recordings_close(struct tr_exec *e);
bool tr_exec_replay(struct tr_exec *e, enum tr_half half);
bool tr_exec_record(struct tr_exec *e, enum tr_half half);
bool tr_exec_recorded(struct tr_exec *e, enum tr_half half);

/* tree.c: sums whose order no layout changes. */
void tr_exec_tree_add(struct tr_exec *e, const struct tr_action *a);
void tr_exec_add_second_use(struct tr_exec *e, int shared, char *at); /* to this rank's part of the shared gradients */
enum tr_status tr_exec_reduce_in_order(struct tr_exec *e, const struct tr_action *a);
enum tr_status tr_exec_read_losses(struct tr_exec *e, double *sum);

/* context.c: what context-parallel ranks hold, and say to each other. */
struct tr_batch tr_exec_local(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *whole);
struct tr_view tr_view_part(const struct tr_view *v, int64_t row, int64_t rows, int64_t col, int64_t cols);
void tr_exec_move(struct tr_exec *e, struct tr_view from, struct tr_view to, bool adds); /* to = from, or to += from */
enum tr_status tr_exec_ring(struct tr_exec *e, const struct tr_call *c);                 /* ring.c */
enum tr_status tr_exec_exchange(struct tr_exec *e, const struct tr_call *c);             /* all_to_all */

/* poison.c: the fault that tests plant, after an action of the gradients. */
void tr_exec_poison(struct tr_exec *e, const struct tr_action *a);

/* announce.c: before an action. Place: where a segment is in the model (base/phase.h). */
enum tr_status tr_exec_pass(const struct tr_exec *e, const struct tr_action *a);
int tr_exec_place(const struct tr_model *m, int segment);

/* pipe.c: what stages say to each other. */
enum tr_status tr_exec_message(struct tr_exec *e, const struct tr_action *a); /* send, receive, wait */
enum tr_status tr_exec_tie(struct tr_exec *e, const struct tr_action *a);

/* amax.c: before a step, and after its update. */
enum tr_status tr_exec_amax_open(struct tr_exec *e);
void tr_exec_amax_close(struct tr_exec *e);
void tr_exec_amax_send(struct tr_exec *e);
enum tr_status tr_exec_amax_learn(struct tr_exec *e);

#endif
