/* train_open.c - from a configuration to the first step: data, mesh, memory, weights or the checkpoint to resume from.
 *
 * A run that can be refused is refused before anything is written. Nothing is written before the output directory is
 * locked.
 */
#include "plan/plan.h"
#include "train/engine.h"
#include "train/reference.h"
#include "train/selftest.h"
#include "train/signals.h"
#include "train/train_impl.h"
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts samples and steps: max_steps, or epochs over the data, with nothing repeated and nothing dropped. */
static enum tr_status count_steps(struct tr_trainer *t)
{
    const struct tr_config *cfg = t->cfg;
    uint64_t rows = tr_data_rows(t->data), batch = (uint64_t)cfg->train_batch_size;
    if (cfg->max_steps > 0) {
        t->total_steps = cfg->max_steps;
        t->total_samples = (uint64_t)cfg->max_steps * batch;
        return TR_OK;
    }
    t->total_samples = (uint64_t)ceil((double)rows * cfg->num_train_epochs);
    t->total_steps = (int64_t)tr_data_steps(t->total_samples, batch);
    if (t->total_steps < 1)
        return tr_fail(TR_USAGE, "nothing to train: %" PRIu64 " rows for %g epochs", rows, cfg->num_train_epochs);
    return TR_OK;
}

/* Reports a long tokenisation, because a user would take minutes of silence for a hang. */
static void report_tokenising(void *ctx, const char *path, uint64_t bytes)
{
    char text[512], shown[400], human[32];
    if (bytes < 32 << 20)
        return;
    (void)snprintf(text, sizeof text, "tokenising %s, %s, for the first time", tr_escape(path, shown, sizeof shown),
                   tr_human_bytes(bytes, human, sizeof human));
    tr_observe_message(ctx, text);
}

/* Each set of eval_data, or what eval_split holds out; and which of them chooses the best step. */
static enum tr_status read_eval_data(struct tr_trainer *t, const char *cache)
{
    enum tr_status st = TR_OK;
    const struct tr_data_list *all = &t->cfg->eval_data;
    const char *name[TR_EVAL_SETS_MAX];
    size_t n_sets;
    struct tr_data_source *item = calloc(all->n + 1, sizeof *item);
    if (!item)
        TR_TRY(tr_fail(TR_NOMEM, "eval_data: out of memory"));
    TR_TRY(tr_config_eval_sets(t->cfg, name, &n_sets, &t->best));
    n_sets = all->n || t->cfg->eval_split > 0 ? n_sets : 0;
    for (size_t k = 0; k < n_sets; k++) {
        struct tr_data_list set = { item, 0 };
        for (size_t i = 0; i < all->n; i++)
            if (!name[k] || strcmp(name[k], all->item[i].name) == 0)
                item[set.n++] = all->item[i];
        st = tr_open_data(t->cfg, t->s, all->n ? &set : &t->cfg->data, false, cache, &t->tok, &t->eval[k].data);
        if (st != TR_OK && name[k])
            st = tr_fail_at(st, "eval_data %s: ", name[k]);
        TR_TRY(st);
        t->eval[k].name = name[k];
        t->n_evals = k + 1;
    }
out:
    free(item);
    return st;
}

static enum tr_status read_data(struct tr_trainer *t)
{
    enum tr_status st = TR_OK;
    char cache[TR_PATH_MAX];
    struct tr_observe *early = NULL; /* no run is open yet that could log the events */
    struct tr_observe_options view = { .term = tr_term_detect(t->cfg->json ? STDERR_FILENO : STDOUT_FILENO) };
    TR_TRY(tr_observe_open(&view, &early));
    t->s->on_make = t->cfg->quiet ? NULL : report_tokenising;
    t->s->on_make_ctx = early;
    TR_TRY(tr_path_join(cache, t->cfg->output, TR_NAME_CACHE));
    TR_TRY(tr_open_data(t->cfg, t->s, &t->cfg->data, true, cache, &t->tok, &t->data));
    if (t->use == TR_TRAINER_RUNS)
        TR_TRY(read_eval_data(t, cache));
    TR_TRY(count_steps(t));
out:
    tr_observe_close(early);
    return st;
}

