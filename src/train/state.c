/* state.c - state.json and trainer_state.json: written at each checkpoint, read on resume. */
#include "train/state.h"
#include <stdio.h>
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

/* Values that decide which bits a run makes; a resume that changes one is another run. */
static void add_inputs(const struct tr_config *cfg, const struct tr_data *data, struct tr_str *out)
{
    struct tr_data_info info;
    char hex[33];
    tr_data_get_info(data, &info);
    tr_hash_hex(info.hash, hex);
    tr_str_addf(out,
                "{\"data_hash\": \"%s\", \"train_batch_size\": %" PRId64 ", \"seed\": %" PRId64
                ", \"optim\": \"%s\", \"sequence_length\": %" PRId64 "}",
                hex, cfg->train_batch_size, cfg->seed, tr_optim_row(cfg->optim)->name, tr_data_row_tokens(data));
}

enum tr_status tr_state_write(const struct tr_run_state *s, const struct tr_config *cfg, const struct tr_data *data,
                              int64_t total_steps, struct tr_str *out)
{
    tr_str_addf(out,
                "{\"schema\": %d, \"run\": \"%s\", \"generation\": %" PRId64 ", \"step\": %" PRId64
                ", \"total_steps\": %" PRId64 ", \"tokens\": %" PRId64 ", \"samples\": %" PRId64
                ", \"skipped\": %" PRId64 ", \"inputs\": ",
                STATE_SCHEMA, s->run_id, s->generation, s->step, total_steps, s->tokens,
                s->step * cfg->train_batch_size, s->skipped);
    add_inputs(cfg, data, out);
    tr_str_addf(out, ", \"config\": ");
    tr_config_json(cfg, false, out);
    tr_str_addf(out, "}\n");
    return tr_str_ok(out) ? TR_OK : tr_fail(TR_NOMEM, "state.json: out of memory");
}

static bool same_item(const cJSON *a, const cJSON *b)
{
    return b && cJSON_Compare(a, b, true);
}

static enum tr_status compare_inputs(const cJSON *saved, const struct tr_config *cfg, const struct tr_data *data)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 }, diff = { 0 };
    cJSON *now = NULL;
    add_inputs(cfg, data, &text);
    TR_TRY(tr_json_parse(text.p, text.n, "inputs", &now));
    for (const cJSON *k = now->child; k; k = k->next) {
        const cJSON *old = cJSON_GetObjectItemCaseSensitive(saved, k->string);
        if (same_item(k, old))
            continue;
        char *was = old ? cJSON_PrintUnformatted(old) : NULL, *is = cJSON_PrintUnformatted(k);
        tr_str_addf(&diff, "%s%s was %s, is %s", diff.n ? "; " : "", k->string, was ? was : "absent", is ? is : "?");
        cJSON_free(was);
        cJSON_free(is);
    }
    const cJSON *batch = cJSON_GetObjectItemCaseSensitive(saved, "train_batch_size");
    if (diff.n && cJSON_IsNumber(batch) && (int64_t)batch->valuedouble != cfg->train_batch_size)
        tr_str_addf(
            &diff, " (%" PRId64 " rows x %" PRId64 " micro-batches x dp %" PRId64 "; --train_batch_size %.0f keeps it)",
            cfg->per_device_train_batch_size, cfg->gradient_accumulation_steps, cfg->dp, batch->valuedouble);
    if (diff.n)
        st = tr_fail(
            TR_USAGE,
            "resume: inputs changed: %s; restore them, or start a new --output from this checkpoint with --model",
            diff.p);
out:
    cJSON_Delete(now);
    tr_str_release(&text);
    tr_str_release(&diff);
    return st;
}

enum tr_status tr_state_load(const char *dir, struct tr_run_state *s, const struct tr_config *cfg,
                             const struct tr_data *data, int64_t total_steps)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    cJSON *j = NULL;
    const char *run = NULL;
    int64_t schema = 0, generation = 0, step = 0, tokens = 0, skipped = 0;
    TR_TRY(tr_path_join(path, dir, "trireme/state.json"));
    TR_TRY(tr_json_load(path, 1 << 20, &j));
    TR_TRY(tr_json_int(j, "schema", true, 1, INT64_C(1) << 52, &schema));
    if (schema > STATE_SCHEMA)
        TR_TRY(tr_fail(TR_USAGE, "%s: format %" PRId64 " is newer than this build's %d; use a newer trireme", path,
                       schema, STATE_SCHEMA));
    TR_TRY(tr_json_str(j, "run", true, &run));
    TR_TRY(tr_json_int(j, "generation", true, 0, INT64_C(1) << 52, &generation));
    TR_TRY(tr_json_int(j, "step", true, 0, INT64_C(1) << 52, &step));
    TR_TRY(tr_json_int(j, "tokens", true, 0, INT64_C(1) << 53, &tokens));
    TR_TRY(tr_json_int(j, "skipped", false, 0, INT64_C(1) << 52, &skipped));
    TR_TRY(compare_inputs(cJSON_GetObjectItemCaseSensitive(j, "inputs"), cfg, data));
    if (step > total_steps)
        TR_TRY(tr_fail(TR_USAGE,
                       "%s: step %" PRId64 " is past the %" PRId64
                       " steps of this run; raise --max_steps or --num_train_epochs",
                       dir, step, total_steps));
    TR_TRY(tr_format(s->run_id, sizeof s->run_id, "%s", run));
    s->generation = generation + 1;
    s->step = step;
    s->tokens = tokens;
    s->skipped = skipped;
