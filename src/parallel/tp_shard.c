/* tp_shard.c - which elements of a parameter a tensor-parallel rank holds, and where.
 *
 * The shard of a rank is a matrix of its own, dense and row-major. Only this file knows how its elements map to those
 * of the whole matrix. Heads are never divided: where the number of ranks does not divide the heads, every rank keeps
 * all of them. Anything else is split as evenly as possible, and every rank reserves as much as the largest shard.
 */
#include "parallel/parallel.h"

static struct tr_tp_dim whole(int64_t n)
{
    return (struct tr_tp_dim){ .part = n, .n_parts = 1, .first = 0, .n = n, .lead = 1 };
}

static int64_t shard_of(int64_t n, int size, int rank, int64_t *first)
{
    size_t at = 0, count = 0;
    tr_shard((size_t)n, size, rank, &at, &count);
    *first = (int64_t)at;
    return (int64_t)count;
}

/* Lengths of the whole dim and of what this rank holds of it. */
static int64_t whole_len(const struct tr_tp_dim *d)
{
    return d->part * (d->n_parts - 1 + d->lead);
}

static int64_t local_len(const struct tr_tp_dim *d)
{
    return d->n * (d->n_parts - 1 + d->lead);
}

struct tr_tp_shard tr_tp_shard_of(int n_dims, int64_t rows, int64_t cols, struct tr_split s, int size, int rank)
{
    struct tr_tp_shard c = { .row = whole(rows), .col = whole(cols) };
    int64_t n_most = rows * cols;
    bool is_col = n_dims == 1 || s.dim == 1;
    if (s.dim != TR_WHOLE && size > 1 && (s.n_heads == 0 || s.n_heads % size == 0)) {
        int64_t len = is_col ? cols : rows, n_units = s.n_parts - 1 + s.lead, part = len / n_units;
        int64_t unit = s.n_heads ? part / s.n_heads : 1, first = 0, ignore = 0;
        int64_t n = unit * shard_of(part / unit, size, rank, &first);
        struct tr_tp_dim d = { .part = part, .n_parts = s.n_parts, .first = unit * first, .n = n, .lead = s.lead };
        n_most = unit * shard_of(part / unit, size, 0, &ignore) * n_units * (is_col ? rows : cols);
        *(is_col ? &c.col : &c.row) = d;
        c.is_split = true;
    }
    c.rows = local_len(&c.row);
    c.cols = local_len(&c.col);
    c.n = c.rows * c.cols;
    c.n_held = n_most;
    return c;
}

static struct tr_tp_dim blocks(const struct tr_tp_dim *d, int64_t width, int32_t block)
{
    return (struct tr_tp_dim){ .part = (d->part * width + block - 1) / block,
                               .n_parts = d->n_parts,
                               .first = d->first * width / block,
                               .n = (d->n * width + block - 1) / block,
                               .lead = d->lead };
}

/* Whole rows are side by side in the flattened tensor, so they become one row of blocks. */
struct tr_tp_shard tr_tp_blocks(const struct tr_tp_shard *c, int32_t block)
{
    struct tr_tp_shard s = *c;
    bool has_whole_rows = c->cols == whole_len(&c->col);
    if (block == 1)
        return s;
    s.col = has_whole_rows ? blocks(&c->row, c->cols, block) : blocks(&c->col, 1, block);
    s.row = has_whole_rows ? whole(1) : c->row;
    s.rows = local_len(&s.row);
    s.cols = local_len(&s.col);
    s.n = s.rows * s.cols;
    s.n_held = (c->n_held + block - 1) / block;
    return s;
}

bool tr_tp_keeps_blocks(const struct tr_param *p, int size, int32_t block)
{
    for (int r = 0; r < size; r++) {
        struct tr_tp_shard c = tr_tp_shard_of(p->n_dims, p->rows, p->cols, p->split, size, r);
        bool has_whole_rows = c.cols == whole_len(&c.col);
        const struct tr_tp_dim *d = has_whole_rows ? &c.row : &c.col;
        int64_t width = has_whole_rows ? p->cols : 1;
        bool has_many = d->n_parts > 1 || (!has_whole_rows && c.rows > 1); /* then something follows its end */
        if (c.is_split && (d->first * width % block || (has_many && (d->part * width % block || d->n * width % block))))
            return false;
    }
    return true;
}

