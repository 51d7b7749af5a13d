/* save_async.c - a save in flight: its current part, the thread that writes, and the messages between ranks.
 *
 * Threads never talk to other ranks: collectives belong to the thread of the training. So a save moves from part to
 * part in poll, which all ranks call between steps while a save is in flight; they hold the same phase at all times.
 * Rejected: a collective of the writer threads (engines run one caller), and marker files on the disk (a full disk
 * could not tell that it is full).
 */
#include "ckpt/save_impl.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- the thread ---- */

static bool is_first(const struct tr_saver *sv)
{
    return sv->rank == 0;
}

static bool has_text(const struct tr_saver *sv, const char *name)
{
    size_t i = 0;
    while (i < sv->n_texts && strcmp(sv->text[i].name, name) != 0)
        i++;
    return i < sv->n_texts;
}

static enum tr_status put_texts(struct tr_saver *sv, struct tr_commit *c)
{
    enum tr_status st = TR_OK;
    char from[TR_PATH_MAX];
    struct tr_str hf = { 0 };
    for (size_t i = 0; i < sv->n_texts; i++)
        TR_TRY(tr_commit_put(c, sv->text[i].name, sv->text[i].text, strlen(sv->text[i].text)));
    if (tr_hf_plan_index(sv->plan))
        TR_TRY(tr_commit_put(c, TR_HF_INDEX_NAME, tr_hf_plan_index(sv->plan), strlen(tr_hf_plan_index(sv->plan))));
    for (size_t i = 0; sv->has_source && tr_copied_files[i]; i++) {
        TR_TRY(tr_path_join(from, sv->source, tr_copied_files[i]));
        if (tr_file_exists(from) && !has_text(sv, tr_copied_files[i]))
            TR_TRY(tr_commit_copy(c, tr_copied_files[i], from));
    }
    if (sv->job.trainer_state) {
        TR_TRY(sv->job.trainer_state(sv->job.ctx, sv->job.step, &hf));
        TR_TRY(tr_commit_put(c, TR_NAME_TRAINER_STATE, hf.p, hf.n));
    }
    TR_TRY(tr_commit_put(c, "trireme/state.json", sv->state, strlen(sv->state)));
out:
    tr_str_release(&hf);
    return st;
}

/* Every file that a rank reported. */
static enum tr_status add_files(struct tr_saver *sv, struct tr_commit *c)
{
    size_t n_weights = tr_hf_plan_shards(sv->plan);
    char name[64];
    for (size_t i = 0; i < sv->n_files; i++) {
        const struct tr_written *f = &sv->files[i];
        struct tr_hash128 hash = { (uint64_t)f->lo, (uint64_t)f->hi };
        if (f->bytes == 0) /* a rank without optimizer state */
            continue;
        if (i >= n_weights)
            TR_PASS(tr_save_optim_name(sv, (int)(i - n_weights), name, sizeof name));
        TR_PASS(tr_commit_add(c, i < n_weights ? tr_hf_plan_name(sv->plan, i) : name, (uint64_t)f->bytes, hash));
        sv->result.bytes += (uint64_t)f->bytes;
    }
    return TR_OK;
}

/* Rank 0: everything that is not a tensor, the commit itself, then what may be done only after it. */
static enum tr_status commit(struct tr_saver *sv)
{
    const struct tr_save_job *j = &sv->job;
    struct tr_save_result *r = &sv->result;
    enum tr_status st = TR_OK;
    struct tr_commit *c = NULL;
    st = tr_commit_begin(j->output, j->run_id, j->step, j->generation, &c);
    if (st != TR_OK) /* no commit owns the parts yet: they are removed here */
        (void)tr_out_remove(j->output, sv->dir);
    TR_TRY(st);
    TR_TRY(add_files(sv, c));
    TR_TRY(put_texts(sv, c));
    TR_TRY(tr_commit_finish(c));
    tr_commit_close(c);
    c = NULL;
    TR_TRY(tr_failpoint("ckpt.before_verify"));
    st = tr_ckpt_retain(j->output, j->step, j->generation, &j->keep, &r->is_verified, NULL);
    if (r->is_verified && st != TR_OK) { /* the new checkpoint is good all the same; the removal is tried again later */
        (void)snprintf(r->stays, sizeof r->stays, "%s", tr_error_text());
        tr_error_clear();
        st = TR_OK;
    }
    r->write_s = (double)(tr_clock_us() - sv->write_us) * 1e-6;
out:
    tr_commit_close(c);
    return st;
}

