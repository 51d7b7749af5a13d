/* saving.c - checkpoints of a training: starts them, watches the one in flight, and reports the result.
 *
 * Every save ends in a line of events.jsonl: `checkpoint`, `checkpoint_skipped` or `fault`. A disk that is full, slow
 * or broken is reported and costs checkpoints. It stops the training only after max_save_failures in a row (C1, C2, C4,
 * C5).
 */
#include "train/saving.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>

struct tr_saving {
    struct tr_saving_options opt;
    const struct tr_config *cfg;
    struct tr_saver *saver;
    int64_t saved_step; /* the last saved step: on the disk, or in flight */
    int64_t tokens;     /* tokens at that step */
    int64_t n_failed, n_skipped, start_us;
    double last_s; /* how long the last save took */
    bool hang_is_reported;
    int64_t eval_step;
    double eval_loss;
    struct tr_run_best last_best; /* before the save in flight */
    double flops_per_token;
    struct tr_history history;
    int64_t enter_us, lost_us; /* when the run came here last; what it lost to the save in flight before that */
    bool waits; /* every save is waited for: by option, or because the state is so small that the wait is short */
};

enum { SMALL_BYTES = 4 << 20, N_TEXTS = 5 };

/* README.md: what a hub shows of an adapter. */
static void write_card(const struct tr_dirs *from, const struct tr_model *m, struct tr_str *out)
{
    const char *base = from->adapter->base ? from->adapter->base : from->base;
    tr_str_member(out, "---\nbase_model: ", base);
    tr_str_addf(out,
                "\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- lora\n- transformers\n---\n\n"
                "# An adapter of %s\n\nRank %" PRId64 ", alpha %g; trained with Trireme %s. It is loaded with\n\n"
                "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
                "model = AutoModelForCausalLM.from_pretrained(BASE)\n",
                base, from->adapter->r, from->adapter->alpha, TR_VERSION);
    if (m->vocab_was)
        tr_str_addf(out, "model.resize_token_embeddings(%" PRId64 ")  # tokens were added\n", m->hp.vocab);
    tr_str_addf(out, "model = PeftModel.from_pretrained(model, THIS_DIRECTORY)\n```\n\n"
                     "or `trireme generate --model THIS_DIRECTORY --model_base BASE`.\n");
}

/* The small files of an adapter's checkpoint; adapter_config.json is the last. */
static enum tr_status adapter_texts(const struct tr_saving_options *opt, struct tr_str text[3])
{
    const struct tr_dirs *from = &opt->s->from;
    char path[PATH_MAX], quant[TR_CONFIG_QUANT_MAX];
    write_card(from, opt->s->model, &text[0]);
    TR_PASS(tr_base_id_print(opt->in->base, realpath(from->base, path) ? path : from->base,
                             tr_config_quant(opt->s->cfg, quant), tr_adapter_start_name(from->adapter), &text[1]));
    TR_PASS(tr_adapter_print(from->adapter, opt->s->model, &text[2]));
    return TR_OK;
}

/* All small files that are not those of the model; *n of them. */
static enum tr_status write_texts(const struct tr_saving_options *opt, struct tr_str text[N_TEXTS],
                                  struct tr_save_text out[N_TEXTS], size_t *n)
{
    static const char *const names[N_TEXTS] = { "chat_template.jinja", "generation_config.json", "README.md",
                                                TR_ADAPTER_BASE, TR_ADAPTER_CONFIG };
    enum tr_status st = TR_OK;
    struct tr_chat_files chat = { 0 };
    TR_TRY(tr_chat_files_make(opt->s, opt->in->data, opt->in->tok, &chat));
    text[0] = chat.jinja;
    text[1] = chat.generation;
    if (*chat.note)
        tr_observe_message(opt->ob, chat.note);
    chat = (struct tr_chat_files){ 0 };
    if (opt->s->from.adapter)
        TR_TRY(adapter_texts(opt, text + 2));
    for (int i = 0; i < N_TEXTS; i++) {
        TR_TRY(tr_str_check(&text[i], "a save"));
        if (text[i].n)
            out[(*n)++] = (struct tr_save_text){ names[i], text[i].p };
    }
out:
    tr_chat_files_release(&chat);
    return st;
}

