/* cases_csv.c - reads the file of cases. Columns are found by name, in any order; unknown columns are ignored, and a
 * missing column is blank in every row. A field that says "nan", "none" or "n/a" is blank too, because published tables
 * write that. A bad row gets a reason and the next row is read; the file is refused only when its rows cannot be told
 * apart (an open quote, a zero byte) or when it has no column of metrics or values.
 */
#include "forecast/cases.h"
#include <stdlib.h>

enum { FILE_MAX = 64 << 20, ROWS_MAX = 100000, FIELD_MAX = 1024, COLUMNS_MAX = 256 };

static const char *const names[TR_CASE_N_COLUMNS] = {
#define X(name) #name,
    TR_CASE_COLUMNS(X)
#undef X
};

struct reader {
    const char *path;
    char *at; /* next byte */
    int line;
    int n_columns, column[COLUMNS_MAX]; /* of the file -> of the table; -1: ignored */
};

static enum tr_status fail_at(const struct reader *r, const char *what)
{
    return tr_fail(TR_USAGE, "%s:%d: %s", r->path, r->line, what);
}

/* The field without spaces around it; "" for words that mean nothing. is_word: "none" is a value (recompute). */
static char *trimmed(char *f, bool is_word)
{
    static const char *const blank[] = { "nan", "null", "n/a", "na", "-", "?", "unknown", "none" };
    size_t n;
    f += strspn(f, " \t");
    for (n = strlen(f); n > 0 && (f[n - 1] == ' ' || f[n - 1] == '\t');)
        f[--n] = '\0';
    for (size_t i = 0; i < TR_COUNT_OF(blank) - is_word; i++)
        if (strcasecmp(f, blank[i]) == 0)
            return f + n;
    return f;
}

/* One field, terminated in place; *is_last: the line ends after it. */
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
    }
    while (*from && *from != ',' && *from != '\n' && !(*from == '\r' && (from[1] == '\n' || from[1] == '\0')))
        *to++ = *from++;
    if (*from == '\r')
        from++;
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
        if (r->n_columns == COLUMNS_MAX)
            return fail_at(r, "more than 256 columns");
        int k = 0;
        for (f = trimmed(f, true); k < TR_CASE_N_COLUMNS && strcasecmp(names[k], f) != 0;)
            k++;
        r->column[r->n_columns] = k < TR_CASE_N_COLUMNS ? k : -1;
        if (k == TR_CASE_N_COLUMNS)
            continue;
        if (seen[k])
            return tr_fail(TR_USAGE, "%s:1: column \"%s\" is there twice", r->path, tr_escape(f, esc, sizeof esc));
        seen[k] = true;
    }
    if (!seen[TR_CASE_metric] || !seen[TR_CASE_value])
        return tr_fail(TR_USAGE, "%s:1: column \"%s\" is missing", r->path,
                       names[seen[TR_CASE_metric] ? TR_CASE_value : TR_CASE_metric]);
    return TR_OK;
}

/* *is_row false: an empty line. */
static enum tr_status read_row(struct reader *r, struct tr_case *c, bool *is_row)
{
    bool is_last = false;
    int n = 0;
    *is_row = *r->at != '\n' && strncmp(r->at, "\r\n", 2) != 0;
    *c = (struct tr_case){ .line = r->line };
    for (int k = 0; k < TR_CASE_N_COLUMNS; k++)
        c->field[k] = "";
    for (; !is_last; n++) {
        char *f;
        enum tr_status st = next_field(r, &f, &is_last);
        if (st != TR_OK)
            return st;
        if (n < r->n_columns && r->column[n] >= 0)
            c->field[r->column[n]] = trimmed(f, r->column[n] == TR_CASE_recompute);
    }
    if (n != r->n_columns)
        (void)tr_format(c->fault, sizeof c->fault, "line %d has %d fields, the first line %d", r->line, n,
                        r->n_columns);
    else if (tr_parse_real(c->field[TR_CASE_value], &c->published) != TR_OK)
        (void)tr_format(c->fault, sizeof c->fault, "the value of line %d is not a number", r->line);
    tr_error_clear();
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
    r.at = c.text + (strncmp(c.text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0); /* a byte order mark */
    TR_TRY(read_header(&r));
    for (r.line = 2; *r.at; r.line++) {
        bool is_row = true;
        TR_TRY(read_row(&r, &c.row[c.n], &is_row));
        c.n += is_row;
    }
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
