/* rows.c - see rows.h. Values that are read from a file are checked again here where memory safety depends on them,
 * because the file may have changed. */
#include "data/rows.h"
#include "data/partner.h"

#include <stdlib.h>

enum { N_STARTS = 4096 };

/* ---- open ---- */

struct planning {
    struct tr_data_part *p;
    const struct tr_shard *s;
    size_t i_shard;
    int fd;
    enum tr_long how;
    uint64_t *n_mismatched; /* of labels: tokens of the mismatched document of each */
};

static void note_loss(struct tr_data_part *p, const struct tr_long_doc *x)
{
    p->n_dropped += x->is_dropped;
    p->n_cut += !x->is_dropped;
    p->n_tokens_lost += x->n_lost;
    p->n_targets_lost += x->n_targets_lost;
    if (p->n_lost < TR_COUNT_OF(p->lost))
        p->lost[p->n_lost++] = *x;
}

/* Whether tokens [first, first + n) have a target, or the one after them where the document goes on. */
static enum tr_status has_target(const struct planning *k, uint64_t first, uint64_t n, bool goes_on, bool *out)
{
    int64_t count = 0;
    enum tr_status st = tr_shard_mask(k->s, k->fd, first + 1, n - !goes_on, NULL, &count);
    *out = count > 0;
    return st;
}

static enum tr_status split_doc(const struct planning *k, uint64_t first, uint64_t n_doc)
{
    struct tr_data_part *p = k->p;
    uint64_t row = p->pack.row_tokens, n_chunks = n_doc / row, n_tail = n_doc % row;
    bool is_wanted;
    p->n_split++;
    for (uint64_t c = 0; c < n_chunks; c++) {
        TR_PASS(has_target(k, first + c * row, row, (c + 1) * row < n_doc, &is_wanted));
        p->n_idle += !is_wanted;
        if (is_wanted)
            TR_PASS(tr_pack_add_chunk(&p->pack, c));
    }
    is_wanted = false;
    if (n_tail > 1)
        TR_PASS(has_target(k, first + n_chunks * row, n_tail, false, &is_wanted));
    p->n_idle += n_tail > 1 && !is_wanted;
    tr_pack_end_doc(&p->pack, is_wanted ? n_tail : 0);
    return TR_OK;
}

static enum tr_status truncate_doc(const struct planning *k, uint64_t doc, uint64_t first, uint64_t n_doc)
{
    struct tr_pack *pack = &k->p->pack;
    struct tr_kept kept = { 0 };
    if (tr_shard_get_info(k->s)->has_pairs && k->how != TR_LONG_DROP && k->how != TR_LONG_REFUSE)
        TR_PASS(tr_long_keep_pair(k->s, k->fd, first, n_doc, pack->row_tokens, &kept));
    else if (k->how == TR_LONG_FIT || k->how == TR_LONG_CUT)
        TR_PASS(tr_long_keep(k->s, k->fd, first, n_doc, pack->row_tokens, k->how, &kept));
    struct tr_long_doc x = { .i_shard = k->i_shard,
                             .doc = doc,
                             .n_tokens = n_doc,
                             .n_lost = n_doc - kept.n - kept.n_then,
                             .n_targets_lost = kept.n_targets_lost,
                             .is_dropped = kept.n == 0 };
    note_loss(k->p, &x);
    if (!x.is_dropped)
        TR_PASS(tr_pack_add_kept(pack, kept.n, kept.then));
    tr_pack_end_doc(pack, 0);
    return TR_OK;
}

/* A row of answers with labels is filled twice, with the documents and with their mismatched ones, so a document takes
 * the places of the longer of the two. A tail is shorter than a row; the mismatched one is cut where it is not. */
static enum tr_status add_labelled(const struct planning *k, uint64_t doc, uint64_t n_doc)
{
    struct tr_pack *pack = &k->p->pack;
    uint64_t n = k->n_mismatched[doc] < pack->row_tokens ? k->n_mismatched[doc] : pack->row_tokens - 1;
    if (n <= n_doc)
        return tr_pack_add(pack, n_doc);
    TR_PASS(tr_pack_add(pack, n));
    pack->n_row_tokens -= n - n_doc;
    return TR_OK;
}

static enum tr_status plan_doc(const struct planning *k, uint64_t doc, uint64_t first, uint64_t n_doc)
{
    if (n_doc <= k->p->pack.row_tokens)
        return k->n_mismatched ? add_labelled(k, doc, n_doc) : tr_pack_add(&k->p->pack, n_doc);
    if (k->how == TR_LONG_SPLIT || (k->how == TR_LONG_FIT && !tr_shard_get_info(k->s)->has_mask))
        return split_doc(k, first, n_doc);
    return truncate_doc(k, doc, first, n_doc);
}

