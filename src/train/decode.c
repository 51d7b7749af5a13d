/* decode.c - rounds of generation (decode.h).
 *
 * A round runs one schedule: a chunk of one prompt, or one token of every sequence whose prompt is read. A chunk may be
 * padded: padding fills no row of the cache, and its positions count from 0, so that tables of positions need no
 * padding and attention sees few keys. Prompts go first, in the chunks that they would have alone. All ranks run the
 * same schedule in a round, because their gathers are collective; a rank without work for it runs padding. The ranks of
 * the last stage pick tokens and tell the others.
 */
#include "train/decode_impl.h"
#include "train/train.h"
#include <stdlib.h>

/* ---- opening ---- */

static void add_stops(struct tr_decoder *d, const cJSON *j)
{
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(j, "eos_token_id");
    for (const cJSON *k = cJSON_IsArray(eos) ? eos->child : eos; k; k = cJSON_IsArray(eos) ? k->next : NULL)
        if (cJSON_IsNumber(k) && d->n_stops < TR_MAX_STOPS)
            d->stop[d->n_stops++] = (int32_t)k->valuedouble;
}

static void read_stops(struct tr_decoder *d, const struct tr_setup *s, const struct tr_tokenizer *tok)
{
    char path[TR_PATH_MAX];
    cJSON *j = NULL;
    if (!tok)
        return;
    if (tr_tokenizer_eos(tok) >= 0)
        d->stop[d->n_stops++] = tr_tokenizer_eos(tok);
    add_stops(d, s->text_model[TR_FOR_DECODE]->config);
    /* an adapter that was trained on conversations has one of its own */
    if (tr_path_join(path, s->from.text, "generation_config.json") == TR_OK && !tr_file_exists(path))
        (void)tr_path_join(path, s->from.base, "generation_config.json");
    if (tr_file_exists(path) && tr_json_load(path, 1 << 20, &j) == TR_OK)
        add_stops(d, j);
    tr_error_clear(); /* a broken generation_config.json costs only its stop tokens */
    cJSON_Delete(j);
}

bool tr_decoder_is_stop(const struct tr_decoder *d, int32_t id)
{
    for (int i = 0; i < d->n_stops; i++)
        if (d->stop[i] == id)
            return true;
    return false;
}

enum tr_status tr_decoder_open(struct tr_exec *e, const struct tr_setup *s, const struct tr_tokenizer *tok,
                               struct tr_decoder **out)
{
    const struct tr_text_shape *t = &s->text;
    const struct tr_hparams *hp = &s->text_model[TR_FOR_DECODE]->hp;
    struct tr_decoder *d = calloc(1, sizeof *d);
    if (!d)
        return tr_fail(TR_NOMEM, "generate: out of memory");
    d->e = e;
    d->cfg = s->cfg;
    d->shape = t;
    d->vocab = hp->vocab;
    d->n_ids = tok ? tr_min64(tr_tokenizer_vocab_size(tok), hp->vocab) : hp->vocab;
    d->softcap = hp->final_softcap;
    d->key = tr_rng_key((uint64_t)s->cfg->seed, "generate", 0);
    d->n_shared = tr_max64(t->n_context, tr_max64(t->n_sequences, TR_PURPOSES));
    d->pair = malloc((size_t)hp->vocab * sizeof *d->pair);
    d->ids = malloc((size_t)(t->n_sequences * t->n_context) * sizeof *d->ids);
    d->sequence = calloc((size_t)t->n_sequences, sizeof *d->sequence);
    d->shared = calloc((size_t)d->n_shared, sizeof *d->shared);
    if (!d->pair || !d->ids || !d->sequence || !d->shared) {
        tr_decoder_close(d);
        return tr_fail(TR_NOMEM, "generate: out of memory");
    }
    for (int64_t i = 0; i < t->n_sequences; i++)
        d->sequence[i].ids = d->ids + i * t->n_context;
    read_stops(d, s, tok);
    d->batch = tr_batch_in(tr_exec_arena(e, TR_A_DATA) + s->loader_bytes + s->eval_batch_bytes,
                           tr_max64(t->n_sequences, tr_max64(t->n_small, t->n_large)));
    *out = d;
    return TR_OK;
}

void tr_decoder_close(struct tr_decoder *d)
{
    if (!d)
        return;
    free(d->pair);
    free(d->ids);
    free(d->sequence);
    free(d->shared);
    free(d);
}

enum tr_status tr_texts_open(const struct tr_prompts *p, struct tr_texts *out)
{
    *out = (struct tr_texts){ .n = p->n, .most = tr_prompts_new(p) };
    out->id = malloc(p->n * (size_t)out->most * sizeof *out->id);
    out->n_ids = calloc(p->n, sizeof *out->n_ids);
    if (out->id && out->n_ids)
        return TR_OK;
    tr_texts_close(out);
    return tr_fail(TR_NOMEM, "generate: no memory for %zu texts", p->n);
}

void tr_texts_close(struct tr_texts *t)
{
    free(t->id);
    free(t->n_ids);
    *t = (struct tr_texts){ 0 };
}

