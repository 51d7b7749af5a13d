/* csv.c - CSV and TSV: the first row names the columns, every field is text.
 *
 * RFC 4180, read as Python's csv module reads it: rows end with \n, \r\n or \r; a quoted field may hold separators,
 * line ends and doubled quotes; a quote inside an unquoted field is text; rows without any byte are passed over.
 */
#include "table/table_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 1 << 14 };

struct csv {
    char separator;
    struct tr_names names;
    struct tr_str field;
    bool is_long; /* the row so far is longer than a record may be; its fields are not kept */
};

/* The byte at the beginning of the buffer; -1: the file ends. */
static enum tr_status peek(struct tr_textfile *f, int *c)
{
    size_t n = 1;
    enum tr_status st = TR_OK;
    if (f->begin == f->end)
        st = tr_textfile_more(f, &n);
    *c = st == TR_OK && n > 0 ? (unsigned char)f->buf[f->begin] : -1;
    return st;
}

/* Adds the bytes of the field up to one that means something here: in quotes the quote, else the separator or a line
 * end. *c is that byte, which stays; -1: the file ends. */
static enum tr_status add_run(struct tr_table *t, bool is_quoted, int *c)
{
    struct tr_textfile *f = &t->file;
    struct csv *s = t->state;
    enum tr_status st;
    for (;;) {
        st = peek(f, c);
        if (st != TR_OK || *c < 0)
            return st;
        const char *from = f->buf + f->begin, *end = f->buf + f->end, *p = from;
        if (is_quoted)
            p = memchr(from, '"', (size_t)(end - from));
        else
            while (p < end && *p != s->separator && *p != '\n' && *p != '\r')
                p++;
        size_t n = (size_t)((p ? p : end) - from);
        if (s->field.n + n > TR_LINE_MAX && is_quoted)
            return tr_table_fail(t, TR_USAGE, "a quoted field is longer than 16 MiB; is its second quote missing?");
        s->is_long = s->is_long || s->field.n + n > TR_LINE_MAX;
        if (!s->is_long)
            tr_str_add(&s->field, from, n);
        f->begin += n;
        if (f->begin < f->end) {
            *c = (unsigned char)f->buf[f->begin];
            return TR_OK;
        }
    }
}

/* Reads one field into s->field. *c is the byte that ends it, which stays. */
static enum tr_status read_field(struct tr_table *t, int *c)
{
    struct csv *s = t->state;
    tr_str_clear(&s->field);
    TR_PASS(peek(&t->file, c));
    while (*c == '"') { /* a doubled quote ends one quoted part and begins the next */
        t->file.begin++;
        TR_PASS(add_run(t, true, c));
        if (*c < 0)
            return tr_table_fail(t, TR_USAGE, "the file ends inside a quoted field: its second quote is missing");
        t->file.begin++;
        TR_PASS(peek(&t->file, c));
        if (*c == '"')
            tr_str_add(&s->field, "\"", 1);
    }
    TR_PASS(add_run(t, false, c));
    if (!tr_str_ok(&s->field))
        return tr_table_fail(t, TR_NOMEM, "no memory for a field");
    return TR_OK;
}

/* Passes over line ends; *c is the byte after them. */
static enum tr_status skip_line_ends(struct tr_textfile *f, int *c)
{
    enum tr_status st = peek(f, c);
    while (st == TR_OK && (*c == '\n' || *c == '\r')) {
        f->begin++;
        st = peek(f, c);
    }
    return st;
}

static enum tr_status open_any(struct tr_table *t, char separator)
{
    struct tr_textfile *f = &t->file;
    size_t n = 1;
    int c;
    struct csv *s = t->state = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "no memory for a reader of %s", t->path);
    s->separator = separator;
    while (f->end < 3 && n > 0)
        TR_PASS(tr_textfile_more(f, &n));
    if (f->end >= 3 && memcmp(f->buf, "\xEF\xBB\xBF", 3) == 0)
        f->begin = 3;
    TR_PASS(skip_line_ends(f, &c));
    for (bool is_more = c >= 0; is_more;) {
        TR_PASS(read_field(t, &c));
        if (s->is_long || s->names.n == MAX_COLUMNS)
            return tr_fail(TR_USAGE, "%s: the header has a name over 16 MiB, or more than %d columns", t->path,
                           MAX_COLUMNS);
        TR_PASS(tr_names_add(&s->names, s->field.p ? s->field.p : "", s->field.n));
        is_more = c == separator;
        f->begin += is_more;
    }
    enum tr_status st = tr_names_check(&s->names, NULL, s->names.n);
    if (st != TR_OK)
        return tr_fail_at(st, "%s: ", t->path);
    return TR_OK;
}

static enum tr_status open_csv(struct tr_table *t)
{
    return open_any(t, ',');
}

static enum tr_status open_tsv(struct tr_table *t)
{
    return open_any(t, '\t');
}

static enum tr_status next_csv(struct tr_table *t, struct tr_row *row)
{
    struct csv *s = t->state;
    size_t n = 0;
    int c;
    char why[96];
    tr_str_clear(&t->text);
    s->is_long = false;
    TR_PASS(skip_line_ends(&t->file, &c));
    if (c < 0)
        return TR_OK;
    tr_cell_raw(t, "{", 1);
    for (bool is_more = true; is_more; n++) {
        TR_PASS(read_field(t, &c));
        if (n < s->names.n) {
            TR_PASS(tr_table_work(t, s->names.p[n].n));
            tr_cell_name(t, &s->names, n, n == 0);
            TR_PASS(tr_cell_text(t, s->field.p ? s->field.p : "", s->field.n));
        }
        is_more = c == s->separator;
        t->file.begin += is_more;
    }
    tr_cell_raw(t, "}", 1);
    if (n != s->names.n)
        (void)snprintf(why, sizeof why, "the row has %zu fields, and the header has %zu", n, s->names.n);
    TR_PASS(tr_table_give(t, row, s->is_long ? "the record is longer than 16 MiB" : NULL));
    if (n != s->names.n && !row->why) {
        tr_str_clear(&t->text);
        tr_str_addf(&t->text, "%s", why);
        row->text = "";
        row->n = 0;
        row->why = t->text.p;
    }
    return TR_OK;
}

static void close_csv(struct tr_table *t)
{
    struct csv *s = t->state;
    if (!s)
        return;
    tr_names_release(&s->names);
    tr_str_release(&s->field);
    free(s);
}

const struct tr_table_hooks tr_csv_hooks = {
    .name = "csv", .is_text = true, .open = open_csv, .next = next_csv, .close = close_csv
};
const struct tr_table_hooks tr_tsv_hooks = {
    .name = "tsv", .is_text = true, .open = open_tsv, .next = next_csv, .close = close_csv
};
