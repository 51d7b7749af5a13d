/* make.c - turns one file of text or records, or many small files of text, into token shards.
 *
 * The file was hashed for the key and is hashed again while it is read, or after it. A file that changes in between is
 * refused, so that a cache entry always matches its key. A shard ends between documents, so no document is in two
 * shards. Memory: one batch of lines or of text with its ids, and 8 bytes for each of at most 2^20 documents of the
 * open shard.
 */
#include "data/tokenize.h"

#include <string.h>
#include <sys/stat.h>

enum { SHARD_TOKENS = 1 << 26, SHARD_DOCS = 1 << 20 };

struct make {
    const struct tr_make *m;
    struct tr_tokenize *t;
    const char *path;
    struct tr_reader *r;
    struct tr_shard_writer *writer; /* NULL: no part open */
    uint32_t part;                  /* number of the next part */
    uint64_t n_skipped;             /* since the last part was committed */
    struct tr_skip_list skips;
};

/* The writer for the next document: that of the open part, or of a new part when the open one is full. */
static enum tr_status begin_doc(struct make *m)
{
    char path[TR_PATH_MAX];
    const struct tr_data_options *o = m->t->options;
    bool is_ids = tr_shape_row(m->m->rules.shape)->is_ids, is_text = tr_shape_row(m->m->rules.shape)->is_text;
    if (m->writer) {
        uint64_t n_tokens, n_docs;
        tr_shard_writer_counts(m->writer, &n_tokens, &n_docs);
        if (n_tokens < (o->shard_tokens ? (uint64_t)o->shard_tokens : SHARD_TOKENS) && n_docs < SHARD_DOCS)
            return TR_OK;
        struct tr_shard_writer *full = m->writer;
        m->writer = NULL;
        TR_PASS(tr_shard_writer_commit(full, false, m->n_skipped));
        m->n_skipped = 0;
    }
    TR_PASS(tr_cache_path(&m->t->cache, m->m->key, m->part, path));
    struct tr_shard_info info = {
        .part = m->part++,
        .has_mask = !is_text,
        .keeps_whole = !is_text,
        .has_pairs = tr_shape_row(m->m->rules.shape)->is_pair,
        .has_labels = tr_shape_row(m->m->rules.shape)->is_labelled,
        .has_weights = m->m->rules.reads_weights && !is_text,
        .vocab_size = (uint64_t)(is_ids ? o->vocab_size : tr_tokenizer_vocab_size(m->t->tokenizer)),
        .source = m->m->key,
    };
    if (!is_ids)
        info.tokenizer = tr_tokenizer_hash(m->t->tokenizer);
    TR_PASS(tr_shard_writer_open(path, &info, &m->writer));
    return TR_OK;
}

