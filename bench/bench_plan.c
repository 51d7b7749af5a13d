/* bench_plan.c - fits the tables of src/plan (chips, clusters, trainers) to published results, one number after the
 * other, and says what they are worth on sources that were not fitted.
 *
 *   bench_plan CASES.csv            fit on all, print the numbers that changed
 *   bench_plan CASES.csv --hold-out fit on every other source, print the errors of the rest
 *   TR_PASSES=2                     fewer passes than 12
 *
 * No number belongs to a row. A number moves only when all its rows together get better, and a small price holds it
 * where it was; errors above 50 % count as 50 %, so that no outlier bends a table.
 */
#include "plan/cases.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum owner { IMPL, CHIP, CLUSTER };
struct knob {
    enum owner owner;
    const char *name; /* of the row */
    const char *field;
    size_t at;
    double lo, hi, first, value;
    bool is_share; /* moves by steps, not by factors */
};

enum { MAX_KNOBS = 400 };
static struct knob knobs[MAX_KNOBS];
static size_t n_knobs;

static double *place(struct tr_case *c, const struct knob *k)
{
    char *base = k->owner == IMPL ? (char *)&c->impl : (char *)&c->machine;
    return (double *)(void *)(base + k->at);
}

static bool is_of(const struct tr_case *c, const struct knob *k)
{
    const char *at = strchr(c->machine.name, '@');
    switch (k->owner) {
    case IMPL:
        return strcmp(c->impl.name, k->name) == 0;
    case CHIP: /* a power limit is the cluster's */
        return strcmp(c->machine.chip.name, k->name) == 0 && (!at || strcmp(at + 1, "node") != 0);
    default:
        return at && strcmp(at + 1, k->name) == 0;
    }
}

static void add_knob(enum owner owner, const char *name, const char *field, size_t at, double lo, double hi,
                     bool is_share, struct tr_cases *cs)
{
    struct knob k = { owner, name, field, at, lo, hi, 0, 0, is_share };
    for (size_t i = 0; i < cs->n && n_knobs < MAX_KNOBS; i++)
        if (cs->row[i].has_ask && is_of(&cs->row[i], &k)) {
            k.first = k.value = *place(&cs->row[i], &k);
            knobs[n_knobs++] = k;
            return;
        }
}

static bool is_known(const char *name, enum owner owner, const char *field)
{
    for (size_t i = 0; i < n_knobs; i++)
        if (knobs[i].owner == owner && strcmp(knobs[i].name, name) == 0 && strcmp(knobs[i].field, field) == 0)
            return true;
    return false;
}

static void find_knobs(struct tr_cases *cs)
{
    static const struct {
        const char *field;
        size_t at;
        double lo, hi;
        bool is_share;
    } impl[] = {
        { "fusion", offsetof(struct tr_impl, fusion), 0.9, 3, false },
        { "product", offsetof(struct tr_impl, product), 0.5, 1, false },
        { "core", offsetof(struct tr_impl, core), 0.5, 1.3, false },
        { "tp_hidden", offsetof(struct tr_impl, tp_hidden), 0, 0.9, true },
        { "tp_hidden_bwd", offsetof(struct tr_impl, tp_hidden_bwd), 0, 0.9, true },
        { "cp_hidden", offsetof(struct tr_impl, cp_hidden), 0, 0.9, true },
        { "ep_hidden", offsetof(struct tr_impl, ep_hidden), 0, 0.9, true },
        { "pp_hidden", offsetof(struct tr_impl, pp_hidden), 0, 0.9, true },
        { "dp_hidden", offsetof(struct tr_impl, dp_hidden), 0, 1, true },
        { "dp_share", offsetof(struct tr_impl, dp_share), 0.05, 1, false },
        { "fixed_s", offsetof(struct tr_impl, fixed_s), 0.001, 3, false },
        { "kernel_s", offsetof(struct tr_impl, kernel_s), 0, 10e-6, true },
        { "cast_bytes", offsetof(struct tr_impl, cast_bytes), 2, 8, false },
        { "cp_core", offsetof(struct tr_impl, cp_core), 1, 2, false },
        { "permute", offsetof(struct tr_impl, permute), 2, 20, false },
    };
    for (size_t i = 0; i < tr_n_impls; i++)
        for (size_t k = 0; k < TR_COUNT_OF(impl); k++)
            add_knob(IMPL, tr_impls[i].name, impl[k].field, impl[k].at, impl[k].lo, impl[k].hi, impl[k].is_share, cs);
    for (size_t i = 0; i < cs->n; i++) {
        const struct tr_machine *m = &cs->row[i].machine;
        const char *at = cs->row[i].has_ask ? strchr(m->name, '@') : NULL;
        if (at && !is_known(m->chip.name, CHIP, "gemm"))
            add_knob(CHIP, m->chip.name, "gemm", offsetof(struct tr_machine, chip.gemm_share), 0.4, 0.88, false, cs);
        if (at && !is_known(at + 1, CLUSTER, "slow_share"))
            add_knob(CLUSTER, at + 1, "slow_share", offsetof(struct tr_machine, slow.share), 0.3, 0.95, false, cs);
    }
}