static enum tr_status open_weights(struct tr_trainer *t)
{
    struct tr_store store = tr_exec_store(t->e);
    float *buf = (float *)(void *)tr_exec_arena(t->e, TR_A_SAVE);
    const struct tr_load_result loaded = t->loaded;
    char text[160];
    if (t->has_checkpoint) {
        tr_error_clear(); /* it was loaded when it was chosen */
    } else if (t->cfg->from_scratch) {
        TR_PASS(tr_load_random(&store, (uint64_t)t->cfg->seed, t->pool, buf));
    } else {
        TR_PASS(tr_dirs_load(&t->s->from, &store, buf));
        if (!t->s->from.dir)
            TR_PASS(tr_load_new_adapter(&store, t->s->from.base, (uint64_t)t->cfg->seed, t->pool, buf));
    }
    if (loaded.n_new > 0 && tr_format(text, sizeof text,
                                      "%" PRId64 " parameters were frozen in the checkpoint and learn now: their "
                                      "optimizer state starts at zero",
                                      loaded.n_new) == TR_OK)
        tr_observe_message(t->ob, text);
    if (loaded.n_dropped > 0 && tr_format(text, sizeof text,
                                          "%" PRId64 " tensors of optimizer state in the checkpoint belong to "
                                          "parameters that are frozen now: they are dropped",
                                          loaded.n_dropped) == TR_OK)
        tr_observe_message(t->ob, text);
    return TR_OK;
}

/* Begins a new generation of the run. A resume from a named step sets newer checkpoints aside, because they belong to
 * the abandoned continuation. */
static enum tr_status begin_generation(struct tr_trainer *t, struct tr_str *notes)
{
    struct tr_str origin = { 0 };
    size_t n = 0;
    tr_origin_write(&origin);
    t->state.origin = origin.p; /* freed with the run */
    TR_PASS(tr_ckpt_lock_write(t->lock, t->state.run_id, t->state.generation));
    if (!t->has_checkpoint || strcmp(t->cfg->resume_from_checkpoint, "auto") == 0)
        return TR_OK;
    TR_PASS(tr_ckpt_set_aside(t->cfg->output, t->first_step, t->state.generation, &n));
    if (n)
        tr_str_addf(notes, "%zu checkpoints after step %" PRId64 " are set aside as checkpoint-*.aside-%" PRId64 "\n",
                    n, t->first_step, t->state.generation);
    return TR_OK;
}

enum tr_status tr_trainer_meet(struct tr_trainer *t, const char *site)
{
    struct tr_coll c = { .kind = TR_BARRIER, .site = site };
    return tr_comm_run(t->mesh->all, &c);
}

static enum tr_status open_mesh(struct tr_trainer *t)
{
    const char *const names[] = { "steps",         "sequence_length",
                                  "parameters",    "arithmetic (self-test)",
                                  "memory_budget", "per_device_train_batch_size" };
    const int64_t values[] = { t->total_steps,
                               t->s->sequence_length,
                               t->s->model->n_elements,
                               t->arithmetic,
                               (int64_t)t->s->compiled->opt.memory_budget,
                               t->cfg->per_device_train_batch_size };
    return tr_join_ranks(t->s, &t->dev, names, values, TR_COUNT_OF(names), &t->join_notes, &t->mesh);
}

/* A new run must not start beside checkpoints of another run: a restart would take the newest of either. It must not
 * overwrite the model that it starts from. */
enum tr_status tr_check_output(const struct tr_config *cfg)
{
    static const char *const kept[] = { TR_NAMES_KEPT };
    struct stat out, model;
    if (stat(cfg->output, &out) != 0)
        return TR_OK;
    if (!S_ISDIR(out.st_mode))
        return tr_fail(TR_USAGE, "output %s is a file; name a directory", cfg->output);
    if (stat(cfg->model, &model) == 0 && out.st_dev == model.st_dev && out.st_ino == model.st_ino)
        return tr_fail(TR_USAGE, "output %s is the model's own directory; name another --output", cfg->output);
    for (size_t i = 0; i < TR_COUNT_OF(kept); i++)
        TR_PASS(tr_out_check(cfg->output, kept[i]));
    if (strcmp(cfg->resume_from_checkpoint, "none") != 0)
        return TR_OK;
    TR_PASS(tr_ckpt_check_new(cfg->output));
    return TR_OK;
}

/* A directory is a model or an adapter: readers would take the one for the other. */
static enum tr_status check_kind(const struct tr_trainer *t)
{
    char path[TR_PATH_MAX];
    const char *other = t->s->from.adapter ? "config.json" : TR_ADAPTER_CONFIG;
    enum tr_status st = tr_path_join(path, t->cfg->output, other);
    if (st == TR_OK && tr_file_exists(path))
        st = tr_fail(TR_USAGE,
                     "output %s holds %s (it has %s), and this run would write %s there; name another --output",
                     t->cfg->output, t->s->from.adapter ? "a model" : "an adapter", other,
                     t->s->from.adapter ? "an adapter" : "a model");
    return st;
}

