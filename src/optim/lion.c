/* lion.c - Lion (Chen et al. 2023): one moment, and an update that is the sign of an average. */
#include "optim/optim.h"

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->adam_beta1, n_updates, out);
}

const struct tr_optim tr_lion = {
    .name = "lion",
    .n_states = 1,
    .state = { { .name = "m", .title = "first moment", .is_moment = true, .block = 1, .zero = 1 } },
    .n_phases = 1,
    .phase = { { .op = TR_OP_LION } },
    .step_values = step_values,
};
