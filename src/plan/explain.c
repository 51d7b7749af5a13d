/* explain.c - the result of a search in words: the ranking, the parts of the step for the first and the second layout,
 * the reason why the first wins, and what to look at next. Every statement is the difference of two forecasts; there
 * are no rules of thumb. */
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>

static const struct {
    const char *name, *more, *hint; /* more: what a layout that is slower in this part "loses" time to */
} parts[TR_PARTS] = {
    { "kernels", "less efficient kernels",
      "kernels are most of the step: larger micro-batches, less tp, or faster chips" },
    { "recompute", "recompute", "recompute: more memory a chip, or more shards of the state, would make it needless" },
    { "bubble", "pipeline bubble", "the pipeline's bubble: a larger batch (more micro-batches), or fewer stages" },
    { "tp traffic", "tensor traffic", "traffic of tensor ranks: less tp, or a faster link inside the node" },
    { "cp traffic", "context traffic", "traffic of context ranks: less cp, or longer rows" },
    { "pp traffic", "traffic between stages", "messages between stages: fewer chunks, or a faster network" },
    { "dp traffic", "gradient and weight traffic",
      "gradients and weights between nodes: a faster network, a larger batch, or shards inside a node" },
    { "update", "time in the optimizer and fixed costs", "the optimizer and fixed costs: a larger batch" },
};

void tr_parts_of(const struct tr_forecast *f, double part[TR_PARTS])
{
    double again = f->hardware_flops > 0 ? f->compute_s * (1 - f->flops / f->hardware_flops) : 0;
    part[TR_PART_KERNELS] = f->compute_s - again;
    part[TR_PART_AGAIN] = again;
    part[TR_PART_BUBBLE] = f->bubble_s;
    part[TR_PART_TP] = f->exposed_s[TR_TIME_TP] + f->exposed_s[TR_TIME_EP];
    part[TR_PART_CP] = f->exposed_s[TR_TIME_CP];
    part[TR_PART_PP] = f->exposed_s[TR_TIME_PP];
    part[TR_PART_DP] = f->exposed_s[TR_TIME_DP];
    part[TR_PART_OPTIMIZER] = f->optimizer_s + f->fixed_s;
}

/* ---- a layout ---- */

static enum tr_recompute recompute_of(enum tr_keep k)
{
    return k == TR_KEEP_INPUT ? TR_RECOMPUTE_BLOCK : k == TR_KEEP_OP ? TR_RECOMPUTE_OP : TR_RECOMPUTE_NONE;
}

static const char *keep_word(enum tr_keep k)
{
    return tr_config_word("recompute", (int)recompute_of(k));
}

void tr_layout_words(const struct tr_forecast_query *a, struct tr_str *out)
{
    if (a->tp > 1)
        tr_str_addf(out, "tp %d%s, ", a->tp, a->has_sp ? " sp" : "");
    if (a->cp > 1)
        tr_str_addf(out, "cp %d, ", a->cp);
    if (a->pp > 1) {
        tr_str_addf(out, "pp %d %s", a->pp, a->schedule ? a->schedule : "1f1b");
        tr_str_addf(out, a->chunks > 1 ? " x %d, " : ", ", a->chunks);
    }
    tr_str_addf(out, "dp %d zero %d", a->dp, a->zero);
    if (a->zero > 0 && a->shard > 0 && a->shard < a->dp)
        tr_str_addf(out, " in shards of %d", a->shard);
    if (a->zero > 1 && a->sync_last)
        tr_str_addf(out, " sync last");
    tr_str_addf(out, ", %.0f %s x %.0f, recompute %s", a->micro, a->micro > 1 ? "rows" : "row",
                a->global / a->dp / a->micro, keep_word(a->keep));
}

