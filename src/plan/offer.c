/* offer.c - what a search offers beside its winner: the same ranks with optimizer state on the host, and rows and
 * recompute that fit then.
 *
 * Every candidate is compiled and played as the run would be, so its bytes and its seconds are those that `plan` prints
 * of its options. Layouts with one pipeline stage only. Rejected: an axis of the search itself, whose quick forecast
 * knows no copies.
 */
#include "build/build.h"
#include "plan/plan.h"
#include <math.h>

enum { MOST_ROWS = 6 }; /* doublings of the rows of a micro-batch */

/* Compiles and plays a configuration; *step_s stays where it does not fit or is no faster. */
static enum tr_status try_run(const struct tr_config *run, const struct tr_search_query *q, struct tr_offer *best)
{
    struct tr_setup *s = NULL;
    struct tr_forecast f;
    enum tr_status st = tr_setup_open_rank(run, TR_USE_TRAIN, 0, &s);
    if (st == TR_USAGE) { /* it does not fit, or is not legal */
        tr_error_clear();
        return TR_OK;
    }
    TR_TRY(st);
    TR_TRY(tr_play_compiled((const struct tr_compiled *const[]){ s->compiled }, 1, &q->machine, &f));
    if (f.step_s < best->step_s)
        *best = (struct tr_offer){ .rows = run->per_device_train_batch_size,
                                   .step_s = f.step_s,
                                   .exposed_s = f.exposed_s[TR_TIME_OFFLOAD],
                                   .device_bytes = tr_compiled_bytes_in(s->compiled, TR_SPACE_DEVICE),
                                   .host_bytes = s->compiled->memory.bytes[TR_A_HOST],
                                   .offloads = run->offload_optimizer != TR_OFFLOAD_NONE,
                                   .takes_all = run->offload_gradients };
out:
    tr_setup_close(s);
    return st;
}

/* All that learns on the host, where nothing less fits. */
static void take_all(struct tr_config *run)
{
    run->offload_param = TR_OFFLOAD_CPU;
    run->offload_gradients = run->offload_activations = true;
    run->recompute = TR_RECOMPUTE_BLOCK;
}

/* What the arenas of a run may take of a chip: the budget that was given, as in the run itself, but not more than there
 * is. */
static double room_of(const struct tr_config *cfg, const struct tr_search_query *q, const struct tr_forecast_query *a)
{
    double chip = fmin(cfg->memory_budget > 0 ? INFINITY : q->room_bytes, 0.9 * q->machine.chip.memory_bytes) -
                  tr_library_bytes(a);
    return cfg->memory_budget > 0 ? fmin((double)cfg->memory_budget, chip) : chip;
}

enum tr_status tr_search_offer(const struct tr_config *cfg, const struct tr_search_query *q,
                               const struct tr_search_result *x, bool fits, struct tr_offer *out)
{
    struct tr_config run = *cfg;
    double room = room_of(cfg, q, &x->query);
    *out = (struct tr_offer){ .step_s = INFINITY };
    if (q->machine.is_shared || q->machine.host_rate <= 0 || x->query.pp > 1 ||
        cfg->offload_optimizer != TR_OFFLOAD_NONE || cfg->offload_param != TR_OFFLOAD_NONE)
        return TR_OK;
    run.sequence_length = (int64_t)x->query.seq;
    run.device = TR_DEVICE_CHOICE_CUDA;
    run.memory_budget = 0;
    tr_layout_configure(&x->query, &run);
    if (fits)
        TR_PASS(try_run(&run, q, out)); /* the winner itself, priced in the same way */
    if (room <= 0)                      /* a budget of 0 would be none */
        return TR_OK;
    run.memory_budget = (int64_t)room;
    run.recompute = cfg->recompute;
    run.offload_optimizer = TR_OFFLOAD_CPU;
    run.offload_share = 1;
    for (int all = 0; all < 2; all++) {
        if (all && (out->step_s < INFINITY || cfg->reproducible == TR_REPRODUCIBLE_LAYOUT || run.zero > 0 ||
                    run.tp * run.cp > 1 || cfg->finetuning_type != TR_TUNING_FULL))
            break;
        int64_t rows = (int64_t)x->query.micro;
        for (int k = 0; k < MOST_ROWS && run.train_batch_size % (rows * run.dp) == 0; k++, rows *= 2) {
            run.per_device_train_batch_size = rows;
            run.gradient_accumulation_steps = run.train_batch_size / run.dp / rows;
            if (all)
                take_all(&run);
            TR_PASS(try_run(&run, q, out));
        }
    }
    return TR_OK;
}

void tr_offer_options(const struct tr_offer *o, const struct tr_search_result *x, struct tr_str *out)
{
    struct tr_forecast_query a = x->query;
    a.micro = (double)o->rows;
    a.keep = TR_KEEP_ALL; /* the default, auto, finds what fits */
    tr_layout_options(&a, out);
    tr_str_addf(out, " --offload_optimizer cpu%s",
                o->takes_all ? " --offload_param cpu --offload_gradients --recompute block --offload_activations" : "");
}
