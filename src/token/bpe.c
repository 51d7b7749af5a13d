/* bpe.c - byte pair encoding of one word, with a cache of words in front of it.
 *
 * Merges are applied by lowest rank, then leftmost. A short word is scanned for the minimum after every merge, which
 * needs no setup. A longer word uses a heap of (rank, position), which is O(n log n) for any text. A text that no
 * pre-tokenizer splits is split here wherever no merge can join the two neighbouring characters. That changes no id,
 * because the merges on both sides are independent. The cache is direct mapped, has a fixed size and belongs to one
 * encoder.
 */
#include "token/token_impl.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_WORD = 48, MAY_MERGE_BITS = 20 };

struct tr_tok_word {
    uint8_t n_key, n_ids; /* n_key 0: empty slot */
    char key[TR_TOK_WORD_KEY_MAX];
    int32_t ids[TR_TOK_WORD_IDS_MAX];
};

/* ---- merging ---- */

/* Keeps each symbol beside the rank of its merge with the right neighbour. n <= SHORT_WORD. */
static size_t merge_short(const struct tr_tok_merges *m, uint32_t *sym, size_t n)
{
    uint32_t rank[SHORT_WORD], made[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tr_tok_merge *x = tr_tok_merges_find(m, sym[i], sym[i + 1]);
        rank[i] = x ? x->rank : UINT32_MAX;
        made[i] = x ? x->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        sym[best] = made[best];
        n--;
        memmove(sym + best + 1, sym + best + 2, (n - best - 1) * sizeof *sym);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        memmove(made + best, made + best + 1, (n - best) * sizeof *made);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tr_tok_merge *x = tr_tok_merges_find(m, sym[i], sym[i + 1]);
            rank[i] = x ? x->rank : UINT32_MAX;
            made[i] = x ? x->id : 0;
        }
    }
    return n;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t x)
{
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], x = heap[--*n];
    size_t i = 0, k;
    for (; (k = 2 * i + 1) < *n; i = k) {
        if (k + 1 < *n && heap[k + 1] < heap[k])
            k++;
        if (heap[k] >= x)
            break;
        heap[i] = heap[k];
    }
    heap[i] = x;
    return top;
}

static const uint32_t GONE = UINT32_MAX;

static void push_pair(const struct tr_tok_merges *m, const uint32_t *sym, uint32_t left, uint32_t right, uint64_t *heap,
                      size_t *n_heap)
{
    const struct tr_tok_merge *x = tr_tok_merges_find(m, sym[left], sym[right]);
    if (x)
        heap_push(heap, n_heap, (uint64_t)x->rank << 32 | left);
}

/* links holds the next symbol of i at [2 i] and the previous one at [2 i + 1]. An entry of the heap is stale when the
 * pair at its position now has another rank. */
static size_t merge_long(const struct tr_tok_merges *m, uint32_t *sym, size_t n, uint32_t *links, uint64_t *heap)
{
    size_t n_heap = 0, n_out = 0;
    for (uint32_t i = 0; i < n; i++) {
        links[2 * i] = i + 1 < n ? i + 1 : GONE;
        links[2 * i + 1] = i ? i - 1 : GONE;
        if (i + 1 < n)
            push_pair(m, sym, i, i + 1, heap, &n_heap);
    }
    while (n_heap) {
        uint64_t top = heap_pop(heap, &n_heap);
        uint32_t i = (uint32_t)top, next = sym[i] == GONE ? GONE : links[2 * i];
        const struct tr_tok_merge *x = next == GONE ? NULL : tr_tok_merges_find(m, sym[i], sym[next]);
        if (!x || x->rank != top >> 32)
            continue;
        sym[i] = x->id;
        sym[next] = GONE;
        links[2 * i] = links[2 * next];
        if (links[2 * i] != GONE) {
            links[2 * links[2 * i] + 1] = i;
            push_pair(m, sym, i, links[2 * i], heap, &n_heap);
        }
        if (links[2 * i + 1] != GONE)
            push_pair(m, sym, links[2 * i + 1], i, heap, &n_heap);
    }
    for (size_t i = 0; i < n; i++)
        if (sym[i] != GONE)
            sym[n_out++] = sym[i];
    return n_out;
}

