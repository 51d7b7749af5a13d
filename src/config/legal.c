/* legal.c - which layouts can be trained: one row a rule, for all who need to know.
 *
 * The loader refuses what options alone decide, setup what the model decides, the compile what a schedule file decides,
 * and the search of `plan --search` takes only what all three would take; `plan --legal` prints the rows. A forecast
 * checks the rows that hold for any trainer. A strategy adds its rows here and no check anywhere else. Rows either
 * compare the size of one axis with a value, and then name the nearest sizes that hold, or have a message of their own.
 */
#include "config/legal.h"

#include <assert.h>
#include <stddef.h>

/* ---- values that the size of an axis is compared with ---- */

#define VALUE(name, value)                                                                                             \
    static int64_t name(const struct tr_legal_query *q)                                                                \
    {                                                                                                                  \
        return value;                                                                                                  \
    }
/* clang-format off */
VALUE(heads, q->model.n_heads_q)
VALUE(heads_kv, q->model.n_heads_kv)
VALUE(ffn, q->model.ffn)
VALUE(vocab, q->model.vocab)
VALUE(heads_width, q->model.n_heads_q * q->model.head_dim)
VALUE(row_tokens, q->model.row_tokens)
VALUE(micro_tokens, q->micro_rows * q->model.row_tokens / q->cp)
VALUE(heads_of_tp, heads(q) / q->tp)
VALUE(heads_kv_of_tp, tr_max64(1, heads_kv(q) / q->tp))
VALUE(segments_a_chunk, q->model.n_segments / tr_max64(1, q->pp_chunks))
VALUE(experts, q->model.n_experts)
VALUE(micro_batches, q->n_micro)
/* clang-format on */
#undef VALUE

/* ---- what must hold of a size and a value ---- */

#define HOLDS(name, condition)                                                                                         \
    static bool name(const struct tr_legal_query *q, int64_t size, int64_t value)                                      \
    {                                                                                                                  \
        (void)q;                                                                                                       \
        return condition;                                                                                              \
    }
/* clang-format off */
HOLDS(divides, value % size == 0)
/* Where there are more ranks than key heads, ranks share a key head: as many ranks for each. */
HOLDS(divides_either_way, value % size == 0 || size % value == 0)
HOLDS(at_most, value == 0 || size <= value)
HOLDS(divides_with_chunks, q->pp_chunks <= 1 || value % size == 0)
HOLDS(divides_with_ulysses, q->cp_mode != TR_CP_ULYSSES || value % size == 0)
HOLDS(divides_either_way_with_ulysses, q->cp_mode != TR_CP_ULYSSES || divides_either_way(q, size, value))
HOLDS(twice_divides_with_ring, q->cp_mode != TR_CP_RING || value % (2 * size) == 0)
/* Columns are split: the part of a rank must end where a block ends. */
HOLDS(keeps_blocks, q->block == 0 || value % (size * q->block) == 0)
HOLDS(divides_with_sp, !q->sp || value % size == 0)
/* clang-format on */
#undef HOLDS

/* ---- rules with a message of their own ---- */

static bool batch_has_whole_shares(const struct tr_legal_query *q)
{
    return q->train_batch_size % q->dp == 0;
}

static void message_batch_of_dp(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "train_batch_size %" PRId64 " is not a multiple of dp %" PRId64 "; try %" PRId64,
                q->train_batch_size, q->dp, tr_max64(1, q->train_batch_size / q->dp) * q->dp);
}

static bool batch_is_its_product(const struct tr_legal_query *q)
{
    return q->train_batch_size == 0 || q->micro_rows * q->n_micro * q->dp == q->train_batch_size;
}

static void message_batch(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out,
                "train_batch_size %" PRId64 " is not per_device_train_batch_size %" PRId64
                " x gradient_accumulation_steps %" PRId64 " x dp %" PRId64 " = %" PRId64 "; give two of the three",
                q->train_batch_size, q->micro_rows, q->n_micro, q->dp, q->micro_rows * q->n_micro * q->dp);
}

