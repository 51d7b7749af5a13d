/* pack.c - see pack.h. The rows of a window that still have room are sorted by room: a tree over the amounts of room
 * finds the smallest amount that is enough in log2(T) steps, and rows with equal room form a list. */
#include "data/pack.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t no_room = UINT32_MAX;

/* ---- long documents ---- */

enum tr_status tr_pack_init(struct tr_pack *p, int64_t row_tokens, uint64_t n_docs)
{
    *p = (struct tr_pack){ .row_tokens = (uint64_t)row_tokens };
    if (n_docs >= UINT32_MAX)
        return tr_fail(TR_USAGE, "%" PRIu64 " documents are too many to pack; use packing stream", n_docs);
    p->tail = calloc((size_t)n_docs, sizeof *p->tail);
    p->doc = calloc((size_t)n_docs, sizeof *p->doc);
    p->row_first = calloc((size_t)n_docs + 1, sizeof *p->row_first);
    if (!p->tail || !p->doc || !p->row_first) {
        tr_pack_release(p);
        return tr_fail(TR_NOMEM, "no memory to pack %" PRIu64 " documents", n_docs);
    }
    return TR_OK;
}

void tr_pack_release(struct tr_pack *p)
{
    free(p->doc);
    free(p->row_first);
    free(p->chunks);
    free(p->kept);
    free(p->tail);
    *p = (struct tr_pack){ 0 };
}

enum tr_status tr_pack_add_chunk(struct tr_pack *p, uint64_t chunk)
{
    if (chunk >= UINT32_MAX)
        return tr_fail(TR_USAGE, "document %" PRIu64 " has more than 2^32 rows; use packing stream", p->n_docs);
    TR_PASS(TR_ROOM(p->chunks, (size_t)p->n_chunks + 1, &p->n_chunks_cap, "%" PRIu64 " rows of long documents",
                    p->n_chunks + 1));
    p->chunks[p->n_chunks++] = (struct tr_pack_chunk){ (uint32_t)p->n_docs, (uint32_t)chunk };
    p->n_row_tokens += p->row_tokens;
    return TR_OK;
}

enum tr_status tr_pack_add_kept(struct tr_pack *p, uint64_t n, uint64_t then)
{
    TR_PASS(
        TR_ROOM(p->kept, (size_t)p->n_kept + 1, &p->n_kept_cap, "%" PRIu64 " rows of long documents", p->n_kept + 1));
    p->kept[p->n_kept++] = (struct tr_pack_kept){ (uint32_t)p->n_docs, (uint32_t)n, then };
    return tr_pack_add_chunk(p, 0);
}

void tr_pack_end_doc(struct tr_pack *p, uint64_t n_tail)
{
    p->tail[p->n_docs++] = (uint32_t)n_tail;
    p->n_row_tokens += n_tail;
}

/* A tail of one token is left out: nothing predicts from it, and the row before it has it as a target. */
enum tr_status tr_pack_add(struct tr_pack *p, uint64_t n_tokens)
{
    enum tr_status st = TR_OK;
    uint64_t n_chunks = n_tokens / p->row_tokens, n_tail = n_tokens % p->row_tokens;
    for (uint64_t c = 0; c < n_chunks && st == TR_OK; c++)
        st = tr_pack_add_chunk(p, c);
    if (st == TR_OK)
        tr_pack_end_doc(p, n_chunks > 0 && n_tail == 1 ? 0 : n_tail);
    return st;
}

const struct tr_pack_kept *tr_pack_find_kept(const struct tr_pack *p, uint64_t doc)
{
    uint64_t lo = 0, hi = p->n_kept;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (p->kept[mid].doc < doc)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->n_kept && p->kept[lo].doc == doc ? &p->kept[lo] : NULL;
}

/* ---- best fit ---- */

struct packer {
    uint32_t *tree; /* rows in each subtree; leaf n_leaves + r counts the rows with room r */
    uint32_t n_leaves;
    uint32_t *head, *next; /* head[r]: a row with room r; next[row]: the next one */
    uint32_t *room;        /* of each row */
    uint32_t *docs;        /* the window */
    uint32_t *sorted;      /* of docs: longest first, then by order */
    uint32_t *count;       /* of each length, for the sort */
    uint32_t *row_of, *end;
    uint32_t n_docs, n_rows; /* in the window */
};

static void packer_release(struct packer *k)
{
    free(k->tree);
    free(k->head);
    free(k->next);
    free(k->room);
    free(k->docs);
    free(k->sorted);
    free(k->count);
    free(k->row_of);
    free(k->end);
}

static enum tr_status packer_init(struct packer *k, uint64_t row_tokens, uint64_t n_docs)
{
    size_t n = n_docs < TR_PACK_WINDOW ? (size_t)n_docs : TR_PACK_WINDOW;
    *k = (struct packer){ .n_leaves = 1 };
    while (k->n_leaves <= row_tokens)
        k->n_leaves *= 2;
    k->tree = calloc((size_t)k->n_leaves * 2, sizeof *k->tree);
    k->head = malloc(((size_t)row_tokens + 1) * sizeof *k->head);
    k->next = calloc(n, sizeof *k->next);
    k->room = calloc(n, sizeof *k->room);
    k->docs = calloc(n, sizeof *k->docs);
    k->sorted = calloc(n, sizeof *k->sorted);
    k->count = calloc((size_t)row_tokens, sizeof *k->count);
    k->row_of = calloc(n, sizeof *k->row_of);
    k->end = calloc(n, sizeof *k->end);
    if (!k->tree || !k->head || !k->next || !k->room || !k->docs || !k->sorted || !k->count || !k->row_of || !k->end) {
        packer_release(k);
        return tr_fail(TR_NOMEM, "no memory to pack rows of %" PRIu64 " tokens", row_tokens);
    }
    memset(k->head, 0xFF, ((size_t)row_tokens + 1) * sizeof *k->head);
    return TR_OK;
}

