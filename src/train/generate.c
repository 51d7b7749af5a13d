/* generate.c - a model that continues text: it reads the prompt in chunks and then makes one token at a time, with a
 * key/value cache.
 *
 * Schedules of one plan share parameters and cache: one for a large chunk of the prompt, one for a small chunk, one for
 * a single new token. A prompt needs the logits of its last token only. A chunk may be padded: the extra rows of the
 * cache are overwritten before any op reads them, and their positions count from 0, so that tables of positions need no
 * padding and attention sees few keys. Random numbers are counter based, so the same seed gives the same text.
 */
#include "train/room.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

enum { SMALL_CHUNK = 64, LARGE_CHUNK = 512, MAX_STOPS = 16 };

struct tr_generator {
    const struct tr_config *cfg;
    struct tr_dirs from;
    const struct tr_store *weights; /* while it is opened; NULL: those of cfg->model */
    bool wants_each;                /* logits of every token, not of the last one of a prompt */
    struct tr_model *large, *small, *one;
    struct tr_compiled *compiled;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_exec *e;
    struct tr_batch batch;
    int64_t n_context, n_cache, n_read, n_large, n_small, n_ids;
    int32_t stop[MAX_STOPS];
    int n_stops;
    uint64_t key, n_picked;
    float (*pair)[2]; /* (score, id), one for each token of the vocabulary */
};

static enum tr_status open_model(const struct tr_generator *g, const struct tr_model_options *opt,
                                 struct tr_model **out)
{
    if (!g->weights)
        return tr_dirs_model(&g->from, opt, false, out);
    cJSON *config = cJSON_Duplicate(g->weights->model->config, true);
    if (!config)
        return tr_fail(TR_NOMEM, "generate: out of memory");
    enum tr_status st = tr_model_from_json(config, opt, out);
    if (st != TR_OK)
        cJSON_Delete(config);
    return st;
}

/* No chunk is longer than the context, whose positions a model must have. */
static void size_chunks(struct tr_generator *g)
{
    g->n_small = tr_min64(SMALL_CHUNK, g->n_context);
    g->n_large = tr_min64(LARGE_CHUNK, g->n_context);
    if (g->wants_each || g->n_large <= g->n_small)
        g->n_large = 0;
    g->n_cache = g->n_context + g->n_small - 1; /* the last token may be the first row of a chunk */
}

static enum tr_status open_models(struct tr_generator *g)
{
    struct tr_model_options opt = { .rows = 1,
                                    .sequence_length = 1,
                                    .n_positions = g->n_context,
                                    .n_context = g->n_context,
                                    .dropout = 0,
                                    .ignore_keys = g->cfg->ignore_config_keys,
                                    .wants_logits = true };
    TR_PASS(open_model(g, &opt, &g->one));
    opt.wants_last = !g->wants_each;
    opt.sequence_length = g->n_small;
    TR_PASS(open_model(g, &opt, &g->small));
    opt.sequence_length = g->n_large;
    return g->n_large ? open_model(g, &opt, &g->large) : TR_OK;
}

static void add_stops(struct tr_generator *g, const cJSON *j)
{
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(j, "eos_token_id");
    for (const cJSON *k = cJSON_IsArray(eos) ? eos->child : eos; k; k = cJSON_IsArray(eos) ? k->next : NULL)
        if (cJSON_IsNumber(k) && g->n_stops < MAX_STOPS)
            g->stop[g->n_stops++] = (int32_t)k->valuedouble;
}

static void read_stops(struct tr_generator *g, const struct tr_tokenizer *tok)
{
    char path[TR_PATH_MAX];
    cJSON *j = NULL;
    if (!tok)
        return;
    if (tr_tokenizer_eos(tok) >= 0)
        g->stop[g->n_stops++] = tr_tokenizer_eos(tok);
    add_stops(g, g->one->config);
    /* an adapter that was trained on conversations has one of its own */
    if (tr_path_join(path, g->from.text, "generation_config.json") == TR_OK && !tr_file_exists(path))
        (void)tr_path_join(path, g->from.base, "generation_config.json");
    if (tr_file_exists(path) && tr_json_load(path, 1 << 20, &j) == TR_OK)
        add_stops(g, j);
    tr_error_clear(); /* a broken generation_config.json costs only its stop tokens */
    cJSON_Delete(j);
}

