/* data.c - opens a data set: sources become shards, shards become parts, and parts become one order of samples.
 *
 * A group is the set of files to which one weight applies: one path of a mixture, or all paths when there are no
 * weights. Its rows are those of its stream part followed by those of its packed part.
 */
#include "data/data_impl.h"
#include "data/chat_date.h"
#include "data/fetch.h"
#include "data/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_SHARDS = 256 }; /* that hold a descriptor; shards beyond these are opened for each read */

/* ---- options ---- */

static enum tr_status check_options(const struct tr_data_options *o)
{
    if (o->row_tokens < 1 || o->row_tokens > INT32_MAX / 2)
        return tr_fail(TR_USAGE, "sequence_length %" PRId64 " is not in [1, 2^30)", o->row_tokens);
    if (o->vocab_size < 1 || o->vocab_size > INT32_MAX)
        return tr_fail(TR_USAGE, "vocab_size %" PRId64 " is not in [1, 2^31)", o->vocab_size);
    if (o->max_skipped < 0 || o->shard_tokens < 0 || o->cache_wait_us < 0)
        return tr_fail(TR_USAGE, "max_skipped, shard_tokens or cache_wait_us is negative; each must be at least 0");
    if (o->text_key && o->shape != TR_SHAPE_AUTO && o->shape != TR_SHAPE_TEXT)
        return tr_fail(TR_USAGE, "text_key %s is for records of shape text, not of shape %s", o->text_key,
                       tr_shape_name(o->shape));
    if ((o->wants_pairs || o->wants_labels) && (o->packing == TR_PACK_STREAM || o->how_long == TR_LONG_SPLIT))
        return tr_fail(
            TR_USAGE,
            "an answer, and a pair of them, lies in one row: packing stream and long_documents split cut it; use "
            "packing bestfit or none, and long_documents fit, drop or refuse");
    if (o->streams && (o->wants_pairs || o->wants_labels || o->held_out > 0 || !o->shuffle || !o->cache_dir))
        return tr_fail(TR_USAGE,
                       "streaming reads text for training while it is tokenised; %s needs all of it before: "
                       "use streaming false",
                       o->wants_pairs || o->wants_labels ? "a task with a reference"
                       : o->held_out > 0                 ? "eval_split (eval_data does not)"
                                                         : "evaluation");
    return TR_OK;
}

static bool has_weights(const struct tr_data_options *o, size_t n_paths)
{
    for (size_t i = 0; o->weights && i < n_paths; i++)
        if (o->weights[i] < 1 || o->weights[i] > 1)
            return true;
    return false;
}

/* ---- sources ---- */

static enum tr_status open_shard_source(struct tr_tokenize *t, const char *path, struct tr_shard_list *out,
                                        struct tr_data_file *file)
{
    static const struct tr_hash128 unknown;
    struct tr_shard *s;
    TR_PASS(tr_shard_open_sealed(path, (uint64_t)t->options->vocab_size, &t->seals, &s));
    struct tr_hash128 made_with = tr_shard_get_info(s)->tokenizer;
    if (t->tokenizer && !tr_hash_eq(made_with, unknown) && !tr_hash_eq(made_with, tr_tokenizer_hash(t->tokenizer))) {
        tr_shard_close(s);
        return tr_fail(TR_USAGE,
                       "%s: this shard was made with another tokenizer than that of the model; tokenise the text again",
                       path);
    }
    file->was_cached = true;
    file->n_skipped = tr_shard_get_info(s)->n_skipped;
    return tr_shard_list_add(out, s);
}

static enum tr_packing packing_of(const struct tr_data_options *o, const struct tr_shard *s)
{
    if (o->packing != TR_PACK_AUTO)
        return o->packing;
    if (!tr_shard_get_info(s)->keeps_whole)
        return TR_PACK_STREAM;
    return o->in_order ? TR_PACK_NONE : TR_PACK_BESTFIT;
}

