/* cases_print.c - predicted beside published: every row, then the errors of each source and of all. */
#include "forecast/cases.h"
#include <stdlib.h>

struct sum {
    const char *name;
    int rows, predicted;
    double *error;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(struct sum *s, const struct tr_case *c)
{
    s->rows++;
    if (!c->reason[0])
        s->error[s->predicted++] = tr_case_error(c);
}

static double mean(const struct sum *s)
{
    double x = 0;
    for (int i = 0; i < s->predicted; i++)
        x += s->error[i];
    return s->predicted ? x / s->predicted : 0;
}

/* The smallest error that nine of ten rows do not exceed. Sorts the errors. */
static double p90(struct sum *s)
{
    qsort(s->error, (size_t)s->predicted, sizeof *s->error, by_size);
    return s->predicted ? s->error[(9 * s->predicted + 9) / 10 - 1] : 0;
}

static void print_sum(struct sum *s, bool as_json, struct tr_str *out)
{
    double m = mean(s), high = p90(s), worst = s->predicted ? s->error[s->predicted - 1] : 0;
    if (as_json)
        tr_str_addf(out,
                    "\"rows\": %d, \"predicted\": %d, \"mean_abs_error_pct\": %.4g, \"p90_abs_error_pct\": %.4g, "
                    "\"worst_abs_error_pct\": %.4g",
                    s->rows, s->predicted, m, high, worst);
    else
        tr_str_addf(out, "%5d %5d %8.2f %8.2f %8.2f  %s\n", s->rows, s->predicted, m, high, worst, s->name);
}

static void print_row(const struct tr_case *c, bool as_json, struct tr_str *out)
{
    if (!as_json) {
        if (c->reason[0])
            tr_str_addf(out, "%-52s %12.6g            -         -  %s\n", c->field[TR_CASE_id], c->published,
                        c->reason);
        else
            tr_str_addf(out, "%-52s %12.6g %12.6g %8.2f %%%s%s\n", c->field[TR_CASE_id], c->published, c->predicted,
                        tr_case_error(c), c->note[0] ? "  taken: " : "", c->note);
        return;
    }
    tr_str_addf(out, "{\"id\": ");
    tr_str_json(out, c->field[TR_CASE_id]);
    tr_str_addf(out, ", \"metric\": ");
    tr_str_json(out, c->field[TR_CASE_metric]);
    tr_str_addf(out, ", \"published\": %.17g", c->published);
    if (c->reason[0]) {
        tr_str_addf(out, ", \"predicted\": null, \"reason\": ");
        tr_str_json(out, c->reason);
        tr_str_addf(out, "}\n");
    } else {
        tr_str_addf(out, ", \"predicted\": %.6g, \"error_pct\": %.4g, \"implementation\": \"%s\"", c->predicted,
                    tr_case_error(c), c->trainer->name);
        if (c->note[0]) {
            tr_str_addf(out, ", \"taken\": ");
            tr_str_json(out, c->note);
        }
        tr_str_addf(out, "}\n");
    }
}

/* wanted 0: all rows; 1: those of throughput; 2: the others. */
static void total_of(const struct tr_cases *c, struct sum *s, const char *name, int wanted)
{
    *s = (struct sum){ .name = name, .error = s->error };
    for (size_t i = 0; i < c->n; i++)
        if (wanted == 0 || (wanted == 1) == tr_case_is_throughput(&c->row[i]))
            add(s, &c->row[i]);
}

/* ---- by source, in the order of their first rows ---- */

static int by_source(const void *a, const void *b)
{
    const struct tr_case *x = *(const struct tr_case *const *)a, *y = *(const struct tr_case *const *)b;
    int d = strcmp(x->field[TR_CASE_source], y->field[TR_CASE_source]);
    return d ? d : (x > y) - (x < y);
}

static void print_source(struct tr_case *const *row, size_t n, struct sum *s, const char *sep, bool as_json,
                         struct tr_str *out)
{
    *s = (struct sum){ .name = row[0]->field[TR_CASE_source], .error = s->error };
    for (size_t i = 0; i < n; i++)
        add(s, row[i]);
    if (as_json) {
        tr_str_addf(out, "%s", sep);
        tr_str_json(out, s->name);
        tr_str_addf(out, ": {");
    }
    print_sum(s, as_json, out);
    tr_str_addf(out, as_json ? "}" : "");
}

/* sorted: room for c->n rows; start: for each row, where its source begins among them, of all but the first rows n. */
static void print_sources(const struct tr_cases *c, struct tr_case **sorted, size_t *start, struct sum *s, bool as_json,
                          struct tr_str *out)
{
    const char *sep = "";
    for (size_t i = 0; i < c->n; i++) {
        sorted[i] = &c->row[i];
        start[i] = c->n;
    }
    qsort(sorted, c->n, sizeof *sorted, by_source);
    for (size_t i = 0; i < c->n; i++)
        if (i == 0 || strcmp(sorted[i - 1]->field[TR_CASE_source], sorted[i]->field[TR_CASE_source]) != 0)
            start[sorted[i] - c->row] = i;
    for (size_t i = 0; i < c->n; i++) {
        size_t from = start[i], to = from;
        if (from == c->n)
            continue;
        while (to < c->n && strcmp(sorted[to]->field[TR_CASE_source], sorted[from]->field[TR_CASE_source]) == 0)
            to++;
        print_source(sorted + from, to - from, s, sep, as_json, out);
        sep = ", ";
    }
}

void tr_cases_print(const struct tr_cases *c, bool as_json, struct tr_str *out)
{
    static const char *const kinds[] = { "throughput", "memory" };
    struct sum s = { .error = calloc(c->n + 1, sizeof *s.error) };
    struct tr_case **sorted = calloc(c->n + 1, sizeof *sorted);
    size_t *start = calloc(c->n + 1, sizeof *start);
    if (!s.error || !sorted || !start)
        goto done;
    for (size_t i = 0; i < c->n; i++)
        print_row(&c->row[i], as_json, out);
    total_of(c, &s, "all", 0);
    tr_str_addf(out, as_json ? "{" : "\n rows  pred.   mean %%    p90 %%  worst %%\n");
    print_sum(&s, as_json, out);
    for (int k = 1; k <= 2; k++) {
        total_of(c, &s, kinds[k - 1], k);
        if (as_json)
            tr_str_addf(out, ", \"%s\": {", kinds[k - 1]);
        print_sum(&s, as_json, out);
        tr_str_addf(out, as_json ? "}" : "");
    }
    tr_str_addf(out, as_json ? ", \"sources\": {" : "");
    print_sources(c, sorted, start, &s, as_json, out);
    tr_str_addf(out, as_json ? "}}\n" : "");
done:
    free(start);
    free(sorted);
    free(s.error);
}
