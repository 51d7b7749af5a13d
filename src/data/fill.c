/* fill.c - samples: where sample g is, its tokens and targets, and how many targets it has.
 *
 * Filling and counting walk over the same pieces, so that they cannot disagree. Nothing allocates; all state is on the
 * stack.
 */
#include "data/data_impl.h"
#include "data/partner.h"
#include "data/stream.h"

#include <string.h>

enum tr_status tr_data_place(const struct tr_data *d, uint64_t g, struct tr_place *out)
{
    struct tr_place at = { .d = d };
    uint64_t k;
    tr_mix_at(&d->mix, g, &at.i_group, &k);
    const struct tr_data_group *group;
    if (d->stream) {
        TR_PASS(tr_stream_find(d->stream, at.i_group, k, &at.d, &at.row, &at.epoch));
        group = &at.d->groups[0];
    } else {
        group = &d->groups[at.i_group];
        at.epoch = k / group->n_rows;
        at.row = k % group->n_rows;
    }
    if (d->shuffle)
        at.row = tr_permute(tr_rng_key(group->seed, "shuffle", at.epoch), group->n_rows, at.row);
    if (group->is_split)
        at.row = tr_permute(tr_rng_key(group->seed, "held out", 0), group->n_all, group->i_first + at.row);
    at.part = group->parts;
    while (at.row >= at.part->n_rows) {
        at.row -= at.part->n_rows;
        at.part++;
    }
    *out = at;
    return TR_OK;
}

static enum tr_status begin_row(struct tr_walk *w, const struct tr_data *d, uint64_t g)
{
    struct tr_place at;
    w->shard = NULL;
    TR_PASS(tr_data_place(d, g, &at));
    return tr_walk_begin(w, at.part, at.row);
}

/* Fills elements [at, at + n) of the batch: of a document, or of padding, that begins at element `begin`. */
static void fill_place(const struct tr_batch *b, int64_t at, int64_t n, int64_t begin, int64_t id)
{
    for (int64_t i = 0; i < n; i++) {
        b->positions[at + i] = (int32_t)(at + i - begin);
        b->begin[at + i] = (int32_t)begin;
        b->sample[at + i] = id;
        b->other[at + i] = -1;
        b->value[at + i] = b->weight[at + i] = b->match[at + i] = 0;
    }
}

static void fill_padding(const struct tr_batch *b, int64_t at, int64_t n, int64_t id)
{
    fill_place(b, at, n, at, id);
    for (int64_t i = 0; i < n; i++) {
        b->tokens[at + i] = 0;
        b->targets[at + i] = TR_TARGET_NONE;
    }
}

/* Takes the loss from targets that have none (targets may be NULL), and counts the others. */
static enum tr_status mask_piece(const struct tr_walk *w, const struct tr_piece *p, int32_t *targets,
                                 int64_t *n_targets)
{
    int64_t n_next = 0;
    uint64_t n = (uint64_t)p->n;
    TR_PASS(tr_shard_mask(w->shard, w->fd, p->first + 1, n - 1, targets, n_targets));
    if (p->goes_on)
        TR_PASS(tr_shard_mask(w->shard, w->fd, p->next, 1, targets ? targets + n - 1 : NULL, &n_next));
    *n_targets += n_next;
    return TR_OK;
}

/* The weights of the targets of a piece: to `to`, which may be NULL, and their sum. */
static enum tr_status weigh_piece(const struct tr_walk *w, const struct tr_piece *p, float *to, int64_t *sum)
{
    enum { AT_ONCE = 512 };
    uint32_t weight[AT_ONCE];
    int32_t target[AT_ONCE];
    uint64_t n_all = (uint64_t)p->n - 1 + p->goes_on;
    *sum = 0;
    for (uint64_t at = 0, n; at < n_all; at += n) {
        bool is_last = p->goes_on && at == n_all - 1; /* it may lie elsewhere in the shard */
        uint64_t first = is_last ? p->next : p->first + 1 + at;
        int64_t n_targets;
        n = is_last ? 1 : n_all - p->goes_on - at;
        n = n < AT_ONCE ? n : AT_ONCE;
        memset(target, 0, sizeof target);
        TR_PASS(tr_shard_weights(w->shard, w->fd, first, n, weight));
        TR_PASS(tr_shard_mask(w->shard, w->fd, first, n, target, &n_targets));
        for (uint64_t i = 0; i < n; i++) {
            uint32_t own = target[i] == TR_TARGET_NONE ? 0 : weight[i];
            *sum += own;
            if (to)
                to[at + i] = (float)own;
        }
    }
    return TR_OK;
}

