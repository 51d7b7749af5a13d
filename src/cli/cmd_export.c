/* cmd_export.c - trireme ckpt export of a model, and the rows on which weights are compared. */
#include "cli/cli.h"
#include "export/export.h"
#include <stdio.h>
#include <stdlib.h>

enum { ROW_TOKENS = 128 };

/* The options of a run of the directory: everything but a packed base is in float32. How the base of an adapter is
 * packed stands in its directory, where the options of this command do not say otherwise. */
enum tr_status ckpt_open_run(const struct tr_config *cfg, const char *dir, const struct tr_config **out)
{
    enum { FIXED = 12 };
    static const char *const packing[] = { "load_in_4bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant" };
    const char *const value[] = { cfg->load_in_4bit ? "true" : "false",
                                  tr_config_word(packing[1], (int)cfg->bnb_4bit_quant_type),
                                  cfg->bnb_4bit_use_double_quant ? "true" : "false" };
    size_t n = 0;
    char **argv = calloc(FIXED + 2 * cfg->data.n, sizeof *argv), name[TR_COUNT_OF(packing)][32];
    if (!argv)
        return tr_fail(TR_NOMEM, "out of memory");
    const char *fixed[] = { "--model", dir, "--dtype", "float32", "--model_base", cfg->model_base };
    for (size_t i = 0; i < (cfg->model_base ? TR_COUNT_OF(fixed) : TR_COUNT_OF(fixed) - 2); i++)
        argv[n++] = (char *)(uintptr_t)fixed[i];
    for (size_t i = 0; i < TR_COUNT_OF(packing); i++)
        if (tr_config_is_set(cfg, packing[i])) {
            snprintf(name[i], sizeof name[i], "--%s", packing[i]);
            argv[n++] = name[i];
            argv[n++] = (char *)(uintptr_t)value[i];
        }
    for (size_t i = 0; i < cfg->data.n; i++) {
        argv[n++] = (char *)(uintptr_t) "--data";
        argv[n++] = (char *)(uintptr_t)cfg->data.item[i].path;
    }
    enum tr_status st = tr_config_load(cfg->data.n ? TR_VERB_EVAL : TR_VERB_GENERATE, (int)n, argv, NULL, out);
    if (st == TR_OK)
        cli_warn(tr_config_notices(*out));
    free(argv);
    return st;
}

/* Rows of --data, else ids drawn at random. */
static enum tr_status fill_rows(const struct tr_config *run, const struct tr_model *m, int32_t *id, int64_t n,
                                int64_t n_tokens)
{
    enum tr_status st = TR_OK;
    struct tr_tokenizer *tok = NULL;
    struct tr_data *data = NULL;
    char cache[TR_PATH_MAX], *mem = NULL;
    struct tr_setup s = {
        .cfg = run, .sequence_length = n_tokens, .eval_model = (struct tr_model *)(uintptr_t)m, .n_threads = 1
    };
    uint64_t key = tr_rng_key(42, "merge", 0);
    for (int64_t i = 0; i < n * n_tokens; i++)
        id[i] = (int32_t)(tr_philox(key, 0, (uint64_t)i).v[0] % (uint64_t)m->hp.vocab);
    if (run->data.n == 0)
        return TR_OK;
    TR_TRY(tr_dirs_open(run, &s.from));
    TR_TRY(tr_reader_cache(run, cache));
    TR_TRY(tr_open_data(run, &s, &run->data, false, cache, &tok, &data));
    mem = malloc(tr_batch_bytes(n_tokens));
    if (!mem)
        TR_TRY(tr_fail(TR_NOMEM, "out of memory"));
    for (int64_t r = 0; r < n; r++) {
        struct tr_batch b = tr_batch_in(mem, n_tokens);
        int64_t n_targets = 0;
        TR_TRY(tr_data_fill(data, (uint64_t)r % tr_data_rows(data), 1, tr_data_rows(data), &b, &n_targets));
        memcpy(id + r * n_tokens, b.tokens, (size_t)n_tokens * sizeof *id);
    }
out:
    free(mem);
    tr_dirs_close(&s.from);
    tr_data_close(data);
    tr_tokenizer_close(tok);
    return st;
}

