/* prove.c - the data proof that needs a model: documents do not see each other, and losses add up.
 *
 * The documents of a batch are numbered along its rows, so neighbours have different parity. The loss of the odd
 * documents must keep its bits when every even document is changed. The loss of the whole batch must be that of the odd
 * documents plus that of the even ones, computed while the odd ones are changed. Rejected: one run per pair of
 * documents (a batch has many).
 */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum part { EVEN, ODD, ALL };

struct prover {
    const struct tr_proof_batch *b;
    int32_t *tokens, *targets, *other; /* the original values */
    uint8_t *is_odd;
    int64_t vocab;
};

/* Numbers the documents. Returns the number of documents that have a loss and stand behind another one in their row. */
static int64_t number_documents(const struct tr_proof_batch *b, uint8_t *is_odd)
{
    int64_t n_pairs = 0, n_docs = 0;
    bool is_counted = false;
    for (int64_t i = 0; i < b->n_micro * b->n_tokens; i++) {
        const struct tr_batch *m = &b->micro[i / b->n_tokens];
        int64_t at = i % b->n_tokens;
        bool is_second = m->other[at] >= 0 && m->other[at] < at; /* both answers of a pair are one document here */
        if (m->begin[at] == at && !is_second) {
            n_docs++;
            is_counted = at % b->row_tokens == 0;
        }
        is_odd[i] = (uint8_t)(n_docs & 1);
        if (m->targets[at] != TR_TARGET_NONE && m->begin[at] % b->row_tokens != 0 && !is_counted) {
            is_counted = true;
            n_pairs++;
        }
    }
    return n_pairs;
}

/* The loss of the documents of this part. The other documents have no loss and may be changed. */
static enum tr_status loss_of(struct prover *p, enum part part, bool changes_others, double *loss)
{
    const struct tr_proof_batch *b = p->b;
    for (int64_t i = 0; i < b->n_micro * b->n_tokens; i++) {
        struct tr_batch *m = &b->micro[i / b->n_tokens];
        int64_t at = i % b->n_tokens;
        bool is_in = part == ALL || p->is_odd[i] == part;
        m->targets[at] = is_in ? p->targets[i] : TR_TARGET_NONE;
        m->other[at] = is_in ? p->other[i] : -1;
        m->tokens[at] = is_in || !changes_others ? p->tokens[i] : (int32_t)((p->tokens[i] + 1) % p->vocab);
    }
    if (b->values)
        return tr_exec_gradients(b->e, b->micro, b->values, loss);
    double sum[TR_METRICS];
    enum tr_status st = tr_exec_eval(b->e, b->micro, sum);
    *loss = sum[TR_METRIC_LOSS];
    return st;
}

static enum tr_status prove(struct prover *p, struct tr_proof *out)
{
    double whole = 0, odd = 0, odd_again = 0, even = 0, n_pairs = (double)number_documents(p->b, p->is_odd);
    TR_PASS(loss_of(p, ODD, false, &odd));
    TR_PASS(loss_of(p, ODD, true, &odd_again));
    TR_PASS(loss_of(p, EVEN, true, &even));
    TR_PASS(loss_of(p, ALL, false, &whole));
    if (p->b->values) /* each rank has its own rows */
        TR_PASS(tr_exec_total(p->b->e, "documents compared", &n_pairs));
    *out = (struct tr_proof){ .n_pairs = (int64_t)n_pairs,
                              .is_finite = isfinite(odd) && isfinite(odd_again) && isfinite(even) && isfinite(whole),
                              .is_isolated = odd == odd_again,
                              .split_error = whole > 0 ? fabs(odd + even - whole) / whole : 0 };
    if (!out->is_finite)
        return TR_OK;
    if (!out->is_isolated)
        return tr_fail(TR_NUMBERS, "data proof: a document changed the loss of its neighbour: %.17g became %.17g", odd,
                       odd_again);
    /* Both are the same numbers summed in another order: an error of 2^-53 per addition, and at worst that of float
     * partial sums on an accelerator. */
    if (!(out->split_error < 1e-5))
        return tr_fail(TR_NUMBERS, "data proof: the loss of a batch is %.17g, but that of its documents %.17g", whole,
                       odd + even);
    return TR_OK;
}