static enum tr_status fill_piece(const struct tr_walk *w, const struct tr_piece *p, const struct tr_batch *b,
                                 int64_t at, int64_t *n_targets)
{
    int32_t next = TR_TARGET_NONE;
    TR_PASS(tr_shard_read(w->shard, w->fd, p->first, (uint64_t)p->n, b->tokens + at));
    if (p->goes_on)
        TR_PASS(tr_shard_read(w->shard, w->fd, p->next, 1, &next));
    memcpy(b->targets + at, b->tokens + at + 1, (size_t)(p->n - 1) * sizeof *b->targets);
    b->targets[at + p->n - 1] = next;
    return mask_piece(w, p, b->targets + at, n_targets);
}

/* Where the second answer of a pair of n tokens begins: behind the first target, at the first token that is none. 0:
 * the document is no pair. */
static int64_t second_half(const int32_t *targets, int64_t n)
{
    int64_t i = 0;
    while (i < n && targets[i] == TR_TARGET_NONE)
        i++;
    while (i < n && targets[i] != TR_TARGET_NONE)
        i++;
    return i + 1 < n ? i + 1 : 0;
}

/* LD-DPO (arXiv 2409.06411): the first `n_shared` targets of an answer at elements [at, end) weigh 1, those behind what
 * both answers of the pair have weigh `tail`. */
static void weigh_answer(const struct tr_batch *b, int64_t at, int64_t end, int64_t n_shared, float tail)
{
    for (; at < end; at++)
        if (b->targets[at] != TR_TARGET_NONE)
            b->weight[at] = n_shared-- > 0 ? 1 : tail;
}

static int64_t count_targets(const struct tr_batch *b, int64_t at, int64_t end)
{
    int64_t n = 0;
    for (; at < end; at++)
        n += b->targets[at] != TR_TARGET_NONE;
    return n;
}

/* Makes two documents of the pair at elements [at, at + n). id: of the first. */
static enum tr_status fill_pair(const struct tr_data *d, const struct tr_walk *w, uint64_t doc,
                                const struct tr_batch *b, int64_t at, int64_t n, int64_t id)
{
    int64_t half = second_half(b->targets + at, n);
    const float *ref = d->ref + 2 * (w->part->first_ref + doc);
    if (half == 0)
        return tr_fail(TR_IO, "%s: document %" PRIu64 " of the shard's data is no pair of answers; make the file again",
                       tr_shard_path(w->shard), doc);
    fill_place(b, at + half, n - half, at + half, id + half);
    for (int64_t i = 0; i < n; i++)
        b->other[at + i] = (int32_t)(i < half ? at + half : at);
    b->value[at] = ref[0];
    b->value[at + half] = ref[1];
    if (d->weighs_tails) {
        int64_t n_shared = tr_min64(count_targets(b, at, at + half), count_targets(b, at + half, at + n));
        weigh_answer(b, at, at + half, n_shared, d->tail_weight);
        weigh_answer(b, at + half, at + n, n_shared, d->tail_weight);
    }
    return TR_OK;
}

/* What the loss of an answer with a label reads, at elements [at, at + n). */
static void fill_label(const struct tr_data *d, const struct tr_walk *w, uint64_t doc, bool is_mismatched,
                       bool is_desirable, const struct tr_batch *b, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        b->other[at + i] = (int32_t)(at + is_desirable);
    b->value[at] = d->ref[2 * (w->part->first_ref + doc) + is_mismatched];
}

/* The label of the document that begins with this piece. */
static enum tr_status read_label(const struct tr_walk *w, const struct tr_piece *p, bool *out)
{
    int64_t n = 0;
    TR_PASS(tr_shard_mask(w->shard, w->fd, p->first, 1, NULL, &n));
    *out = n > 0;
    return TR_OK;
}

