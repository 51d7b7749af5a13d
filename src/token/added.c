/* added.c - finds added tokens in a text: the leftmost match, of those the longest, then the flags of that token.
 *
 * A match of a single_word token that is not a whole word is skipped as a whole, as in the library's matcher. The white
 * space that a token strips is part of its match.
 */
#include "token/token_impl.h"

enum { WORTH_COUNTING = 256 }; /* bytes that are looked at from one start */

/* The value of the longest key at p, or -1. */
static int32_t longest(const struct tr_tok_trie *trie, const char *p, size_t n, size_t *len)
{
    int32_t found = -1;
    size_t i = 0;
    const struct tr_tok_trie_node *node = trie->nodes;
    for (; i < n && (node = tr_tok_trie_step(trie, node, (uint8_t)p[i])); i++)
        if (node->value >= 0) {
            found = node->value;
            *len = i + 1;
        }
    if (i > WORTH_COUNTING)
        tr_work_take((int64_t)i / 2);
    return found;
}

static bool is_word_at(const uint16_t *table, const char *p, size_t n, size_t i)
{
    size_t len;
    return i < n && tr_tok_cp(table, tr_utf8_get(p + i, n - i, &len)) & TR_TOK_CP_WORD;
}

static bool is_alone(const uint16_t *table, const char *p, size_t n, size_t begin, size_t end)
{
    return !(begin > 0 && is_word_at(table, p, n, tr_utf8_before(p, begin))) && !is_word_at(table, p, n, end);
}

const struct tr_tok_added *tr_tok_added_next(const struct tr_tokenizer *t, const struct tr_tok_trie *trie,
                                             const char *p, size_t n, size_t from, size_t *i, size_t *begin,
                                             size_t *end)
{
    size_t len = 0, n_char;
    if (!trie->nodes)
        return NULL;
    for (; *i < n && tr_work_left() > 0; ++*i) {
        if (!trie->starts[(unsigned char)p[*i]])
            continue;
        int32_t k = longest(trie, p + *i, n - *i, &len);
        if (k < 0)
            continue;
        const struct tr_tok_added *a = &t->added[k];
        *begin = *i;
        *end = *i + len;
        if (a->single_word && !is_alone(t->table, p, n, *begin, *end)) {
            *i += len - 1;
            continue;
        }
        *i = *end;
        while (a->lstrip && *begin > from) {
            size_t before = tr_utf8_before(p, *begin);
            if (!tr_tok_cp_in(t->table, tr_utf8_get(p + before, *begin - before, &n_char), TR_TOK_WS))
                break;
            *begin = before;
        }
        while (a->rstrip && *end < n && tr_tok_cp_in(t->table, tr_utf8_get(p + *end, n - *end, &n_char), TR_TOK_WS))
            *end += n_char;
        return a;
    }
    return NULL;
}