/* Weaker than the product: a trainer that rounds micro-batches up keeps it too. */
static bool rank_has_micro_rows(const struct tr_legal_query *q)
{
    return q->train_batch_size == 0 || q->micro_rows <= q->train_batch_size / q->dp;
}

static void message_micro_rows(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out,
                "per_device_train_batch_size %" PRId64 " is more than the %" PRId64
                " rows that a rank has of train_batch_size %" PRId64 "; try %" PRId64,
                q->micro_rows, q->train_batch_size / q->dp, q->train_batch_size,
                tr_max64(1, q->train_batch_size / q->dp));
}

static bool shards_are_whole(const struct tr_legal_query *q)
{
    return q->hybrid_shard == 0 || q->dp % q->hybrid_shard == 0;
}

static void message_hybrid_shard(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "hybrid_shard %" PRId64 " does not divide dp %" PRId64, q->hybrid_shard, q->dp);
}

/* More micro-batches are the near change; fewer stages are another layout. */
static void message_pp_micro(const struct tr_legal_query *q, struct tr_str *out)
{
    int64_t n = tr_max64(1, q->n_micro);
    tr_str_addf(out,
                "pp_chunks %" PRId64 ": interleaved needs gradient_accumulation_steps that pp %" PRId64
                " divides, and there are %" PRId64 "; try --gradient_accumulation_steps %" PRId64 " or --pp_chunks 1",
                q->pp_chunks, q->pp, q->n_micro, (n + q->pp - 1) / q->pp * q->pp);
}

/* The schedules that have no chunks; interleaved has, and a file may. */
static bool schedule_has_chunks(const struct tr_legal_query *q)
{
    static const char *const whole[] = { "gpipe", "1f1b", "zb" };
    return q->pp_chunks <= 1 || !q->pp_schedule || !TR_ROW(whole, q->pp_schedule);
}

static void message_chunks_schedule(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "pp_chunks %" PRId64 " needs pp_schedule interleaved, not %s", q->pp_chunks, q->pp_schedule);
}

static bool chunks_have_segments(const struct tr_legal_query *q)
{
    return q->model.n_segments == 0 || q->pp_chunks <= q->model.n_segments;
}

static void message_chunks_segments(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "pp %" PRId64 " x pp_chunks %" PRId64 " stages need as many segments; this model has %" PRId64,
                q->pp, q->pp_chunks, q->model.n_segments);
}

static bool order_has_no_cp(const struct tr_legal_query *q)
{
    return !q->in_order || q->cp == 1;
}

static void message_order_cp(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out,
                "reproducible layout with cp %" PRId64
                ": sums over the tokens of a row are cut in other places; use --reproducible config",
                q->cp);
}

static bool order_sums_in_grad_dtype(const struct tr_legal_query *q)
{
    return !q->in_order || q->reduce_dtype == TR_F32;
}

static void message_order_dtype(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "reproducible layout sums in grad_dtype; drop reduce_dtype %s", tr_dtype_name(q->reduce_dtype));
}

/* One tree over all micro-batches of a step: every rank must hold a whole branch of it. */
static bool order_has_whole_branches(const struct tr_legal_query *q)
{
    return !q->in_order || (q->dp & (q->dp - 1)) == 0;
}

static void message_order_dp(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out, "reproducible layout: dp %" PRId64 " is not a power of 2; use --reproducible config", q->dp);
}

static bool order_is_that_of_micro_batches(const struct tr_legal_query *q)
{
    return !q->in_order || !q->runs_back;
}

static void message_order_schedule(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out,
                "reproducible layout needs backwards in the order of micro-batches, which "
                "pp_schedule %s has not; use 1f1b",
                q->pp_schedule);
}

/* A shard would come from the host first and from the other ranks then; ranks that hold no copy of their own save the
 * same device memory already. */
static bool offload_has_whole_params(const struct tr_legal_query *q)
{
    return !q->offloads_params || q->zero < 3;
}

