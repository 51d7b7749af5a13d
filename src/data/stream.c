/* stream.c - see stream.h. The thread owns lanes, readers and the cache's lock; blocks are published under `lock` and
 * do not change afterwards. The process that makes slices keeps the lock of the cache until its stream is closed,
 * because another one would have to read the files up to there first; the others wait for the slices to appear. Once
 * the run has its first rows the thread has a low priority, so that training gives up no more than the tokenising
 * needs; until then nothing else can be done, and a busy machine would let it wait. */
#include "data/stream.h"
#include "data/data_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LANES = 8, MOST_SLICES = 8, LOW_PRIORITY = 10 };

struct lane {
    size_t *sources; /* n of them, in the list of all */
    size_t n, next;
    uint64_t at;                 /* where the next slice of source `next` begins */
    uint64_t n_made, n_expected; /* slices */
    struct tr_reader reader;
};

struct stream_group {
    uint64_t seed;
    struct lane lanes[LANES];
    size_t n_lanes;
    struct tr_data **blocks;
    uint64_t *first_row; /* of each block */
    size_t n_blocks, n_blocks_cap, n_first_cap;
    uint64_t n_rows, n_wanted;
    bool is_complete;
};

struct tr_stream {
    struct tr_data_options options;
    struct tr_tokenize t;
    struct tr_sources sources;
    struct stream_group *groups;
    size_t n_groups;
    const struct tr_data *first; /* the first block; lists of blocks may move while a reader has no lock */
    const struct tr_mix *mix;
    struct tr_hash128 hash;
    char cache_dir[TR_PATH_MAX];
    atomic_bool is_closing;
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct tr_data_news news; /* of blocks that were published since it was taken */
    enum tr_status failed;    /* the error with which the thread ended */
    char why[512];
};

bool tr_stream_is_wanted(const struct tr_data_options *o, const struct tr_sources *sources)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < sources->n; i++)
        n_bytes += sources->p[i].n_bytes;
    return o->streams && n_bytes >= o->streams_from;
}

uint64_t tr_stream_bytes(const struct tr_stream *s)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < s->sources.n; i++)
        n_bytes += s->sources.p[i].n_bytes;
    return n_bytes;
}

/* ---- files ---- */

/* A file that is no longer than a slice becomes one block's piece as a whole, and so do joined files and shards. */
static bool is_whole(const struct tr_source *s, size_t slice_bytes)
{
    bool is_plain = s->kind == TR_SOURCE_TEXT || s->table < TR_TABLE_PARQUET;
    return s->kind == TR_SOURCE_SHARD || s->n_joined ||
           (is_plain && tr_zip_of(s->path) == TR_ZIP_NONE && s->n_bytes <= slice_bytes);
}

/* What a file is: its size, and pieces of 4 KiB that are spread evenly over it. To read all would take longer than the
 * first steps. */
static enum tr_status identify(const struct tr_source *s, struct tr_hasher *h)
{
    enum { PIECE = 4096, MOST = 256, SMALL = 1 << 20 };
    unsigned char buf[PIECE];
    uint64_t n_file, n = s->n_bytes < PIECE ? s->n_bytes : PIECE, n_pieces = s->n_bytes > SMALL ? MOST : 2;
    int fd;
    TR_PASS(tr_file_open_read(s->path, &fd, &n_file));
    tr_hasher_add(h, &s->n_bytes, sizeof s->n_bytes);
    enum tr_status st = n_file == s->n_bytes ? TR_OK : tr_fail(TR_IO, "%s: the file is being changed", s->path);
    for (uint64_t i = 0; i < n_pieces && st == TR_OK; i++) {
        st = tr_pread_all(fd, s->path, buf, (size_t)n, (s->n_bytes - n) / (n_pieces - 1) * i);
        tr_hasher_add(h, buf, (size_t)n);
    }
    close(fd);
    return st;
}

