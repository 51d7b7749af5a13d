/* impls.c - trainers whose results are published, one row each, Trireme, and the usual one, which stands for all
 * others.
 *
 * A row says how a trainer works: which kernels it has and which traffic it hides; it never says how fast one published
 * run was. Numbers come from bench_plan, which starts at priors, fits the usual row to everything and lets a trainer
 * have a number of its own only where that pays for itself: of the five that it may have, most rows write a word in
 * capitals, the usual one. Rejected: a row for each paper (few numbers each, and the next paper has none).
 */
#include "plan/forecast.h"

#define GIB (1024.0 * 1024 * 1024)

/* clang-format off */
#define PRODUCT 0.86
#define FUSION  1.75
#define TP      0.01
#define DP      0.97
#define KERNEL  10e-6
#define SHARED  .cp_hidden = 0.95, .ep_hidden = 0.17, .pp_hidden = 0.51, .dp_share = 0.84, .fixed_s = 0.056, \
                .cast_bytes = 2.3, .cp_uneven = 0.43, .core = 0.77, .permute = 2.9
#define MODERN  .attention = TR_ATTENTION_FUSED, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB, .is_balanced = true, \
                .has_sp = true, .splits_sends = true

const struct tr_impl tr_impls[] = {
    /* measured on one H200: bench/results/h200.md */
    { .name = "trireme", .words = "trireme",
      .product = 0.865, .fusion = 0.97, .tp_hidden = 0, .dp_hidden = DP, .kernel_s = 0,
      .pp_hidden = 0.5, .dp_share = 0.7, .fixed_s = 0.001, .cast_bytes = 3, .core = 0.79, .permute = 4,
      .attention = TR_ATTENTION_FUSED, .grad_bytes = 4, .logits_bytes = 2.2, .fragments = 1, .library_bytes = 1.5 * GIB,
      .score_bytes = 2.5, .is_balanced = true, .cuts_by_flops = true, .keeps_products = true, .reduces_each = true },
    { .name = "megatron-2021", .words = "SC21|Narayanan",
      .product = 0.84, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB,
      .splits_sends = true },
    { .name = "megatron-2022", .words = "Korthikanti|zero bubble|zero-bubble|Qi 2023",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = 0.36, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_PLAIN, .grad_bytes = 4, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB,
      .splits_sends = true },
    { .name = "megatron-deepspeed", .words = "BigScience|BLOOM|tr11|MT-NLG|Smith 2022",
      .product = 0.8, .fusion = 3, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1.12, .library_bytes = 8 * GIB,
      .is_balanced = true, .splits_sends = true },
    { .name = "deepspeed-zero3", .words = "DeepSpeed ZeRO-3|ZeRO-3",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = 0.61, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB,
      .uses_one_card = true },
    { .name = "mosaic", .words = "MosaicML|llm-foundry|MPT",
      .product = 0.89, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = 0.63, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_FLASH1, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB },
    { .name = "fsdp-eager", .words = "FSDP paper|PyTorch FSDP|Zhao 2023",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 12, .fragments = 1.08, .library_bytes = 3 * GIB,
      .has_sp = true },
    { .name = "fsdp-compile", .words = "fms-fsdp|torchtitan|torch.compile|compile|IBM",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 12, .fragments = 1.03, .library_bytes = 3 * GIB,
      .has_sp = true },
    { .name = "nanotron", .words = "nanotron|Ultra-Scale",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 6, .fragments = 1.08, .library_bytes = 3 * GIB,
      .has_sp = true },
    { .name = "maxtext", .words = "maxtext|JAX",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .grad_bytes = 2, MODERN },
    { .name = "bridge", .words = "(releases of Megatron-Bridge before 26.05)",
      .product = 0.99, .fusion = FUSION, .tp_hidden = 0.46, .dp_hidden = DP, .kernel_s = 19e-6, SHARED,
      .grad_bytes = 2, .overlaps_experts = true, .interleaves = true, MODERN },
    { .name = "bridge-graphs", .words = "(later ones: whole steps as CUDA graphs)",
      .product = 0.97, .fusion = 1.1, .tp_hidden = 0.49, .dp_hidden = DP, .kernel_s = 0, SHARED,
      .grad_bytes = 2, .overlaps_experts = true, .interleaves = true, MODERN },
    { .name = "megatron-core", .words = "Megatron-Core|NeMo|dgxc|AutoModel",
      .product = PRODUCT, .fusion = 0.91, .tp_hidden = 0.33, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .grad_bytes = 2, .interleaves = true, MODERN },
    { .name = "usual", .words = "(any other)",
      .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
      .grad_bytes = 4, .overlaps_experts = true, .interleaves = true, MODERN },
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

/* Rows in their order, but a source that names a model's paper beside a trainer means the trainer. */
const struct tr_impl *tr_impl_of_source(const char *text)
{
    static const char *const first[] = { "deepspeed-zero3", "maxtext", "megatron-core" };
    for (size_t i = 0; i < TR_COUNT_OF(first); i++)
        if (has_word(text, i == 2 ? "dgxc|Megatron-Bridge|NeMo|AutoModel" : tr_impl_find(first[i])->words))
            return tr_impl_find(first[i]);
    for (size_t i = 0; i < tr_n_impls; i++)
        if (has_word(text, tr_impls[i].words))
            return &tr_impls[i];
    return tr_impl_find("usual");
}
