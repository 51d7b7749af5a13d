/* bench_plan.c - fits the numbers of trainers.c and of share/machines to published results, from priors, and says what
 * they are worth on results that were not fitted.
 *
 *   bench_plan CASES.csv             fit on all; print what belongs into the tables
 *   bench_plan CASES.csv --hold-out  five fits, each tested on the fifth of the sources that it has not seen; then a
 *                                    fit without each trainer, tested on that trainer with the usual numbers, and
 *                                    without each cluster, tested there with the usual share of its link
 *   bench_plan CASES.csv --show ID   where the forecast of one row spends its time
 *
 * A usual number is fitted to all rows. A trainer or a cluster gets one of its own only when that saves more than it
 * costs: PRICE_OWN summed error to have it at all, PRICE_FAR for each unit it is away from the usual one. Of
 * an error a fifth counts above 40 %, so that no outlier bends a table. No number belongs to a row.
 */
#include "forecast/cases.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PRICE_OWN     0.15 /* ten rows better by 1.5 %, or three by 5 % */
#define PRICE_FAR     0.3
#define PRICE_PRODUCT 2 /* a product of its own is dear: all trainers call the same libraries */
#define FAR_OFF       0.4
#define PRICE_USUAL   0.1
#define PRIOR_LINK    0.85 /* of a slow link */
#define PRIOR_LIMITED 0.65 /* of the peak, products of chips whose power is limited */
enum { ROUNDS = 3, PASSES = 16, MAX_KNOBS = 200, FOLDS = 5 };

enum touch { ALL, WITH_TP, WITH_DP, WITH_CP, WITH_PP, WITH_EP, WITH_CAST, WITH_CORE };
static const struct field {
    const char *name;
    size_t at;
    double prior, lo, hi;
    double unit; /* > 0: moves by steps of this; 0: by factors */
    bool may_be_own;
    enum touch touch;
} fields[] = {
#define AT(f) offsetof(struct tr_impl, f)
    { "dp_hidden", AT(dp_hidden), 0.8, 0, 1, 1, true, WITH_DP },
    { "tp_hidden", AT(tp_hidden), 0.3, 0, 0.95, 1, true, WITH_TP },
    { "kernel_s", AT(kernel_s), 3e-6, 0, 20e-6, 1e-5, true, ALL },
    { "fusion", AT(fusion), 1.4, 0.9, 3, 0, true, ALL },
    { "product", AT(product), 0.86, 0.75, 1, 0, true, ALL },
    { "cp_hidden", AT(cp_hidden), 0.5, 0, 0.95, 1, false, WITH_CP },
    { "ep_hidden", AT(ep_hidden), 0.3, 0, 0.95, 1, false, WITH_EP },
    { "pp_hidden", AT(pp_hidden), 0.5, 0, 0.95, 1, false, WITH_PP },
    { "dp_share", AT(dp_share), 0.8, 0.1, 1, 0, false, WITH_DP },
    { "fixed_s", AT(fixed_s), 0.03, 0.005, 0.5, 0, false, ALL },
    { "cast_bytes", AT(cast_bytes), 3, 2, 8, 0, false, WITH_CAST },
    { "cp_uneven", AT(cp_uneven), 0.3, 0, 1.2, 1, false, WITH_CP },
    { "core", AT(core), 1, 0.5, 1.2, 0, false, WITH_CORE },
    { "permute", AT(permute), 4, 1, 16, 0, false, WITH_EP },
};
enum { N_FIELDS = TR_COUNT_OF(fields), MAX_IMPLS = 32 };

struct knob { /* impl < 0: usual; cluster: a share of its slow link, or its power */
    int field, impl;
    const char *cluster;
    bool is_power;
    double delta; /* to the prior, or to the usual one: a difference in units, or a logarithm */
    double step;
};
static struct knob knobs[MAX_KNOBS];
static int n_knobs;

struct row {
    struct tr_case *c;
    int impl;
    const char *cluster;
    bool is_fixed[N_FIELDS]; /* the source states it, so it is not fitted */
    bool is_bound;           /* a schedule without a bubble */
    double link, power;      /* priors */
    int twin;                /* a row before it that asks the same question; -1: none */
    double ratio;            /* predicted over the twin's */
    double order;            /* predicted with the bubble of the schedule over without */
    double loss, next;       /* with the knobs as they are; in the current trial */
};
static struct row rows[20000];
static int n_rows;