static enum tr_status check_answers(const struct tr_data_options *o, const struct tr_shard_info *info, const char *path)
{
    if (info->has_labels == o->wants_labels && info->has_pairs == o->wants_pairs)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   o->wants_labels  ? "%s: the records are no answers with labels; this task needs \"completion\" and "
                                      "\"label\""
                   : o->wants_pairs ? "%s: the records are no pairs of answers; this task needs \"chosen\" and "
                                      "\"rejected\""
                   : info->has_pairs
                       ? "%s: the records are pairs of answers; train on them with --task dpo, orpo, simpo "
                         "or cpo"
                       : "%s: the records are answers with labels; train on them with --task kto",
                   path);
}

static enum tr_status check_weights(const struct tr_data_options *o, const struct tr_shard_info *info, const char *path)
{
    return info->has_weights && !o->reads_weights
               ? tr_fail(TR_USAGE, "%s: the shard has weights of tokens; give --loss_weights", path)
               : TR_OK;
}

static enum tr_status add_file(struct tr_data *d, const struct tr_source *source, const struct tr_data_file *like)
{
    struct tr_data_file *file = &d->files[d->n_files];
    *file = *like;
    file->path = strdup(source->path);
    if (!file->path)
        return tr_fail(TR_NOMEM, "no memory for a data path");
    d->n_files++;
    return TR_OK;
}

/* Each document of the shard is one of the joined files. *n_named: of those files, the ones that are in d->files. */
static enum tr_status name_docs(struct tr_data *d, const struct tr_source *joined, size_t i_shard, int fd,
                                size_t *n_named)
{
    enum { AT_ONCE = 512 };
    const struct tr_shard *s = d->shards.p[i_shard];
    uint64_t n_docs = tr_shard_get_info(s)->n_docs, start[AT_ONCE + 1];
    if (n_docs > joined->n_joined - *n_named)
        return tr_fail(TR_IO, "%s: this shard has more documents than files were joined; remove it", tr_shard_path(s));
    for (uint64_t doc = 0; doc < n_docs; doc++, ++*n_named) {
        uint64_t i = doc % AT_ONCE;
        if (i == 0)
            TR_PASS(tr_shard_doc_starts(s, fd, doc, (n_docs - doc < AT_ONCE ? n_docs - doc : AT_ONCE) + 1, start));
        if (*n_named > 0) /* the first is there, with the sums of all */
            TR_PASS(add_file(d, &joined[*n_named], &d->files[d->n_files - 1]));
        struct tr_data_file *file = &d->files[d->n_files - 1];
        file->n_tokens = start[i + 1] - start[i];
        file->n_docs = 1;
        file->i_shard = i_shard;
        file->i_doc = doc;
    }
    return TR_OK;
}

static enum tr_status name_joined(struct tr_data *d, const struct tr_source *joined, size_t first)
{
    size_t n_named = 0;
    for (size_t i = first; i < d->shards.n; i++) {
        int fd;
        TR_PASS(tr_shard_begin(d->shards.p[i], &fd));
        enum tr_status st = name_docs(d, joined, i, fd, &n_named);
        tr_shard_end(d->shards.p[i], fd);
        if (st != TR_OK)
            return st;
    }
    return TR_OK;
}

enum tr_status tr_data_add(struct tr_data *d, struct tr_tokenize *t, const struct tr_source *source)
{
    size_t n_before = d->shards.n;
    TR_PASS(add_file(d, source, &(struct tr_data_file){ .weight = 1, .i_shard = n_before, .n_before = source->first }));
    struct tr_data_file *file = &d->files[d->n_files - 1];
    TR_PASS(source->kind == TR_SOURCE_SHARD ? open_shard_source(t, source->path, &d->shards, file)
                                            : tr_tokenize_source(t, source, &d->shards, file));
    if (d->shards.n == n_before) {
        free((char *)(uintptr_t)file->path);
        d->n_files--;
        return TR_OK;
    }
    file->packing = packing_of(t->options, d->shards.p[n_before]);
    TR_PASS(check_answers(t->options, tr_shard_get_info(d->shards.p[n_before]), source->path));
    TR_PASS(check_weights(t->options, tr_shard_get_info(d->shards.p[n_before]), source->path));
    for (size_t i = n_before; i < d->shards.n; i++) {
        file->n_tokens += tr_shard_get_info(d->shards.p[i])->n_tokens;
        file->n_docs += tr_shard_get_info(d->shards.p[i])->n_docs;
        if (i >= OPEN_SHARDS || source->is_slice) /* a process has few descriptors, and there may be many shards */
            tr_shard_park(d->shards.p[i]);
    }
    return source->n_joined ? name_joined(d, source, n_before) : TR_OK;
}

