/* prove.c - the data proof that needs a model: packed documents do not see each other, and losses add up. */
#include "train/train.h"
#include <math.h>
#include <stdlib.h>

enum { LOOKED_AT = 64 }; /* batches, in search of rows with two documents */

struct prover {
    struct tr_exec *e;
    struct tr_batch b;
    int64_t n, length; /* elements of the batch, and of a row */
    int32_t *targets, *tokens;
};

/* Loss over the elements of one document only. */
static enum tr_status document_loss(struct prover *p, int64_t first, int64_t end, double *loss)
{
    for (int64_t i = 0; i < p->n; i++)
        p->b.targets[i] = i >= first && i < end ? p->targets[i] : TR_TARGET_NONE;
    return tr_exec_eval(p->e, &p->b, loss);
}

/* The document that starts at `first` against its neighbour in the same row. */
static enum tr_status check_pair(struct prover *p, int64_t first, int64_t end, int64_t other, struct tr_proof *out)
{
    double before = 0, after = 0;
    enum tr_status st = document_loss(p, first, end, &before);
    int64_t vocab = p->e->c->eval_model->hp.vocab;
    for (int64_t i = other; i < p->n && p->b.begin[i] == other; i++)
        p->b.tokens[i] = (int32_t)((p->tokens[i] + 1) % vocab);
    if (st == TR_OK)
        st = document_loss(p, first, end, &after);
    memcpy(p->b.tokens, p->tokens, (size_t)p->n * sizeof *p->tokens);
    out->n_pairs++;
    if (before != after)
        out->is_isolated = false;
    return st;
}

static int64_t document_end(const struct prover *p, int64_t first)
{
    int64_t end = first;
    while (end < p->n && p->b.begin[end] == first)
        end++;
    return end;
}

static enum tr_status prove_batch(struct prover *p, struct tr_proof *out)
{
    enum tr_status st = TR_OK;
    double whole = 0, sum = 0, row = 0;
    memcpy(p->targets, p->b.targets, (size_t)p->n * sizeof *p->targets);
    memcpy(p->tokens, p->b.tokens, (size_t)p->n * sizeof *p->tokens);
    TR_TRY(document_loss(p, 0, p->n, &whole));
    for (int64_t at = 0; at < p->n; at += p->length) {
        TR_TRY(document_loss(p, at, at + p->length, &row));
        sum += row;
        int64_t end = document_end(p, at), row_end = at + p->length;
        if (end >= row_end)
            continue; /* one document fills the row */
        TR_TRY(check_pair(p, at, end, end, out));
        TR_TRY(check_pair(p, end, document_end(p, end), at, out));
    }
    if (whole > 0)
        out->split_error = fmax(out->split_error, fabs(sum - whole) / whole);
out:
    return st;
}

static bool has_pair(const struct prover *p)
{
    for (int64_t at = 0; at < p->n; at += p->length)
        if (document_end(p, at) < at + p->length)
            return true;
    return false;
}

/* One batch is enough: the first that has neighbours, else the first. */
enum tr_status tr_prove(struct tr_exec *e, const struct tr_data *d, void *batch_mem, struct tr_proof *out)
{
    enum tr_status st = TR_OK;
    int64_t length = tr_data_row_tokens(d), n_targets = 0;
    uint64_t n_rows = tr_data_rows(d), n_batches = tr_data_steps(n_rows, TR_PROOF_ROWS), k = 0;
    struct prover p = {
        .e = e, .b = tr_batch_in(batch_mem, TR_PROOF_ROWS * length), .n = TR_PROOF_ROWS * length, .length = length
    };
    p.targets = malloc((size_t)p.n * sizeof *p.targets);
    p.tokens = malloc((size_t)p.n * sizeof *p.tokens);
    *out = (struct tr_proof){ .is_isolated = true };
    if (!p.targets || !p.tokens)
        TR_TRY(tr_fail(TR_NOMEM, "data check: out of memory"));
    do
        TR_TRY(tr_data_fill(d, k * TR_PROOF_ROWS, TR_PROOF_ROWS, n_rows, &p.b, &n_targets));
    while (!has_pair(&p) && ++k < n_batches && k < LOOKED_AT);
    TR_TRY(prove_batch(&p, out));
    out->n_rows = TR_PROOF_ROWS;
out:
    free(p.targets);
    free(p.tokens);
    return st;
}