static enum tr_status plan_shard(struct tr_data_part *p, size_t i_shard, enum tr_long how)
{
    enum tr_status st = TR_OK;
    const struct tr_shard *s = p->shards[i_shard];
    struct planning k = { .p = p, .s = s, .i_shard = i_shard, .fd = -1, .how = how };
    uint64_t starts[N_STARTS], n_docs = tr_shard_get_info(s)->n_docs;
    TR_TRY(tr_shard_begin(s, &k.fd));
    if (p->partner) {
        k.n_mismatched = calloc((size_t)n_docs, sizeof *k.n_mismatched);
        if (!k.n_mismatched)
            TR_TRY(tr_fail(TR_NOMEM, "no memory for the partners of %" PRIu64 " records", n_docs));
        TR_TRY(tr_partners_find(s, k.fd, p->partner + p->first_doc[i_shard], k.n_mismatched));
    }
    for (uint64_t doc = 0; doc < n_docs;) {
        uint64_t n = n_docs - doc < N_STARTS - 1 ? n_docs - doc : N_STARTS - 1;
        TR_TRY(tr_shard_doc_starts(s, k.fd, doc, n + 1, starts));
        for (uint64_t i = 0; i < n; i++)
            TR_TRY(plan_doc(&k, doc + i, starts[i], starts[i + 1] - starts[i]));
        doc += n;
    }
out:
    free(k.n_mismatched);
    tr_shard_end(s, k.fd);
    return st;
}

enum tr_status tr_data_part_open(struct tr_data_part *p, struct tr_shard *const *shards, size_t n, enum tr_packing how,
                                 const struct tr_data_options *o, uint64_t seed)
{
    enum tr_status st = TR_OK;
    *p = (struct tr_data_part){ .packing = how, .row_tokens = o->row_tokens, .n_shards = n };
    p->shards = calloc(n, sizeof(struct tr_shard *));
    p->first_token = calloc(n + 1, sizeof *p->first_token);
    p->first_doc = calloc(n + 1, sizeof *p->first_doc);
    if (!p->shards || !p->first_token || !p->first_doc)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %zu token shards", n));
    for (size_t i = 0; i < n; i++) {
        const struct tr_shard_info *info = tr_shard_get_info(shards[i]);
        p->shards[i] = shards[i];
        p->first_token[i + 1] =
            p->first_token[i] + info->n_tokens; /* cannot overflow: each is below 2^56, and all are on disk */
        p->first_doc[i + 1] = p->first_doc[i] + info->n_docs;
    }
    if (how == TR_PACK_STREAM) {
        p->n_row_tokens = p->first_token[n];
        p->n_rows = tr_data_steps(p->first_token[n], (uint64_t)o->row_tokens);
        if (p->n_rows > 1 && o->row_tokens > 1 && p->first_token[n] % (uint64_t)o->row_tokens == 1)
            p->n_rows--; /* the last token alone predicts nothing, and the row before it has it as a target */
        return TR_OK;
    }
    if (o->wants_labels && !(p->partner = calloc((size_t)p->first_doc[n], sizeof *p->partner)))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for the partners of %" PRIu64 " records", p->first_doc[n]));
    TR_TRY(tr_pack_init(&p->pack, o->row_tokens, p->first_doc[n]));
    for (size_t i = 0; i < n; i++)
        TR_TRY(plan_shard(p, i, o->how_long));
    TR_TRY(tr_pack_finish(&p->pack, how, o->shuffle || o->held_out > 0, seed));
    p->n_rows = p->pack.n_rows;
    p->n_row_tokens = p->pack.n_row_tokens;
out:
    if (st != TR_OK)
        tr_data_part_release(p);
    return st;
}

void tr_data_part_release(struct tr_data_part *p)
{
    tr_pack_release(&p->pack);
    free(p->shards);
    free(p->first_token);
    free(p->first_doc);
    free(p->partner);
    *p = (struct tr_data_part){ 0 };
}

/* ---- the walk ---- */