/* ---- groups ---- */

/* The rows have one keyed order, and the last of them are held out. Both sides of a split have the same rows: they are
 * packed in the same keyed order, although those that are held out are read as they lie. */
static enum tr_status split_off(struct tr_data_group *g, const struct tr_data_options *o)
{
    uint64_t n_held = (uint64_t)ceil((double)g->n_all * o->held_out);
    g->n_rows = g->n_all;
    if (o->held_out <= 0 || g->n_all == 0)
        return TR_OK;
    if (n_held >= g->n_all)
        return tr_fail(TR_USAGE,
                       "%" PRIu64
                       " rows are too few to hold out a share of %g for evaluation; give more data or another share",
                       g->n_all, o->held_out);
    g->n_rows = o->is_held_out_side ? n_held : g->n_all - n_held;
    g->i_first = o->is_held_out_side ? g->n_all - n_held : 0;
    g->is_split = true;
    return TR_OK;
}

/* Makes parts of shards [first, end) of d->shards: a stream part and a packed part, either of which may be empty. */
static enum tr_status open_group(struct tr_data *d, struct tr_data_group *g, size_t first, size_t end,
                                 const struct tr_tokenize *t)
{
    enum tr_status st = TR_OK;
    const struct tr_data_options *o = t->options;
    struct tr_shard **some = calloc(end - first + 1, sizeof(struct tr_shard *));
    if (!some)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %zu token shards", end - first));
    for (int how = TR_PACK_STREAM; how < TR_PACK_COUNT; how++) {
        size_t n = 0;
        for (size_t i = first; i < end; i++)
            if (packing_of(o, d->shards.p[i]) == (enum tr_packing)how)
                some[n++] = d->shards.p[i];
        if (n == 0)
            continue;
        struct tr_data_part *part = &g->parts[g->n_parts];
        TR_TRY(tr_data_part_open(part, some, n, (enum tr_packing)how, o, g->seed));
        g->n_parts++;
        part->first_ref = d->n_ref;
        d->n_ref += part->first_doc[part->n_shards];
        g->n_all += part->n_rows;
        d->info.n_row_tokens += part->n_row_tokens;
        d->info.n_split += part->n_split;
        d->info.n_cut += part->n_cut;
        d->info.n_dropped += part->n_dropped;
        d->info.n_tokens_lost += part->n_tokens_lost;
        d->info.n_targets_lost += part->n_targets_lost;
        d->n_idle += part->n_idle;
        TR_TRY(tr_data_name_losses(d, part, &t->skips));
    }
    TR_TRY(split_off(g, o));
out:
    free(some);
    return st;
}

static enum tr_status refuse_rowless(const struct tr_data *d)
{
    char first[320] = "";
    const struct tr_data_skip *x = d->losses.n > 0 ? &d->losses.p[0] : NULL;
    if (x)
        (void)tr_format(first, sizeof first, " (the first, line %" PRId64 ": %s)", x->line, x->why); /* may be cut */
    return tr_fail(TR_USAGE,
                   "%s: no document is left to train on, because all are longer than a row of %" PRId64
                   " tokens%s; give a larger --sequence_length%s",
                   d->files[d->n_files - 1].path, d->row_tokens, first,
                   d->how_long == TR_LONG_FIT ? "" : ", or --long_documents fit");
}

/* Opens the files of one group. *next becomes the first file of the next group. */
static enum tr_status open_group_sources(struct tr_data *d, struct tr_tokenize *t, const struct tr_sources *sources,
                                         bool is_mixed, size_t *next)
{
    struct tr_data_group *g = &d->groups[d->n_groups];
    size_t first = d->shards.n, i_path = sources->p[*next].i_path;
    *g = (struct tr_data_group){ .seed = d->n_groups == 0 ? d->seed : tr_rng_key(d->seed, "source", d->n_groups) };
    d->n_groups++;
    size_t n_joined;
    for (; *next < sources->n && (!is_mixed || sources->p[*next].i_path == i_path); *next += n_joined ? n_joined : 1) {
        size_t first_file = d->n_files;
        n_joined = sources->p[*next].n_joined;
        TR_PASS(tr_data_add(d, t, &sources->p[*next]));
        for (size_t i = first_file; is_mixed && i < d->n_files; i++)
            d->files[i].weight = t->options->weights[i_path];
    }
    TR_PASS(open_group(d, g, first, d->shards.n, t));
    return g->n_all > 0 ? TR_OK : refuse_rowless(d);
}