static double *place(struct tr_case *c, const struct field *f)
{
    return (double *)(void *)((char *)&c->impl + f->at);
}

static double clamp(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static double moved(const struct field *f, double from, double delta)
{
    return clamp(f->unit > 0 ? from + delta * f->unit : from * exp(delta), f->lo, f->hi);
}

static const struct knob *find(int field, int impl)
{
    for (int i = 0; i < n_knobs; i++)
        if (!knobs[i].cluster && knobs[i].field == field && knobs[i].impl == impl)
            return &knobs[i];
    return NULL;
}

static double value_of(int field, int impl)
{
    const struct field *f = &fields[field];
    const struct knob *own = impl < 0 ? NULL : find(field, impl);
    double usual = moved(f, f->prior, find(field, -1)->delta);
    return own ? moved(f, usual, own->delta) : usual;
}

static void set_row(struct row *r)
{
    for (int k = 0; k < N_FIELDS; k++)
        if (!r->is_fixed[k])
            *place(r->c, &fields[k]) = value_of(k, r->impl);
    for (int i = 0; i < n_knobs; i++)
        if (knobs[i].cluster && strcmp(knobs[i].cluster, r->cluster) == 0) {
            if (knobs[i].is_power)
                r->c->machine.chip.gemm_share = clamp(r->power * exp(knobs[i].delta), 0.2, 0.95);
            else
                r->c->machine.slow.share = clamp(r->link * exp(knobs[i].delta), 0.1, 0.95);
        }
}

static bool predict(struct row *r, bool is_bound)
{
    struct tr_case *c = r->c;
    c->query.is_bound = is_bound || r->is_bound;
    c->reason[0] = '\0';
    tr_case_predict(c);
    return !c->reason[0] && c->predicted > 0;
}

/* Schedules are played once a pass; between plays the bubble is assumed to stay the same share of the step. */
static void play_orders(void)
{
    for (int i = 0; i < n_rows; i++) {
        struct row *r = &rows[i];
        r->order = 1;
        if (r->c->query.pp == 1 || r->twin >= 0)
            continue;
        set_row(r);
        double without = predict(r, true) ? r->c->predicted : 0;
        if (without > 0 && predict(r, false))
            r->order = r->c->predicted / without;
    }
}

/* Two metrics of the same run differ by a factor that no knob changes, so the second is not predicted again. */
static double row_loss(struct row *r)
{
    struct tr_case *c = r->c;
    if (r->twin >= 0) {
        c->predicted = r->ratio * rows[r->twin].c->predicted;
    } else {
        set_row(r);
        if (!predict(r, true))
            return 0.5;
        c->predicted *= r->order;
    }
    double e = fabs(log(c->predicted / c->published));
    return e < FAR_OFF ? e : FAR_OFF + 0.2 * (e - FAR_OFF);
}

static bool touches(const struct knob *k, const struct row *r)
{
    const struct tr_forecast_query *a = &r->c->query;
    if (k->cluster)
        return strcmp(k->cluster, r->cluster) == 0;
    if ((k->impl >= 0 && k->impl != r->impl) || r->is_fixed[k->field])
        return false;
    switch (fields[k->field].touch) {
    case WITH_TP:
        return a->tp > 1;
    case WITH_DP:
        return a->dp * a->cp > 1;
    case WITH_CP:
        return a->cp > 1;
    case WITH_PP:
        return a->pp > 1;
    case WITH_EP:
        return a->shape.experts > 0;
    case WITH_CAST:
        return a->precision > TR_PRECISION_16 || a->casts_rows;
    case WITH_CORE:
        return r->c->impl.attention != TR_ATTENTION_PLAIN;
    default:
        return true;
    }
}

/* ---- which rows are fitted ---- */

struct part { /* rows with `fold` of their source, of trainer `impl`, or on a cluster are left out; < 0, NULL: none */
    int fold, impl;
    const char *cluster;
};

static int fold_of(const char *source)
{
    unsigned h = 2166136261u;
    for (; *source; source++)
        h = (h ^ (unsigned char)*source) * 16777619u;
    return (int)((h >> 8) % FOLDS);
}

static bool is_out(const struct row *r, const struct part *p)
{
    return (p->fold >= 0 && fold_of(r->c->field[TR_CASE_source]) == p->fold) || (p->impl >= 0 && r->impl == p->impl) ||
           (p->cluster && strcmp(p->cluster, r->cluster) == 0);
}

static double price(const struct knob *k, double delta)
{
    if (k->impl < 0 && !k->cluster)
        return PRICE_USUAL * fabs(delta);
    bool is_product = !k->cluster && strcmp(fields[k->field].name, "product") == 0;
    return delta == 0 ? 0 : PRICE_OWN + (is_product ? PRICE_PRODUCT : PRICE_FAR) * fabs(delta);
}

static double trial(struct knob *k, double delta, const struct part *p, double limit)
{
    double sum = price(k, delta), was = k->delta;
    k->delta = delta;
    for (int i = 0; i < n_rows && sum < limit; i++)
        if (!is_out(&rows[i], p) && touches(k, &rows[i]))
            sum += rows[i].next = row_loss(&rows[i]);
    k->delta = was;
    return sum;
}

static double loss_now(const struct knob *k, const struct part *p)
{
    double sum = price(k, k->delta);
    for (int i = 0; i < n_rows; i++)
        if (!is_out(&rows[i], p) && touches(k, &rows[i]))
            sum += rows[i].loss;
    return sum;
}

static bool take(struct knob *k, double delta, const struct part *p, double *best)
{
    double loss = delta == k->delta ? *best : trial(k, delta, p, *best);
    if (loss >= *best - 1e-3)
        return false;
    *best = loss;
    k->delta = delta;
    for (int i = 0; i < n_rows; i++)
        if (!is_out(&rows[i], p) && touches(k, &rows[i]))
            rows[i].loss = rows[i].next;
    return true;
}

/* Tries one step to either side; a step that helps grows. Then tries to go back to the prior. */
static bool improve(struct knob *k, const struct part *p)
{
    double best = loss_now(k, p);
    bool has_moved = take(k, k->delta + k->step, p, &best) || take(k, k->delta - k->step, p, &best);
    k->step *= has_moved ? 1.5 : 0.5;
    if (k->delta != 0 && take(k, 0, p, &best)) {
        k->step = 0.4;
        has_moved = true;
    }
    return has_moved || k->step > 0.02;
}

/* Improves every knob until none moves, then starts again from there with large steps. */
static void fit(const struct part *p, bool is_told)
{
    for (int i = 0; i < n_knobs; i++)
        knobs[i].delta = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int n_moved = 1;
        for (int i = 0; i < n_knobs; i++)
            knobs[i].step = 0.4;
        for (int pass = 0; pass < PASSES && n_moved > 0; pass++) {
            n_moved = 0;
            play_orders();
            for (int i = 0; i < n_rows; i++)
                rows[i].loss = row_loss(&rows[i]);
            for (int i = 0; i < n_knobs; i++)
                if (knobs[i].step > 0.01)
                    n_moved += improve(&knobs[i], p);
        }
        if (is_told)
            fprintf(stderr, "round %d\n", round);
    }
}

