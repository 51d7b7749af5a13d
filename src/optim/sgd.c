/* sgd.c - gradient descent with momentum. The momentum state is held even where the option momentum is 0. */
#include "optim/optim.h"

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->momentum, n_updates, out);
}

const struct tr_optim tr_sgd = {
    .name = "sgd",
    .n_states = 1,
    .state = { { .name = "m", .title = "first moment", .is_moment = true, .block = 1, .zero = 1 } },
    .n_phases = 1,
    .phase = { { .op = TR_OP_SGD } },
    .step_values = step_values,
};
