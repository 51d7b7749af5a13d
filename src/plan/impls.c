/* impls.c - trainers whose results are published, one row each, and Trireme. A row says how a trainer works: which
 * kernels it has and which traffic it hides. It never says how fast one published run was.
 */
#include "plan/forecast.h"

#define GIB (1024.0 * 1024 * 1024)

/* clang-format off */
const struct tr_impl tr_impls[] = {
    { .name = "trireme", .words = "trireme",
      .attention = TR_ATTENTION_FUSED, .fusion = 1.05, .pp_hidden = 0.5,
      .dp_share = 0.7, .grad_bytes = 4, .fixed_s = 0.001, .cast_bytes = 3, .core = 0.93, .cp_core = 1, .permute = 4, .product = 0.78,
      .logits_bytes = 6, .fragments = 1, .library_bytes = 1.5 * GIB, .is_balanced = true, .reduces_each = true },
    { .name = "megatron-2021", .words = "SC21|Narayanan",
      .attention = TR_ATTENTION_PLAIN,
      .fusion = 2.55, .dp_share = 0.459, .grad_bytes = 2, .fixed_s = 0.028, .tp_hidden = 0.88, .dp_hidden = 0.85, .kernel_s = 1e-05, .core = 1, .cp_core = 1, .permute = 4, .product = 0.841,
      .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB, .splits_sends = true },
    {
      .name = "megatron-2022", .words = "Korthikanti|zero bubble|zero-bubble|Qi 2023",
      .attention = TR_ATTENTION_PLAIN,
      .fusion = 0.945, .tp_hidden_bwd = 0.39, .dp_share = 0.245, .grad_bytes = 4, .fixed_s = 0.0655, .tp_hidden = 0.15, .kernel_s = 2e-06, .core = 1, .cp_core = 1,
      .permute = 4, .product = 0.893, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB, .splits_sends = true },
    { .name = "megatron-deepspeed", .words = "BigScience|BLOOM|tr11|MT-NLG|Smith 2022",
      .attention = TR_ATTENTION_PLAIN,
      .fusion = 2.57, .dp_share = 0.303, .grad_bytes = 2, .fixed_s = 0.742, .dp_hidden = 0.3, .kernel_s = 1e-05, .core = 1, .cp_core = 1, .permute = 4, .product = 0.793,
      .logits_bytes = 6, .fragments = 1.12, .library_bytes = 8 * GIB, .is_balanced = true, .splits_sends = true },
    { .name = "deepspeed-zero3", .words = "DeepSpeed ZeRO-3|ZeRO-3",
      .attention = TR_ATTENTION_PLAIN,
      .fusion = 1.6, .dp_hidden = 0.85, .dp_share = 0.101, .grad_bytes = 2, .fixed_s = 0.1, .core = 1, .cp_core = 1, .permute = 4,
      .product = 0.7, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB },
    { .name = "mosaic", .words = "MosaicML|llm-foundry|MPT",
      .attention = TR_ATTENTION_FLASH1, .fusion = 2.17,
      .dp_hidden = 0.71, .dp_share = 0.828, .grad_bytes = 2, .fixed_s = 0.0243, .cast_bytes = 2, .kernel_s = 1e-05, .core = 0.767, .cp_core = 1, .permute = 4,
      .product = 0.921, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB },
    { .name = "fsdp-eager", .words = "FSDP paper|PyTorch FSDP|Zhao 2023",
      .attention = TR_ATTENTION_FLASH2,
      .fusion = 3, .dp_hidden = 0.98, .dp_share = 0.93, .grad_bytes = 4, .fixed_s = 0.0196, .cast_bytes = 2, .tp_hidden = 0.6, .tp_hidden_bwd = 0.82, .kernel_s = 1e-05, .core = 1.05, .cp_core = 1,
      .permute = 4, .product = 0.856, .logits_bytes = 12, .fragments = 1.08, .library_bytes = 3 * GIB, .has_sp = true },
    {
      .name = "fsdp-compile", .words = "fms-fsdp|torchtitan|torch.compile|compile|IBM",
      .attention = TR_ATTENTION_FLASH2,
      .fusion = 1.34, .pp_hidden = 0.3, .dp_hidden = 1, .dp_share = 0.951, .grad_bytes = 4, .fixed_s = 0.02,
      .cast_bytes = 3.27, .tp_hidden_bwd = 0.67, .kernel_s = 1e-05, .core = 0.686, .cp_core = 1.26, .permute = 4, .product = 0.815, .logits_bytes = 12, .fragments = 1.03, .library_bytes = 3 * GIB, .has_sp = true },
    { .name = "nanotron", .words = "nanotron|Ultra-Scale",
      .attention = TR_ATTENTION_FLASH2, .fusion = 1.78,
      .dp_share = 0.958, .grad_bytes = 4, .fixed_s = 0.0239, .kernel_s = 9e-06, .cast_bytes = 6, .tp_hidden_bwd = 0.01, .dp_hidden = 0.75, .core = 1.14, .cp_core = 1, .permute = 4,
      .product = 0.822, .logits_bytes = 6, .fragments = 1.08, .library_bytes = 3 * GIB, .has_sp = true },
    { .name = "maxtext", .words = "maxtext|JAX",
      .attention = TR_ATTENTION_FUSED, .fusion = 1.95,
      .tp_hidden = 0.8, .tp_hidden_bwd = 0.8, .cp_hidden = 0.8, .ep_hidden = 0.5, .pp_hidden = 0.5, .dp_hidden = 1,
      .dp_share = 1, .grad_bytes = 2, .fixed_s = 0.02, .cast_bytes = 2, .core = 1.06, .cp_core = 1, .permute = 4, .product = 0.931,
      .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB, .is_balanced = true, .has_sp = true },
    /* Trainers of single papers, of which few numbers are public: rows as the papers describe them. */
    { .name = "megascale", .words = "MegaScale", .attention = TR_ATTENTION_FLASH2, .fusion = 1.2, .tp_hidden = 0.7, .tp_hidden_bwd = 0.7,
      .pp_hidden = 0.8, .dp_hidden = 0.9, .dp_share = 0.9, .grad_bytes = 4, .fixed_s = 0.05, .core = 1, .cp_core = 1, .permute = 4,
      .product = 0.93, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB, .has_sp = true, .splits_sends = true },
    { .name = "megatron-2023", .words = "(MegaScale's baseline)", .attention = TR_ATTENTION_FLASH1, .fusion = 1.4, .tp_hidden_bwd = 0.4, .dp_share = 0.8, .grad_bytes = 4, .fixed_s = 0.05, .core = 1, .cp_core = 1, .permute = 4,
      .product = 0.88, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB, .has_sp = true, .splits_sends = true },
    { .name = "llama-3", .words = "Llama 3|Llama3|Llama-3 paper|Grattafiori|Dubey", .attention = TR_ATTENTION_FUSED, .fusion = 1.3,
      .tp_hidden = 0.3, .tp_hidden_bwd = 0.5, .pp_hidden = 0.5, .dp_hidden = 0.8, .dp_share = 0.8, .grad_bytes = 4, .fixed_s = 0.1, .core = 1,
      .cp_core = 1, .permute = 4, .product = 0.85, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB, .is_balanced = true,
      .has_sp = true, .splits_sends = true },
    { .name = "deepseek", .words = "DeepSeek-V3|DeepSeek-V2|DualPipe", .attention = TR_ATTENTION_FUSED, .fusion = 1.3, .ep_hidden = 0.9,
      .pp_hidden = 0.9, .dp_hidden = 1, .dp_share = 1, .grad_bytes = 4, .fixed_s = 0.1, .cast_bytes = 3, .core = 1, .cp_core = 1, .permute = 4,
      .product = 0.85, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB, .is_balanced = true, .splits_sends = true },
    {
      .name = "megatron-2025", .words = "(releases of Megatron-Bridge before 26.05)",
      .attention = TR_ATTENTION_FUSED,
      .fusion = 0.9, .tp_hidden = 0.9, .tp_hidden_bwd = 0.87, .cp_hidden = 0.9, .pp_hidden = 0.64, .dp_hidden = 1,
      .dp_share = 1, .grad_bytes = 2, .fixed_s = 0.0196, .cast_bytes = 5, .kernel_s = 1e-05, .core = 0.744, .cp_core = 1, .permute = 10.1, .product = 1,
      .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB, .is_balanced = true, .has_sp = true, .splits_sends = true },
    {
      .name = "megatron-core", .words = "Megatron|NeMo|dgxc|MCore|AutoModel",
      .attention = TR_ATTENTION_FUSED,
      .fusion = 1.38, .tp_hidden = 0.55, .tp_hidden_bwd = 0.61, .cp_hidden = 0.85, .ep_hidden = 0.17, .pp_hidden = 0.82,
      .dp_hidden = 1, .dp_share = 1, .grad_bytes = 2, .fixed_s = 0.0935, .cast_bytes = 2, .kernel_s = 7e-06, .core = 1.14, .cp_core = 1.28, .permute = 2,
      .product = 0.864, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB, .is_balanced = true, .has_sp = true, .splits_sends = true },
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
    if (has_word(text, "dgxc|Megatron-Bridge|NeMo|AutoModel")) /* whatever model they name */
        return tr_impl_find("megatron-core");
    if (has_word(text, "MegaScale") && has_word(text, "Megatron"))
        return tr_impl_find("megatron-2023");
    for (size_t i = 0; i < tr_n_impls; i++)
        if (has_word(text, tr_impls[i].words))
            return &tr_impls[i];
    return tr_impl_find("megatron-core");
}
