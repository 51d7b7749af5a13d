/* tokenize.c - see tokenize.h: finds the shape of a source, the cache key of its shards, and whether the cache holds
 * them. */
#include "data/tokenize.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { DETECT_RECORDS = 100, SETTLED_S = 2 };

/* ---- lists ---- */

enum tr_status tr_shard_list_add(struct tr_shard_list *l, struct tr_shard *s)
{
    enum tr_status st = TR_ROOM(l->p, l->n + 1, &l->n_cap, "%zu token shards", l->n + 1);
    if (st != TR_OK) {
        tr_shard_close(s);
        return st;
    }
    l->p[l->n++] = s;
    return TR_OK;
}

void tr_shard_list_cut(struct tr_shard_list *l, size_t n)
{
    while (l->n > n)
        tr_shard_close(l->p[--l->n]);
}

void tr_shard_list_release(struct tr_shard_list *l)
{
    tr_shard_list_cut(l, 0);
    free(l->p);
    *l = (struct tr_shard_list){ 0 };
}

enum tr_status tr_skip_list_add(struct tr_skip_list *l, const char *path, int64_t line, const char *why)
{
    if (l->n == TR_DATA_KEPT_SKIPS)
        return TR_OK;
    struct tr_data_skip s = { strdup(path), line, strdup(why) };
    l->p[l->n++] = s;
    return s.path && s.why ? TR_OK : tr_fail(TR_NOMEM, "no memory for a list of skipped records");
}

void tr_skip_list_release(struct tr_skip_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free((char *)(uintptr_t)l->p[i].path);
        free((char *)(uintptr_t)l->p[i].why);
    }
    l->n = 0;
}

/* ---- shape ---- */

/* The first record decides. Those that are not JSON objects are skipped later; if there are no others, the shape does
 * not matter. */
static enum tr_status detect(const struct tr_source *source, const struct tr_source_map *map, bool wants_pairs,
                             enum tr_shape *out)
{
    enum tr_status st = TR_OK;
    struct tr_table *table = NULL;
    TR_TRY(tr_table_open(source->path, source->table, &table));
    *out = TR_SHAPE_TEXT;
    for (int i = 0; i < DETECT_RECORDS; i++) {
        struct tr_row row;
        bool is_object = false;
        TR_TRY(tr_table_next(table, &row));
        if (!row.text)
            break;
        if (row.why)
            continue;
        st = tr_record_detect(map, wants_pairs, row.text, row.n, &is_object, out);
        if (st == TR_USAGE && is_object)
            TR_TRY(tr_fail_at(st, "%s:%" PRId64 ": ", source->path, row.number));
        if (st != TR_USAGE)
            goto out;
    }
    st = TR_OK;
out:
    tr_table_close(table);
    return st;
}

static enum tr_status choose_rules(const struct tr_tokenize *t, const struct tr_source *source,
                                   struct tr_record_rules *r)
{
    const struct tr_data_options *o = t->options;
    const struct tr_source_map *map = t->maps ? t->maps[source->i_path] : NULL;
    *r = (struct tr_record_rules){
        .shape = map && map->shape     ? map->shape
                 : o->text_key && !map ? TR_SHAPE_TEXT
                                       : o->shape,
        .text_key = o->text_key && !map ? o->text_key : "text",
        .tokenizer = t->tokenizer,
        .chat = o->chat,
        .mask = o->mask,
        .reads_weights = o->reads_weights,
        .map = map,
    };
    if (source->kind == TR_SOURCE_TEXT && r->shape != TR_SHAPE_AUTO && r->shape != TR_SHAPE_TEXT)
        return tr_fail(TR_USAGE, "%s: data_format %s is of records, and this file is plain text; leave data_format out",
                       source->path, tr_shape_name(r->shape));
    if (source->kind == TR_SOURCE_TEXT)
        r->shape = TR_SHAPE_TEXT;
    else if (r->shape == TR_SHAPE_AUTO && source->shape != TR_SHAPE_AUTO)
        r->shape = source->shape;
    else if (r->shape == TR_SHAPE_AUTO)
        TR_PASS(detect(source, map, o->wants_pairs, &r->shape));
    if (!o->cache_dir)
        return tr_fail(TR_USAGE, "%s: a text file needs a cache directory for its tokens", source->path);
    if (tr_shape_row(r->shape)->is_ids)
        return TR_OK;
    if (!t->tokenizer)
        return tr_fail(TR_USAGE,
                       "%s is text, and the model has no tokenizer: neither tokenizer.json nor vocab.json with "
                       "merges.txt; records of input_ids and .trtok files need none",
                       source->path);
    if (tr_tokenizer_vocab_size(t->tokenizer) > o->vocab_size)
        return tr_fail(TR_USAGE,
                       "the tokenizer has ids up to %" PRId64 ", but the model has a vocab_size of %" PRId64
                       "; --resize_vocab lets it grow",
                       tr_tokenizer_vocab_size(t->tokenizer) - 1, o->vocab_size);
    if (!o->chat && tr_shape_row(r->shape)->chat == TR_CHAT_REQUIRED)
        return tr_fail(TR_USAGE,
                       "%s: conversations need a chat template, but the model has none; name one: "
                       "--chat_template chatml, llama3, ... or a .jinja file",
                       source->path);
    return TR_OK;
}

