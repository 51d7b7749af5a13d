/* train.c - the training loop: data in, steps, evaluation, checkpoints, resume, signals.
 *
 * A run is a function of its configuration, data and seed. What a checkpoint holds is enough to go on with the same
 * bits: weights, optimizer state, the step number, and from that the sample cursor and every random counter.
 */
#include "train/train.h"
#include "plan/plan.h"
#include "train/debug.h"
#include "train/numbers.h"
#include "train/saving.h"
#include "train/selftest.h"
#include "train/signals.h"
#include "train/trace.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct trainer {
    const struct tr_config *cfg;
    struct tr_setup *s;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_mesh *mesh; /* NULL: alone */
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
};

/* How many samples and steps: max_steps, or epochs over the data, nothing repeated and nothing dropped. */
static enum tr_status count_steps(struct trainer *t)
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

static enum tr_status open_data(struct trainer *t)
{
    enum tr_status st = TR_OK;
    char cache[TR_PATH_MAX];
    TR_TRY(tr_path_join(cache, t->cfg->output, ".cache"));
    TR_TRY(tr_open_data(t->cfg, t->s, &t->cfg->data, true, cache, &t->tok, &t->data));
    if (t->cfg->eval_data.n || t->cfg->eval_split > 0)
        TR_TRY(tr_open_data(t->cfg, t->s, t->cfg->eval_data.n ? &t->cfg->eval_data : &t->cfg->data, false, cache,
                            &t->tok, &t->eval_data));
    TR_TRY(count_steps(t));
out:
    return st;
}

/* The checkpoint to go on from: the newest that verifies, the one named, or none. */
static enum tr_status find_checkpoint(struct trainer *t, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    const char *resume = t->cfg->resume_from_checkpoint;
    if (strcmp(resume, "auto") == 0) {
        TR_TRY(tr_ckpt_scan(t->cfg->output, NULL, &t->has_checkpoint, &t->checkpoint, notes));
    } else if (strcmp(resume, "none") != 0) {
        TR_TRY(tr_ckpt_verify(resume, NULL, &t->checkpoint));
        t->has_checkpoint = true;
    }
    if (t->has_checkpoint) {
        TR_TRY(tr_ckpt_lease(t->checkpoint.path, &t->lease));
        TR_TRY(tr_state_load(t->checkpoint.path, &t->state, &t->inputs));
        t->first_step = t->steps_done = t->state.step;
        t->tokens_done = t->state.tokens;
    }
out:
    return st;
}

static enum tr_status load(struct trainer *t)
{
    enum tr_status st = TR_OK;
    struct tr_store store = tr_exec_store(t->e);
    float *buf = (float *)(void *)t->e->base[TR_A_SAVE];
    if (t->has_checkpoint) {
        TR_TRY(tr_load_weights(&store, t->checkpoint.path, buf, NULL));
        TR_TRY(tr_load_optim(&store, t->checkpoint.path, buf));
    } else if (t->cfg->from_scratch) {
        TR_TRY(tr_load_random(&store, (uint64_t)t->cfg->seed, t->pool, buf));
    } else {
        TR_TRY(tr_load_weights(&store, t->cfg->model, buf, NULL));
    }
out:
    return st;
}

static bool is_first(const struct trainer *t)
{
    return !t->mesh || t->mesh->rank == 0;
}

/* A run that goes on from a step that was named: what is newer there is of a future that was given up. */
static enum tr_status begin_future(struct trainer *t, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_str origin = { 0 };
    size_t n = 0;
    tr_origin_write(&origin);
    t->state.origin = origin.p; /* freed with the run */
    TR_TRY(tr_ckpt_lock_tell(t->lock, t->state.run_id, t->state.generation));
    if (!t->has_checkpoint || strcmp(t->cfg->resume_from_checkpoint, "auto") == 0)
        return TR_OK;
    TR_TRY(tr_ckpt_set_aside(t->cfg->output, t->first_step, t->state.generation, &n));
    if (n)
        tr_str_addf(notes, "%zu checkpoints after step %" PRId64 " are set aside as checkpoint-*.aside-%" PRId64 "\n",
                    n, t->first_step, t->state.generation);
out:
    return st;
}

