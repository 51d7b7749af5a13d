/* legal.c - which meshes a model can be cut into: one row a rule. `setup` refuses what breaks one, naming the value and
 * the nearest sizes that break none; `plan --legal` prints them all. A strategy adds its rows here and no check
 * anywhere else. */
#include "parallel/parallel.h"

static int64_t heads(const struct tr_legal_ask *a)
{
    return a->model->hp.n_heads_q;
}

static int64_t heads_kv(const struct tr_legal_ask *a)
{
    return a->model->hp.n_heads_kv;
}

static int64_t ffn(const struct tr_legal_ask *a)
{
    return a->model->hp.ffn;
}

static int64_t vocab(const struct tr_legal_ask *a)
{
    return a->model->hp.vocab;
}

static int64_t micro_tokens(const struct tr_legal_ask *a)
{
    return a->model->n_tokens / a->size[TR_AXIS_CP];
}

static int64_t row_tokens(const struct tr_legal_ask *a)
{
    return a->model->sequence_length;
}

static int64_t heads_of_tp(const struct tr_legal_ask *a)
{
    return heads(a) / a->size[TR_AXIS_TP];
}

static int64_t heads_kv_of_tp(const struct tr_legal_ask *a)
{
    return tr_max64(1, heads_kv(a) / a->size[TR_AXIS_TP]);
}

static int64_t segments_a_chunk(const struct tr_legal_ask *a)
{
    return a->model->n_segments / (a->pp_chunks > 1 ? a->pp_chunks : 1);
}

static int64_t micro_batches(const struct tr_legal_ask *a)
{
    return a->n_micro;
}

static bool divides(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    (void)a;
    return value % size == 0;
}

/* Ranks share a key head when there are more ranks than key heads: all of them the same number. */
static bool divides_either_way(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    (void)a;
    return value % size == 0 || size % value == 0;
}

static bool at_most(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    (void)a;
    return size <= value;
}

static bool divides_with_chunks(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    return a->pp_chunks <= 1 || value % size == 0;
}

static bool divides_with_ulysses(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    return a->cp_mode != TR_CP_ULYSSES || value % size == 0;
}

static bool divides_either_way_with_ulysses(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    return a->cp_mode != TR_CP_ULYSSES || divides_either_way(a, size, value);
}

static bool twice_divides_with_ring(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    return a->cp_mode != TR_CP_RING || value % (2 * size) == 0;
}

static bool divides_with_sp(const struct tr_legal_ask *a, int64_t size, int64_t value)
{
    return !a->sp || value % size == 0;
}

const struct tr_legal_rule tr_legal_rules[] = {
    { TR_AXIS_PP, "pp is at most segments / pp_chunks (layers + 2 segments)", segments_a_chunk, at_most },
    { TR_AXIS_PP, "interleaved: pp divides gradient_accumulation_steps", micro_batches, divides_with_chunks },
    { TR_AXIS_CP, "cp divides sequence_length", row_tokens, divides },
    { TR_AXIS_CP, "ring: 2 x cp divides sequence_length", row_tokens, twice_divides_with_ring },
    { TR_AXIS_CP, "ulysses: cp divides num_attention_heads / tp", heads_of_tp, divides_with_ulysses },
    { TR_AXIS_CP, "ulysses: cp divides num_key_value_heads / tp or is a multiple of it", heads_kv_of_tp,
      divides_either_way_with_ulysses },
    { TR_AXIS_TP, "tp divides num_attention_heads", heads, divides },
    { TR_AXIS_TP, "tp divides num_key_value_heads or is a multiple of it", heads_kv, divides_either_way },
    { TR_AXIS_TP, "tp divides intermediate_size", ffn, divides },
    { TR_AXIS_TP, "tp is at most vocab_size", vocab, at_most },
    { TR_AXIS_TP, "with sp, tp divides the tokens of a micro-batch / cp", micro_tokens, divides_with_sp },
};
const size_t tr_n_legal_rules = TR_COUNT_OF(tr_legal_rules);

static bool holds(const struct tr_legal_rule *r, const struct tr_legal_ask *a)
{
    return a->size[r->axis] <= 1 || r->holds(a, a->size[r->axis], r->value(a));
}

/* Would this size of one axis, all else as asked, break none of that axis's rules? */
static bool is_legal(struct tr_legal_ask a, enum tr_axis axis, int size)
{
    a.size[axis] = size;
    for (size_t i = 0; i < tr_n_legal_rules; i++)
        if (tr_legal_rules[i].axis == axis && !holds(&tr_legal_rules[i], &a))
            return false;
    return true;
}

/* "2 or 4": the nearest legal sizes below and above; 1 always is. */
static void add_nearest(const struct tr_legal_ask *a, enum tr_axis axis, struct tr_str *out)
{
    enum { REACH = 4096 };
    int below = a->size[axis] - 1, above = a->size[axis] + 1, end = above + REACH;
    while (below > 1 && !is_legal(*a, axis, below))
        below--;
    while (above < end && !is_legal(*a, axis, above))
        above++;
    tr_str_addf(out, above < end ? "%d or %d" : "%d", below < 1 ? 1 : below, above);
}

bool tr_legal_holds(const struct tr_legal_ask *a)
{
    for (size_t i = 0; i < tr_n_legal_rules; i++)
        if (!holds(&tr_legal_rules[i], a))
            return false;
    return true;
}

enum tr_status tr_legal_check(const struct tr_legal_ask *a)
{
    struct tr_str why = { 0 };
    for (size_t i = 0; i < tr_n_legal_rules; i++) {
        const struct tr_legal_rule *r = &tr_legal_rules[i];
        if (holds(r, a))
            continue;
        tr_str_addf(&why, "%s%s %d: %s, which is %" PRId64 "; try ", why.n ? "; " : "", tr_axis_name(r->axis),
                    a->size[r->axis], r->text, r->value(a));
        add_nearest(a, r->axis, &why);
    }
    enum tr_status st = why.n ? tr_fail(TR_USAGE, "%s", why.p) : TR_OK;
    tr_str_release(&why);
    return st;
}

void tr_legal_print(const struct tr_legal_ask *a, struct tr_str *out)
{
    for (size_t i = 0; i < tr_n_legal_rules; i++) {
        const struct tr_legal_rule *r = &tr_legal_rules[i];
        if (!a) {
            tr_str_addf(out, "%-5s  %s\n", tr_axis_name(r->axis), r->text);
            continue;
        }
        bool is_good = holds(r, a);
        tr_str_addf(out, "%-5s %4d  %-7s  %s (%" PRId64 ")", tr_axis_name(r->axis), a->size[r->axis],
                    is_good ? "legal" : "illegal", r->text, r->value(a));
        if (!is_good) {
            tr_str_addf(out, "; try ");
            add_nearest(a, r->axis, out);
        }
        tr_str_addf(out, "\n");
    }
}
