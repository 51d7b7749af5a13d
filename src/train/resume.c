/* resume.c - which checkpoint a run goes on from, and its content in memory.
 *
 * Invariants: all ranks load the same step; no byte counts before its hash was compared, on its way into memory; and
 * nothing in the output directory has changed when a load fails. A checkpoint that turns out to be bad on any rank,
 * when it is verified or while it is loaded, sends all ranks to the next older one. Rejected: to end the run there and
 * leave the choice to the next start, which costs a restart, and a person where none is left.
 */
#include "train/train_impl.h"
#include <stdlib.h>

enum { CAUSE_WORDS = 64 };

static enum tr_status reduce(struct tr_trainer *t, enum tr_reduce_op op, int64_t *x, size_t n, const char *site)
{
    struct tr_coll c = {
        .kind = TR_ALL_REDUCE, .dtype = TR_I64, .op = op, .in = x, .out = x, .count = n, .site = site
    };
    return tr_comm_run(t->mesh->all, &c);
}

/* All ranks learn whether the load failed on any of them; the first one's cause becomes a line of notes. */
static enum tr_status share_failure(struct tr_trainer *t, bool has_failed, bool *any, struct tr_str *notes)
{
    int64_t last = has_failed ? t->mesh->world - t->mesh->rank : 0, text[CAUSE_WORDS] = { 0 };
    TR_PASS(reduce(t, TR_MAX, &last, 1, "resume: is it loaded?"));
    *any = last > 0;
    if (!*any)
        return TR_OK;
    int rank = t->mesh->world - (int)last;
    if (rank == t->mesh->rank)
        (void)snprintf((char *)text, sizeof text, "%s", tr_error_text());
    TR_PASS(reduce(t, TR_SUM, text, CAUSE_WORDS, "resume: why not?"));
    ((char *)text)[sizeof text - 1] = 0;
    tr_str_addf(notes, "rank %d cannot use checkpoint-%" PRId64 ", an older one is tried: %s\n", rank,
                t->checkpoint.step, (char *)text);
    return TR_OK;
}

/* Every rank has found one by itself, and disks differ: the oldest of them counts, or the search goes on below it. */
static enum tr_status agree(struct tr_trainer *t, bool *is_agreed, int64_t *below, struct tr_str *notes)
{
    int64_t mine = t->has_checkpoint ? t->checkpoint.step : -1, x[2] = { mine, -mine };
    TR_PASS(reduce(t, TR_MAX, x, 2, "resume: which checkpoint?"));
    int64_t newest = x[0], oldest = -x[1];
    *is_agreed = newest == oldest;
    if (*is_agreed)
        return TR_OK;
    if (oldest < 0)
        return tr_fail(TR_IO,
                       "ranks differ in the checkpoints they find in %s: one finds none, another checkpoint-%" PRId64
                       "; is the directory shared by all hosts?",
                       t->cfg->output, newest);
    tr_str_addf(notes, "not all ranks can use checkpoint-%" PRId64 "; checkpoint-%" PRId64 " is tried\n", newest,
                oldest);
    *below = oldest + 1;
    return TR_OK;
}

/* A load has failed. The checkpoint is to blame when it does not verify any more: a fault of the disk, not bad input.
 * One that does is kept for the next start, because what failed is something else. */
static enum tr_status blame(const struct tr_trainer *t, enum tr_status st, bool *is_bad)
{
    char why[512];
    (void)tr_format(why, sizeof why, "%s", tr_error_text()); /* a long message is truncated */
    *is_bad = (st == TR_USAGE || st == TR_IO) && tr_ckpt_verify(t->checkpoint.path, NULL, NULL) == TR_IO;
    return tr_fail(*is_bad ? TR_IO : st, "%s%s", *is_bad ? "changed after it was verified: " : "", why);
}

static enum tr_status load(struct tr_trainer *t, const struct tr_sums *sums, bool *is_bad, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_store store = tr_exec_store(t->e);
    float *buf = (float *)(void *)tr_exec_arena(t->e, TR_A_SAVE);
    store.sums = sums;
    t->loaded = (struct tr_load_result){ 0 };
    TR_TRY(tr_failpoint("resume.verified"));
    TR_TRY(tr_ckpt_lease(t->checkpoint.path, &t->lease));
    TR_TRY(tr_state_load(t->checkpoint.path, sums, &t->state, &t->inputs, notes));
    TR_TRY(tr_dirs_restore(&t->s->from, &store, t->checkpoint.path, buf));
    TR_TRY(tr_load_optim(&store, t->checkpoint.path, buf, &t->loaded));
out:
    return st == TR_OK ? TR_OK : blame(t, st, is_bad);
}