static enum tr_status open_groups(struct tr_data *d, struct tr_tokenize *t, struct tr_sources *sources, size_t n_paths)
{
    static const double one = 1;
    bool is_mixed = has_weights(t->options, n_paths);
    size_t n_groups = is_mixed ? n_paths : 1;
    TR_PASS(tr_mix_open(&d->mix, is_mixed ? t->options->weights : &one, n_groups));
    if (tr_stream_is_wanted(t->options, sources))
        return tr_stream_open(t, sources, n_groups, &d->mix, &d->stream);
    TR_PASS(TR_ALLOC(d->files, sources->n, "%zu data files", sources->n));
    TR_PASS(TR_ALLOC(d->groups, n_groups, "%zu data files", sources->n));
    for (size_t next = 0; next < sources->n;)
        TR_PASS(open_group_sources(d, t, sources, is_mixed, &next));
    return TR_OK;
}

/* For the hash: 0 where each packed document is whole, in one row or in several. */
static uint64_t way_of_long(const struct tr_data *d)
{
    bool is_all = d->info.n_cut + d->info.n_dropped + d->n_idle == 0;
    return d->how_long == TR_LONG_CUT ? 1 : is_all ? 0 : 2 + (uint64_t)d->how_long;
}

/* Computes the totals, and the hash that is equal for two data sets with the same samples. */
static enum tr_status sum_up(struct tr_data *d)
{
    enum tr_status st = TR_OK;
    struct tr_hasher *h = NULL;
    bool has_seed = d->shuffle || (d->n_groups > 0 && d->groups[0].is_split); /* samples depend on it */
    uint64_t shape[4] = { (uint64_t)d->row_tokens, d->shuffle, has_seed ? d->seed : 0, way_of_long(d) };
    TR_TRY(tr_hasher_open(&h));
    tr_hasher_add(h, shape, sizeof shape);
    for (size_t i = 0; i < d->n_groups; i++) {
        struct tr_data_group *g = &d->groups[i];
        uint64_t row[4] = { d->mix.share[i], g->n_parts, g->n_rows, g->i_first };
        tr_hasher_add(h, row, sizeof row);
        d->info.n_rows += g->n_rows;
        for (size_t p = 0; p < g->n_parts; p++) {
            uint64_t part[3] = { g->parts[p].packing, g->parts[p].n_shards, g->parts[p].n_rows };
            tr_hasher_add(h, part, sizeof part);
            for (size_t s = 0; s < g->parts[p].n_shards; s++) {
                const struct tr_shard_info *k = tr_shard_get_info(g->parts[p].shards[s]);
                uint64_t shard[5] = { k->n_tokens, k->n_docs, k->token_bytes, k->payload.lo, k->payload.hi };
                tr_hasher_add(h, shard, sizeof shard);
                d->info.n_tokens += k->n_tokens;
                d->info.n_docs += k->n_docs;
                d->info.n_skipped += k->n_skipped;
            }
        }
    }
    d->info.n_shards = d->shards.n;
    d->info.hash = tr_hasher_get(h);
out:
    tr_hasher_close(h);
    return st;
}

/* ---- addresses ---- */

struct paths {
    const char **p;
    char (*copies)[TR_PATH_MAX]; /* of those that are addresses */
};

static void release_paths(struct paths *paths)
{
    free(paths->p);
    free(paths->copies);
}