static enum tr_status merge_all(struct tr_tok_encoder *e, size_t n, size_t *n_out)
{
    if (n <= SHORT_WORD) {
        *n_out = merge_short(&e->t->merges, e->symbols, n);
        return TR_OK;
    }
    TR_PASS(tr_tok_encoder_grow(&e->links, &e->n_links_cap, 2 * n, sizeof *e->links));
    /* every merge removes one symbol and pushes at most two pairs */
    TR_PASS(tr_tok_encoder_grow(&e->heap, &e->n_heap_cap, 3 * n, sizeof *e->heap));
    *n_out = merge_long(&e->t->merges, e->symbols, n, e->links, e->heap);
    return TR_OK;
}

/* ---- a word's first symbols ---- */

/* A byte without a token becomes the unknown token or is dropped, as in the library. tr_tok_bpe_prepare() checks which
 * bytes may lack a token. */
static size_t symbols_of_bytes(const struct tr_tokenizer *t, const char *p, size_t n, uint32_t *sym)
{
    size_t k = 0;
    bool was_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->id_of_byte[(unsigned char)p[i]];
        if (id >= 0)
            sym[k++] = (uint32_t)id;
        else if (t->unk >= 0 && !(was_unk && t->fuse_unk))
            sym[k++] = (uint32_t)t->unk;
        was_unk = id < 0;
    }
    return k;
}

static int32_t id_of_char(const struct tr_tokenizer *t, const char *p, size_t len, uint32_t c)
{
    return c <= 0xFFFF ? t->id_of_cp[c] : tr_tok_vocab_find(&t->vocab, p, len);
}

/* The text of a symbol: the character, with the prefix or suffix that its place in the word requires. */
static const char *affixed(struct tr_tok_encoder *e, const char *p, size_t *len, bool is_first, bool is_last)
{
    const struct tr_tokenizer *t = e->t;
    tr_str_clear(&e->scratch);
    if (!is_first)
        tr_str_add(&e->scratch, t->prefix, strlen(t->prefix));
    tr_str_add(&e->scratch, p, *len);
    if (is_last)
        tr_str_add(&e->scratch, t->suffix, strlen(t->suffix));
    *len = e->scratch.n;
    return e->scratch.p ? e->scratch.p : "";
}

/* A character in the vocabulary becomes its token; any other becomes <0x..> tokens or the unknown token. As in the
 * library, an unknown token is written only before the next known character, and byte tokens may overtake it. */
static size_t symbols_of_chars(struct tr_tok_encoder *e, const char *p, size_t n)
{
    const struct tr_tokenizer *t = e->t;
    size_t k = 0, len;
    bool is_waiting = false;
    for (size_t i = 0; i < n; i += len) {
        uint32_t c = tr_utf8_get(p + i, n - i, &len);
        size_t n_text = len;
        const char *text = t->id_of_cp ? p + i : affixed(e, p + i, &n_text, i == 0, i + len == n);
        int32_t id = t->id_of_cp ? id_of_char(t, text, n_text, c) : tr_tok_vocab_find(&t->vocab, text, n_text);
        if (id >= 0) {
            if (is_waiting)
                e->symbols[k++] = (uint32_t)t->unk;
            is_waiting = false;
            e->symbols[k++] = (uint32_t)id;
            continue;
        }
        bool has_bytes = t->byte_fallback;
        for (size_t b = 0; has_bytes && b < n_text; b++)
            has_bytes = t->id_of_byte[(unsigned char)text[b]] >= 0;
        if (has_bytes) {
            for (size_t b = 0; b < n_text; b++)
                e->symbols[k++] = (uint32_t)t->id_of_byte[(unsigned char)text[b]];
        } else if (t->unk >= 0) {
            if (is_waiting && !t->fuse_unk)
                e->symbols[k++] = (uint32_t)t->unk;
            is_waiting = true;
        }
    }
    if (is_waiting)
        e->symbols[k++] = (uint32_t)t->unk;
    return k;
}

