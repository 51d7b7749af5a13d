/* exact.c - the bytes of a layout that a search found, by the compile of the run itself.
 *
 * The run has every option that was given, as the command line that is printed for it has; only what the search chooses
 * is the layout's. Rejected: a list of options to keep, which forgot those that came after it.
 */
#include "build/build.h"
#include "plan/plan.h"
#include <math.h>

void tr_given_options(const struct tr_config *cfg, const struct tr_forecast_query *a, struct tr_str *out)
{
    static const char *const except[] = { /* the search chooses them: tr_layout_options */
                                          "dp", "zero", "hybrid_shard", "sync", "tp", "sp", "cp", "pp", "pp_schedule",
                                          "pp_chunks", "per_device_train_batch_size", "gradient_accumulation_steps",
                                          "train_batch_size", "recompute",
                                          /* the machine and the model decide; written below and by the caller */
                                          "device", "sequence_length",
                                          /* about this call alone; the values of a run file are written one by one */
                                          "machine", "json", "quiet", "config", NULL
    };
    tr_str_addf(out, " --sequence_length %" PRId64, (int64_t)a->seq);
    tr_config_arguments(cfg, TR_VERB_TRAIN, except, out);
}

enum tr_status tr_search_exact(const struct tr_config *cfg, const struct tr_search_result *x, double *bytes)
{
    enum tr_status st = TR_OK;
    struct tr_setup *s = NULL;
    struct tr_config run = *cfg;
    int each = (int)x->f.chips / x->query.pp;
    run.sequence_length = (int64_t)x->query.seq;
    run.device = x->query.machine->is_shared ? TR_DEVICE_CHOICE_CPU : TR_DEVICE_CHOICE_CUDA;
    run.memory_budget = 0; /* the search compares the bytes with it, and learns where they are more */
    tr_layout_configure(&x->query, &run);
    *bytes = 0;
    for (int k = 0; k < x->query.pp; k++) { /* the first tensor rank of a stage holds the odd row of a vocabulary */
        TR_TRY(tr_setup_open_rank(&run, TR_USE_TRAIN, k * each, &s));
        *bytes = fmax(*bytes, (double)tr_compiled_bytes_in(s->compiled, TR_SPACE_DEVICE));
        tr_setup_close(s);
        s = NULL;
    }
out:
    tr_setup_close(s);
    return st;
}
