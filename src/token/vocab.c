/* vocab.c - token texts by id and by text, the merge table, and a byte trie.
 *
 * All three are filled once and then only read. The hash tables use open addressing without deletion and always have
 * free slots. Sizes come from files, so every size is checked. Rejected: a double array trie (fast to search, but
 * building one of a quarter of a million keys needs more code than the rest of this file).
 */
#include "token/token_parts.h"

#include <stdlib.h>
#include <string.h>

uint64_t tr_tok_mix(uint64_t x) /* the finaliser of MurmurHash3 */
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

uint64_t tr_tok_text_hash(const char *p, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, p, n);
    return tr_tok_mix(h ^ word);
}

void tr_tok_vocab_release(struct tr_tok_vocab *v)
{
    tr_str_release(&v->text);
    free(v->at);
    free(v->len);
    free(v->slots);
    *v = (struct tr_tok_vocab){ 0 };
}

static bool is_at(const struct tr_tok_vocab *v, uint32_t id, const char *text, size_t n)
{
    return v->len[id] == n && memcmp(v->text.p + v->at[id], text, n) == 0;
}

/* The slot that holds the text, or the free slot where it belongs. */
static uint32_t *find_slot(const struct tr_tok_vocab *v, const char *text, size_t n)
{
    size_t i = (size_t)tr_tok_text_hash(text, n);
    while (true) {
        uint32_t *slot = &v->slots[i++ & (v->n_slots - 1)];
        if (*slot == 0 || is_at(v, *slot - 1, text, n))
            return slot;
    }
}

static enum tr_status grow_slots(struct tr_tok_vocab *v)
{
    size_t n = v->n_slots ? v->n_slots * 2 : 1024;
    uint32_t *old = v->slots, *fresh = calloc(n, sizeof *fresh);
    size_t n_old = v->n_slots;
    if (!fresh)
        return tr_fail(TR_NOMEM, "no memory for a vocabulary of %zu slots", n);
    v->slots = fresh;
    v->n_slots = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i])
            *find_slot(v, v->text.p + v->at[old[i] - 1], v->len[old[i] - 1]) = old[i];
    free(old);
    return TR_OK;
}

static enum tr_status grow_ids(struct tr_tok_vocab *v, size_t id)
{
    size_t cap = v->n_cap ? v->n_cap : 1024;
    while (cap <= id)
        cap *= 2;
    uint32_t *at = realloc(v->at, cap * sizeof *at);
    if (at)
        v->at = at;
    uint32_t *len = realloc(v->len, cap * sizeof *len);
    if (len)
        v->len = len;
    if (!at || !len)
        return tr_fail(TR_NOMEM, "no memory for a vocabulary of %zu ids", cap);
    memset(v->len + v->n_cap, 0xFF, (cap - v->n_cap) * sizeof *len);
    v->n_cap = cap;
    return TR_OK;
}

enum tr_status tr_tok_vocab_add(struct tr_tok_vocab *v, const char *text, size_t n, int64_t id, bool may_repeat)
{
    char buf[96];
    if (id < 0 || id >= TR_TOK_VOCAB_MAX)
        return tr_fail(TR_USAGE, "token \"%s\" has id %" PRId64 "; ids are 0 to %d", tr_escape(text, buf, sizeof buf),
                       id, TR_TOK_VOCAB_MAX - 1);
    if ((size_t)id >= v->n_cap)
        TR_PASS(grow_ids(v, (size_t)id));
    if (v->len[id] != UINT32_MAX)
        return tr_fail(TR_USAGE, "token id %" PRId64 " is given twice", id);
    if (v->n_tokens * 2 >= v->n_slots)
        TR_PASS(grow_slots(v));
    uint32_t *slot = find_slot(v, text, n);
    if (*slot && !may_repeat)
        return tr_fail(TR_USAGE, "token \"%s\" is given twice", tr_escape(text, buf, sizeof buf));
    v->at[id] = (uint32_t)v->text.n;
    v->len[id] = (uint32_t)n;
    tr_str_add(&v->text, text, n);
    if (!tr_str_ok(&v->text) || v->text.n > UINT32_MAX)
        return tr_fail(TR_NOMEM, "no memory for the texts of the vocabulary");
    *slot = (uint32_t)id + 1;
    v->n_tokens++;
    if ((size_t)id >= v->n_ids)
        v->n_ids = (size_t)id + 1;
    return TR_OK;
}

int32_t tr_tok_vocab_find(const struct tr_tok_vocab *v, const char *text, size_t n)
{
    return v->n_slots ? (int32_t)*find_slot(v, text, n) - 1 : -1;
}

