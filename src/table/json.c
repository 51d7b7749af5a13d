/* json.c - JSON lines, and .json files: an array of records, {"data": [...]}, or objects one after another.
 *
 * A record is found by its brackets and passed on as it is; whether it is JSON is for whoever parses it. So a record
 * needs no tree, and an array of any length needs the memory of its longest record.
 */
#include "table/table_impl.h"

#include <stdlib.h>
#include <string.h>

static const char bom[] = "\xEF\xBB\xBF";

/* ---- JSON lines ---- */

/* Each line is one record. A byte order mark at the start of the file is dropped. */
static enum tr_status next_line(struct tr_table *t, struct tr_row *row)
{
    enum tr_line kind = TR_LINE_TEXT;
    enum tr_status st = tr_textfile_line(&t->file, &kind, &row->text, &row->n);
    if (st != TR_OK || kind == TR_LINE_END) {
        row->text = NULL;
        return st;
    }
    if (t->n_rows == 0 && row->n >= 3 && memcmp(row->text, bom, 3) == 0) {
        row->text += 3;
        row->n -= 3;
    }
    row->number = ++t->n_rows;
    if (kind == TR_LINE_TOO_LONG)
        *row = (struct tr_row){ "", 0, t->n_rows, "the line is longer than 16 MiB" };
    return TR_OK;
}

const struct tr_table_hooks tr_jsonl_hooks = { .name = "jsonl", .is_text = true, .next = next_line };

/* ---- JSON ---- */

struct json {
    bool is_array, is_wrapped; /* wrapped: the array is a member of an object, of which the rest is not read */
    bool is_done;
};

/* What the bytes so far leave open. */
struct brackets {
    size_t depth;
    bool in_string, is_escaped;
};

/* Passes over one byte of a value. */
static inline void pass_byte(struct brackets *s, char c)
{
    if (s->in_string) {
        s->in_string = s->is_escaped || c != '"';
        s->is_escaped = !s->is_escaped && c == '\\';
    } else if (c == '"') {
        s->in_string = true;
    } else if (c == '{' || c == '[') {
        s->depth++;
    } else if (c == '}' || c == ']') {
        s->depth--;
    }
}

/* Passes over white space. *c is the byte after it, which stays; -1: the file ends. */
static enum tr_status skip_space(struct tr_textfile *f, int *c)
{
    for (;;) {
        size_t n;
        while (f->begin < f->end && strchr(" \t\r\n", f->buf[f->begin]) && f->buf[f->begin])
            f->begin++;
        *c = f->begin < f->end ? (unsigned char)f->buf[f->begin] : -1;
        if (*c >= 0)
            return TR_OK;
        enum tr_status st = tr_textfile_more(f, &n);
        if (st != TR_OK || n == 0)
            return st;
    }
}

/* At least n bytes in the buffer, if the file has them. */
static enum tr_status fill(struct tr_textfile *f, size_t n)
{
    size_t n_more = 1;
    enum tr_status st = TR_OK;
    while (st == TR_OK && f->end - f->begin < n && n_more > 0)
        st = tr_textfile_more(f, &n_more);
    return st;
}

/* The object at the beginning of the buffer, all of it: *n bytes. Of one that is too long nothing is kept. */
static enum tr_status take_object(struct tr_table *t, size_t *n, bool *is_long)
{
    struct tr_textfile *f = &t->file;
    struct brackets s = { 0 };
    size_t at = 0, n_more;
    for (*is_long = false;;) {
        for (; f->begin + at < f->end; at++) {
            pass_byte(&s, f->buf[f->begin + at]);
            if (s.depth == 0) {
                *n = at + 1;
                return TR_OK;
            }
        }
        if (at > f->max_line) {
            *is_long = true;
            f->begin = f->end = at = 0;
        }
        TR_PASS(tr_textfile_more(f, &n_more));
        if (n_more == 0)
            return tr_table_fail(t, TR_USAGE, "the file ends inside this record: it was truncated");
    }
}

/* Where the elements of "data" begin, in the object at the beginning of the buffer: *at is the byte after the bracket.
 * 0: the object has no such member, or is complete without one. */
