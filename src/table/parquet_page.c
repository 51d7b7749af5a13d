/* parquet_page.c - the pages of a leaf: found, checked, decompressed, one in memory at a time. */
#include "table/parquet.h"

#include <string.h>
#include <zlib.h>

enum { MIN_HEADER = 1 << 10, MAX_HEADER = 16 << 20 };
enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };

struct page_header {
    int64_t type, n_bytes, n_raw, crc; /* sizes after and before decompression */
    bool has_crc;
    int64_t n_entries, encoding, def_encoding, rep_encoding; /* of the header that the type names */
    int64_t n_def_bytes, n_rep_bytes, is_compressed;
};

static enum tr_status damaged(const struct tr_table *t, const struct tr_pq_leaf *f, const char *what)
{
    const struct tr_pq *q = t->state;
    const struct tr_name *name = &q->names.p[f->i_node];
    return tr_table_fail(t, TR_USAGE, "column %.*s: %s; copy or make the file again", (int)name->n - 1,
                         q->names.text.p + name->at, what);
}

/* ---- headers ---- */

/* v1 {n, encoding, def, rep}, dictionary {n, encoding}, v2 {n, nulls, rows, encoding, def bytes, rep bytes, compressed}
 */
static void read_inner(struct tr_thrift *x, struct page_header *h, bool is_v2)
{
    struct tr_thrift_field f = { 0 };
    h->is_compressed = 1;
    while (tr_thrift_field(x, &f)) {
        int64_t *const v1[] = {
            NULL, &h->n_entries, &h->encoding, &h->def_encoding, &h->rep_encoding, NULL, NULL, NULL
        };
        int64_t *const v2[] = {
            NULL, &h->n_entries, NULL, NULL, &h->encoding, &h->n_def_bytes, &h->n_rep_bytes, &h->is_compressed
        };
        int64_t *at = f.id > 0 && f.id < (int)TR_COUNT_OF(v1) ? is_v2 ? v2[f.id] : v1[f.id] : NULL;
        /* in a dictionary's header field 3 is a bool, which does no harm */
        if (at && f.type != TR_THRIFT_STRUCT)
            *at = tr_thrift_int(x, &f);
        else
            tr_thrift_skip(x, f.type);
    }
}

static bool read_header(struct tr_thrift *x, struct page_header *h)
{
    struct tr_thrift_field f = { 0 };
    *h = (struct page_header){ .type = -1, .n_bytes = -1, .n_raw = -1, .n_entries = -1, .encoding = -1 };
    while (tr_thrift_field(x, &f)) {
        int64_t *const numbers[] = { NULL, &h->type, &h->n_bytes, &h->n_raw, &h->crc };
        if (f.id > 0 && f.id < (int)TR_COUNT_OF(numbers))
            *numbers[f.id] = tr_thrift_int(x, &f);
        else if ((f.id == 5 || f.id == 7 || f.id == 8) && tr_thrift_struct(x, &f))
            read_inner(x, h, f.id == 8);
        else
            tr_thrift_skip(x, f.type);
        h->has_crc = h->has_crc || f.id == 4;
    }
    return !x->is_bad && h->n_bytes >= 0 && h->n_bytes <= INT32_MAX && h->n_raw >= 0 && h->n_raw <= INT32_MAX;
}

/* Reads the header at f->at and the bytes of its page into q->raw. */
static enum tr_status read_page(struct tr_table *t, struct tr_pq_leaf *f, struct page_header *h)
{
    struct tr_pq *q = t->state;
    for (size_t n = MIN_HEADER;; n *= 16) { /* the header's length is known when it has been read */
        uint64_t left = f->end - f->at;
        size_t k = left < n ? (size_t)left : n;
        TR_PASS(tr_table_hold(t, &q->raw, &q->n_raw_cap, k + 1));
        TR_PASS(tr_pread_all(t->file.fd, t->path, q->raw, k, f->at));
        struct tr_thrift x = { q->raw, q->raw + k, false };
        if (read_header(&x, h)) {
            f->at += (uint64_t)(x.p - q->raw);
            break;
        }
        if (k == left || n >= MAX_HEADER)
            TR_PASS(damaged(t, f, "the header of a page cannot be read"));
    }
    if ((uint64_t)h->n_raw > f->end - f->at)
        TR_PASS(damaged(t, f, "a page is longer than its column"));
    TR_PASS(tr_table_hold(t, &q->raw, &q->n_raw_cap, (size_t)h->n_raw + 1));
    TR_PASS(tr_pread_all(t->file.fd, t->path, q->raw, (size_t)h->n_raw, f->at));
    f->at += (uint64_t)h->n_raw;
    if (h->has_crc && (uint32_t)h->crc != (uint32_t)crc32_z(crc32_z(0, NULL, 0), q->raw, (size_t)h->n_raw))
        TR_PASS(damaged(t, f, "the checksum of a page is not that of its bytes"));
    return TR_OK;
}

