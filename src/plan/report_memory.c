/* report_memory.c - the memory of a run, counted as published papers do. */
#include "plan/plan.h"

#define GIB (1024.0 * 1024 * 1024)

static void zero_lines(const struct tr_forecast_query *a, double n, struct tr_str *out)
{
    double d = a->shard > 0 ? a->shard : a->dp;
    tr_str_addf(out, "model states as ZeRO counts them: 16-bit parameters and gradients, Adam in fp32\n");
    for (int z = 0; z <= 3; z++)
        tr_str_addf(out, "  %c stage %d  %7.3f bytes a parameter  %10.3f GB a rank\n", z == a->zero ? '>' : ' ', z,
                    tr_zero_bytes(z, d), tr_zero_bytes(z, d) * n * 1e-9);
}

static void megatron_lines(const struct tr_forecast_query *a, double n, struct tr_str *out)
{
    double d = (double)a->dp * a->cp;
    tr_str_addf(out, "model states as Megatron counts them: bf16 parameters, fp32 gradients, Adam in fp32\n");
    for (int k = 0; k < 2; k++)
        tr_str_addf(out, "  %c %-22s %7.3f bytes a parameter  %10.3f GB a rank\n", (a->zero > 0) == (k > 0) ? '>' : ' ',
                    k ? "distributed optimizer" : "whole optimizer", tr_megatron_bytes(k > 0, d),
                    tr_megatron_bytes(k > 0, d) * n * 1e-9);
}

static void korthikanti_lines(const struct tr_forecast_query *a, struct tr_str *out)
{
    static const struct {
        const char *name;
        enum tr_keep keep;
        bool sp;
    } rows[] = { { "tensor parallel", TR_KEEP_ALL, false },
                 { "+ sequence parallel", TR_KEEP_ALL, true },
                 { "+ selective recompute", TR_KEEP_CORE, false },
                 { "+ both", TR_KEEP_CORE, true },
                 { "full recompute", TR_KEEP_INPUT, false } };
    tr_str_addf(out, "activations of the first stage as Korthikanti (2022) counts them, %.0f rows of %.0f tokens\n",
                a->micro, a->seq);
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        struct tr_forecast_query b = *a;
        b.keep = rows[i].keep;
        b.has_sp = rows[i].sp;
        tr_str_addf(out, "    %-24s %10.4f GiB  %6.2f %%\n", rows[i].name, tr_korthikanti_bytes(&b) / GIB,
                    100 * tr_korthikanti_share(&b));
    }
}

void tr_conventions_text(const struct tr_forecast_query *a, enum tr_count_as as, struct tr_str *out)
{
    double n = tr_shape_params(&a->shape) / ((double)a->tp * a->pp);
    tr_str_addf(out, "\n");
    if (as == TR_COUNT_ZERO)
        zero_lines(a, n, out);
    else if (as == TR_COUNT_MEGATRON)
        megatron_lines(a, n, out);
    else if (as == TR_COUNT_KORTHIKANTI)
        korthikanti_lines(a, out);
}
