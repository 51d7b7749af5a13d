/* turns.c - is the end of a turn trained, and does a document begin with BOS once? The documents of a file are read as
 * rows have them, from the first one on, until one has the end among its targets: usually that is the first. */
#include "data/data_impl.h"
#include "data/long.h"

#include <string.h>

enum { PIECE = 1024 };

struct turn_search {
    const struct tr_data *d;
    const struct tr_shard *s;
    int fd;
    int32_t end, bos;
    bool is_stream; /* rows have every token of it */
    struct tr_data_turns *out;
};

/* Tokens [first, first + n) of a document. The first token of it is nobody's target. */
static enum tr_status look(const struct turn_search *x, uint64_t first, uint64_t n, bool is_begin)
{
    int32_t ids[PIECE], targets[PIECE];
    for (uint64_t at = 0; at < n && !x->out->has_end; at += PIECE) {
        uint64_t k = n - at < PIECE ? n - at : PIECE;
        int64_t n_targets;
        TR_PASS(tr_shard_read(x->s, x->fd, first + at, k, ids));
        memcpy(targets, ids, (size_t)k * sizeof *ids);
        TR_PASS(tr_shard_mask(x->s, x->fd, first + at, k, targets, &n_targets));
        if (is_begin && at == 0 && k > 1 && x->bos >= 0 && ids[0] == x->bos)
            x->out->n_bos = x->out->n_bos > 1 || ids[1] == x->bos ? 2 : 1;
        for (uint64_t i = is_begin && at == 0; i < k; i++)
            x->out->has_end |= targets[i] == x->end;
    }
    return TR_OK;
}

/* What rows have of one document. */
static enum tr_status look_at(const struct turn_search *x, uint64_t first, uint64_t n)
{
    uint64_t row = x->is_stream ? UINT64_MAX : (uint64_t)x->d->row_tokens;
    struct tr_kept kept = { .n = n };
    bool has_mask = tr_shard_get_info(x->s)->has_mask;
    if (n > row && x->d->how_long == TR_LONG_DROP)
        return TR_OK;
    if (n > row && x->d->has_pairs)
        TR_PASS(tr_long_keep_pair(x->s, x->fd, first, n, row, &kept));
    else if (n > row && has_mask && (x->d->how_long == TR_LONG_FIT || x->d->how_long == TR_LONG_CUT))
        TR_PASS(tr_long_keep(x->s, x->fd, first, n, row, x->d->how_long, &kept));
    else if (n > row && x->d->how_long == TR_LONG_CUT)
        kept.n = row;
    TR_PASS(look(x, first, kept.n, true));
    return look(x, first + kept.then, kept.n_then, false);
}

/* Documents [doc, doc + n) of a shard. */
static enum tr_status look_in_shard(struct turn_search *x, uint64_t doc, uint64_t n)
{
    enum tr_status st = TR_OK;
    x->fd = -1;
    TR_TRY(tr_shard_begin(x->s, &x->fd));
    for (uint64_t i = 0; i < n && !x->out->has_end; i++) {
        uint64_t start[2];
        TR_TRY(tr_shard_doc_starts(x->s, x->fd, doc + i, 2, start));
        TR_TRY(look_at(x, start[0], start[1] - start[0]));
    }
out:
    tr_shard_end(x->s, x->fd);
    return st;
}

enum tr_status tr_data_find_turns(const struct tr_data *d, size_t i_file, int32_t end, int32_t bos,
                                  struct tr_data_turns *out)
{
    d = tr_data_first(d);
    const struct tr_data_file *f = &d->files[i_file];
    struct turn_search x = { .d = d, .end = end, .bos = bos, .is_stream = f->packing == TR_PACK_STREAM, .out = out };
    uint64_t doc = f->i_doc, left = end < 0 && f->n_docs > 0 ? 1 : f->n_docs;
    *out = (struct tr_data_turns){ 0 };
    for (size_t i = f->i_shard; left > 0 && i < d->shards.n && !out->has_end; i++, doc = 0) {
        x.s = d->shards.p[i];
        uint64_t n = tr_shard_get_info(x.s)->n_docs - doc;
        n = n < left ? n : left;
        left -= n;
        TR_PASS(look_in_shard(&x, doc, n));
    }
    return TR_OK;
}