/* ---- errors ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct errors {
    double *all;
    int n;
};

static void add_errors(const struct part *p, bool wants_out, struct errors *e)
{
    play_orders();
    for (int i = 0; i < n_rows; i++)
        if (is_out(&rows[i], p) == wants_out) {
            (void)row_loss(&rows[i]);
            e->all[e->n++] = rows[i].c->reason[0] ? 100 : tr_case_error(rows[i].c);
        }
}

static void print_errors(const char *what, struct errors *e)
{
    double sum = 0;
    qsort(e->all, (size_t)e->n, sizeof *e->all, by_size);
    for (int i = 0; i < e->n; i++)
        sum += e->all[i];
    if (e->n > 0)
        printf("%-34s %4d rows  mean %6.2f %%  median %6.2f %%  p90 %6.2f %%\n", what, e->n, sum / e->n,
               e->all[e->n / 2], e->all[(9 * e->n + 9) / 10 - 1]);
    fflush(stdout);
    e->n = 0;
}

/* ---- the table of knobs ---- */

static void add_knob(struct knob k)
{
    for (int i = 0; i < n_knobs; i++)
        if (knobs[i].field == k.field && knobs[i].impl == k.impl && knobs[i].is_power == k.is_power &&
            !knobs[i].cluster == !k.cluster && (!k.cluster || strcmp(knobs[i].cluster, k.cluster) == 0))
            return;
    if (n_knobs < MAX_KNOBS)
        knobs[n_knobs++] = k;
}

