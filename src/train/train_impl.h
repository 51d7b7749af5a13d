/* train_impl.h - private to the training loop: a run, how it is opened (train_open.c) and what it reports
 * (train_report.c). */
#ifndef TR_TRAIN_TRAIN_IMPL_H
#define TR_TRAIN_TRAIN_IMPL_H

#include "train/choices.h"
#include "train/debug.h"
#include "train/numbers.h"
#include "train/room.h"
#include "train/sample.h"
#include "train/saving.h"
#include "train/train.h"

/* A replay makes steps of a run again: it changes nothing in the output directory. */
enum tr_trainer_use { TR_TRAINER_RUNS, TR_TRAINER_REPLAYS };

struct tr_trainer {
    const struct tr_config *cfg;
    enum tr_trainer_use use;
    int64_t below, stop; /* a replay begins with a checkpoint of a step below this one, and ends after that one */
    struct tr_setup *s;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_mesh *mesh;
    struct tr_str join_notes; /* what was odd when the ranks met */
    struct tr_exec *e;
    struct tr_debug *debug; /* NULL: the options do not need it */
    struct tr_trace *trace; /* NULL: no profile */
    struct tr_numbers *numbers;
    struct tr_tokenizer *tok;
    struct tr_data *data;
    struct {
        const char *name; /* NULL: the only one has none */
        struct tr_data *data;
    } eval[TR_EVAL_SETS_MAX]; /* the sets that are evaluated, n_evals of them */
    size_t n_evals;
    struct tr_best_rule best; /* what chooses the best step */
    struct tr_ckpt_lock *lock;
    int reserve; /* the model's room on the disk; -1: none */
    struct tr_saving *saving;
    bool save_hangs;            /* after close: a thread in the disk may still use this and what the stages have left */
    struct tr_choices *choices; /* NULL: the run has no eval_choices */
    struct tr_sampler *sampler; /* NULL: the run has no sample_prompts */
    struct tr_control *control; /* NULL: no requests are taken, or another rank takes them */
    struct tr_config now;       /* the options with the values that hold in this step */
    struct tr_loader *loader;
    struct tr_observe *ob;
    enum tr_gemm_choice gemm; /* the choice that runs, where the option is `auto` */
    bool has_color;           /* the terminal */
    struct tr_run_state state;
    struct tr_run_inputs inputs;
    struct tr_base_id base;         /* of an adapter run */
    struct tr_ckpt_lease lease;     /* lease of the checkpoint that is loaded */
    struct tr_ckpt_info checkpoint; /* to resume from */
    bool has_checkpoint;
    struct tr_load_result loaded; /* what of it was new, or dropped */
    int64_t total_steps, first_step;
    int64_t arithmetic; /* hash of the self-test */
    uint64_t total_samples;
    double flops_per_token, peak_flops, wait_s, step_s;
    int64_t tokens_done, steps_done;
    bool is_paused;         /* by a request */
    int64_t evaluated_step; /* the last step that was evaluated */
    int64_t n_still;        /* steps in a row whose gradient norm was exactly 0 */
    double stage_wait_s, comm_wait_s,
        warm_s; /* waits for other stages; waits for any rank; total time. Without the cold first step. */
    struct tr_event_end end;
    char events_path[TR_PATH_MAX];
    int64_t lap_us;  /* when the current stage of the start began */
    char start[512]; /* how long the earlier stages took, as JSON */
};

static inline bool tr_trainer_is_first(const struct tr_trainer *t)
{
    return tr_mesh_is_first(t->mesh);
}

/* Does everything up to the first step: data, mesh, memory, weights or a checkpoint. Close the trainer also when open
 * fails. */
enum tr_status tr_trainer_open(struct tr_trainer *t);
void tr_trainer_close(struct tr_trainer *t);
/* resume.c: chooses the checkpoint to go on from, the same on all ranks, and loads it. notes: what was passed over. */
enum tr_status tr_trainer_resume(struct tr_trainer *t, struct tr_str *notes);
/* steer.c: rank 0 opens its mailbox. */
enum tr_status tr_trainer_control_open(struct tr_trainer *t);
/* The values that were set in earlier starts of the run. */
enum tr_status tr_trainer_ledger_open(struct tr_trainer *t);
/* The values of this step. */
const struct tr_config *tr_trainer_options(struct tr_trainer *t, int64_t step);
/* Called by all ranks after each step: has any rank received a stop signal, is there time to save before its deadline,
 * and what does a request want? All ranks get the same answer. */
struct tr_steer {
    bool is_stop, has_time;
    enum tr_control_action action;
};
enum tr_status tr_trainer_steer(struct tr_trainer *t, int64_t done, bool can_save, struct tr_steer *out);
/* A barrier of all ranks. */
enum tr_status tr_trainer_meet(struct tr_trainer *t, const char *site);

/* Does an evaluation do anything in this run? */
static inline bool tr_trainer_evaluates(const struct tr_trainer *t)
{
    return t->n_evals || t->choices || t->sampler;
}

/* train.c: the next batch, and the values of its step. Waits for the loader at most ten minutes. */
enum tr_status tr_trainer_batch(struct tr_trainer *t, int64_t step, struct tr_step_batch **out, double *wait_s);
enum tr_status tr_trainer_values(struct tr_trainer *t, const struct tr_step_batch *b, float values[TR_STEP_COUNT],
                                 double *kl);

/* due.c: is an evaluation, is a checkpoint due after this step? Records an evaluation; is the run to end early? */
bool tr_due_eval(const struct tr_trainer *t, int64_t step);
bool tr_due_save(const struct tr_trainer *t, int64_t step);
void tr_due_evaluated(struct tr_trainer *t, int64_t step, double loss);
bool tr_due_end(const struct tr_trainer *t);
/* resume.c: the weights of checkpoint-<step>, to be written as the model. */
enum tr_status tr_trainer_load_step(struct tr_trainer *t, int64_t step);

/* Reports what each rank plans and has reserved, and the layout with its price. Rank 0 reports for all. */
enum tr_status tr_trainer_report_plan(struct tr_trainer *t);
enum tr_status tr_trainer_report_layout(struct tr_trainer *t);
enum tr_status tr_trainer_report_config(struct tr_trainer *t);
enum tr_status tr_trainer_report_passed(struct tr_trainer *t);
/* Ends a stage of the start and begins the next. The event with all of them is written after the first step. */
void tr_trainer_lap(struct tr_trainer *t, const char *phase);
void tr_trainer_report_start(struct tr_trainer *t);
/* Reports a step whose result is not plausible (faults D1, D2). */
void tr_trainer_report_odd(struct tr_trainer *t, int64_t step, const struct tr_step_batch *b,
                           const struct tr_verdict *v);
/* Reports a step without an update: its gradients overflowed float16, and the loss scale is smaller now. */
void tr_trainer_report_overflow(struct tr_trainer *t, int64_t step);
void tr_trainer_report_losses(struct tr_trainer *t);              /* what a stream of data has lost meanwhile */
void tr_trainer_report_still(struct tr_trainer *t, int64_t step); /* the gradient norm stays 0 */
/* Reports the table of rank 0 when the last profiled step is done. By then every rank has written its timeline. */
enum tr_status tr_trainer_report_profile(struct tr_trainer *t, int64_t step, double step_s, double exposed_s);

#endif
