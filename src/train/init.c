/* init.c - writes an HF directory with random weights. The store makes each range on demand, so the weights are never
 * in memory. */
#include "train/merge.h"
#include "train/train.h"
#include <stdlib.h>

struct maker {
    const struct tr_model *m;
    uint64_t seed;
    struct tr_pool *pool;
    float *buf;
};

static enum tr_status make(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct maker *k = ctx;
    TR_BUG_ON(what != TR_S_VALUE || n > TR_IO_CHUNK);
    *out = k->buf;
    return tr_model_init_param(k->m, param, k->seed, first, n, k->pool, k->buf);
}

struct init_output {
    struct tr_saver *sv;
    bool has_tokenizer;
};

static enum tr_status fill(void *ctx, const char *dir, const char *temp)
{
    const struct init_output *f = ctx;
    char path[TR_PATH_MAX];
    TR_PASS(tr_path_join(path, dir, temp));
    TR_PASS(tr_saver_model(f->sv, path));
    return f->has_tokenizer ? tr_tokenizer_write_bytes(path) : TR_OK;
}

/* A directory that is there may hold what a model has beside weights and config.json: a tokenizer. */
static enum tr_status check_output(const char *out)
{
    char other[256], shown[256];
    if (tr_dir_has(out, "config.json"))
        return tr_fail(TR_USAGE, "output %s already holds a model; choose another --out", out);
    return tr_dir_has_other(out, tr_copied_files, other)
               ? tr_fail(TR_USAGE, "output %s already holds %s; choose another --out", out,
                         tr_escape(other, shown, sizeof shown))
               : TR_OK;
}

enum tr_status tr_init_model(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_model *m = NULL;
    struct tr_saver *sv = NULL;
    struct maker k = { .seed = (uint64_t)cfg->seed, .buf = malloc(TR_IO_CHUNK * sizeof *k.buf) };
    struct tr_model_options opt = {
        .rows = 1, .sequence_length = 1, .dropout = 0, .ignore_keys = cfg->ignore_config_keys, .takes_names = true
    };
    if (!k.buf)
        TR_TRY(tr_fail(TR_NOMEM, "init: out of memory"));
    TR_TRY(tr_model_open(cfg->model_config, &opt, &m));
    k.m = m;
    TR_TRY(tr_pool_open(0, &k.pool));
    if (cfg->tokenizer && strcmp(cfg->tokenizer, "bytes") != 0)
        TR_TRY(tr_fail(TR_USAGE, "--tokenizer %s is not known; use bytes, or copy a tokenizer.json into the directory",
                       cfg->tokenizer));
    if (cfg->tokenizer && m->hp.vocab < 257)
        TR_TRY(tr_fail(TR_USAGE, "--tokenizer bytes needs vocab_size of at least 257; config.json has %" PRId64,
                       m->hp.vocab));
    TR_TRY(check_output(cfg->output));
    struct tr_store store = { .ctx = &k, .model = m, .whole = make };
    TR_TRY(tr_optim_states(NULL, &store.states));
    struct tr_saver_options save = { .dtype = tr_config_dtype(m->config) };
    TR_TRY(tr_saver_open(&store, &save, &sv));
    struct init_output f = { sv, cfg->tokenizer };
    TR_TRY(tr_dir_exists(cfg->output) || !tr_new_dir_takes(cfg->output) ? fill(&f, cfg->output, ".")
                                                                        : tr_new_dir(cfg->output, fill, &f));
out:
    (void)tr_saver_close(sv);
    tr_model_close(m);
    tr_pool_close(k.pool);
    free(k.buf);
    return st;
}