enum tr_status tr_saving_open(const struct tr_saving_options *opt, struct tr_saving **out)
{
    struct tr_saving *v = calloc(1, sizeof *v);
    struct tr_str text[N_TEXTS] = { 0 };
    if (!v)
        return tr_fail(TR_NOMEM, "save: out of memory");
    struct tr_store store = tr_exec_store(opt->e);
    const struct tr_compiled *c = tr_exec_compiled(opt->e);
    char *base = tr_exec_arena(opt->e, TR_A_STAGING);
    struct tr_saver_options save = { .mesh = tr_exec_mesh(opt->e),
                                     .pool = tr_exec_pool(opt->e),
                                     .source_dir = opt->s->from.text,
                                     .dtype = opt->s->save_dtype,
                                     .only_model = opt->s->cfg->save_only_model,
                                     .pages = base + c->memory.pages,
                                     .staging = c->opt.stages_saves ? base + c->memory.copy : NULL,
                                     .staging_bytes = c->memory.bytes[TR_A_STAGING] - c->memory.copy };
    v->opt = *opt;
    v->cfg = opt->s->cfg;
    v->saved_step = opt->state->step > 0 ? opt->state->step : -1;
    v->eval_step = -1;
    v->waits = v->cfg->async_save == TR_SAVE_STRAIGHT || v->cfg->verify_restore ||
               (v->cfg->async_save == TR_SAVE_AUTO && opt->s->model->n_elements * 16 <= SMALL_BYTES);
    v->flops_per_token = tr_flops_per_token(&opt->s->compiled->place);
    tr_history_init(&v->history, v->cfg, opt->in->data, opt->in->total_steps, opt->events_path);
    if (opt->resumed_from)
        tr_history_resume(&v->history, opt->resumed_from);
    struct tr_save_text named[N_TEXTS];
    enum tr_status st = write_texts(opt, text, named, &save.n_texts);
    save.text = named;
    if (st == TR_OK)
        st = tr_saver_open(&store, &save, &v->saver);
    for (int i = 0; i < N_TEXTS; i++)
        tr_str_release(&text[i]);
    if (st != TR_OK)
        (void)tr_saving_close(v);
    else
        *out = v;
    return st;
}

bool tr_saving_close(struct tr_saving *v)
{
    if (!v)
        return true;
    if (!tr_saver_close(v->saver))
        return false;
    tr_history_release(&v->history);
    free(v);
    return true;
}

int64_t tr_saving_last(const struct tr_saving *v)
{
    return v->saved_step;
}

bool tr_saving_is_saved(const struct tr_saving *v, int64_t step)
{
    return v->saved_step == step && !tr_saver_is_busy(v->saver);
}

double tr_saving_seconds(const struct tr_saving *v)
{
    return v->last_s;
}

/* The step's evaluation and its checkpoint are there, or on their way. */
static void take_best(struct tr_saving *v, int64_t step)
{
    struct tr_run_best *best = &v->opt.state->best;
    if (v->eval_step == step && isfinite(v->eval_loss) && (!best->exists || v->eval_loss < best->loss))
        *best = (struct tr_run_best){ true, step, v->eval_loss };
}

void tr_saving_evaluated(struct tr_saving *v, int64_t step, double loss)
{
    v->eval_step = step;
    v->eval_loss = loss;
    if (v->saved_step == step) /* before the evaluation, which a signal had cut short */
        take_best(v, step);
}

static enum tr_status trainer_state(void *ctx, int64_t step, struct tr_str *out)
{
    struct tr_saving *v = ctx;
    return tr_trainer_state_write(v->cfg, &v->history, step, v->opt.in->total_steps, v->tokens, v->flops_per_token,
                                  out);
}

/* ---- the result of a save ---- */

static void report_fault(struct tr_saving *v, int rank, const char *action, const char *cause)
{
    struct tr_event_fault f = { .rank = rank, .host = "", .phase = "checkpoint", .action = action, .cause = cause };
    tr_observe_fault(v->opt.ob, &f);
}

static enum tr_status report(struct tr_saving *v, const struct tr_save_result *r)
{
    char path[TR_PATH_MAX];
    v->hang_is_reported = false;
    v->last_s = (double)(tr_clock_us() - v->start_us) * 1e-6;
    if (r->status != TR_OK) {
        report_fault(v, r->rank, "goes on without this checkpoint", r->cause);
        v->saved_step = -1;
        v->opt.state->best = v->last_best;
        v->n_failed++;
        if (v->cfg->max_save_failures > 0 && v->n_failed >= v->cfg->max_save_failures)
            return tr_fail(TR_IO, "%" PRId64 " saves in a row have failed, the last with: %s", v->n_failed, r->cause);
        return TR_OK;
    }
    v->n_failed = 0;
    enum tr_status st = tr_ckpt_step_path(v->cfg->output, r->step, path);
    struct tr_event_checkpoint e = { .step = r->step,
                                     .path = path,
                                     .stall_s = (double)(v->lost_us + tr_clock_us() - v->enter_us) * 1e-6,
                                     .write_s = r->write_s,
                                     .bytes = r->bytes,
                                     .verified = r->is_verified };
    if (st == TR_OK)
        tr_observe_checkpoint(v->opt.ob, &e);
    if (r->stays[0])
        report_fault(v, 0, "goes on; removes it after a later save", r->stays);
    return st;
}

static enum tr_status poll_save(struct tr_saving *v)
{
    struct tr_save_result r;
    bool is_done = false;
    enum tr_status st = tr_saver_poll(v->saver, &is_done, &r);
    if (st == TR_OK && is_done)
        return report(v, &r);
    if (st == TR_OK && !v->hang_is_reported && tr_saver_age(v->saver) > v->cfg->save_timeout) {
        report_fault(v, 0, "goes on without a new checkpoint", "the disk does not answer");
        v->hang_is_reported = true;
    }
    return st;
}