static void message_offload_zero(const struct tr_legal_query *q, struct tr_str *out)
{
    tr_str_addf(out,
                "offload_param cpu with zero %" PRId64
                ": ranks share the parameters already; use --zero 2, which streams them from each rank's host, or drop "
                "offload_param",
                q->zero);
}

/* ---- the table ---- */

static const struct rule {
    const char *axis;
    size_t at; /* of its size in a query */
    const char *text;
    int64_t (*value)(const struct tr_legal_query *q); /* rules about a size; an axis of size 1 keeps them */
    bool (*holds_of)(const struct tr_legal_query *q, int64_t size, int64_t value);
    bool (*holds)(const struct tr_legal_query *q); /* the others */
    void (*message)(const struct tr_legal_query *q, struct tr_str *out);
} rules[] = {
#define AXIS(name) #name, offsetof(struct tr_legal_query, name)
    [TR_LEGAL_BATCH_OF_DP] = { AXIS(dp), "dp divides train_batch_size", .holds = batch_has_whole_shares,
                               .message = message_batch_of_dp },
    [TR_LEGAL_BATCH] = { AXIS(dp), "per_device_train_batch_size x gradient_accumulation_steps x dp is train_batch_size",
                         .holds = batch_is_its_product, .message = message_batch },
    [TR_LEGAL_MICRO_ROWS] = { AXIS(dp), "per_device_train_batch_size x dp is at most train_batch_size",
                              .holds = rank_has_micro_rows, .message = message_micro_rows },
    [TR_LEGAL_HYBRID_SHARD] = { AXIS(dp), "hybrid_shard divides dp", .holds = shards_are_whole,
                                .message = message_hybrid_shard },
    [TR_LEGAL_CHUNKS_SCHEDULE] = { AXIS(pp), "pp_chunks above 1: pp_schedule is interleaved or a file",
                                   .holds = schedule_has_chunks, .message = message_chunks_schedule },
    [TR_LEGAL_CHUNKS_SEGMENTS] = { AXIS(pp), "pp_chunks is at most segments", .holds = chunks_have_segments,
                                   .message = message_chunks_segments },
    [TR_LEGAL_PP_SEGMENTS] = { AXIS(pp), "pp is at most segments / pp_chunks (layers + 2 segments)", segments_a_chunk,
                               at_most },
    [TR_LEGAL_PP_MICRO] = { AXIS(pp), "interleaved: pp divides gradient_accumulation_steps", micro_batches,
                            divides_with_chunks, .message = message_pp_micro },
    [TR_LEGAL_CP_ROW] = { AXIS(cp), "cp divides sequence_length", row_tokens, divides },
    [TR_LEGAL_CP_RING] = { AXIS(cp), "ring: 2 x cp divides sequence_length", row_tokens, twice_divides_with_ring },
    [TR_LEGAL_CP_HEADS] = { AXIS(cp), "ulysses: cp divides num_attention_heads / tp", heads_of_tp,
                            divides_with_ulysses },
    [TR_LEGAL_CP_HEADS_KV] = { AXIS(cp), "ulysses: cp divides num_key_value_heads / tp or is a multiple of it",
                               heads_kv_of_tp, divides_either_way_with_ulysses },
    [TR_LEGAL_TP_HEADS] = { AXIS(tp), "tp divides num_attention_heads", heads, divides },
    [TR_LEGAL_TP_HEADS_KV] = { AXIS(tp), "tp divides num_key_value_heads or is a multiple of it", heads_kv,
                               divides_either_way },
    [TR_LEGAL_TP_FFN] = { AXIS(tp), "tp divides intermediate_size", ffn, divides },
    [TR_LEGAL_TP_VOCAB] = { AXIS(tp), "tp is at most vocab_size", vocab, at_most },
    [TR_LEGAL_TP_BLOCK_HEADS] = { AXIS(tp),
                                  "packed base: block (4 bits: 64, fp8: 128) x tp divides num_attention_heads x "
                                  "head_dim",
                                  heads_width, keeps_blocks },
    [TR_LEGAL_TP_BLOCK_FFN] = { AXIS(tp), "packed base: block x tp divides intermediate_size", ffn, keeps_blocks },
    [TR_LEGAL_TP_SP] = { AXIS(tp), "with sp, tp divides the tokens of a micro-batch / cp", micro_tokens,
                         divides_with_sp },
    [TR_LEGAL_EP_EXPERTS] = { AXIS(ep), "ep divides the number of experts (forecasts of other trainers only)", experts,
                              divides },
    [TR_LEGAL_ORDER_CP] = { AXIS(cp), "reproducible layout: cp is 1", .holds = order_has_no_cp,
                            .message = message_order_cp },
    [TR_LEGAL_ORDER_DTYPE] = { AXIS(dp), "reproducible layout: reduce_dtype is float32",
                               .holds = order_sums_in_grad_dtype, .message = message_order_dtype },
    [TR_LEGAL_ORDER_DP] = { AXIS(dp), "reproducible layout: dp is a power of 2", .holds = order_has_whole_branches,
                            .message = message_order_dp },
    [TR_LEGAL_ORDER_SCHEDULE] = { AXIS(pp), "reproducible layout: backwards run in the order of micro-batches",
                                  .holds = order_is_that_of_micro_batches, .message = message_order_schedule },
    [TR_LEGAL_OFFLOAD_ZERO] = { AXIS(dp), "offload_param cpu: zero is at most 2", .holds = offload_has_whole_params,
                                .message = message_offload_zero },
#undef AXIS
};
static_assert(TR_COUNT_OF(rules) == TR_LEGAL_COUNT, "one row a rule");

