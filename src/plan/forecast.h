/* forecast.h - seconds and bytes of a training step, for any layout on any machine, without running it.
 *
 * One function, tr_forecast(), turns (shape, layout, batch, precision, machine, implementation) into a forecast. It
 * prices the operations of one layer, of the embedding and of the head, assigns layers to pipeline stages, and plays
 * the pipeline schedule; it allocates little and takes well under a millisecond, so a search may call it thousands of
 * times. How a trainer works (which attention kernel, which traffic hides behind compute) is a struct tr_impl. This
 * room holds one, Trireme's; bench/forecast has those of other trainers, to test the forecast on published results.
 * See docs/adr/0005-forecast.md.
 */
#ifndef TR_PLAN_FORECAST_H
#define TR_PLAN_FORECAST_H

#include "plan/machine.h"

/* A transformer, as far as cost goes. Counts are doubles: products of them go past 2^63. */
struct tr_shape_cost {
    double layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool is_gated, is_tied;
    double experts, top_k, shared_ffn; /* mixture: ffn is one expert's; shared_ffn: what every token passes too */
    double local_share;                /* layers whose attention sees a short window */
    double dense_layers, dense_ffn;    /* of `layers`, the first without experts */
    double q_rank, kv_rank, rope_dim;  /* latent attention (DeepSeek); q_rank 0: none */
    double n_further;                  /* layers that predict a further token, each with the head once more */
};

enum tr_keep { /* what backward computes again */
               TR_KEEP_ALL,
               TR_KEEP_CORE,  /* the core of attention again: Korthikanti's selective */
               TR_KEEP_OP,    /* half of the products and what is cheap: torchtitan's selective op */
               TR_KEEP_HALF,  /* every second layer again */
               TR_KEEP_INPUT, /* the whole layer again */
               TR_KEEP_AUTO,  /* not stated: all of as many layers as fit the chip, the input of the others */
};

enum tr_attention { TR_ATTENTION_PLAIN, TR_ATTENTION_FLASH1, TR_ATTENTION_FLASH2, TR_ATTENTION_FUSED };

/* How a trainer works, not how fast its chips are. Shares are of the traffic's time. */
struct tr_impl {
    double product;   /* share of the chip's gemm_share that products inside a training step reach */
    double fusion;    /* bytes of what is not a product, over those of a fully fused layer */
    double tp_hidden; /* behind compute: traffic of tensor ranks */
    double dp_hidden; /* and of gradients and sharded weights */
    double kernel_s;  /* a kernel: what the host adds when it cannot keep ahead */
    double cp_hidden, ep_hidden, pp_hidden;
    double dp_share;   /* of the slow link, when the ranks of a node each drive a ring of their own */
    double fixed_s;    /* a step: loader, logging, norm, scaler */
    double cast_bytes; /* fp8 and fp4: moved for each element that is cast */
    double cp_uneven;  /* attention of context ranks: 0 the same work for all; 1 rows in order, the last sees most */
    double core;       /* its attention kernels, over those of that kind at their best */
    double permute;    /* experts: passes over the copies of tokens, there and back */
    /* facts */
    enum tr_attention attention;
    double grad_bytes;    /* of a gradient on its way */
    double logits_bytes;  /* held of a logit where it is largest */
    double fragments;     /* what the allocator holds, over what is used */
    double library_bytes; /* context, libraries, allocator; where ranks talk comm_bytes more */
    double comm_bytes;
    double score_bytes;  /* of a score while attention's backward runs in a fixed order, on a GPU; 0: no scores, and an
                            allocator finds room for a layer's temporaries among what is kept */
    bool is_balanced;    /* stages are cut so that embedding and head count as layers */
    bool cuts_by_flops;  /* and an embedding, which has none, comes on top of its stage */
    bool keeps_products; /* recompute op keeps what every product gave; else every second one's */
    bool reduces_each;   /* zero 2: sharded gradients leave after every micro-batch, not after the last */
    bool uses_one_card;  /* each rank broadcasts its shard in turn, over its own network card, not all of a node's */
    bool overlaps_experts; /* between nodes, interleaved: tokens travel behind the kernels of another micro-batch */
    bool splits_sends;     /* tensor ranks send a part each to the next stage, which gathers it */
};
extern const struct tr_impl tr_impl_trireme;

#define TR_ASYNCHRONOUS 0.6 /* hidden share of traffic that a trainer splits up to run it behind kernels */
/* Traffic that runs behind kernels takes some of their multiprocessors and bandwidth (Calculon: 15 % in a node). */
#define TR_CONTENTION 0.12

