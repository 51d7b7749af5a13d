/* table.c - see table.h: the formats, and what all of them share.
 *
 * Rejected: an Arrow-like table in memory between readers and records (a row group may be larger than memory), and a
 * tree of values for each record (the text is what several threads parse later, so a tree would be built by one).
 */
#include "table/table_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct tr_table_hooks *const kinds[] = {
    [TR_TABLE_JSONL] = &tr_jsonl_hooks, [TR_TABLE_JSON] = &tr_json_hooks,       [TR_TABLE_CSV] = &tr_csv_hooks,
    [TR_TABLE_TSV] = &tr_tsv_hooks,     [TR_TABLE_PARQUET] = &tr_parquet_hooks, [TR_TABLE_ARROW] = &tr_arrow_hooks,
};
_Static_assert(TR_COUNT_OF(kinds) == TR_TABLE_KINDS, "one each");

const char *tr_table_kind_name(enum tr_table_kind kind)
{
    return kinds[kind]->name;
}

bool tr_table_kind_of(const char *path, enum tr_table_kind *out)
{
    static const struct {
        const char *suffix;
        enum tr_table_kind kind;
    } suffixes[] = {
        { ".jsonl", TR_TABLE_JSONL }, { ".ndjson", TR_TABLE_JSONL },  { ".json", TR_TABLE_JSON },
        { ".csv", TR_TABLE_CSV },     { ".tsv", TR_TABLE_TSV },       { ".parquet", TR_TABLE_PARQUET },
        { ".arrow", TR_TABLE_ARROW }, { ".feather", TR_TABLE_ARROW },
    };
    size_t n = strlen(path);
    enum tr_zip zip = tr_zip_of(path);
    n -= zip == TR_ZIP_GZIP ? 3 : zip == TR_ZIP_ZSTD ? 4 : 0;
    for (size_t i = 0; i < TR_COUNT_OF(suffixes); i++) {
        size_t k = strlen(suffixes[i].suffix);
        if (n <= k || memcmp(path + n - k, suffixes[i].suffix, k) != 0)
            continue;
        *out = suffixes[i].kind;
        return zip == TR_ZIP_NONE || kinds[*out]->is_text;
    }
    return false;
}

/* ---- open, next, close ---- */

enum { HOLD_RATIO = 48 }; /* memory of pages and batches, times the size of the file */

enum tr_status tr_table_open(const char *path, enum tr_table_kind kind, struct tr_table **out)
{
    enum tr_status st = TR_OK;
    struct tr_table *t = calloc(1, sizeof *t);
    if (!t)
        return tr_fail(TR_NOMEM, "no memory for a reader of %s", path);
    t->file.fd = -1;
    t->hooks = kinds[kind];
    t->path = strdup(path);
    if (!t->path)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a data path"));
    if (t->hooks->is_text)
        TR_TRY(tr_textfile_open(&t->file, t->path, TR_LINE_MAX));
    else
        TR_TRY(tr_file_open_read(t->path, &t->file.fd, &t->file.n_bytes));
    uint64_t n = t->file.n_bytes < SIZE_MAX / 1024 ? t->file.n_bytes : SIZE_MAX / 1024;
    t->n_may = TR_ZIP_FREE + TR_ZIP_RATIO * n;
    t->n_hold = (size_t)(TR_ZIP_FREE + HOLD_RATIO * n);
    if (t->hooks->open)
        TR_TRY(t->hooks->open(t));
    *out = t;
    t = NULL;
out:
    tr_table_close(t);
    return st;
}

void tr_table_close(struct tr_table *t)
{
    if (!t)
        return;
    if (t->hooks->close)
        t->hooks->close(t);
    tr_textfile_release(&t->file);
    tr_str_release(&t->text);
    free((char *)(uintptr_t)t->path);
    free(t);
}

enum tr_status tr_table_next(struct tr_table *t, struct tr_row *row)
{
    *row = (struct tr_row){ 0 };
    return t->hooks->next(t, row);
}

enum tr_status tr_table_skip(struct tr_table *t, uint64_t n)
{
    struct tr_row row = { .text = "" };
    enum tr_status st = TR_OK;
    if (t->hooks->skip)
        return t->hooks->skip(t, n);
    for (; n > 0 && row.text && st == TR_OK; n--)
        st = tr_table_next(t, &row);
    return st;
}