/* *n: how many tokens of the row are used. */
static enum tr_status fill_row(const struct tr_data *d, uint64_t g, const struct tr_batch *b, int64_t at,
                               int64_t *count, int64_t *n)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    int64_t col = 0, begin = 0, first_id = (int64_t)g * d->row_tokens;
    bool is_desirable = false;
    *count = 0;
    TR_TRY(begin_row(&w, d, g));
    for (;;) {
        struct tr_piece p;
        int64_t n_targets;
        TR_TRY(tr_walk_next(&w, &p));
        if (p.n == 0)
            break;
        TR_TRY(fill_piece(&w, &p, b, at + col, &n_targets));
        begin = p.is_more ? begin : col;
        fill_place(b, at + col, p.n, at + begin, first_id + begin);
        if (d->weighs)
            TR_TRY(weigh_piece(&w, &p, b->weight + at + col, &n_targets));
        *count += tr_data_counts_docs(d) ? !p.is_more : n_targets;
        col += p.n;
        if (d->has_pairs && !p.goes_on)
            TR_TRY(fill_pair(d, &w, p.doc, b, at + begin, col - begin, first_id + begin));
        if (d->has_labels && !p.is_more)
            TR_TRY(read_label(&w, &p, &is_desirable));
        if (d->has_labels && !p.goes_on)
            fill_label(d, &w, p.doc, false, is_desirable, b, at + begin, col - begin);
    }
    *n = col;
out:
    tr_walk_end(&w);
    return st;
}

/* The prompt of the piece's document, then the answer of its partner, in at most `room` places. */
static enum tr_status fill_mismatched(const struct tr_walk *w, const struct tr_piece *p, const struct tr_batch *b,
                                      int64_t at, int64_t room, int64_t *n)
{
    int64_t n_targets, n_prompt = 1;
    uint64_t first, n_answer, row = w->part->row_tokens > 1 ? (uint64_t)w->part->row_tokens : 1;
    TR_PASS(fill_piece(w, p, b, at, &n_targets));
    while (n_prompt < p->n && b->targets[at + n_prompt - 1] == TR_TARGET_NONE)
        n_prompt++;
    TR_PASS(tr_partner_answer(w->shard, w->fd, w->part->partner[p->doc], &first, &n_answer));
    uint64_t most = row - w->is_tail - (uint64_t)n_prompt; /* as the rows were planned (rows.c) */
    n_answer = n_answer < most ? n_answer : most;
    *n = n_prompt + (int64_t)n_answer;
    if (*n > room)
        return tr_fail(TR_IO, "%s: documents have moved since the file was verified; put the file back",
                       tr_shard_path(w->shard));
    TR_PASS(tr_shard_read(w->shard, w->fd, first, n_answer, b->tokens + at + n_prompt));
    for (int64_t i = 0; i < *n; i++)
        b->targets[at + i] = i + 1 < n_prompt || i + 1 == *n ? TR_TARGET_NONE : b->tokens[at + i + 1];
    return TR_OK;
}

static enum tr_status fill_mismatched_row(const struct tr_data *d, uint64_t g, const struct tr_batch *b, int64_t at,
                                          int64_t *count, int64_t *n_used)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    int64_t col = 0, first_id = (int64_t)g * d->row_tokens;
    *count = 0;
    TR_TRY(begin_row(&w, d, g));
    for (;;) {
        struct tr_piece p;
        int64_t n = 0;
        TR_TRY(tr_walk_next(&w, &p));
        if (p.n == 0)
            break;
        if (p.is_more)
            continue;
        TR_TRY(fill_mismatched(&w, &p, b, at + col, d->row_tokens - col, &n));
        fill_place(b, at + col, n, at + col, first_id + col);
        fill_label(d, &w, p.doc, true, true, b, at + col, n);
        col += n;
        ++*count;
    }
    *n_used = col;
out:
    tr_walk_end(&w);
    return st;
}

/* The targets of a sample; as what divides a loss: its documents, or the sum of the targets' weights. */
static enum tr_status count_row(const struct tr_data *d, uint64_t g, bool is_divisor, int64_t *count)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    *count = 0;
    TR_TRY(begin_row(&w, d, g));
    for (;;) {
        struct tr_piece p;
        int64_t n;
        TR_TRY(tr_walk_next(&w, &p));
        if (p.n == 0)
            break;
        if (is_divisor && tr_data_counts_docs(d)) {
            *count += !p.is_more;
            continue;
        }
        TR_TRY(is_divisor && d->weighs ? weigh_piece(&w, &p, NULL, &n) : mask_piece(&w, &p, NULL, &n));
        *count += n;
    }
