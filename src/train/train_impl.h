/* train_impl.h - private to the training loop: a run, how it is opened (train_open.c) and what it tells (train_tell.c).
 */
#ifndef TR_TRAIN_TRAIN_IMPL_H
#define TR_TRAIN_TRAIN_IMPL_H

#include "train/debug.h"
#include "train/numbers.h"
#include "train/saving.h"
#include "train/train.h"

struct tr_trainer {
    const struct tr_config *cfg;
    struct tr_setup *s;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_mesh *mesh;
    struct tr_exec *e;
    struct tr_debug *debug; /* NULL: nobody asked */
    struct tr_trace *trace; /* the same */
    struct tr_numbers *numbers;
    struct tr_tokenizer *tok;
    struct tr_data *data, *eval_data;
    struct tr_ckpt_lock *lock;
    struct tr_saving *saving;
    struct tr_loader *loader;
    struct tr_observe *ob;
    enum tr_gemm_choice gemm; /* that runs, where `auto` was asked for */
    bool has_color;           /* the terminal */
    struct tr_run_state state;
    struct tr_run_inputs inputs;
    struct tr_ckpt_lease lease;     /* of the checkpoint that is loaded */
    struct tr_ckpt_info checkpoint; /* to resume from */
    bool has_checkpoint;
    int64_t total_steps, first_step;
    int64_t arithmetic; /* of this process, as a number */
    uint64_t total_samples;
    double flops_per_token, peak_flops, wait_s, step_s;
    int64_t tokens_done, steps_done;
    double stage_wait_s, comm_wait_s,
        warm_s; /* for other stages, for any rank, and all of it; after the cold first step */
    struct tr_event_end end;
    char events_path[TR_PATH_MAX];
    int64_t lap_us;  /* when the current stage of the start began, */
    char start[256]; /* and what those before took, as JSON */
};

static inline bool tr_trainer_is_first(const struct tr_trainer *t)
{
    return tr_mesh_is_first(t->mesh);
}

/* Everything up to the first step: data, mesh, memory, weights or a checkpoint. Close what failed to open, too. */
enum tr_status tr_trainer_open(struct tr_trainer *t);
void tr_trainer_close(struct tr_trainer *t);
/* All ranks pass together. */
enum tr_status tr_trainer_meet(struct tr_trainer *t, const char *site);

/* What each rank plans and has reserved, and the layout with its price; rank 0 tells all of it. */
enum tr_status tr_trainer_tell_plan(struct tr_trainer *t);
enum tr_status tr_trainer_tell_layout(struct tr_trainer *t);
/* A phase of the start ends here, the next begins. The event that holds them all is written after the first step. */
void tr_trainer_lap(struct tr_trainer *t, const char *phase);
void tr_trainer_tell_start(struct tr_trainer *t);
/* A step whose numbers nobody believed (faults D1, D2). */
void tr_trainer_tell_odd(struct tr_trainer *t, int64_t step, const struct tr_step_batch *b, const struct tr_verdict *v);
/* A step without an update: its gradients were beyond float16, and the loss scale is smaller now. */
void tr_trainer_tell_overflow(struct tr_trainer *t, int64_t step);
/* The table of rank 0, when the last profiled step is done; every rank has written its timeline by then. */
enum tr_status tr_trainer_tell_profile(struct tr_trainer *t, int64_t step, double step_s, double exposed_s);

#endif