enum tr_status tr_prove(const struct tr_proof_batch *b, struct tr_proof *out)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)(b->n_micro * b->n_tokens);
    struct prover p = { .b = b,
                        .tokens = malloc(n * sizeof *p.tokens),
                        .targets = malloc(n * sizeof *p.targets),
                        .other = malloc(n * sizeof *p.other),
                        .is_odd = malloc(n),
                        .vocab = tr_exec_compiled(b->e)->place.model->hp.vocab };
    if (!p.tokens || !p.targets || !p.other || !p.is_odd)
        TR_TRY(tr_fail(TR_NOMEM, "data proof: out of memory"));
    for (int64_t k = 0; k < b->n_micro; k++) {
        memcpy(p.tokens + k * b->n_tokens, b->micro[k].tokens, (size_t)b->n_tokens * sizeof *p.tokens);
        memcpy(p.other + k * b->n_tokens, b->micro[k].other, (size_t)b->n_tokens * sizeof *p.other);
        memcpy(p.targets + k * b->n_tokens, b->micro[k].targets, (size_t)b->n_tokens * sizeof *p.targets);
    }
    TR_TRY(prove(&p, out));
out:
    free(p.tokens);
    free(p.targets);
    free(p.other);
    free(p.is_odd);
    return st;
}

bool tr_proof_has_pair(const struct tr_batch *b, int64_t n_tokens, int64_t row_tokens)
{
    for (int64_t i = 0; i < n_tokens; i++)
        if (b->begin[i] % row_tokens != 0 && b->targets[i] != TR_TARGET_NONE)
            return true;
    return false;
}

void tr_proof_show(const struct tr_proof *p, struct tr_str *out)
{
    if (!p->is_finite) {
        tr_str_addf(out, "isolation: not tested, because the loss is not finite: weights of the model overflow, or are "
                         "not finite; the first step names the layer\n");
        return;
    }
    if (p->n_pairs)
        tr_str_addf(out, "isolation: %" PRId64 " documents beside changed neighbours, no loss moved by a bit; ",
                    p->n_pairs);
    else
        tr_str_addf(out, "isolation: no row of this batch holds two documents; ");
    tr_str_addf(out, "the documents' losses add up to the batch's (off by %.1e)\n", p->split_error);
}

/* ---- before step 0 ---- */

/* CROWD: as many ranks a core take turns, and every collective of the proof waits for a turn of all of them. */
enum { SHOWN_TOKENS = 48, LOGGED_TOKENS = 512, CROWD = 4 };
static const double cheap_flops =
    2e10; /* flops of a step on this rank: below this the whole proof takes a fraction of a second */

/* Ranks of this host for each of its cores, at least 1, averaged over all ranks: the same number on each of them. */
static enum tr_status ranks_a_core(const struct tr_data_proof *p, double *out)
{
    double n_cores = (double)sysconf(_SC_NPROCESSORS_ONLN), x[2] = { 1, 1 };
    x[0] = fmax(1, (double)p->s->env.n_local / fmax(1, n_cores));
    enum tr_status st = tr_exec_total_ranks(p->e, "ranks a core", x, TR_COUNT_OF(x));
    *out = x[0] / x[1];
    return st;
}