/* ---- pages ---- */

/* Decompresses the page from q->raw into *out. The first n_plain bytes of it are not compressed. */
static enum tr_status unpack(struct tr_table *t, struct tr_pq_leaf *f, const struct page_header *h, size_t n_plain,
                             bool is_compressed, uint8_t **out, size_t *cap)
{
    static const int codecs[] = { TR_BLOCK_PLAIN, TR_BLOCK_SNAPPY, TR_BLOCK_GZIP, -1, -1, -1,
                                  TR_BLOCK_ZSTD,  TR_BLOCK_LZ4 };
    static const char *const names[] = { "", "", "", "LZO", "BROTLI", "LZ4 (the old framing)", "", "" };
    const struct tr_pq *q = t->state;
    if (f->codec >= (int)TR_COUNT_OF(codecs) || codecs[f->codec] < 0)
        return tr_fail(TR_USAGE,
                       "%s: it is compressed with %s, which is not read; write it again with zstd, snappy, gzip or "
                       "lz4_raw",
                       t->path, f->codec < (int)TR_COUNT_OF(names) ? names[f->codec] : "an unknown codec");
    size_t n_raw = (size_t)h->n_raw, n_bytes = (size_t)h->n_bytes;
    if (n_plain > n_raw || n_plain > n_bytes)
        return damaged(t, f, "the levels of a page are longer than the page");
    TR_PASS(tr_table_hold(t, out, cap, n_bytes + 1));
    memcpy(*out, q->raw, n_plain);
    enum tr_block codec = is_compressed ? (enum tr_block)codecs[f->codec] : TR_BLOCK_PLAIN;
    if (!tr_block_unpack(codec, q->raw + n_plain, n_raw - n_plain, *out + n_plain, n_bytes - n_plain) &&
        n_bytes > n_plain)
        TR_PASS(damaged(t, f, "a page cannot be decompressed"));
    return TR_OK;
}

static enum tr_status open_dictionary(struct tr_table *t, struct tr_pq_leaf *f, const struct page_header *h)
{
    struct tr_pq_dict *d = &f->dict;
    struct tr_pq_value value;
    size_t width = tr_pq_width(f->type, f->values.n_fixed);
    if ((h->encoding != PQ_PLAIN && h->encoding != PQ_PLAIN_DICTIONARY) || h->n_entries < 0 || f->type == PQ_BOOLEAN)
        return damaged(t, f, "its dictionary cannot be read");
    TR_PASS(unpack(t, f, h, 0, true, &d->p, &d->n_cap));
    d->n_bytes = (size_t)h->n_bytes;
    d->n = (uint64_t)h->n_entries;
    if (f->type != PQ_BYTE_ARRAY) {
        if (width == 0 ? d->n > 1 : d->n > d->n_bytes / width)
            TR_PASS(damaged(t, f, "its dictionary is shorter than it says"));
        return TR_OK;
    }
    if (d->n > d->n_bytes / 4) /* the length of each text takes four bytes */
        TR_PASS(damaged(t, f, "its dictionary is shorter than it says"));
    TR_PASS(tr_table_hold(t, &d->spans, &d->n_spans_cap, ((size_t)d->n + 1) * sizeof *d->spans));
    struct tr_pq_values all = { .type = f->type };
    (void)tr_pq_values_open(&all, PQ_PLAIN, d->p, d->p + d->n_bytes);
    for (uint64_t i = 0; i < d->n; i++) {
        if (!tr_pq_values_next(&all, &value))
            TR_PASS(damaged(t, f, "its dictionary is shorter than it says"));
        d->spans[i] = (struct tr_pq_span){ (uint32_t)((const uint8_t *)value.p - d->p), (uint32_t)value.n };
    }
    return TR_OK;
}