out:
    tr_walk_end(&w);
    return st;
}

/* Checks that every number computed from a sample index fits into 63 bits. */
static enum tr_status check_range(const struct tr_data *d, uint64_t first_sample, int64_t n_rows)
{
    uint64_t limit = (uint64_t)INT64_MAX / (uint64_t)d->row_tokens;
    if (n_rows < 1 || n_rows > INT32_MAX / d->row_tokens)
        return tr_fail(TR_USAGE,
                       "%" PRId64 " rows of %" PRId64 " tokens are not a legal batch; a batch has 1 to 2^31 tokens",
                       n_rows, d->row_tokens);
    if (first_sample > limit - (uint64_t)n_rows - 1)
        return tr_fail(TR_USAGE, "sample %" PRIu64 " is beyond %" PRIu64, first_sample, limit);
    return TR_OK;
}

typedef enum tr_status fill_fn(const struct tr_data *d, uint64_t g, const struct tr_batch *b, int64_t at,
                               int64_t *count, int64_t *n);

static enum tr_status fill_rows(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                                const struct tr_batch *out, fill_fn *fill, int64_t *n_targets)
{
    enum tr_status st = check_range(d, first_sample, n_rows);
    int64_t sum = 0;
    for (int64_t r = 0; r < n_rows && st == TR_OK; r++) {
        uint64_t g = first_sample + (uint64_t)r;
        int64_t count = 0, n = 0, at = r * d->row_tokens;
        if (g < total_samples)
            st = fill(d, g, out, at, &count, &n);
        fill_padding(out, at + n, d->row_tokens - n, (int64_t)g * d->row_tokens + n);
        sum += count;
    }
    if (st == TR_OK)
        *n_targets = sum;
    return st;
}

enum tr_status tr_data_fill_dense(const struct tr_data *d, uint64_t first_sample, int64_t n_rows,
                                  uint64_t total_samples, struct tr_batch *out, int64_t *n_targets)
{
    enum { GRAIN = 64 }; /* tokens: kernels work on tiles, and no batch is empty */
    enum tr_status st = check_range(d, first_sample, n_rows);
    int64_t sum = 0, at = 0, n_all = n_rows * d->row_tokens, last = (int64_t)first_sample * d->row_tokens;
    for (int64_t r = 0; r < n_rows && first_sample + (uint64_t)r < total_samples && st == TR_OK; r++) {
        int64_t count = 0, n = 0;
        st = fill_row(d, first_sample + (uint64_t)r, out, at, &count, &n);
        last = (int64_t)(first_sample + (uint64_t)r) * d->row_tokens + n;
        at += n;
        sum += count;
    }
    if (st != TR_OK)
        return st;
    for (int64_t i = at, n; i < n_all; i += n) { /* no position is beyond a row: tables have no more */
        n = tr_min64(d->row_tokens, n_all - i);
        fill_padding(out, i, n, last);
    }
    out->n_used = tr_min64(n_all, (int64_t)tr_round_up((size_t)tr_max64(at, 1), GRAIN));
    *n_targets = sum;
    return TR_OK;
}

enum tr_status tr_data_fill(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                            const struct tr_batch *out, int64_t *n_targets)
{
    return fill_rows(d, first_sample, n_rows, total_samples, out, fill_row, n_targets);
}

enum tr_status tr_data_fill_mismatched(const struct tr_data *d, uint64_t first_sample, int64_t n_rows,
                                       uint64_t total_samples, const struct tr_batch *out, int64_t *n_targets)
{
    TR_BUG_ON(!d->has_labels);
    return fill_rows(d, first_sample, n_rows, total_samples, out, fill_mismatched_row, n_targets);
}

enum tr_status tr_data_count(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                             int64_t *n_targets)
{
    enum tr_status st = TR_OK;
    int64_t sum = 0;
    for (int64_t r = 0; r < n_rows && first_sample + (uint64_t)r < total_samples && st == TR_OK; r++) {
        int64_t count = 0;
        st = count_row(d, first_sample + (uint64_t)r, true, &count);
        sum += count;
    }
    if (st == TR_OK)
        *n_targets = sum;
    return st;
}

static enum tr_status count_tokens(const struct tr_data *d, uint64_t g, int64_t *count)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    struct tr_piece p;
    TR_TRY(begin_row(&w, d, g));
    do {
        TR_TRY(tr_walk_next(&w, &p));
        *count += p.n;
    } while (p.n > 0);
