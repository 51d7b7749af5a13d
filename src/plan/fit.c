/* fit.c - a layout that holds more than the chip: the changes that make it fit, the fastest first. Two options are
 * changed at most, three when that is not enough; more would be another layout, which is what --search is for.
 */
#include "plan/plan.h"
#include <math.h>

enum { SHOWN = 5 };
struct change {
    struct tr_found x;
    int n_changes;
};

static bool is_before(const struct change *a, const struct change *b)
{
    bool is_small[2] = { a->n_changes <= 2, b->n_changes <= 2 };
    return is_small[0] != is_small[1] ? is_small[0] : a->x.f.step_s < b->x.f.step_s;
}

struct fit {
    const struct tr_query *q;
    const struct tr_ask *asked;
    struct change best[SHOWN];
    int n;
};

static void offer(struct fit *t, struct tr_ask *a, int n_changes)
{
    struct change c = { .n_changes = n_changes };
    if (n_changes == 0 || n_changes > 3 || !tr_search_is_legal(t->q, a) || tr_forecast(a, &c.x.f) != TR_OK ||
        c.x.f.total_bytes > t->q->room_bytes)
        return;
    c.x.ask = *a;
    int at = t->n < SHOWN ? t->n++ : SHOWN - 1;
    if (at == SHOWN - 1 && t->n == SHOWN && t->best[at].n_changes && !is_before(&c, &t->best[at]))
        return;
    for (; at > 0 && is_before(&c, &t->best[at - 1]); at--)
        t->best[at] = t->best[at - 1];
    t->best[at] = c;
}

/* Everything about a rank but its mesh. */
static void vary(struct fit *t, struct tr_ask *a, int n_changes)
{
    static const enum tr_keep keeps[] = { TR_KEEP_ALL, TR_KEEP_OP, TR_KEEP_INPUT };
    const struct tr_ask *was = t->asked;
    for (int zero = was->zero; zero <= 3; zero = a->dp > 1 ? zero + 1 : 4)
        for (size_t k = 0; k < TR_COUNT_OF(keeps); k++)
            for (int one = 0; one < 2; one++)
                for (int sp = was->has_sp; sp <= (a->tp > 1); sp++) {
                    a->zero = zero;
                    a->shard = zero == was->zero && a->dp == was->dp ? was->shard : zero > 0 ? a->dp : 0;
                    a->keep = keeps[k];
                    a->micro = one ? 1 : was->micro;
                    a->has_sp = sp;
                    if (keeps[k] < was->keep || (one && was->micro <= 1))
                        continue;
                    offer(t, a, n_changes + (zero != was->zero) + (keeps[k] != was->keep) + one + (sp && !was->has_sp));
                }
}

static void print_changes(const struct tr_ask *was, const struct tr_ask *a, struct tr_str *out)
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
    if (a->has_sp && !was->has_sp)
        tr_str_addf(out, " --sp");
    if (a->micro != was->micro || a->dp != was->dp)
        tr_str_addf(out, " --per_device_train_batch_size %.0f --gradient_accumulation_steps %.0f", a->micro,
                    a->global / a->dp / a->micro);
    if (a->keep != was->keep)
        tr_str_addf(out, " --recompute %s", a->keep == TR_KEEP_INPUT ? "block" : "op");
}

enum tr_status tr_fit_text(const struct tr_query *q, const struct tr_ask *asked, struct tr_str *out)
{
    struct fit t = { .q = q, .asked = asked };
    struct tr_ask a = *asked;
    vary(&t, &a, 0);
    for (int by = 2; by <= 8 && asked->dp % by == 0; by *= 2)
        for (int axis = 0; axis < 3; axis++) {
            a = *asked;
            a.dp = asked->dp / by;
            a.tp *= axis == 0 ? by : 1;
            a.pp *= axis == 1 ? by : 1;
            a.cp *= axis == 2 ? by : 1;
            vary(&t, &a, 1);
        }
    tr_error_clear();
    if (t.n == 0) {
        tr_str_addf(out,
                    "no small change fits this many chips; plan --search --objective fewest says how many would\n");
        return TR_OK;
    }
    tr_str_addf(out, "changes that make it fit, the fastest first:\n");
    for (int i = 0; i < t.n; i++) {
        tr_str_addf(out, "  %8.4g s a step, %6.1f GiB: ", t.best[i].x.f.step_s,
                    t.best[i].x.f.total_bytes / 1073741824.0);
        print_changes(asked, &t.best[i].x.ask, out);
        tr_str_addf(out, "\n");
    }
    return TR_OK;
}
