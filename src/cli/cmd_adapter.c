/* cmd_adapter.c - verbs of trireme ckpt on adapters: listed, exported for other programs, merged into a model. */
#include "cli/cli.h"
#include <math.h>
#include <stdlib.h>

/* ---- list ---- */

struct listing {
    const struct tr_config *cfg;
    struct tr_str out;
    size_t n;
};

static enum tr_status list_one(void *ctx, const char *path)
{
    struct listing *l = ctx;
    struct tr_adapter *a = NULL;
    l->n++;
    if (tr_adapter_read(path, &a) != TR_OK) {
        tr_str_addf(&l->out, l->cfg->json ? "{\"bad\": true, \"path\": " : "    is damaged       ");
        l->cfg->json ? tr_str_json(&l->out, path) : tr_str_addf(&l->out, "%s", path);
        tr_str_addf(&l->out, l->cfg->json ? "}\n" : "\n");
    } else if (l->cfg->json) {
        tr_str_addf(&l->out, "{\"r\": %" PRId64 ", \"lora_alpha\": %.9g, \"base\": ", a->r, a->alpha);
        tr_str_json(&l->out, a->base ? a->base : "");
        tr_str_member(&l->out, ", \"path\": ", path);
        tr_str_addf(&l->out, "}\n");
    } else {
        tr_str_addf(&l->out, "%6" PRId64 " %8.4g  %-30s %s\n", a->r, a->alpha, a->base ? a->base : "-", path);
    }
    tr_adapter_close(a);
    tr_error_clear();
    return TR_OK;
}

enum tr_status ckpt_list_adapters(const struct tr_config *cfg, const char *dir)
{
    struct listing l = { .cfg = cfg };
    enum tr_status st = TR_OK;
    if (!cfg->json)
        tr_str_addf(&l.out, "%6s %8s  %-30s %s\n", "r", "alpha", "base", "adapter");
    TR_TRY(tr_dir_has(dir, TR_ADAPTER_CONFIG) ? list_one(&l, dir) : tr_adapter_dirs(dir, list_one, &l));
    if (l.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "%s: no checkpoints and no adapters", dir));
    cli_print(tr_str_ok(&l.out) ? l.out.p : "");
out:
    tr_str_release(&l.out);
    return st;
}

/* ---- export ---- */

enum tr_status ckpt_export_adapter(const struct tr_config *cfg, const char *dir)
{
    enum tr_status st = TR_OK;
    struct tr_dirs src = { 0 };
    if (cfg->to == TR_EXPORT_HF || cfg->to >= TR_EXPORT_NF4) /* gguf and ollama, too */
        return tr_fail(TR_USAGE,
                       "%s is an adapter, and a model without it would be its base; make a model of both: trireme ckpt "
                       "merge %s --out DIR",
                       dir, dir);
    TR_TRY(tr_dirs_of(dir, cfg->model_base, &src));
    TR_TRY(tr_export_adapter(&src, cfg->to, cfg->output));
    cli_show_path(cfg, cfg->output);
out:
    tr_dirs_close(&src);
    return st;
}

/* ---- merge ---- */

static void add_pair(struct tr_str *out, const char *name, const struct tr_merge_proof *p, bool is_kl)
{
    tr_str_addf(out, "\"%s\": {", name);
    for (int i = 0; i < TR_ONTO_COUNT; i++) {
        tr_str_addf(out, "%s\"%s\": ", i ? ", " : "", tr_config_word("onto", i));
        tr_str_addf(out, p->has[i] ? "%.9g" : "null", is_kl ? p->to[i].kl : p->to[i].max_logit_diff);
    }
    tr_str_addf(out, "}");
}

