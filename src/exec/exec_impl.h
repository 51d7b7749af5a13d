/* exec_impl.h - private to the executor: what its files use of each other. */
#ifndef TR_EXEC_IMPL_H
#define TR_EXEC_IMPL_H

#include "exec/exec.h"

struct tr_exec {
    const struct tr_compiled *c;
    struct tr_device *dev;
    struct tr_pool *pool;
    const struct tr_column *column; /* the device's kernels */
    tr_kernel kernel[TR_OP_COUNT];
    char *base[TR_A_COUNT];
    struct tr_mesh *mesh, *own_mesh; /* own_mesh: the mesh of a rank that runs alone, where the caller passed none */
    struct tr_trace *trace;          /* NULL: this step is not profiled */
    struct tr_posted *posted;        /* collectives under way, by action of the current schedule */
    int n_posted;                    /* how many collectives and copies are under way */
    void **copied, *computed;        /* events: of copies, by action of any schedule; of the compute stream */
    int n_copied;
    struct tr_spill *disk; /* NULL: nothing lives in a file */
    char *buffers;         /* between it and the device */
    uint64_t n_disk_jobs[2];
    int disk_user[2][TR_DISK_JOBS]; /* by direction and buffer: the action that used it last, and 1; 0: none */
    bool defers;                    /* updates wait for the next step: tr_defers_updates */
    bool is_pending;                /* updates of the last step are still to be done */
    enum tr_status failed;          /* of an update, which is not run again; TR_OK: none has */
    char cause[400];                /* its message */
    float *step_host;   /* rows of the step buffer, and behind them those of the step before (tr_exec_keep_step) */
    bool is_running;    /* actions are running; if not, a caller reads the state between steps */
    double *norms;      /* sums of squares of gradients (tr_placement.norm_first) */
    double norm_scale;  /* square of the loss scale of the gradients behind `norms` */
    bool has_one_norm;  /* slot 0 holds one sum over the whole gradient arena, which needs fewer launches */
    double *losses;     /* by micro-batch, of all ranks that read different rows; then the other parts likewise */
    bool joins_updates; /* one launch updates several parameters */
    bool may_record;    /* parts of a step may become recordings of the device (graph.c) */
    struct tr_recording *recording;
    /* by micro-batch, where the device does not see host memory: attention kernels depend on it */
    int64_t *n_documents;
    int64_t sequence; /* of the cache: that of the first row of the current batch */
    uint64_t seed;
    struct tr_amax_history amax;
    void *checked;      /* memory for checked reductions; NULL: reductions are not checked */
    bool poisons;       /* a test wants rows that no op should read to be NaN */
    tr_exec_look *look; /* NULL: no caller watches */
    void *look_ctx;
};

/* Does this rank hold the segment that computes the loss? If not, another stage does. */
static inline bool tr_exec_has_loss(const struct tr_exec *e)
{
    return tr_segment_is_here(&e->c->place, e->c->place.model->n_segments - 1);
}

/* A call of an op, on this executor's device and threads. The scratch is that of the update; a node has its own. */
static inline struct tr_call tr_exec_call(const struct tr_exec *e, enum tr_opcode op)
{
    char *scratch = e->base[TR_A_WORK] + e->c->memory.scratch;
    return (struct tr_call){ .op = op, .pool = e->pool, .scratch = scratch, .dev = e->dev };
}

struct tr_posted {
    struct tr_comm *comm; /* NULL: no collective is under way */
    tr_ticket ticket;
    bool is_copy; /* a copy is under way; its event is in `copied` */
    /* spill.c: a read whose copy is still to be issued, or a copy whose write is */
    enum { TR_DISK_IDLE, TR_DISK_READS, TR_DISK_WRITES } disk;
    int job;
    size_t at, bytes;
    char *memory;
};

/* One run over the actions of a schedule, or over a part of them. */
struct tr_run {
    struct tr_exec *e;
    const struct tr_schedule *s;
    const struct tr_batch *micro;
    const struct tr_config *cfg; /* measure and update */
    double loss_scale;
    struct tr_step_result *out;
};

/* tr_run_FORWARD ...: runs one action of its kind. The loop has already done the waits of the action. */
#define X(id, name, phase, failpoint, stream) enum tr_status tr_run_##id(struct tr_run *r, const struct tr_action *a);
TR_ACTION_LIST(X)
#undef X

/* Posts a collective as this action. It runs at once where the schedule puts the action on the compute stream or where
 * sums are checked. */
enum tr_status tr_exec_post(struct tr_run *r, const struct tr_action *a, struct tr_comm *comm, const struct tr_coll *c);
enum tr_status tr_exec_run(struct tr_exec *e, struct tr_comm *comm, const struct tr_coll *c);

/* action.c */
/* Copies batches to a device that does not see host memory. The caller must not change them until the step is done. */
void tr_exec_send_batches(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *micro, int n);

/* update.c. Norm: sums the squares of all gradients; each rank sums its own elements, and each parameter is counted
 * once. Clip: sums the norm over ranks, removes the loss scale, and writes the clip factor to the step buffer. Update
 * bucket: runs the optimizer on the parameters of the bucket. */