/* Refuses wrong inputs before anything is written. */
static enum tr_status check_inputs(const struct tr_trainer *t)
{
    const char *resume = t->cfg->resume_from_checkpoint;
    enum tr_status st = tr_check_output(t->cfg);
    if (st == TR_OK)
        st = check_kind(t);
    if (st != TR_OK || strcmp(resume, "auto") == 0)
        return st;
    if (strcmp(resume, "none") != 0)
        return tr_dir_exists(resume) ? TR_OK
                                     : tr_fail(TR_USAGE, "resume_from_checkpoint %s: no such directory", resume);
    return t->cfg->from_scratch ? TR_OK : tr_dirs_check(&t->s->from, t->s->model);
}

/* config: the options of the run as JSON; it lives as long as the result is used. */
static struct tr_track_options trackers_of(const struct tr_trainer *t, const char *config)
{
    const struct tr_config *cfg = t->cfg;
    return (struct tr_track_options){ .sinks = cfg->report_to.item,
                                      .n_sinks = cfg->report_to.n,
                                      .metrics_file = cfg->metrics_file,
                                      .run_name = cfg->run_name,
                                      .output = cfg->output,
                                      .config = config,
                                      .first_step = t->first_step };
}

/* ---- the stages of a start ---- */

static enum tr_status open_setup(struct tr_trainer *t)
{
    TR_PASS(tr_failpoint("train.start"));
    TR_PASS(tr_choose_products(t->cfg, &t->gemm));
    TR_PASS(tr_setup_open_advised(t->cfg, -1, &t->s));
    TR_PASS(tr_state_new(&t->state));
    t->state.scaler = tr_scaler_of(t->cfg->dtype);
    TR_PASS(tr_mesh_fits(&t->s->env, t->s->axis));
    TR_PASS(tr_room_check(t->s->compiled, t->s, NULL));
    return tr_self_test(&t->arithmetic);
}

static enum tr_status open_checks(struct tr_trainer *t)
{
    const struct tr_track_options trackers = trackers_of(t, NULL);
    TR_PASS(tr_state_check_allowed(t->cfg));
    TR_PASS(tr_track_check(&trackers));
    TR_PASS(check_inputs(t));
    return tr_disk_check(t->s, t->cfg->max_steps);
}

static void close_setup(struct tr_trainer *t)
{
    tr_setup_close(t->s);
}

static enum tr_status open_device(struct tr_trainer *t)
{
    return tr_device_open(t->s->device->name, &t->dev);
}

static void close_device(struct tr_trainer *t)
{
    tr_device_close(&t->dev);
}

static enum tr_status open_data(struct tr_trainer *t)
{
    TR_PASS(read_data(t));
    if (t->use == TR_TRAINER_RUNS)
        TR_PASS(tr_check_turns(t->s, t->data, t->tok, &t->join_notes));
    if (t->use == TR_TRAINER_RUNS)
        TR_PASS(tr_disk_check(t->s, t->total_steps));
    return tr_failpoint("train.has_data");
}

static void close_data(struct tr_trainer *t)
{
    tr_data_close(t->data);
    for (size_t i = 0; i < t->n_evals; i++)
        tr_data_close(t->eval[i].data);
    tr_tokenizer_close(t->tok);
}

static enum tr_status open_join(struct tr_trainer *t)
{
    TR_PASS(open_mesh(t));
    TR_PASS(tr_failpoint("train.has_joined"));
    return tr_room_check_hosts(t->mesh, t->s);
}

/* The first rank locks the output directory before anything is written. */
static enum tr_status open_output(struct tr_trainer *t)
{
    const char *output = t->cfg->output;
    if (tr_trainer_is_first(t)) {
        TR_PASS(tr_ckpt_lock(output, t->state.run_id, 0, &t->lock));
        TR_PASS(tr_ckpt_sweep(output, NULL));
        TR_PASS(tr_disk_reserve(t->s, &t->reserve));
    }
    TR_PASS(tr_trainer_meet(t, "output directory is ready"));
    if (tr_phase_open(output, t->s->env.rank, t->s->env.size, t->s->env.generation) != TR_OK)
        tr_error_clear(); /* the run continues without the watchdog's view */
    tr_stack_on_signal(output, t->s->env.rank);
    return TR_OK;
}