/* The copy of ADDRESS, or of ADDRESS#SPLIT with the same split behind it. */
static enum tr_status fetch_path(const struct tr_tokenize *t, const char *given, char out[TR_PATH_MAX])
{
    char url[TR_PATH_MAX], copy[TR_PATH_MAX];
    size_t n = strcspn(given, "#");
    TR_PASS(tr_format(url, sizeof url, "%.*s", (int)n, given));
    TR_PASS(tr_fetch(t->options->fetch_command, url, t->cache.dir, t->cache.wait_us, copy));
    return tr_format(out, TR_PATH_MAX, "%s%s", copy, given + n);
}

/* The paths, with those of their copies in the place of addresses. */
static enum tr_status fetch_paths(struct tr_tokenize *t, const char *const *given, size_t n, struct paths *out)
{
    size_t n_addresses = 0, k = 0;
    for (size_t i = 0; i < n; i++)
        n_addresses += tr_fetch_is_address(given[i]);
    TR_PASS(TR_ALLOC(out->p, n + 1, "%zu data paths", n));
    TR_PASS(TR_ALLOC(out->copies, n_addresses + 1, "%zu data paths", n));
    if (n_addresses > 0 && !t->options->cache_dir)
        return tr_fail(TR_USAGE, "%s: an address needs a cache directory for its copy", given[0]);
    if (n_addresses > 0)
        TR_PASS(tr_cache_lock(&t->cache));
    for (size_t i = 0; i < n; i++) {
        out->p[i] = given[i];
        if (!tr_fetch_is_address(given[i]))
            continue;
        TR_PASS(fetch_path(t, given[i], out->copies[k]));
        out->p[i] = out->copies[k++];
    }
    return TR_OK;
}

/* ---- open, close, facts ---- */

void tr_maps_close(struct tr_source_map **maps, size_t n)
{
    for (size_t i = 0; maps && i < n; i++)
        tr_map_close(maps[i]);
    free(maps);
}

static enum tr_status open_maps(const char *const *texts, const char *const *paths, size_t n,
                                struct tr_source_map ***out)
{
    enum tr_status st = TR_OK;
    struct tr_source_map **maps = calloc(n + 1, sizeof(struct tr_source_map *));
    if (!maps)
        return tr_fail(TR_NOMEM, "no memory for %zu sources of data", n);
    for (size_t i = 0; texts && i < n && st == TR_OK; i++)
        if (texts[i] && (st = tr_map_open(texts[i], &maps[i])) != TR_OK)
            tr_fail_at(st, "data %s: ", paths[i]);
    if (st == TR_OK)
        *out = maps;
    else
        tr_maps_close(maps, n);
    return st;
}

enum tr_status tr_data_begin(const struct tr_data_options *o, uint64_t seed, size_t n_files, struct tr_data **out)
{
    struct tr_data *d = calloc(1, sizeof *d);
    if (!d)
        return tr_fail(TR_NOMEM, "no memory for a data set");
    d->row_tokens = o->row_tokens;
    d->seed = seed;
    d->shuffle = o->shuffle;
    d->how_long = o->how_long;
    d->has_pairs = o->wants_pairs;
    d->has_labels = o->wants_labels;
    d->weighs = o->weighs;
    d->weighs_tails = o->weighs_tails;
    d->tail_weight = o->tail_weight;
    if (n_files && TR_ALLOC(d->files, n_files, "%zu data files", n_files) != TR_OK) {
        tr_data_close(d);
        return TR_NOMEM;
    }
    *out = d;
    return TR_OK;
}

enum tr_status tr_data_end(struct tr_data *d, struct tr_tokenize *t)
{
    static const double one = 1;
    TR_PASS(tr_mix_open(&d->mix, &one, 1));
    TR_PASS(TR_ALLOC(d->groups, 1, "a group of data"));
    d->n_groups = 1;
    d->groups[0].seed = d->seed;
    TR_PASS(open_group(d, &d->groups[0], 0, d->shards.n, t));
    TR_PASS(sum_up(d));
    d->skips = t->skips;
    t->skips.n = 0;
    return TR_OK;
}

