/* adafactor.c - Adafactor (Shazeer and Stern 2018), as transformers defines it: of the second moment of a matrix it
 * keeps one average for each row and one for each column. Vectors keep theirs in full. */
#include "optim/optim.h"
#include <math.h>

static bool takes(const struct tr_optim_param *p)
{
    return p->n_dims == 2;
}

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    double t = (double)n_updates;
    out[TR_STEP_BETA2] = (float)(1 - pow(t, -0.8));
    out[TR_STEP_ADJUST] = cfg->adafactor_scale_parameter;
    if (cfg->adafactor_relative_step)
        out[TR_STEP_LR] = (float)fmin(1e-2, 1 / sqrt(t));
}

static const struct tr_optim adafactor_of_vectors = {
    .name = "adafactor",
    .n_states = 1,
    .state = { { .name = "v_flat", .title = "second moment", .dtype = TR_F32, .block = 1, .zero = 1 } },
    .has_sums = true,
    .n_phases = 3,
    .phase = { { .op = TR_OP_ADAFACTOR_SUMS, .sums = TR_SUMS_ALL },
               { .op = TR_OP_ADAFACTOR_NORM, .sums = TR_SUMS_LAST },
               { .op = TR_OP_ADAFACTOR_APPLY, .sums = TR_SUMS_READ } },
    .step_values = step_values,
};

const struct tr_optim tr_adafactor = {
    .name = "adafactor",
    .n_states = 2,
    .state = { { .name = "v_row",
                 .title = "second moment of a row",
                 .dtype = TR_F32,
                 .shape = TR_PER_ROW,
                 .block = 1,
                 .zero = TR_NEVER_SHARDED },
               { .name = "v_col",
                 .title = "second moment of a column",
                 .dtype = TR_F32,
                 .shape = TR_PER_COL,
                 .block = 1,
                 .zero = TR_NEVER_SHARDED } },
    .has_sums = true,
    .n_phases = 4,
    .phase = { { .op = TR_OP_ADAFACTOR_SUMS, .sums = TR_SUMS_ALL },
               { .op = TR_OP_ADAFACTOR_FACTORS, .sums = TR_SUMS_WHOLE },
               { .op = TR_OP_ADAFACTOR_NORM, .sums = TR_SUMS_LAST },
               { .op = TR_OP_ADAFACTOR_APPLY, .sums = TR_SUMS_READ } },
    .step_values = step_values,
    .rest = &adafactor_of_vectors,
    .takes = takes,
};