enum tr_status tr_table_count(const char *path, enum tr_table_kind kind, uint64_t *out)
{
    struct tr_table *t;
    enum tr_status st = tr_table_open(path, kind, &t);
    if (st != TR_OK)
        return st;
    if (t->hooks->count)
        st = t->hooks->count(t, out);
    else if ((st = tr_table_skip(t, UINT64_MAX)) == TR_OK)
        *out = (uint64_t)t->n_rows;
    tr_table_close(t);
    return st;
}

enum tr_status tr_table_hash(struct tr_table *t, struct tr_hash128 *out)
{
    return t->hooks->is_text ? tr_textfile_rest(&t->file, out) : tr_textfile_hash(t->path, out);
}

enum tr_status tr_table_fail(const struct tr_table *t, enum tr_status st, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args); /* a long message is truncated */
    va_end(args);
    return tr_fail(st, "%s: row %" PRId64 ": %s", t->path, t->n_rows + 1, text);
}

enum tr_status tr_table_work(struct tr_table *t, uint64_t n)
{
    t->n_made += n;
    if (t->n_made <= t->n_may)
        return TR_OK;
    return tr_table_fail(t, TR_USAGE,
                         "%" PRIu64 " bytes of file became over %" PRIu64
                         " bytes of records, more than %d times as many; if that is right, make a .jsonl file of it",
                         t->file.n_bytes, t->n_may, TR_ZIP_RATIO);
}

enum tr_status tr_table_hold(struct tr_table *t, void *buf, size_t *cap, size_t n)
{
    void *old;
    if (n <= *cap)
        return TR_OK;
    size_t grow = n - *cap;
    if (grow > t->n_hold - t->n_held)
        return tr_table_fail(t, TR_USAGE,
                             "%zu bytes are needed at once, with %zu in use, and a file of %" PRIu64
                             " bytes may take %zu; write it again with smaller pages or batches",
                             n, t->n_held, t->file.n_bytes, t->n_hold);
    memcpy(&old, buf, sizeof old);
    void *p = realloc(old, n);
    if (!p)
        return tr_table_fail(t, TR_NOMEM, "no memory for %zu bytes", n);
    memcpy(buf, &p, sizeof p);
    t->n_held += grow;
    *cap = n;
    return TR_OK;
}

void tr_table_drop(struct tr_table *t, void *buf, size_t *cap)
{
    void *old;
    memcpy(&old, buf, sizeof old);
    free(old);
    old = NULL;
    memcpy(buf, &old, sizeof old);
    t->n_held -= *cap;
    *cap = 0;
}

enum tr_status tr_table_give(struct tr_table *t, struct tr_row *row, const char *why)
{
    if (!tr_str_ok(&t->text))
        return tr_table_fail(t, TR_NOMEM, "no memory for a record");
    if (!why && t->text.n > TR_LINE_MAX)
        why = "the record is longer than 16 MiB";
    *row = (struct tr_row){ why ? "" : t->text.p, why ? 0 : t->text.n, ++t->n_rows, why };
    return TR_OK;
}

/* ---- cells ---- */

void tr_cell_raw(struct tr_table *t, const char *json, size_t n)
{
    struct tr_str *s = &t->text;
    if (s->n > TR_LINE_MAX)
        return;
    if (s->n_cap - s->n <= n || !tr_str_ok(s)) {
        tr_str_add(s, json, n);
        return;
    }
    if (n > 0)
        memcpy(s->p + s->n, json, n); /* most cells are a few bytes */
    s->n += n;
    s->p[s->n] = 0;
}

/* Whether none of eight bytes needs an escape: all are 0x20 or more, and neither a quote nor a backslash. Each line
 * sets the highest bit of a byte that is below 0x20 or equal, and perhaps of one above it, which only costs a closer
 * look. */
static bool are_plain(const char *p)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    uint64_t x, quote, slash;
    memcpy(&x, p, 8);
    quote = x ^ ones * '"';
    slash = x ^ ones * '\\';
    return (((x - ones * ' ') & ~x) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & tops ? false : true;
}

