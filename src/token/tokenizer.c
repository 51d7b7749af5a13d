/* tokenizer.c - vectors of ids, and the properties of a loaded tokenizer. See token.h. */
#include "token/token_impl.h"

#include <stdlib.h>
#include <string.h>

void tr_ids_release(struct tr_ids *v)
{
    free(v->p);
    *v = (struct tr_ids){ 0 };
}

enum tr_status tr_ids_reserve(struct tr_ids *v, size_t n_more)
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
    TR_PASS(v->n < v->n_cap ? TR_OK : tr_ids_reserve(v, 1));
    v->p[v->n++] = id;
    return TR_OK;
}

void tr_tokenizer_close(struct tr_tokenizer *t)
{
    if (!t)
        return;
    tr_tok_pool_list_close(t->pool);
    for (size_t i = 0; i < t->n_added; i++) {
        free(t->added[i].text);
        free(t->added[i].normal);
    }
    free(t->added);
    for (size_t i = 0; i < TR_TOK_STEPS_MAX; i++) {
        tr_tok_pattern_release(&t->norms[i].pattern);
        free(t->norms[i].text);
        tr_tok_pattern_release(&t->splits[i].pattern);
        tr_tok_pattern_release(&t->decodes[i].pattern);
        free(t->decodes[i].text);
    }
    tr_tok_vocab_release(&t->vocab);
    tr_tok_vocab_release(&t->added_vocab);
    tr_tok_trie_release(&t->pieces);
    tr_tok_trie_release(&t->added_raw);
    tr_tok_trie_release(&t->added_normal);
    tr_ids_release(&t->before);
    tr_ids_release(&t->after);
    free(t->merges.slots);
    free(t->added_of_id);
    free(t->id_of_cp);
    free(t->may_merge);
    free(t->prefix);
    free(t->suffix);
    free(t->scores);
    free(t->table);
    free(t);
}

int32_t tr_tokenizer_eos(const struct tr_tokenizer *t)
{
    return t->eos;
}

int32_t tr_tokenizer_bos(const struct tr_tokenizer *t)
{
    return t->bos;
}

int64_t tr_tokenizer_vocab_size(const struct tr_tokenizer *t)
{
    return (int64_t)t->n_ids;
}

int32_t tr_tokenizer_find(const struct tr_tokenizer *t, const char *token)
{
    int32_t id = tr_tok_vocab_find(&t->added_vocab, token, strlen(token));
    return id >= 0 ? id : tr_tok_vocab_find(&t->vocab, token, strlen(token));
}

struct tr_hash128 tr_tokenizer_hash(const struct tr_tokenizer *t)
{
    return t->hash;
}

const struct tr_ids *tr_tokenizer_before(const struct tr_tokenizer *t)
{
    return &t->before;
}

const struct tr_ids *tr_tokenizer_after(const struct tr_tokenizer *t)
{
    return &t->after;
}