void tr_layout_options(const struct tr_forecast_query *a, struct tr_str *out)
{
    if (a->dp > 1)
        tr_str_addf(out, " --dp %d", a->dp);
    if (a->zero > 0)
        tr_str_addf(out, " --zero %d", a->zero);
    if (a->zero > 0 && a->shard > 0 && a->shard < a->dp)
        tr_str_addf(out, " --hybrid_shard %d", a->shard);
    if (a->zero > 1 && a->sync_last)
        tr_str_addf(out, " --sync last");
    if (a->tp > 1)
        tr_str_addf(out, " --tp %d%s", a->tp, a->has_sp ? " --sp" : "");
    if (a->cp > 1)
        tr_str_addf(out, " --cp %d", a->cp);
    if (a->pp > 1)
        tr_str_addf(out, " --pp %d --pp_schedule %s", a->pp, a->schedule ? a->schedule : "1f1b");
    if (a->chunks > 1)
        tr_str_addf(out, " --pp_chunks %d", a->chunks);
    tr_str_addf(out, " --per_device_train_batch_size %.0f --train_batch_size %.0f", a->micro, a->global);
    if (a->keep != TR_KEEP_ALL)
        tr_str_addf(out, " --recompute %s", keep_word(a->keep));
}

void tr_layout_configure(const struct tr_forecast_query *a, struct tr_config *run)
{
    run->dp = a->dp;
    run->zero = a->zero;
    run->hybrid_shard = a->zero > 0 && a->shard > 0 && a->shard < a->dp ? a->shard : 0;
    run->sync = a->zero > 1 && a->sync_last ? TR_SYNC_LAST : TR_SYNC_EACH;
    run->tp = a->tp;
    run->sp = a->tp > 1 && a->has_sp;
    run->cp = a->cp;
    run->pp = a->pp;
    run->pp_schedule = a->pp > 1 && a->schedule ? a->schedule : "1f1b";
    run->pp_chunks = a->chunks > 1 ? a->chunks : 1;
    run->per_device_train_batch_size = (int64_t)a->micro;
    run->train_batch_size = (int64_t)a->global;
    run->gradient_accumulation_steps = run->train_batch_size / run->dp / run->per_device_train_batch_size;
    run->recompute = recompute_of(a->keep);
}

/* ---- the ranking ---- */

static double gib(double bytes)
{
    return bytes / (1024.0 * 1024 * 1024);
}

static double mfu(const struct tr_search_result *x)
{
    double peak = x->query.machine->chip.peak[x->query.precision];
    peak = peak > 0 ? peak : x->query.machine->chip.peak[TR_PRECISION_16];
    return peak > 0 ? 100 * x->f.flops / (x->f.step_s * x->f.chips * peak) : 0;
}

static void add_head(const struct tr_search_query *q, const struct tr_search *s, struct tr_str *out)
{
    static const char *const names[] = { "float32", "bfloat16", "fp8", "fp4" };
    char n[32];
    tr_str_addf(out, "%s parameters on %d x %s; %.0f rows x %.0f tokens a step, %s\n",
                tr_human_count(tr_shape_params(&q->base.shape), n, sizeof n), q->gpus, q->base.machine->name,
                q->base.global, q->base.seq, names[q->base.precision]);
    tr_str_addf(out, "%.0f legal layouts, %.0f of them do not fit %.1f GiB; %.0f orders played\n\n", s->n_legal,
                s->n_over, gib(q->room_bytes), s->n_played);
}

static void add_ranking(const struct tr_search *s, struct tr_str *out)
{
    char n[32];
    tr_str_addf(out, "      step s   tokens/s   MFU %%     GiB  layout\n");
    for (int i = 0; i < s->n; i++) {
        const struct tr_search_result *x = &s->top[i];
        tr_str_addf(out, "  %2d %8.4g %10s %7.1f %7.1f  ", i + 1, x->f.step_s,
                    tr_human_count(x->f.tokens_per_s, n, sizeof n), mfu(x), gib(x->f.total_bytes));
        tr_layout_words(&x->query, out);
        tr_str_addf(out, "\n");
    }
}

struct delta {
    int part;
    double seconds;
};