/* All columns but id, metric and value are equal. A time and a rate do not differ by a factor: both must be of one
 * kind. */
static bool is_same_question(const struct tr_case *a, const struct tr_case *b)
{
    bool is_time[2] = { strstr(a->field[TR_CASE_metric], "_s") != NULL && !strstr(a->field[TR_CASE_metric], "per_s"),
                        strstr(b->field[TR_CASE_metric], "_s") != NULL && !strstr(b->field[TR_CASE_metric], "per_s") };
    if (is_time[0] != is_time[1] || strncmp(a->field[TR_CASE_metric], "layer", 5) == 0 ||
        strncmp(b->field[TR_CASE_metric], "layer", 5) == 0 || strstr(a->field[TR_CASE_metric], "days") ||
        strstr(b->field[TR_CASE_metric], "days"))
        return false;
    for (int k = TR_CASE_source; k < TR_CASE_metric; k++)
        if (strcmp(a->field[k], b->field[k]) != 0)
            return false;
    return true;
}

static void find_knobs(struct tr_cases *cs)
{
    for (int f = 0; f < N_FIELDS; f++)
        add_knob((struct knob){ .field = f, .impl = -1 });
    for (size_t i = 0; i < cs->n; i++) {
        struct tr_case *c = &cs->row[i];
        struct row r = { .c = c, .impl = -1 };
        if (!c->has_ask || !tr_case_is_throughput(c) || n_rows == (int)TR_COUNT_OF(rows))
            continue;
        for (size_t k = 0; k < tr_n_trainers; k++)
            if (strcmp(tr_trainers[k].name, c->trainer->name) == 0)
                r.impl = (int)k;
        for (int f = 0; f < N_FIELDS; f++) {
            double table = *(const double *)(const void *)((const char *)tr_trainers[r.impl].impl + fields[f].at);
            r.is_fixed[f] = *place(c, &fields[f]) != table;
            if (fields[f].may_be_own && strcmp(c->trainer->name, "usual") != 0)
                add_knob((struct knob){ .field = f, .impl = r.impl });
        }
        r.cluster = strchr(c->machine.name, '@');
        r.cluster = r.cluster ? r.cluster + 1 : "";
        r.link = PRIOR_LINK;
        r.power = PRIOR_LIMITED;
        bool has_power = strcmp(r.cluster, "node") == 0 || strcmp(r.cluster, "grandteton") == 0;
        add_knob((struct knob){ .field = -1, .impl = -1, .cluster = r.cluster, .is_power = has_power });
        tr_case_predict(c);
        if (c->reason[0] || c->predicted <= 0)
            continue;
        r.twin = n_rows - 1;
        while (r.twin >= 0 && (rows[r.twin].twin >= 0 || !is_same_question(rows[r.twin].c, c)))
            r.twin--;
        r.ratio = r.twin >= 0 ? c->predicted / rows[r.twin].c->predicted : 0;
        r.is_bound = c->query.is_bound;
        rows[n_rows++] = r;
    }
}

static void print_tables(void)
{
    int n_own = 0, n_clusters = 0;
    for (int f = 0; f < N_FIELDS; f++)
        printf("usual      %-18s %-11s %.4g\n", "", fields[f].name, value_of(f, -1));
    for (int i = 0; i < n_knobs; i++) {
        const struct knob *k = &knobs[i];
        if (k->delta == 0 || (k->impl < 0 && !k->cluster))
            continue;
        n_own += !k->cluster;
        n_clusters += k->cluster != NULL;
        if (k->cluster)
            printf("cluster    %-18s %-11s x %.4g\n", k->cluster, k->is_power ? "power" : "slow share", exp(k->delta));
        else
            printf("trainer    %-18s %-11s %.4g\n", tr_trainers[k->impl].name, fields[k->field].name,
                   value_of(k->field, k->impl));
    }
    printf("%d usual numbers, %d of trainers, %d of clusters\n", N_FIELDS, n_own, n_clusters);
}

