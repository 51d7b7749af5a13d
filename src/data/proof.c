/* proof.c - one sample as a person reads it, taken from the very arrays that
 * are trained on. */
#include "data/data_impl.h"
#include "data/utf8.h"

#include <stdlib.h>

enum { N_ARRAYS = 4 };

void tr_proof_row_release(struct tr_proof_row *row)
{
    free(row->tokens);
    tr_str_release(&row->text);
    *row = (struct tr_proof_row){ 0 };
}

/* Tokens in the row: padding is told by length, never by id. */
static enum tr_status count_tokens(const struct tr_data *d, uint64_t sample, int64_t *n_tokens)
{
    enum tr_status st = TR_OK;
    struct tr_place at = tr_data_place(d, sample);
    struct tr_walk w;
    struct tr_piece p;
    *n_tokens = 0;
    TR_TRY(tr_walk_begin(&w, at.part, at.row));
    do {
        TR_TRY(tr_walk_next(&w, &p));
        *n_tokens += p.n;
    } while (p.n > 0);
out:
    tr_walk_end(&w);
    return st;
}

static enum tr_status add_text(const struct tr_tokenizer *t, struct tr_proof_row *row, struct tr_proof_token *token,
                               struct tr_str *bytes)
{
    size_t n_used, at = row->text.n;
    tr_str_clear(bytes);
    enum tr_status st = tr_tokenizer_decode(t, &token->id, 1, bytes);
    if (st != TR_OK)
        return st;
    tr_utf8_clean(bytes->p, bytes->n, true, &row->text, &n_used);
    token->n_text = row->text.n - at;
    return tr_str_ok(&row->text) ? TR_OK : tr_fail(TR_NOMEM, "no memory for the text of a row");
}

static enum tr_status describe(const struct tr_tokenizer *t, const struct tr_batch *b, struct tr_proof_row *row,
                               int64_t row_tokens)
{
    enum tr_status st = TR_OK;
    struct tr_str bytes = { 0 };
    for (int64_t i = 0; i < row_tokens; i++) {
        struct tr_proof_token *k = &row->tokens[i];
        *k = (struct tr_proof_token){ .id = b->tokens[i], .position = b->positions[i], .is_pad = i >= row->n_tokens };
        k->is_target = i > 0 && b->targets[i - 1] != TR_TARGET_NONE;
        row->n_docs += !k->is_pad && k->position == 0;
        if (t && !k->is_pad)
            TR_TRY(add_text(t, row, k, &bytes));
    }
    size_t at = 0;
    for (int64_t i = 0; i < row_tokens; i++) { /* the text has stopped moving */
        row->tokens[i].text = row->text.p ? row->text.p + at : "";
        at += row->tokens[i].n_text;
    }
out:
    tr_str_release(&bytes);
    return st;
}

enum tr_status tr_data_prove(const struct tr_data *d, const struct tr_tokenizer *t, uint64_t sample,
                             struct tr_proof_row *out)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)d->row_tokens;
    struct tr_proof_row row = { .sample = sample, .tokens = calloc(n, sizeof *row.tokens) };
    int32_t *ints = calloc(n * N_ARRAYS, sizeof *ints);
    int64_t *samples = calloc(n, sizeof *samples);
    if (!row.tokens || !ints || !samples)
        TR_TRY(tr_fail(TR_NOMEM, "no memory to show a row of %zu tokens", n));
    struct tr_batch b = { ints, ints + n, ints + 2 * n, ints + 3 * n, samples };
    TR_TRY(tr_data_fill(d, sample, 1, sample + 1, &b, &row.n_targets));
    TR_TRY(count_tokens(d, sample, &row.n_tokens));
    struct tr_place at = tr_data_place(d, sample);
    row.epoch = at.epoch;
    row.i_source = at.i_group;
    TR_TRY(describe(t, &b, &row, d->row_tokens));
    *out = row;
    row = (struct tr_proof_row){ 0 };
out:
    tr_proof_row_release(&row);
    free(ints);
    free(samples);
    return st;
}
