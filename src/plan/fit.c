/* fit.c - a layout that holds more than the chip: the changes that make it fit, the fastest first. The search itself
 * finds them, kept near to what was asked (tr_search_query.near); a layout that changes more is what --search is for.
 */
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>

enum { SHOWN = 5 };

static void print_changes(const struct tr_forecast_query *was, const struct tr_forecast_query *a, struct tr_str *out)
{
    if (a->tp != was->tp)
        tr_str_addf(out, " --tp %d", a->tp);
    if (a->pp != was->pp)
        tr_str_addf(out, " --pp %d", a->pp);
    if (a->cp != was->cp)
        tr_str_addf(out, " --cp %d", a->cp);
    if (a->dp != was->dp)
        tr_str_addf(out, " --dp %d", a->dp);
    if (a->zero != was->zero)
        tr_str_addf(out, " --zero %d", a->zero);
    if (a->zero > 0 && a->shard > 0 && a->shard < a->dp)
        tr_str_addf(out, " --hybrid_shard %d", a->shard);
    if (a->sync_last != was->sync_last)
        tr_str_addf(out, " --sync %s", a->sync_last ? "last" : "each");
    if (a->has_sp != was->has_sp)
        tr_str_addf(out, a->has_sp ? " --sp" : " --sp false");
    if (a->micro != was->micro || a->dp != was->dp)
        tr_str_addf(out, " --per_device_train_batch_size %.0f --gradient_accumulation_steps %.0f", a->micro,
                    a->global / a->dp / a->micro);
    if (a->keep != was->keep)
        tr_str_addf(out, " --recompute %s", a->keep == TR_KEEP_INPUT ? "block" : "op");
    if (a->tp > was->tp && a->tp > (int)a->shape.kv_heads)
        tr_str_addf(out, " (tp is above the %.0f key heads: ranks share a key head, and each holds its k and v whole)",
                    a->shape.kv_heads);
}

/* The layout that was asked for, with a parameter's bytes as the options make them: of an adapter, of a packed base. */
static struct tr_forecast_query with_bytes_of(struct tr_forecast_query a, const struct tr_forecast_query *options)
{
    a.machine = options->machine;
    a.is_frozen = options->is_frozen;
    a.adapter_share = options->adapter_share;
    a.param_bytes = options->param_bytes;
    a.gather_bytes = options->gather_bytes;
    a.grad_bytes = options->grad_bytes;
    a.state_bytes = options->state_bytes;
    return a;
}

/* The bytes of a layout with its libraries, by the compile of the run; INFINITY where the run would be refused. */
static enum tr_status compiled_bytes(const struct tr_config *cfg, const struct tr_search_result *x, double *bytes)
{
    enum tr_status st = tr_search_exact(cfg, x, bytes);
    *bytes = st == TR_OK ? *bytes + x->f.bytes[TR_BYTES_LIBRARY] : INFINITY;
    if (st != TR_USAGE)
        return st;
    tr_error_clear();
    return TR_OK;
}

enum tr_status tr_fit_text(const struct tr_config *cfg, const struct tr_search_query *q,
                           const struct tr_forecast_query *asked, struct tr_str *out)
{
    struct tr_search_query near = *q;
    struct tr_search *s = malloc(sizeof *s);
    enum tr_status st = TR_OK;
    if (!s)
        return tr_fail(TR_NOMEM, "plan: out of memory");
    near.near = asked;
    near.base = with_bytes_of(*asked, &q->base);
    tr_pins_clear(&near.pins);
    near.pins.schedule = asked->pp > 1 && asked->schedule ? asked->schedule : "1f1b";
    near.pins.chunks = asked->chunks > 1 ? asked->chunks : 0;
    TR_TRY(tr_search_run(&near, s));
    int n_shown = 0;
    for (int i = 0; i < s->n && n_shown < SHOWN; i++) {
        struct tr_str changes = { 0 };
        double bytes = INFINITY;
        print_changes(asked, &s->top[i].query, &changes);
        if (changes.n > 0) /* the layout that was asked for is no remedy: its compile, which is exact, does not fit */
            st = compiled_bytes(cfg, &s->top[i], &bytes);
        if (bytes <= q->room_bytes)
            tr_str_addf(out, "%s  %8.4g s a step, %6.1f GiB: %s\n",
                        n_shown++ ? "" : "changes that make it fit, the fastest first:\n", s->top[i].f.step_s,
                        bytes / 1073741824.0, changes.p);
        tr_str_release(&changes);
        TR_TRY(st);
    }
out:
    free(s);
    return st;
}
