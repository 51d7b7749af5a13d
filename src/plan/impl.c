/* impl.c - how Trireme itself works, as the forecast needs to know it. Measured on one H200 (bench/results/h200.md). */
#include "device/device.h"
#include "plan/forecast.h"

#define GIB (1024.0 * 1024 * 1024)

const struct tr_impl tr_impl_trireme = {
    .product = 0.865,
    .fusion = 0.97,
    .tp_hidden = 0,
    .dp_hidden = 0.97,
    .kernel_s = 0,
    .pp_hidden = 0.5,
    .dp_share = 0.7,
    .fixed_s = 0.001,
    .cast_bytes = 3,
    .core = 0.79,
    .permute = 4,
    .attention = TR_ATTENTION_FUSED,
    .grad_bytes = 4,
    .logits_bytes = 2.2,
    .fragments = 1,
    .library_bytes = (double)TR_GPU_BESIDE_BYTES,
    .comm_bytes =
        1.5 * GIB - (double)TR_GPU_BESIDE_BYTES, /* NCCL's, not measured: no machine with several GPUs was at hand */
    .score_bytes = 2.5,
    .is_balanced = true,
    .cuts_by_flops = true,
    .keeps_products = true,
    .reduces_each = true,
};