bool tr_generator_is_stop(const struct tr_generator *g, int32_t id)
{
    for (int i = 0; i < g->n_stops; i++)
        if (g->stop[i] == id)
            return true;
    return false;
}

void tr_generator_rewind(struct tr_generator *g, int64_t n)
{
    g->n_read = tr_min64(n, g->n_read);
}

static enum tr_status open_generator(const struct tr_config *cfg, int64_t n_context, const struct tr_tokenizer *tok,
                                     const struct tr_store *weights, bool wants_each, struct tr_generator **out)
{
    enum tr_status st = TR_OK;
    enum tr_gemm_choice got;
    struct tr_generator *g = calloc(1, sizeof *g);
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    uint8_t *packed_of = NULL;
    if (!g || !buf)
        TR_TRY(tr_fail(TR_NOMEM, "generate: out of memory"));
    g->cfg = cfg;
    g->weights = weights;
    g->n_context = n_context;
    g->key = tr_rng_key((uint64_t)cfg->seed, "generate", 0);
    g->wants_each = wants_each;
    size_chunks(g);
    int64_t n_batch = tr_max64(g->n_small, g->n_large);
    TR_TRY(tr_gemm_select(cfg->gemm, &got));
    TR_TRY(tr_dirs_open(cfg, &g->from));
    TR_TRY(open_models(g));
    bool is_learned = g->one->hp.rope[TR_C_ROPE].type == TR_ROPE_NONE;
    if (is_learned && n_context > g->one->hp.max_positions)
        TR_TRY(tr_fail(TR_USAGE, "prompt and max_new_tokens need %" PRId64 " positions; the model has %" PRId64,
                       n_context, g->one->hp.max_positions));
    TR_TRY(tr_pool_open((int)cfg->threads, &g->pool));
    const struct tr_device_row *device = tr_choose_device(cfg, 1);
    const struct tr_column *column = tr_column_of(device->name);
    if (!weights)
        TR_TRY(tr_setup_packed(cfg, g->from.base, g->one, NULL, &packed_of));
    struct tr_compile_options opt = { .compute_dtype = cfg->dtype,
                                      .packed_of = packed_of,
                                      .nests_scales = cfg->bnb_4bit_use_double_quant,
                                      .n_micro = 1,
                                      .column = column,
                                      .fuses = column->fuses,
                                      .has_own_memory = !device->is_host,
                                      .batch_bytes = device->is_host ? 0 : tr_batch_bytes(n_batch),
                                      .n_threads = tr_pool_threads(g->pool),
                                      .data_bytes = tr_batch_bytes(n_batch),
                                      .cache_rows = g->n_cache };
    const struct tr_model *const models[TR_PURPOSES] = {
        [TR_FOR_EVAL] = g->small, [TR_FOR_PREFILL] = g->large, [TR_FOR_DECODE] = g->one
    };
    TR_TRY(tr_compile(models, &opt, &g->compiled));
    TR_TRY(tr_room_check(g->compiled, NULL,
                         "lower --max_new_tokens, or hold the weights in fewer bits with --load_in_4bit"));
    TR_TRY(tr_device_open(device->name, &g->dev));
    TR_TRY(tr_exec_open(g->compiled, &g->dev, g->pool, NULL, 0, &g->e));
    struct tr_store store = tr_exec_store(g->e);
    TR_TRY(weights ? tr_load_store(&store, weights, buf) : tr_dirs_load(&g->from, &store, buf));
    g->n_ids = tok ? tr_min64(tr_tokenizer_vocab_size(tok), g->one->hp.vocab) : g->one->hp.vocab;
    read_stops(g, tok);
    g->batch = tr_batch_in(tr_exec_arena(g->e, TR_A_DATA), n_batch);
    TR_TRY(TR_ALLOC(g->pair, (size_t)g->one->hp.vocab, "a generation"));
out:
    free(buf);
    free(packed_of);
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
    tr_exec_close(g->e);
    tr_device_close(&g->dev);
    tr_pool_close(g->pool);
    tr_compiled_close(g->compiled);
    tr_model_close(g->large);
    tr_model_close(g->small);
    tr_model_close(g->one);
    tr_dirs_close(&g->from);
    free(g->pair);
    free(g);
}