static unsigned source_side(const char *source)
{
    unsigned h = 2166136261u;
    for (; *source; source++)
        h = (h ^ (unsigned char)*source) * 16777619u;
    return (h >> 16) & 1;
}

static bool counts(const struct tr_case *c, int side)
{
    return c->has_ask && tr_case_is_throughput(c) && (side < 0 || (int)source_side(c->field[TR_CASE_source]) == side);
}

static double row_loss(struct tr_case *c)
{
    char *reason = c->reason;
    reason[0] = '\0';
    tr_case_predict(c);
    if (reason[0] || c->predicted <= 0)
        return 0.5;
    double e = fabs(log(c->predicted / c->published));
    return e < 0.5 ? e : 0.5;
}

/* Rows whose source refined the number keep their own. */
static double knob_loss(struct tr_cases *cs, const struct knob *k, double value, int side)
{
    double sum = 0;
    for (size_t i = 0; i < cs->n; i++) {
        struct tr_case *c = &cs->row[i];
        if (!counts(c, side) || !is_of(c, k))
            continue;
        double *p = place(c, k), old = *p;
        if (old == k->value)
            *p = value;
        sum += row_loss(c);
        *p = old;
    }
    double price = k->is_share ? fabs(value - k->first) : k->first > 0 ? fabs(log(value / k->first)) : 0;
    return sum + 0.05 * price;
}

static void set_knob(struct tr_cases *cs, struct knob *k, double value)
{
    for (size_t i = 0; i < cs->n; i++)
        if (cs->row[i].has_ask && is_of(&cs->row[i], k) && *place(&cs->row[i], k) == k->value)
            *place(&cs->row[i], k) = value;
    k->value = value;
}

static bool improve(struct tr_cases *cs, struct knob *k, int side)
{
    static const double factors[] = { 0.7, 0.85, 0.93, 0.97, 0.99, 1.01, 1.03, 1.07, 1.18, 1.4 };
    static const double steps[] = { -0.3, -0.15, -0.05, -0.02, 0.02, 0.05, 0.15, 0.3 };
    double best = knob_loss(cs, k, k->value, side) - 1e-3, at = k->value, unit = k->hi < 1e-3 ? k->hi : 1;
    size_t n = k->is_share ? TR_COUNT_OF(steps) : TR_COUNT_OF(factors);
    for (size_t i = 0; i < n; i++) {
        double v = k->is_share ? k->value + steps[i] * unit : k->value * factors[i];
        v = v < k->lo ? k->lo : v > k->hi ? k->hi : v;
        double loss = knob_loss(cs, k, v, side);
        if (loss < best) {
            best = loss;
            at = v;
        }
    }
    if (at == k->value)
        return false;
    set_knob(cs, k, at);
    return true;
}

static double mean_error(struct tr_cases *cs, int side, int *n)
{
    double sum = 0;
    *n = 0;
    for (size_t i = 0; i < cs->n; i++)
        if (counts(&cs->row[i], side)) {
            (void)row_loss(&cs->row[i]);
            sum += cs->row[i].reason[0] ? 100 : tr_case_error(&cs->row[i]);
            ++*n;
        }
    return *n ? sum / *n : 0;
}

int main(int argc, char **argv)
{
    struct tr_cases cs;
    bool holds_out = argc > 2 && strcmp(argv[2], "--hold-out") == 0;
    int side = holds_out ? 0 : -1, n = 0;
    const char *passes = getenv("TR_PASSES");
    int64_t n_passes = 12;
    if (argc < 2 || tr_cases_read(argv[1], &cs) != TR_OK) {
        fprintf(stderr, "bench_plan CASES.csv [--hold-out]: %s\n", argc < 2 ? "no file" : tr_error_text());
        return 2;
    }
    for (size_t i = 0; i < cs.n; i++)
        tr_case_resolve(&cs.row[i]);
    find_knobs(&cs);
    double before = mean_error(&cs, side, &n);
    printf("%zu numbers, %d rows, mean error %.2f %%\n", n_knobs, n, before);
    if (passes && tr_parse_int(passes, 1, 100, &n_passes) != TR_OK)
        return 2;
    for (int pass = 0; pass < n_passes; pass++) {
        int moved = 0;
        for (size_t i = 0; i < n_knobs; i++)
            moved += improve(&cs, &knobs[i], side);
        printf("pass %d: %d moved, mean error %.2f %%\n", pass, moved, mean_error(&cs, side, &n));
        fflush(stdout);
        if (moved == 0)
            break;
    }
    for (size_t i = 0; i < n_knobs; i++)
        if (knobs[i].value != knobs[i].first)
            printf("%-10s %-20s %-14s %8.4g -> %8.4g\n",
                   (const char *[]){ "trainer", "chip", "cluster" }[knobs[i].owner], knobs[i].name, knobs[i].field,
                   knobs[i].first, knobs[i].value);
    if (holds_out)
        printf("held out: %.2f %% over %d rows\n", mean_error(&cs, 1, &n), n);
    tr_cases_release(&cs);
    return 0;
}