/* The lock is released last: until then a peer may still write. */
static void close_join(struct tr_trainer *t)
{
    tr_mesh_close(t->mesh);
    tr_str_release(&t->join_notes);
    tr_disk_release(&t->reserve);
    tr_ckpt_unlock(t->lock);
}

static enum tr_status open_memory(struct tr_trainer *t)
{
    enum tr_status st = tr_pool_open((int)t->cfg->threads, &t->pool);
    if (st == TR_OK)
        st = tr_exec_open(t->s->compiled, &t->dev, t->pool, t->mesh, (uint64_t)t->cfg->seed, &t->e);
    /* An arena of the plan was refused. At a restart that may be memory of the ranks before, which the system is still
     * taking back; and a small allocation that fails says nothing about the plan (I2). */
    bool is_arena = st == TR_NOMEM && strncmp(tr_error_text(), "arena ", 6) == 0;
    return is_arena && t->s->env.generation == 0 ? tr_room_refused(t->s) : st;
}

static void close_memory(struct tr_trainer *t)
{
    tr_exec_close(t->e);
    tr_pool_close(t->pool);
}

/* The references of pairs, before any weight of the run is loaded: they are those of the start, also in a resume. */
static enum tr_status open_reference(struct tr_trainer *t)
{
    char cache[TR_PATH_MAX];
    bool has_loaded = false;
    struct tr_reference r = { t->s, t->e, t->pool, cache };
    if (!tr_config_needs_reference(t->cfg))
        return TR_OK;
    TR_PASS(tr_path_join(cache, t->cfg->output, TR_NAME_CACHE));
    TR_PASS(tr_reference_fill(&r, t->data, t->total_samples, &has_loaded, &t->join_notes));
    for (size_t i = 0; i < t->n_evals; i++)
        TR_PASS(tr_reference_fill(&r, t->eval[i].data, tr_data_rows(t->eval[i].data), &has_loaded, &t->join_notes));
    return TR_OK;
}

static void show_notes(struct tr_trainer *t, const struct tr_str *notes)
{
    if (notes->n == 0 || !tr_str_ok(notes))
        return;
    notes->p[notes->n - 1] = 0; /* removes the last line end */
    tr_observe_message(t->ob, notes->p);
}

/* Opens the log of the run, truncated to the step that it resumes from. Only the first rank writes it. */
static enum tr_status open_log(struct tr_trainer *t, const struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    bool is_first = tr_trainer_is_first(t);
    struct tr_str config = { 0 };
    tr_config_json(t->cfg, false, &config);
    TR_TRY(tr_path_join(t->events_path, t->cfg->output, TR_NAME_EVENTS));
    if (is_first)
        TR_TRY(tr_events_truncate(t->events_path, t->first_step, NULL));
    if (is_first)
        TR_TRY(tr_debug_norms_cut(t->cfg->output, t->first_step));
    struct tr_observe_options opt = { .run = t->state.run_id,
                                      .term = tr_term_detect(t->cfg->json ? STDERR_FILENO : STDOUT_FILENO),
                                      .json = t->cfg->json && is_first,
                                      .quiet = t->cfg->quiet,
                                      .total_steps = t->total_steps,
                                      .logging_steps = tr_config_steps(t->cfg->logging_steps, t->total_steps),
                                      .events_path = is_first ? t->events_path : NULL,
                                      .track = trackers_of(t, tr_str_ok(&config) ? config.p : NULL) };
    t->has_color = opt.term.has_color;
    if (!is_first)
        opt.term.fd = -1;
    TR_TRY(tr_observe_open(&opt, &t->ob));
    show_notes(t, notes);
out:
    tr_str_release(&config);
    return st;
}

static enum tr_status open_checkpoint(struct tr_trainer *t)
{
    const struct tr_config *cfg = t->cfg;
    if (cfg->sdc_check)
        TR_PASS(tr_exec_check_sums(t->e));
    if (cfg->replica_check_steps || cfg->grad_norm_steps)
        TR_PASS(tr_debug_open(t->e, &t->debug));
    t->state.amax = tr_exec_amax(t->e);
    t->inputs = (struct tr_run_inputs){ .cfg = cfg,
                                        .data = t->data,
                                        .tok = t->tok,
                                        .groups = &t->s->groups,
                                        .total_steps = t->total_steps,
                                        .base = t->s->from.adapter ? &t->base : NULL,
                                        .may_differ = t->use == TR_TRAINER_REPLAYS };
    if (t->s->from.adapter)
        TR_PASS(tr_base_id_of(t->s->from.base, &t->base));
    TR_PASS(tr_trainer_resume(t, &t->join_notes));
    return tr_numbers_open(t->e, cfg, t->state.skipped, &t->state.scaler, &t->numbers);
}