/* Gives a source its shape and identity, and adds them to the hash of the stream. */
static enum tr_status look_at(struct tr_stream *s, struct tr_source *x, struct tr_hasher *all)
{
    enum tr_status st = TR_OK;
    struct tr_hasher *h = NULL;
    struct tr_hash128 key;
    TR_TRY(tr_hasher_open(&h));
    for (size_t i = 0; i < (x->n_joined ? x->n_joined : 1); i++)
        TR_TRY(identify(&x[i], h));
    struct tr_hash128 content = tr_hasher_get(h);
    key = content;
    if (x->kind != TR_SOURCE_SHARD)
        TR_TRY(tr_tokenize_look(&s->t, x, content, &x->shape, &key));
    tr_hasher_add(all, &key, sizeof key);
    tr_hasher_add(h, &x->changed.tv_sec, sizeof x->changed.tv_sec);
    tr_hasher_add(h, &x->changed.tv_nsec, sizeof x->changed.tv_nsec);
    x->identity = tr_hasher_get(h);
    x->is_slice = !is_whole(x, tr_slice_bytes(&s->options));
out:
    tr_hasher_close(h);
    return st;
}

static uint64_t expected_slices(const struct tr_source *x, size_t slice_bytes)
{
    enum { ZIP_RATIO = 3 };
    bool is_packed = x->kind == TR_SOURCE_RECORDS && x->table >= TR_TABLE_PARQUET;
    uint64_t n = x->n_bytes / slice_bytes + 1;
    return !x->is_slice ? 1 : is_packed || tr_zip_of(x->path) != TR_ZIP_NONE ? n * ZIP_RATIO : n;
}

/* Files in a keyed order, each to the lane that has the least so far. */
static enum tr_status open_lanes(struct tr_stream *s, struct stream_group *g, const size_t *units, size_t n)
{
    g->n_lanes = n < LANES ? n : LANES;
    for (size_t i = 0; i < g->n_lanes; i++)
        TR_PASS(TR_ALLOC(g->lanes[i].sources, n, "%zu data files", n));
    for (size_t i = 0; i < n; i++) {
        size_t unit = units[tr_permute(tr_rng_key(g->seed, "files", 0), n, i)], best = 0;
        for (size_t k = 1; k < g->n_lanes; k++)
            if (g->lanes[k].n_expected < g->lanes[best].n_expected)
                best = k;
        struct lane *lane = &g->lanes[best];
        lane->sources[lane->n++] = unit;
        lane->n_expected += expected_slices(&s->sources.p[unit], tr_slice_bytes(&s->options));
    }
    for (size_t i = 0; i < g->n_lanes; i++)
        g->lanes[i].at = s->sources.p[g->lanes[i].sources[0]].first;
    return TR_OK;
}

static enum tr_status open_files(struct tr_stream *s)
{
    enum tr_status st = TR_OK;
    struct tr_hasher *all = NULL;
    const struct tr_data_options *o = &s->options;
    size_t *units = NULL, n_units, next = 0;
    uint64_t shape[] = { (uint64_t)o->row_tokens, o->seed, (uint64_t)o->packing, (uint64_t)o->how_long,
                         tr_slice_bytes(o),       LANES,   MOST_SLICES };
    TR_TRY(tr_hasher_open(&all));
    tr_hasher_add(all, shape, sizeof shape);
    TR_TRY(TR_ALLOC(units, s->sources.n, "%zu data files", s->sources.n));
    TR_TRY(TR_ALLOC(s->groups, s->n_groups, "%zu groups of data", s->n_groups));
    for (size_t i = 0; i < s->n_groups; i++) {
        struct stream_group *g = &s->groups[i];
        g->seed = i == 0 ? o->seed : tr_rng_key(o->seed, "source", i);
        g->n_wanted = o->most_samples ? (o->most_samples / s->mix->period + 1) * s->mix->share[i] : UINT64_MAX;
        tr_hasher_add(all, &s->mix->share[i], sizeof s->mix->share[i]);
        for (n_units = 0; next < s->sources.n && (s->n_groups == 1 || s->sources.p[next].i_path == i); n_units++) {
            units[n_units] = next;
            TR_TRY(look_at(s, &s->sources.p[next], all));
            next += s->sources.p[next].n_joined ? s->sources.p[next].n_joined : 1;
        }
        TR_TRY(open_lanes(s, g, units, n_units));
    }
    s->hash = tr_hasher_get(all);
out:
    tr_hasher_close(all);
    free(units);
    return st;
}