/* The shard i with first[i] <= at < first[i + 1]. */
static size_t find_shard(const uint64_t *first, size_t n, uint64_t at)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (first[mid] <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static enum tr_status to_shard(struct tr_walk *w, size_t i_shard)
{
    if (w->shard && w->i_shard == i_shard)
        return TR_OK;
    tr_walk_end(w);
    w->i_shard = i_shard;
    w->n_bounds = 0;
    w->doc = 0;
    TR_PASS(tr_shard_begin(w->part->shards[i_shard], &w->fd));
    w->shard = w->part->shards[i_shard];
    return TR_OK;
}

void tr_walk_end(struct tr_walk *w)
{
    if (w->shard)
        tr_shard_end(w->shard, w->fd);
    w->shard = NULL;
}

enum tr_status tr_walk_begin(struct tr_walk *w, const struct tr_data_part *p, uint64_t row)
{
    const struct tr_pack *pack = &p->pack;
    w->part = p;
    w->shard = NULL;
    w->is_kept = false;
    w->room = (uint64_t)p->row_tokens;
    w->is_tail = row < pack->n_tail_rows;
    if (p->packing != TR_PACK_STREAM) {
        w->at = w->is_tail ? pack->row_first[row] : row;
        w->end = w->is_tail ? pack->row_first[row + 1] : row + 1;
        return TR_OK;
    }
    uint64_t row_tokens = (uint64_t)p->row_tokens, n_tokens = p->first_token[p->n_shards];
    w->at = row * row_tokens;
    w->end = n_tokens - w->at < row_tokens ? n_tokens : w->at + row_tokens;
    size_t i = find_shard(p->first_token, p->n_shards, w->at);
    enum tr_status st = to_shard(w, i);
    return st == TR_OK ? tr_shard_find_doc(w->shard, w->fd, w->at - p->first_token[i], &w->doc) : st;
}

static enum tr_status moved(const struct tr_walk *w, uint64_t doc)
{
    return tr_fail(TR_IO, "%s: document %" PRIu64 " has moved since the file was verified; put the file back",
                   tr_shard_path(w->shard), doc);
}

static enum tr_status doc_end(struct tr_walk *w, uint64_t *out)
{
    if (w->doc < w->bounds_first || w->doc - w->bounds_first >= w->n_bounds || w->n_bounds == 0) {
        uint64_t left = tr_shard_get_info(w->shard)->n_docs - w->doc;
        w->bounds_first = w->doc;
        w->n_bounds = left < TR_WALK_BOUNDS ? left : TR_WALK_BOUNDS;
        TR_PASS(tr_shard_doc_starts(w->shard, w->fd, w->doc + 1, w->n_bounds, w->bounds));
    }
    *out = w->bounds[w->doc - w->bounds_first];
    return TR_OK;
}

static enum tr_status next_of_stream(struct tr_walk *w, struct tr_piece *p)
{
    const uint64_t *first = w->part->first_token;
    uint64_t stop;
    if (w->at == first[w->i_shard + 1])
        TR_PASS(to_shard(w, w->i_shard + 1));
    uint64_t base = first[w->i_shard];
    TR_PASS(doc_end(w, &stop));
    if (stop <= w->at - base || stop > first[w->i_shard + 1] - base)
        TR_PASS(moved(w, w->doc));
    p->first = w->at - base;
    p->goes_on = base + stop > w->end;
    p->n = (int64_t)((p->goes_on ? w->end : base + stop) - w->at);
    p->next = p->first + (uint64_t)p->n;
    w->at += (uint64_t)p->n;
    w->doc++;
    return TR_OK;
}

static enum tr_status next_of_plan(struct tr_walk *w, struct tr_piece *p)
{
    const struct tr_pack *pack = &w->part->pack;
    struct tr_pack_chunk c = { 0 };
    uint64_t bounds[2], skip, n;
    if (!w->is_tail)
        c = pack->chunks[w->at - pack->n_tail_rows];
    uint64_t doc = p->doc = w->is_tail ? pack->doc[w->at] : c.doc;
    size_t i = find_shard(w->part->first_doc, w->part->n_shards, doc);
    TR_PASS(to_shard(w, i));
    doc -= w->part->first_doc[i];
    TR_PASS(tr_shard_doc_starts(w->shard, w->fd, doc, 2, bounds));
    if (bounds[1] <= bounds[0] || bounds[1] > tr_shard_get_info(w->shard)->n_tokens)
        TR_PASS(moved(w, doc));
    uint64_t n_doc = bounds[1] - bounds[0];
    tr_pack_tail(pack, n_doc, &skip, &n);
    if (!w->is_tail) {
        skip = c.chunk * pack->row_tokens;
        n = pack->row_tokens;
    }
    const struct tr_pack_kept *kept = w->is_tail ? NULL : tr_pack_find_kept(pack, c.doc);
    if (kept && w->is_kept) {
        skip = kept->then;
        n -= kept->n;
    } else if (kept) {
        n = kept->n;
    }
    if (n == 0 || skip > n_doc || n > n_doc - skip || n > w->room)
        TR_PASS(moved(w, doc));
    p->first = bounds[0] + skip;
    p->n = (int64_t)n;
    p->is_more = kept && w->is_kept;
    w->is_kept = kept && !w->is_kept && n < pack->row_tokens;
    p->goes_on = kept ? w->is_kept : skip + n < n_doc;
    p->next = bounds[0] + (w->is_kept ? kept->then : skip + n);
    w->room -= n;
    w->at += !w->is_kept;
    return TR_OK;
}

enum tr_status tr_walk_next(struct tr_walk *w, struct tr_piece *p)
{
    *p = (struct tr_piece){ 0 };
    if (w->at == w->end)
        return TR_OK;
    return w->part->packing == TR_PACK_STREAM ? next_of_stream(w, p) : next_of_plan(w, p);
}
