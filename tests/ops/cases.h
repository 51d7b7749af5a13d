/* cases.h - the one table of op cases: it drives derivatives, parity, bit identity and speed.
 *
 * `cases` holds sizes and attributes of forward and stand-alone ops; every case also drives the backward ops of its
 * forward op.
 */
#ifndef TR_TESTS_OPS_CASES_H
#define TR_TESTS_OPS_CASES_H

#include "ops/shapes.h"

enum { RAGGED = -1 };

struct op_case {
    enum tr_opcode op;
    const char *label;
    int64_t n, d, o, v;
    int64_t rope_cols;
    int64_t pack;         /* rows per document, 0 = one document, RAGGED = of many lengths, in rows of seq_len */
    int64_t index_spread; /* embed: indices reach this far outside the table */
    bool is_bare;         /* optional views absent */
    bool has_history;     /* quant: with what the past found */
    int e5m2;             /* which 8-bit float is e5m2 (1, 2), the others are e4m3 */
    bool is_speed;        /* a real size: only --speed runs it */
    struct tr_attr attr;
};

#define HEADS(q, kv, d) .n_heads_q = (q), .n_heads_kv = (kv), .head_dim = (d)

static const struct op_case cases[] = {
    { TR_OP_EMBED, "one row", .n = 1, .d = 7, .v = 5 },
    { TR_OP_EMBED, "repeated tokens, scaled", .n = 33, .d = 24, .v = 6, .attr = { .scale = 4.5f } },
    { TR_OP_EMBED, "offset", .n = 9, .d = 16, .v = 11, .attr = { .index_offset = 2 } },
    { TR_OP_EMBED, "shard of rows", .n = 40, .d = 8, .v = 5, .index_spread = 4, .attr = { .index_offset = -5 } },
    { TR_OP_EMBED, "turned", .n = 21, .d = 5, .v = 9, .attr = { .scale = 0.5f, .weight_is_in_out = true } },
    { TR_OP_EMBED, "turned shard", .n = 40, .d = 3, .v = 5, .index_spread = 4,
      .attr = { .index_offset = -5, .weight_is_in_out = true } },
    { TR_OP_ROW_SQUARES, "odd", .d = 45, .o = 19, .attr = { .scale = 2 } },
    { TR_OP_ROW_SQUARES, "wide", .d = 1030, .o = 5, .attr = { .scale = 0.25f } },
    { TR_OP_ROW_SQUARES, "bare", .d = 130, .o = 21, .is_bare = true, .attr = { .scale = 0.5f } },
    { TR_OP_ROW_SQUARES, "in,out", .d = 37, .o = 22, .attr = { .weight_is_in_out = true } },
    { TR_OP_COL_SCALE, "odd", .n = 13, .d = 45 },
    { TR_OP_COL_SCALE, "bare", .n = 70, .d = 520, .is_bare = true },
    { TR_OP_LINEAR, "1x1x1", .n = 1, .d = 1, .o = 1 },
    { TR_OP_LINEAR, "one row", .n = 1, .d = 7, .o = 9 },
    { TR_OP_LINEAR, "decoded", .n = 1, .d = 700, .o = 75, .attr = { .is_decoded = true } },
    { TR_OP_LINEAR, "sums", .n = 1, .d = 61, .o = 530, .attr = { .is_decoded = true, .weight_is_in_out = true } },
    { TR_OP_LINEAR, "odd", .n = 17, .d = 33, .o = 29 },
    { TR_OP_LINEAR, "bare", .n = 5, .d = 64, .o = 48, .is_bare = true },
    { TR_OP_LINEAR, "tall", .n = 131, .d = 12, .o = 5 },
    { TR_OP_LINEAR, "deep", .n = 6, .d = 700, .o = 40 },
    { TR_OP_LINEAR, "in,out", .n = 13, .d = 31, .o = 21, .attr = { .weight_is_in_out = true } },
    { TR_OP_LINEAR, "in,out bare", .n = 70, .d = 64, .o = 96, .is_bare = true, .attr = { .weight_is_in_out = true } },
    { TR_OP_LAYERNORM, "one row", .n = 1, .d = 7, .attr = { .eps = 1e-5f } },
    { TR_OP_LAYERNORM, "wide", .n = 9, .d = 776, .attr = { .eps = 1e-5f } },
    { TR_OP_LAYERNORM, "odd", .n = 37, .d = 45, .attr = { .eps = 1e-5f } },
    { TR_OP_LAYERNORM, "bare", .n = 6, .d = 128, .is_bare = true, .attr = { .eps = 1e-5f } },
    { TR_OP_RMSNORM, "one row", .n = 1, .d = 7, .attr = { .eps = 1e-6f } },
    { TR_OP_RMSNORM, "offset", .n = 37, .d = 45, .attr = { .eps = 1e-6f, .weight_offset = 1 } },
    { TR_OP_RMSNORM, "bare", .n = 6, .d = 128, .is_bare = true, .attr = { .eps = 1e-6f } },
    { TR_OP_RMSNORM, "heads of 8", .n = 11, .d = 24, .attr = { .eps = 1e-6f, .group = 8 } },
    { TR_OP_RMSNORM, "heads of 80", .n = 5, .d = 240, .is_bare = true, .attr = { .eps = 1e-6f, .group = 80 } },

    { TR_OP_ROPE, "full", .n = 9, .d = 24, .v = 9, .rope_cols = 8, .attr = { .head_dim = 8 } },
    { TR_OP_ROPE, "part of a head", .n = 7, .d = 160, .v = 7, .rope_cols = 32, .attr = { .head_dim = 80 } },
    { TR_OP_ROPE, "packed", .n = 13, .d = 128, .v = 5, .rope_cols = 64, .pack = 5, .attr = { .head_dim = 64 } },
    { TR_OP_ROPE, "back", .n = 3, .d = 12, .v = 3, .rope_cols = 6, .attr = { .head_dim = 6, .inverse = true } },
    { TR_OP_ROPE, "neighbours", .n = 9, .d = 128, .v = 9, .rope_cols = 64,
      .attr = { .head_dim = 64, .is_interleaved = true } },
    { TR_OP_ROPE, "neighbours, part of a head", .n = 7, .d = 48, .v = 7, .rope_cols = 10,
      .attr = { .head_dim = 24, .is_interleaved = true } },
    { TR_OP_REGROUP, "a key head each", .n = 5, .d = 120, .attr = { HEADS(5, 5, 8) } },
    { TR_OP_REGROUP, "grouped", .n = 3, .d = 160, .attr = { HEADS(6, 2, 16) } },
    { TR_OP_REGROUP, "odd, one key head", .n = 4, .d = 35, .attr = { HEADS(3, 1, 7) } },

    { TR_OP_ATTENTION, "one row", .n = 1, .attr = { HEADS(1, 1, 8), .scale = 0.35f } },
    { TR_OP_ATTENTION, "heads of 8", .n = 19, .attr = { HEADS(2, 2, 8), .scale = 0.35f } },
    { TR_OP_ATTENTION, "heads of 7", .n = 12, .attr = { HEADS(2, 1, 7) } },
    { TR_OP_ATTENTION, "long", .n = 150, .attr = { HEADS(1, 1, 16), .scale = 0.25f } },
    { TR_OP_ATTENTION, "grouped 64", .n = 21, .pack = 9, .attr = { HEADS(4, 2, 64), .scale = 0.125f } },
    { TR_OP_ATTENTION, "one key head, 80", .n = 14, .attr = { HEADS(3, 1, 80), .scale = 0.11f } },
    { TR_OP_ATTENTION, "window, 128", .n = 23, .attr = { HEADS(2, 1, 128), .scale = 0.09f, .window = 5 } },
    { TR_OP_ATTENTION, "capped, 256", .n = 10, .attr = { HEADS(2, 2, 256), .scale = 0.3f, .softcap = 1.5f } },
    { TR_OP_ATTENTION, "packs and window", .n = 90, .pack = 33,
      .attr = { HEADS(2, 1, 16), .scale = 0.25f, .window = 9 } },
    { TR_OP_ATTENTION, "window of one", .n = 6, .attr = { HEADS(1, 1, 8), .scale = 0.3f, .window = 1 } },
    { TR_OP_ATTENTION, "dropout", .n = 26, .pack = 11,
      .attr = { HEADS(4, 2, 16), .scale = 0.25f, .dropout_p = 0.3f, .key = 77, .first = 4, .softcap = 3 } },

    { TR_OP_ATTENTION_CACHED, "one row", .n = 1, .v = 1, .attr = { HEADS(1, 1, 8), .scale = 0.35f } },
    { TR_OP_ATTENTION_CACHED, "grouped 64", .n = 90, .v = 180, .pack = 71, .attr = { HEADS(4, 2, 64), .scale = .1f } },
    { TR_OP_ATTENTION_CACHED, "window, 80", .n = 5, .v = 41, .attr = { HEADS(3, 1, 80), .scale = 0.11f, .window = 7 } },
    { TR_OP_ATTENTION_CACHED, "capped, 7", .n = 6, .v = 40,
      .attr = { HEADS(2, 2, 7), .scale = 0.3f, .softcap = 1.5f } },

    { TR_OP_ACT, "none", .n = 3, .d = 7, .attr = { .act = TR_ACT_NONE } },
    { TR_OP_ACT, "relu", .n = 3, .d = 37, .attr = { .act = TR_ACT_RELU } },
    { TR_OP_ACT, "gelu", .n = 5, .d = 37, .attr = { .act = TR_ACT_GELU } },
    { TR_OP_ACT, "gelu_tanh", .n = 1, .d = 70, .attr = { .act = TR_ACT_GELU_TANH } },
    { TR_OP_ACT, "silu", .n = 40, .d = 9, .attr = { .act = TR_ACT_SILU } },
    { TR_OP_GLU, "silu", .n = 6, .d = 39, .attr = { .act = TR_ACT_SILU } },
    { TR_OP_GLU, "gelu_tanh", .n = 1, .d = 7, .attr = { .act = TR_ACT_GELU_TANH } },
    { TR_OP_GLU, "gelu", .n = 33, .d = 16, .attr = { .act = TR_ACT_GELU } },
    { TR_OP_GLU, "relu", .n = 2, .d = 64, .attr = { .act = TR_ACT_RELU } },

    { TR_OP_ADD, "odd", .n = 5, .d = 37 },
    { TR_OP_SCALE, "0.3", .n = 5, .d = 37, .attr = { .scale = 0.3f } },
    { TR_OP_SCALE, "unset", .n = 1, .d = 7 },
    { TR_OP_NOISE, "packed", .n = 21, .d = 45, .pack = 8, .attr = { .scale = 0.3f, .key = 5 } },
    { TR_OP_NOISE, "column shard", .n = 4, .d = 7, .attr = { .scale = 2.0f, .key = 5, .first = 1026 } },
    { TR_OP_DROPOUT, "packed", .n = 21, .d = 45, .pack = 8, .attr = { .dropout_p = 0.25f, .key = 5 } },
    { TR_OP_DROPOUT, "column shard", .n = 4, .d = 7, .attr = { .dropout_p = 0.5f, .key = 5, .first = 1026 } },
    { TR_OP_DROPOUT, "off", .n = 2, .d = 9, .attr = { .key = 5 } },

    { TR_OP_HEAD_LOSS, "one row", .n = 1, .d = 7, .o = 3, .v = 11 },
    { TR_OP_HEAD_LOSS, "odd", .n = 19, .d = 33, .o = 3, .v = 101 },
    { TR_OP_HEAD_LOSS, "bare", .n = 66, .d = 16, .v = 40, .is_bare = true },
    { TR_OP_HEAD_LOSS, "wide", .n = 3, .d = 8, .o = 3, .v = 1500 },
    { TR_OP_HEAD_LOSS, "rows with a target together", .n = 43, .d = 12, .o = 5, .v = 101 },
    { TR_OP_HEAD_LOSS, "capped and scaled", .n = 9, .d = 24, .o = 3, .v = 50, .attr = { .softcap = 2, .scale = 0.7f } },

    { TR_OP_HEAD_STATS, "first part", .n = 19, .d = 33, .o = 3, .v = 101 },
    { TR_OP_HEAD_STATS, "later part", .n = 9, .d = 8, .v = 40, .is_bare = true, .attr = { .first = 25 } },
    { TR_OP_HEAD_STATS, "capped and scaled", .n = 9, .d = 24, .o = 3, .v = 50,
      .attr = { .softcap = 2, .scale = 0.7f } },
    { TR_OP_HEAD_COMBINE, "one rank", .n = 7, .v = 7 },
    { TR_OP_HEAD_COMBINE, "three ranks", .n = 5, .v = 15 },
    { TR_OP_HEAD_GRAD, "first part", .n = 19, .d = 33, .o = 3, .v = 101 },
    { TR_OP_HEAD_GRAD, "later part", .n = 9, .d = 8, .v = 40, .is_bare = true, .attr = { .first = 25 } },
    { TR_OP_HEAD_GRAD, "capped and scaled", .n = 9, .d = 24, .o = 3, .v = 50, .attr = { .softcap = 2, .scale = 0.7f } },
    { TR_OP_LINEAR_ADD, "odd", .n = 17, .d = 33, .o = 29 },
    { TR_OP_LINEAR_ADD, "in,out", .n = 70, .d = 64, .o = 96, .attr = { .weight_is_in_out = true } },
    { TR_OP_LINEAR_ACT, "odd, silu", .n = 17, .d = 33, .o = 29, .attr = { .act = TR_ACT_SILU } },
    { TR_OP_LINEAR_ACT, "gelu_tanh", .n = 64, .d = 64, .o = 96, .attr = { .act = TR_ACT_GELU_TANH } },
    { TR_OP_LINEAR_ACT, "gelu_tanh in,out", .n = 64, .d = 64, .o = 96,
      .attr = { .act = TR_ACT_GELU_TANH, .weight_is_in_out = true } },
    { TR_OP_LINEAR_DX_ACT, "odd, relu", .n = 17, .d = 33, .o = 29, .attr = { .act = TR_ACT_RELU } },
    { TR_OP_LINEAR_DX_ACT, "gelu_tanh", .n = 64, .d = 96, .o = 64, .attr = { .act = TR_ACT_GELU_TANH } },
    { TR_OP_LINEAR_DX_ACT, "gelu_tanh in,out", .n = 64, .d = 96, .o = 64,
      .attr = { .act = TR_ACT_GELU_TANH, .weight_is_in_out = true } },

    { TR_OP_DEQUANT, "one", .o = 1, .d = 1, .attr = { .packed = TR_PACKED_NF4 } },
    { TR_OP_DEQUANT, "nf4, odd", .o = 7, .d = 45, .attr = { .packed = TR_PACKED_NF4 } },
    { TR_OP_DEQUANT, "nf4, whole grains", .o = 96, .d = 320, .attr = { .packed = TR_PACKED_NF4 } },
    { TR_OP_DEQUANT, "fp4, odd", .o = 129, .d = 129, .attr = { .packed = TR_PACKED_FP4 } },
    { TR_OP_DEQUANT, "fp8, odd", .o = 131, .d = 67, .attr = { .packed = TR_PACKED_FP8 } },
    { TR_OP_DEQUANT, "fp8, whole grains", .o = 96, .d = 256, .attr = { .packed = TR_PACKED_FP8 } },
    { TR_OP_DEQUANT, "fp4, grains over rows", .o = 200, .d = 96, .attr = { .packed = TR_PACKED_FP4 } },

    { TR_OP_QUANT, "one", .n = 1, .d = 1 },
    { TR_OP_QUANT, "odd", .n = 37, .d = 45 },
    { TR_OP_QUANT, "tiles", .n = 272, .d = 144 },
    { TR_OP_QUANT, "e5m2, odd", .n = 37, .d = 45, .e5m2 = 1 },
    { TR_OP_QUANT, "e5m2, tiles", .n = 272, .d = 144, .e5m2 = 1 },
    { TR_OP_QUANT, "past, odd", .n = 37, .d = 45, .has_history = true },
    { TR_OP_QUANT, "past, tiles, e5m2", .n = 272, .d = 144, .e5m2 = 1, .has_history = true },
    { TR_OP_MATMUL8, "odd", .n = 17, .d = 33, .o = 29 },
    { TR_OP_MATMUL8, "tiles", .n = 64, .d = 96, .o = 48 },
    { TR_OP_MATMUL8, "gradient", .n = 48, .d = 64, .o = 32, .is_bare = true, .attr = { .is_gradient = true } },
    { TR_OP_MATMUL8, "e5m2 first", .n = 48, .d = 64, .o = 32, .e5m2 = 1, .attr = { .is_gradient = true } },
    { TR_OP_MATMUL8, "e5m2 second", .n = 48, .d = 64, .o = 32, .e5m2 = 2, .attr = { .is_gradient = true } },
    { TR_OP_MATMUL8, "e5m2 second, odd", .n = 17, .d = 33, .o = 29, .e5m2 = 2 },

    { TR_OP_SUM, "odd", .n = 1001, .d = 1 },
    { TR_OP_SUM, "columns", .n = 77, .d = 6 },
    { TR_OP_DFT_LOSS, "tokens", .n = 91 },
    { TR_OP_DOC_SUMS, "documents", .n = 91, .v = 9, .pack = 13 },
    { TR_OP_PAIR_LOSS, "ipo", .n = 60, .pack = 7, .attr = { .pair = { TR_PAIR_IPO, .beta = 0.3f, .nll = 0.5f } } },
    { TR_OP_SUMSQ, "odd", .n = 1, .d = 1003 },
    { TR_OP_SUMSQ, "over two chunks", .n = 1, .d = 140001 },

    { TR_OP_ADAMW, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9 } },
    { TR_OP_ADAMW, "from an odd element", .n = 1, .d = 37, .attr = { .key = 9, .first = 5 } },
    { TR_OP_ADAMW, "bare", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9, .first = 1LL << 33 } },
    { TR_OP_ADAMW8, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9 } },
    { TR_OP_ADAMW8, "whole blocks", .n = 1, .d = 1024, .attr = { .decay = true, .key = 9, .first = 1LL << 33 } },
    { TR_OP_ADAMW8, "bare", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9, .first = 256 } },
    { TR_OP_LION, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9 } },
    { TR_OP_LION, "bare", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9, .first = 123 } },
    { TR_OP_LION8, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9 } },
    { TR_OP_LION8, "bare", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9, .first = 256 } },
    { TR_OP_SGD, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9, .first = 4 } },
    { TR_OP_SGD, "bare: no momentum", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9 } },
    { TR_OP_MUON, "odd", .n = 1, .d = 1031, .attr = { .key = 9, .first = 4 } },
    { TR_OP_ORTHOGONAL, "wide", .n = 13, .d = 45 },
    { TR_OP_ORTHOGONAL, "tall", .n = 70, .d = 24 },
    { TR_OP_MUON_APPLY, "decay and copy", .n = 1, .d = 1031, .attr = { .decay = true, .key = 9, .first = 5 } },
    { TR_OP_MUON_APPLY, "bare", .n = 1, .d = 7, .is_bare = true, .attr = { .key = 9 } },
    { TR_OP_CAST, "odd", .n = 5, .d = 37 },
    { TR_OP_ZERO, "odd", .n = 5, .d = 37 },
    { TR_OP_ALL_REDUCE, "one rank", .n = 5, .d = 37 },
    { TR_OP_ALL_GATHER, "one rank", .n = 5, .d = 37 },
    { TR_OP_REDUCE_SCATTER, "one rank", .n = 5, .d = 37 },
    { TR_OP_ALL_TO_ALL, "one rank", .n = 5, .d = 37 },
    { TR_OP_RING_ATTENTION, "one rank", .n = 21, .pack = 9, .attr = { HEADS(4, 2, 16), .scale = 0.25f } },
    { TR_OP_COPY, "one rank", .n = 5, .d = 37 },

    { TR_OP_EMBED, "speed", .n = 1024, .d = 768, .v = 50257, .is_speed = true },
    { TR_OP_LINEAR, "speed qkv", .n = 1024, .d = 768, .o = 2304, .is_speed = true },
    { TR_OP_LINEAR, "speed qkv in,out", .n = 1024, .d = 768, .o = 2304, .is_speed = true,
      .attr = { .weight_is_in_out = true } },
    { TR_OP_LAYERNORM, "speed", .n = 1024, .d = 768, .is_speed = true, .attr = { .eps = 1e-5f } },
    { TR_OP_RMSNORM, "speed", .n = 1024, .d = 1024, .is_speed = true, .attr = { .eps = 1e-6f } },
    { TR_OP_RMSNORM, "speed heads", .n = 1024, .d = 1024, .is_speed = true, .attr = { .eps = 1e-6f, .group = 128 } },
    { TR_OP_ROPE, "speed", .n = 1024, .d = 1024, .v = 1024, .rope_cols = 128, .is_speed = true,
      .attr = { .head_dim = 128 } },
    { TR_OP_ATTENTION, "speed 12x64", .n = 1024, .is_speed = true, .attr = { HEADS(12, 12, 64), .scale = 0.125f } },
    { TR_OP_ATTENTION, "speed 8/2x128", .n = 1024, .is_speed = true, .attr = { HEADS(8, 2, 128), .scale = 0.09f } },
    { TR_OP_ACT, "speed gelu_tanh", .n = 1024, .d = 3072, .is_speed = true, .attr = { .act = TR_ACT_GELU_TANH } },
    { TR_OP_ACT, "speed gelu", .n = 1024, .d = 3072, .is_speed = true, .attr = { .act = TR_ACT_GELU } },
    { TR_OP_GLU, "speed silu", .n = 1024, .d = 3072, .is_speed = true, .attr = { .act = TR_ACT_SILU } },
    { TR_OP_ADD, "speed", .n = 1024, .d = 1024, .is_speed = true },
    { TR_OP_NOISE, "speed", .n = 1024, .d = 1024, .is_speed = true, .attr = { .scale = 0.1f } },
    { TR_OP_DROPOUT, "speed", .n = 1024, .d = 1024, .is_speed = true, .attr = { .dropout_p = 0.1f } },
    { TR_OP_HEAD_LOSS, "speed", .n = 256, .d = 768, .v = 50257, .is_bare = true, .is_speed = true },
    { TR_OP_SUMSQ, "speed", .n = 1, .d = 1 << 22, .is_speed = true },
    { TR_OP_ADAMW8, "speed", .n = 1, .d = 1 << 22, .is_speed = true, .attr = { .decay = true } },
    { TR_OP_ADAMW, "speed", .n = 1, .d = 1 << 22, .is_speed = true, .attr = { .decay = true } },
    { TR_OP_DEQUANT, "speed nf4", .o = 4096, .d = 1024, .is_speed = true, .attr = { .packed = TR_PACKED_NF4 } },
    { TR_OP_CAST, "speed", .n = 1024, .d = 4096, .is_speed = true },
};

#endif
