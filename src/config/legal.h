/* legal.h - part of the room header: which requests are legal, one row a rule.
 *
 * A request is plain numbers, so every reader can fill it: the loader knows the options, setup and search the shape of
 * the model too, the compile the pipeline schedule. 0 or NULL: not known, and no rule about it is broken.
 */
#ifndef TR_CONFIG_LEGAL_H
#define TR_CONFIG_LEGAL_H

#include "config/config.h"

struct tr_legal_query {
    int64_t pp, dp, cp, tp; /* dp: all data-parallel ranks, sharded or not */
    int64_t ep;             /* only forecasts of other trainers have expert ranks; there is no option */
    int64_t hybrid_shard, pp_chunks, zero;
    bool offloads_params;
    bool sp;
    enum tr_cp_mode cp_mode;
    const char *pp_schedule;
    bool runs_back; /* the schedule runs a backward before that of an earlier micro-batch */
    bool in_order;  /* reproducible layout */
    int64_t block;  /* elements of a packed weight that have one scale; 0: no weight is packed */
    enum tr_dtype reduce_dtype;
    int64_t train_batch_size, micro_rows, n_micro;
    struct {
        int64_t n_heads_q, n_heads_kv, head_dim, ffn, vocab, n_segments, row_tokens, n_experts;
    } model;
};

enum tr_legal_id {
    TR_LEGAL_BATCH_OF_DP,
    TR_LEGAL_BATCH,
    TR_LEGAL_MICRO_ROWS,
    TR_LEGAL_HYBRID_SHARD,
    TR_LEGAL_CHUNKS_SCHEDULE,
    TR_LEGAL_CHUNKS_SEGMENTS,
    TR_LEGAL_PP_SEGMENTS,
    TR_LEGAL_PP_MICRO,
    TR_LEGAL_CP_ROW,
    TR_LEGAL_CP_RING,
    TR_LEGAL_CP_HEADS,
    TR_LEGAL_CP_HEADS_KV,
    TR_LEGAL_TP_HEADS,
    TR_LEGAL_TP_HEADS_KV,
    TR_LEGAL_TP_FFN,
    TR_LEGAL_TP_VOCAB,
    TR_LEGAL_TP_BLOCK_HEADS,
    TR_LEGAL_TP_BLOCK_FFN,
    TR_LEGAL_TP_SP,
    TR_LEGAL_EP_EXPERTS,
    TR_LEGAL_ORDER_CP,
    TR_LEGAL_ORDER_DTYPE,
    TR_LEGAL_ORDER_DP,
    TR_LEGAL_ORDER_SCHEDULE,
    TR_LEGAL_OFFLOAD_ZERO,
    TR_LEGAL_COUNT
};

/* The options of a configuration; the model is left unknown. */
void tr_legal_query_of(const struct tr_config *cfg, struct tr_legal_query *out);
/* One rule: does it hold? If not, why is appended to `out` (NULL: not wanted). */
bool tr_legal_rule(const struct tr_legal_query *q, enum tr_legal_id id, struct tr_str *out);
bool tr_legal_holds(const struct tr_legal_query *q); /* all rules; a search asks often */
/* TR_USAGE names every broken rule with its value and a fix. */
enum tr_status tr_legal_check(const struct tr_legal_query *q);
/* The same for some of the rules: a forecast of another trainer's layout keeps those that every trainer has. */
enum tr_status tr_legal_check_rules(const struct tr_legal_query *q, const enum tr_legal_id *ids, size_t n);
/* The rules, one a line or as JSON; with `q`, what each says of it. */
void tr_legal_print(const struct tr_legal_query *q, bool as_json, struct tr_str *out);

#endif