static unsigned bits_of(unsigned max)
{
    unsigned n = 0;
    for (; max > 0; max >>= 1)
        n++;
    return n;
}

/* Levels of a v1 page: their length in four bytes, then runs. */
static bool open_levels(const uint8_t **p, const uint8_t *end, unsigned max, int64_t encoding, struct tr_runs *out)
{
    *out = (struct tr_runs){ .width = bits_of(max) };
    if (max == 0)
        return true;
    if (end - *p < 4 || encoding != PQ_RLE)
        return false;
    size_t n = (size_t)(*p)[0] | (size_t)(*p)[1] << 8 | (size_t)(*p)[2] << 16 | (size_t)(*p)[3] << 24;
    *p += 4;
    if (n > (size_t)(end - *p))
        return false;
    out->p = *p;
    out->end = *p += n;
    return true;
}

static enum tr_status open_data(struct tr_table *t, struct tr_pq_leaf *f, const struct page_header *h)
{
    bool is_v2 = h->type == DATA_PAGE_V2, has_levels = true;
    size_t n_plain = 0;
    if (h->n_entries < 0 || (uint64_t)h->n_entries > f->n_entries || h->n_def_bytes < 0 || h->n_rep_bytes < 0 ||
        h->n_def_bytes > h->n_raw || h->n_rep_bytes > h->n_raw)
        return damaged(t, f, "a page has more entries than its column, or its levels are too long");
    if (is_v2)
        n_plain = (size_t)(h->n_def_bytes + h->n_rep_bytes);
    TR_PASS(unpack(t, f, h, n_plain, !is_v2 || h->is_compressed, &f->page, &f->n_page_cap));
    const uint8_t *p = f->page, *end = f->page + h->n_bytes;
    if (is_v2) {
        f->reps = (struct tr_runs){ .p = p, .end = p + h->n_rep_bytes, .width = bits_of(f->max_rep) };
        p += h->n_rep_bytes;
        f->defs = (struct tr_runs){ .p = p, .end = p + h->n_def_bytes, .width = bits_of(f->max_def) };
        p += h->n_def_bytes;
    } else {
        has_levels = open_levels(&p, end, f->max_rep, h->rep_encoding, &f->reps) &&
                     open_levels(&p, end, f->max_def, h->def_encoding, &f->defs);
    }
    bool is_dict = h->encoding == PQ_PLAIN_DICTIONARY || h->encoding == PQ_RLE_DICTIONARY;
    f->values.dict = &f->dict;
    if (!has_levels || (is_dict && !f->dict.p) || !tr_pq_values_open(&f->values, (int)h->encoding, p, end))
        TR_PASS(damaged(t, f, "a page has levels or an encoding that cannot be read"));
    f->n_in_page = (uint64_t)h->n_entries;
    f->n_entries -= f->n_in_page;
    return TR_OK;
}

/* Goes to the next page that has entries. */
static enum tr_status next_page(struct tr_table *t, struct tr_pq_leaf *f)
{
    struct page_header h;
    while (f->n_in_page == 0) {
        if (f->at >= f->end)
            TR_PASS(damaged(t, f, "it ends before all of its values are there"));
        TR_PASS(tr_table_work(t, 1));
        TR_PASS(read_page(t, f, &h));
        if (h.type == DICTIONARY_PAGE)
            TR_PASS(open_dictionary(t, f, &h));
        else if (h.type == DATA_PAGE || h.type == DATA_PAGE_V2)
            TR_PASS(open_data(t, f, &h));
    }
    return TR_OK;
}

enum tr_status tr_pq_advance(struct tr_table *t, struct tr_pq_leaf *f)
{
    uint32_t rep = 0, def = 0;
    f->has_entry = f->n_in_page > 0 || f->n_entries > 0;
    f->rep = f->def = 0;
    if (!f->has_entry)
        return TR_OK;
    TR_PASS(tr_table_work(t, TR_TABLE_ENTRY));
    if (f->n_in_page == 0)
        TR_PASS(next_page(t, f));
    if ((f->max_rep > 0 && !tr_runs_next(&f->reps, &rep)) || (f->max_def > 0 && !tr_runs_next(&f->defs, &def)) ||
        rep > f->max_rep || def > f->max_def)
        TR_PASS(damaged(t, f, "its levels are too short or too large"));
    f->n_in_page--;
    f->rep = rep;
    f->def = def;
    return TR_OK;
}