/* Skips a record. The data set is refused when more than max_skipped records are skipped. */
static enum tr_status skip(struct make *m, int64_t line, const char *cause)
{
    const struct tr_data_options *o = m->t->options;
    char why[256];
    (void)tr_format(why, sizeof why, "%s", cause); /* a long message is truncated */
    for (char *c = why; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' '; /* the list of skipped records has one line for each */
    m->n_skipped++;
    m->t->n_skipped++;
    TR_PASS(tr_skip_list_add(&m->skips, m->path, line, why));
    if (o->on_skip)
        o->on_skip(o->on_skip_ctx, m->path, line, why);
    if (m->t->n_skipped > (uint64_t)o->max_skipped)
        return tr_fail(TR_USAGE, "%s:%" PRId64 ": %s; this is more than the %" PRId64 " records that may be skipped",
                       m->path, line, why, o->max_skipped);
    return TR_OK;
}

static enum tr_status refuse_empty(const struct make *m)
{
    return tr_fail(TR_USAGE, "%s: this file has no document (%" PRIu64 " records were skipped%s%s)", m->path,
                   m->n_skipped, m->skips.n ? "; the first: " : "", m->skips.n ? m->skips.p[0].why : "");
}

/* ---- records ---- */

static enum tr_status take_record(void *ctx, int64_t line, const int32_t *ids, const uint8_t *mask,
                                  const uint32_t *weight, size_t n_ids, const char *why)
{
    struct make *m = ctx;
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    TR_TRY(tr_cache_check(&m->t->cache));
    if (why)
        return skip(m, line, why);
    if (tr_shape_row(m->m->rules.shape)->is_ids && m->t->tokenizer) /* ids were made elsewhere: for this tokenizer? */
        st = tr_tokenizer_decode(m->t->tokenizer, ids, n_ids, &text);
    tr_str_release(&text);
    if (st == TR_USAGE)
        TR_TRY(tr_fail_at(st, "%s:%" PRId64 ": ", m->path, line));
    TR_TRY(st);
    TR_TRY(begin_doc(m));
    st = tr_shard_writer_add(m->writer, ids, mask, weight, n_ids);
    if (st == TR_USAGE) /* an id beyond the vocabulary: the data was made for another model */
        TR_TRY(tr_fail_at(st, "%s:%" PRId64 ": ", m->path, line));
    TR_TRY(st);
    TR_TRY(tr_shard_writer_end_doc(m->writer));
out:
    return st;
}

/* Each record is one document. A slice ends with the record that fills it, but not before it has a document. */
static enum tr_status make_records(struct make *m)
{
    const struct tr_source *source = m->m->source;
    struct tr_row row = { .text = "" };
    uint64_t n_left = source->is_part ? source->end - source->first : UINT64_MAX;
    uint64_t n_bytes = 0, n_most = source->is_slice ? tr_slice_bytes(m->t->options) : UINT64_MAX;
    while (row.text) {
        row.text = NULL;
        if (n_bytes < n_most && n_left > 0)
            TR_PASS(tr_table_next(m->r->table, &row));
        if (row.text) {
            TR_PASS(tr_lines_add(&m->r->lines, row.text, row.n, row.number, row.why));
            n_bytes += row.n;
            n_left--;
            m->r->at++;
        }
        if (!row.text || tr_lines_is_full(&m->r->lines))
            TR_PASS(tr_lines_encode(&m->r->lines, &m->m->rules, m->t->pool, take_record, m));
        if (!row.text && n_bytes >= n_most && !m->writer) {
            n_bytes = 0;
            row.text = "";
        }
    }
    return TR_OK;
}

/* ---- text ---- */

static enum tr_status take_ids(void *ctx, const int32_t *ids, size_t n)
{
    struct make *m = ctx;
    TR_PASS(tr_cache_check(&m->t->cache));
    return tr_shard_writer_add(m->writer, ids, NULL, NULL, n);
}

/* Adds the ids before or after the text. */
static enum tr_status add_edge(struct make *m, enum tr_status (*edge)(const struct tr_tokenizer *, struct tr_ids *))
{
    struct tr_ids ids = { 0 };
    enum tr_status st = edge(m->t->tokenizer, &ids);
    if (st == TR_OK)
        st = take_ids(m, ids.p, ids.n);
    tr_ids_release(&ids);
    return st;
}

/* Cleans the content of the file buffer, and encodes it when there is enough for all threads, or passes over it. */
static enum tr_status add_text(struct make *m, bool is_last, tr_take_fn *take)
{
    struct tr_reader *r = m->r;
    size_t n_used;
    tr_utf8_clean(r->file.buf + r->file.begin, r->file.end - r->file.begin, is_last, &r->chunks.text, &n_used);
    r->file.begin += n_used;
    TR_PASS(tr_str_check(&r->chunks.text, "%s: a piece of text", m->path));
    return is_last || tr_chunks_is_full(&r->chunks) ? tr_chunks_encode(&r->chunks, is_last, m->t->pool, take, m)
                                                    : TR_OK;
}

/* Reads up to the end of a slice or of the file. */
static enum tr_status add_slice(struct make *m, tr_take_fn *take)
{
    struct tr_reader *r = m->r;
    uint64_t first = r->chunks.work.n_bytes, n_most = UINT64_MAX;
    if (m->m->source->is_slice)
        r->chunks.n_batch = n_most = tr_slice_bytes(m->t->options);
    size_t n = 1;
    do {
        TR_PASS(add_text(m, n == 0, take));
        r->has_ended = n == 0;
        if (!r->has_ended && r->chunks.work.n_bytes - first < n_most)
            TR_PASS(tr_textfile_more(&r->file, &n));
        else
            break;
    } while (true);
    r->at++;
    return TR_OK;
}

/* The file from its beginning, behind a byte order mark. */
static enum tr_status begin_text(struct make *m)
{
    struct tr_textfile *f = &m->r->file;
    size_t n;
    do
        TR_PASS(tr_textfile_more(f, &n));
    while (n > 0 && f->end < 3);
    if (f->end >= 3 && memcmp(f->buf, "\xEF\xBB\xBF", 3) == 0)
        f->begin = 3;
    m->r->chunks.tokenizer = m->t->tokenizer;
    return f->begin == f->end ? refuse_empty(m) : TR_OK;
}

/* The whole file is one document, of any size; a slice of it is one too, and only the first and the last of them have
 * what stands before and after a text. */
static enum tr_status make_text(struct make *m)
{
    struct tr_reader *r = m->r;
    if (r->has_ended)
        return TR_OK;
    TR_PASS(begin_doc(m));
    if (r->at == 0)
        TR_PASS(add_edge(m, tr_doc_begin));
    TR_PASS(add_slice(m, take_ids));
    if (r->has_ended)
        TR_PASS(add_edge(m, tr_doc_end));
    return tr_shard_writer_end_doc(m->writer);
}

/* ---- both ---- */

void tr_skips_name(struct tr_hash128 key, char out[64])
{
    char hex[33];
    tr_hash_hex(key, hex);
    (void)snprintf(out, 64, "%s.skips", hex);
}

/* Writes a line "LINE REASON" for each skipped record, for later starts that find the shards in the cache. */
static enum tr_status write_skips(const struct make *m)
{
    enum tr_status st = TR_OK;
    struct tr_str s = { 0 };
    char name[64];
    tr_skips_name(m->m->key, name);
    for (size_t i = 0; i < m->skips.n; i++)
        tr_str_addf(&s, "%" PRId64 " %s\n", m->skips.p[i].line, m->skips.p[i].why);
    TR_TRY(tr_str_check(&s, "a list of skipped records"));
    if (s.n > 0)
        TR_TRY(tr_cache_write(m->t->cache.dir, name, s.p, s.n));
out:
    tr_str_release(&s);
    return st;
}

void tr_end_name(struct tr_hash128 key, char out[64])
{
    char hex[33];
    tr_hash_hex(key, hex);
    (void)snprintf(out, 64, "%s.end", hex);
}

static enum tr_status refuse_change(const struct make *m)
{
    return tr_fail(TR_IO, "%s: the file changed while it was being read; start again when it is complete", m->path);
}

/* Is file i what it was when its hash became part of the key? A slice knows it by its size and time. */
static enum tr_status check_content(struct make *m, size_t i)
{
    struct tr_hash128 content;
    const struct tr_source *source = &m->m->source[i];
    struct stat now;
    if (source->is_slice) {
        bool is_same = stat(m->path, &now) == 0 && (uint64_t)now.st_size == source->n_bytes &&
                       now.st_mtim.tv_sec == source->changed.tv_sec && now.st_mtim.tv_nsec == source->changed.tv_nsec;
        return is_same ? TR_OK : refuse_change(m);
    }
    TR_PASS(m->r->table ? tr_table_hash(m->r->table, &content) : tr_textfile_rest(&m->r->file, &content));
    return tr_hash_eq(content, m->m->contents[i]) ? TR_OK : refuse_change(m);
}

static enum tr_status finish(struct make *m)
{
    char name[64];
    if (!m->writer && m->m->source->is_slice && m->m->source->first > 0) {
        tr_end_name(m->m->key, name);
        return tr_cache_write(m->t->cache.dir, name, "end\n", 4);
    }
    if (!m->writer)
        return refuse_empty(m);
    TR_PASS(write_skips(m));
    struct tr_shard_writer *last = m->writer;
    m->writer = NULL;
    return tr_shard_writer_commit(last, true, m->n_skipped);
}

/* ---- readers ---- */

void tr_reader_release(struct tr_reader *r)
{
    if (r->is_open)
        tr_textfile_release(&r->file);
    tr_table_close(r->table);
    tr_lines_release(&r->lines);
    tr_chunks_release(&r->chunks);
    *r = (struct tr_reader){ 0 };
}

/* Opens the file and goes to where the source begins. */
static enum tr_status open_reader(struct make *m, const struct tr_source *source)
{
    struct tr_reader *r = m->r;
    tr_reader_release(r);
    r->file.fd = -1;
    r->is_open = true;
    r->lines.path = r->chunks.path = source->path;
    if (source->kind != TR_SOURCE_TEXT) {
        TR_PASS(tr_table_open(m->path, source->table, &r->table));
        r->at = source->first;
        return tr_table_skip(r->table, source->first);
    }
    TR_PASS(tr_textfile_open(&r->file, m->path, TR_LINE_MAX));
    TR_PASS(begin_text(m));
    while (r->at < source->first && !r->has_ended)
        TR_PASS(add_slice(m, NULL));
    return TR_OK;
}

static enum tr_status add_file(struct make *m, size_t i)
{
    const struct tr_source *source = &m->m->source[i];
    m->path = source->path;
    if (m->m->texts) {
        struct tr_reader *r = m->r;
        r->is_open = true;
        r->has_ended = false;
        r->at = 0;
        r->chunks.path = m->path;
        TR_PASS(tr_textfile_of(&r->file, m->path, m->m->texts[i].p, m->m->texts[i].n));
        TR_PASS(begin_text(m));
        return make_text(m);
    }
    if (!source->is_slice || !m->r->is_open || m->r->at != source->first)
        TR_PASS(open_reader(m, source));
    TR_PASS(source->kind == TR_SOURCE_TEXT ? make_text(m) : make_records(m));
    return check_content(m, i);
}

enum tr_status tr_make_shards(const struct tr_make *what)
{
    enum tr_status st = TR_OK;
    struct tr_reader own = { .file = { .fd = -1 } };
    bool is_slice = what->source->is_slice;
    struct make m = { .m = what, .t = what->t, .r = is_slice ? what->t->reader : &own };
    for (size_t i = 0; i < what->n; i++)
        TR_TRY(add_file(&m, i));
    TR_TRY(finish(&m));
out:
    tr_shard_writer_abort(m.writer);
    if (!is_slice || st != TR_OK)
        tr_reader_release(m.r);
    tr_skip_list_release(&m.skips);
    return st;
}