static int by_seconds(const void *a, const void *b)
{
    double x = ((const struct delta *)a)->seconds, y = ((const struct delta *)b)->seconds;
    return (x < y) - (x > y);
}

/* "the second loses 0.21 s to pipeline bubble and 0.03 s to tensor traffic, and gains 0.02 s in recompute" */
static void add_reason(const struct tr_search_result *a, const struct tr_search_result *b, struct tr_str *out)
{
    double x[TR_PARTS], y[TR_PARTS], gained = 0;
    struct delta d[TR_PARTS];
    const char *join = "";
    tr_parts_of(&a->f, x);
    tr_parts_of(&b->f, y);
    for (int i = 0; i < TR_PARTS; i++) {
        d[i] = (struct delta){ i, y[i] - x[i] };
        gained += fmax(0, -d[i].seconds);
    }
    qsort(d, TR_PARTS, sizeof *d, by_seconds);
    tr_str_addf(out, "1 wins: 2 is %.1f %% slower; it loses ", 100 * (b->f.step_s / a->f.step_s - 1));
    for (int i = 0; i < 3 && d[i].seconds > 0.002 * a->f.step_s; i++, join = ", ")
        tr_str_addf(out, "%s%.3g s to %s", join, d[i].seconds, parts[d[i].part].more);
    if (!*join)
        tr_str_addf(out, "a little everywhere");
    const struct delta *last = &d[TR_PARTS - 1];
    if (gained > 0.002 * a->f.step_s)
        tr_str_addf(out, ", and gains %.3g s%s%s", gained, -last->seconds > 0.6 * gained ? ", most of it in " : "",
                    -last->seconds > 0.6 * gained ? parts[last->part].name : "");
    double less = a->f.total_bytes - b->f.total_bytes;
    if (fabs(less) > 0.02 * a->f.total_bytes)
        tr_str_addf(out, "; it holds %.1f GiB %s", gib(fabs(less)), less > 0 ? "less" : "more");
    tr_str_addf(out, "\n");
}

static void add_parts(const struct tr_search *s, struct tr_str *out)
{
    double x[TR_PARTS], y[TR_PARTS] = { 0 };
    tr_parts_of(&s->top[0].f, x);
    if (s->n > 1)
        tr_parts_of(&s->top[1].f, y);
    tr_str_addf(out, "\n  where the step goes       1%s\n", s->n > 1 ? "                 2        2 - 1" : "");
    for (int i = 0; i < TR_PARTS; i++) {
        if (x[i] <= 0 && y[i] <= 0)
            continue;
        tr_str_addf(out, "  %-12s %9.4f s %4.0f %%", parts[i].name, x[i], 100 * x[i] / s->top[0].f.step_s);
        if (s->n > 1)
            tr_str_addf(out, "  %9.4f s %4.0f %%  %+9.4f s", y[i], 100 * y[i] / s->top[1].f.step_s, y[i] - x[i]);
        tr_str_addf(out, "\n");
    }
    tr_str_addf(out, "\n");
}

void tr_bottleneck_text(const struct tr_search_result *x, struct tr_str *out)
{
    double p[TR_PARTS];
    int most = TR_PART_AGAIN;
    tr_parts_of(&x->f, p);
    for (int i = TR_PART_AGAIN; i < TR_PARTS; i++)
        most = p[i] > p[most] ? i : most;
    if (p[most] < 0.05 * x->f.step_s)
        most = TR_PART_KERNELS;
    tr_str_addf(out, "next bottleneck (%.0f %%): %s\n", 100 * p[most] / x->f.step_s, parts[most].hint);
}

static void add_sync(const struct tr_search_query *q, const struct tr_search_result *x, struct tr_str *out)
{
    if (x->query.sync_last && q->pins.sync < 0)
        tr_str_addf(
            out, "1 holds its gradients whole (%.1f GiB) and reduces them once a step, not %.0f times: --sync last\n",
            gib(x->f.bytes[TR_BYTES_GRADS]), x->f.n_micro);
}