/* ---- the key ---- */

/* The hash of the file's bytes on disk: from the seal of an earlier start, or by reading the file. */
static enum tr_status content_hash(const struct tr_tokenize *t, const char *path, struct tr_hash128 *out)
{
    struct stat before;
    bool is_known = stat(path, &before) == 0;
    if (is_known && tr_seal_find(&t->seals, &before, "content", out))
        return TR_OK;
    enum tr_status st = tr_textfile_hash(path, out);
    if (st == TR_OK && is_known)
        tr_seal_save(&t->seals, &before, SETTLED_S, "content", *out);
    return st;
}

/* Reads joined files once, for the key and for their shards: a small file is read as quickly as a seal. */
static enum tr_status read_joined(struct tr_make *m)
{
    enum { MOST_BYTES = 1 << 20 }; /* it may have grown since it was listed */
    TR_PASS(TR_ALLOC(m->texts, m->n, "%zu small files", m->n));
    for (size_t i = 0; i < m->n; i++) {
        TR_PASS(tr_file_read(m->source[i].path, MOST_BYTES, &m->texts[i].p, &m->texts[i].n));
        m->contents[i] = tr_hash(m->texts[i].p, m->texts[i].n);
    }
    return TR_OK;
}

static void release_joined(struct tr_make *m)
{
    for (size_t i = 0; m->texts && i < m->n; i++)
        free(m->texts[i].p);
    free(m->texts);
}

static enum tr_status cache_key(struct tr_make *m)
{
    enum tr_status st = TR_OK;
    char hex[33];
    struct tr_str s = { 0 };
    const struct tr_data_options *o = m->t->options;
    const struct tr_record_rules *r = &m->rules;
    const struct tr_shape_row *row = tr_shape_row(r->shape);
    tr_hash_hex(m->n == 1 ? m->contents[0] : tr_hash(m->contents, m->n * sizeof *m->contents), hex);
    tr_str_addf(&s, "trtok %d content %s zip %d shard_tokens %" PRId64 " shape %s", TR_SHARD_VERSION, hex,
                (int)tr_zip_of(m->source->path), o->shard_tokens, tr_shape_name(r->shape));
    if (m->source->kind == TR_SOURCE_RECORDS && m->source->table != TR_TABLE_JSONL)
        tr_str_addf(&s, " file %s", tr_table_kind_name(m->source->table));
    if (m->n > 1)
        tr_str_addf(&s, " files %zu", m->n);
    if (m->source->is_slice)
        tr_str_addf(&s, " slice %" PRIu64 " of %zu", m->source->first, tr_slice_bytes(o));
    if (m->source->is_part)
        tr_str_addf(&s, " records %" PRIu64 "-%" PRIu64, m->source->first, m->source->end);
    if (m->source->kind == TR_SOURCE_RECORDS)
        tr_str_addf(&s, " key %s", row->is_text ? r->text_key : "");
    if (r->map)
        tr_str_addf(&s, " map %s", r->map->text);
    if (row->is_ids) {
        tr_str_addf(&s, " vocab_size %" PRId64, o->vocab_size);
    } else {
        tr_hash_hex(tr_tokenizer_hash(m->t->tokenizer), hex);
        tr_str_addf(&s, " tokenizer %s%s%s", hex, tr_tokenizer_before(m->t->tokenizer)->n ? " bos once" : "",
                    m->source->kind == TR_SOURCE_TEXT || tr_rules_use_chat(r) ? "" : " eos once");
    }
    if (tr_rules_use_chat(r)) {
        struct tr_hash128 chat;
        TR_TRY(tr_chat_hash(r->chat, &chat));
        tr_hash_hex(chat, hex);
        tr_str_addf(&s, " chat %s mask %d weights parts", hex, (int)r->mask);
    } else if (!row->is_text && !row->is_ids) {
        tr_str_addf(&s, " prompts %d", r->mask == TR_MASK_ALL);
    }
    if (r->reads_weights && !row->is_text)
        tr_str_addf(&s, " loss_weights");
    TR_TRY(tr_str_check(&s, "a cache key"));
    m->key = tr_hash(s.p, s.n);
out:
    tr_str_release(&s);
    return st;
}