/* ---- one round ---- */

/* The schedule for the next of n tokens. A large chunk is worth its padding while it is mostly full. */
static enum tr_purpose purpose_of(const struct tr_decoder *d, int64_t n)
{
    bool is_large = d->shape->n_large && 4 * n >= 3 * d->shape->n_large;
    return n == 1 ? TR_FOR_DECODE : is_large ? TR_FOR_PREFILL : TR_FOR_CHUNK;
}

/* Token `row` of the batch: what it is, and which row of its cache it fills. place below 0: padding. */
static void put(struct tr_decoder *d, int64_t row, int32_t id, int64_t position, int64_t place)
{
    d->batch.tokens[row] = id;
    d->batch.targets[row] = TR_TARGET_NONE;
    d->batch.positions[row] = (int32_t)position;
    d->batch.begin[row] = (int32_t)place;
    d->batch.sample[row] = 0;
}

/* Reads a chunk of the n ids, which are the tokens from `first` on; returns how many it read in *done. */
static enum tr_status read_chunk(struct tr_decoder *d, enum tr_purpose purpose, int64_t sequence, int64_t first,
                                 const int32_t *ids, int64_t n, int64_t *done, const float **logits)
{
    int64_t rows = tr_exec_compiled(d->e)->schedule[purpose].model->n_tokens, here = tr_min64(rows, n);
    for (int64_t i = 0; i < rows; i++)
        put(d, i, i < here ? ids[i] : 0, i < here ? first + i : i - here, i < here ? first + i : -1);
    d->batch.targets[0] = (int32_t)tr_max64(0, here - 1); /* the row whose logits are wanted */
    *done = here;
    return tr_exec_logits(d->e, purpose, sequence, &d->batch, logits);
}

enum tr_status tr_decoder_feed(struct tr_decoder *d, int64_t first, const int32_t *ids, size_t n, tr_logits_fn *each,
                               void *ctx, const float **logits)
{
    int64_t here = 0;
    if ((int64_t)n > d->shape->n_context - first)
        return tr_fail(TR_USAGE, "%zu more tokens do not fit: %" PRId64 " of %" PRId64 " positions are taken", n, first,
                       d->shape->n_context);
    for (size_t at = 0; at < n; at += (size_t)here) {
        enum tr_purpose purpose = purpose_of(d, (int64_t)(n - at));
        TR_PASS(read_chunk(d, purpose, 0, first + (int64_t)at, ids + at, (int64_t)(n - at), &here, logits));
        if (each)
            each(ctx, (int64_t)at, here, *logits);
        *logits += d->shape->wants_each ? (here - 1) * d->vocab : 0;
    }
    return TR_OK;
}

static int64_t n_pending(const struct tr_sequence *q)
{
    return q->prompt ? q->n_ids - q->n_read : 0;
}

/* What rounds the sequences of all ranks need next: prompts first. False: there is nothing left to do. */
static enum tr_status choose_round(struct tr_decoder *d, enum tr_purpose *out, bool *has_work)
{
    int k = TR_FOR_PREFILL;
    memset(d->shared, 0, TR_PURPOSES * sizeof *d->shared);
    for (int64_t i = 0; i < d->shape->n_sequences; i++)
        if (d->sequence[i].prompt)
            d->shared[purpose_of(d, n_pending(&d->sequence[i]))]++;
    if (!tr_mesh_is_alone(tr_exec_mesh(d->e)))
        TR_PASS(tr_exec_total_ranks(d->e, "next round of text", d->shared, TR_PURPOSES));
    while (k < TR_PURPOSES && d->shared[k] == 0)
        k++;
    *has_work = k < TR_PURPOSES;
    *out = (enum tr_purpose)k;
    return TR_OK;
}

static enum tr_status run_chunk(struct tr_decoder *d, enum tr_purpose purpose)
{
    int64_t i = 0, n = d->shape->n_sequences, done = 0;
    const float *logits = NULL;
    while (i < n && !(d->sequence[i].prompt && purpose_of(d, n_pending(&d->sequence[i])) == purpose))
        i++;
    struct tr_sequence *q = i < n ? &d->sequence[i] : NULL; /* NULL: another data rank has such a chunk */
    TR_PASS(read_chunk(d, purpose, q ? i : 0, q ? q->n_read : 0, q ? q->ids + q->n_read : NULL, q ? n_pending(q) : 0,
                       &done, &logits));
    memset(d->shared, 0, (size_t)n * sizeof *d->shared);
    if (q)
        q->n_read += done;
    if (q && logits && n_pending(q) == 0)
        d->shared[i] = tr_decoder_pick(d, logits, q->ids, (size_t)q->n_ids, (uint64_t)q->n_ids - q->prompt->ids.n);
    return TR_OK;
}

