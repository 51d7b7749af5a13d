/* models.c - the models besides BPE: Unigram (best path), WordPiece (longest first) and WordLevel.
 *
 * Unigram follows the library, which follows SentencePiece's optimised Viterbi: scores are doubles, shorter pieces come
 * first, a later path wins only when it is strictly better, and adjacent unknown characters become one token. The
 * library's oddities are kept, because a model was trained on the ids that they give.
 */
#include "token/token_impl.h"

#include <string.h>

struct tr_tok_path { /* the best path that ends at a byte */
    double score;
    uint32_t begin; /* UINT32_MAX: none yet */
    int32_t id;
};

static void offer(struct tr_tok_path *at, double score, size_t begin, int32_t id)
{
    if (at->begin == UINT32_MAX || score > at->score)
        *at = (struct tr_tok_path){ score, (uint32_t)begin, id };
}

/* Fills path[0..n]. */
static enum tr_status find_paths(const struct tr_tokenizer *t, const char *p, size_t n, struct tr_tok_path *path)
{
    size_t len, n_steps = 0;
    for (size_t i = 0; i <= n; i++)
        path[i] = (struct tr_tok_path){ 0, UINT32_MAX, -1 };
    for (size_t i = 0; i < n; i += len, n_steps = 0) {
        bool has_char = false;
        const struct tr_tok_trie_node *node = t->pieces.nodes;
        (void)tr_utf8_get(p + i, n - i, &len);
        for (size_t k = i; k < n && (node = tr_tok_trie_step(&t->pieces, node, (uint8_t)p[k])); k++) {
            n_steps++;
            if (node->value < 0)
                continue;
            offer(&path[k + 1], t->scores[node->value] + path[i].score, i, node->value);
            has_char |= k + 1 - i == len;
        }
        /* words of the cache are left out: whether they cost work depends on what the cache holds */
        if (n_steps > TR_TOK_WORD_KEY_MAX)
            TR_PASS(tr_tok_work(n_steps / 2));
        if (has_char)
            continue;
        if (t->unk < 0)
            return tr_fail(TR_USAGE, "the text holds a character that is not in the vocabulary, and the tokenizer has "
                                     "no unknown token (unk_id is null)");
        offer(&path[i + len], t->unk_score + path[i].score, i, t->unk);
    }
    return TR_OK;
}

/* Adds one piece of the best path: its id, its bytes, or the unknown token. */
static enum tr_status put_piece(const struct tr_tokenizer *t, const char *p, size_t n, struct tr_ids *out)
{
    int32_t id = tr_tok_vocab_find(&t->vocab, p, n);
    bool has_bytes = id < 0 && t->byte_fallback;
    for (size_t i = 0; has_bytes && i < n; i++)
        has_bytes = t->id_of_byte[(unsigned char)p[i]] >= 0;
    for (size_t i = 0; has_bytes && i < n; i++)
        TR_PASS(tr_ids_add(out, t->id_of_byte[(unsigned char)p[i]]));
    if (!has_bytes)
        TR_PASS(tr_ids_add(out, id >= 0 ? id : t->unk));
    return TR_OK;
}

enum tr_status tr_tok_unigram_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    TR_PASS(tr_tok_encoder_grow(&e->path, &e->n_path_cap, n + 1, sizeof *e->path));
    struct tr_tok_path *path = e->path;
    TR_PASS(find_paths(t, p, n, path));
    size_t k = 0, begin = 0;
    TR_PASS(tr_tok_encoder_grow(&e->links, &e->n_links_cap, n + 1, sizeof *e->links));
    for (size_t end = n; end > 0; end = path[end].begin)
        e->links[k++] = (uint32_t)end;
    while (k > 0) {
        size_t end = e->links[--k];
        while (path[end].id == t->unk && k > 0 && path[e->links[k - 1]].id == t->unk)
            end = e->links[--k];
        TR_PASS(put_piece(t, p + begin, end - begin, out));
        begin = end;
    }
    return TR_OK;
}

static size_t count_chars(const char *p, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)p[i] & 0xC0) != 0x80;
    return k;
}

/* The last character boundary at or before `at`. */
static size_t cut_char(const char *p, size_t at)
{
    while (at > 0 && ((unsigned char)p[at] & 0xC0) == 0x80)
        at--;
    return at;
}

enum tr_status tr_tok_wordpiece_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    size_t n_prefix = strlen(t->prefix), before = out->n;
    bool is_known = count_chars(p, n) <= (size_t)t->word_max_chars;
    for (size_t i = 0, end; is_known && i < n; i = end) {
        int32_t id = -1;
        tr_str_clear(&e->scratch);
        tr_str_add(&e->scratch, t->prefix, i ? n_prefix : 0);
        tr_str_add(&e->scratch, p + i, n - i);
        TR_PASS(tr_str_check(&e->scratch, "a word of %zu bytes", n));
        size_t n_front = e->scratch.n - (n - i), n_bytes = n > TR_TOK_WORD_KEY_MAX ? n - i : 0;
        for (end = n - i > t->n_longest ? cut_char(p, i + t->n_longest) : n; end > i; end = tr_utf8_before(p, end)) {
            if ((id = tr_tok_vocab_find(&t->vocab, e->scratch.p, n_front + end - i)) >= 0)
                break;
            if (n > TR_TOK_WORD_KEY_MAX) /* as above */
                TR_PASS(tr_tok_work((end - i) / 64));
        }
        TR_PASS(tr_tok_work(n_bytes / 64)); /* the copy */
        is_known = id >= 0;
        if (is_known)
            TR_PASS(tr_ids_add(out, id));
    }
    if (!is_known) {
        out->n = before;
        if (t->unk < 0)
            return tr_fail(TR_USAGE, "a word is not in the vocabulary, and the unknown token is not in it either");
        TR_PASS(tr_ids_add(out, t->unk));
    }
    return TR_OK;
}

enum tr_status tr_tok_model_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    int32_t id;
    switch (e->t->model) {
    case TR_TOK_MODEL_BPE:
        return tr_tok_bpe_word(e, p, n, out);
    case TR_TOK_MODEL_UNIGRAM:
        return tr_tok_unigram_word(e, p, n, out);
    case TR_TOK_MODEL_WORDPIECE:
        return tr_tok_wordpiece_word(e, p, n, out);
    case TR_TOK_MODEL_WORDLEVEL:
        break;
    }
    id = tr_tok_vocab_find(&e->t->vocab, p, n);
    if (id < 0)
        id = e->t->unk;
    if (id < 0)
        return tr_fail(TR_USAGE, "a word is not in the vocabulary, and the tokenizer has no unknown token");
    return tr_ids_add(out, id);
}
