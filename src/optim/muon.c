/* muon.c - Muon (Jordan et al. 2024), as torch.optim.Muon defines it: the update of a hidden matrix is its momentum,
 * made orthogonal by Newton-Schulz steps. Embeddings, the head, norms and biases learn by AdamW. */
#include "optim/optim.h"

static bool takes(const struct tr_optim_param *p)
{
    return p->n_dims == 2 && p->is_hidden;
}

static void step_values(const struct tr_config *cfg, int64_t n_updates, float out[TR_STEP_COUNT])
{
    tr_step_averages(cfg, cfg->adam_beta1, n_updates, out);
    out[TR_STEP_MOMENTUM] = (float)cfg->muon_momentum;
    out[TR_STEP_ADJUST] = (float)cfg->muon_adjust_lr_fn;
}

const struct tr_optim tr_muon = {
    .name = "muon",
    .n_states = 1,
    .state = { { .name = "momentum", .title = "momentum", .is_moment = true, .block = 1, .zero = 1 } },
    .has_direction = true,
    .n_phases = 3,
    .phase = { { .op = TR_OP_MUON }, { .op = TR_OP_ORTHOGONAL, .is_whole = true }, { .op = TR_OP_MUON_APPLY } },
    .step_values = step_values,
    .rest = &tr_adamw,
    .takes = takes,
};
