/* whatif.c - the cost of a token budget: days, dollars, and the days that failures and checkpoints add. */
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>

enum tr_status tr_tokens_parse(const char *text, double *out)
{
    static const char letters[] = "kKmMbBgGtTpP";
    static const double scale[] = { 1e3, 1e3, 1e6, 1e6, 1e9, 1e9, 1e9, 1e9, 1e12, 1e12, 1e15, 1e15 };
    char *end = NULL, shown[64];
    double x = strtod(text, &end);
    const char *at = *end ? strchr(letters, *end) : NULL;
    if (at && end[1] == '\0')
        x *= scale[at - letters];
    if (end == text || (*end && !(at && end[1] == '\0')) || !(x >= 1 && x <= 1e18))
        return tr_fail(TR_USAGE, "tokens \"%s\" is not a count from 1 to 1e18, like 15T or 300B",
                       tr_escape(text, shown, sizeof shown));
    *out = x;
    return TR_OK;
}

/* ---- failures ---- */

double tr_daly_interval(double cost, double between)
{
    double x = cost / (2 * between);
    if (cost <= 0)
        return 0;
    return x < 1 ? sqrt(2 * cost * between) * (1 + sqrt(x) / 3 + x / 9) - cost : between;
}

double tr_daly_share(double interval, double cost, double restart, double between)
{
    double lost = between * exp(restart / between) * expm1((interval + cost) / between);
    return lost > 0 && isfinite(lost) ? interval / lost : 0;
}

void tr_failures_of(const struct tr_search_result *x, const struct tr_budget *b, struct tr_failures *out)
{
    const struct tr_machine *m = x->query.machine;
    double hours = b->mttf_hours > 0 ? b->mttf_hours : m->mttf_hours > 0 ? m->mttf_hours : 50e3;
    double hosts = ceil(x->f.chips / (m->node > 0 ? m->node : 1));
    double bytes = x->f.parameters * (x->query.param_bytes + x->query.state_bytes);
    out->between_s = hours * 3600 / x->f.chips;
    out->checkpoint_s = m->disk_rate > 0 ? bytes / (m->disk_rate * hosts) : 0;
    out->interval_s = tr_daly_interval(out->checkpoint_s, out->between_s);
    out->share = out->interval_s > 0 ? tr_daly_share(out->interval_s, out->checkpoint_s, b->restart_s, out->between_s)
                                     : exp(-b->restart_s / out->between_s);
}

/* ---- a budget ---- */

struct bill {
    double days, dollars, real_days, real_dollars;
};

static double price_of(const struct tr_search_result *x, const struct tr_budget *b)
{
    return b->price > 0 ? b->price : x->query.machine->chip.price;
}

static struct bill bill_of(const struct tr_search_result *x, const struct tr_budget *b, const struct tr_failures *f)
{
    double seconds = b->tokens / x->f.tokens_per_s, dollars = seconds / 3600 * x->f.chips * price_of(x, b);
    return (struct bill){ seconds / 86400, dollars, seconds / 86400 / f->share, dollars / f->share };
}

/* Prints dollars like 950, 12.3 k, 4.56 M. */
static const char *money(double x, char *buf, size_t n)
{
    const char *unit = x >= 1e9 ? " G" : x >= 1e6 ? " M" : x >= 1e4 ? " k" : "";
    double by = x >= 1e9 ? 1e9 : x >= 1e6 ? 1e6 : x >= 1e4 ? 1e3 : 1;
    (void)tr_format(buf, n, "$%.*f%s", x / by >= 100 || by == 1 ? 0 : x / by >= 10 ? 1 : 2, x / by, unit);
    return buf;
}

static const char *span(double s, char *buf, size_t n)
{
    if (s >= 2 * 86400)
        (void)tr_format(buf, n, "%.1f days", s / 86400);
    else if (s >= 2 * 3600)
        (void)tr_format(buf, n, "%.1f h", s / 3600);
    else
        (void)tr_format(buf, n, s >= 120 ? "%.0f min" : "%.3g s", s >= 120 ? s / 60 : s);
    return buf;
}

void tr_budget_text(const struct tr_search_result *x, const struct tr_budget *b, struct tr_str *out)
{
    struct tr_failures f;
    char a[32], c[32], d[32];
    tr_failures_of(x, b, &f);
    tr_str_addf(out, "price: %s an hour for %.0f chips, %.3g dollars a million tokens\n",
                money(price_of(x, b) * x->f.chips, a, sizeof a), x->f.chips,
                price_of(x, b) * x->f.chips / 3600 / x->f.tokens_per_s * 1e6);
    tr_str_addf(out,
                "failures: one in %s; a checkpoint takes %s; save every %s (%.0f steps), and %.1f %% of the time is "
                "progress\n",
                span(f.between_s, a, sizeof a), span(f.checkpoint_s, c, sizeof c), span(f.interval_s, d, sizeof d),
                fmax(1, floor(f.interval_s / x->f.step_s)), 100 * f.share);
    if (b->tokens <= 0)
        return;
    struct bill bill = bill_of(x, b, &f);
    tr_str_addf(out, "%s tokens: %.3g days and %s", tr_human_count(b->tokens, a, sizeof a), bill.days,
                money(bill.dollars, c, sizeof c));
    if (f.share > 0)
        tr_str_addf(out, "; with failures %.3g days and %s\n", bill.real_days, money(bill.real_dollars, c, sizeof c));
    else
        tr_str_addf(out, "; with failures never: one comes before a restart is over\n");
}

