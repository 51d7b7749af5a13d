/* tokenize.c - see tokenize.h.
 *
 * The file is hashed first (the key), and hashed again while it is tokenised: one that changes in between is refused,
 * so that a cache entry always holds what its key says. A shard is cut between documents, so no document spans two.
 * Memory: one line (.jsonl) or one chunk (.txt) and its ids, and 8 bytes for each of at most 2^20 documents of the open
 * shard.
 */
#include "data/tokenize.h"
#include "data/jsonl.h"
#include "data/textfile.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_TOKENS = 1 << 26, SHARD_DOCS = 1 << 20 };

/* ---- a list of open shards ---- */

enum tr_status tr_shard_list_add(struct tr_shard_list *l, struct tr_shard *s)
{
    if (l->n == l->n_cap) {
        size_t cap = l->n_cap * 2 + 16;
        struct tr_shard **p = realloc(l->p, cap * sizeof(struct tr_shard *));
        if (!p) {
            tr_shard_close(s);
            return tr_fail(TR_NOMEM, "no memory for %zu token shards", cap);
        }
        l->p = p;
        l->n_cap = cap;
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

/* ---- making shards ---- */

struct make {
    struct tr_tokenize *t;
    struct tr_hash128 key;
    struct tr_textfile file;
    struct tr_shard_writer *writer; /* NULL: no part open */
    uint32_t part;                  /* number of the next part */
    uint64_t n_skipped;             /* since the last part was committed */
    struct tr_str text;
    struct tr_ids ids;
};

/* A writer for the next document: the open part unless it is full. */
static enum tr_status begin_doc(struct make *m)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    const struct tr_data_options *o = m->t->options;
    if (m->writer) {
        uint64_t n_tokens, n_docs;
        tr_shard_writer_counts(m->writer, &n_tokens, &n_docs);
        if (n_tokens < (o->shard_tokens ? (uint64_t)o->shard_tokens : SHARD_TOKENS) && n_docs < SHARD_DOCS)
            return TR_OK;
        struct tr_shard_writer *full = m->writer;
        m->writer = NULL;
        TR_TRY(tr_shard_writer_commit(full, false, m->n_skipped));
        m->n_skipped = 0;
    }
    TR_TRY(tr_cache_path(&m->t->cache, m->key, m->part, path));
    struct tr_shard_info info = {
        .part = m->part++,
        .vocab_size = (uint64_t)tr_tokenizer_vocab_size(m->t->tokenizer),
        .tokenizer = tr_tokenizer_hash(m->t->tokenizer),
        .source = m->key,
    };
    TR_TRY(tr_shard_writer_open(path, &info, &m->writer));
out:
    return st;
}

static enum tr_status add_ids(struct make *m)
{
    enum tr_status st = tr_shard_writer_add(m->writer, m->ids.p, NULL, m->ids.n);
    m->ids.n = 0;
    return st;
}

static enum tr_status end_doc(struct make *m)
{
    enum tr_status st = TR_OK;
    int32_t eos = tr_tokenizer_eos(m->t->tokenizer);
    if (eos >= 0)
        TR_TRY(tr_ids_add(&m->ids, eos));
    TR_TRY(add_ids(m));
    TR_TRY(tr_shard_writer_end_doc(m->writer));
out:
    return st;
}

/* Drops the record at hand; over budget the data set is refused. */
static enum tr_status skip(struct make *m, const char *cause)
{
    const struct tr_data_options *o = m->t->options;
    char why[256];
    (void)tr_format(why, sizeof why, "%s", cause); /* a copy: the text may be the error text, and may be cut */
    m->n_skipped++;
    m->t->n_skipped++;
    if (o->on_skip)
        o->on_skip(o->on_skip_ctx, m->file.path, m->file.line, why);
    if (m->t->n_skipped > (uint64_t)o->max_skipped)
        return tr_fail(TR_USAGE, "%s:%" PRId64 ": %s; that is more than the %" PRId64 " records that may be skipped",
                       m->file.path, m->file.line, why, o->max_skipped);
    return TR_OK;
}

/* One document a line. A byte order mark at the start of the file is dropped. */
static enum tr_status make_jsonl(struct make *m)
{
    enum tr_status st = TR_OK;
    const char *key = m->t->options->text_key ? m->t->options->text_key : "text", *line;
    enum tr_line kind;
    size_t n;
    for (;;) {
        TR_TRY(tr_textfile_line(&m->file, &kind, &line, &n));
        if (kind == TR_LINE_END)
            break;
        if (kind == TR_LINE_TOO_LONG) {
            TR_TRY(skip(m, "the line is longer than 16 MiB"));
            continue;
        }
        bool has_bom = m->file.line == 1 && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0;
        st = tr_jsonl_text(has_bom ? line + 3 : line, has_bom ? n - 3 : n, key, &m->text);
        if (st == TR_USAGE) {
            TR_TRY(skip(m, tr_error_text()));
            continue;
        }
        TR_TRY(st);
        TR_TRY(begin_doc(m));
        TR_TRY(tr_tokenizer_encode(m->t->tokenizer, m->text.p, m->text.n, &m->ids));
        TR_TRY(end_doc(m));
    }
out:
    return st;
}

/* Cleans what the file buffer holds and encodes what is certain; the rest stays in the buffer or in m->text. */
static enum tr_status encode_chunk(struct make *m, bool is_last)
{
    enum tr_status st = TR_OK;
    size_t n_used;
    tr_utf8_clean(m->file.buf + m->file.begin, m->file.end - m->file.begin, is_last, &m->text, &n_used);
    m->file.begin += n_used;
    if (!tr_str_ok(&m->text))
        TR_TRY(tr_fail(TR_NOMEM, "%s: no memory for a piece of text", m->file.path));
    TR_TRY(tr_tokenizer_encode_part(m->t->tokenizer, m->text.p, m->text.n, is_last, &m->ids, &n_used));
    memmove(m->text.p, m->text.p + n_used, m->text.n - n_used);
    m->text.n -= n_used;
    TR_TRY(add_ids(m));
out:
    return st;
}

/* The whole file is one document, of any size. */
static enum tr_status make_text(struct make *m)
{
    enum tr_status st = TR_OK;
    size_t n;
    TR_TRY(tr_textfile_more(&m->file, &n));
    if (n >= 3 && memcmp(m->file.buf, "\xEF\xBB\xBF", 3) == 0)
        m->file.begin = 3;
    if (m->file.begin == m->file.end)
        return TR_OK;
    TR_TRY(begin_doc(m));
    while (n > 0) {
        TR_TRY(encode_chunk(m, false));
        TR_TRY(tr_textfile_more(&m->file, &n));
    }
    TR_TRY(encode_chunk(m, true));
    TR_TRY(end_doc(m));
out:
    return st;
}

static enum tr_status make_shards(struct tr_tokenize *t, const struct tr_source *source, struct tr_hash128 key,
                                  struct tr_hash128 content)
{
    enum tr_status st = TR_OK;
    struct make m = { .t = t, .key = key };
    TR_TRY(tr_textfile_open(&m.file, source->path, TR_LINE_MAX));
    TR_TRY(source->kind == TR_SOURCE_JSONL ? make_jsonl(&m) : make_text(&m));
    if (!tr_hash_eq(tr_hasher_get(m.file.hasher), content))
        TR_TRY(tr_fail(TR_IO, "%s: changed while it was being read", source->path));
    if (!m.writer)
        TR_TRY(
            tr_fail(TR_USAGE, "%s: no document in this file (%" PRIu64 " records skipped)", source->path, m.n_skipped));
    struct tr_shard_writer *last = m.writer;
    m.writer = NULL;
    TR_TRY(tr_shard_writer_commit(last, true, m.n_skipped));
out:
    tr_shard_writer_abort(m.writer);
    tr_textfile_release(&m.file);
    tr_str_release(&m.text);
    tr_ids_release(&m.ids);
    return st;
}

/* ---- the cache ---- */

static enum tr_status cache_key(const struct tr_tokenize *t, const struct tr_source *source, struct tr_hash128 content,
                                struct tr_hash128 *out)
{
    char tok[33], text[33];
    struct tr_str s = { 0 };
    const struct tr_data_options *o = t->options;
    tr_hash_hex(tr_tokenizer_hash(t->tokenizer), tok);
    tr_hash_hex(content, text);
    tr_str_addf(&s, "trtok %d tokenizer %s content %s shard_tokens %" PRId64, TR_SHARD_VERSION, tok, text,
                o->shard_tokens);
    if (source->kind == TR_SOURCE_JSONL)
        tr_str_addf(&s, " jsonl %s", o->text_key ? o->text_key : "text");
    bool is_ok = tr_str_ok(&s);
    if (is_ok)
        *out = tr_hash(s.p, s.n);
    tr_str_release(&s);
    return is_ok ? TR_OK : tr_fail(TR_NOMEM, "no memory for a cache key");
}

/* Opens part 0, 1, ... up to the one marked last. *is_absent: the cache has not begun to hold this source. */
static enum tr_status open_parts(const struct tr_tokenize *t, struct tr_hash128 key, struct tr_shard_list *out,
                                 bool *is_absent, uint64_t *n_skipped)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    *n_skipped = 0;
    *is_absent = false;
    for (uint32_t part = 0;; part++) {
        struct tr_shard *s = NULL;
        TR_TRY(tr_cache_path(&t->cache, key, part, path));
        if (!tr_file_exists(path)) {
            *is_absent = true;
            return TR_OK;
        }
        TR_TRY(tr_shard_open(path, (uint64_t)t->options->vocab_size, &s));
        const struct tr_shard_info *i = tr_shard_get_info(s);
        bool is_last = i->is_last, is_ours = tr_hash_eq(i->source, key) && i->part == part;
        *n_skipped += i->n_skipped;
        TR_TRY(tr_shard_list_add(out, s));
        if (!is_ours)
            TR_TRY(tr_fail(TR_IO, "%s: belongs to another source; remove it", path));
        if (is_last)
            return TR_OK;
    }
out:
    return st;
}

