/* state.c - state.json and trainer_state.json: written at each checkpoint, read on resume. */
#include "train/state.h"
#include <float.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATE_SCHEMA = 1 };

enum tr_status tr_state_new(struct tr_run_state *s)
{
    uint64_t bits[2] = { 0 };
    if (getentropy(bits, sizeof bits) != 0)
        bits[0] = (uint64_t)tr_clock_us(), bits[1] = (uint64_t)getpid();
    *s = (struct tr_run_state){ 0 };
    return tr_format(s->run_id, sizeof s->run_id, "%016" PRIx64 "%08" PRIx64, bits[0], bits[1] & 0xffffffffu);
}

/* Options that decide the bits of a run. A resume that changes one is another run (C14). */
static const char *const input_options[] = { "train_batch_size",
                                             "seed",
                                             "data_seed",
                                             "train_sampling_strategy",
                                             "optim",
                                             "learning_rate",
                                             "weight_decay",
                                             "adam_beta1",
                                             "adam_beta2",
                                             "adam_epsilon",
                                             "momentum",
                                             "max_grad_norm",
                                             "warmup_steps",
                                             "decay_steps",
                                             "min_lr_ratio",
                                             "warmup_type",
                                             "decay_type",
                                             "lr_num_cycles",
                                             "lr_end",
                                             "lr_power",
                                             "lr_timescale",
                                             "lr_scheduler_type",
                                             "dropout",
                                             "neftune_noise_alpha",
                                             "use_dft_loss",
                                             "loss_weights",
                                             "label_smoothing_factor",
                                             "z_loss",
                                             "task",
                                             "loss_type",
                                             "beta",
                                             "label_smoothing",
                                             "simpo_gamma",
                                             "rpo_alpha",
                                             "ld_alpha",
                                             "use_weighting",
                                             "f_divergence_type",
                                             "f_alpha_divergence_coef",
                                             "discopop_tau",
                                             "desirable_weight",
                                             "undesirable_weight",
                                             "master_dtype",
                                             "moment_dtype",
                                             "grad_dtype",
                                             "dtype",
                                             "base_dtype",
                                             "load_in_4bit",
                                             "bnb_4bit_quant_type",
                                             "bnb_4bit_use_double_quant",
                                             "fp8",
                                             "fp8_gradient",
                                             "fp8_scaling" };

/* The number of steps is an input only where the learning rate depends on it. */
static int64_t schedule_steps(const struct tr_run_inputs *in)
{
    enum tr_lr_schedule k = in->cfg->lr_scheduler_type;
    return k == TR_LR_CONSTANT || k == TR_LR_CONSTANT_WITH_WARMUP ? 0 : in->total_steps;
}

/* What the file of optim_groups says, not its name: its content may have changed. */
static void add_groups(const struct tr_param_groups *g, struct tr_str *out)
{
    tr_str_addf(out, ", \"optim_groups\": [");
    for (int i = 1; i < g->n; i++) {
        tr_str_addf(out, "%s{\"pattern\": ", i > 1 ? ", " : "");
        tr_str_json(out, g->group[i].pattern);
        tr_str_addf(out, ", \"lr_factor\": %.17g", g->group[i].lr_factor);
        if (g->group[i].has_decay)
            tr_str_addf(out, ", \"weight_decay\": %.17g", g->group[i].weight_decay);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]");
}

static enum tr_status add_inputs(const struct tr_run_inputs *in, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    struct tr_data_info info;
    struct tr_str text = { 0 };
    cJSON *options = NULL;
    char hex[33];
    tr_data_get_info(in->data, &info);
    tr_hash_hex(info.hash, hex);
    tr_str_addf(out, "{\"data_hash\": \"%s\", \"sequence_length\": %" PRId64 ", \"schedule_steps\": %" PRId64, hex,
                tr_data_row_tokens(in->data), schedule_steps(in));
    if (in->tok) {
        tr_hash_hex(tr_tokenizer_hash(in->tok), hex);
        tr_str_addf(out, ", \"tokenizer_hash\": \"%s\"", hex);
    }
    add_groups(in->groups, out);
    if (in->base) {
        tr_base_id_hex(in->base, hex);
        tr_str_addf(out, ", \"base\": \"%s\"", hex);
    }
    tr_config_json(in->cfg, false, &text);
    TR_TRY(tr_str_check(&text, "the options of the run"));
    TR_TRY(tr_json_parse(text.p, text.n, "options", &options));
    for (size_t i = 0; i < TR_COUNT_OF(input_options); i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(options, input_options[i]);
        char *value = item ? cJSON_PrintUnformatted(item) : NULL;
        if (item && !value) /* null in the file would mean another run */
            TR_TRY(tr_fail(TR_NOMEM, "no memory for the inputs of the run"));
        tr_str_addf(out, ", \"%s\": %s", input_options[i], value ? value : "null");
        cJSON_free(value);
    }
    tr_str_addf(out, "}");
    TR_TRY(tr_str_check(out, "the inputs of the run"));
out:
    cJSON_Delete(options);
    tr_str_release(&text);
    return st;
}

