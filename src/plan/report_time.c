/* report_time.c - a forecast as lines and as JSON, and the forecast query of a compiled run. */
#include "plan/plan.h"

void tr_shape_of_model(const struct tr_model *m, struct tr_shape_cost *out)
{
    const struct tr_hparams *hp = &m->hp;
    double h = (double)hp->hidden, mlp = 0;
    *out = (struct tr_shape_cost){ .layers = (double)hp->layers,
                                   .hidden = h,
                                   .heads = (double)hp->n_heads_q,
                                   .kv_heads = (double)hp->n_heads_kv,
                                   .head_dim = (double)hp->head_dim,
                                   .ffn = (double)hp->ffn,
                                   .vocab = (double)hp->vocab,
                                   .is_tied = hp->is_tied };
    for (int i = 0; i < m->n_params; i++) /* two or three matrices: counting them works for every architecture */
        if (m->param[i].n_dims == 2 && m->param[i].n == hp->hidden * hp->ffn)
            mlp++;
    out->is_gated = mlp > 2.5 * out->layers;
}

void tr_forecast_query_of_compiled(const struct tr_compiled *c, const struct tr_machine *machine,
                                   struct tr_forecast_query *out)
{
    const struct tr_layout *l = &c->opt.layout;
    const struct tr_model *m = c->place.model;
    int data = l->data_size > 1 ? l->data_size : 1, shard = l->shard_size > 1 ? l->shard_size : 0;
    *out =
        (struct tr_forecast_query){ .machine = machine,
                                    .impl = &tr_impl_trireme,
                                    .tp = l->size[TR_AXIS_TP],
                                    .pp = l->size[TR_AXIS_PP],
                                    .cp = l->size[TR_AXIS_CP],
                                    .chunks = c->opt.pp_chunks > 1 ? c->opt.pp_chunks : 1,
                                    .dp = data,
                                    .ep = 1,
                                    .zero = l->zero,
                                    .shard = shard,
                                    .has_sp = l->sp,
                                    .sync_last = tr_grad_zero(l) != l->zero,
                                    .schedule = c->opt.pp_schedule,
                                    .seq = (double)m->sequence_length,
                                    .micro = (double)(m->n_tokens / m->sequence_length),
                                    .precision = c->opt.compute_dtype == TR_F32 ? TR_PRECISION_FP32 : TR_PRECISION_16,
                                    .param_bytes = (double)tr_dtype_bytes(c->opt.compute_dtype),
                                    .grad_bytes = (double)tr_dtype_bytes(c->opt.grad_dtype),
                                    .gather_bytes = (double)tr_dtype_bytes(c->opt.compute_dtype),
                                    .state_bytes = tr_states_bytes(&c->place.states) };
    out->global = out->micro * c->opt.n_micro * data;
    out->keep = c->opt.recompute == TR_RECOMPUTE_BLOCK ? TR_KEEP_INPUT
                : c->opt.recompute == TR_RECOMPUTE_OP  ? TR_KEEP_OP
                                                       : TR_KEEP_ALL;
    tr_shape_of_model(m, &out->shape);
}

static double peak_of(const struct tr_forecast_query *a)
{
    double peak = a->machine->chip.peak[a->precision];
    return peak > 0 ? peak : a->machine->chip.peak[TR_PRECISION_16];
}

void tr_forecast_text(const struct tr_forecast_query *a, const struct tr_forecast *f, struct tr_str *out)
{
    char tokens[32];
    tr_str_addf(out, "\non %.0f x %s: %.4g s a step, %s tokens/s, MFU %.1f %%\n", f->chips, a->machine->name, f->step_s,
                tr_human_count(f->tokens_per_s, tokens, sizeof tokens),
                100 * f->flops / (f->step_s * f->chips * peak_of(a)));
    struct {
        const char *what;
        double seconds;
    } rows[] = { { "kernels", f->compute_s },
                 { "bubble", f->bubble_s },
                 { "optimizer", f->optimizer_s },
                 { "fixed", f->fixed_s },
                 { "tp, not hidden", f->exposed_s[TR_TIME_TP] },
                 { "cp, not hidden", f->exposed_s[TR_TIME_CP] },
                 { "ep, not hidden", f->exposed_s[TR_TIME_EP] },
                 { "pp, not hidden", f->exposed_s[TR_TIME_PP] },
                 { "dp, not hidden", f->exposed_s[TR_TIME_DP] },
                 { "host, not hidden", f->exposed_s[TR_TIME_OFFLOAD] } };
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        if (rows[i].seconds > 0)
            tr_str_addf(out, "  %-16s %10.4f s  %5.1f %%\n", rows[i].what, rows[i].seconds,
                        100 * rows[i].seconds / f->step_s);
}

void tr_forecast_json(const struct tr_forecast_query *a, const struct tr_forecast *f, struct tr_str *out)
{
    tr_str_member(out, "{\"machine\": ", a->machine->name);
    tr_str_addf(out,
                ", \"chips\": %.0f, \"step_s\": %.9g, \"tokens_per_s\": %.9g, \"mfu\": %.6g, \"hfu\": %.6g, "
                "\"compute_s\": %.9g, \"bubble_s\": %.9g, \"optimizer_s\": %.9g, \"fixed_s\": %.9g, \"exposed_s\": {",
                f->chips, f->step_s, f->tokens_per_s, f->flops / (f->step_s * f->chips * peak_of(a)),
                f->hardware_flops / (f->step_s * f->chips * peak_of(a)), f->compute_s, f->bubble_s, f->optimizer_s,
                f->fixed_s);
    for (int k = 0; k < TR_TIME_AXES; k++)
        tr_str_addf(out, "%s\"%s\": %.9g", k ? ", " : "", tr_axis_cost_name((enum tr_axis_cost)k), f->exposed_s[k]);
    tr_str_addf(out, "}, \"bytes\": {");
    for (int k = 0; k < TR_BYTES_KINDS; k++)
        tr_str_addf(out, "%s\"%s\": %.0f", k ? ", " : "", tr_bytes_kind_name((enum tr_bytes_kind)k), f->bytes[k]);
    tr_str_addf(out, "}}");
}
