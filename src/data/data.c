/* data.c - opening a data set, and the walk over the documents of one row that filling and counting share.
 *
 * A row is a list of pieces: a piece is the part of one document that lies in the row. Documents never span shards, so
 * a piece and the token after it are in one shard. Nothing here allocates after open; all state of a walk is on the
 * stack.
 */
#include "data/data.h"
#include "data/shard.h"
#include "data/sources.h"
#include "data/tokenize.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPEN_SHARDS = 256, /* descriptors held; shards beyond are opened when read */
    N_BOUNDS = 128,    /* document ends read at a time */
};

struct tr_data {
    int64_t row_tokens;
    uint64_t seed;
    bool shuffle;
    struct tr_shard_list shards;
    uint64_t *first_token; /* of shard i in the stream; [n] = n_tokens */
    struct tr_data_info info;
};

/* ---- open ---- */

static enum tr_status check_options(const struct tr_data_options *o)
{
    if (o->row_tokens < 1 || o->row_tokens > INT32_MAX / 2)
        return tr_fail(TR_USAGE, "sequence_length %" PRId64 " is not in [1, 2^30)", o->row_tokens);
    if (o->vocab_size < 1 || o->vocab_size > INT32_MAX)
        return tr_fail(TR_USAGE, "vocab_size %" PRId64 " is not in [1, 2^31)", o->vocab_size);
    if (o->max_skipped < 0 || o->shard_tokens < 0 || o->cache_wait_us < 0)
        return tr_fail(TR_USAGE, "max_skipped, shard_tokens and cache_wait_us cannot be negative");
    return TR_OK;
}

static enum tr_status open_shard_source(const struct tr_tokenize *t, const char *path, struct tr_shard_list *out)
{
    static const struct tr_hash128 unknown;
    struct tr_shard *s;
    enum tr_status st = tr_shard_open(path, (uint64_t)t->options->vocab_size, &s);
    if (st != TR_OK)
        return st;
    struct tr_hash128 made_with = tr_shard_get_info(s)->tokenizer;
    if (t->tokenizer && !tr_hash_eq(made_with, unknown) && !tr_hash_eq(made_with, tr_tokenizer_hash(t->tokenizer))) {
        tr_shard_close(s);
        return tr_fail(TR_USAGE, "%s: made with another tokenizer than the model's; tokenise the text again", path);
    }
    return tr_shard_list_add(out, s);
}

static enum tr_status open_text_source(struct tr_tokenize *t, const struct tr_source *source, struct tr_shard_list *out)
{
    if (!t->tokenizer)
        return tr_fail(TR_USAGE, "%s: text needs a tokenizer; give a model with tokenizer.json, or .trtok files",
                       source->path);
    if (!t->options->cache_dir)
        return tr_fail(TR_USAGE, "%s: text needs a cache directory for its tokens", source->path);
    if (tr_tokenizer_vocab_size(t->tokenizer) > t->options->vocab_size)
        return tr_fail(TR_USAGE, "the tokenizer has ids up to %" PRId64 " and the model a vocab_size of %" PRId64,
                       tr_tokenizer_vocab_size(t->tokenizer) - 1, t->options->vocab_size);
    return tr_tokenize_source(t, source, out);
}

/* Descriptors are few and shards may be many: one text file makes at least one. */
static enum tr_status open_source(struct tr_data *d, struct tr_tokenize *t, const struct tr_source *source)
{
    size_t n_before = d->shards.n;
    enum tr_status st = source->kind == TR_SOURCE_SHARD ? open_shard_source(t, source->path, &d->shards)
                                                        : open_text_source(t, source, &d->shards);
    for (size_t i = n_before; i < d->shards.n; i++)
        if (i >= OPEN_SHARDS)
            tr_shard_park(d->shards.p[i]);
    return st;
}