/* Update k is in row k % TR_AMAX_STEPS. Nine digits restore every float exactly. */
static void add_amax(const struct tr_amax_history *p, struct tr_str *out)
{
    if (!p || p->n == 0)
        return;
    tr_str_addf(out, ", \"fp8_past\": {\"steps\": %" PRId64 ", \"largest\": [", p->n_steps);
    for (size_t i = 0; i < TR_AMAX_STEPS * p->n; i++)
        tr_str_addf(out, "%s%.9g", i ? ", " : "", (double)p->amax[i]);
    tr_str_addf(out, "]}");
}

enum tr_status tr_state_write(const struct tr_run_state *s, const struct tr_run_inputs *in, struct tr_str *out)
{
    tr_str_addf(out,
                "{\"schema\": %d, \"run\": \"%s\", \"generation\": %" PRId64 ", \"step\": %" PRId64
                ", \"total_steps\": %" PRId64 ", \"tokens\": %" PRId64 ", \"samples\": %" PRId64
                ", \"skipped\": %" PRId64,
                STATE_SCHEMA, s->run_id, s->generation, s->step, in->total_steps, s->tokens,
                s->step * in->cfg->train_batch_size, s->skipped);
    tr_str_addf(out,
                ", \"rng\": {\"kind\": \"philox4x32-10\", \"seed\": %" PRId64 ", \"counter\": %" PRId64
                "}, \"loss_scale\": ",
                in->cfg->seed, s->step);
    if (s->scaler.scale > 0)
        tr_str_addf(out, "{\"scale\": %.0f, \"good_steps\": %" PRId64 ", \"skipped\": %" PRId64 "}", s->scaler.scale,
                    s->scaler.n_good, s->scaler.n_skipped);
    else
        tr_str_addf(out, "null");
    add_amax(s->amax, out);
    if (in->cfg->save_only_model)
        tr_str_addf(out, ", \"only_model\": true");
    if (s->lacks_eval)
        tr_str_addf(out, ", \"lacks_eval\": true");
    tr_str_addf(out, ", \"overrides\": ");
    tr_ledger_write(&s->ledger, out);
    tr_str_addf(out, ", \"best\": ");
    if (s->best.exists)
        tr_str_addf(out, "{\"step\": %" PRId64 ", \"loss\": %.17g, \"of\": %d}", s->best.step, s->best.loss,
                    (int)tr_config_best_of(in->cfg));
    else
        tr_str_addf(out, "null");
    if (s->patience.exists && (in->cfg->early_stopping_patience > 0 || in->cfg->save_strategy == TR_WHEN_BEST))
        tr_str_addf(out, ", \"patience\": {\"step\": %" PRId64 ", \"loss\": %.17g, \"worse\": %" PRId64 ", \"of\": %d}",
                    s->patience.best_step, s->patience.best, s->patience.n_worse, (int)tr_config_best_of(in->cfg));
    tr_str_addf(out, ", \"world\": %" PRId64 ", \"inputs\": ", in->cfg->dp * in->cfg->tp * in->cfg->pp * in->cfg->cp);
    TR_PASS(add_inputs(in, out));
    tr_str_addf(out, ", \"origin\": %s, \"config\": ", s->origin ? s->origin : "null");
    tr_config_json(in->cfg, false, out);
    tr_str_addf(out, "}\n");
    return tr_str_check(out, "state.json");
}

static bool same_item(const cJSON *a, const cJSON *b)
{
    return b && cJSON_Compare(a, b, true);
}

static bool is_allowed(const struct tr_config *cfg, const char *name)
{
    return tr_row_find(cfg->allow_change.item, cfg->allow_change.n, sizeof *cfg->allow_change.item, name) != NULL;
}

static const char *const derived_inputs[] = { "data_hash", "sequence_length", "schedule_steps", "tokenizer_hash",
                                              "optim_groups" };

static bool is_input(const char *name)
{
    return TR_ROW(derived_inputs, name) || TR_ROW(input_options, name);
}

