/* advice.c - what a run says of its layout before step 0, and when another would be clearly better. */
#include "plan/plan.h"
#include <stdlib.h>

enum { FEW = 4 };       /* micro-batches a stage below which the bubble is worth a line: it is over a fifth */
#define CLEARLY    0.85 /* of the time: less than the forecast's own error is no advice */
#define MOST_CHIPS 4096 /* a search beyond takes seconds, which a start should not */

void tr_chosen_text(const struct tr_forecast_query *a, uint64_t bytes, double step_s, struct tr_str *out)
{
    char human[32];
    tr_str_addf(out, "plan: ");
    tr_layout_words(a, out);
    tr_str_addf(out, "; %s a rank", tr_human_bytes(bytes, human, sizeof human));
    if (step_s > 0)
        tr_str_addf(out, "; %.4g s a step on %s", step_s, a->machine->name);
}

enum tr_status tr_advice_text(const struct tr_search_query *q, const struct tr_forecast_query *a, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    struct tr_forecast f;
    double n_micro = a->global / a->dp / a->micro;
    struct tr_search *s = NULL;
    if (a->pp > 1 && n_micro < FEW * a->pp)
        tr_str_addf(
            out,
            "advice: %.0f micro-batches for %d stages leave them idle; %d or more (--gradient_accumulation_steps) "
            "keep them busy",
            n_micro, a->pp, FEW * a->pp);
    if (!q || q->gpus > MOST_CHIPS || !a->machine)
        return TR_OK;
    s = malloc(sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "advice: out of memory");
    TR_TRY(tr_forecast(a, &f));
    TR_TRY(tr_search_run(q, s));
    if (s->n > 0 && s->top[0].f.step_s < CLEARLY * f.step_s) {
        tr_str_addf(out, "%sadvice: another layout would take %.3g s a step instead of %.3g:", out->n ? "\n" : "",
                    s->top[0].f.step_s, f.step_s);
        tr_layout_options(&s->top[0].query, out);
    }
out:
    free(s);
    return st;
}