void tr_exec_norm(struct tr_exec *e);
/* Sums the squares of one bucket, whose gradients (at `whole`) are about to be copied to the host. */
void tr_exec_norm_of(struct tr_exec *e, int bucket, const char *whole);
enum tr_status tr_exec_clip(struct tr_exec *e, double max_norm, double loss_scale, double *norm);
enum tr_status tr_exec_update_bucket(struct tr_exec *e, const struct tr_action *a);
struct tr_view tr_exec_step_view(struct tr_exec *e, int param); /* the step values of the parameter's group */
void tr_exec_keep_step(struct tr_exec *e); /* keeps the step values for updates that wait for the next step */
void tr_exec_send_step(struct tr_exec *e, const float values[TR_STEP_COUNT]); /* a row for each group */

/* offload.c: the events of copies. tr_exec_fetched returns where a state lies while this update runs; `at` is its
 * address between steps. */
enum tr_status tr_exec_copies_open(struct tr_exec *e);
void tr_exec_copies_close(struct tr_exec *e);
char *tr_exec_fetched(const struct tr_exec *e, const struct tr_action *a, int row, int param, char *at);

/* spill.c: what lives in a file. Post: a fetch or a store between the file, from `at` on, and memory of the device.
 * Finish: issues what is left of it, before something waits for its event. Drain: all writes are over. */
enum tr_status tr_exec_spill_open(struct tr_exec *e);
enum tr_status tr_exec_spill_post(struct tr_run *r, const struct tr_action *a, bool is_write, size_t at, char *memory);
enum tr_status tr_exec_spill_finish(struct tr_exec *e, int action);
enum tr_status tr_exec_spill_drain(struct tr_exec *e);

/* whole.c: this rank's elements of the direction of a parameter's update, and a phase on whole matrices. */
struct tr_view tr_exec_direction(const struct tr_exec *e, int param);
enum tr_status tr_exec_whole(struct tr_exec *e, const struct tr_update_phase *phase, int bucket);

/* sums.c: a phase that writes or reads sums of the parameters of a bucket. */
enum tr_status tr_exec_sums(struct tr_exec *e, const struct tr_update_phase *phase, const struct tr_action *a);
/* update.c: the call for one phase of the update of one parameter, with the slots of struct tr_update_phase. */
struct tr_call tr_exec_update_call(struct tr_exec *e, const struct tr_action *a, enum tr_opcode op, int param);

/* reduce.c: sums over ranks, and collectives inside programs. */
/* Address of this rank's shard of a bucket's gradients. */
char *tr_exec_shard(const struct tr_exec *e, int bucket);
/* Runs an op that communicates with peers. */
enum tr_status tr_exec_collective(struct tr_exec *e, const struct tr_call *c);
/* Runs an op's kernel. */
void tr_exec_kernel(struct tr_exec *e, const struct tr_call *c);
/* Sums n numbers over the ranks of one of the mesh's communicators. */
enum tr_status tr_exec_sum(struct tr_comm *comm, const char *site, double *x, size_t n);

/* graph.c: parts of a step that the device replays (gradients, update). tr_exec_record: true means that the calls that
 * follow are recorded and do not run. tr_exec_recorded ends the recording and runs it; false means that the device
 * refused it, nothing has run, and the caller must run the part again. */
enum tr_status tr_exec_recordings_open(struct tr_exec *e);
void tr_exec_recordings_close(struct tr_exec *e);
bool tr_exec_replay(struct tr_exec *e, enum tr_step_part part);
bool tr_exec_record(struct tr_exec *e, enum tr_step_part part);
bool tr_exec_recorded(struct tr_exec *e, enum tr_step_part part);

/* tree.c: sums whose order is the same for every layout. */
/* adds to this rank's shard of the shared gradients */
void tr_exec_add_second_use(struct tr_exec *e, int shared, char *at);
enum tr_status tr_exec_reduce_in_order(struct tr_exec *e, const struct tr_action *a);
enum tr_status tr_exec_read_losses(struct tr_exec *e, double sum[TR_METRICS]);

/* context.c: what context-parallel ranks hold, and what they exchange. */
struct tr_batch tr_exec_local(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *whole);
struct tr_view tr_view_part(const struct tr_view *v, int64_t row, int64_t rows, int64_t col, int64_t cols);
void tr_exec_move(struct tr_exec *e, struct tr_view from, struct tr_view to, bool adds); /* to = from, or to += from */
enum tr_status tr_exec_ring(struct tr_exec *e, const struct tr_call *c);                 /* ring.c */
enum tr_status tr_exec_exchange(struct tr_exec *e, const struct tr_call *c);             /* all_to_all */

/* watch.c: writes the fault that a test plants, after an action of the gradients part. */
void tr_exec_poison(struct tr_exec *e, const struct tr_action *a);

/* announce.c: shows the watchdog the next action, and passes the failpoint of the action. */
enum tr_status tr_exec_announce(const struct tr_run *r, const struct tr_action *a);

/* amax.c */
enum tr_status tr_exec_amax_open(struct tr_exec *e);
void tr_exec_amax_close(struct tr_exec *e);

#endif