/* The id of a whole word, for ignore_merges; -1: not in the vocabulary. */
static int32_t whole_word(struct tr_tok_encoder *e, const char *p, size_t n)
{
    if (!e->t->is_raw)
        return tr_tok_vocab_find(&e->t->vocab, p, n);
    char u[4];
    tr_str_clear(&e->scratch);
    for (size_t i = 0; i < n; i++)
        tr_str_add(&e->scratch, u, tr_utf8_put(tr_tok_byte_char((unsigned char)p[i]), u));
    return tr_str_ok(&e->scratch) ? tr_tok_vocab_find(&e->t->vocab, e->scratch.p, e->scratch.n) : -1;
}

enum tr_status tr_tok_bpe_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    size_t k = 0, n_affixes = t->id_of_cp || t->is_raw ? 0 : strlen(t->prefix) + strlen(t->suffix);
    if (t->ignore_merges) {
        int32_t id = whole_word(e, p, n);
        if (id >= 0)
            return tr_ids_add(out, id);
    }
    TR_PASS(tr_tok_encoder_grow(&e->symbols, &e->n_symbols_cap, n * (1 + n_affixes) + 1, sizeof *e->symbols));
    k = t->is_raw ? symbols_of_bytes(t, p, n, e->symbols) : symbols_of_chars(e, p, n);
    TR_PASS(merge_all(e, k, &k));
    TR_PASS(tr_ids_reserve(out, k));
    for (size_t i = 0; i < k; i++)
        out->p[out->n++] = (int32_t)e->symbols[i];
    return TR_OK;
}

/* ---- the cache ---- */

enum tr_status tr_tok_word_cache_new(struct tr_tok_word **out)
{
    *out = calloc((size_t)1 << TR_TOK_WORD_CACHE_BITS, sizeof **out);
    return *out ? TR_OK : tr_fail(TR_NOMEM, "no memory for a cache of words");
}

enum tr_status tr_tok_cached_word(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    if (n > TR_TOK_WORD_KEY_MAX)
        return tr_tok_model_word(e, p, n, out);
    struct tr_tok_word *w = &e->cache[tr_tok_text_hash(p, n) >> (64 - TR_TOK_WORD_CACHE_BITS)];
    size_t before = out->n;
    if (w->n_key == n && memcmp(w->key, p, n) == 0) {
        if (out->n_cap - before < TR_TOK_WORD_IDS_MAX)
            TR_PASS(tr_ids_reserve(out, TR_TOK_WORD_IDS_MAX));
        memcpy(out->p + before, w->ids, w->n_ids * sizeof *w->ids);
        out->n += w->n_ids;
        return TR_OK;
    }
    enum tr_status st = tr_tok_model_word(e, p, n, out);
    if (st == TR_OK && out->n - before <= TR_TOK_WORD_IDS_MAX && n > 0) {
        w->n_key = (uint8_t)n;
        w->n_ids = (uint8_t)(out->n - before);
        memcpy(w->key, p, n);
        if (w->n_ids)
            memcpy(w->ids, out->p + before, w->n_ids * sizeof *w->ids);
    }
    return st;
}

/* ---- long texts without words ---- */

static size_t merge_bit(uint32_t left, uint32_t right)
{
    return (size_t)(tr_tok_mix((uint64_t)left << 32 | right) >> (64 - MAY_MERGE_BITS));
}

/* Splits the text between two known characters that no merge joins, and encodes the words in between. */
enum tr_status tr_tok_bpe_text(struct tr_tok_encoder *e, const char *p, size_t n, struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    size_t begin = 0, len;
    int32_t last = -1;
    if (!t->may_merge)
        return tr_tok_cached_word(e, p, n, out);
    for (size_t i = 0; i < n; i += len) {
        uint32_t c = tr_utf8_get(p + i, n - i, &len);
        int32_t id = id_of_char(t, p + i, len, c);
        if (id >= 0 && last >= 0) {
            size_t bit = merge_bit((uint32_t)last, (uint32_t)id);
            if (!(t->may_merge[bit / 8] >> bit % 8 & 1)) {
                TR_PASS(tr_tok_cached_word(e, p + begin, i - begin, out));
                begin = i;
            }
        }
        last = id;
    }
    return begin < n ? tr_tok_cached_word(e, p + begin, n - begin, out) : TR_OK;
}

/* An unknown letter joins nothing: the mark is known, and where may_merge exists no merge takes byte or unknown tokens.
 */