enum tr_status tr_state_check_allowed(const struct tr_config *cfg)
{
    struct tr_str known = { 0 };
    enum tr_status st = TR_OK;
    for (size_t i = 0; i < TR_COUNT_OF(derived_inputs); i++)
        tr_str_addf(&known, "%s%s", i ? ", " : "", derived_inputs[i]);
    for (size_t i = 0; i < TR_COUNT_OF(input_options); i++)
        tr_str_addf(&known, ", %s", input_options[i]);
    for (size_t i = 0; i < cfg->allow_change.n && st == TR_OK; i++)
        if (!is_input(cfg->allow_change.item[i]))
            st = tr_fail(TR_USAGE, "allow_change: %s is not an input of a run; the inputs are %s",
                         cfg->allow_change.item[i], tr_str_ok(&known) ? known.p : "");
    tr_str_release(&known);
    return st;
}

/* May the run have another length? Yes, where the steps that were made would have had the same rates: then the run is
 * what one of the new length would be after them. */
static bool keeps_rates(const struct tr_config *cfg, int64_t step, int64_t was, int64_t is)
{
    for (int64_t k = 0; k < step; k++)
        if (tr_lr_at(cfg, k, was) != tr_lr_at(cfg, k, is))
            return false;
    return was > 0;
}

struct input_diff {
    struct tr_str text, names; /* of inputs that may not differ */
};

/* One input that differs: refused, or said. */
static void judge_input(const cJSON *old, const cJSON *now, int64_t step, const struct tr_run_inputs *in,
                        struct input_diff *d, struct tr_str *notes)
{
    char *was = cJSON_PrintUnformatted(old), *is = cJSON_PrintUnformatted(now);
    bool is_length = strcmp(now->string, "schedule_steps") == 0 && cJSON_IsNumber(old);
    if (in->may_differ)
        tr_str_addf(notes, "another run than the one that is replayed: %s was %s, is %s\n", now->string,
                    was ? was : "?", is ? is : "?");
    else if (is_length && keeps_rates(in->cfg, step, (int64_t)old->valuedouble, in->total_steps))
        tr_str_addf(notes, "the run was to have %s steps and has %s now; the learning rates so far are the same\n",
                    was ? was : "?", is ? is : "?");
    else {
        tr_str_addf(&d->text, "%s%s was %s, is %s", d->text.n ? "; " : "", now->string, was ? was : "?", is ? is : "?");
        tr_str_addf(&d->names, "%s%s", d->names.n ? "," : "", now->string);
    }
    cJSON_free(was);
    cJSON_free(is);
}

static enum tr_status compare_inputs(const cJSON *saved, int64_t step, const struct tr_run_inputs *in,
                                     struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct input_diff d = { 0 };
    struct tr_str text = { 0 };
    cJSON *now = NULL;
    TR_TRY(add_inputs(in, &text));
    TR_TRY(tr_json_parse(text.p, text.n, "inputs", &now));
    for (const cJSON *k = now->child; k; k = k->next) {
        const cJSON *old = cJSON_GetObjectItemCaseSensitive(saved, k->string);
        /* an absent input: an older build did not know it */
        if (old && !same_item(k, old) && !is_allowed(in->cfg, k->string))
            judge_input(old, k, step, in, &d, notes);
    }
    const cJSON *batch = cJSON_GetObjectItemCaseSensitive(saved, "train_batch_size");
    if (d.text.n && cJSON_IsNumber(batch) && (int64_t)batch->valuedouble != in->cfg->train_batch_size)
        tr_str_addf(&d.text,
                    " (%" PRId64 " rows x %" PRId64 " micro-batches x dp %" PRId64
                    "; --train_batch_size %.0f keeps it)",
                    in->cfg->per_device_train_batch_size, in->cfg->gradient_accumulation_steps, in->cfg->dp,
                    batch->valuedouble);
    if (d.text.n)
        st = tr_fail(
            TR_USAGE,
            "resume: inputs changed: %s; restore them, allow it with --allow_change %s, or start a new --output from "
            "this checkpoint with --model",
            d.text.p, d.names.p);
out:
    cJSON_Delete(now);
    tr_str_release(&text);
    tr_str_release(&d.text);
    tr_str_release(&d.names);
    return st;
}

/* Is what the state has of the best step a metric that this run has too? Others cannot be compared. */
static enum tr_status is_of(const cJSON *best, enum tr_best_of of, bool *out)
{
    int64_t own = TR_BEST_LOSS;
    TR_PASS(tr_json_int(best, "of", false, 0, TR_BEST_MARGIN, &own));
    *out = own == (int64_t)of;
    return TR_OK;
}

