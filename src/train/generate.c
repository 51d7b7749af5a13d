/* generate.c - a model that continues text: `generate`, and a generator that its caller steers token by token (chat,
 * and proofs that compare logits). The rounds are in decode.c. */
#include "train/engine.h"
#include "train/train.h"
#include <stdlib.h>

static const char advice[] =
    "lower --max_new_tokens or --per_device_eval_batch_size, share the model with --tp or --pp, "
    "or hold the weights in fewer bits with --load_in_4bit";

static const char advice_of_proof[] = "what is written is compared with the model as it runs: use a host with more "
                                      "memory, or ckpt export --rows 0, which "
                                      "compares nothing";

struct tr_generator {
    struct tr_engine g;
    struct tr_decoder *d;
    int64_t n_read;
    uint64_t n_picked;
};

/* The weights of the setup's directories, or those that a store has. */
static enum tr_status load(struct tr_engine *g, const struct tr_store *weights)
{
    struct tr_store store = tr_exec_store(g->e);
    float *buf = (float *)(void *)tr_exec_arena(g->e, TR_A_SAVE);
    return weights ? tr_load_store(&store, weights, buf) : tr_dirs_load(&g->s->from, &store, buf);
}

static enum tr_status open_generator(const struct tr_config *cfg, int64_t n_context, const struct tr_tokenizer *tok,
                                     const struct tr_store *weights, bool wants_each, struct tr_generator **out)
{
    enum tr_status st = TR_OK;
    const struct tr_text_shape shape = tr_text_shape_of(1, n_context, wants_each);
    struct tr_setup *s = NULL;
    struct tr_generator *g = calloc(1, sizeof *g);
    if (!g)
        return tr_fail(TR_NOMEM, "generate: out of memory");
    TR_TRY(tr_setup_open_text(cfg, &shape, weights ? weights->model->config : NULL, &s));
    TR_TRY(tr_engine_open(s, wants_each ? advice_of_proof : advice, &g->g));
    TR_TRY(load(&g->g, weights));
    TR_TRY(tr_decoder_open(g->g.e, s, tok, &g->d));
out:
    if (st == TR_OK)
        *out = g;
    else
        tr_generator_close(g);
    return st;
}

enum tr_status tr_generator_open(const struct tr_config *cfg, int64_t n_context, const struct tr_tokenizer *tok,
                                 struct tr_generator **out)
{
    return open_generator(cfg, n_context, tok, NULL, false, out);
}

enum tr_status tr_generator_open_each(const struct tr_config *cfg, int64_t n_context, const struct tr_store *weights,
                                      struct tr_generator **out)
{
    return open_generator(cfg, n_context, NULL, weights, true, out);
}

void tr_generator_close(struct tr_generator *g)
{
    if (!g)
        return;
    tr_decoder_close(g->d);
    tr_engine_close(&g->g);
    free(g);
}

bool tr_generator_is_stop(const struct tr_generator *g, int32_t id)
{
    return tr_decoder_is_stop(g->d, id);
}

void tr_generator_rewind(struct tr_generator *g, int64_t n)
{
    g->n_read = tr_min64(n, g->n_read);
}

static enum tr_status feed(struct tr_generator *g, const int32_t *ids, size_t n, tr_logits_fn *fn, void *ctx,
                           const float **logits)
{
    TR_PASS(tr_decoder_feed(g->d, g->n_read, ids, n, fn, ctx, logits));
    g->n_read += (int64_t)n;
    return TR_OK;
}

enum tr_status tr_generator_feed(struct tr_generator *g, const int32_t *ids, size_t n, const float **logits)
{
    return feed(g, ids, n, NULL, NULL, logits);
}

enum tr_status tr_generator_each(struct tr_generator *g, const int32_t *ids, size_t n, tr_logits_fn *fn, void *ctx)
{
    const float *last = NULL;
    return feed(g, ids, n, fn, ctx, &last);
}