static void put_row(struct packer *k, uint32_t row)
{
    uint32_t r = k->room[row];
    k->next[row] = k->head[r];
    k->head[r] = row;
    for (uint32_t i = k->n_leaves + r; i > 0; i /= 2)
        k->tree[i]++;
}

static uint32_t take_row(struct packer *k, uint32_t r)
{
    uint32_t row = k->head[r];
    k->head[r] = k->next[row];
    for (uint32_t i = k->n_leaves + r; i > 0; i /= 2)
        k->tree[i]--;
    return row;
}

/* The smallest room of any row that is at least `need`, or no_room. The search climbs the tree to the first right
 * neighbour that has rows, then descends. */
static uint32_t find_room(const struct packer *k, uint32_t need)
{
    uint32_t i = k->n_leaves + need;
    if (k->tree[i])
        return need;
    while (i > 1 && (i % 2 == 1 || !k->tree[i + 1]))
        i /= 2;
    if (i <= 1)
        return no_room;
    i++;
    while (i < k->n_leaves)
        i = k->tree[2 * i] ? 2 * i : 2 * i + 1;
    return i - k->n_leaves;
}

static void sort_window(struct packer *k, const struct tr_pack *p)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < k->n_docs; i++)
        k->count[p->tail[k->docs[i]]]++;
    for (uint64_t n_tokens = p->row_tokens; n_tokens-- > 1;) {
        uint32_t n = k->count[n_tokens];
        k->count[n_tokens] = at;
        at += n;
    }
    for (uint32_t i = 0; i < k->n_docs; i++)
        k->sorted[k->count[p->tail[k->docs[i]]]++] = k->docs[i];
    memset(k->count, 0, (size_t)p->row_tokens * sizeof *k->count);
}

/* Moves the rows of the window into the pack, in the order in which they were opened. */
static void emit_rows(struct packer *k, struct tr_pack *p, uint64_t *n_placed)
{
    memset(k->end, 0, k->n_rows * sizeof *k->end);
    for (uint32_t i = 0; i < k->n_docs; i++)
        k->end[k->row_of[i]]++;
    uint32_t at = (uint32_t)*n_placed;
    for (uint32_t row = 0; row < k->n_rows; row++) {
        uint32_t n = k->end[row];
        p->row_first[p->n_tail_rows++] = at;
        k->end[row] = at;
        at += n;
    }
    for (uint32_t i = 0; i < k->n_docs; i++) /* in the order in which they were placed */
        p->doc[k->end[k->row_of[i]]++] = k->sorted[i];
    *n_placed = at;
}

static void pack_window(struct packer *k, struct tr_pack *p, uint64_t *n_placed)
{
    sort_window(k, p);
    k->n_rows = 0;
    for (uint32_t i = 0; i < k->n_docs; i++) {
        uint32_t need = p->tail[k->sorted[i]], r = find_room(k, need), row;
        if (r == no_room) {
            row = k->n_rows++;
            k->room[row] = (uint32_t)p->row_tokens;
        } else {
            row = take_row(k, r);
        }
        k->row_of[i] = row;
        k->room[row] -= need;
        put_row(k, row);
    }
    emit_rows(k, p, n_placed);
    for (uint32_t row = 0; row < k->n_rows; row++)
        take_row(k, k->room[row]);
    k->n_docs = 0;
}

static enum tr_status pack_best_fit(struct tr_pack *p, bool shuffle, uint64_t seed, uint64_t *n_placed)
{
    struct packer k;
    uint64_t key = tr_rng_key(seed, "pack", 0);
    TR_PASS(packer_init(&k, p->row_tokens, p->n_docs));
    for (uint64_t i = 0; i < p->n_docs; i++) {
        uint64_t doc = shuffle ? tr_permute(key, p->n_docs, i) : i;
        if (p->tail[doc] > 0)
            k.docs[k.n_docs++] = (uint32_t)doc;
        if (k.n_docs == TR_PACK_WINDOW || i + 1 == p->n_docs)
            pack_window(&k, p, n_placed);
    }
    packer_release(&k);
    return TR_OK;
}

static void pack_none(struct tr_pack *p, uint64_t *n_placed)
{
    for (uint64_t doc = 0; doc < p->n_docs; doc++)
        if (p->tail[doc] > 0) {
            p->row_first[p->n_tail_rows++] = (uint32_t)*n_placed;
            p->doc[(*n_placed)++] = (uint32_t)doc;
        }
}

enum tr_status tr_pack_finish(struct tr_pack *p, enum tr_packing how, bool shuffle, uint64_t seed)
{
    uint64_t n_placed = 0;
    if (how == TR_PACK_NONE)
        pack_none(p, &n_placed);
    else
        TR_PASS(pack_best_fit(p, shuffle, seed, &n_placed));
    p->row_first[p->n_tail_rows] = (uint32_t)n_placed;
    uint32_t *rows = realloc(p->row_first,
                             ((size_t)p->n_tail_rows + 1) *
                                 sizeof *rows); /* there are far fewer rows than documents, so this gives memory back */
    if (rows)
        p->row_first = rows;
    p->n_rows = p->n_tail_rows + p->n_chunks;
    free(p->tail);
    p->tail = NULL;
    return TR_OK;
}
