/* adamw8.c - AdamW with moments of 8 bits, as bitsandbytes has it: a code for each element and a scale for each block
 * of 256. Small tensors, which gain nothing, and tables of embeddings, whose rows learn at very different rates, keep
 * moments in full: what bitsandbytes and the Trainer of transformers do. */
#include "base/quant.h"
#include "optim/optim.h"

enum { LEAST = 4096 }; /* elements of a tensor whose moments are rounded */

bool tr_optim_takes_8bit(const struct tr_optim_param *p)
{
    return p->n >= LEAST && !p->is_embedding;
}

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->adam_beta1, n_updates, out);
}

const struct tr_optim tr_adamw8 = {
    .name = "adamw_8bit",
    .n_states = 4,
    .state = { { .name = "m8", .title = "first moment", .dtype = TR_U8, .block = 1, .zero = 1 },
               { .name = "v8", .title = "second moment", .dtype = TR_U8, .block = 1, .zero = 1 },
               { .name = "m8_max",
                 .title = "largest first moment of a block",
                 .dtype = TR_F32,
                 .block = TR_DYNAMIC_BLOCK,
                 .zero = 1 },
               { .name = "v8_max",
                 .title = "largest second moment of a block",
                 .dtype = TR_F32,
                 .block = TR_DYNAMIC_BLOCK,
                 .zero = 1 } },
    .n_phases = 1,
    .phase = { { .op = TR_OP_ADAMW8 } },
    .step_values = step_values,
    .rest = &tr_adamw,
    .takes = tr_optim_takes_8bit,
};