enum tr_status ckpt_read_rows(const struct tr_config *cfg, const struct tr_config *run, const struct tr_model *m,
                              struct tr_merge_rows *out)
{
    int64_t n_tokens = tr_min64(cfg->sequence_length > 0 ? cfg->sequence_length : ROW_TOKENS, m->hp.max_positions);
    int32_t *id = malloc((size_t)(cfg->rows * n_tokens + 1) * sizeof *id);
    enum tr_status st = id ? fill_rows(run, m, id, cfg->rows, n_tokens)
                           : tr_fail(TR_NOMEM, "out of memory for %" PRId64 " rows", cfg->rows);
    if (st == TR_OK)
        *out = (struct tr_merge_rows){ id, cfg->rows, n_tokens };
    else
        free(id);
    return st;
}

static void print_export(const struct tr_config *cfg, const struct tr_export_result *r)
{
    struct tr_str out = { 0 };
    char human[32];
    bool is_compared = cfg->rows > 0;
    if (cfg->json) {
        tr_str_addf(&out, "{\"to\": \"%s\", \"bytes\": %" PRIu64 ", \"rows\": %" PRId64,
                    tr_config_word("to", (int)cfg->to), r->bytes, cfg->rows);
        tr_str_addf(&out, is_compared ? ", \"max_logit_diff\": %.9g" : ", \"max_logit_diff\": null",
                    r->distance.max_logit_diff);
        tr_str_addf(&out, is_compared ? ", \"kl\": %.9g" : ", \"kl\": null", r->distance.kl);
        tr_str_addf(&out, ", \"notes\": ");
        tr_str_json(&out, r->notes.p ? r->notes.p : "");
        tr_str_addf(&out, ", \"next\": ");
        tr_str_json(&out, r->next.p ? r->next.p : "");
        tr_str_addf(&out, ", \"out\": ");
        tr_str_json(&out, cfg->output);
        tr_str_addf(&out, ", \"path\": ");
        tr_str_json(&out, cfg->output);
        tr_str_addf(&out, "}\n");
        cli_print(tr_str_ok(&out) ? out.p : "");
        tr_str_release(&out);
        return;
    }
    if (r->notes.n)
        tr_str_addf(&out, "%s", r->notes.p);
    tr_str_addf(&out, "%s of weights, ", tr_human_bytes(r->bytes, human, sizeof human));
    if (is_compared)
        tr_str_addf(&out,
                    "read back and run beside the trained ones over %" PRId64
                    " rows%s: mean KL divergence %.3g, largest "
                    "difference of a logit %.3g\n",
                    cfg->rows, cfg->data.n ? "" : " of random tokens", r->distance.kl, r->distance.max_logit_diff);
    else
        tr_str_addf(&out, "not compared with the trained ones (--rows 0)\n");
    tr_str_addf(&out, "next:\n%s%s\n", r->next.p, cfg->output);
    cli_print(tr_str_ok(&out) ? out.p : "");
    tr_str_release(&out);
}

enum tr_status ckpt_export_model(const struct tr_config *cfg, const char *dir)
{
    enum tr_status st = TR_OK;
    const struct tr_config *run = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    struct tr_model *m = NULL;
    struct tr_merge_rows rows = { 0 };
    struct tr_export_result result = { 0 };
    struct tr_export_job job = { .dir = dir, .out = cfg->output, .to = cfg->to, .rows = &rows };
    TR_TRY(ckpt_open_run(cfg, dir, &run));
    TR_TRY(tr_model_open(dir, &opt, &m));
    TR_TRY(ckpt_read_rows(cfg, run, m, &rows));
    TR_TRY(tr_pool_open((int)cfg->threads, &job.pool));
    job.run = run;
    TR_TRY(tr_export_model(&job, &result));
    print_export(cfg, &result);
out:
    tr_str_release(&result.notes);
    tr_str_release(&result.next);
    tr_pool_close(job.pool);
    free((int32_t *)(uintptr_t)rows.id);
    tr_model_close(m);
    tr_config_close(run);
    return st;
}
