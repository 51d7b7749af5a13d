/* init.c - writes an HF directory with random weights. The store makes each range on demand, so the weights are never
 * in memory. */
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

enum tr_status tr_init_model(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct tr_model *m = NULL;
    struct tr_saver *sv = NULL;
    char weights[TR_PATH_MAX];
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
    TR_TRY(tr_path_join(weights, cfg->output, "config.json"));
    if (tr_file_exists(weights))
        TR_TRY(tr_fail(TR_USAGE, "output %s already holds a model; choose another --out", cfg->output));
    struct tr_store store = { .ctx = &k, .model = m, .whole = make };
    TR_TRY(tr_optim_states(NULL, &store.states));
    struct tr_saver_options save = { .dtype = tr_config_dtype(m->config) };
    TR_TRY(tr_saver_open(&store, &save, &sv));
    TR_TRY(tr_saver_model(sv, cfg->output));
    if (cfg->tokenizer)
        TR_TRY(tr_tokenizer_write_bytes(cfg->output));
out:
    (void)tr_saver_close(sv);
    tr_model_close(m);
    tr_pool_close(k.pool);
    free(k.buf);
    return st;
}