/* Totals, and the hash that says whether two data sets give the same samples. */
static enum tr_status sum_up(struct tr_data *d)
{
    enum tr_status st = TR_OK;
    struct tr_hasher *h = NULL;
    uint64_t shape[3] = { (uint64_t)d->row_tokens, d->shuffle, d->shuffle ? d->seed : 0 };
    TR_TRY(tr_hasher_open(&h));
    tr_hasher_add(h, shape, sizeof shape);
    d->first_token = calloc(d->shards.n + 1, sizeof *d->first_token);
    if (!d->first_token)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %zu token shards", d->shards.n));
    for (size_t i = 0; i < d->shards.n; i++) {
        const struct tr_shard_info *s = tr_shard_get_info(d->shards.p[i]);
        uint64_t row[5] = { s->n_tokens, s->n_docs, s->token_bytes, s->payload.lo, s->payload.hi };
        tr_hasher_add(h, row, sizeof row);
        d->info.n_tokens += s->n_tokens; /* below 2^56 each, and verified on disk: no overflow */
        d->info.n_docs += s->n_docs;
        d->info.n_skipped += s->n_skipped;
        d->first_token[i + 1] = d->info.n_tokens;
    }
    d->info.n_shards = d->shards.n;
    d->info.n_rows = tr_data_steps(d->info.n_tokens, (uint64_t)d->row_tokens);
    d->info.hash = tr_hasher_get(h);
out:
    tr_hasher_close(h);
    return st;
}

enum tr_status tr_data_open(const char *const *paths, size_t n_paths, const struct tr_tokenizer *tokenizer,
                            const struct tr_data_options *o, struct tr_data **out)
{
    enum tr_status st = TR_OK;
    struct tr_sources sources = { 0 };
    struct tr_tokenize t = {
        .tokenizer = tokenizer,
        .options = o,
        .cache = { o->cache_dir, o->cache_wait_us ? o->cache_wait_us : INT64_C(3600000000), -1 },
    };
    struct tr_data *d = calloc(1, sizeof *d);
    if (!d)
        return tr_fail(TR_NOMEM, "no memory for a data set");
    TR_TRY(check_options(o));
    d->row_tokens = o->row_tokens;
    d->seed = o->seed;
    d->shuffle = o->shuffle;
    TR_TRY(tr_sources_expand(paths, n_paths, &sources));
    for (size_t i = 0; i < sources.n; i++)
        TR_TRY(open_source(d, &t, &sources.p[i]));
    TR_TRY(sum_up(d));
    *out = d;
    d = NULL;
out:
    tr_cache_unlock(&t.cache);
    tr_sources_release(&sources);
    tr_data_close(d);
    return st;
}

void tr_data_close(struct tr_data *d)
{
    if (!d)
        return;
    tr_shard_list_release(&d->shards);
    free(d->first_token);
    free(d);
}

void tr_data_get_info(const struct tr_data *d, struct tr_data_info *out)
{
    *out = d->info;
}

uint64_t tr_data_rows(const struct tr_data *d)
{
    return d->info.n_rows;
}

int64_t tr_data_row_tokens(const struct tr_data *d)
{
    return d->row_tokens;
}

/* ---- the walk over one row ---- */

struct walk {
    const struct tr_data *d;
    const struct tr_shard *shard;
    size_t i_shard;
    int fd;
    uint64_t at, end; /* in the stream */
    uint64_t doc;     /* of this shard */
    uint64_t ends[N_BOUNDS], ends_first, n_ends;
};

struct piece {
    uint64_t first; /* token in the shard */
    int64_t n;
    bool goes_on; /* the document has tokens after this row */
};

static enum tr_status walk_shard(struct walk *w, size_t i_shard)
{
    if (w->shard)
        tr_shard_end(w->shard, w->fd);
    w->shard = w->d->shards.p[i_shard];
    w->i_shard = i_shard;
    w->fd = -1;
    w->n_ends = 0;
    w->doc = 0;
    return tr_shard_begin(w->shard, &w->fd);
}

