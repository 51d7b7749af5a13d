/* context.c - the executor's part of context parallel: this rank's tokens of a micro-batch, and the exchange that
 * trades tokens for heads and back.
 *
 * With the exchange, rank r of n holds tokens [r, r + 1) * row / n of every row. Ranks share attention by heads, so the
 * work is even whichever tokens a rank holds.
 */
#include "exec/exec_impl.h"

struct tr_batch tr_exec_local(struct tr_exec *e, const struct tr_model *m, const struct tr_batch *whole)
{
    const struct tr_layout *l = &e->c->opt.layout;
    int64_t first[TR_MAX_RUNS], n, done = 0;
    int n_runs = tr_context_runs(l, m->sequence_length, first, &n);
    struct tr_batch local = { 0 };
    for (enum tr_batch_slot i = 0; i < TR_B_COUNT; i++)
        tr_batch_set(&local, i, e->base[TR_A_WORK] + e->c->memory.local + (size_t)i * e->c->memory.local_bytes);
    for (int64_t row = 0; row < m->n_tokens; row += m->sequence_length)
        for (int k = 0; k < n_runs; k++, done += n)
            for (enum tr_batch_slot i = 0; i < TR_B_COUNT; i++) {
                size_t size = tr_batch_elem_bytes(i);
                if (!tr_batch_part(whole, i)) /* no program of this run reads it */
                    continue;
                tr_device_copy(e->dev, TR_STREAM_COMPUTE, (char *)tr_batch_part(&local, i) + (size_t)done * size,
                               (const char *)tr_batch_part(whole, i) + (size_t)(row + first[k]) * size,
                               (size_t)n * size);
            }
    return local;
}

/* A fault that tests plant: the exchange is skipped. */
static bool is_skipped(void)
{
    bool skips = tr_failpoint("cp.skip_exchange") != TR_OK;
    if (skips)
        tr_error_clear();
    return skips;
}

/* The part of v that begins at (row, col) and has rows x cols elements. */
struct tr_view tr_view_part(const struct tr_view *v, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    struct tr_view p = *v;
    p.data = (char *)v->data + (size_t)(row * v->ld + col) * tr_dtype_bytes(v->dtype);
    p.rows = rows;
    p.cols = cols;
    return p;
}

void tr_exec_move(struct tr_exec *e, struct tr_view from, struct tr_view to, bool adds)
{
    struct tr_call c = { .op = adds ? TR_OP_ADD : TR_OP_CAST, .pool = e->pool, .dev = e->dev };
    c.in[adds] = from;
    if (adds)
        c.in[0] = to;
    c.out[0] = to;
    tr_exec_kernel(e, &c);
}

/* Piece p of the buffer is what this rank sends to or receives from rank p. Seen from `wide`, it is the heads of rank p
 * for the tokens of this rank. Seen from `tall`, it is the heads of this rank for the tokens of rank p. Rows keep their
 * order. */
struct pieces {
    const struct tr_view *wide, *tall;
    struct tr_view buffer;
    int n_ranks;
    int64_t n_heads, row_tokens;
};

static struct tr_view piece(const struct pieces *x, int p)
{
    return tr_view_part(&x->buffer, p * x->wide->rows, x->wide->rows, 0, x->tall->cols);
}

static void move_wide(struct tr_exec *e, const struct pieces *x, int64_t head_dim, bool is_back)
{
    int64_t before = -1;
    for (int p = 0; p < x->n_ranks; p++) {
        int64_t head = p * x->n_heads / x->n_ranks;
        struct tr_view cols = tr_view_part(x->wide, 0, x->wide->rows, head * head_dim, x->tall->cols);
        if (is_back)
            tr_exec_move(e, piece(x, p), cols, head == before);
        else
            tr_exec_move(e, cols, piece(x, p), false);
        before = head;
    }
}

static void move_tall(struct tr_exec *e, const struct pieces *x, bool is_back)
{
    int64_t n = x->row_tokens / x->n_ranks;
    for (int p = 0; p < x->n_ranks; p++)
        for (int64_t row = 0; row < x->tall->rows / x->row_tokens; row++) {
            struct tr_view mine = piece(x, p), rows = tr_view_part(&mine, row * n, n, 0, x->tall->cols);
            struct tr_view all = tr_view_part(x->tall, row * x->row_tokens + p * n, n, 0, x->tall->cols);
            tr_exec_move(e, is_back ? all : rows, is_back ? rows : all, false);
        }
}

enum tr_status tr_exec_exchange(struct tr_exec *e, const struct tr_call *c)
{
    bool is_back = c->attr.inverse;
    struct pieces x = { .wide = is_back ? &c->out[0] : &c->in[0],
                        .tall = is_back ? &c->in[0] : &c->out[0],
                        .n_ranks = e->mesh->size[c->attr.axis],
                        .n_heads = c->attr.n_heads_q,
                        .row_tokens = c->attr.seq_len };
    struct tr_view sent = *x.tall, got = *x.tall; /* same size as `tall`, without gaps between rows */
    sent.data = c->scratch;
    got.data = (char *)c->scratch + tr_exchange_bytes(c);
    sent.ld = got.ld = x.tall->cols;
    x.buffer = sent;
    if (is_back)
        move_tall(e, &x, true);
    else
        move_wide(e, &x, c->attr.head_dim, false);
    struct tr_coll coll = { .kind = TR_ALL_TO_ALL,
                            .dtype = x.tall->dtype,
                            .in = sent.data,
                            .out = got.data,
                            .count = (size_t)(x.tall->rows * x.tall->cols),
                            .site = "exchange of tokens and heads" };
    enum tr_status st = is_skipped() ? TR_OK : tr_comm_run(tr_mesh_axis(e->mesh, c->attr.axis), &coll);
    x.buffer = got;
    if (st == TR_OK && is_back)
        move_wide(e, &x, c->attr.head_dim, true);
    else if (st == TR_OK)
        move_tall(e, &x, false);
    return st;
}