static int64_t *size_of(struct tr_legal_query *q, const struct rule *r)
{
    return (int64_t *)(void *)((char *)q + r->at);
}

static int64_t size_in(const struct tr_legal_query *q, const struct rule *r)
{
    return *(const int64_t *)(const void *)((const char *)q + r->at);
}

static bool holds(const struct rule *r, const struct tr_legal_query *q)
{
    if (r->holds)
        return r->holds(q);
    return size_in(q, r) <= 1 || r->holds_of(q, size_in(q, r), r->value(q));
}

/* Would this size of a rule's axis, all else as asked, break none of the rules about that size? */
static bool is_legal(struct tr_legal_query q, const struct rule *of, int64_t size)
{
    *size_of(&q, of) = size;
    for (size_t i = 0; i < TR_COUNT_OF(rules); i++)
        if (rules[i].at == of->at && rules[i].value && !holds(&rules[i], &q))
            return false;
    return true;
}

/* "2 or 4": the nearest legal sizes below and above; 1 always is. */
static void add_nearest(const struct tr_legal_query *q, const struct rule *r, struct tr_str *out)
{
    enum { REACH = 4096 };
    int64_t below = size_in(q, r) - 1, above = size_in(q, r) + 1, end = above + REACH;
    while (below > 1 && !is_legal(*q, r, below))
        below--;
    while (above < end && !is_legal(*q, r, above))
        above++;
    tr_str_addf(out, "%" PRId64, tr_max64(below, 1));
    if (above < end)
        tr_str_addf(out, " or %" PRId64, above);
}

void tr_legal_query_of(const struct tr_config *cfg, struct tr_legal_query *out)
{
    *out = (struct tr_legal_query){ .pp = cfg->pp,
                                    .dp = cfg->dp,
                                    .cp = cfg->cp,
                                    .tp = cfg->tp,
                                    .hybrid_shard = cfg->hybrid_shard,
                                    .pp_chunks = cfg->pp_chunks,
                                    .zero = cfg->zero,
                                    .offloads_params = cfg->offload_param != TR_OFFLOAD_NONE,
                                    .sp = cfg->sp,
                                    .cp_mode = cfg->cp_mode,
                                    .pp_schedule = cfg->pp_schedule,
                                    .in_order = cfg->reproducible == TR_REPRODUCIBLE_LAYOUT,
                                    .block = tr_config_packed(cfg) ? tr_packed_format(tr_config_packed(cfg))->grain : 0,
                                    .reduce_dtype = cfg->reduce_dtype,
                                    .train_batch_size = cfg->train_batch_size,
                                    .micro_rows = cfg->per_device_train_batch_size,
                                    .n_micro = cfg->gradient_accumulation_steps };
}

