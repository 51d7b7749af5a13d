/* losses.c - names documents by file and line: those for which a row is too short, with what they lose and what they
 * need, and those of a sample. */
#include "data/data_impl.h"

#include <string.h>

/* The file of a shard, and the number of the document in it, from 0. */
static const struct tr_data_file *find_file(const struct tr_data *d, const struct tr_shard *s, uint64_t *doc)
{
    size_t i_shard = 0, i = d->n_files;
    while (d->shards.p[i_shard] != s)
        i_shard++;
    while (d->files[i - 1].i_shard > i_shard)
        i--;
    while (d->files[i - 1].i_shard == i_shard && d->files[i - 1].i_doc > *doc) /* joined files share a shard */
        i--;
    for (size_t k = d->files[i - 1].i_shard; k < i_shard; k++)
        *doc += tr_shard_get_info(d->shards.p[k])->n_docs;
    *doc -= d->files[i - 1].i_doc;
    return &d->files[i - 1];
}

/* The line of a document: records that were skipped before it have lines too. 0: the list of them is too short to tell,
 * or the file has no lines. */
static int64_t line_of(const struct tr_data_file *f, const struct tr_skip_list *skips, uint64_t doc)
{
    uint64_t n_known = 0;
    int64_t line = (int64_t)(f->n_before + doc) + 1;
    int64_t first = (int64_t)f->n_before, end = first + (int64_t)(f->n_docs + f->n_skipped);
    for (size_t i = 0; i < skips->n; i++) /* in the order of their lines */
        if (strcmp(skips->p[i].path, f->path) == 0 && skips->p[i].line > first && skips->p[i].line <= end) {
            n_known++;
            line += skips->p[i].line <= line;
        }
    return f->shape != TR_SHAPE_AUTO && n_known == f->n_skipped ? line : 0;
}

enum tr_status tr_data_name_losses(struct tr_data *d, const struct tr_data_part *part, const struct tr_skip_list *skips)
{
    for (size_t i = 0; i < part->n_lost; i++) {
        const struct tr_long_doc *x = &part->lost[i];
        uint64_t doc = x->doc;
        char why[256], which[40] = "";
        const struct tr_data_file *f = find_file(d, part->shards[x->i_shard], &doc);
        int64_t line = line_of(f, skips, doc);
        if (line == 0)
            TR_PASS(tr_format(which, sizeof which, "document %" PRIu64 ": ", doc + 1));
        if (d->how_long == TR_LONG_REFUSE)
            return tr_fail(TR_USAGE,
                           "%s:%" PRId64 ": %s%" PRIu64 " tokens are longer than a row of %" PRId64
                           "; give --sequence_length %" PRIu64 ", or --long_documents %sdrop",
                           f->path, line, which, x->n_tokens, d->row_tokens, x->n_tokens,
                           tr_data_counts_docs(d) ? "fit or " : "fit, split, cut or ");
        char lost[80];
        if (x->is_dropped)
            TR_PASS(tr_format(lost, sizeof lost, "%sit is left out",
                              d->how_long == TR_LONG_DROP ? "" : "no target would be left, so "));
        else
            TR_PASS(tr_format(lost, sizeof lost, "%" PRIu64 " are lost, %" PRIu64 " of them targets", x->n_lost,
                              x->n_targets_lost));
        TR_PASS(tr_format(why, sizeof why,
                          "%s%" PRIu64 " tokens are longer than a row: %s; it needs --sequence_length %" PRIu64, which,
                          x->n_tokens, lost, x->n_tokens));
        TR_PASS(tr_skip_list_add(&d->losses, f->path, line, why));
    }
    return TR_OK;
}

enum tr_status tr_data_where(const struct tr_data *d, uint64_t sample, int64_t token, struct tr_data_record *out)
{
    enum tr_status st = TR_OK;
    struct tr_place place;
    struct tr_walk w = { 0 };
    struct tr_piece p = { 0 };
    int64_t end = 0;
    TR_TRY(tr_data_place(d, sample, &place));
    TR_TRY(tr_walk_begin(&w, place.part, place.row));
    do {
        TR_TRY(tr_walk_next(&w, &p));
        end += p.n;
    } while (p.n > 0 && end <= token);
    if (p.n == 0)
        TR_TRY(tr_fail(TR_USAGE, "sample %" PRIu64 " has no token %" PRId64, sample, token));
    bool is_stream = place.part->packing == TR_PACK_STREAM;
    uint64_t doc = is_stream ? w.doc - 1 : p.doc - place.part->first_doc[w.i_shard];
    const struct tr_data_file *f = find_file(place.d, w.shard, &doc);
    *out = (struct tr_data_record){ f->path, line_of(f, &place.d->skips, doc), doc };
out:
    tr_walk_end(&w);
    return st;
}