/* ---- the cache ---- */

/* Does the cache say that the file of this slice has ended? */
static enum tr_status find_end(const struct tr_make *m, char path[TR_PATH_MAX], bool *has_ended)
{
    char name[64];
    tr_end_name(m->key, name);
    TR_PASS(tr_path_join(path, m->t->cache.dir, name));
    *has_ended = m->source->is_slice && tr_file_exists(path);
    return TR_OK;
}

/* Opens parts 0, 1, ... up to the one that is marked last. *is_absent: the cache holds no part of this source. */
static enum tr_status open_parts(const struct tr_make *m, struct tr_shard_list *out, bool *is_absent,
                                 uint64_t *n_skipped)
{
    char path[TR_PATH_MAX];
    *n_skipped = 0;
    *is_absent = false;
    for (uint32_t part = 0;; part++) {
        struct tr_shard *s = NULL;
        TR_PASS(tr_cache_path(&m->t->cache, m->key, part, path));
        if (!tr_file_exists(path)) {
            bool has_ended = false;
            TR_PASS(find_end(m, path, &has_ended));
            *is_absent = !has_ended;
            return TR_OK;
        }
        TR_PASS(tr_shard_open_sealed(path, (uint64_t)m->t->options->vocab_size, &m->t->seals, &s));
        const struct tr_shard_info *i = tr_shard_get_info(s);
        bool is_last = i->is_last, is_ours = tr_hash_eq(i->source, m->key) && i->part == part;
        *n_skipped += i->n_skipped;
        TR_PASS(tr_shard_list_add(out, s));
        if (!is_ours)
            return tr_fail(TR_IO, "%s: this shard belongs to another source; remove the file", path);
        if (is_last)
            return TR_OK;
    }
    return TR_OK;
}

/* Reads the file that write_skips wrote. If it is absent or damaged, only the list is lost. */
static enum tr_status read_skips(const struct tr_make *m, struct tr_skip_list *out)
{
    enum { MAX_BYTES = 1 << 16 };
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], name[64], *text = NULL;
    size_t n;
    tr_skips_name(m->key, name);
    TR_TRY(tr_path_join(path, m->t->cache.dir, name));
    if (tr_file_read(path, MAX_BYTES, &text, &n) != TR_OK) {
        tr_error_clear();
        return TR_OK;
    }
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        char *why = strchr(at, ' ');
        int64_t line;
        *end = 0;
        if (!why || why > end)
            break;
        *why = 0;
        if (tr_parse_int(at, 0, INT64_MAX, &line) != TR_OK)
            break;
        TR_TRY(tr_skip_list_add(out, m->source->path, line, why + 1));
    }
out:
    free(text);
    return st;
}

/* Tells which files are made, and their bytes. */
static void tell(const struct tr_make *m)
{
    const struct tr_data_options *o = m->t->options;
    char name[TR_PATH_MAX + 40];
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < m->n; i++)
        n_bytes += m->source[i].n_bytes;
    if (m->n > 1)
        (void)tr_format(name, sizeof name, "%s and %zu more", m->source->path, m->n - 1);
    if (o->on_make)
        o->on_make(o->on_make_ctx, m->n > 1 ? name : m->source->path, n_bytes);
}

