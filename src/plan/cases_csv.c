/* cases_csv.c - the file of cases: columns by name, in any order, all of them there, nothing else. */
#include "plan/cases.h"
#include <stdlib.h>

enum { FILE_MAX = 16 << 20, ROWS_MAX = 20000, FIELD_MAX = 1024 };

static const char *const names[TR_CASE_N_COLUMNS] = {
#define X(name) #name,
    TR_CASE_COLUMNS(X)
#undef X
};

struct reader {
    const char *path;
    char *at; /* next byte */
    int line;
    int n_columns, column[TR_CASE_N_COLUMNS]; /* of the file -> of the table */
};

static enum tr_status fail_at(const struct reader *r, const char *what)
{
    return tr_fail(TR_USAGE, "%s:%d: %s", r->path, r->line, what);
}

/* One field, ended in place; *is_last: the line ends after it. */
static enum tr_status next_field(struct reader *r, char **out, bool *is_last)
{
    char *to = r->at, *from = r->at;
    *out = to;
    if (*from == '"') {
        for (from++;; from++) {
            if (*from == '\0')
                return fail_at(r, "a quote is not closed");
            if (*from == '"' && *++from != '"')
                break;
            *to++ = *from;
        }
    } else {
        while (*from && *from != ',' && *from != '\n' && *from != '\r' && *from != '"')
            *to++ = *from++;
        if (*from == '"')
            return fail_at(r, "a quote inside a field; quote the whole field");
    }
    if (*from == '\r')
        from++;
    if (*from && *from != ',' && *from != '\n')
        return fail_at(r, "something follows a quoted field");
    if ((size_t)(to - *out) > FIELD_MAX)
        return fail_at(r, "a field of more than 1024 bytes");
    *is_last = *from != ',';
    r->at = *from ? from + 1 : from;
    *to = '\0';
    return TR_OK;
}

static enum tr_status read_header(struct reader *r)
{
    bool is_last = false, seen[TR_CASE_N_COLUMNS] = { false };
    for (r->n_columns = 0; !is_last; r->n_columns++) {
        char *f, esc[80];
        enum tr_status st = next_field(r, &f, &is_last);
        if (st != TR_OK)
            return st;
        int k = 0;
        while (k < TR_CASE_N_COLUMNS && strcmp(names[k], f) != 0)
            k++;
        if (k == TR_CASE_N_COLUMNS || seen[k] || r->n_columns == TR_CASE_N_COLUMNS)
            return tr_fail(TR_USAGE, "%s:1: column \"%s\" is %s", r->path, tr_escape(f, esc, sizeof esc),
                           k < TR_CASE_N_COLUMNS ? "there twice" : "not known");
        seen[k] = true;
        r->column[r->n_columns] = k;
    }
    for (int k = 0; k < TR_CASE_N_COLUMNS; k++)
        if (!seen[k])
            return tr_fail(TR_USAGE, "%s:1: column \"%s\" is missing", r->path, names[k]);
    return TR_OK;
}

static enum tr_status read_row(struct reader *r, struct tr_case *c)
{
    bool is_last = false;
    c->line = r->line;
    for (int i = 0; i < r->n_columns; i++) {
        char *f;
        if (is_last)
            return fail_at(r, "too few fields");
        enum tr_status st = next_field(r, &f, &is_last);
        if (st != TR_OK)
            return st;
        c->field[r->column[i]] = f;
    }
    if (!is_last)
        return fail_at(r, "too many fields");
    if (tr_parse_real(c->field[TR_CASE_value], &c->published) != TR_OK)
        return fail_at(r, "the value is not a number");
    return TR_OK;
}

enum tr_status tr_cases_read(const char *path, struct tr_cases *out)
{
    enum tr_status st = TR_OK;
    struct tr_cases c = { 0 };
    size_t n = 0, n_lines = 0;
    struct reader r = { .path = path, .line = 1 };
    TR_TRY(tr_file_read(path, FILE_MAX, &c.text, &n));
    if (memchr(c.text, '\0', n))
        TR_TRY(tr_fail(TR_USAGE, "%s: a zero byte; this is no text", path));
    for (size_t i = 0; i < n; i++)
        n_lines += c.text[i] == '\n';
    if (n_lines > ROWS_MAX)
        TR_TRY(tr_fail(TR_USAGE, "%s: %zu rows are more than %d", path, n_lines, ROWS_MAX));
    c.row = calloc(n_lines + 1, sizeof *c.row);
    if (!c.row)
        TR_TRY(tr_fail(TR_NOMEM, "cases: out of memory"));
    r.at = c.text;
    TR_TRY(read_header(&r));
    for (r.line = 2; *r.at; r.line++)
        TR_TRY(read_row(&r, &c.row[c.n++]));
    *out = c;
    return TR_OK;
out:
    tr_cases_release(&c);
    return st;
}

void tr_cases_release(struct tr_cases *c)
{
    free(c->row);
    free(c->text);
    *c = (struct tr_cases){ 0 };
}