static enum tr_status write_parts(struct tr_saver *sv)
{
    enum tr_status st = tr_commit_make_dir(sv->job.output, sv->job.step, sv->job.generation);
    return st == TR_OK ? tr_save_write_staged(sv) : st;
}

static enum tr_status do_task(struct tr_saver *sv, enum tr_save_task task)
{
    switch (task) {
    case TR_TASK_TOUCH: /* or the first save would wait for the pages */
        memset(sv->opt.staging, 0, sv->opt.staging_bytes);
        return TR_OK;
    case TR_TASK_WRITE:
        return write_parts(sv);
    case TR_TASK_COMMIT:
        return commit(sv);
    default:
        return tr_out_remove(sv->job.output, sv->dir);
    }
}

static void *run_thread(void *ctx)
{
    struct tr_saver *sv = ctx;
    pthread_mutex_lock(&sv->mutex);
    while (sv->task != TR_TASK_LEAVE) {
        enum tr_save_task task = sv->task;
        if (task == TR_TASK_NONE) {
            pthread_cond_wait(&sv->cond, &sv->mutex);
            continue;
        }
        pthread_mutex_unlock(&sv->mutex);
        enum tr_status st = do_task(sv, task);
        pthread_mutex_lock(&sv->mutex);
        sv->task_status = st;
        (void)snprintf(sv->task_cause, sizeof sv->task_cause, "%s", st == TR_OK ? "" : tr_error_text());
        if (sv->task != TR_TASK_LEAVE)
            sv->task = TR_TASK_NONE;
        pthread_cond_broadcast(&sv->cond);
    }
    pthread_mutex_unlock(&sv->mutex);
    return NULL;
}

static void ask(struct tr_saver *sv, enum tr_save_task task)
{
    pthread_mutex_lock(&sv->mutex);
    sv->task = task;
    pthread_cond_broadcast(&sv->cond);
    pthread_mutex_unlock(&sv->mutex);
}

static bool is_working(struct tr_saver *sv)
{
    pthread_mutex_lock(&sv->mutex);
    bool is = sv->task != TR_TASK_NONE;
    pthread_mutex_unlock(&sv->mutex);
    return is;
}

/* Until the thread has nothing to do, or so long. */
static void rest(struct tr_saver *sv, int64_t us)
{
    int64_t until_us = tr_clock_us() + us;
    pthread_mutex_lock(&sv->mutex);
    if (sv->task != TR_TASK_NONE)
        (void)tr_cond_wait_until(&sv->cond, &sv->mutex, until_us);
    pthread_mutex_unlock(&sv->mutex);
}

enum tr_status tr_save_start_thread(struct tr_saver *sv)
{
    if (sv->has_thread)
        return TR_OK;
    int err = tr_thread_start(&sv->thread, run_thread, sv);
    sv->has_thread = err == 0;
    if (err)
        return tr_fail(TR_NOMEM, "save: no thread: %s", strerror(err));
    if (sv->opt.staging)
        ask(sv, TR_TASK_TOUCH);
    return TR_OK;
}

bool tr_saver_close(struct tr_saver *sv)
{
    if (!sv)
        return true;
    bool hangs = sv->has_thread && sv->phase != TR_SAVE_NONE && is_working(sv);
    if (sv->has_thread) {
        ask(sv, TR_TASK_LEAVE);
        if (hangs) { /* in the disk: what it uses must stay */
            pthread_detach(sv->thread);
            return false;
        }
        pthread_join(sv->thread, NULL);
    }
    tr_hf_plan_close(sv->plan);
    tr_st_writer_close(sv->optim);
    tr_pump_close(sv->pump);
    tr_mesh_close(sv->own_mesh);
    pthread_mutex_destroy(&sv->mutex);
    pthread_cond_destroy(&sv->cond);
    free(sv->files);
    free(sv->state);
    for (size_t i = 0; i < sv->n_texts; i++) {
        free((char *)(uintptr_t)sv->text[i].name);
        free((char *)(uintptr_t)sv->text[i].text);
    }
    tr_save_carry_close(sv);
    free(sv->param_of);
    free(sv->start_of);
    free(sv->join);
    free(sv);
    return true;
}