static enum tr_status make_once(const struct tr_make *m)
{
    struct tr_tokenize *t = m->t;
    uint64_t before = t->n_skipped;
    if (!t->pool)
        TR_PASS(tr_pool_open(t->options->n_threads, &t->pool));
    tell(m);
    TR_PASS(tr_make_shards(m));
    t->n_skipped = before; /* skipped records are counted when the shards are opened, newly made or not */
    return TR_OK;
}

/* Another process may tokenise a stream: then its shards appear one after another, while it keeps the lock. */
static enum tr_status wait_for_turn(const struct tr_make *m)
{
    char files[2][TR_PATH_MAX];
    bool has_ended;
    TR_PASS(tr_cache_path(&m->t->cache, m->key, 0, files[0]));
    TR_PASS(find_end(m, files[1], &has_ended));
    return tr_cache_lock_unless(&m->t->cache, files, m->t->reader ? 2 : 0);
}

static enum tr_status open_or_make(const struct tr_make *m, struct tr_shard_list *out, struct tr_data_file *file)
{
    enum tr_status st = TR_OK;
    size_t n_before = out->n;
    for (int attempt = 0;; attempt++) {
        /* Try 0 opens what the cache holds. Try 1 does so under the lock, because another process may have made the
         * shards. Try 2 opens the shards that this process made. A damaged entry counts as absent in tries 0 and 1. */
        bool is_absent;
        st = open_parts(m, out, &is_absent, &file->n_skipped);
        if (st == TR_OK && !is_absent)
            return TR_OK;
        tr_shard_list_cut(out, n_before);
        if (attempt == 1 && st == TR_OK && m->t->cache.lock_fd < 0) {
            TR_TRY(tr_cache_check(&m->t->cache));
            nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL); /* its last part is not there yet */
            attempt = 0;
        }
        if (attempt == 2)
            return st == TR_OK ? tr_fail(TR_IO, "%s: its shards have disappeared from the cache %s", m->source->path,
                                         m->t->cache.dir)
                               : st;
        TR_TRY(wait_for_turn(m));
        if (attempt == 1 && m->t->cache.lock_fd >= 0) {
            TR_TRY(make_once(m));
            file->was_cached = false;
        }
    }
out:
    return st;
}

enum tr_status tr_tokenize_source(struct tr_tokenize *t, const struct tr_source *source, struct tr_shard_list *out,
                                  struct tr_data_file *file)
{
    enum tr_status st = TR_OK;
    struct tr_make m = { .t = t, .source = source, .n = source->n_joined ? source->n_joined : 1 };
    file->was_cached = true;
    TR_TRY(TR_ALLOC(m.contents, m.n, "the hashes of %zu files", m.n));
    TR_TRY(choose_rules(t, source, &m.rules));
    file->shape = m.rules.shape;
    file->uses_chat = tr_rules_use_chat(&m.rules);
    m.contents[0] = source->identity;
    if (!source->is_slice)
        TR_TRY(m.n > 1 ? read_joined(&m) : content_hash(t, source->path, &m.contents[0]));
    TR_TRY(cache_key(&m));
    TR_TRY(open_or_make(&m, out, file));
    TR_TRY(read_skips(&m, &t->skips));
    t->n_skipped += file->n_skipped;
    if (t->n_skipped > (uint64_t)t->options->max_skipped)
        st =
            tr_fail(TR_USAGE, "%s: %" PRIu64 " records were skipped when it was tokenised; max_skipped allows %" PRId64,
                    source->path, t->n_skipped, t->options->max_skipped);
out:
    release_joined(&m);
    free(m.contents);
    return st;
}

enum tr_status tr_tokenize_look(const struct tr_tokenize *t, const struct tr_source *source, struct tr_hash128 content,
                                enum tr_shape *shape, struct tr_hash128 *key)
{
    /* the key is a function of the rules alone: nothing of t changes */
    struct tr_make m = { .t = (struct tr_tokenize *)(uintptr_t)t, .source = source, .n = 1, .contents = &content };
    TR_PASS(choose_rules(t, source, &m.rules));
    TR_PASS(cache_key(&m));
    *shape = m.rules.shape;
    *key = m.key;
    return TR_OK;
}
