/* make.c - turns one file of text or records, or many small files of text, into token shards.
 *
 * The file was hashed for the key and is hashed again while it is read, or after it. A file that changes in between is
 * refused, so that a cache entry always matches its key. A shard ends between documents, so no document is in two
 * shards. Memory: one batch of lines or of text with its ids, and 8 bytes for each of at most 2^20 documents of the
 * open shard.
 */
#include "data/chunks.h"
#include "data/lines.h"
#include "data/tokenize.h"

#include <string.h>

enum { SHARD_TOKENS = 1 << 26, SHARD_DOCS = 1 << 20 };

struct make {
    const struct tr_make *m;
    struct tr_tokenize *t;
    const char *path;
    struct tr_textfile file;        /* of text */
    struct tr_table *table;         /* of records */
    struct tr_shard_writer *writer; /* NULL: no part open */
    uint32_t part;                  /* number of the next part */
    uint64_t n_skipped;             /* since the last part was committed */
    struct tr_skip_list skips;
    struct tr_lines lines;
    struct tr_chunks chunks; /* of a text file */
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

static enum tr_status take_record(void *ctx, int64_t line, const int32_t *ids, const uint8_t *mask, size_t n_ids,
                                  const char *why)
{
    struct make *m = ctx;
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    if (why)
        return skip(m, line, why);
    if (tr_shape_row(m->m->rules.shape)->is_ids && m->t->tokenizer) /* ids were made elsewhere: for this tokenizer? */
        st = tr_tokenizer_decode(m->t->tokenizer, ids, n_ids, &text);
    tr_str_release(&text);
    if (st == TR_USAGE)
        TR_TRY(tr_fail_at(st, "%s:%" PRId64 ": ", m->path, line));
    TR_TRY(st);
    TR_TRY(begin_doc(m));
    st = tr_shard_writer_add(m->writer, ids, mask, n_ids);
    if (st == TR_USAGE) /* an id beyond the vocabulary: the data was made for another model */
        TR_TRY(tr_fail_at(st, "%s:%" PRId64 ": ", m->path, line));
    TR_TRY(st);
    TR_TRY(tr_shard_writer_end_doc(m->writer));
out:
    return st;
}

/* Each record is one document. */
static enum tr_status make_records(struct make *m)
{
    const struct tr_source *source = m->m->source;
    struct tr_row row = { .text = "" };
    uint64_t n_left = source->is_part ? source->end - source->first : UINT64_MAX;
    TR_PASS(tr_table_skip(m->table, source->first));
    while (row.text) {
        row.text = NULL;
        if (n_left-- > 0)
            TR_PASS(tr_table_next(m->table, &row));
        if (row.text)
            TR_PASS(tr_lines_add(&m->lines, row.text, row.n, row.number, row.why));
        if (!row.text || tr_lines_is_full(&m->lines))
            TR_PASS(tr_lines_encode(&m->lines, &m->m->rules, m->t->pool, take_record, m));
    }
    return TR_OK;
}

/* ---- text ---- */

static enum tr_status take_ids(void *ctx, const int32_t *ids, size_t n)
{
    struct make *m = ctx;
    return tr_shard_writer_add(m->writer, ids, NULL, n);
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

/* Cleans the content of the file buffer, and encodes it when there is enough for all threads. */
static enum tr_status add_text(struct make *m, bool is_last)
{
    size_t n_used;
    tr_utf8_clean(m->file.buf + m->file.begin, m->file.end - m->file.begin, is_last, &m->chunks.text, &n_used);
    m->file.begin += n_used;
    TR_PASS(tr_str_check(&m->chunks.text, "%s: a piece of text", m->path));
    return is_last || tr_chunks_is_full(&m->chunks) ? tr_chunks_encode(&m->chunks, is_last, m->t->pool, take_ids, m)
                                                    : TR_OK;
}

/* The whole file is one document, of any size. */
static enum tr_status make_text(struct make *m)
{
    size_t n;
    do
        TR_PASS(tr_textfile_more(&m->file, &n));
    while (n > 0 && m->file.end < 3);
    if (m->file.end >= 3 && memcmp(m->file.buf, "\xEF\xBB\xBF", 3) == 0)
        m->file.begin = 3;
    if (m->file.begin == m->file.end)
        return refuse_empty(m);
    m->chunks.tokenizer = m->t->tokenizer;
    TR_PASS(begin_doc(m));
    TR_PASS(add_edge(m, tr_doc_begin));
    while (n > 0) {
        TR_PASS(add_text(m, false));
        TR_PASS(tr_textfile_more(&m->file, &n));
    }
    TR_PASS(add_text(m, true));
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

/* Is file i what it was when its hash became part of the key? */
static enum tr_status check_content(struct make *m, size_t i)
{
    struct tr_hash128 content;
    TR_PASS(m->table ? tr_table_hash(m->table, &content) : tr_textfile_rest(&m->file, &content));
    if (!tr_hash_eq(content, m->m->contents[i]))
        return tr_fail(TR_IO, "%s: the file changed while it was being read; start again when it is complete", m->path);
    return TR_OK;
}

static enum tr_status finish(struct make *m)
{
    if (!m->writer)
        return refuse_empty(m);
    TR_PASS(write_skips(m));
    struct tr_shard_writer *last = m->writer;
    m->writer = NULL;
    return tr_shard_writer_commit(last, true, m->n_skipped);
}

static enum tr_status add_file(struct make *m, size_t i)
{
    const struct tr_source *source = &m->m->source[i];
    bool is_text = source->kind == TR_SOURCE_TEXT;
    m->path = m->lines.path = m->chunks.path = source->path;
    if (m->m->texts) {
        TR_PASS(tr_textfile_of(&m->file, m->path, m->m->texts[i].p, m->m->texts[i].n));
        return make_text(m);
    }
    TR_PASS(is_text ? tr_textfile_open(&m->file, m->path, TR_LINE_MAX)
                    : tr_table_open(m->path, source->table, &m->table));
    TR_PASS(is_text ? make_text(m) : make_records(m));
    return check_content(m, i);
}

enum tr_status tr_make_shards(const struct tr_make *what)
{
    enum tr_status st = TR_OK;
    struct make m = { .m = what, .t = what->t, .file = { .fd = -1 } };
    for (size_t i = 0; i < what->n; i++)
        TR_TRY(add_file(&m, i));
    TR_TRY(finish(&m));
out:
    tr_shard_writer_abort(m.writer);
    tr_textfile_release(&m.file);
    tr_table_close(m.table);
    tr_skip_list_release(&m.skips);
    tr_lines_release(&m.lines);
    tr_chunks_release(&m.chunks);
    return st;
}
