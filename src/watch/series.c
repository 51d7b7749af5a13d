/* series.c - columns of a run's steps (series.h). A million steps are 52 MB (a column that no event has is
 * none), and a curve of all of them is one pass. */
#include "watch/watch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static const char *const names[] = {
#define X(id, name) #name,
    TR_SERIES_LIST(X)
#undef X
};

const char *tr_series_name(enum tr_series_column c)
{
    return names[c];
}

void tr_series_release(struct tr_series *s)
{
    free(s->step);
    free(s->time);
    for (int c = 0; c < TR_SERIES_COLUMNS; c++)
        free(s->column[c]);
    *s = (struct tr_series){ 0 };
}

void tr_series_clear(struct tr_series *s)
{
    s->n = 0;
}

/* The array with room for n elements, or the old one and *is_short. */
static void *grown(void *p, size_t n, size_t bytes, bool *is_short)
{
    void *more = realloc(p, n * bytes);
    *is_short |= more == NULL;
    return more ? more : p;
}

static enum tr_status make_room(struct tr_series *s)
{
    size_t cap = s->cap ? 2 * s->cap : 1024;
    bool is_short = false;
    if (s->n < s->cap)
        return TR_OK;
    s->step = grown(s->step, cap, sizeof *s->step, &is_short);
    s->time = grown(s->time, cap, sizeof *s->time, &is_short);
    for (int c = 0; c < TR_SERIES_COLUMNS; c++)
        if (s->column[c])
            s->column[c] = grown(s->column[c], cap, sizeof *s->column[c], &is_short);
    if (is_short)
        return tr_fail(TR_NOMEM, "no memory for %zu steps", cap);
    s->cap = cap;
    return TR_OK;
}

/* The first row whose step is at least `step`. */
static size_t row_at(const struct tr_series *s, int64_t step)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->step[mid] < step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Puts x into the row that is added, n. */
static enum tr_status put(struct tr_series *s, enum tr_series_column c, double x)
{
    if (!s->column[c] && isfinite(x)) {
        TR_PASS(TR_ALLOC(s->column[c], s->cap, "a column of steps"));
        for (size_t i = 0; i < s->n; i++)
            s->column[c][i] = NAN;
    }
    if (s->column[c])
        s->column[c][s->n] = (float)x;
    return TR_OK;
}

double tr_series_at(const struct tr_series *s, enum tr_series_column c, size_t row)
{
    return s->column[c] ? (double)s->column[c][row] : (double)NAN;
}

enum tr_status tr_series_add(struct tr_series *s, const struct tr_event *e)
{
    if (s->n > 0 && e->step <= s->step[s->n - 1])
        s->n = row_at(s, e->step);
    if (s->n >= TR_SERIES_MAX_ROWS)
        return TR_OK;
    TR_PASS(make_room(s));
    s->step[s->n] = e->step;
    s->time[s->n] = e->time;
#define X(id, name) TR_PASS(put(s, TR_SERIES_##id, e->name));
    TR_SERIES_LIST(X)
#undef X
    s->n++;
    return TR_OK;
}

struct tr_series_part tr_series_between(const struct tr_series *s, int64_t from, int64_t to)
{
    size_t first = row_at(s, from), end = to == INT64_MAX ? s->n : row_at(s, to + 1);
    return (struct tr_series_part){ first, end > first ? end : first };
}

struct tr_series_span tr_series_span(const struct tr_series *s, enum tr_series_column c, size_t first, size_t end)
{
    const float *x = s->column[c];
    double sum = 0;
    float min = INFINITY, max = -INFINITY;
    size_t n = 0;
    for (size_t i = first; x && i < end; i++) {
        if (!isfinite(x[i]))
            continue;
        sum += (double)x[i];
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
        n++;
    }
    if (n == 0)
        return (struct tr_series_span){ (double)NAN, (double)NAN, (double)NAN };
    return (struct tr_series_span){ (double)min, (double)max, sum / (double)n };
}

static void add_number(struct tr_str *out, double x, bool is_first)
{
    if (isfinite(x))
        tr_str_addf(out, "%s%.7g", is_first ? "" : ",", x);
    else
        tr_str_addf(out, "%snull", is_first ? "" : ",");
}

struct curve_points {
    size_t first, end, n; /* rows, and points of them */
};

static size_t row_of(const struct curve_points *p, size_t i)
{
    return p->first + (p->end - p->first) * i / p->n;
}

static void add_list(const char *key, const struct tr_series_span *span, size_t n, size_t at, struct tr_str *out)
{
    tr_str_addf(out, "%s\"%s\":[", at ? "," : "", key);
    for (size_t i = 0; i < n; i++)
        add_number(out, at == 0 ? span[i].mean : at == 1 ? span[i].min : span[i].max, i == 0);
    tr_str_addf(out, "]");
}

static void add_column(const struct tr_series *s, enum tr_series_column c, const struct curve_points *p,
                       struct tr_series_span *span, struct tr_str *out)
{
    bool has_value = false, is_many = p->end - p->first > p->n;
    for (size_t i = 0; i < p->n; i++) {
        span[i] = tr_series_span(s, c, row_of(p, i), row_of(p, i + 1));
        has_value |= isfinite(span[i].mean);
    }
    if (!has_value)
        return;
    tr_str_addf(out, ",\"%s\":{", names[c]);
    add_list("mean", span, p->n, 0, out);
    if (is_many) {
        add_list("min", span, p->n, 1, out);
        add_list("max", span, p->n, 2, out);
    }
    tr_str_addf(out, "}");
}

void tr_series_json(const struct tr_series *s, int64_t from, int64_t to, size_t n_points, struct tr_str *out)
{
    static_assert(TR_COUNT_OF(names) == TR_SERIES_COLUMNS, "one name a column");
    struct tr_series_span span[TR_SERIES_MAX_POINTS];
    struct tr_series_part part = tr_series_between(s, from, to);
    struct curve_points p = { part.first, part.end, part.end - part.first };
    p.n = p.n < n_points ? p.n : n_points;
    p.n = p.n < TR_SERIES_MAX_POINTS ? p.n : TR_SERIES_MAX_POINTS;
    tr_str_addf(out, "\"rows\":%zu,\"first\":%" PRId64 ",\"last\":%" PRId64 ",\"step\":[", s->n, s->n ? s->step[0] : 0,
                s->n ? s->step[s->n - 1] : 0);
    for (size_t i = 0; i < p.n; i++)
        tr_str_addf(out, "%s%" PRId64, i ? "," : "", s->step[(row_of(&p, i) + row_of(&p, i + 1) - 1) / 2]);
    tr_str_addf(out, "]");
    for (int c = 0; c < TR_SERIES_COLUMNS && p.n > 0; c++)
        add_column(s, (enum tr_series_column)c, &p, span, out);
}