int32_t tr_generator_pick(struct tr_generator *g, const float *logits, const int32_t *seen, size_t n_seen)
{
    return tr_decoder_pick(g->d, logits, seen, n_seen, g->n_picked++);
}

/* ---- trireme generate ---- */

struct generation {
    struct tr_engine g;
    struct tr_dirs from;
    struct tr_tokenizer *tok;
    struct tr_tok_stream *stream;
    struct tr_prompts prompts;
    struct tr_texts texts;
    struct tr_decoder *d;
    struct tr_str piece;
    tr_text_fn *on_text;
    void *ctx;
};

/* Gives a token's text to the caller; id -1: what the stream still holds back. */
static enum tr_status tell(struct generation *x, size_t prompt, int32_t id)
{
    const struct tr_prompt *p = &x->prompts.item[prompt];
    tr_str_clear(&x->piece);
    TR_PASS(id >= 0 ? tr_tok_stream_add(x->stream, id, &x->piece) : tr_tok_stream_end(x->stream, &x->piece));
    x->on_text(x->ctx, p->text, id, x->piece.p ? x->piece.p : "", x->piece.n);
    return TR_OK;
}

static enum tr_status stream_token(void *ctx, size_t prompt, int32_t id)
{
    return tell(ctx, prompt, id);
}

/* One prompt is written as it grows. Several are written in their order when all are done. */
static enum tr_status run(struct generation *x)
{
    bool is_first = tr_mesh_is_first(x->g.mesh), is_streamed = is_first && x->prompts.n == 1;
    enum tr_status st = tr_decoder_run(x->d, &x->prompts, is_streamed ? stream_token : NULL, x, &x->texts);
    if (st != TR_OK && st != TR_STOPPED)
        return st;
    for (size_t i = 0; is_first && i < x->texts.n; i++) {
        for (int64_t k = 0; !is_streamed && k < x->texts.n_ids[i]; k++)
            TR_PASS(tell(x, i, x->texts.id[(int64_t)i * x->texts.most + k]));
        TR_PASS(tell(x, i, -1));
    }
    if (st == TR_STOPPED)
        return tr_fail(TR_STOPPED, "stopped by a signal after %" PRId64 " new tokens of the first prompt",
                       x->texts.n_ids[0]);
    return TR_OK;
}

enum tr_status tr_generate(const struct tr_config *cfg, tr_text_fn *on_text, void *ctx)
{
    enum tr_status st = TR_OK;
    struct generation x = { .on_text = on_text, .ctx = ctx };
    struct tr_setup *s = NULL;
    TR_TRY(tr_dirs_open(cfg, &x.from));
    TR_TRY(tr_dirs_need_model(&x.from));
    TR_TRY(tr_tokenizer_open(x.from.text, &x.tok));
    TR_TRY(tr_prompts_open(cfg, &x.from, cfg->prompts, cfg->prompt, &x.prompts));
    TR_TRY(tr_texts_open(&x.prompts, &x.texts));
    const struct tr_text_shape shape =
        tr_text_shape_of(tr_text_sequences(cfg, x.prompts.n, (int)cfg->dp), tr_prompts_context(&x.prompts), false);
    TR_TRY(tr_setup_open_text(cfg, &shape, NULL, &s));
    TR_TRY(tr_engine_open(s, advice, &x.g));
    TR_TRY(load(&x.g, NULL));
    TR_TRY(tr_decoder_open(x.g.e, s, x.tok, &x.d));
    TR_TRY(tr_tok_stream_open(x.tok, true, &x.stream));
    tr_stop_soon_on_signals();
    TR_TRY(run(&x));
out:
    tr_tok_stream_close(x.stream);
    tr_decoder_close(x.d);
    tr_engine_close(&x.g);
    tr_texts_close(&x.texts);
    tr_prompts_close(&x.prompts);
    tr_dirs_close(&x.from);
    tr_tokenizer_close(x.tok);
    tr_str_release(&x.piece);
    return st;
}