enum tr_status tr_data_open(const char *const *paths, size_t n_paths, const struct tr_tokenizer *tokenizer,
                            const struct tr_data_options *options, struct tr_data **out)
{
    enum tr_status st = TR_OK;
    struct tr_data_options own = *options, *o = &own;
    if (o->wants_labels && o->shape == TR_SHAPE_AUTO)
        o->shape = TR_SHAPE_LABELLED; /* other records have a member of that name too, so it is not detected */
    struct tr_sources sources = { 0 };
    struct tr_source_map **maps = NULL;
    struct paths local = { 0 };
    struct tr_tokenize t = {
        .tokenizer = tokenizer,
        .options = o,
        .cache = { o->cache_dir, o->cache_wait_us ? o->cache_wait_us : INT64_C(3600000000), -1 },
        .seals = { o->cache_dir, o->recheck },
    };
    struct tr_data *d = NULL;
    TR_TRY(check_options(o));
    TR_TRY(open_maps(o->maps, paths, n_paths, &maps));
    t.maps = maps;
    t.n_maps = n_paths;
    TR_TRY(tr_data_begin(o, o->seed, 0, &d));
    TR_TRY(fetch_paths(&t, paths, n_paths, &local));
    TR_TRY(tr_sources_expand(local.p, n_paths, &t.seals, &sources));
    if (o->chat && o->cache_dir)
        TR_TRY(tr_data_fix_date(o->chat, o->chat_date, o->cache_dir));
    if (o->chat)
        tr_chat_get_date(o->chat, d->date);
    TR_TRY(open_groups(d, &t, &sources, n_paths));
    if (d->stream)
        d->info.hash = tr_stream_hash(d->stream);
    else
        TR_TRY(sum_up(d));
    if (tr_data_counts_docs(d) && !(d->ref = calloc((size_t)d->n_ref, 2 * sizeof *d->ref)))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the references of %" PRIu64 " documents", d->n_ref));
    d->skips = t.skips;
    t.skips.n = 0;
    *out = d;
    d = NULL;
out:
    tr_cache_unlock(&t.cache);
    tr_pool_close(t.pool);
    tr_skip_list_release(&t.skips);
    tr_sources_release(&sources);
    if (t.maps) /* a stream has taken them */
        tr_maps_close(maps, n_paths);
    release_paths(&local);
    tr_data_close(d);
    return st;
}

void tr_data_close(struct tr_data *d)
{
    if (!d)
        return;
    tr_stream_close(d->stream);
    tr_chat_close(d->chat);
    for (size_t i = 0; i < d->n_groups; i++)
        for (size_t p = 0; p < d->groups[i].n_parts; p++)
            tr_data_part_release(&d->groups[i].parts[p]);
    for (size_t i = 0; i < d->n_files; i++)
        free((char *)(uintptr_t)d->files[i].path);
    free(d->groups);
    free(d->ref);
    free(d->files);
    tr_mix_release(&d->mix);
    tr_skip_list_release(&d->skips);
    tr_skip_list_release(&d->losses);
    tr_shard_list_release(&d->shards);
    free(d);
}

void tr_data_keep(struct tr_data *d, struct tr_chat *chat)
{
    d->chat = chat;
}

const struct tr_data *tr_data_first(const struct tr_data *d)
{
    return d->stream ? tr_stream_first(d->stream) : d;
}

void tr_data_get_info(const struct tr_data *d, struct tr_data_info *out)
{
    *out = d->info;
}

bool tr_data_has_labels(const struct tr_data *d)
{
    return d->has_labels;
}

uint64_t tr_data_rows(const struct tr_data *d)
{
    return d->info.n_rows;
}

int64_t tr_data_row_tokens(const struct tr_data *d)
{
    return d->row_tokens;
}

const struct tr_data_file *tr_data_files(const struct tr_data *d, size_t *n)
{
    *n = tr_data_first(d)->n_files;
    return tr_data_first(d)->files;
}

const struct tr_data_skip *tr_data_skips(const struct tr_data *d, size_t *n)
{
    *n = tr_data_first(d)->skips.n;
    return tr_data_first(d)->skips.p;
}

bool tr_data_take_news(const struct tr_data *d, struct tr_data_news *out)
{
    return d->stream && tr_stream_take_news(d->stream, out);
}

const struct tr_data_skip *tr_data_losses(const struct tr_data *d, size_t *n)
{
    *n = tr_data_first(d)->losses.n;
    return tr_data_first(d)->losses.p;
}