/* ---- between ranks ---- */

static enum tr_status reduce(struct tr_saver *sv, enum tr_reduce_op op, int64_t *x, size_t n, const char *site)
{
    struct tr_coll c = {
        .kind = TR_ALL_REDUCE, .dtype = TR_I64, .op = op, .in = x, .out = x, .count = n, .site = site
    };
    return tr_comm_run(sv->opt.mesh->all, &c);
}

enum tr_status tr_save_agree(struct tr_saver *sv, enum tr_status st)
{
    int64_t worst = st;
    enum tr_status sent = reduce(sv, TR_MAX, &worst, 1, "save: all well?");
    if (st != TR_OK || sent != TR_OK)
        return st != TR_OK ? st : sent;
    return worst == TR_OK ? TR_OK : tr_fail(TR_PEER, "checkpoint abandoned: another rank could not write its part");
}

/* All ranks learn the first rank that failed, and its error text. */
static enum tr_status share_cause(struct tr_saver *sv, enum tr_status mine)
{
    struct tr_save_result *r = &sv->result;
    enum { WORDS = sizeof r->cause / sizeof(int64_t) };
    int64_t last = mine == TR_OK ? 0 : sv->world - sv->rank, text[WORDS] = { 0 };
    TR_PASS(reduce(sv, TR_MAX, &last, 1, "save: who failed?"));
    r->rank = sv->world - (int)last;
    if (r->rank == sv->rank)
        memcpy(text, sv->task_cause, sizeof text);
    enum tr_status st = reduce(sv, TR_SUM, text, WORDS, "save: why?");
    memcpy(r->cause, text, sizeof text);
    r->cause[sizeof r->cause - 1] = 0;
    return st;
}

/* Rank 0 learns sizes and hashes of all files; one rank has each, the others hold 0. */
static enum tr_status share_files(struct tr_saver *sv)
{
    return reduce(sv, TR_SUM, &sv->files[0].bytes, 3 * sv->n_files, "save: sizes and hashes");
}

static void end_save(struct tr_saver *sv, bool *out_done, struct tr_save_result *out)
{
    sv->phase = TR_SAVE_NONE;
    *out_done = true;
    *out = sv->result;
}

/* All parts are written, or one failed: rank 0 goes on. */
static enum tr_status after_writing(struct tr_saver *sv, enum tr_status worst, enum tr_status mine)
{
    sv->result.status = worst;
    TR_PASS(worst == TR_OK ? share_files(sv) : share_cause(sv, mine));
    if (is_first(sv))
        ask(sv, worst == TR_OK ? TR_TASK_COMMIT : TR_TASK_CLEAN);
    sv->phase = TR_SAVE_COMMITTING;
    return TR_OK;
}

static enum tr_status after_commit(struct tr_saver *sv, enum tr_status worst, enum tr_status mine)
{
    if (sv->result.status != TR_OK || worst == TR_OK) /* cleaned up, or all well */
        return TR_OK;
    sv->result.status = worst;
    return share_cause(sv, mine);
}

/* is_late: rank 0 has waited long enough; all ranks learn it. */
static enum tr_status poll(struct tr_saver *sv, bool *is_late, bool *out_done, struct tr_save_result *out)
{
    bool is_busy = is_working(sv);
    enum tr_status mine = is_busy || (sv->phase == TR_SAVE_COMMITTING && !is_first(sv)) ? TR_OK : sv->task_status;
    int64_t x[3] = { is_busy, (int64_t)mine, is_first(sv) && *is_late };
    *out_done = false;
    if (sv->phase == TR_SAVE_NONE)
        return TR_OK;
    TR_PASS(reduce(sv, TR_MAX, x, TR_COUNT_OF(x), "save: written?"));
    *is_late = x[2] != 0;
    if (x[0])
        return TR_OK;
    if (sv->phase == TR_SAVE_WRITING)
        return after_writing(sv, (enum tr_status)x[1], mine);
    TR_PASS(after_commit(sv, (enum tr_status)x[1], mine));
    end_save(sv, out_done, out);
    return TR_OK;
}

