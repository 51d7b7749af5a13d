/* impls.c - trainers whose results are published, one row each, and Trireme. A row says how a trainer works: which
 * kernels it has and which traffic it hides. It never says how fast one published run was.
 */
#include "plan/forecast.h"

#define GIB (1024.0 * 1024 * 1024)

/* clang-format off */
const struct tr_impl tr_impls[] = {
    /* name, words, attention, fusion, hidden: tp tp_bwd cp ep pp dp, dp_share, grad_bytes, fixed, kernel, cast, product, library, balanced, sp */
    { "trireme", "trireme", TR_ATTENTION_FUSED, 1.2, 0, 0, 0, 0, 0.5, 0, 0.7, 4, 0.001, 0, 3, 1, 1.5 * GIB, false, true },
    { "megatron-2021", "SC21|Narayanan|MT-NLG|Smith 2022", TR_ATTENTION_PLAIN, 1.4, 0, 0, 0, 0, 0, 0, 0.5, 2, 0.05, 0, 3, 0.95, 3 * GIB, false, false },
    { "megatron-2022", "Korthikanti|MegaScale|zero bubble|zero-bubble|Qi 2023", TR_ATTENTION_PLAIN, 1.4, 0, 0.7, 0, 0, 0, 0, 0.5, 4, 0.05, 0, 3, 0.95, 3 * GIB, false, false },
    { "megatron-deepspeed", "BigScience|BLOOM|tr11", TR_ATTENTION_PLAIN, 1.6, 0, 0, 0, 0, 0, 0, 0.7, 2, 0.3, 0, 3, 0.92, 5 * GIB, true, false },
    { "deepspeed-zero3", "DeepSpeed ZeRO-3|ZeRO-3", TR_ATTENTION_PLAIN, 1.6, 0, 0, 0, 0, 0, 1, 0.08, 2, 0.1, 0, 3, 0.92, 4 * GIB, false, false },
    { "mosaic", "MosaicML|llm-foundry|MPT", TR_ATTENTION_FLASH1, 2.0, 0, 0, 0, 0, 0, 1, 1, 2, 0.02, 0, 6, 0.95, 3 * GIB, false, false },
    { "fsdp-eager", "FSDP paper|PyTorch FSDP|Zhao 2023", TR_ATTENTION_FLASH1, 2.2, 0, 0, 0, 0, 0, 1, 1, 2, 0.02, 0, 6, 0.95, 3 * GIB, false, false },
    { "fsdp-compile", "fms-fsdp|torchtitan|torch.compile|compile|IBM", TR_ATTENTION_FLASH2, 1.2, 0, 0, 0, 0, 0.3, 1, 1, 2, 0.02, 0, 4, 0.95, 3 * GIB, false, true },
    { "nanotron", "nanotron|Ultra-Scale", TR_ATTENTION_FLASH2, 2.2, 0, 0, 0, 0, 0, 0, 0.5, 4, 0.05, 2e-6, 6, 0.9, 3 * GIB, false, true },
    { "maxtext", "maxtext|JAX", TR_ATTENTION_FUSED, 1.3, 0.8, 0.8, 0.8, 0.5, 0.5, 1, 1, 2, 0.02, 0, 4, 0.95, 3 * GIB, true, true },
    { "megatron-core", "Megatron|NeMo|dgxc|MCore|AutoModel|Llama 3|DeepSeek", TR_ATTENTION_FUSED, 1.2, 0.6, 0.7, 0.9, 0.3, 0.7, 0.9, 0.8, 2, 0.02, 0, 3, 0.95, 4 * GIB, true, true },
};
/* clang-format on */
const size_t tr_n_impls = TR_COUNT_OF(tr_impls);

const struct tr_impl *tr_impl_find(const char *name)
{
    for (size_t i = 0; i < tr_n_impls; i++)
        if (strcmp(tr_impls[i].name, name) == 0)
            return &tr_impls[i];
    return NULL;
}

static bool has_word(const char *text, const char *words)
{
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, "|");
        for (const char *t = text; *t; t++)
            if (strncasecmp(t, w, n) == 0)
                return true;
        w += n + (w[n] == '|');
    }
    return false;
}

/* The more special rows come first among those that say the same word, but zero 3 of 2021 stands inside SC21's. */
const struct tr_impl *tr_impl_of_source(const char *text)
{
    const struct tr_impl *zero3 = tr_impl_find("deepspeed-zero3");
    if (has_word(text, zero3->words))
        return zero3;
    if (has_word(text, "maxtext"))
        return tr_impl_find("maxtext");
    for (size_t i = 0; i < tr_n_impls; i++)
        if (has_word(text, tr_impls[i].words))
            return &tr_impls[i];
    return tr_impl_find("megatron-core");
}