static void walk_end(struct walk *w)
{
    if (w->shard)
        tr_shard_end(w->shard, w->fd);
}

static enum tr_status walk_begin(struct walk *w, const struct tr_data *d, uint64_t row)
{
    uint64_t row_tokens = (uint64_t)d->row_tokens;
    size_t lo = 0, hi = d->shards.n; /* first_token[lo] <= at < first_token[hi] */
    w->d = d;
    w->shard = NULL;
    w->at = row * row_tokens;
    w->end = d->info.n_tokens - w->at < row_tokens ? d->info.n_tokens : w->at + row_tokens;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (d->first_token[mid] <= w->at)
            lo = mid;
        else
            hi = mid;
    }
    enum tr_status st = walk_shard(w, lo);
    return st == TR_OK ? tr_shard_find_doc(w->shard, w->fd, w->at - d->first_token[lo], &w->doc) : st;
}

static enum tr_status doc_end(struct walk *w, uint64_t *out)
{
    if (w->doc < w->ends_first || w->doc - w->ends_first >= w->n_ends || w->n_ends == 0) {
        uint64_t left = tr_shard_get_info(w->shard)->n_docs - w->doc;
        w->ends_first = w->doc;
        w->n_ends = left < N_BOUNDS ? left : N_BOUNDS;
        enum tr_status st = tr_shard_doc_starts(w->shard, w->fd, w->doc + 1, w->n_ends, w->ends);
        if (st != TR_OK)
            return st;
    }
    *out = w->ends[w->doc - w->ends_first];
    return TR_OK;
}

/* p->n = 0 at the end of the row. */
static enum tr_status walk_next(struct walk *w, struct piece *p)
{
    enum tr_status st = TR_OK;
    uint64_t base = w->d->first_token[w->i_shard], stop;
    p->n = 0;
    if (w->at == w->end)
        return TR_OK;
    if (w->at == w->d->first_token[w->i_shard + 1]) {
        TR_TRY(walk_shard(w, w->i_shard + 1));
        base = w->at;
    }
    TR_TRY(doc_end(w, &stop));
    if (stop <= w->at - base || stop > w->d->first_token[w->i_shard + 1] - base)
        TR_TRY(tr_fail(TR_IO, "%s: document %" PRIu64 " moved after verification", tr_shard_path(w->shard), w->doc));
    p->first = w->at - base;
    p->goes_on = base + stop > w->end;
    p->n = (int64_t)((p->goes_on ? w->end : base + stop) - w->at);
    w->at += (uint64_t)p->n;
    w->doc++;
out:
    return st;
}

/* ---- samples ---- */

static uint64_t row_of_sample(const struct tr_data *d, uint64_t g)
{
    uint64_t n = d->info.n_rows;
    return d->shuffle ? tr_permute(tr_rng_key(d->seed, "shuffle", g / n), n, g % n) : g % n;
}

/* Elements [at, at + n) of the batch: one document, or padding, that starts in column `col` of sample g. */
static void fill_place(const struct tr_batch *b, int64_t at, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++) {
        b->positions[at + i] = (int32_t)i;
        b->begin[at + i] = (int32_t)at;
        b->sample[at + i] = id;
    }
}

static void fill_padding(const struct tr_batch *b, int64_t at, int64_t n, int64_t id)
{
    fill_place(b, at, n, id);
    for (int64_t i = 0; i < n; i++) {
        b->tokens[at + i] = 0;
        b->targets[at + i] = TR_TARGET_NONE;
    }
}