/* ---- blocks ---- */

/* The lane whose next slice lies nearest to its start, as a share of its length. NULL: all have ended. */
static struct lane *next_lane(struct stream_group *g)
{
    struct lane *best = NULL;
    for (size_t i = 0; i < g->n_lanes; i++) {
        struct lane *x = &g->lanes[i];
        if (x->next < x->n &&
            (!best || (2 * x->n_made + 1) * best->n_expected < (2 * best->n_made + 1) * x->n_expected))
            best = x;
    }
    return best;
}

static void next_source(const struct tr_stream *s, struct lane *lane)
{
    tr_reader_release(&lane->reader);
    lane->next++;
    lane->at = lane->next < lane->n ? s->sources.p[lane->sources[lane->next]].first : 0;
}

/* Adds the next slice of a lane to the block, or goes on to its next file. */
static enum tr_status add_slice(struct tr_stream *s, struct lane *lane, struct tr_data *d, size_t *n_slices)
{
    const struct tr_source *x = &s->sources.p[lane->sources[lane->next]];
    struct tr_source slice[1] = { *x };
    size_t n_files = d->n_files;
    slice->first = lane->at;
    s->t.reader = &lane->reader;
    TR_PASS(tr_data_add(d, &s->t, x->is_slice ? slice : x));
    bool has_ended = d->n_files == n_files;
    if (!has_ended) {
        ++*n_slices;
        lane->n_made++;
        lane->at += d->files[n_files].n_docs + d->files[n_files].n_skipped;
        has_ended = !x->is_slice || (x->is_part && lane->at >= x->end);
    }
    if (has_ended)
        next_source(s, lane);
    return TR_OK;
}

static size_t n_slices_of(size_t i_block)
{
    return i_block == 0 ? 1 : i_block < 4 ? (size_t)1 << (i_block - 1) : MOST_SLICES;
}

/* Joined files are several files of one slice. */
static size_t most_files(const struct tr_stream *s, size_t n_slices)
{
    size_t n = 1;
    for (size_t i = 0; i < s->sources.n; i++)
        n = s->sources.p[i].n_joined > n ? s->sources.p[i].n_joined : n;
    return n * n_slices + 1;
}

/* The next block of a group. *out is NULL when all files have ended. */
static enum tr_status make_block(struct tr_stream *s, struct stream_group *g, struct tr_data **out)
{
    enum tr_status st = TR_OK;
    size_t n_slices = 0, n_wanted = n_slices_of(g->n_blocks);
    struct tr_data *d = NULL;
    struct lane *lane;
    *out = NULL;
    TR_TRY(tr_data_begin(&s->options, tr_rng_key(g->seed, "block", g->n_blocks), most_files(s, n_wanted), &d));
    while (n_slices < n_wanted && (lane = next_lane(g)) != NULL) {
        TR_TRY(tr_cache_check(&s->t.cache));
        TR_TRY(add_slice(s, lane, d, &n_slices));
    }
    if (n_slices == 0)
        goto out;
    TR_TRY(tr_data_end(d, &s->t));
    *out = d;
    d = NULL;
out:
    tr_data_close(d);
    return st;
}

/* What is lost in a block is news, but for the first one, whose losses are reported before the run begins. */
static void add_news(struct tr_stream *s, const struct stream_group *g, const struct tr_data *block)
{
    struct tr_data_news *x = &s->news;
    const struct tr_skip_list *lists[] = { &block->skips, &block->losses };
    if (g == s->groups && g->n_blocks == 0)
        return;
    x->n_skipped += block->info.n_skipped;
    x->n_cut += block->info.n_cut;
    x->n_dropped += block->info.n_dropped;
    for (size_t i = 0; i < TR_COUNT_OF(lists); i++)
        if (!x->first[0] && lists[i]->n > 0)
            (void)tr_format(x->first, sizeof x->first, "%s:%" PRId64 ": %s", lists[i]->p[0].path, lists[i]->p[0].line,
                            lists[i]->p[0].why); /* may be cut */
}

