/* ring.c - ring attention: keys and values travel from rank to rank while the current block is computed.
 *
 * A row is split into 2n pieces, and rank r holds pieces r and 2n - 1 - r. So in every step but the first each rank
 * computes two pairs of pieces, whichever block it holds. Blocks are merged by log-sum-exp in F32, inside the kernel.
 * In the backward, the gradients of keys and values follow their block and are back on their own rank after a whole
 * round. A rank adds up its own part of them while the others' parts are still on their way, so that it waits once a
 * step, for messages that were sent a step ago.
 */
#include "exec/exec_impl.h"

struct ring {
    struct tr_exec *e;
    const struct tr_call *c;
    struct tr_comm *comm;
    bool is_backward;
    int size, rank;
    int64_t row_tokens, n;  /* tokens of a row, and of a piece */
    struct tr_view q, k, v; /* this rank's */
    struct tr_view sum;     /* o or dq, F32 */
    /* keys and values: the current block, and the one that is received; their gradients, F32 */
    struct tr_view block[2][2], grad[2][2];
    struct tr_view own[2]; /* what this rank adds to grad[0] */
    struct tr_ring_scratch at;
};

/* Places keys and values side by side in one buffer, so that one message carries both. */
static void lay_out(const struct ring *r, size_t at, enum tr_dtype dtype, struct tr_view out[2])
{
    char *p = (char *)r->c->scratch + at;
    for (int i = 0; i < 2; i++) {
        const struct tr_view *like = i ? &r->v : &r->k;
        out[i] =
            (struct tr_view){ .data = p, .dtype = dtype, .rows = like->rows, .cols = like->cols, .ld = like->cols };
        p += (size_t)(like->rows * like->cols) * tr_dtype_bytes(dtype);
    }
}

static struct ring ring_init(struct tr_exec *e, const struct tr_call *c)
{
    bool is_backward = c->op == TR_OP_RING_ATTENTION_BWD;
    const struct tr_view *q = &c->in[is_backward];
    struct tr_comm *comm = tr_mesh_axis(e->mesh, c->attr.axis);
    struct ring r = { .e = e,
                      .c = c,
                      .comm = comm,
                      .is_backward = is_backward,
                      .size = comm->size,
                      .rank = comm->rank,
                      .row_tokens = c->attr.seq_len,
                      .n = c->attr.seq_len / (2 * comm->size),
                      .q = q[0],
                      .k = q[1],
                      .v = q[2],
                      .at = tr_ring_scratch(c) };
    r.sum = (struct tr_view){
        .data = (char *)c->scratch + r.at.sum, .dtype = TR_F32, .rows = r.q.rows, .cols = r.q.cols, .ld = r.q.cols
    };
    for (int i = 0; i < 2; i++) {
        lay_out(&r, r.at.block[i], r.k.dtype, r.block[i]);
        lay_out(&r, r.at.grad[i], TR_F32, r.grad[i]);
    }
    lay_out(&r, r.at.own, TR_F32, r.own);
    return r;
}

static int piece_of(const struct ring *r, int rank, int i)
{
    return i ? 2 * r->size - 1 - rank : rank;
}

/* The rows of piece i of row `row`, in a view of this rank's tokens or of a block's tokens. */
static struct tr_view rows_of(const struct ring *r, const struct tr_view *v, int64_t row, int i)
{
    return tr_view_part(v, (2 * row + i) * r->n, r->n, 0, v->cols);
}

/* Attention of one piece of queries over one piece of keys. */
static void pair(const struct ring *r, int64_t row, int i_q, int i_k, int owner, bool is_first)
{
    const struct tr_call *from = r->c;
    struct tr_call c = { .op = r->is_backward ? TR_OP_ATTENTION_BWD : TR_OP_ATTENTION,
                         .attr = from->attr,
                         .pool = from->pool,
                         .dev = from->dev,
                         .scratch = (char *)from->scratch + r->at.kernel };
    int q = r->is_backward;
    c.attr.row_q = row * r->row_tokens + piece_of(r, r->rank, i_q) * r->n;
    c.attr.row_k = row * r->row_tokens + piece_of(r, owner, i_k) * r->n;
    memcpy(c.in, from->in, sizeof c.in); /* begin, sample and position are those of all tokens */
    c.in[q] = rows_of(r, &r->q, row, i_q);
    c.in[q + 1] = rows_of(r, &r->block[0][0], row, i_k);
    c.in[q + 2] = rows_of(r, &r->block[0][1], row, i_k);
    c.out[0] = rows_of(r, &r->sum, row, i_q);
    c.accumulate[0] = r->is_backward || !is_first;
    if (r->is_backward) {
        c.in[0] = rows_of(r, &from->in[0], row, i_q);
        c.in[4] = rows_of(r, &from->in[4], row, i_q);
        c.in[5] = rows_of(r, &from->in[5], row, i_q);
        c.out[1] = rows_of(r, &r->own[0], row, i_k);
        c.out[2] = rows_of(r, &r->own[1], row, i_k);
        c.accumulate[1] = c.accumulate[2] = true;
    } else {
        c.out[1] = rows_of(r, &from->out[1], row, i_q);
    }
    tr_exec_kernel(r->e, &c);
}