enum tr_status tr_saver_poll(struct tr_saver *sv, bool *out_done, struct tr_save_result *out)
{
    bool is_late = false;
    return poll(sv, &is_late, out_done, out);
}

enum tr_status tr_saver_wait(struct tr_saver *sv, double seconds, bool *out_done, struct tr_save_result *out)
{
    enum tr_status st = TR_OK;
    int64_t until = tr_clock_us() + (int64_t)(seconds * 1e6);
    *out_done = false;
    while (st == TR_OK && sv->phase != TR_SAVE_NONE) {
        bool is_late = tr_clock_us() > until;
        st = poll(sv, &is_late, out_done, out);
        if (st == TR_OK && sv->phase != TR_SAVE_NONE && is_late)
            return tr_fail(TR_TIMEOUT, "checkpoint of step %" PRId64 ": not written after %.0f s", sv->job.step,
                           tr_saver_age(sv));
        if (sv->phase != TR_SAVE_NONE)
            rest(sv, 2000);
    }
    return st;
}

bool tr_saver_is_busy(const struct tr_saver *sv)
{
    return sv->phase != TR_SAVE_NONE;
}

double tr_saver_age(const struct tr_saver *sv)
{
    return sv->phase == TR_SAVE_NONE ? 0 : (double)(tr_clock_us() - sv->start_us) * 1e-6;
}

/* ---- start ---- */

/* Without staging memory: the files are written here and now. */
static enum tr_status write_now(struct tr_saver *sv)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    char path[TR_PATH_MAX];
    failed = tr_commit_make_dir(sv->job.output, sv->job.step, sv->job.generation);
    for (size_t f = 0; f < tr_hf_plan_shards(sv->plan); f++) {
        st = tr_path_join(path, sv->dir, tr_hf_plan_name(sv->plan, f));
        if (st == TR_OK)
            st = tr_save_stream_file(sv, f, sv->job.output, path);
        failed = failed == TR_OK ? st : failed;
    }
    return failed == TR_OK ? tr_save_stream_optim(sv) : failed;
}

static enum tr_status fill_job(struct tr_saver *sv, const struct tr_save_job *job)
{
    sv->job = *job;
    free(sv->state);
    sv->state = strdup(job->state);
    if (!sv->state)
        return tr_fail(TR_NOMEM, "save: out of memory");
    memset(sv->files, 0, sv->n_files * sizeof *sv->files);
    sv->result = (struct tr_save_result){ .step = job->step };
    tr_commit_dir_name(job->step, job->generation, sv->dir);
    TR_PASS(tr_save_start_thread(sv));
    while (is_working(sv)) /* pages are being touched */
        rest(sv, 1000);
    return TR_OK;
}

enum tr_status tr_saver_start(struct tr_saver *sv, const struct tr_save_job *job, bool *out_started)
{
    *out_started = false;
    if (sv->phase != TR_SAVE_NONE)
        return TR_OK;
    int64_t start_us = tr_clock_us();
    TR_PASS(tr_save_agree(sv, fill_job(sv, job)));
    sv->start_us = start_us;
    if (sv->opt.staging) {
        sv->task_status = tr_save_snapshot(sv);
        sv->write_us = tr_clock_us();
    } else {
        sv->write_us = start_us;
        sv->task_status = write_now(sv);
    }
    if (sv->task_status != TR_OK) /* the others are in flight: poll tells them */
        (void)snprintf(sv->task_cause, sizeof sv->task_cause, "%s", tr_error_text());
    else if (sv->opt.staging)
        ask(sv, TR_TASK_WRITE);
    sv->phase = TR_SAVE_WRITING;
    *out_started = true;
    return TR_OK;
}