bool tr_legal_rule(const struct tr_legal_query *q, enum tr_legal_id id, struct tr_str *out)
{
    const struct rule *r = &rules[id];
    if (holds(r, q))
        return true;
    if (out && r->message) {
        r->message(q, out);
    } else if (out) {
        tr_str_addf(out, "%s %" PRId64 ": %s, which is %" PRId64 "; try ", r->axis, size_in(q, r), r->text,
                    r->value(q));
        add_nearest(q, r, out);
    }
    return false;
}

bool tr_legal_holds(const struct tr_legal_query *q)
{
    for (size_t i = 0; i < TR_COUNT_OF(rules); i++)
        if (!holds(&rules[i], q))
            return false;
    return true;
}

enum tr_status tr_legal_check(const struct tr_legal_query *q)
{
    enum tr_legal_id all[TR_LEGAL_COUNT];
    for (int i = 0; i < TR_LEGAL_COUNT; i++)
        all[i] = (enum tr_legal_id)i;
    return tr_legal_check_rules(q, all, TR_LEGAL_COUNT);
}

enum tr_status tr_legal_check_rules(const struct tr_legal_query *q, const enum tr_legal_id *ids, size_t n)
{
    struct tr_str why = { 0 };
    for (size_t i = 0; i < n; i++) {
        struct tr_str one = { 0 };
        if (!tr_legal_rule(q, ids[i], &one))
            tr_str_addf(&why, "%s%s", why.n ? "; " : "", one.p);
        tr_str_release(&one);
    }
    enum tr_status st = why.n ? tr_fail(TR_USAGE, "%s", why.p) : TR_OK;
    tr_str_release(&why);
    return st;
}

static void print_rule(const struct rule *r, const struct tr_legal_query *q, struct tr_str *out)
{
    bool is_good = holds(r, q);
    tr_str_addf(out, "%-5s %4" PRId64 "  %-7s  %s", r->axis, size_in(q, r), is_good ? "legal" : "illegal", r->text);
    if (r->value)
        tr_str_addf(out, " (%" PRId64 ")", r->value(q));
    if (!is_good && r->value) {
        tr_str_addf(out, "; try ");
        add_nearest(q, r, out);
    }
    tr_str_addf(out, "\n");
}

static void print_rule_json(const struct rule *r, const struct tr_legal_query *q, const char *before,
                            struct tr_str *out)
{
    tr_str_addf(out, "%s{\"axis\": \"%s\", \"rule\": ", before, r->axis);
    tr_str_json(out, r->text);
    if (q)
        tr_str_addf(out, ", \"size\": %" PRId64 ", \"legal\": %s", size_in(q, r), holds(r, q) ? "true" : "false");
    if (q && r->value)
        tr_str_addf(out, ", \"value\": %" PRId64, r->value(q));
    tr_str_addf(out, "}");
}

void tr_legal_print(const struct tr_legal_query *q, bool as_json, struct tr_str *out)
{
    const char *before = "";
    tr_str_addf(out, as_json ? "{\"rules\": [" : "");
    for (size_t i = 0; i < TR_COUNT_OF(rules); i++) {
        if (q && rules[i].value && rules[i].value(q) == 0)
            continue; /* the model has no such value */
        if (as_json)
            print_rule_json(&rules[i], q, before, out);
        else if (q)
            print_rule(&rules[i], q, out);
        else
            tr_str_addf(out, "%-5s  %s\n", rules[i].axis, rules[i].text);
        before = ", ";
    }
    tr_str_addf(out, as_json ? "]}\n" : "");
}