/* Waits at most `seconds` for the save in flight; *is_late when it takes longer. */
static enum tr_status wait_for(struct tr_saving *v, double seconds, bool *is_late)
{
    struct tr_save_result r;
    bool is_done = false;
    enum tr_status st = tr_saver_wait(v->saver, seconds, &is_done, &r);
    *is_late = st == TR_TIMEOUT && tr_saver_is_busy(v->saver);
    if (st == TR_OK && is_done)
        st = report(v, &r);
    return *is_late ? TR_OK : st;
}

/* ---- start of a save ---- */

static enum tr_status skip(struct tr_saving *v, int64_t step)
{
    char fields[96], text[160];
    v->n_skipped++;
    TR_PASS(tr_format(fields, sizeof fields, "\"step\":%" PRId64 ",\"skipped\":%" PRId64 ",\"age_s\":%.3f", step,
                      v->n_skipped, tr_saver_age(v->saver)));
    TR_PASS(tr_format(text, sizeof text,
                      "no checkpoint of step %" PRId64 ": the one before is still being written (%" PRId64
                      " skipped so far)",
                      step, v->n_skipped));
    tr_observe_note(v->opt.ob, "checkpoint_skipped", fields, text);
    return TR_OK;
}

static enum tr_status start(struct tr_saving *v, int64_t step, int64_t tokens)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    struct tr_run_state *s = v->opt.state;
    bool is_started = false;
    tr_phase_enter(TR_PHASE_SAVE, TR_PLACE_NONE, 0);
    v->start_us = v->enter_us = tr_clock_us();
    v->lost_us = 0;
    v->last_best = s->best;
    s->step = step;
    s->tokens = v->tokens = tokens;
    take_best(v, step);
    v->history.best_step = s->best.exists ? s->best.step : -1;
    v->history.best_metric = tr_config_best_of(v->cfg) == TR_BEST_LOSS ? s->best.loss : -s->best.loss;
    TR_TRY(tr_exec_drain(v->opt.e)); /* an update that fails here is no failure of the save: it ends the run */
    TR_TRY(tr_state_write(s, v->opt.in, &text));
    struct tr_save_job job = { .output = v->cfg->output,
                               .run_id = s->run_id,
                               .step = step,
                               .generation = s->generation,
                               .state = text.p,
                               .trainer_state = trainer_state,
                               .ctx = v,
                               .keep = { v->cfg->save_total_limit, v->cfg->save_keep_every,
                                         v->cfg->save_best || v->cfg->load_best_model_at_end } };
    TR_TRY(tr_saver_start(v->saver, &job, &is_started));
    v->saved_step = step;
out:
    tr_str_release(&text);
    return st;
}

/* Loads the checkpoint that was just saved and compares it with memory. This proves that a restart begins with the same
 * bits. */
static enum tr_status restore(struct tr_saving *v, int64_t step)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_ckpt_step_path(v->cfg->output, step, path);
    return st == TR_OK ? tr_compare_checkpoint(v->opt.e, path, v->opt.s->save_dtype) : st;
}

/* Starts a save. With `waits` the checkpoint is on the disk afterwards, or *is_late is set. */
static enum tr_status save(struct tr_saving *v, int64_t step, int64_t tokens, bool waits, bool *is_late)
{
    TR_PASS(start(v, step, tokens));
    if (waits)
        TR_PASS(wait_for(v, v->cfg->save_timeout, is_late));
    if (v->cfg->verify_restore && !*is_late && v->saved_step == step)
        TR_PASS(restore(v, step));
    return TR_OK;
}

static enum tr_status after_step(struct tr_saving *v, bool is_due, int64_t step, int64_t tokens)
{
    bool is_late = false;
    if (tr_saver_is_busy(v->saver))
        TR_PASS(poll_save(v));
    if (!is_due)
        return TR_OK;
    TR_PASS(wait_for(v, v->cfg->save_wait, &is_late));
    if (is_late)
        return skip(v, step);
    TR_PASS(save(v, step, tokens, v->waits, &is_late));
    return TR_OK;
}

enum tr_status tr_saving_step(struct tr_saving *v, bool is_due, int64_t step, int64_t tokens)
{
    v->enter_us = tr_clock_us();
    enum tr_status st = after_step(v, is_due, step, tokens);
    v->lost_us += tr_clock_us() - v->enter_us;
    return st;
}

enum tr_status tr_saving_finish(struct tr_saving *v, int64_t step, int64_t tokens)
{
    bool is_late = false;
    v->enter_us = tr_clock_us();
    TR_PASS(wait_for(v, v->cfg->save_timeout, &is_late));
    if (!is_late && v->saved_step != step)
        TR_PASS(save(v, step, tokens, true, &is_late));
    if (is_late)
        report_fault(v, 0, "the last checkpoint is given up", "the disk does not answer");
    return TR_OK;
}

enum tr_status tr_saving_model(struct tr_saving *v)
{
    return tr_saver_model(v->saver, v->cfg->output);
}