/* Sequences with a longer part of a prompt ahead wait for their turn. */
static enum tr_status run_decode(struct tr_decoder *d)
{
    int64_t n = d->shape->n_sequences;
    const float *logits = NULL;
    for (int64_t i = 0; i < n; i++) {
        struct tr_sequence *q = &d->sequence[i];
        bool is_here = n_pending(q) == 1;
        put(d, i, is_here ? q->ids[q->n_read] : 0, is_here ? q->n_read : 0, is_here ? q->n_read : -1);
    }
    TR_PASS(tr_exec_logits(d->e, TR_FOR_DECODE, 0, &d->batch, &logits));
    memset(d->shared, 0, (size_t)n * sizeof *d->shared);
    for (int64_t i = 0; i < n; i++) {
        struct tr_sequence *q = &d->sequence[i];
        bool is_here = n_pending(q) == 1;
        q->n_read += is_here;
        if (is_here && logits)
            d->shared[i] = tr_decoder_pick(d, logits + i * d->vocab, q->ids, (size_t)q->n_ids,
                                           (uint64_t)q->n_ids - q->prompt->ids.n);
    }
    return TR_OK;
}

/* ---- all rounds ---- */

static void begin(struct tr_sequence *q, const struct tr_prompts *p, size_t index)
{
    const struct tr_prompt *x = &p->item[index];
    *q = (struct tr_sequence){ .prompt = x, .index = index, .ids = q->ids, .n_ids = (int64_t)x->ids.n };
    memcpy(q->ids, x->ids.p, x->ids.n * sizeof *q->ids);
}

/* Takes the tokens that were picked in a round. */
static enum tr_status take(struct tr_decoder *d, tr_token_fn *fn, void *ctx, struct tr_texts *out)
{
    for (int64_t i = 0; i < d->shape->n_sequences; i++) {
        struct tr_sequence *q = &d->sequence[i];
        if (!q->prompt || n_pending(q) > 0)
            continue;
        int32_t id = (int32_t)d->shared[i];
        int64_t *n = &out->n_ids[q->index];
        bool is_end = tr_decoder_is_stop(d, id);
        if (!is_end) {
            out->id[(int64_t)q->index * out->most + (*n)++] = id;
            q->ids[q->n_ids++] = id;
            if (fn)
                TR_PASS(fn(ctx, q->index, id));
        }
        if (is_end || *n == q->prompt->n_new)
            q->prompt = NULL;
    }
    return TR_OK;
}

/* Every rank gets the texts of all data ranks. */
static enum tr_status share(struct tr_decoder *d, struct tr_texts *t)
{
    const struct tr_mesh *m = tr_exec_mesh(d->e);
    size_t n_ranks = (size_t)tr_mesh_group(m, TR_ON_DATA)->size, rank = (size_t)tr_mesh_group(m, TR_ON_DATA)->rank;
    if (n_ranks == 1)
        return TR_OK;
    for (size_t i = 0; i < t->n; i++) {
        double n = 0;
        bool is_ours = i % n_ranks == rank;
        if (is_ours)
            n = (double)t->n_ids[i];
        TR_PASS(tr_exec_total_data(d->e, "length of a text", &n, 1));
        t->n_ids[i] = (int64_t)n;
        int32_t *id = t->id + (int64_t)i * t->most;
        memset(d->shared, 0, (size_t)t->n_ids[i] * sizeof *d->shared);
        for (int64_t k = 0; is_ours && k < t->n_ids[i]; k++)
            d->shared[k] = id[k];
        if (t->n_ids[i] > 0)
            TR_PASS(tr_exec_total_data(d->e, "a text", d->shared, (size_t)t->n_ids[i]));
        for (int64_t k = 0; k < t->n_ids[i]; k++)
            id[k] = (int32_t)d->shared[k];
    }
    return TR_OK;
}

enum tr_status tr_decoder_run(struct tr_decoder *d, const struct tr_prompts *p, tr_token_fn *fn, void *ctx,
                              struct tr_texts *out)
{
    const struct tr_mesh *m = tr_exec_mesh(d->e);
    size_t next = (size_t)tr_mesh_group(m, TR_ON_DATA)->rank, step = (size_t)tr_mesh_group(m, TR_ON_DATA)->size;
    memset(out->n_ids, 0, out->n * sizeof *out->n_ids);
    for (int64_t i = 0; i < d->shape->n_sequences; i++)
        d->sequence[i].prompt = NULL;
    for (;;) {
        enum tr_purpose purpose;
        bool has_work;
        for (int64_t i = 0; i < d->shape->n_sequences && next < p->n; i++)
            if (!d->sequence[i].prompt) {
                begin(&d->sequence[i], p, next);
                next += step;
            }
        TR_PASS(choose_round(d, &purpose, &has_work));
        if (!has_work)
            break;
        TR_PASS(purpose == TR_FOR_DECODE ? run_decode(d) : run_chunk(d, purpose));
        TR_PASS(tr_exec_from_last_stage(d->e, "tokens that were picked", d->shared, (size_t)d->shape->n_sequences));
        TR_PASS(take(d, fn, ctx, out));
        TR_PASS(tr_stop_together(d->e, "generation"));
    }
    return share(d, out);
}