static enum tr_status read_best(const cJSON *j, enum tr_best_of of, struct tr_run_best *out)
{
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(j, "best");
    bool is_ours = false;
    TR_PASS(cJSON_IsObject(best) ? is_of(best, of, &is_ours) : TR_OK);
    if (!is_ours)
        return TR_OK;
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(best, "loss");
    TR_PASS(tr_json_int(best, "step", true, 0, INT64_C(1) << 52, &out->step));
    out->exists = cJSON_IsNumber(loss);
    out->loss = out->exists ? loss->valuedouble : 0;
    return TR_OK;
}

static enum tr_status read_patience(const cJSON *j, enum tr_best_of of, struct tr_run_patience *out)
{
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(j, "patience");
    bool is_ours = false;
    TR_PASS(cJSON_IsObject(p) ? is_of(p, of, &is_ours) : TR_OK);
    if (!is_ours)
        return TR_OK;
    TR_PASS(tr_json_int(p, "step", true, 0, INT64_C(1) << 52, &out->best_step));
    TR_PASS(tr_json_int(p, "worse", true, 0, INT64_C(1) << 52, &out->n_worse));
    TR_PASS(tr_json_real(p, "loss", true, &out->best));
    out->exists = true;
    return TR_OK;
}

/* Absent or null: the scale stays as in a new run (another dtype was saved, and --allow_change permitted it). */
static enum tr_status read_scaler(const cJSON *j, int64_t step, struct tr_scaler *s)
{
    const cJSON *saved = cJSON_GetObjectItemCaseSensitive(j, "loss_scale");
    int64_t scale = 0;
    if (!cJSON_IsObject(saved) || s->scale == 0)
        return TR_OK;
    TR_PASS(tr_json_int(saved, "scale", true, TR_SCALE_LEAST, TR_SCALE_MOST, &scale));
    TR_PASS(tr_json_int(saved, "good_steps", true, 0, TR_SCALE_GROWS_AFTER, &s->n_good));
    TR_PASS(tr_json_int(saved, "skipped", true, 0, step, &s->n_skipped));
    if ((scale & (scale - 1)) != 0)
        return tr_fail(TR_USAGE, "state.json: loss_scale %" PRId64 " is not a power of two", scale);
    s->scale = (double)scale;
    return TR_OK;
}

/* Absent: the saved run had no amax history; the first step takes its scales from the current values. */
static enum tr_status read_amax(const cJSON *j, int64_t step, struct tr_amax_history *p)
{
    const cJSON *saved = cJSON_GetObjectItemCaseSensitive(j, "fp8_past"), *x;
    int64_t n_steps = 0;
    size_t i = 0;
    if (!cJSON_IsObject(saved) || !p || p->n == 0)
        return TR_OK;
    TR_PASS(tr_json_int(saved, "steps", true, 0, step, &n_steps));
    const cJSON *largest = cJSON_GetObjectItemCaseSensitive(saved, "largest");
    cJSON_ArrayForEach(x, largest)
    {
        if (i < TR_AMAX_STEPS * p->n && cJSON_IsNumber(x) && x->valuedouble >= 0 && x->valuedouble <= FLT_MAX)
            p->amax[i++] = (float)x->valuedouble;
        else
            return tr_fail(
                TR_USAGE,
                "state.json: fp8_past: element %zu is not a finite number of at least 0, or this model has fewer", i);
    }
    if (i != TR_AMAX_STEPS * p->n)
        return tr_fail(TR_USAGE, "state.json: fp8_past has %zu elements, but this model needs %zu", i,
                       TR_AMAX_STEPS * p->n);
    p->n_steps = n_steps;
    return TR_OK;
}