static enum tr_status find_data(struct tr_table *t, size_t *at)
{
    struct tr_textfile *f = &t->file;
    struct brackets s = { 0 };
    size_t i = 0, key = 0;
    bool is_data = false;
    for (*at = 0; i <= f->max_line; i++) {
        TR_PASS(fill(f, i + 1));
        if (f->begin + i >= f->end)
            break;
        const char *p = f->buf + f->begin;
        bool was_string = s.in_string;
        pass_byte(&s, p[i]);
        if (s.depth == 0)
            break;
        if (!was_string && s.in_string)
            key = i;
        else if (p[i] == ':' && !s.in_string && s.depth == 1)
            is_data = i - key >= 6 && memcmp(p + key, "\"data\"", 6) == 0;
        else if (p[i] == ',' && !s.in_string && s.depth == 1)
            is_data = false;
        else if (p[i] == '[' && !s.in_string && s.depth == 2 && is_data) {
            *at = i + 1;
            break;
        }
    }
    return TR_OK;
}

static enum tr_status open_json(struct tr_table *t)
{
    struct tr_textfile *f = &t->file;
    size_t at = 0;
    int c;
    struct json *j = t->state = calloc(1, sizeof *j);
    if (!j)
        return tr_fail(TR_NOMEM, "no memory for a reader of %s", t->path);
    TR_PASS(fill(f, 3));
    if (f->end - f->begin >= 3 && memcmp(f->buf + f->begin, bom, 3) == 0)
        f->begin += 3;
    TR_PASS(skip_space(f, &c));
    if (c >= 0 && c != '[' && c != '{')
        return tr_fail(TR_USAGE,
                       "%s: the file begins with neither [ nor {; give an array of records, or records one after "
                       "another",
                       t->path);
    if (c == '{')
        TR_PASS(find_data(t, &at));
    j->is_wrapped = at > 0;
    j->is_array = at > 0 || c == '[';
    f->begin += at > 0 ? at : c == '[';
    return TR_OK;
}

/* Passes over what is in front of a record of an array: a comma. *is_end: the array ends. */
static enum tr_status next_element(struct tr_table *t, bool *is_end)
{
    const struct json *j = t->state;
    struct tr_textfile *f = &t->file;
    int c;
    TR_PASS(skip_space(f, &c));
    *is_end = c == ']';
    if (*is_end) {
        f->begin++;
        TR_PASS(j->is_wrapped ? TR_OK : skip_space(f, &c));
        if (!j->is_wrapped && c >= 0)
            return tr_table_fail(t, TR_USAGE, "something follows the end of the array; make one array of the file");
        return TR_OK;
    }
    if (t->n_rows > 0 && c == ',') {
        f->begin++;
        TR_PASS(skip_space(f, &c));
    } else if (t->n_rows > 0 && c >= 0) {
        return tr_table_fail(t, TR_USAGE, "there is no comma in front of this element of the array");
    }
    if (c < 0)
        return tr_table_fail(t, TR_USAGE, "the file ends inside the array: it was truncated");
    return c != '{' ? tr_table_fail(t, TR_USAGE, "this element of the array is not an object") : TR_OK;
}

static enum tr_status next_json(struct tr_table *t, struct tr_row *row)
{
    struct json *j = t->state;
    struct tr_textfile *f = &t->file;
    bool is_long;
    int c = 0;
    if (j->is_done)
        return TR_OK;
    if (j->is_array) {
        TR_PASS(next_element(t, &j->is_done));
    } else {
        TR_PASS(skip_space(f, &c));
        j->is_done = c < 0;
        if (c >= 0 && c != '{')
            return tr_table_fail(t, TR_USAGE, "a record does not begin with {");
    }
    if (j->is_done)
        return TR_OK;
    TR_PASS(take_object(t, &row->n, &is_long));
    row->text = f->buf + f->begin;
    f->begin += row->n;
    row->number = ++t->n_rows;
    if (is_long || row->n > f->max_line)
        *row = (struct tr_row){ "", 0, t->n_rows, "the record is longer than 16 MiB" };
    return TR_OK;
}

static void close_json(struct tr_table *t)
{
    free(t->state);
}

const struct tr_table_hooks tr_json_hooks = {
    .name = "json", .is_text = true, .open = open_json, .next = next_json, .close = close_json
};