bool tr_stream_take_news(struct tr_stream *s, struct tr_data_news *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->news;
    s->news = (struct tr_data_news){ 0 };
    pthread_mutex_unlock(&s->lock);
    return out->n_skipped + out->n_cut + out->n_dropped > 0;
}

/* A block without a row, whose documents are all too long, stands in the list as well: it has no sample. */
static enum tr_status publish(struct tr_stream *s, struct stream_group *g, struct tr_data *block)
{
    enum tr_status st = TR_OK;
    pthread_mutex_lock(&s->lock);
    if (block) {
        st = TR_ROOM(g->blocks, g->n_blocks + 1, &g->n_blocks_cap, "%zu blocks of data", g->n_blocks + 1);
        if (st == TR_OK)
            st = TR_ROOM(g->first_row, g->n_blocks + 1, &g->n_first_cap, "%zu blocks of data", g->n_blocks + 1);
    }
    if (st == TR_OK && block) {
        add_news(s, g, block);
        g->blocks[g->n_blocks] = block;
        g->first_row[g->n_blocks++] = g->n_rows;
        g->n_rows += block->info.n_rows;
    }
    g->is_complete = !block;
    if (st == TR_OK && g->is_complete && g->n_rows == 0)
        st = tr_fail(TR_USAGE,
                     "no document is left to train on, because all are longer than a row of %" PRId64
                     " tokens; give a larger --sequence_length, or --long_documents fit",
                     s->options.row_tokens);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* The group that has the smallest share of the rows it needs. NULL: all have enough. */
static struct stream_group *next_group(struct tr_stream *s)
{
    struct stream_group *best = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < s->n_groups; i++) {
        struct stream_group *g = &s->groups[i];
        double share = (double)g->n_rows / s->mix->share[i];
        if (!g->is_complete && g->n_rows < g->n_wanted && share < least) {
            least = share;
            best = g;
        }
    }
    return best;
}

static bool has_first_rows(const struct tr_stream *s)
{
    size_t i = 0;
    while (i < s->n_groups && (s->groups[i].n_rows > 0 || s->groups[i].is_complete))
        i++;
    return i == s->n_groups;
}

/* A priority is of this thread and of those that it starts: the pool is opened again when it is needed. */
static void take_low_priority(struct tr_stream *s)
{
    (void)setpriority(PRIO_PROCESS, 0, LOW_PRIORITY);
    tr_pool_close(s->t.pool);
    s->t.pool = NULL;
}

static void *run(void *arg)
{
    struct tr_stream *s = arg;
    enum tr_status st = TR_OK;
    struct stream_group *g;
    bool is_low = false;
    while (st == TR_OK && (g = next_group(s)) != NULL) {
        struct tr_data *block;
        if (!is_low && has_first_rows(s)) {
            take_low_priority(s);
            is_low = true;
        }
        st = make_block(s, g, &block);
        if (st == TR_OK && (st = publish(s, g, block)) != TR_OK)
            tr_data_close(block);
    }
    pthread_mutex_lock(&s->lock);
    s->failed = st;
    if (st != TR_OK)
        (void)tr_format(s->why, sizeof s->why, "%s", tr_error_text()); /* a long message is truncated */
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    tr_cache_unlock(&s->t.cache);
    return NULL;
}

/* ---- rows ---- */