/* All ranks pass together. */
static enum tr_status meet(struct trainer *t, const char *site)
{
    struct tr_coll c = { .kind = TR_BARRIER, .site = site };
    return t->mesh ? tr_comm_run(t->mesh->all, &c) : TR_OK;
}

static enum tr_status open_mesh(struct trainer *t)
{
    enum tr_status st = TR_OK;
    struct tr_comm_env env = t->s->env;
    const char *names[TR_CONFIG_KEYS_MAX] = { "steps", "sequence_length", "parameters", "arithmetic (self-test)" };
    int64_t values[TR_CONFIG_KEYS_MAX] = { t->total_steps, t->s->sequence_length, t->s->model->n_elements,
                                           t->arithmetic };
    if (env.size == 1)
        return TR_OK;
    env.arena_bytes = tr_exec_shared_bytes(t->s->compiled);
    env.device = &t->dev;
    TR_TRY(tr_mesh_open(t->cfg->comm == TR_COMM_AUTO ? NULL : tr_config_word("comm", (int)t->cfg->comm), &env,
                        t->s->axis, &t->mesh));
    int n = 4;
    n += tr_config_keys(t->cfg, TR_CONFIG_KEYS_MAX - n, names + n, values + n);
    TR_TRY(tr_mesh_agree(t->mesh, names, values, n));
out:
    return st;
}

/* What can be refused before anything is written. */
static enum tr_status check_inputs(const struct trainer *t)
{
    const char *resume = t->cfg->resume_from_checkpoint;
    enum tr_status st = tr_mesh_fits(&t->s->env, t->s->axis);
    if (st != TR_OK || strcmp(resume, "auto") == 0)
        return st;
    if (strcmp(resume, "none") != 0)
        return tr_dir_exists(resume) ? TR_OK
                                     : tr_fail(TR_USAGE, "resume_from_checkpoint %s: no such directory", resume);
    return t->cfg->from_scratch ? TR_OK : tr_check_weights(t->s->model, t->cfg->model);
}

