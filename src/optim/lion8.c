/* lion8.c - Lion with a moment of 8 bits, as bitsandbytes has it; which tensors, as for AdamW of 8 bits. */
#include "base/quant.h"
#include "optim/optim.h"

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->adam_beta1, n_updates, out);
}

const struct tr_optim tr_lion8 = {
    .name = "lion_8bit",
    .n_states = 2,
    .state = { { .name = "m8", .title = "first moment", .dtype = TR_U8, .block = 1, .zero = 1 },
               { .name = "m8_max",
                 .title = "largest first moment of a block",
                 .dtype = TR_F32,
                 .block = TR_DYNAMIC_BLOCK,
                 .zero = 1 } },
    .n_phases = 1,
    .phase = { { .op = TR_OP_LION8 } },
    .step_values = step_values,
    .rest = &tr_lion,
    .takes = tr_optim_takes_8bit,
};