/* Attention of this rank's queries over the block that rank `owner` first sent. */
static void compute(const struct ring *r, int owner)
{
    for (int64_t row = 0; row < r->q.rows / (2 * r->n); row++)
        for (int i_q = 0; i_q < 2; i_q++)
            for (int i_k = 0; i_k < 2; i_k++)
                if (piece_of(r, owner, i_k) <= piece_of(r, r->rank, i_q))
                    pair(r, row, i_q, i_k, owner, owner == r->rank && i_k == 0);
}

struct passing {
    tr_ticket sent, received;
};

/* Sends two[0] to the next rank and receives two[1] from the rank before. */
static enum tr_status pass_on(const struct ring *r, struct tr_view two[2][2], const char *site, struct passing *out)
{
    struct tr_coll c = { .kind = TR_SEND,
                         .dtype = two[0][0].dtype,
                         .in = two[0][0].data,
                         .count = (size_t)(two[0][0].rows * (two[0][0].cols + two[0][1].cols)),
                         .root = (r->rank + 1) % r->size,
                         .site = site };
    enum tr_status st = tr_comm_post(r->comm, &c, &out->sent);
    c.kind = TR_RECV;
    c.in = NULL;
    c.out = two[1][0].data;
    c.root = (r->rank + r->size - 1) % r->size;
    return st == TR_OK ? tr_comm_post(r->comm, &c, &out->received) : st;
}

static enum tr_status wait_for(const struct ring *r, struct tr_view two[2][2], const struct passing *p)
{
    enum tr_status st = tr_comm_wait(r->comm, p->received);
    for (int i = 0; i < 2; i++) {
        struct tr_view here = two[0][i];
        two[0][i] = two[1][i];
        two[1][i] = here;
    }
    return st == TR_OK ? tr_comm_wait(r->comm, p->sent) : st;
}

static void clear(struct tr_exec *e, struct tr_view v)
{
    tr_device_clear(e->dev, TR_STREAM_COMPUTE, v.data, (size_t)(v.rows * v.cols) * tr_dtype_bytes(v.dtype));
}

/* A fault that tests plant: a block is not computed. */
static bool is_skipped(void)
{
    bool skips = tr_failpoint("cp.skip_block") != TR_OK;
    if (skips)
        tr_error_clear();
    return skips;
}

/* grad[0] becomes the sum of what came, if anything did, and of this rank's part; then it travels on. */
static enum tr_status pass_grads(struct ring *r, bool has_come, struct passing *g)
{
    for (int i = 0; i < 2; i++)
        tr_exec_move(r->e, r->own[i], r->grad[0][i], has_come);
    return pass_on(r, r->grad, "pass on gradients of keys and values", g);
}

enum tr_status tr_exec_ring(struct tr_exec *e, const struct tr_call *c)
{
    struct ring r = ring_init(e, c);
    struct passing p, g;
    tr_exec_move(e, r.k, r.block[0][0], false);
    tr_exec_move(e, r.v, r.block[0][1], false);
    if (r.is_backward)
        clear(e, r.sum);
    for (int step = 0; step < r.size; step++) {
        bool is_last = step == r.size - 1;
        if (!is_last)
            TR_PASS(pass_on(&r, r.block, "pass on keys and values", &p));
        for (int i = 0; r.is_backward && i < 2; i++)
            clear(e, r.own[i]);
        if (!is_skipped())
            compute(&r, (r.rank + r.size - step) % r.size);
        if (!is_last)
            TR_PASS(wait_for(&r, r.block, &p));
        if (r.is_backward && step > 0)
            TR_PASS(wait_for(&r, r.grad, &g));
        if (r.is_backward)
            TR_PASS(pass_grads(&r, step > 0, &g));
    }
    tr_exec_move(e, r.sum, c->out[0], false);
    if (r.is_backward) {
        TR_PASS(wait_for(&r, r.grad, &g));
        tr_exec_move(e, r.grad[0][0], c->out[1], false);
        tr_exec_move(e, r.grad[0][1], c->out[2], false);
    }
    return TR_OK;
}
