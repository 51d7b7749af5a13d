/* exact.c - the bytes of a layout that a search found, by the compile of the run itself.
 *
 * The run has what the command line of the winner shows: the options of KEPT as they were given, those of the layout,
 * and defaults for the rest.
 */
#include "build/build.h"
#include "plan/plan.h"
#include <math.h>

/* Options of a run that the layout does not decide. */
#define KEPT(X)                                                                                                        \
    X(dtype)                                                                                                           \
    X(master_dtype)                                                                                                    \
    X(grad_dtype)                                                                                                      \
    X(moment_dtype)                                                                                                    \
    X(optim)                                                                                                           \
    X(cp_mode)                                                                                                         \
    X(reproducible)

void tr_kept_options(const struct tr_config *cfg, const struct tr_forecast_query *a, struct tr_str *out)
{
    tr_str_addf(out, " --sequence_length %" PRId64, (int64_t)a->seq);
#define X(name)                                                                                                        \
    if (tr_config_is_set(cfg, #name))                                                                                  \
        tr_str_addf(out, " --%s %s", #name, tr_config_word(#name, (int)cfg->name));
    KEPT(X)
#undef X
}

enum tr_status tr_search_exact(const struct tr_config *cfg, const struct tr_search_result *x, double *bytes)
{
    enum tr_status st = TR_OK;
    char *argv[] = { "--model", (char *)(uintptr_t)cfg->model };
    const struct tr_config *defaults = NULL;
    struct tr_setup *s = NULL;
    int each = (int)x->f.chips / x->query.pp;
    TR_TRY(tr_config_load(TR_VERB_PLAN, TR_COUNT_OF(argv), argv, NULL, &defaults));
    struct tr_config run = *defaults;
#define X(name) run.name = cfg->name;
    KEPT(X)
#undef X
    run.sequence_length = (int64_t)x->query.seq;
    run.device = x->query.machine->is_shared ? TR_DEVICE_CHOICE_CPU : TR_DEVICE_CHOICE_CUDA;
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
    tr_config_close(defaults);
    return st;
}