out:
    tr_walk_end(&w);
    return st;
}

enum tr_status tr_data_tokens(const struct tr_data *d, uint64_t first_sample, int64_t n_rows, uint64_t total_samples,
                              int64_t *n_tokens)
{
    enum tr_status st = TR_OK;
    int64_t sum = 0;
    for (int64_t r = 0; r < n_rows && first_sample + (uint64_t)r < total_samples && st == TR_OK; r++)
        st = count_tokens(d, first_sample + (uint64_t)r, &sum);
    if (st == TR_OK)
        *n_tokens = sum;
    return st;
}

enum tr_status tr_data_targets(const struct tr_data *d, uint64_t g, int64_t *n_targets)
{
    return count_row(d, g, false, n_targets);
}

/* ---- references ---- */

float *tr_data_references(struct tr_data *d, uint64_t *n)
{
    *n = 2 * d->n_ref;
    return d->ref;
}

/* The element behind the document that begins at element i; end: of the row. */
static int64_t doc_end(const struct tr_batch *b, int64_t i, int64_t end)
{
    int64_t begin = i;
    while (i < end && b->begin[i] == begin)
        i++;
    return i;
}

/* Walks over a sample as fill_row does; where its documents lie, the batch says. at: its first element in the batch and
 * in the sums. */
static enum tr_status take_row(struct tr_data *d, uint64_t g, const struct tr_batch *b, int64_t at, bool is_mismatched,
                               const float *sums, int64_t n_cols)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    struct tr_piece p;
    int64_t i = at, end = at + d->row_tokens;
    TR_TRY(begin_row(&w, d, g));
    for (;;) {
        TR_TRY(tr_walk_next(&w, &p));
        if (p.n == 0)
            break;
        if (p.is_more)
            continue;
        float *ref = d->ref + 2 * (w.part->first_ref + p.doc);
        for (int k = is_mismatched; k < (d->has_pairs ? 2 : 1 + is_mismatched) && i < end; k++) {
            ref[k] = sums[i * n_cols];
            i = doc_end(b, i, end);
        }
    }
out:
    tr_walk_end(&w);
    return st;
}

enum tr_status tr_data_take_references(struct tr_data *d, const uint64_t *samples, int64_t n_rows,
                                       const struct tr_batch *b, bool is_mismatched, const float *sums, int64_t n_cols)
{
    for (int64_t r = 0; r < n_rows; r++)
        TR_PASS(take_row(d, samples[r], b, r * d->row_tokens, is_mismatched, sums, n_cols));
    return TR_OK;
}

enum tr_status tr_data_fill_samples(const struct tr_data *d, const uint64_t *samples, int64_t n, int64_t n_rows,
                                    bool are_mismatched, const struct tr_batch *out)
{
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t count = 0, n_used = 0, at = r * d->row_tokens;
        if (r < n)
            TR_PASS((are_mismatched ? fill_mismatched_row : fill_row)(d, samples[r], out, at, &count, &n_used));
        fill_padding(out, at + n_used, d->row_tokens - n_used, at + n_used);
    }
    return TR_OK;
}

/* Marks the documents of sample g; *is_new: the first of them was not marked. */
static enum tr_status mark_row(const struct tr_data *d, uint64_t g, unsigned char *marks, bool *is_new)
{
    enum tr_status st = TR_OK;
    struct tr_walk w;
    struct tr_piece p;
    *is_new = false;
    TR_TRY(begin_row(&w, d, g));
    for (;;) {
        TR_TRY(tr_walk_next(&w, &p));
        if (p.n == 0 || (!*is_new && marks[w.part->first_ref + p.doc]))
            break;
        marks[w.part->first_ref + p.doc] = 1;
        *is_new = true;
    }
out:
    tr_walk_end(&w);
    return st;
}

enum tr_status tr_data_first_uses(const struct tr_data *d, uint64_t total_samples, unsigned char *marks,
                                  uint64_t *samples, uint64_t *n)
{
    uint64_t n_found = 0;
    for (uint64_t g = 0; g < total_samples && n_found < d->info.n_rows; g++) {
        bool is_new;
        TR_PASS(mark_row(d, g, marks, &is_new));
        if (is_new)
            samples[n_found++] = g;
    }
    *n = n_found;
    return TR_OK;
}