/* The batch of the next step, in the memory that the loader will have. */
static enum tr_status prove_step(const struct tr_data_proof *p, struct tr_proof *out)
{
    enum tr_status st = TR_OK;
    const struct tr_loader_shape *l = &p->s->loader;
    int64_t n_micro = l->n_rows / l->micro_rows, n_tokens = l->micro_rows * l->row_tokens, n_targets;
    float values[TR_STEP_COUNT];
    struct tr_batch *micro = calloc((size_t)n_micro, sizeof *micro);
    if (!micro)
        return tr_fail(TR_NOMEM, "data proof: out of memory");
    for (int64_t k = 0; k < n_micro; k++) {
        uint64_t first = (uint64_t)(p->first_step * l->batch_rows + l->first_row + k * l->micro_rows);
        micro[k] = tr_batch_in(tr_exec_arena(p->e, TR_A_DATA) + (size_t)k * tr_batch_bytes(n_tokens), n_tokens);
        TR_TRY(tr_data_fill(p->data, first, l->micro_rows, p->total_samples, &micro[k], &n_targets));
    }
    tr_step_values(p->s->cfg, p->first_step, p->total_steps, l->batch_rows * l->row_tokens, values);
    struct tr_proof_batch b = { p->e, micro, n_micro, n_tokens, l->row_tokens, values };
    TR_TRY(tr_prove(&b, out));
out:
    free(micro);
    return st;
}

static enum tr_status show_first(const struct tr_data_proof *p, struct tr_str *text, struct tr_str *json)
{
    struct tr_proof_row row;
    TR_PASS(tr_data_prove(p->data, p->tok, (uint64_t)(p->first_step * p->s->loader.batch_rows), &row));
    tr_proof_row_show(&row, p->has_color, SHOWN_TOKENS, text);
    tr_str_addf(json, ",");
    tr_proof_row_json(&row, LOGGED_TOKENS, json);
    tr_proof_row_release(&row);
    return TR_OK;
}

enum tr_status tr_prove_data(const struct tr_data_proof *p, struct tr_observe *ob)
{
    enum tr_status st = TR_OK;
    const struct tr_config *cfg = p->s->cfg;
    struct tr_str text = { 0 }, json = { 0 };
    struct tr_proof proof;
    double step_flops = tr_model_flops_per_token(p->s->model) * (double)(p->s->loader.n_rows * p->s->loader.row_tokens);
    double crowd = 1;
    if (cfg->data_proof == TR_DATA_PROOF_NONE)
        return TR_OK;
    TR_TRY(ranks_a_core(p, &crowd));
    bool is_first = tr_exec_mesh(p->e)->all->rank == 0; /* only its report is seen */
    if (is_first)
        TR_TRY(tr_data_summary(p->data, &text, &json));
    if (is_first && p->tok)
        TR_TRY(show_first(p, &text, &json));
    if (cfg->fp8) {
        tr_str_addf(&text, "isolation: not tested, because the scales of 8-bit products span documents\n");
        tr_str_addf(&json, ",\"isolated\":null");
    } else if (cfg->data_proof == TR_DATA_PROOF_FULL || (crowd < CROWD && step_flops * crowd <= cheap_flops)) {
        TR_TRY(prove_step(p, &proof));
        tr_proof_show(&proof, &text);
        if (proof.is_finite)
            tr_str_addf(&json, ",\"isolated\":true,\"pairs\":%" PRId64 ",\"split_error\":%.3g", proof.n_pairs,
                        proof.split_error);
        else
            tr_str_addf(&json, ",\"isolated\":null");
    } else {
        tr_str_addf(&text, "isolation: not tested, because it costs four steps");
        if (crowd > 1)
            tr_str_addf(&text, " and %.3g ranks share a core", crowd);
        tr_str_addf(&text, "; use trireme data check or --data_proof full\n");
        tr_str_addf(&json, ",\"isolated\":null");
    }
    if (!tr_str_ok(&text) || !tr_str_ok(&json))
        TR_TRY(tr_fail(TR_NOMEM, "data proof: out of memory"));
    text.p[--text.n] = 0; /* the observer adds the end of the line */
    tr_observe_note(ob, "data", json.p, text.p);
out:
    tr_str_release(&text);
    tr_str_release(&json);
    return st;
}