/* The errors of sources for which a bound was promised, and every row that is more than 20 % off. */
static void print_misses(void)
{
    static const char *const promised[] = { "Korthikanti 2022 Table 5", "Narayanan 2021 (SC21) Table 1" };
    for (size_t k = 0; k < TR_COUNT_OF(promised); k++) {
        double sum = 0, worst = 0, n = 0;
        for (int i = 0; i < n_rows; i++)
            if (strcmp(rows[i].c->field[TR_CASE_source], promised[k]) == 0) {
                double e = 100 * fabs(rows[i].c->predicted / rows[i].c->published - 1);
                sum += e;
                worst = fmax(worst, e);
                n++;
            }
        printf("%-34s mean %.2f %% worst %.2f %%\n", promised[k], sum / n, worst);
    }
    for (int i = 0; i < n_rows; i++) {
        const struct tr_case *c = rows[i].c;
        double e = 100 * (c->predicted / c->published - 1);
        if (fabs(e) > 20)
            printf("miss %+7.1f %%  %-50s %s\n", e, c->field[TR_CASE_id], c->trainer->name);
    }
}

static void hold_out_part(const struct part *p, const char *name, struct errors *e, struct errors *all)
{
    fit(p, false);
    add_errors(p, true, e);
    for (int i = 0; i < e->n; i++)
        all->all[all->n++] = e->all[i];
    if (e->n > 0)
        print_errors(name, e);
}

static void hold_out(struct errors *e)
{
    static double seen[20000 * FOLDS], unseen[20000];
    struct errors in = { seen, 0 }, out = { unseen, 0 };
    for (int fold = 0; fold < FOLDS; fold++) {
        struct part p = { fold, -1, NULL };
        fit(&p, false);
        add_errors(&p, false, &in);
        add_errors(&p, true, &out);
    }
    print_errors("fitted (5 fits)", &in);
    print_errors("sources not seen", &out);
    for (size_t k = 0; k < tr_n_trainers; k++) {
        struct part p = { -1, (int)k, NULL };
        hold_out_part(&p, tr_trainers[k].name, e, &out);
    }
    print_errors("trainers not seen", &out);
    for (int k = 0; k < n_knobs; k++) { /* every cluster has one knob */
        struct part p = { -1, -1, knobs[k].cluster };
        if (p.cluster)
            hold_out_part(&p, p.cluster, e, &out);
    }
    print_errors("clusters not seen", &out);
}

static int show(const char *id)
{
    struct tr_forecast f;
    for (int i = 0; i < n_rows; i++) {
        struct tr_case *c = rows[i].c;
        if (strncmp(c->field[TR_CASE_id], id, strlen(id)) != 0)
            continue;
        c->reason[0] = '\0';
        tr_case_predict(c);
        if (tr_forecast(&c->query, &f) != TR_OK)
            return 1;
        printf("%s (%s): published %.5g, predicted %.5g; step %.4g s = kernels %.4g + bubble %.4g + optimizer %.4g + "
               "fixed %.3g",
               c->field[TR_CASE_id], c->trainer->name, c->published, c->predicted, f.step_s, f.compute_s, f.bubble_s,
               f.optimizer_s, f.fixed_s);
        for (int k = 0; k < TR_TIME_AXES; k++)
            printf(", %s %.4g of %.4g", tr_axis_cost_name((enum tr_axis_cost)k), f.exposed_s[k], f.comm_s[k]);
        printf("; again %.2f, %.0f micro-batches, %.1f GiB\n", f.again, f.n_micro, f.total_bytes / 1073741824.0);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static double all[20000];
    struct errors e = { all, 0 };
    const struct part none = { -1, -1, NULL };
    struct tr_cases cs;
    if (argc < 2 || tr_cases_read(argv[1], &cs) != TR_OK) {
        fprintf(stderr, "bench_plan CASES.csv [--hold-out | --show ID]: %s\n", argc < 2 ? "no file" : tr_error_text());
        return 2;
    }
    for (size_t i = 0; i < cs.n; i++)
        tr_case_resolve(&cs.row[i]);
    find_knobs(&cs);
    if (argc > 3 && strcmp(argv[2], "--show") == 0)
        return show(argv[3]);
    if (argc > 2 && strcmp(argv[2], "--hold-out") == 0) {
        hold_out(&e);
    } else {
        fit(&none, true);
        print_tables();
        add_errors(&none, false, &e);
        print_errors("fitted", &e);
        print_misses();
    }
    tr_cases_release(&cs);
    return 0;
}
