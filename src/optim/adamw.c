/* adamw.c - AdamW (Loshchilov and Hutter 2019): two moments, bias correction, decoupled weight decay. */
#include "optim/optim.h"

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->adam_beta1, n_updates, out);
}

const struct tr_optim tr_adamw = {
    .name = "adamw",
    .n_states = 2,
    .state = { { .name = "m", .title = "first moment", .is_moment = true, .block = 1, .zero = 1 },
               { .name = "v", .title = "second moment", .is_moment = true, .block = 1, .zero = 1 } },
    .n_phases = 1,
    .phase = { { .op = TR_OP_ADAMW } },
    .step_values = step_values,
};