static enum tr_status open_run(struct trainer *t)
{
    const struct tr_config *cfg = t->cfg;
    enum tr_status st = TR_OK;
    enum tr_gemm_choice got;
    char text[256], human[32];
    struct tr_str notes = { 0 };
    TR_TRY(tr_failpoint("train.start"));
    TR_TRY(tr_gemm_select(cfg->gemm, &got));
    TR_TRY(tr_setup_open(cfg, TR_USE_TRAIN, &t->s));
    TR_TRY(tr_state_new(&t->state));
    TR_TRY(check_inputs(t));
    TR_TRY(tr_self_test(&t->arithmetic));
    TR_TRY(tr_device_open(t->s->device, &t->dev));
    TR_TRY(open_data(t));
    TR_TRY(tr_failpoint("train.has_data"));
    TR_TRY(open_mesh(t));
    TR_TRY(tr_failpoint("train.has_joined"));
    if (is_first(t)) {
        TR_TRY(tr_ckpt_lock(cfg->output, t->state.run_id, 0, &t->lock));
        TR_TRY(tr_ckpt_sweep(cfg->output, NULL));
    }
    TR_TRY(meet(t, "output directory is ready"));
    if (tr_phase_open(cfg->output, t->s->env.rank, t->s->env.size, t->s->env.generation) != TR_OK)
        tr_error_clear(); /* it trains unseen */
    tr_stack_on_signal(cfg->output, t->s->env.rank);
    TR_TRY(tr_pool_open((int)cfg->threads, &t->pool));
    TR_TRY(tr_exec_open(t->s->compiled, &t->dev, t->pool, t->mesh, (uint64_t)cfg->seed, &t->e));
    if (cfg->sdc_check)
        TR_TRY(tr_exec_check_sums(t->e));
    if (cfg->replica_check_steps || cfg->grad_norm_steps)
        TR_TRY(tr_debug_open(t->e, &t->debug));
    t->inputs = (struct tr_run_inputs){ cfg, t->data, t->tok, t->total_steps };
    TR_TRY(find_checkpoint(t, &notes));
    if (is_first(t))
        TR_TRY(begin_future(t, &notes));
    TR_TRY(tr_failpoint("train.has_checkpoint"));
    TR_TRY(tr_path_join(t->events_path, cfg->output, "events.jsonl"));
    if (is_first(t))
        TR_TRY(tr_events_truncate(t->events_path, t->first_step, NULL));
    struct tr_observe_options opt = { .run = t->state.run_id,
                                      .term = tr_term_detect(cfg->json ? STDERR_FILENO : STDOUT_FILENO),
                                      .quiet = cfg->quiet,
                                      .total_steps = t->total_steps,
                                      .logging_steps = cfg->logging_steps,
                                      .events_path = is_first(t) ? t->events_path : NULL };
    if (!is_first(t))
        opt.term.fd = -1; /* one rank speaks */
    TR_TRY(tr_observe_open(&opt, &t->ob));
    if (notes.n)
        tr_observe_say(t->ob, notes.p);
    TR_TRY(tr_numbers_open(t->e, cfg, t->state.skipped, &t->numbers));
    TR_TRY(load(t));
    tr_ckpt_release(&t->lease);
    TR_TRY(tr_failpoint("train.has_loaded"));
    struct tr_saving_options saving = {
        .s = t->s, .e = t->e, .in = &t->inputs, .ob = t->ob, .state = &t->state, .events_path = t->events_path
    };
    TR_TRY(tr_saving_open(&saving, &t->saving));
    struct tr_data_proof proof = { t->s,          t->e,           t->data,          t->tok,
                                   t->first_step, t->total_steps, t->total_samples, opt.term.has_color };
    TR_TRY(tr_prove_data(&proof, t->ob));
    TR_TRY(tr_loader_open(t->data, &t->s->loader, (uint64_t)t->first_step, (uint64_t)t->total_steps, t->total_samples,
                          t->e->base[TR_A_DATA], t->s->loader_bytes, &t->loader));
    t->flops_per_token = tr_model_flops_per_token(t->s->model);
    t->peak_flops = t->dev.ops->is_host ? tr_gemm_peak(t->pool) : t->dev.peak_flops;
    if (cfg->profile > 0)
        TR_TRY(tr_trace_open(t->e, cfg->profile, cfg->profile_steps, cfg->output, t->peak_flops, &t->trace));
    struct tr_data_info info;
    tr_data_get_info(t->data, &info);
    TR_TRY(tr_format(text, sizeof text,
                     "%s, %s parameters, %" PRIu64 " tokens of data, %" PRId64 " steps of %" PRId64 " x %" PRId64
                     " tokens, %d threads, gemm %s",
                     t->s->model->arch->model_type,
                     tr_human_count((double)t->s->model->n_elements, human, sizeof human), info.n_tokens,
                     t->total_steps, cfg->train_batch_size, t->s->sequence_length, t->s->n_threads, tr_gemm_name(got)));
    tr_observe_say(t->ob, text);
    if (t->first_step > 0) {
        TR_TRY(tr_format(text, sizeof text, "resuming after step %" PRId64, t->first_step));
        tr_observe_say(t->ob, text);
    }
out:
    tr_str_release(&notes);
    return st;
}