void tr_budget_json(const struct tr_search_result *x, const struct tr_budget *b, struct tr_str *out)
{
    struct tr_failures f;
    tr_failures_of(x, b, &f);
    tr_str_addf(out,
                "{\"price\": %.6g, \"between_failures_s\": %.6g, \"checkpoint_s\": %.6g, \"interval_s\": %.6g, "
                "\"progress\": %.6g",
                price_of(x, b), f.between_s, f.checkpoint_s, f.interval_s, f.share);
    if (b->tokens > 0) {
        struct bill bill = bill_of(x, b, &f);
        tr_str_addf(out, ", \"tokens\": %.17g, \"days\": %.6g, \"dollars\": %.6g", b->tokens, bill.days, bill.dollars);
        if (f.share > 0)
            tr_str_addf(out, ", \"days_with_failures\": %.6g, \"dollars_with_failures\": %.6g", bill.real_days,
                        bill.real_dollars);
    }
    tr_str_addf(out, "}");
}

/* ---- the curve ---- */

enum tr_status tr_scale_counts(const char *text, int **out, int *n)
{
    enum { MOST = 64, LARGEST = 1000000 };
    int *list = calloc(MOST, sizeof *list), k = 0;
    char word[16];
    if (!list)
        return tr_fail(TR_NOMEM, "scale: out of memory");
    if (strcmp(text, "auto") == 0) {
        for (int g = 1; g <= 65536; g *= 2)
            list[k++] = g;
        list[k++] = 100000;
    }
    for (const char *p = text; k < MOST && strcmp(text, "auto") != 0;) {
        size_t len = strcspn(p, ",");
        int64_t value = 0;
        (void)tr_format(word, sizeof word, "%.*s", (int)(len < 15 ? len : 15), p);
        if (tr_parse_int(word, 1, LARGEST, &value) != TR_OK) {
            free(list);
            return tr_fail(TR_USAGE, "scale: \"%s\" is not a number of gpus from 1 to %d; write 8,64,512 or auto", word,
                           LARGEST);
        }
        list[k++] = (int)value;
        if (p[len] == '\0')
            break;
        p += len + 1;
    }
    *out = list;
    *n = k;
    return TR_OK;
}

void tr_scale_text(const struct tr_scale_point *p, int n, const struct tr_budget *b, double room_bytes,
                   struct tr_str *out)
{
    double best = 0;
    char tokens[32], cost[32];
    tr_str_addf(out, "    gpus    step s  tokens/s  each %%   MFU %%  progress %%%s  layout\n",
                b->tokens > 0 ? "      days      cost" : "");
    for (int i = 0; i < n; i++)
        best = p[i].has_layout ? fmax(best, p[i].best.f.tokens_per_s / p[i].best.f.chips) : best;
    for (int i = 0; i < n; i++) {
        const struct tr_search_result *x = &p[i].best;
        struct tr_failures f;
        if (!p[i].has_layout) {
            tr_str_addf(out, "%8d  ", p[i].gpus);
            if (p[i].n_legal > 0)
                tr_str_addf(out, "does not fit: %.1f of %.1f GiB a chip\n", p[i].least_bytes / 1073741824.0,
                            room_bytes / 1073741824.0);
            else
                tr_str_addf(out, "no layout uses all of them with this batch\n");
            continue;
        }
        double each = x->f.tokens_per_s / x->f.chips;
        double peak = x->query.machine->chip.peak[x->query.precision];
        tr_failures_of(x, b, &f);
        tr_str_addf(out, "%8d %9.4g %9s %7.1f %7.1f %10.1f", p[i].gpus, x->f.step_s,
                    tr_human_count(x->f.tokens_per_s, tokens, sizeof tokens), 100 * each / best,
                    peak > 0 ? 100 * x->f.flops / (x->f.step_s * x->f.chips * peak) : 0, 100 * f.share);
        if (b->tokens > 0) {
            struct bill bill = bill_of(x, b, &f);
            tr_str_addf(out, bill.real_days < 100 ? " %9.2f %9s" : " %9.0f %9s", bill.real_days,
                        money(bill.real_dollars, cost, sizeof cost));
        }
        tr_str_addf(out, "  ");
        tr_layout_words(&x->query, out);
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out,
                "each: tokens/s of a chip beside the best cluster's; progress: what failures and checkpoints "
                "leave%s\n",
                b->tokens > 0 ? "; days and cost include them" : "");
}

void tr_scale_json(const struct tr_scale_point *p, int n, const struct tr_budget *b, struct tr_str *out)
{
    tr_str_addf(out, "{\"scale\": [");
    for (int i = 0; i < n; i++) {
        tr_str_addf(out, "%s{\"gpus\": %d, \"legal\": %.0f", i ? ", " : "", p[i].gpus, p[i].n_legal);
        if (p[i].has_layout) {
            tr_str_addf(out, ", \"options\": \"");
            tr_layout_options(&p[i].best.query, out);
            tr_str_addf(out, "\", \"forecast\": ");
            tr_forecast_json(&p[i].best.query, &p[i].best.f, out);
            tr_str_addf(out, ", \"budget\": ");
            tr_budget_json(&p[i].best, b, out);
        }
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}\n");
}