static void print_proof(const struct tr_config *cfg, const struct tr_merge_proof *p)
{
    struct tr_str out = { 0 };
    const char *onto = tr_config_word("onto", (int)cfg->onto);
    if (cfg->json) {
        tr_str_addf(&out, "{\"onto\": \"%s\", \"rows\": %" PRId64 ", ", onto, cfg->rows);
        add_pair(&out, "max_logit_diff", p, false);
        tr_str_addf(&out, ", ");
        add_pair(&out, "kl", p, true);
        tr_str_member(&out, ", \"out\": ", cfg->output);
        tr_str_addf(&out, "}\n");
    } else {
        tr_str_addf(&out, "distance from the adapter as it runs, over %" PRId64 " rows%s:\n", cfg->rows,
                    cfg->data.n ? "" : " of random tokens");
        for (int i = 0; i < TR_ONTO_COUNT; i++)
            if (p->has[i])
                tr_str_addf(&out, "  onto %-12s largest difference of a logit %.3g, mean KL divergence %.3g\n",
                            tr_config_word("onto", i), p->to[i].max_logit_diff, p->to[i].kl);
        tr_str_addf(&out, "merged onto %s: %s\n", onto, cfg->output);
    }
    cli_print(tr_str_ok(&out) ? out.p : "");
    tr_str_release(&out);
}

static enum tr_status fill(void *ctx, const char *dir, const char *temp)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, dir, temp);
    return st == TR_OK ? tr_saver_model(ctx, path) : st;
}

static enum tr_status write_merged(struct tr_merge *x, const struct tr_config *cfg, const struct tr_dirs *src)
{
    enum tr_status st = TR_OK;
    struct tr_store store = tr_merge_store(x, cfg->onto);
    struct tr_saver_options opt = { .dtype = tr_merge_dtype(x), .source_dir = src->text, .base_dir = src->base };
    struct tr_saver *sv = NULL;
    TR_TRY(tr_saver_open(&store, &opt, &sv));
    TR_TRY(tr_new_dir(cfg->output, fill, sv));
out:
    (void)tr_saver_close(sv);
    return st;
}

enum tr_status ckpt_merge(const struct tr_config *cfg, const char *dir, const char *other)
{
    enum tr_status st = TR_OK;
    const struct tr_config *run = NULL;
    struct tr_dirs src = { 0 };
    struct tr_merge *x = NULL;
    struct tr_pool *pool = NULL;
    struct tr_merge_proof proof = { 0 };
    struct tr_merge_rows rows = { 0 };
    (void)other;
    TR_TRY(cli_need_output(cfg));
    if (!tr_dir_has(dir, TR_ADAPTER_CONFIG))
        TR_TRY(tr_fail(TR_USAGE, "%s is no adapter: it has no " TR_ADAPTER_CONFIG, dir));
    TR_TRY(tr_new_dir_check(cfg->output)); /* before the proof, which takes long */
    TR_TRY(tr_dirs_of(dir, cfg->model_base, &src));
    TR_TRY(ckpt_open_run(cfg, dir, &run));
    TR_TRY(tr_pool_open((int)cfg->threads, &pool));
    struct tr_merge_options opt = { .adapter = dir,
                                    .base = src.base,
                                    .unties = cfg->untie,
                                    .packed = tr_config_packed(run),
                                    .nests_scales = run->bnb_4bit_use_double_quant,
                                    .pool = pool };
    TR_TRY(tr_merge_open(&opt, &x));
    if (!tr_merge_can(x, cfg->onto))
        TR_TRY(cfg->onto == TR_ONTO_DEQUANTIZED
                   ? tr_fail(TR_USAGE, "onto dequantized: base %s was not quantised in the run; merge onto original",
                             src.base)
                   : tr_fail(TR_USAGE, "onto original: the base %s has quantised weights only; merge onto dequantized",
                             src.base));
    if (cfg->rows == 0)
        TR_TRY(tr_fail(TR_USAGE, "rows 0: a merge is always compared with its adapter; give at least 1"));
    TR_TRY(ckpt_read_rows(cfg, run, tr_merge_model(x), &rows));
    TR_TRY(tr_merge_prove(x, run, &rows, &proof));
    TR_TRY(write_merged(x, cfg, &src));
    print_proof(cfg, &proof);
out:
    free((int32_t *)(uintptr_t)rows.id);
    tr_merge_close(x);
    tr_pool_close(pool);
    tr_config_close(run);
    tr_dirs_close(&src);
    return st;
}
