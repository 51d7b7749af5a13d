/* cases_print.c - predicted beside published: every row, then the errors of each source and of all. */
#include "plan/cases.h"
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

/* The smallest error that nine of ten rows do not pass. Sorts. */
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
            tr_str_addf(out, "%-52s %12.6g %12.6g %8.2f %%\n", c->field[TR_CASE_id], c->published, c->predicted,
                        tr_case_error(c));
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
        tr_str_addf(out, ", \"predicted\": %.6g, \"error_pct\": %.4g, \"implementation\": \"%s\"}\n", c->predicted,
                    tr_case_error(c), c->impl.name);
    }
}

static void total_of(const struct tr_cases *c, struct sum *s, const char *name, const char *source, int wanted)
{
    *s = (struct sum){ .name = name, .error = s->error };
    for (size_t i = 0; i < c->n; i++) {
        bool is_fast = tr_case_is_throughput(&c->row[i]);
        if ((wanted == 0 || (wanted == 1) == is_fast) &&
            (!source || strcmp(source, c->row[i].field[TR_CASE_source]) == 0))
            add(s, &c->row[i]);
    }
}

static bool is_first_of_source(const struct tr_cases *c, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(c->row[k].field[TR_CASE_source], c->row[i].field[TR_CASE_source]) == 0)
            return false;
    return true;
}

void tr_cases_print(const struct tr_cases *c, bool as_json, struct tr_str *out)
{
    struct sum s = { .error = calloc(c->n + 1, sizeof *s.error) };
    const char *sep = "";
    if (!s.error)
        return;
    for (size_t i = 0; i < c->n; i++)
        print_row(&c->row[i], as_json, out);
    total_of(c, &s, "all", NULL, 0);
    tr_str_addf(out, as_json ? "{" : "\n rows  pred.   mean %%    p90 %%  worst %%\n");
    print_sum(&s, as_json, out);
    static const char *const kinds[] = { "throughput", "memory" };
    for (int k = 1; k <= 2; k++) {
        total_of(c, &s, kinds[k - 1], NULL, k);
        if (as_json)
            tr_str_addf(out, ", \"%s\": {", kinds[k - 1]);
        print_sum(&s, as_json, out);
        tr_str_addf(out, as_json ? "}" : "");
    }
    tr_str_addf(out, as_json ? ", \"sources\": {" : "");
    for (size_t i = 0; i < c->n; i++) {
        if (!is_first_of_source(c, i))
            continue;
        total_of(c, &s, c->row[i].field[TR_CASE_source], c->row[i].field[TR_CASE_source], 0);
        if (as_json) {
            tr_str_addf(out, "%s", sep);
            tr_str_json(out, s.name);
            tr_str_addf(out, ": {");
        }
        print_sum(&s, as_json, out);
        tr_str_addf(out, as_json ? "}" : "");
        sep = ", ";
    }
    tr_str_addf(out, as_json ? "}}\n" : "");
    free(s.error);
}
