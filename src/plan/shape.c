/* shape.c - how many weights a shape has, how many of them a token passes, and the flops that takes. */
#include "plan/forecast.h"

static double attention_params(const struct tr_shape_cost *s)
{
    double h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    if (s->q_rank > 0) /* queries and keys are head_dim + rope_dim wide, values head_dim */
        return h * s->q_rank + s->q_rank * s->heads * (s->head_dim + s->rope_dim) + h * (s->kv_rank + s->rope_dim) +
               s->kv_rank * s->heads * 2 * s->head_dim + q * h;
    return h * (q + 2 * kv) + q * h;
}

static double mlp_params(const struct tr_shape_cost *s, double ffn)
{
    return (s->is_gated ? 3 : 2) * s->hidden * ffn;
}

double tr_shape_layer_params(const struct tr_shape_cost *s, bool is_dense)
{
    double n = attention_params(s) + 2 * s->hidden;
    if (is_dense || s->experts == 0)
        return n + mlp_params(s, s->experts > 0 ? s->dense_ffn : s->ffn);
    return n + s->experts * mlp_params(s, s->ffn) + mlp_params(s, s->shared_ffn) + s->experts * s->hidden;
}

double tr_shape_active_params(const struct tr_shape_cost *s)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0, dense = s->layers - moe;
    double sparse = s->top_k * mlp_params(s, s->ffn) + mlp_params(s, s->shared_ffn) + s->experts * s->hidden;
    double further = s->n_further * (2 * s->hidden * s->hidden + attention_params(s) +
                                     (s->experts > 0 ? sparse : mlp_params(s, s->ffn)));
    return s->layers * attention_params(s) + dense * mlp_params(s, s->experts > 0 ? s->dense_ffn : s->ffn) +
           moe * sparse + further;
}

double tr_shape_params(const struct tr_shape_cost *s)
{
    double moe = s->experts > 0 ? s->layers - s->dense_layers : 0;
    return moe * tr_shape_layer_params(s, false) + (s->layers - moe) * tr_shape_layer_params(s, true) +
           s->n_further * (tr_shape_layer_params(s, s->experts == 0) + 2 * s->hidden * s->hidden) +
           (s->is_tied ? 1 : 2) * s->vocab * s->hidden + s->hidden;
}

double tr_token_flops(const struct tr_forecast_query *a)
{
    const struct tr_shape_cost *s = &a->shape;
    double t = a->seq, heads = (1 + s->n_further) * s->vocab * s->hidden;
    double cores = (s->layers + s->n_further) * (1 - s->local_share);
    double width = s->q_rank > 0 ? s->heads * (2 * s->head_dim + s->rope_dim) / 2 : s->heads * s->head_dim;
    if (a->is_frozen) /* forward, and the gradient of every input */
        return 4 * (tr_shape_active_params(s) + heads);
    return 6 * (tr_shape_active_params(s) + heads) + 6 * cores * width * t;
}