/* The layout in a line, as an event that plan --compare reads, and with a machine what another would take. */
static enum tr_status tell_layout(struct trainer *t)
{
    enum tr_status st = TR_OK;
    const struct tr_compiled *c = t->s->compiled;
    struct tr_str fields = { 0 }, text = { 0 }, advice = { 0 };
    struct tr_machine machine;
    struct tr_query q;
    struct tr_forecast f = { 0 };
    struct tr_ask ask;
    bool has_machine = t->cfg->machine != NULL;
    if (!is_first(t))
        return TR_OK;
    if (has_machine)
        TR_TRY(tr_machine_open(t->cfg->machine, &machine));
    tr_ask_of_compiled(c, has_machine ? &machine : NULL, &ask);
    if (has_machine && ask.pp == 1 &&
        c->opt.is_cuda == !machine.is_shared) /* the schedule itself; of other stages not here */
        TR_TRY(tr_play_compiled(&c, 1, &machine, &f));
    else if (has_machine)
        TR_TRY(tr_forecast(&ask, &f));
    tr_ask_json(&ask, &fields);
    tr_str_addf(&fields, ", \"machine\": ");
    tr_str_json(&fields, has_machine ? t->cfg->machine : "");
    tr_str_addf(&fields, ", \"step_s\": %.9g", f.step_s);
    tr_chosen_text(&ask, tr_compiled_bytes(c), f.step_s, &text);
    if (tr_str_ok(&fields) && tr_str_ok(&text))
        tr_observe_note(t->ob, "layout", fields.p, text.p);
    if (has_machine) {
        tr_query_of(t->cfg, t->s->model, &machine, ask.tp * ask.pp * ask.cp * ask.dp, &q);
        tr_pins_clear(&q.pins);
    }
    TR_TRY(tr_advice_text(has_machine ? &q : NULL, &ask, &advice));
    if (advice.n && tr_str_ok(&advice))
        tr_observe_say(t->ob, advice.p);
out:
    tr_str_release(&fields);
    tr_str_release(&text);
    tr_str_release(&advice);
    return st;
}