enum tr_status tr_tokenize_source(struct tr_tokenize *t, const struct tr_source *source, struct tr_shard_list *out)
{
    enum tr_status st = TR_OK;
    struct tr_hash128 content, key;
    size_t n_before = out->n;
    bool is_absent;
    uint64_t n_skipped;
    TR_TRY(tr_textfile_hash(source->path, &content));
    TR_TRY(cache_key(t, source, content, &key));
    for (int attempt = 0;; attempt++) {
        /* 0: as it is; 1: again under the lock, another process may have made it; 2: what we made ourselves. A damaged
         * entry counts as absent until it is our own. */
        st = open_parts(t, key, out, &is_absent, &n_skipped);
        if (st == TR_OK && !is_absent)
            break;
        tr_shard_list_cut(out, n_before);
        if (attempt == 2)
            return st == TR_OK ? tr_fail(TR_IO, "%s: its shards vanished from %s", source->path, t->cache.dir) : st;
        TR_TRY(tr_cache_lock(&t->cache));
        if (attempt == 1) {
            uint64_t before = t->n_skipped;
            TR_TRY(make_shards(t, source, key, content));
            t->n_skipped = before; /* counted below, made or found */
        }
    }
    t->n_skipped += n_skipped;
    if (t->n_skipped > (uint64_t)t->options->max_skipped)
        st = tr_fail(TR_USAGE, "%s: %" PRIu64 " records were skipped when it was tokenised; at most %" PRId64 " may be",
                     source->path, t->n_skipped, t->options->max_skipped);
out:
    return st;
}