/* The schedule for the next of n tokens. A large chunk is worth its padding while it is mostly full. */
static enum tr_purpose purpose_of(const struct tr_generator *g, int64_t n)
{
    bool is_large = g->n_large && 4 * n >= 3 * g->n_large && g->n_read + g->n_large <= g->n_cache;
    return n == 1 ? TR_FOR_DECODE : is_large ? TR_FOR_PREFILL : TR_FOR_EVAL;
}

static void fill_batch(struct tr_generator *g, const int32_t *ids, int64_t n, int64_t n_rows)
{
    for (int64_t i = 0; i < n_rows; i++) {
        g->batch.tokens[i] = i < n ? ids[i] : 0;
        g->batch.targets[i] = TR_TARGET_NONE;
        g->batch.positions[i] = (int32_t)(i < n ? g->n_read + i : i - n);
        g->batch.begin[i] = 0;
        g->batch.sample[i] = 0;
    }
    g->batch.targets[0] = (int32_t)(n - 1); /* the row whose logits are wanted */
}

static enum tr_status feed(struct tr_generator *g, const int32_t *ids, size_t n, tr_logits_fn *fn, void *ctx,
                           const float **logits)
{
    if ((int64_t)n > g->n_context - g->n_read)
        return tr_fail(TR_USAGE, "%zu more tokens do not fit: %" PRId64 " of %" PRId64 " positions are taken", n,
                       g->n_read, g->n_context);
    for (size_t at = 0; at < n;) {
        enum tr_purpose purpose = purpose_of(g, (int64_t)(n - at));
        int64_t rows = g->compiled->schedule[purpose].model->n_tokens, here = tr_min64(rows, (int64_t)(n - at));
        fill_batch(g, ids + at, here, rows);
        TR_PASS(tr_exec_logits(g->e, purpose, g->n_read, &g->batch, logits));
        if (fn)
            fn(ctx, (int64_t)at, here, *logits);
        g->n_read += here;
        at += (size_t)here;
        *logits += g->wants_each ? (here - 1) * g->one->hp.vocab : 0;
    }
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

static int by_score(const void *a, const void *b)
{
    const float *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] < y[0] ? 1 : -1;
    return x[1] > y[1] ? 1 : -1; /* equal scores: the lower id comes first, whatever order qsort leaves */
}

/* As in transformers, the score of a token that was seen before is divided by the penalty if positive, else multiplied.
 */
static void penalise(struct tr_generator *g, const int32_t *seen, size_t n_seen)
{
    float p = (float)g->cfg->repetition_penalty;
    for (size_t i = 0; p != 1.0f && i < n_seen; i++) {
        if (seen[i] >= g->n_ids)
            continue;
        float *s = &g->pair[seen[i]][0];
        if (g->pair[seen[i]][1] >= 0) {
            *s = *s > 0 ? *s / p : *s * p;
            g->pair[seen[i]][1] = -1; /* marks it, so that the penalty applies once */
        }
    }
    for (int64_t i = 0; i < g->n_ids; i++)
        g->pair[i][1] = (float)i; /* exact: vocabularies are below 2^24 */
}

int32_t tr_generator_pick(struct tr_generator *g, const float *logits, const int32_t *seen, size_t n_seen)
{
    const struct tr_config *cfg = g->cfg;
    const struct tr_hparams *hp = &g->one->hp;
    int64_t n = g->n_ids, best = 0, n_kept = 0;
    double sum = 0, kept = 0, at = 0;
    for (int64_t i = 0; i < n; i++) {
        g->pair[i][0] = hp->final_softcap > 0 ? (float)(hp->final_softcap * tanh((double)logits[i] / hp->final_softcap))
                                              : logits[i];
        g->pair[i][1] = (float)i;
    }
    penalise(g, seen, n_seen);
    for (int64_t i = 0; i < n; i++)
        best = g->pair[i][0] > g->pair[best][0] ? i : best;
    if (cfg->temperature <= 0)
        return (int32_t)best;
    float u = tr_u01(tr_philox(g->key, 0, g->n_picked++).v[0]), top = g->pair[best][0];
    qsort(g->pair, (size_t)n, sizeof *g->pair, by_score);
    if (cfg->top_k > 0 && cfg->top_k < n)
        n = cfg->top_k;
    for (int64_t i = 0; i < n; i++) {
        g->pair[i][0] = (float)exp((double)(g->pair[i][0] - top) / cfg->temperature);
        sum += (double)g->pair[i][0];
    }
    while (n_kept < n && (n_kept == 0 || kept < cfg->top_p * sum))
        kept += (double)g->pair[n_kept++][0];
    for (int64_t i = 0; i < n_kept; i++) {
        at += (double)g->pair[i][0];
        if (at >= (double)u * kept)
            return (int32_t)g->pair[i][1];
    }
    return (int32_t)g->pair[n_kept - 1][1];
}