static void close_checkpoint(struct tr_trainer *t)
{
    tr_debug_close(t->debug);
    tr_numbers_close(t->numbers);
    tr_ckpt_release(&t->lease);
    free(t->state.origin);
}

/* The generation begins, and the log of the run is cut back to the step that it goes on from. */
static enum tr_status open_generation(struct tr_trainer *t)
{
    if (tr_trainer_is_first(t))
        TR_PASS(begin_generation(t, &t->join_notes));
    TR_PASS(tr_failpoint("train.has_checkpoint"));
    return open_log(t, &t->join_notes);
}

/* What is found on the way goes to stderr, and no file is written. */
static enum tr_status open_view(struct tr_trainer *t)
{
    struct tr_observe_options opt = { .run = t->state.run_id,
                                      .term = tr_term_detect(STDERR_FILENO),
                                      .quiet = t->cfg->quiet,
                                      .total_steps = t->total_steps };
    if (!tr_trainer_is_first(t))
        opt.term.fd = -1;
    TR_PASS(tr_observe_open(&opt, &t->ob));
    show_notes(t, &t->join_notes);
    return TR_OK;
}

static void close_log(struct tr_trainer *t)
{
    tr_observe_close(t->ob);
}

/* Reports what a user should know before the first step. */
static enum tr_status report_inputs(struct tr_trainer *t)
{
    char text[256], human[32], tokens[64];
    struct tr_data_info info;
    tr_data_get_info(t->data, &info);
    TR_PASS(info.n_rows > 0 ? tr_format(tokens, sizeof tokens, "%" PRIu64 " tokens of data", info.n_tokens)
                            : tr_format(tokens, sizeof tokens, "data is tokenised while it is read"));
    TR_PASS(tr_format(
        text, sizeof text,
        "%s, %s parameters, %s, %" PRId64 " steps of %" PRId64 " x %" PRId64 " tokens, %d threads, gemm %s%s",
        t->s->model->arch->model_type, tr_human_count((double)t->s->model->n_elements, human, sizeof human), tokens,
        t->total_steps, t->cfg->train_batch_size, t->s->sequence_length, t->s->n_threads, tr_gemm_name(t->gemm),
        t->dev.row->is_host && t->cfg->dtype == TR_BF16 && tr_gemm_takes_pairs() ? " with avx512_bf16" : ""));
    tr_observe_message(t->ob, text);
    if (t->s->model->vocab_was) {
        TR_PASS(tr_format(text, sizeof text,
                          "the vocabulary grew from %" PRId64 " to %" PRId64
                          "; new rows of its tables began as the mean of the others",
                          t->s->model->vocab_was, t->s->model->hp.vocab));
        tr_observe_message(t->ob, text);
    }
    struct tr_str note = { 0 };
    tr_setup_note_positions(t->s, &note);
    tr_note_idle_data(t->cfg, t->data, &note);
    show_notes(t, &note);
    tr_str_release(&note);
    if (t->first_step > 0) {
        TR_PASS(tr_format(text, sizeof text, "resuming after step %" PRId64, t->first_step));
        tr_observe_message(t->ob, text);
    }
    return TR_OK;
}