struct tr_forecast_query {
    struct tr_shape_cost shape;
    const struct tr_machine *machine;
    const struct tr_impl *impl;
    int tp, pp, chunks, cp, dp, ep; /* chips: tp * pp * cp * dp */
    bool splits_experts;            /* tensor ranks hold parts of each expert; else whole experts, and tokens apart */
    int zero, shard;                /* shard: ranks that hold one copy between them; 0: all of dp (x cp) */
    bool is_frozen;                 /* adapters alone learn: no gradients of weights, nothing to reduce */
    double adapter_share;           /* is_frozen: parameters of the adapters, over those of the model */
    bool has_sp, sync_last;         /* sync_last: zero 2 and 3 hold gradients whole and reduce them once a step */
    const char *schedule;           /* NULL: 1f1b, or interleaved when chunks > 1 */
    double seq, micro, global;      /* tokens of a row; rows of a micro-batch; rows of a step */
    enum tr_precision precision;    /* precision of the products */
    double param_bytes, grad_bytes, state_bytes; /* of a parameter: compute copy, gradient, master and moments */
    double gather_bytes, cast_bytes;             /* of a parameter on its way (zero 3); moved to cast it for each use */
    enum tr_keep keep;
    bool casts_rows;    /* float8 with a scale for each row: the casts of 8 bit, products no faster than 16 */
    bool is_bound;      /* nothing is played: a time that the schedule, or without one any schedule, cannot beat */
    double (*slots)[4]; /* pp * chunks rows to fill, or NULL: what each kind of slot of a stage takes */
};

enum tr_axis_cost { TR_TIME_TP, TR_TIME_CP, TR_TIME_EP, TR_TIME_PP, TR_TIME_DP, TR_TIME_OFFLOAD, TR_TIME_AXES };
enum tr_bytes_kind {
    TR_BYTES_PARAMS,
    TR_BYTES_GRADS,
    TR_BYTES_STATE,
    TR_BYTES_ACTS,
    TR_BYTES_WORK, /* logits, gathered weights, one layer's temporaries */
    TR_BYTES_LIBRARY,
    TR_BYTES_KINDS
};
const char *tr_axis_cost_name(enum tr_axis_cost a);
const char *tr_bytes_kind_name(enum tr_bytes_kind k);

struct tr_forecast {
    double step_s, tokens_per_s; /* of all chips */
    double chips, n_micro;
    double compute_s;                                     /* busy with kernels: the busiest rank */
    double comm_s[TR_TIME_AXES], exposed_s[TR_TIME_AXES]; /* traffic, and what of it nothing hides */
    double bubble_s, optimizer_s, fixed_s;
    double message_s;                          /* from a slot's end until the next stage can start */
    double layer_forward_s, layer_backward_s;  /* of one layer, traffic and recompute included */
    double flops, hardware_flops;              /* of a step, all chips: needed (causal), and done */
    double parameters, rank_parameters;        /* of the model; of the fullest rank */
    double bytes[TR_BYTES_KINDS], total_bytes; /* of the fullest rank */
    double again;                              /* share of the layers that AUTO computes again */
    enum tr_keep keep;                         /* as asked */
};

/* Trireme on one chip: every axis 1, one row, 16-bit products, fp32 gradients, master weights and two moments. */
struct tr_forecast_query tr_forecast_query_of_one(const struct tr_machine *machine);
/* TR_USAGE names the number that cannot be, and the nearest that can. */
enum tr_status tr_forecast_check(const struct tr_forecast_query *a);
enum tr_status tr_forecast(const struct tr_forecast_query *a, struct tr_forecast *out);

/* Bytes of a chip beside those that a run plans; a rank on a host has none. */
double tr_library_bytes(const struct tr_forecast_query *a);

double tr_shape_layer_params(const struct tr_shape_cost *s, bool is_dense); /* weights of one layer */
double tr_shape_active_params(const struct tr_shape_cost *s);               /* a token passes: no embedding, no head */
double tr_shape_params(const struct tr_shape_cost *s);
/* Model flops of one token, forward and backward: causal attention counts half; without weight gradients where weights
 * are frozen. */
double tr_token_flops(const struct tr_forecast_query *a);

/* ---- what a layer costs (layer.c) ---- */

struct tr_layer_cost {
    double forward_s, backward_s, again_s; /* kernels; again: recompute, forward of what is not kept */
    double tp_s[2], cp_s[2], ep_s[2];      /* traffic forward and backward, hidden or not */
    double tp_again_s, ep_again_s;
    double flops;                 /* forward, done on this rank, causal where the kernel is */
    double kept_bytes, one_bytes; /* activations of one micro-batch: kept; while the layer runs */
    double split_bytes;           /* beside these, between the two parts of its backward (zb) */
};
void tr_layer_cost(const struct tr_forecast_query *a, bool is_dense, struct tr_layer_cost *out);
/* What tensor cores reach in a trainer's attention kernels, of the 16-bit peak. */
double tr_core_share(int generation, const struct tr_impl *impl, double head_dim, double seq, bool is_backward);
void tr_head_cost(const struct tr_forecast_query *a, struct tr_layer_cost *out);

/* ---- memory as papers count it (conventions.c), for plan --conventions ---- */

double tr_zero_bytes(int stage, double dp);                     /* model states of a parameter: Rajbhandari 2020 */
double tr_megatron_bytes(bool is_distributed, double dp);       /* the same: Megatron, bf16 with fp32 gradients */
double tr_korthikanti_bytes(const struct tr_forecast_query *a); /* activations of the first stage: Korthikanti 2022 */
double tr_korthikanti_share(const struct tr_forecast_query *a); /* of those with tensor parallelism alone, all saved */

#endif