enum tr_status tr_cell_text(struct tr_table *t, const char *p, size_t n)
{
    enum tr_status st = tr_table_work(t, n);
    size_t from = 0;
    if (st != TR_OK)
        return st;
    tr_cell_raw(t, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        while (n - i >= 8 && are_plain(p + i))
            i += 8;
        if (i == n)
            break;
        unsigned char c = (unsigned char)p[i];
        if (TR_LIKELY(c >= ' ' && c != '"' && c != '\\'))
            continue;
        char escape[8] = { '\\', c == '\n' ? 'n' : (char)c, 0 };
        if (c < ' ' && c != '\n')
            (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        tr_cell_raw(t, p + from, i - from);
        tr_cell_raw(t, escape, strlen(escape));
        from = i + 1;
    }
    tr_cell_raw(t, p + from, n - from);
    tr_cell_raw(t, "\"", 1);
    return TR_OK;
}

enum tr_status tr_cell_bytes(struct tr_table *t, const char *p, size_t n)
{
    size_t i = 0, n_char = 1;
    TR_PASS(tr_table_work(t, n));
    for (; i < n && n_char != 0; i += n_char) {
        while (n - i >= 8 && are_plain(p + i))
            i += 8;
        if (i == n)
            break;
        n_char = p[i] == '\0' ? 0 : tr_utf8_len(p + i, n - i);
    }
    if (i >= n && n_char != 0)
        return tr_cell_text(t, p, n);
    tr_cell_raw(t, "null", 4);
    return TR_OK;
}

void tr_cell_uint(struct tr_table *t, uint64_t x)
{
    char digits[24];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + x % 10);
    while ((x /= 10) > 0);
    tr_cell_raw(t, digits + at, sizeof digits - at);
}

void tr_cell_int(struct tr_table *t, int64_t x)
{
    if (x < 0)
        tr_cell_raw(t, "-", 1);
    tr_cell_uint(t, x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

/* The shortest digits that give the same number back. */
void tr_cell_real(struct tr_table *t, double x)
{
    char text[40];
    int digits = 15;
    if (!isfinite(x)) {
        tr_cell_raw(t, "null", 4);
        return;
    }
    do
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
    while (digits++ < 17 && memcmp(&(double){ strtod(text, NULL) }, &x, sizeof x) != 0);
    tr_cell_raw(t, text, strlen(text));
    if (!strpbrk(text, ".e"))
        tr_cell_raw(t, ".0", 2);
}

double tr_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double x = exponent == 0    ? ldexp(fraction, -24)
               : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                : ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -x : x;
}

/* ---- names of columns ---- */

enum tr_status tr_names_add(struct tr_names *s, const char *name, size_t n)
{
    if ((s->n & (s->n - 1)) == 0) { /* 0, or a power of two: full */
        struct tr_name *p = realloc(s->p, (s->n ? s->n * 2 : 1) * sizeof *p);
        if (!p)
            return tr_fail(TR_NOMEM, "no memory for the names of columns");
        s->p = p;
    }
    struct tr_str text = { 0 };
    tr_str_add(&text, name, n);
    size_t at = s->text.n;
    if (tr_str_ok(&text)) {
        tr_str_json(&s->text, text.p);
        tr_str_addf(&s->text, ":");
    }
    bool is_ok = tr_str_ok(&text) && tr_str_ok(&s->text);
    tr_str_release(&text);
    if (!is_ok)
        return tr_fail(TR_NOMEM, "no memory for the names of columns");
    s->p[s->n++] = (struct tr_name){ at, s->text.n - at };
    return TR_OK;
}

enum tr_status tr_names_check(const struct tr_names *s, const size_t *pick, size_t n)
{
    enum tr_status st = TR_OK;
    struct tr_str copy = { 0 };
    const char **sorted = calloc(n + 1, sizeof *sorted);
    tr_str_add(&copy, s->text.p, s->text.n);
    if (!sorted || !tr_str_ok(&copy))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the names of columns"));
    for (size_t i = 0; i < n; i++) {
        const struct tr_name *name = &s->p[pick ? pick[i] : i];
        copy.p[name->at + name->n - 1] = 0; /* in place of the colon */
        sorted[i] = copy.p + name->at;
    }
    qsort(sorted, n, sizeof *sorted, tr_by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            TR_TRY(tr_fail(TR_USAGE, "the column %s is there twice; give the columns different names", sorted[i]));
out:
    free(sorted);
    tr_str_release(&copy);
    return st;
}

void tr_cell_name(struct tr_table *t, const struct tr_names *s, size_t i, bool is_first)
{
    if (!is_first)
        tr_cell_raw(t, ",", 1);
    tr_cell_raw(t, s->text.p + s->p[i].at, s->p[i].n);
}

void tr_names_release(struct tr_names *s)
{
    free(s->p);
    tr_str_release(&s->text);
    *s = (struct tr_names){ 0 };
}
