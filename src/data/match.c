/* match.c - see match.h. Nothing allocates: a step calls this. */
#include "data/match.h"
#include "data/data.h"

#include <string.h>

enum { LEAST_PAIR = 4 }; /* an answer has a first token, which is no target, and a target */

static uint64_t most_pairs(uint64_t n_rows, int64_t row_tokens)
{
    return n_rows * ((uint64_t)row_tokens / LEAST_PAIR);
}

size_t tr_match_bytes(uint64_t n_rows, int64_t row_tokens)
{
    uint64_t n = most_pairs(n_rows, row_tokens);
    size_t list = (size_t)n * (sizeof(double) + sizeof(uint32_t) + sizeof(float));
    return tr_round_up((size_t)(n_rows + 1) * sizeof(uint64_t) + 2 * list, 64);
}

enum tr_status tr_match_init(struct tr_match *m, bool is_paired, const struct tr_data *d, uint64_t first, uint64_t end,
                             void *mem)
{
    uint64_t n_rows = end - first, n_pairs = 0, most = most_pairs(n_rows, tr_data_row_tokens(d));
    *m = (struct tr_match){
        .is_paired = is_paired, .row_tokens = tr_data_row_tokens(d), .first = first, .n_rows = n_rows
    };
    m->first_pair = mem;
    m->list[0] = (double *)(void *)(m->first_pair + n_rows + 1);
    m->list[1] = m->list[0] + most;
    m->order[0] = (uint32_t *)(void *)(m->list[1] + most);
    m->order[1] = m->order[0] + most;
    m->value = (float *)(void *)(m->order[1] + most);
    for (uint64_t r = 0; r < n_rows; r++) {
        int64_t n;
        m->first_pair[r] = n_pairs;
        TR_PASS(tr_data_count(d, first + r, 1, end, &n));
        n_pairs += (uint64_t)n;
    }
    m->first_pair[n_rows] = n_pairs;
    TR_BUG_ON(n_pairs > most || n_pairs > UINT32_MAX);
    memset(m->list[0], 0, (size_t)(2 * most) * sizeof(double));
    return TR_OK;
}

/* A walk over the pairs of a batch, which has samples in any order but whole ones. */
struct pair_walk {
    int64_t i; /* where the chosen answer begins */
    uint64_t sample, pair;
};

static bool next_pair(const struct tr_match *m, const struct tr_batch *b, int64_t n_tokens, struct pair_walk *w)
{
    for (w->i++; w->i < n_tokens; w->i++) {
        if (b->positions[w->i] != 0 || b->other[w->i] <= w->i)
            continue;
        uint64_t sample = (uint64_t)(b->sample[w->i] / m->row_tokens);
        TR_BUG_ON(sample < m->first || sample >= m->first + m->n_rows);
        w->pair = sample == w->sample ? w->pair + 1 : m->first_pair[sample - m->first];
        w->sample = sample;
        TR_BUG_ON(w->pair >= m->first_pair[sample - m->first + 1]);
        return true;
    }
    return false;
}

void tr_match_take(struct tr_match *m, const struct tr_batch *b, int64_t n_tokens, const float *sums, int i_loss,
                   int i_ref, int n_cols)
{
    for (struct pair_walk w = { .i = -1, .sample = UINT64_MAX }; next_pair(m, b, n_tokens, &w);) {
        const float *of[2] = { sums + w.i * n_cols, sums + (int64_t)b->other[w.i] * n_cols };
        double loss[2], ref[2];
        for (int k = 0; k < 2; k++) {
            loss[k] = (double)of[k][i_loss];
            ref[k] = (double)of[k][i_ref];
        }
        /* log-probabilities are minus losses */
        m->list[0][w.pair] = m->is_paired ? loss[1] - loss[0] : ref[0] - loss[0];
        m->list[1][w.pair] = m->is_paired ? ref[1] - ref[0] : ref[1] - loss[1];
    }
}

static bool is_before(const double *list, uint32_t a, uint32_t b)
{
    return list[a] < list[b] || (list[a] == list[b] && a < b);
}

/* The largest of a heap's first n places below i comes to i. */
static void sift(const double *list, uint32_t *order, uint64_t i, uint64_t n)
{
    for (uint64_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && is_before(list, order[child], order[child + 1]);
        if (!is_before(list, order[i], order[child]))
            return;
        uint32_t moved = order[i];
        order[i] = order[child];
        order[child] = moved;
    }
}

/* A heap sort: qsort may allocate. */
static void sort(const double *list, uint32_t *order, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (uint64_t i = n / 2; i-- > 0;)
        sift(list, order, i, n);
    for (uint64_t end = n; end-- > 1;) {
        uint32_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sift(list, order, 0, end);
    }
}

void tr_match_sort(struct tr_match *m)
{
    uint64_t n = tr_match_pairs(m);
    for (int k = 0; k < 2; k++)
        sort(m->list[k], m->order[k], n);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = m->order[0][i], b = m->order[1][i];
        m->value[2 * a] = (float)(m->is_paired ? m->list[1][b] - m->list[1][a] : m->list[1][b]);
        m->value[2 * (m->is_paired ? a : b) + 1] = m->is_paired ? 0 : (float)m->list[0][a];
    }
}

void tr_match_set(const struct tr_match *m, const struct tr_batch *b, int64_t n_tokens)
{
    for (struct pair_walk w = { .i = -1, .sample = UINT64_MAX }; next_pair(m, b, n_tokens, &w);) {
        b->match[w.i] = m->value[2 * w.pair];
        b->match[b->other[w.i]] = m->value[2 * w.pair + 1];
    }
}