/* ---- trireme generate ---- */

/* How many new tokens have a position; TR_USAGE before any weight is read. Only dynamic scaling is made for texts that
 * are longer than what the model was trained on. */
static enum tr_status count_new(const struct tr_config *cfg, const struct tr_dirs *from, int64_t n_prompt, int64_t *out)
{
    const struct tr_model_options opt = { .rows = 1, .sequence_length = 1, .ignore_keys = cfg->ignore_config_keys };
    struct tr_model *m = NULL;
    TR_PASS(tr_dirs_model(from, &opt, false, &m));
    int64_t most = m->hp.rope[TR_C_ROPE].type == TR_ROPE_DYNAMIC ? INT32_MAX : m->hp.max_positions;
    int64_t left = most - n_prompt, n_new = cfg->max_new_tokens;
    tr_model_close(m);
    if (left < 1)
        return tr_fail(TR_USAGE,
                       "the prompt has %" PRId64 " tokens, and the model has %" PRId64
                       " positions for it and the new ones; shorten the prompt",
                       n_prompt, most);
    if (n_new > left && tr_config_is_set(cfg, "max_new_tokens"))
        return tr_fail(TR_USAGE,
                       "the prompt has %" PRId64 " tokens, and max_new_tokens %" PRId64 " more do not fit the %" PRId64
                       " positions of the model; try --max_new_tokens %" PRId64,
                       n_prompt, n_new, most, left);
    *out = tr_min64(n_new, left);
    return TR_OK;
}

enum tr_status tr_generate(const struct tr_config *cfg, tr_text_fn *on_text, void *ctx)
{
    enum tr_status st = TR_OK;
    struct tr_generator *g = NULL;
    struct tr_tokenizer *tok = NULL;
    struct tr_tok_stream *stream = NULL;
    struct tr_ids ids = { 0 };
    struct tr_str text = { 0 };
    struct tr_dirs from = { 0 };
    const float *logits = NULL;
    TR_TRY(tr_dirs_open(cfg, &from));
    TR_TRY(tr_tokenizer_open(from.text, &tok));
    if (cfg->prompt)
        TR_TRY(tr_tokenizer_encode(tok, cfg->prompt, strlen(cfg->prompt), &ids));
    if (ids.n == 0)
        TR_TRY(tr_ids_add(&ids, tr_tokenizer_eos(tok) >= 0 ? tr_tokenizer_eos(tok) : 0));
    int64_t n_prompt = (int64_t)ids.n, n_new = 0;
    TR_TRY(count_new(cfg, &from, n_prompt, &n_new));
    TR_TRY(tr_generator_open(cfg, n_prompt + n_new, tok, &g));
    TR_TRY(tr_tok_stream_open(tok, true, &stream));
    tr_stop_soon_on_signals();
    TR_TRY(tr_generator_feed(g, ids.p, ids.n, &logits));
    for (int64_t i = 0; i < n_new && !tr_stop_wanted(); i++) {
        int32_t id = tr_generator_pick(g, logits, ids.p, ids.n);
        if (tr_generator_is_stop(g, id))
            break;
        TR_TRY(tr_ids_add(&ids, id));
        tr_str_clear(&text);
        TR_TRY(tr_tok_stream_add(stream, id, &text));
        on_text(ctx, id, text.p ? text.p : "", text.n);
        if (i + 1 < n_new)
            TR_TRY(tr_generator_feed(g, &id, 1, &logits));
    }
    tr_str_clear(&text);
    TR_TRY(tr_tok_stream_end(stream, &text));
    on_text(ctx, -1, text.p ? text.p : "", text.n);
    if (tr_stop_wanted())
        TR_TRY(tr_fail(TR_STOPPED, "stopped by a signal after %" PRId64 " new tokens", (int64_t)ids.n - n_prompt));
out:
    tr_tok_stream_close(stream);
    tr_generator_close(g);
    tr_dirs_close(&from);
    tr_tokenizer_close(tok);
    tr_ids_release(&ids);
    tr_str_release(&text);
    return st;
}