/* The index in the whole dim of local index i. */
static int64_t global_of(const struct tr_tp_dim *d, int64_t i)
{
    int64_t j = i - d->lead * d->n; /* behind the first part */
    return j < 0 ? d->lead * d->first + i : d->lead * d->part + j / d->n * d->part + d->first + j % d->n;
}

/* The first local index whose index in the whole dim is at least i (the local length when there is none). */
static int64_t local_from(const struct tr_tp_dim *d, int64_t i)
{
    int64_t j = i - d->lead * d->part;
    if (j < 0)
        return tr_min64(tr_max64(i - d->lead * d->first, 0), d->lead * d->n);
    return d->lead * d->n + j / d->part * d->n + tr_min64(tr_max64(j % d->part - d->first, 0), d->n);
}

/* How many local indices from i on are consecutive in the whole dim. */
static int64_t run_from(const struct tr_tp_dim *d, int64_t i)
{
    int64_t j = i - d->lead * d->n;
    if (d->n == d->part)
        return local_len(d) - i;
    return j < 0 ? -j : d->n - j % d->n;
}

int64_t tr_tp_run(const struct tr_tp_shard *c, int64_t *at, int64_t end, int64_t *local)
{
    int64_t ld = whole_len(&c->col), row = local_from(&c->row, *at / ld), col = 0;
    if (row >= c->rows)
        return 0;
    if (global_of(&c->row, row) == *at / ld)
        col = local_from(&c->col, *at % ld);
    if (col >= c->cols) {
        col = 0;
        if (++row >= c->rows)
            return 0;
    }
    *at = global_of(&c->row, row) * ld + global_of(&c->col, col);
    *local = row * c->cols + col;
    int64_t n = c->cols == ld ? run_from(&c->row, row) * ld - col : run_from(&c->col, col);
    return tr_max64(tr_min64(n, end - *at), 0);
}

int tr_tp_pieces(const struct tr_tp_dim *d, struct tr_tp_piece out[TR_MAX_PIECES])
{
    int n = 0;
    for (int64_t i = 0; i < local_len(d); i += out[n++].n) {
        TR_BUG_ON(n == TR_MAX_PIECES);
        out[n] = (struct tr_tp_piece){ i, global_of(d, i), run_from(d, i) };
    }
    return n;
}

/* Adds local rows [r, r + rows) x columns [k, k + cols), one range per part. */
static int add_ranges(const struct tr_tp_shard *c, int64_t r, int64_t rows, int64_t k, int64_t cols,
                      struct tr_range *out)
{
    int n = 0;
    for (int64_t i = r, di; i < r + rows; i += di) {
        di = tr_min64(run_from(&c->row, i), r + rows - i);
        for (int64_t j = k, dj; j < k + cols; j += dj) {
            dj = tr_min64(run_from(&c->col, j), k + cols - j);
            TR_BUG_ON(n == TR_MAX_RANGES / 3);
            struct tr_range b = { global_of(&c->row, i) * whole_len(&c->col) + global_of(&c->col, j), di, dj };
            if (b.cols == whole_len(&c->col)) /* whole rows form one run */
                b = (struct tr_range){ b.first, 1, b.rows * b.cols };
            out[n++] = b;
        }
    }
    return n;
}

int tr_tp_ranges(const struct tr_tp_shard *c, int64_t first, int64_t n, struct tr_range out[TR_MAX_RANGES])
{
    int count = 0;
    int64_t end = first + n, at = first;
    if (n > 0 && c->cols == whole_len(&c->col) && c->row.n_parts == 1) { /* whole rows, side by side */
        out[0] = (struct tr_range){ c->row.first * c->cols + first, 1, n };
        return 1;
    }
    while (at < end) { /* the rest of a row, then whole rows, then the beginning of one */
        int64_t row = at / c->cols, col = at % c->cols, rows = 1, cols = tr_min64(c->cols - col, end - at);
        if (col == 0 && end - at >= c->cols)
            rows = (end - at) / c->cols;
        count += add_ranges(c, row, rows, col, cols, out + count);
        at += rows * cols;
    }
    return count;
}
