/* precision.c - pass: activations and parameters in the compute dtype; statistics, losses and tables stay as they are.
 */
#include "parallel/parallel_impl.h"

enum tr_status tr_pass_precision(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    for (int i = 0; i < p->n_values; i++)
        if (!p->value[i].dtype_is_fixed && p->value[i].dtype == TR_F32)
            p->value[i].dtype = ctx->compute_dtype;
    return TR_OK;
}