enum tr_status tr_state_load(const char *dir, const struct tr_sums *sums, struct tr_run_state *s,
                             const struct tr_run_inputs *in, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    cJSON *j = NULL;
    const char *run = NULL;
    int64_t schema = 0, generation = 0, step = 0, tokens = 0, skipped = 0;
    TR_TRY(tr_path_join(path, dir, "trireme/state.json"));
    TR_TRY(tr_sums_read(sums, dir, "trireme/state.json", 4 << 20, &text, &n));
    TR_TRY(tr_json_parse(text, n, path, &j));
    TR_TRY(tr_json_int(j, "schema", true, 1, INT64_C(1) << 52, &schema));
    if (schema > STATE_SCHEMA)
        TR_TRY(tr_fail(TR_USAGE, "%s: format %" PRId64 " is newer than this build's %d; use a newer trireme", path,
                       schema, STATE_SCHEMA));
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "only_model")))
        TR_TRY(tr_fail(
            TR_USAGE,
            "%s was saved with save_only_model: a run cannot go on from it; a new one starts from it with --model %s "
            "and another --output",
            dir, dir));
    TR_TRY(tr_json_str(j, "run", true, &run));
    TR_TRY(tr_json_int(j, "generation", true, 0, INT64_C(1) << 52, &generation));
    TR_TRY(tr_json_int(j, "step", true, 0, INT64_C(1) << 52, &step));
    TR_TRY(tr_json_int(j, "tokens", true, 0, INT64_C(1) << 53, &tokens));
    TR_TRY(tr_json_int(j, "skipped", false, 0, INT64_C(1) << 52, &skipped));
    TR_TRY(read_best(j, tr_config_best_of(in->cfg), &s->best));
    TR_TRY(read_patience(j, tr_config_best_of(in->cfg), &s->patience));
    TR_TRY(tr_json_bool(j, "lacks_eval", false, &s->lacks_eval));
    TR_TRY(read_scaler(j, step, &s->scaler));
    TR_TRY(tr_ledger_read(cJSON_GetObjectItemCaseSensitive(j, "overrides"), path, &s->ledger));
    TR_TRY(read_amax(j, step, s->amax));
    TR_TRY(compare_inputs(cJSON_GetObjectItemCaseSensitive(j, "inputs"), step, in, notes));
    if (step > in->total_steps)
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: step %" PRId64 " is past the %" PRId64
                       " steps of this run; raise --max_steps or --num_train_epochs",
                       dir, step, in->total_steps));
    TR_TRY(tr_format(s->run_id, sizeof s->run_id, "%s", run));
    s->generation = generation + 1;
    s->step = step;
    s->tokens = tokens;
    s->skipped = skipped;
out:
    cJSON_Delete(j);
    free(text);
    return st;
}

/* ---- trainer_state.json: what HF's tools plot ---- */

enum tr_status tr_trainer_state_write(const struct tr_config *cfg, struct tr_history *history, int64_t step,
                                      int64_t total_steps, int64_t tokens, double flops_per_token, struct tr_str *out)
{
    char best[TR_PATH_MAX] = "";
    tr_history_update(history, step);
    if (history->best_step >= 0)
        TR_PASS(tr_ckpt_step_path(cfg->output, history->best_step, best));
    tr_str_addf(
        out,
        "{\n  \"epoch\": %.6g,\n  \"global_step\": %" PRId64 ",\n  \"max_steps\": %" PRId64
        ",\n  \"logging_steps\": %" PRId64 ",\n  \"eval_steps\": %" PRId64 ",\n  \"save_steps\": %" PRId64
        ",\n  \"train_batch_size\": %" PRId64 ",\n  \"num_train_epochs\": %.6g,\n  \"num_input_tokens_seen\": %" PRId64
        ",\n  \"total_flos\": %.9g,\n"
        "  \"is_hyper_param_search\": false,\n  \"is_local_process_zero\": true,\n  \"is_world_process_zero\": true,\n"
        "  \"trial_name\": null,\n  \"trial_params\": null,\n  \"stateful_callbacks\": {},\n",
        tr_history_epoch(history, step), step, total_steps, history->logging_steps,
        tr_config_steps(cfg->eval_steps, total_steps), tr_config_steps(cfg->save_steps, total_steps),
        cfg->per_device_train_batch_size, cfg->num_train_epochs, tokens, flops_per_token * (double)tokens);
    if (best[0]) {
        tr_str_addf(out, "  \"best_global_step\": %" PRId64 ",\n  \"best_metric\": %.9g,\n", history->best_step,
                    history->best_metric);
        tr_str_member(out, "  \"best_model_checkpoint\": ", best);
        tr_str_addf(out, ",\n");
    } else {
        tr_str_addf(out,
                    "  \"best_global_step\": null,\n  \"best_metric\": null,\n  \"best_model_checkpoint\": null,\n");
    }
    tr_str_addf(out, "  \"log_history\": [");
    tr_str_add(out, history->text.p, history->text.n);
    tr_str_addf(out, "%s]\n}\n", history->text.n ? "\n  " : "");
    return tr_str_ok(out) && tr_str_ok(&history->text) ? TR_OK : tr_fail(TR_NOMEM, "trainer_state.json: out of memory");
}