void tr_search_text(const struct tr_search_query *q, const struct tr_search *s, double exact_bytes, struct tr_str *out)
{
    add_head(q, s, out);
    add_ranking(s, out);
    add_parts(s, out);
    if (s->n > 1)
        add_reason(&s->top[0], &s->top[1], out);
    add_sync(q, &s->top[0], out);
    tr_bottleneck_text(&s->top[0], out);
    if (exact_bytes > 0)
        tr_str_addf(out, "memory of 1, compiled: %.2f GiB and %.1f GiB of libraries, of %.1f GiB\n", gib(exact_bytes),
                    gib(s->top[0].f.bytes[TR_BYTES_LIBRARY]), gib(q->room_bytes));
    if (q->base.precision == TR_PRECISION_FP32 &&
        q->base.machine->chip.peak[TR_PRECISION_16] > 2 * q->base.machine->chip.peak[0])
        tr_str_addf(out, "compute is float32; --bf16 uses the tensor cores\n");
}

/* ---- JSON ---- */

static void found_json(const struct tr_search_result *x, struct tr_str *out)
{
    const struct tr_forecast_query *a = &x->query;
    double p[TR_PARTS];
    tr_parts_of(&x->f, p);
    tr_str_addf(out,
                "{\"dp\": %d, \"zero\": %d, \"hybrid_shard\": %d, \"sync\": \"%s\", \"tp\": %d, \"sp\": %s, \"pp\": "
                "%d, \"pp_schedule\": "
                "\"%s\", \"pp_chunks\": %d, \"cp\": %d, \"per_device_train_batch_size\": %.0f, "
                "\"gradient_accumulation_steps\": %.0f, \"recompute\": \"%s\", \"options\": \"",
                a->dp, a->zero, a->zero > 0 && a->shard < a->dp ? a->shard : 0,
                a->zero > 1 && a->sync_last ? "last" : "each", a->tp, a->has_sp ? "true" : "false", a->pp,
                a->schedule ? a->schedule : "1f1b", a->chunks, a->cp, a->micro, a->global / a->dp / a->micro,
                keep_word(a->keep));
    tr_layout_options(a, out);
    tr_str_addf(out, "\", \"total_bytes\": %.0f, \"parts_s\": {", x->f.total_bytes);
    for (int i = 0; i < TR_PARTS; i++)
        tr_str_addf(out, "%s\"%s\": %.9g", i ? ", " : "", parts[i].name, p[i]);
    tr_str_addf(out, "}, \"forecast\": ");
    tr_forecast_json(a, &x->f, out);
    tr_str_addf(out, "}");
}

void tr_search_json(const struct tr_search_query *q, const struct tr_search *s, double exact_bytes, const char *command,
                    const char *budget, const char *offer, struct tr_str *out)
{
    struct tr_str text = { 0 };
    tr_str_addf(out, "{\"gpus\": %d, \"machine\": ", q->gpus);
    tr_str_json(out, q->base.machine->name);
    tr_str_addf(out, ", \"legal\": %.0f, \"too_large\": %.0f, \"played\": %.0f, \"room_bytes\": %.0f, \"layouts\": [",
                s->n_legal, s->n_over, s->n_played, q->room_bytes);
    for (int i = 0; i < s->n; i++) {
        tr_str_addf(out, i ? ", " : "");
        found_json(&s->top[i], out);
    }
    tr_str_addf(out, "], \"exact_bytes\": %.0f, \"why\": ", exact_bytes);
    if (s->n > 1)
        add_reason(&s->top[0], &s->top[1], &text);
    add_sync(q, &s->top[0], &text);
    tr_bottleneck_text(&s->top[0], &text);
    tr_str_json(out, text.p ? text.p : "");
    tr_str_member(out, ", \"command\": ", command);
    tr_str_addf(out, ", \"budget\": %s, \"offload\": %s}\n", budget, offer);
    tr_str_release(&text);
}
