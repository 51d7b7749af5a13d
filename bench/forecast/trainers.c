/* trainers.c - one row for each trainer whose results are published, Trireme's own row from the product, and the usual
 * row, which stands for every trainer that has none.
 *
 * A row says how a trainer works: which kernels it has and which traffic it hides; it never says how fast one published
 * run was. Numbers come from bench_plan, which starts at priors, fits the usual row to everything and gives a trainer a
 * number of its own only where that saves more error than it costs. Of the five numbers that may differ, most rows hold
 * a word in capitals, which is the usual number. Rejected: a row for each paper (few numbers each, and the next paper
 * has none).
 */
#include "forecast/trainers.h"

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
                .splits_sends = true
/* name, words, how it works, has_sp, interleaves */
#define IMPL(...) &(const struct tr_impl){ __VA_ARGS__ }

const struct tr_trainer tr_trainers[] = {
    { "trireme", "trireme", &tr_impl_trireme, false, false },
    { "megatron-2021", "SC21|Narayanan", IMPL(
          .product = 0.84, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB,
          .splits_sends = true),
      false, false },
    { "megatron-2022", "Korthikanti|zero bubble|zero-bubble|Qi 2023", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = 0.36, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_PLAIN, .grad_bytes = 4, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB,
          .splits_sends = true),
      false, false },
    { "megatron-deepspeed", "BigScience|BLOOM|tr11|MT-NLG|Smith 2022", IMPL(
          .product = 0.8, .fusion = 3, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1.12, .library_bytes = 8 * GIB,
          .is_balanced = true, .splits_sends = true),
      false, false },
    { "deepspeed-zero3", "DeepSpeed ZeRO-3|ZeRO-3", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = 0.61, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_PLAIN, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 4 * GIB,
          .uses_one_card = true),
      false, false },
    { "mosaic", "MosaicML|llm-foundry|MPT", IMPL(
          .product = 0.89, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = 0.63, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_FLASH1, .grad_bytes = 2, .logits_bytes = 6, .fragments = 1, .library_bytes = 3 * GIB),
      false, false },
    { "fsdp-eager", "FSDP paper|PyTorch FSDP|Zhao 2023", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 12, .fragments = 1.08, .library_bytes = 3 * GIB),
      true, false },
    { "fsdp-compile", "fms-fsdp|torchtitan|torch.compile|compile|IBM", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 12, .fragments = 1.03, .library_bytes = 3 * GIB),
      true, false },
    { "nanotron", "nanotron|Ultra-Scale", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .attention = TR_ATTENTION_FLASH2, .grad_bytes = 4, .logits_bytes = 6, .fragments = 1.08, .library_bytes = 3 * GIB),
      true, false },
    { "maxtext", "maxtext|JAX", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .grad_bytes = 2, MODERN),
      true, false },
    { "bridge", "(releases of Megatron-Bridge before 26.05)", IMPL(
          .product = 0.99, .fusion = FUSION, .tp_hidden = 0.46, .dp_hidden = DP, .kernel_s = 19e-6, SHARED,
          .grad_bytes = 2, .overlaps_experts = true, MODERN),
      true, true },
    { "bridge-graphs", "(later ones: whole steps as CUDA graphs)", IMPL(
          .product = 0.97, .fusion = 1.1, .tp_hidden = 0.49, .dp_hidden = DP, .kernel_s = 0, SHARED,
          .grad_bytes = 2, .overlaps_experts = true, MODERN),
      true, true },
    { "megatron-core", "Megatron-Core|NeMo|dgxc|AutoModel", IMPL(
          .product = PRODUCT, .fusion = 0.91, .tp_hidden = 0.33, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .grad_bytes = 2, MODERN),
      true, true },
    { "usual", "(any other)", IMPL(
          .product = PRODUCT, .fusion = FUSION, .tp_hidden = TP, .dp_hidden = DP, .kernel_s = KERNEL, SHARED,
          .grad_bytes = 4, .overlaps_experts = true, MODERN),
      true, true },
};
/* clang-format on */
const size_t tr_n_trainers = TR_COUNT_OF(tr_trainers);

const struct tr_trainer *tr_trainer_find(const char *name)
{
    for (size_t i = 0; i < tr_n_trainers; i++)
        if (strcmp(tr_trainers[i].name, name) == 0)
            return &tr_trainers[i];
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

/* The first row whose words the source holds. A source may name the paper of a model beside the trainer that ran it:
 * the trainers of `first` are looked for before all others. */
const struct tr_trainer *tr_trainer_of_source(const char *text)
{
    static const char *const first[] = { "deepspeed-zero3", "maxtext", "megatron-core" };
    for (size_t i = 0; i < TR_COUNT_OF(first); i++)
        if (has_word(text, i == 2 ? "dgxc|Megatron-Bridge|NeMo|AutoModel" : tr_trainer_find(first[i])->words))
            return tr_trainer_find(first[i]);
    for (size_t i = 0; i < tr_n_trainers; i++)
        if (has_word(text, tr_trainers[i].words))
            return &tr_trainers[i];
    return tr_trainer_find("usual");
}