/* What each rank plans and has reserved; rank 0 tells all of it. */
static enum tr_status tell_plan(struct trainer *t)
{
    enum { N = TR_A_COUNT + 2 };
    enum tr_status st = TR_OK;
    const struct tr_compiled *c = t->s->compiled;
    int n = t->mesh ? t->mesh->world : 1, rank = t->mesh ? t->mesh->rank : 0;
    int64_t(*all)[N] = calloc((size_t)n, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    for (int i = 0; i < TR_A_COUNT; i++)
        all[rank][i] = (int64_t)c->bytes[i];
    all[rank][TR_A_COUNT] = (int64_t)tr_compiled_bytes(c);
    all[rank][TR_A_COUNT + 1] = (int64_t)t->dev.reserved_bytes;
    struct tr_coll g = { .kind = TR_ALL_GATHER,
                         .dtype = TR_I64,
                         .in = all[rank],
                         .out = all,
                         .count = (size_t)n * N,
                         .site = "plans of all ranks" };
    if (t->mesh)
        TR_TRY(tr_comm_run(t->mesh->all, &g));
    for (int r = 0; r < n; r++) {
        struct tr_event_arena arenas[TR_A_COUNT];
        for (int i = 0; i < TR_A_COUNT; i++)
            arenas[i] = (struct tr_event_arena){ tr_arena_name((enum tr_arena_id)i), (uint64_t)all[r][i] };
        struct tr_event_plan e = { .rank = r,
                                   .total_bytes = (uint64_t)all[r][TR_A_COUNT],
                                   .reserved_bytes = (uint64_t)all[r][TR_A_COUNT + 1],
                                   .arenas = arenas,
                                   .n_arenas = TR_A_COUNT };
        tr_observe_plan(t->ob, &e);
    }
out:
    free(all);
    return st;
}

static enum tr_status evaluate(struct trainer *t, int64_t step)
{
    struct tr_eval_result r;
    void *mem = t->e->base[TR_A_DATA] + t->s->loader_bytes;
    enum tr_status st = tr_evaluate(t->e, t->eval_data, t->cfg->per_device_eval_batch_size, mem, &r);
    if (st != TR_OK)
        return st;
    struct tr_event_eval e = { .step = step, .loss = r.loss, .perplexity = r.perplexity, .tokens = r.tokens };
    tr_observe_eval(t->ob, &e);
    tr_saving_evaluated(t->saving, step, r.loss);
    return TR_OK;
}

static enum tr_status next_batch(struct trainer *t, struct tr_step_batch **out, double *wait_s)
{
    int64_t start = tr_clock_us();
    enum tr_status st = TR_TIMEOUT;
    bool may_stop = !t->mesh; /* together with the others, or not at all */
    for (int tries = 0; st == TR_TIMEOUT && tries < 600 && !(may_stop && tr_stop_wanted()); tries++)
        st = tr_loader_next(t->loader, out, 1000000);
    *wait_s = (double)(tr_clock_us() - start) * 1e-6;
    if (st == TR_TIMEOUT && may_stop && tr_stop_wanted())
        return tr_fail(TR_STOPPED, "stopped by a signal while waiting for data");
    return st;
}

/* A step whose numbers nobody believed (faults D1, D2). */
static void tell_odd(struct trainer *t, int64_t step, const struct tr_step_batch *b, const struct tr_verdict *v)
{
    char cause[sizeof v->cause + 128];
    (void)snprintf(cause, sizeof cause, "step %" PRId64 " of samples %" PRIu64 "..%" PRIu64 ": %s", step,
                   b->first_sample, b->first_sample + b->n_samples - 1, v->cause);
    struct tr_event_fault f = {
        .rank = v->rank, .host = "", .phase = "step", .action = v->is_skipped ? "skipped" : "judged", .cause = cause
    };
    tr_observe_fault(t->ob, &f);
}

/* The table of rank 0, when the last profiled step is done; every rank has written its timeline by then. */
static enum tr_status tell_profile(struct trainer *t, int64_t step, double step_s, double exposed_s)
{
    const char *table = NULL;
    enum tr_status st = tr_trace_after(t->trace, step, step_s, exposed_s, step == t->total_steps, &table);
    if (table)
        tr_observe_say(t->ob, table);
    return st;
}

static enum tr_status one_step(struct trainer *t, int64_t step)
{
    enum tr_status st = TR_OK;
    struct tr_step_batch *b = NULL;
    struct tr_step_result r;
    struct tr_verdict verdict;
    float values[TR_STEP_COUNT];
    double wait_s = 0;
    int64_t start = tr_clock_us();
    tr_phase_step(step + 1);
    tr_phase_enter(TR_PHASE_DATA, TR_PLACE_NONE, 0);
    TR_TRY(tr_failpoint("train.data"));
    TR_TRY(next_batch(t, &b, &wait_s));
    TR_BUG_ON(!b || b->step != (uint64_t)step);
    tr_step_values(t->cfg, step, t->total_steps, b->n_targets, values);
    int64_t begin = tr_clock_us();
    TR_TRY(tr_trace_before(t->trace, step + 1));
    st = tr_numbers_step(t->numbers, b, values, &r, &verdict);
    if (verdict.is_odd)
        tell_odd(t, step + 1, b, &verdict);
    if (st != TR_OK)
        return tr_fail_at(st, "step %" PRId64 ", samples %" PRIu64 "..%" PRIu64 ": ", step + 1, b->first_sample,
                          b->first_sample + b->n_samples - 1);
    double seconds = (double)(tr_clock_us() - start) * 1e-6;
    TR_TRY(tell_profile(t, step + 1, (double)(tr_clock_us() - begin) * 1e-6, r.exposed_s));
    if (step > t->first_step) {
        t->stage_wait_s += r.wait_s;
        t->comm_wait_s += r.exposed_s;
        t->warm_s += (double)(tr_clock_us() - begin) * 1e-6;
    }
    int64_t tokens = (int64_t)b->n_samples * t->s->sequence_length;
    t->tokens_done += tokens;
    t->wait_s += wait_s;
    t->step_s += seconds;
    t->steps_done = step + 1;
    struct tr_event_range range = { (int64_t)b->first_sample, (int64_t)(b->first_sample + b->n_samples) - 1 };
    struct tr_event_step e = { .step = step + 1,
                               .loss = b->n_targets ? r.loss_sum / (double)b->n_targets : 0,
                               .grad_norm = r.grad_norm,
                               .lr = (double)values[TR_STEP_LR],
                               .tokens = tokens,
                               .tokens_per_s = (double)tokens / seconds,
                               .data_wait_s = wait_s,
                               .comm_exposed_s = r.exposed_s,
                               .samples = &range,
                               .n_samples = 1 };
    e.mfu = t->peak_flops > 0 ? e.tokens_per_s * t->flops_per_token / t->peak_flops : -1;
    tr_observe_step(t->ob, &e);
out:
    return st;
}

static bool is_due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* Would a save end before the deadline that a signal brought? */
static bool can_save(const struct trainer *t)
{
    return (double)tr_stop_left_us() >= 1.5e6 * tr_saving_seconds(t->saving);
}

/* Has any rank been asked to stop, and is there time to save before its deadline? All of them get the same answer. */
static enum tr_status ask_stop(struct trainer *t, bool *is_stop, bool *has_time)
{
    double x[2] = { tr_stop_wanted(), !can_save(t) };
    enum tr_status st = tr_exec_total_ranks(t->e, "stop?", x, 2);
    *is_stop = x[0] > 0;
    *has_time = x[1] == 0;
    return st;
}

/* A signal came: save what is done, when that fits, then leave. */
static enum tr_status stop_after(struct trainer *t, int64_t done, bool has_time)
{
    if (!has_time && tr_saving_last(t->saving) != done)
        return tr_fail(TR_STOPPED,
                       "stopped by a signal after step %" PRId64 "; the last save took %.1f s, which does not fit the "
                       "rest of preempt_grace %g s: step %" PRId64 " is the last saved; continue with --resume",
                       done, tr_saving_seconds(t->saving), t->cfg->preempt_grace,
                       tr_max64(0, tr_saving_last(t->saving)));
    enum tr_status st = done > t->first_step ? tr_saving_finish(t->saving, done, t->tokens_done) : TR_OK;
    return st != TR_OK
               ? st
               : tr_fail(TR_STOPPED, "stopped by a signal after step %" PRId64 "; continue with --resume", done);
}

/* Does the log already hold the evaluation of this step? */
static bool is_evaluated(const struct trainer *t, int64_t step)
{
    char *line = NULL, want[40];
    size_t cap = 0;
    bool found = false;
    FILE *f = fopen(t->events_path, "re");
    (void)tr_format(want, sizeof want, "\"step\":%" PRId64 ",", step);
    while (f && !found && getline(&line, &cap, f) > 0)
        found = strstr(line, "\"event\":\"eval\"") && strstr(line, want);
    if (f)
        fclose(f);
    free(line);
    return found;
}

/* A signal may have cut off the evaluation of the step we resume after: its line belongs in the log. */
static enum tr_status make_up(struct trainer *t)
{
    double n_missing = 0;
    if (!t->eval_data || t->first_step == 0 || !is_due(t->first_step, t->cfg->eval_steps))
        return TR_OK;
    if (is_first(t) && !is_evaluated(t, t->first_step))
        n_missing = 1;
    enum tr_status st = tr_exec_total_ranks(t->e, "evaluation missing?", &n_missing, 1);
    return st == TR_OK && n_missing > 0 ? evaluate(t, t->first_step) : st;
}

/* What waiting for each other cost, over all ranks; of a pipeline beside what its order costs by itself. */
static enum tr_status measure_waits(struct trainer *t)
{
    double x[] = { t->stage_wait_s, t->comm_wait_s, t->warm_s };
    enum tr_status st = tr_exec_total_ranks(t->e, "waits", x, TR_COUNT_OF(x));
    t->end.comm_wait = t->mesh && x[2] > 0 ? x[1] / x[2] : -1;
    t->end.has_bubble = t->s->compiled->n_stages > 1 && x[2] > 0;
    t->end.bubble = t->end.has_bubble ? x[0] / x[2] : 0;
    t->end.bubble_formula = t->s->compiled->bubble;
    return st;
}

static enum tr_status loop(struct trainer *t)
{
    enum tr_status st = TR_OK;
    TR_TRY(make_up(t));
    for (int64_t step = t->first_step; step < t->total_steps; step++) {
        TR_TRY(tr_failpoint("train.before_step"));
        st = one_step(t, step);
        if (st == TR_STOPPED)
            return stop_after(t, step, can_save(t));
        TR_TRY(st);
        tr_phase_enter(TR_PHASE_BETWEEN, TR_PLACE_NONE, 0);
        int64_t done = step + 1;
        TR_TRY(tr_failpoint("train.after_step"));
        if (t->eval_data && (is_due(done, t->cfg->eval_steps) || done == t->total_steps))
            st = evaluate(t, done);
        if (st == TR_STOPPED)
            return stop_after(t, done, can_save(t));
        TR_TRY(st);
        if (is_due(done, t->cfg->replica_check_steps))
            tr_phase_enter(TR_PHASE_CHECK, TR_PLACE_NONE, 0);
        if (is_due(done, t->cfg->replica_check_steps)) /* before a bad replica is saved */
            TR_TRY(tr_debug_replicas(t->debug, done));
        if (is_due(done, t->cfg->grad_norm_steps) && is_first(t))
            TR_TRY(tr_debug_norms(t->debug, t->cfg->output, done));
        t->state.skipped = tr_numbers_skipped(t->numbers);
        TR_TRY(
            tr_saving_step(t->saving, is_due(done, t->cfg->save_steps) && done < t->total_steps, done, t->tokens_done));
        bool is_stop = false, has_time = true;
        TR_TRY(ask_stop(t, &is_stop, &has_time));
        if (is_stop && done < t->total_steps)
            return stop_after(t, done, has_time);
    }
    TR_TRY(measure_waits(t));
    TR_TRY(tr_saving_finish(t->saving, t->total_steps, t->tokens_done));
    TR_TRY(tr_failpoint("train.before_model"));
    TR_TRY(tr_saving_model(t->saving));
    TR_TRY(tr_failpoint("train.after_model"));
    TR_TRY(meet(t, "the model is written")); /* nobody leaves before */
out:
    return st;
}

static void close_run(struct trainer *t)
{
    tr_loader_close(t->loader);
    tr_saving_close(t->saving);
    tr_observe_close(t->ob);
    tr_debug_close(t->debug);
    tr_trace_close(t->trace);
    tr_numbers_close(t->numbers);
    tr_exec_close(t->e);
    tr_mesh_close(t->mesh);
    tr_device_close(&t->dev);
    tr_pool_close(t->pool);
    tr_data_close(t->data);
    tr_data_close(t->eval_data);
    tr_tokenizer_close(t->tok);
    tr_ckpt_unlock(t->lock);
    tr_ckpt_release(&t->lease);
    free(t->state.origin);
    tr_setup_close(t->s);
}

enum tr_status tr_train(const struct tr_config *cfg)
{
    struct trainer t = { .cfg = cfg, .end.comm_wait = -1 };
    int64_t start = tr_clock_us();
    tr_stop_on_signals(cfg->preempt_grace);
    enum tr_status st = open_run(&t);
    if (st == TR_OK) {
        st = tell_plan(&t);
        if (st == TR_OK)
            st = tell_layout(&t);
        if (st == TR_OK)
            st = loop(&t);
        t.end.status = st == TR_OK ? "done" : st == TR_STOPPED ? "stopped" : "failed";
        t.end.steps = t.steps_done;
        t.end.tokens = t.tokens_done;
        t.end.seconds = (double)(tr_clock_us() - start) * 1e-6;
        t.end.data_wait = t.step_s > 0 ? t.wait_s / t.step_s : 0;
        tr_observe_end(t.ob, &t.end);
    }
    close_run(&t);
    tr_phase_close(st == TR_OK);
    return st;
}