static enum tr_status open_rest(struct tr_trainer *t)
{
    const struct tr_config *cfg = t->cfg;
    struct tr_saving_options saving = { .s = t->s,
                                        .e = t->e,
                                        .in = &t->inputs,
                                        .ob = t->ob,
                                        .state = &t->state,
                                        .events_path = t->events_path,
                                        .resumed_from =
                                            t->has_checkpoint && tr_trainer_is_first(t) ? t->checkpoint.path : NULL };
    struct tr_data_proof proof = { t->s,          t->e,           t->data,          t->tok,
                                   t->first_step, t->total_steps, t->total_samples, t->has_color };
    TR_PASS(tr_failpoint("train.has_loaded"));
    TR_PASS(tr_saving_open(&saving, &t->saving));
    if (cfg->eval_choices)
        TR_PASS(tr_choices_open(cfg->eval_choices, t->s, t->tok, &t->choices));
    if (cfg->sample_prompts)
        TR_PASS(tr_sampler_open(t->e, t->s, t->tok, &t->sampler));
    TR_PASS(tr_trainer_control_open(t));
    TR_PASS(tr_prove_data(&proof, t->ob));
    t->flops_per_token = tr_flops_per_token(&t->s->compiled->place);
    if (!t->dev.row->is_host)
        t->peak_flops = t->dev.peak_flops;
    else if (tr_trainer_is_first(t) || cfg->profile > 0) /* half of the start time: only where it is reported */
        t->peak_flops = tr_gemm_peak(t->pool, cfg->dtype);
    if (cfg->profile > 0)
        TR_PASS(tr_trace_open(t->e, cfg->profile, cfg->profile_steps, cfg->output, t->peak_flops, &t->trace));
    TR_PASS(report_inputs(t));
#ifdef __GLIBC__
    malloc_trim(0); /* returns the memory that opening used to the system */
#endif
    return TR_OK;
}

static void close_rest(struct tr_trainer *t)
{
    t->save_hangs = !tr_saving_close(t->saving);
    tr_choices_close(t->choices);
    tr_sampler_close(t->sampler);
    tr_control_close(t->control);
    tr_trace_close(t->trace);
}

static enum tr_status open_loader(struct tr_trainer *t)
{
    tr_ckpt_release(&t->lease);
    TR_PASS(tr_trainer_ledger_open(t));
    struct tr_loader_shape shape = t->s->loader;
    shape.is_dense = t->cfg->packing == TR_PACKING_NONE && tr_exec_takes_dense(t->e);
    if (tr_failpoint("data.full_rows") != TR_OK) { /* a test compares with rows that are computed in full */
        tr_error_clear();
        shape.is_dense = false;
    }
    return tr_loader_open(t->data, &shape, (uint64_t)t->first_step, (uint64_t)t->total_steps, t->total_samples,
                          tr_exec_arena(t->e, TR_A_DATA), t->s->loader_bytes, &t->loader);
}

static void close_loader(struct tr_trainer *t)
{
    tr_loader_close(t->loader);
}

/* Stages are opened in this order and closed in reverse. A close is safe on a stage that was not opened. The event
 * `start` reports how long each stage took. A replay writes nothing, and leaves out the stages that do. What a save
 * uses stays when one hangs in the disk, until the process has ended: its thread may go on at any moment. */
enum { RUNS = 1 << TR_TRAINER_RUNS, REPLAYS = 1 << TR_TRAINER_REPLAYS, ALWAYS = RUNS | REPLAYS };
static const struct {
    const char *name;
    int use;
    enum tr_status (*open)(struct tr_trainer *t);
    void (*close)(struct tr_trainer *t); /* NULL: the stage holds nothing of its own */
    bool is_saved_from;
} stages[] = {
    { "setup", ALWAYS, open_setup, close_setup, true },
    { "checks", RUNS, open_checks, NULL },
    { "device", ALWAYS, open_device, close_device, true },
    { "data", ALWAYS, open_data, close_data, true },
    { "join", ALWAYS, open_join, close_join },
    { "output", RUNS, open_output, NULL }, /* closed with the mesh */
    { "memory", ALWAYS, open_memory, close_memory, true },
    { "reference", ALWAYS, open_reference, NULL },
    { "checkpoint", ALWAYS, open_checkpoint, close_checkpoint },
    { "log", RUNS, open_generation, close_log },
    { "view", REPLAYS, open_view, close_log },
    { "weights", ALWAYS, open_weights, NULL },
    { "rest", RUNS, open_rest, close_rest },
    { "loader", ALWAYS, open_loader, close_loader },
};

enum tr_status tr_trainer_open(struct tr_trainer *t)
{
    for (size_t i = 0; i < TR_COUNT_OF(stages); i++) {
        if (!(stages[i].use >> t->use & 1))
            continue;
        TR_PASS(stages[i].open(t));
        tr_trainer_lap(t, stages[i].name);
    }
    return TR_OK;
}

void tr_trainer_close(struct tr_trainer *t)
{
    for (size_t i = TR_COUNT_OF(stages); i-- > 0;)
        if (stages[i].close && (stages[i].use >> t->use & 1) && !(t->save_hangs && stages[i].is_saved_from))
            stages[i].close(t);
}