const char *tr_tok_vocab_text(const struct tr_tok_vocab *v, int64_t id, size_t *n)
{
    if (id < 0 || (size_t)id >= v->n_ids || v->len[id] == UINT32_MAX)
        return NULL;
    *n = v->len[id];
    return v->text.p + v->at[id];
}

enum tr_status tr_tok_merges_reserve(struct tr_tok_merges *m, size_t n)
{
    m->n_slots = 16;
    while (m->n_slots < n * 2)
        m->n_slots *= 2;
    m->slots = calloc(m->n_slots, sizeof *m->slots);
    return m->slots ? TR_OK : tr_fail(TR_NOMEM, "no memory for %zu merges", n);
}

void tr_tok_merges_put(struct tr_tok_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = ((uint64_t)left << 32 | right) + 1;
    size_t i = (size_t)tr_tok_mix(pair);
    struct tr_tok_merge *s;
    do
        s = &m->slots[i++ & (m->n_slots - 1)];
    while (s->pair && s->pair != pair);
    m->n += s->pair == 0;
    *s = (struct tr_tok_merge){ pair, rank, id }; /* a pair given twice has its later rank, as in the library */
}

/* ---- trie ---- */

void tr_tok_trie_release(struct tr_tok_trie *t)
{
    free(t->nodes);
    *t = (struct tr_tok_trie){ 0 };
}

static int compare_keys(const void *pa, const void *pb)
{
    const struct tr_tok_trie_key *a = pa, *b = pb;
    int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    if (order || a->n != b->n)
        return order ? order : a->n < b->n ? -1 : 1;
    return a->value < b->value ? -1 : a->value > b->value; /* of equal keys, the later one comes last */
}

struct work { /* keys [lo, hi) share their first `depth` bytes: the subtree of a node */
    uint32_t node, lo, hi, depth;
};

/* Adds the children of one subtree to the nodes and to the work list. */
static void expand(struct tr_tok_trie *t, const struct tr_tok_trie_key *keys, struct work w, struct work *list,
                   size_t *n_list)
{
    while (w.lo < w.hi && keys[w.lo].n == w.depth)
        t->nodes[w.node].value = keys[w.lo++].value;
    t->nodes[w.node].first = (uint32_t)t->n_nodes;
    for (uint32_t lo = w.lo, hi; lo < w.hi; lo = hi) {
        uint8_t byte = (uint8_t)keys[lo].text[w.depth];
        for (hi = lo + 1; hi < w.hi && (uint8_t)keys[hi].text[w.depth] == byte; hi++)
            ;
        list[(*n_list)++] = (struct work){ (uint32_t)t->n_nodes, lo, hi, w.depth + 1 };
        t->nodes[t->n_nodes++] = (struct tr_tok_trie_node){ .value = -1, .byte = byte };
        t->nodes[w.node].n_children++;
    }
}

enum tr_status tr_tok_trie_build(struct tr_tok_trie *t, struct tr_tok_trie_key *keys, size_t n)
{
    size_t n_nodes = 1, n_list = 0;
    *t = (struct tr_tok_trie){ 0 };
    for (size_t i = 0; i < n; i++) {
        n_nodes += keys[i].n;
        if (keys[i].n)
            t->starts[(uint8_t)keys[i].text[0]] = true;
    }
    if (n_nodes == 1)
        return TR_OK;
    if (n_nodes > INT32_MAX || n > INT32_MAX)
        return tr_fail(TR_USAGE, "the tokens hold %zu bytes, which is too many for a trie", n_nodes);
    qsort(keys, n, sizeof *keys, compare_keys);
    t->nodes = malloc(n_nodes * sizeof *t->nodes);
    struct work *list = malloc(n_nodes * sizeof *list);
    if (!t->nodes || !list) {
        free(list);
        tr_tok_trie_release(t);
        return tr_fail(TR_NOMEM, "no memory for a trie of %zu nodes", n_nodes);
    }
    t->nodes[t->n_nodes++] = (struct tr_tok_trie_node){ .value = -1 };
    list[n_list++] = (struct work){ 0, 0, (uint32_t)n, 0 };
    for (size_t i = 0; i < n_list; i++)
        expand(t, keys, list[i], list, &n_list);
    t->nodes[0].value = -1; /* of empty keys */
    free(list);
    struct tr_tok_trie_node *fit = realloc(t->nodes, t->n_nodes * sizeof *fit);
    if (fit)
        t->nodes = fit;
    return TR_OK;
}