out:
    cJSON_Delete(j);
    return st;
}

/* ---- trainer_state.json: what HF's tools plot ---- */

static void add_history_line(const char *line, size_t n, int64_t logging_steps, int64_t rows_per_epoch_steps,
                             bool *is_first, struct tr_str *out)
{
    cJSON *j = NULL;
    if (tr_json_parse(line, n, "events", &j) != TR_OK) {
        tr_error_clear();
        return;
    }
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(j, "event"),
                *step = cJSON_GetObjectItemCaseSensitive(j, "step");
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(j, "loss"),
                *norm = cJSON_GetObjectItemCaseSensitive(j, "grad_norm");
    const cJSON *lr = cJSON_GetObjectItemCaseSensitive(j, "lr");
    if (cJSON_IsString(kind) && cJSON_IsNumber(step) && cJSON_IsNumber(loss)) {
        bool is_step = strcmp(kind->valuestring, "step") == 0, is_eval = strcmp(kind->valuestring, "eval") == 0;
        int64_t at = (int64_t)step->valuedouble;
        double epoch = rows_per_epoch_steps > 0 ? (double)at / (double)rows_per_epoch_steps : 0;
        if (is_step && logging_steps > 0 && at % logging_steps == 0 && cJSON_IsNumber(norm) && cJSON_IsNumber(lr))
            tr_str_addf(out,
                        "%s\n    {\"epoch\": %.6g, \"grad_norm\": %.9g, \"learning_rate\": %.9g, \"loss\": %.9g, "
                        "\"step\": %" PRId64 "}",
                        *is_first ? "" : ",", epoch, norm->valuedouble, lr->valuedouble, loss->valuedouble, at);
        else if (is_eval)
            tr_str_addf(out, "%s\n    {\"epoch\": %.6g, \"eval_loss\": %.9g, \"step\": %" PRId64 "}",
                        *is_first ? "" : ",", epoch, loss->valuedouble, at);
        else
            is_step = false;
        if (is_step || is_eval)
            *is_first = false;
    }
    cJSON_Delete(j);
}

enum tr_status tr_trainer_state_write(const struct tr_config *cfg, const struct tr_data *data, const char *events_path,
                                      int64_t step, int64_t total_steps, int64_t tokens, double flops_per_token,
                                      struct tr_str *out)
{
    int64_t epoch_steps = (int64_t)tr_data_steps(tr_data_rows(data), (uint64_t)cfg->train_batch_size);
    bool is_first = true;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    tr_str_addf(
        out,
        "{\n  \"epoch\": %.6g,\n  \"global_step\": %" PRId64 ",\n  \"max_steps\": %" PRId64
        ",\n  \"logging_steps\": %" PRId64 ",\n  \"eval_steps\": %" PRId64 ",\n  \"save_steps\": %" PRId64
        ",\n  \"train_batch_size\": %" PRId64 ",\n  \"num_train_epochs\": %.6g,\n  \"num_input_tokens_seen\": %" PRId64
        ",\n  \"total_flos\": %.9g,\n"
        "  \"best_global_step\": null,\n  \"best_metric\": null,\n  \"best_model_checkpoint\": null,\n"
        "  \"is_hyper_param_search\": false,\n  \"is_local_process_zero\": true,\n  \"is_world_process_zero\": true,\n"
        "  \"trial_name\": null,\n  \"trial_params\": null,\n  \"stateful_callbacks\": {},\n  \"log_history\": [",
        (double)step / (double)tr_max64(1, epoch_steps), step, total_steps, cfg->logging_steps, cfg->eval_steps,
        cfg->save_steps, cfg->per_device_train_batch_size, cfg->num_train_epochs, tokens,
        flops_per_token * (double)tokens);
    FILE *f = fopen(events_path, "re");
    while (f && (n = getline(&line, &cap, f)) > 0)
        add_history_line(line, (size_t)n, cfg->logging_steps, epoch_steps, &is_first, out);
    if (f)
        fclose(f);
    free(line);
    tr_str_addf(out, "%s]\n}\n", is_first ? "" : "\n  ");
    return tr_str_ok(out) ? TR_OK : tr_fail(TR_NOMEM, "trainer_state.json: out of memory");
}
