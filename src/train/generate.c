/* generate.c - sampling from a model as a sanity check: the eval schedule on one row, one token at a time.
 *
 * Every token runs the whole row again: no cache to keep right, and a sanity check is short. Random numbers are counter
 * based, so the same seed gives the same text.
 */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

static int by_score(const void *a, const void *b)
{
    float x = ((const float *)a)[0], y = ((const float *)b)[0];
    return x < y ? 1 : x > y ? -1 : 0;
}

/* A token from logits under temperature, top-k and top-p. `pair` holds vocab (score, id) pairs. */
static int32_t sample(const struct tr_config *cfg, const struct tr_hparams *hp, const float *logits, float (*pair)[2], float u)
{
    int64_t best = 0, n = hp->vocab;
    for (int64_t i = 0; i < n; i++) {
        pair[i][0] = hp->final_softcap > 0 ? (float)(hp->final_softcap * tanh((double)logits[i] / hp->final_softcap)) : logits[i];
        pair[i][1] = (float)i; /* exact below 2^24, and vocabularies are */
        if (pair[i][0] > pair[best][0])
            best = i;
    }
    if (cfg->temperature <= 0)
        return (int32_t)best;
    float top = pair[best][0];
    qsort(pair, (size_t)n, sizeof *pair, by_score);
    if (cfg->top_k > 0 && cfg->top_k < n)
        n = cfg->top_k;
    double sum = 0, kept = 0, at = 0;
    for (int64_t i = 0; i < n; i++) {
        pair[i][0] = (float)exp((double)(pair[i][0] - top) / cfg->temperature);
        sum += (double)pair[i][0];
    }
    int64_t n_kept = 0;
    while (n_kept < n && (n_kept == 0 || kept < cfg->top_p * sum))
        kept += (double)pair[n_kept++][0];
    for (int64_t i = 0; i < n_kept; i++) {
        at += (double)pair[i][0];
        if (at >= (double)u * kept)
            return (int32_t)pair[i][1];
    }
    return (int32_t)pair[n_kept - 1][1];
}

/* The last T ids of the text as one document. */
static int64_t fill_row(const struct tr_ids *ids, int64_t length, const struct tr_batch *b)
{
    int64_t n = tr_min64((int64_t)ids->n, length), first = (int64_t)ids->n - n;
    for (int64_t i = 0; i < length; i++) {
        b->tokens[i] = i < n ? ids->p[first + i] : 0;
        b->targets[i] = TR_TARGET_NONE;
        b->positions[i] = (int32_t)(i < n ? i : 0);
        b->begin[i] = (int32_t)(i < n ? 0 : i); /* padding sees itself alone */
        b->sample[i] = 0;
    }
    return n;
}

static enum tr_status emit(const struct tr_tokenizer *tok, int32_t id, tr_text_fn *on_text, void *ctx)
{
    struct tr_str text = { 0 };
    enum tr_status st = tr_tokenizer_decode(tok, &id, 1, &text);
    if (st == TR_OK && text.n && on_text)
        on_text(ctx, text.p, text.n);
    tr_str_release(&text);
    return st;
}

static enum tr_status go_on(const struct tr_config *cfg, const struct tr_setup *s, struct tr_exec *e, const struct tr_tokenizer *tok,
                            struct tr_ids *ids, tr_text_fn *on_text, void *ctx)
{
    enum tr_status st = TR_OK;
    const struct tr_hparams *hp = &s->eval_model->hp;
    struct tr_batch b = tr_batch_in(e->base[TR_A_DATA], s->sequence_length);
    float(*pair)[2] = malloc((size_t)hp->vocab * sizeof *pair);
    uint64_t key = tr_rng_key((uint64_t)cfg->seed, "generate", 0);
    if (!pair)
        TR_TRY(tr_fail(TR_NOMEM, "generate: out of memory"));
    for (int64_t i = 0; i < cfg->max_new_tokens && !tr_stop_wanted(); i++) {
        const float *logits = NULL;
        int64_t n = fill_row(ids, s->sequence_length, &b);
        TR_TRY(tr_exec_eval(e, &b, NULL, &logits));
        int32_t id = sample(cfg, hp, logits + (n - 1) * hp->vocab, pair, tr_u01(tr_philox(key, 0, (uint64_t)i).v[0]));
        if (id == tr_tokenizer_eos(tok))
            break;
        TR_TRY(tr_ids_add(ids, id));
        TR_TRY(emit(tok, id, on_text, ctx));
    }
out:
    free(pair);
    return st;
}

enum tr_status tr_generate(const struct tr_config *cfg, tr_text_fn *on_text, void *ctx)
{
    enum tr_status st = TR_OK;
    struct tr_setup *s = NULL;
    struct tr_pool *pool = NULL;
    struct tr_exec *e = NULL;
    struct tr_tokenizer *tok = NULL;
    struct tr_ids ids = { 0 };
    struct tr_device dev;
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    if (!buf)
        TR_TRY(tr_fail(TR_NOMEM, "generate: out of memory"));
    TR_TRY(tr_setup_open(cfg, TR_USE_GENERATE, &s));
    TR_TRY(tr_tokenizer_open(cfg->model, &tok));
    if (cfg->prompt)
        TR_TRY(tr_tokenizer_encode(tok, cfg->prompt, strlen(cfg->prompt), &ids));
    if (ids.n == 0)
        TR_TRY(tr_ids_add(&ids, tr_tokenizer_eos(tok) >= 0 ? tr_tokenizer_eos(tok) : 0));
    TR_TRY(tr_pool_open((int)cfg->threads, &pool));
    TR_TRY(tr_device_open("cpu", &dev));
    TR_TRY(tr_exec_open(s->compiled, &dev, pool, 0, &e));
    struct tr_store store = tr_exec_store(e);
    TR_TRY(tr_load_weights(&store, cfg->model, buf, NULL));
    tr_stop_on_signals();
    TR_TRY(go_on(cfg, s, e, tok, &ids, on_text, ctx));
out:
    tr_exec_close(e);
    tr_pool_close(pool);
    tr_ids_release(&ids);
    tr_tokenizer_close(tok);
    tr_setup_close(s);
    free(buf);
    return st;
}
