/* tokenizer.c - encode and decode with a loaded tokenizer.
 *
 * Added tokens match leftmost, longest first, as in HF tokenizers; every other byte is its own token. Invariant: the
 * ids of a text do not depend on how it was cut into parts.
 */
#include "data/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

void tr_ids_release(struct tr_ids *v)
{
    free(v->p);
    *v = (struct tr_ids){ 0 };
}

static enum tr_status ids_reserve(struct tr_ids *v, size_t n_more)
{
    size_t need, bytes;
    if (!tr_add_size(v->n, n_more, &need) || !tr_mul_size(need, 2 * sizeof *v->p, &bytes))
        return tr_fail(TR_NOMEM, "%zu token ids do not fit in memory", n_more);
    if (need <= v->n_cap)
        return TR_OK;
    size_t cap = tr_round_up(need + need / 2, 64);
    int32_t *p = realloc(v->p, cap * sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for %zu token ids", cap);
    v->p = p;
    v->n_cap = cap;
    return TR_OK;
}

enum tr_status tr_ids_add(struct tr_ids *v, int32_t id)
{
    enum tr_status st = ids_reserve(v, 1);
    if (st == TR_OK)
        v->p[v->n++] = id;
    return st;
}

void tr_tokenizer_close(struct tr_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_added; i++)
        free(t->added[i].text);
    free(t->added);
    free(t->rows);
    free(t);
}

int32_t tr_tokenizer_eos(const struct tr_tokenizer *t)
{
    return t->eos;
}

int64_t tr_tokenizer_vocab_size(const struct tr_tokenizer *t)
{
    return (int64_t)t->rows[t->n_rows - 1].id + 1;
}

struct tr_hash128 tr_tokenizer_hash(const struct tr_tokenizer *t)
{
    struct tr_str s = { 0 };
    tr_str_addf(&s, "byte-bpe eos %d", t->eos);
    for (int b = 0; b < TR_BYTES; b++)
        tr_str_addf(&s, " %d", t->id_of_byte[b]);
    for (size_t i = 0; i < t->n_added; i++) {
        tr_str_addf(&s, " %d:%zu:", t->added[i].id, t->added[i].n);
        tr_str_add(&s, t->added[i].text, t->added[i].n);
    }
    struct tr_hash128 h = { 0, 0 }; /* all zero = unknown, which never equals a real one */
    if (tr_str_ok(&s))
        h = tr_hash(s.p, s.n);
    tr_str_release(&s);
    return h;
}

/* The added token at the start of text, or NULL. *must_wait: a longer one could still begin here. */
static const struct tr_added *match_added(const struct tr_tokenizer *t, const char *text, size_t n, bool *must_wait)
{
    unsigned b = (unsigned char)text[0];
    *must_wait = false;
    for (size_t i = t->added_first[b]; i < t->added_first[b + 1]; i++) {
        const struct tr_added *a = &t->added[i];
        if (a->n <= n && memcmp(a->text, text, a->n) == 0)
            return a;
        if (a->n > n && memcmp(a->text, text, n) == 0)
            *must_wait = true;
    }
    return NULL;
}

enum tr_status tr_tokenizer_encode_part(const struct tr_tokenizer *t, const char *text, size_t n, bool is_last,
                                        struct tr_ids *out, size_t *n_used)
{
    enum tr_status st = ids_reserve(out, n);
    if (st != TR_OK)
        return st;
    size_t i = 0;
    while (i < n) {
        bool must_wait = false;
        const struct tr_added *a = match_added(t, text + i, n - i, &must_wait);
        if (must_wait && !is_last)
            break;
        out->p[out->n++] = a ? a->id : t->id_of_byte[(unsigned char)text[i]];
        i += a ? a->n : 1;
    }
    *n_used = i;
    return TR_OK;
}

enum tr_status tr_tokenizer_encode(const struct tr_tokenizer *t, const char *text, size_t n, struct tr_ids *out)
{
    size_t n_used;
    return tr_tokenizer_encode_part(t, text, n, true, out, &n_used);
}

static int compare_id(const void *key, const void *row)
{
    int32_t a = *(const int32_t *)key, b = ((const struct tr_id_row *)row)->id;
    return (a > b) - (a < b);
}

enum tr_status tr_tokenizer_decode(const struct tr_tokenizer *t, const int32_t *ids, size_t n, struct tr_str *out)
{
    for (size_t i = 0; i < n; i++) {
        const struct tr_id_row *row = bsearch(&ids[i], t->rows, t->n_rows, sizeof *t->rows, compare_id);
        if (!row)
            return tr_fail(TR_USAGE, "token id %d at position %zu is not in the vocabulary", ids[i], i);
        if (row->added >= 0)
            tr_str_add(out, t->added[row->added].text, t->added[row->added].n);
        else
            tr_str_add(out, (const char *)&row->byte, 1);
    }
    return tr_str_ok(out) ? TR_OK : tr_fail(TR_NOMEM, "no memory to decode %zu tokens", n);
}