enum tr_status tr_trainer_load_step(struct tr_trainer *t, int64_t step)
{
    enum tr_status st = TR_OK;
    struct tr_store store = tr_exec_store(t->e);
    struct tr_sums *sums = NULL;
    struct tr_ckpt_info info;
    char path[TR_PATH_MAX];
    float *buf = (float *)(void *)tr_exec_arena(t->e, TR_A_SAVE);
    TR_TRY(tr_ckpt_step_path(t->cfg->output, step, path));
    TR_TRY(tr_ckpt_verify_sums(path, NULL, &info, &sums));
    store.sums = sums;
    TR_TRY(tr_dirs_restore(&t->s->from, &store, path, buf));
    if (!t->cfg->save_only_model)
        TR_TRY(tr_load_optim(&store, path, buf, NULL));
out:
    tr_sums_close(sums);
    return st;
}

static enum tr_status load_base(struct tr_trainer *t)
{
    struct tr_store store = tr_exec_store(t->e);
    return tr_dirs_restore_base(&t->s->from, &store, (float *)(void *)tr_exec_arena(t->e, TR_A_SAVE));
}

static enum tr_status resume_newest(struct tr_trainer *t, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    const struct tr_run_state fresh = t->state;
    struct tr_sums *sums = NULL;
    int64_t below = t->use == TR_TRAINER_REPLAYS ? t->below : INT64_MAX;
    bool has_base = false;
    for (;;) {
        bool is_agreed = false, is_bad = false;
        TR_TRY(tr_ckpt_scan_below(t->cfg->output, NULL, below, &t->has_checkpoint, &t->checkpoint, notes, &sums));
        TR_TRY(agree(t, &is_agreed, &below, notes));
        if (is_agreed && !t->has_checkpoint)
            break;
        if (is_agreed) {
            if (!has_base)
                TR_TRY(load_base(t));
            has_base = true;
            st = load(t, sums, &is_bad, notes);
            if (!is_bad)
                TR_TRY(st);
            TR_TRY(share_failure(t, is_bad, &is_bad, notes));
            if (!is_bad)
                break;
            below = t->checkpoint.step;
            t->state = fresh;
            if (t->state.amax)
                t->state.amax->n_steps = 0;
            tr_ckpt_release(&t->lease);
        }
        tr_sums_close(sums);
        sums = NULL;
    }
out:
    tr_sums_close(sums);
    return st;
}

static enum tr_status resume_named(struct tr_trainer *t, const char *dir, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_sums *sums = NULL;
    bool is_bad = false;
    TR_TRY(tr_ckpt_verify_sums(dir, NULL, &t->checkpoint, &sums));
    t->has_checkpoint = true;
    TR_TRY(load_base(t));
    TR_TRY(load(t, sums, &is_bad, notes));
out:
    tr_sums_close(sums);
    return st;
}

/* Has the run a checkpoint from which the step can be replayed? */
static enum tr_status has_below(const struct tr_trainer *t, bool *out)
{
    int64_t *steps = NULL;
    size_t n = 0;
    *out = false;
    TR_PASS(tr_ckpt_steps(t->cfg->output, &steps, &n));
    for (size_t i = 0; i < n; i++)
        *out |= steps[i] < t->below;
    free(steps);
    return TR_OK;
}

enum tr_status tr_trainer_resume(struct tr_trainer *t, struct tr_str *notes)
{
    const char *resume = t->cfg->resume_from_checkpoint;
    bool is_there = false;
    bool is_auto = strcmp(resume, "auto") == 0, is_named = !is_auto && strcmp(resume, "none") != 0;
    if (t->use == TR_TRAINER_REPLAYS)
        TR_PASS(has_below(t, &is_there));
    if (t->use == TR_TRAINER_REPLAYS ? is_there : is_auto)
        TR_PASS(resume_newest(t, notes));
    if (is_named && !t->has_checkpoint) /* a replay: the checkpoint of another run that this one began with */
        TR_PASS(resume_named(t, resume, notes));
    if (t->use == TR_TRAINER_REPLAYS && t->has_checkpoint && t->state.step >= t->below)
        return tr_fail(TR_USAGE, "step %" PRId64 " was made before %s, with which the run began; replay it there",
                       t->below, t->checkpoint.path);
    if (t->has_checkpoint) {
        t->first_step = t->steps_done = t->state.step;
        t->tokens_done = t->state.tokens;
    }
    return TR_OK;
}