static enum tr_status fill_piece(const struct walk *w, const struct piece *p, const struct tr_batch *b, int64_t at,
                                 int64_t *n_targets)
{
    enum tr_status st = TR_OK;
    uint64_t n_known = (uint64_t)p->n - !p->goes_on; /* tokens with a next one in the document */
    int32_t next = TR_TARGET_NONE;
    TR_TRY(tr_shard_read(w->shard, w->fd, p->first, (uint64_t)p->n, b->tokens + at));
    if (p->goes_on)
        TR_TRY(tr_shard_read(w->shard, w->fd, p->first + (uint64_t)p->n, 1, &next));
    memcpy(b->targets + at, b->tokens + at + 1, (size_t)(p->n - 1) * sizeof *b->targets);
    b->targets[at + p->n - 1] = next;
    TR_TRY(tr_shard_mask(w->shard, w->fd, p->first + 1, n_known, b->targets + at, n_targets));
out:
    return st;
}

static enum tr_status fill_row(const struct tr_data *d, uint64_t g, const struct tr_batch *b, int64_t at,
                               int64_t *count)
{
    enum tr_status st = TR_OK;
    struct walk w;
    int64_t col = 0, first_id = (int64_t)g * d->row_tokens;
    *count = 0;
    TR_TRY(walk_begin(&w, d, row_of_sample(d, g)));
    for (;;) {
        struct piece p;
        int64_t n_targets;
        TR_TRY(walk_next(&w, &p));
        if (p.n == 0)
            break;
        TR_TRY(fill_piece(&w, &p, b, at + col, &n_targets));
        fill_place(b, at + col, p.n, first_id + col);
        *count += n_targets;
        col += p.n;
    }
    fill_padding(b, at + col, d->row_tokens - col, first_id + col);
out:
    walk_end(&w);
    return st;
}

static enum tr_status count_row(const struct tr_data *d, uint64_t g, int64_t *count)
{
    enum tr_status st = TR_OK;
    struct walk w;
    *count = 0;
    TR_TRY(walk_begin(&w, d, row_of_sample(d, g)));
    for (;;) {
        struct piece p;
        int64_t n;
        TR_TRY(walk_next(&w, &p));
        if (p.n == 0)
            break;
        TR_TRY(tr_shard_mask(w.shard, w.fd, p.first + 1, (uint64_t)p.n - !p.goes_on, NULL, &n));
        *count += n;
    }
out:
    walk_end(&w);
    return st;
}

/* Every number made from a sample index stays in 63 bits. */
static enum tr_status check_range(const struct tr_data *d, uint64_t first_sample, int64_t n_rows)
{
    uint64_t limit = (uint64_t)INT64_MAX / (uint64_t)d->row_tokens;
    if (n_rows < 1 || n_rows > INT32_MAX / d->row_tokens)
        return tr_fail(TR_USAGE, "%" PRId64 " rows of %" PRId64 " tokens are not a batch of 1 to 2^31 tokens", n_rows,
                       d->row_tokens);
    if (first_sample > limit - (uint64_t)n_rows - 1)
        return tr_fail(TR_USAGE, "sample %" PRIu64 " is beyond %" PRIu64, first_sample, limit);
    return TR_OK;
}

enum tr_status tr_data_fill(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                            const struct tr_batch *out, int64_t *n_targets)
{
    enum tr_status st = check_range(d, first_sample, n_rows);
    int64_t sum = 0;
    for (int64_t r = 0; r < n_rows && st == TR_OK; r++) {
        uint64_t g = first_sample + (uint64_t)r;
        int64_t count = 0;
        if (g < total_samples)
            st = fill_row(d, g, out, r * d->row_tokens, &count);
        else
            fill_padding(out, r * d->row_tokens, d->row_tokens, (int64_t)g * d->row_tokens);
        sum += count;
    }
    if (st == TR_OK)
        *n_targets = sum;
    return st;
}

enum tr_status tr_data_count(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                             int64_t *n_targets)
{
    enum tr_status st = TR_OK;
    int64_t sum = 0;
    for (int64_t r = 0; r < n_rows && first_sample + (uint64_t)r < total_samples && st == TR_OK; r++) {
        int64_t count = 0;
        st = count_row(d, first_sample + (uint64_t)r, &count);
        sum += count;
    }
    if (st == TR_OK)
        *n_targets = sum;
    return st;
}