bool tr_tok_bpe_never_joins(const struct tr_tokenizer *t, const char *mark)
{
    size_t len;
    uint32_t c = tr_utf8_get(mark, strlen(mark) + 1, &len);
    int32_t right = t->may_merge ? id_of_char(t, mark, len, c) : -1;
    for (uint32_t a = 'A'; a <= 'z' && right >= 0; a++) {
        int32_t left = t->id_of_cp[a];
        size_t bit = left >= 0 ? merge_bit((uint32_t)left, (uint32_t)right) : 0;
        if (left >= 0 && t->may_merge[bit / 8] >> bit % 8 & 1)
            return false;
    }
    return right >= 0;
}

/* ---- tables that are computed from the vocabulary ---- */

static enum tr_status fill_chars(struct tr_tokenizer *t)
{
    enum { N_BMP = 0x10000 };
    TR_PASS(TR_ALLOC(t->id_of_cp, N_BMP, "a table of characters"));
    for (uint32_t c = 0; c < N_BMP; c++) {
        char u[4];
        bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
        t->id_of_cp[c] = is_surrogate ? -1 : tr_tok_vocab_find(&t->vocab, u, tr_utf8_put(c, u));
    }
    return TR_OK;
}

/* The symbol of a token's first or last character. -1: merges cannot produce that token from any text. */
static int32_t end_symbol(const struct tr_tokenizer *t, uint32_t id, bool is_last)
{
    size_t n, len, at;
    const char *p = tr_tok_vocab_text(&t->vocab, id, &n);
    at = is_last ? tr_utf8_before(p, n) : 0;
    uint32_t c = tr_utf8_get(p + at, n - at, &len);
    return id_of_char(t, p + at, len, c);
}

/* Marks the pairs of characters that a merge may join. may_merge stays NULL when byte or unknown tokens take part in
 * merges. */
static enum tr_status fill_may_merge(struct tr_tokenizer *t)
{
    uint8_t *bits = NULL;
    TR_PASS(TR_ALLOC(bits, (size_t)1 << MAY_MERGE_BITS >> 3, "a table of merges"));
    for (size_t i = 0; i < t->merges.n_slots; i++) {
        const struct tr_tok_merge *m = &t->merges.slots[i];
        if (!m->pair)
            continue;
        uint32_t left = (uint32_t)((m->pair - 1) >> 32), right = (uint32_t)(m->pair - 1);
        bool is_odd = (int32_t)left == t->unk || (int32_t)right == t->unk;
        for (int b = 0; b < TR_TOK_BYTES && t->byte_fallback; b++)
            is_odd |= t->id_of_byte[b] == (int32_t)left || t->id_of_byte[b] == (int32_t)right;
        if (is_odd) {
            free(bits);
            return TR_OK;
        }
        int32_t a = end_symbol(t, left, true), b = end_symbol(t, right, false);
        if (a >= 0 && b >= 0) {
            size_t bit = merge_bit((uint32_t)a, (uint32_t)b);
            bits[bit / 8] |= (uint8_t)(1 << bit % 8);
        }
    }
    t->may_merge = bits;
    return TR_OK;
}

enum tr_status tr_tok_bpe_prepare(struct tr_tokenizer *t)
{
    for (unsigned b = 0; b < TR_TOK_BYTES; b++) {
        char u[8];
        size_t n = t->is_raw ? tr_utf8_put(tr_tok_byte_char(b), u) : (size_t)snprintf(u, sizeof u, "<0x%02X>", b);
        t->id_of_byte[b] = tr_tok_vocab_find(&t->vocab, u, n);
        bool is_needed =
            b == '\t' || b == '\n' || b == '\r' || (b >= 0x20 && b < 0xC0 && b != 0x7F) ||
            (b >= 0xC2 && b <= 0xF0); /* SmolLM2 has no token for some control characters, nor for F1 and F2 */
        if (t->is_raw && t->id_of_byte[b] < 0 && is_needed)
            return tr_fail(TR_USAGE, "model.vocab has no entry for byte %u (U+%04X); a byte-level vocabulary needs one",
                           b, tr_tok_byte_char(b));
    }
    if (t->model != TR_TOK_MODEL_BPE || t->is_raw || *t->prefix || *t->suffix)
        return TR_OK;
    TR_PASS(fill_chars(t));
    return t->ignore_merges ? TR_OK : fill_may_merge(t);
}