/* The block with first_row <= row, the last one of them that has rows. */
static size_t find_block(const struct stream_group *g, uint64_t row)
{
    size_t lo = 0, hi = g->n_blocks;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (g->first_row[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

enum tr_status tr_stream_find(struct tr_stream *s, size_t i_group, uint64_t k, const struct tr_data **block,
                              uint64_t *row, uint64_t *epoch)
{
    struct stream_group *g = &s->groups[i_group];
    enum tr_status st = TR_OK;
    pthread_mutex_lock(&s->lock);
    while (k >= g->n_rows && !g->is_complete && s->failed == TR_OK && g->n_rows < g->n_wanted)
        pthread_cond_wait(&s->changed, &s->lock);
    if (k < g->n_rows || (g->is_complete && g->n_rows > 0)) {
        *epoch = k / g->n_rows;
        size_t i = find_block(g, k % g->n_rows);
        *block = g->blocks[i];
        *row = k % g->n_rows - g->first_row[i];
    } else if (s->failed != TR_OK) {
        st = tr_fail(s->failed, "%s", s->why);
    } else {
        st = tr_fail(TR_USAGE, "sample %" PRIu64 " is behind the samples that this stream was opened for", k);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

const struct tr_data *tr_stream_first(const struct tr_stream *s)
{
    return s->first;
}

struct tr_hash128 tr_stream_hash(const struct tr_stream *s)
{
    return s->hash;
}

/* ---- open, close ---- */

/* What is wrong with the first files is known before the run begins. */
static enum tr_status wait_for_first(struct tr_stream *s)
{
    const struct tr_data *block;
    uint64_t row, epoch;
    for (size_t i = 0; i < s->n_groups; i++)
        TR_PASS(tr_stream_find(s, i, 0, &block, &row, &epoch));
    pthread_mutex_lock(&s->lock);
    s->first = s->groups[0].blocks[0];
    pthread_mutex_unlock(&s->lock);
    return TR_OK;
}

enum tr_status tr_stream_open(struct tr_tokenize *t, struct tr_sources *sources, size_t n_groups,
                              const struct tr_mix *mix, struct tr_stream **out)
{
    enum tr_status st = TR_OK;
    struct tr_stream *s = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "no memory for a stream of data");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->options = *t->options;
    s->options.on_make = NULL; /* the caller's, which may be gone */
    s->options.on_skip = NULL;
    s->t = *t;
    s->sources = *sources;
    *sources = (struct tr_sources){ 0 };
    t->maps = NULL;
    t->pool = NULL;
    t->skips.n = 0;
    s->n_groups = n_groups;
    s->mix = mix;
    s->t.options = &s->options;
    s->t.cache.lock_fd = -1;
    s->t.cache.is_closing = &s->is_closing;
    TR_TRY(tr_path_join(s->cache_dir, t->cache.dir, "stream")); /* a lock of its own: it is held for long */
    s->options.cache_dir = s->t.cache.dir = s->t.seals.cache_dir = s->cache_dir;
    TR_TRY(open_files(s));
    int rc = tr_thread_start(&s->thread, run, s);
    if (rc != 0)
        TR_TRY(tr_fail(TR_NOMEM, "the thread that tokenises could not be started: %s", strerror(rc)));
    s->has_thread = true;
    TR_TRY(wait_for_first(s));
    *out = s;
    s = NULL;
out:
    tr_stream_close(s);
    return st;
}

static void close_group(struct stream_group *g)
{
    for (size_t i = 0; i < g->n_blocks; i++)
        tr_data_close(g->blocks[i]);
    for (size_t i = 0; i < g->n_lanes; i++) {
        tr_reader_release(&g->lanes[i].reader);
        free(g->lanes[i].sources);
    }
    free(g->blocks);
    free(g->first_row);
}

void tr_stream_close(struct tr_stream *s)
{
    if (!s)
        return;
    atomic_store(&s->is_closing, true);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    for (size_t i = 0; s->groups && i < s->n_groups; i++)
        close_group(&s->groups[i]);
    free(s->groups);
    tr_cache_unlock(&s->t.cache);
    tr_pool_close(s->t.pool);
    tr_skip_list_release(&s->t.skips);
    tr_maps_close(s->t.maps, s->t.n_maps);
    tr_sources_release(&s->sources);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
