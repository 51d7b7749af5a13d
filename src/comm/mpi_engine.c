/* mpi_engine.c - operations of a channel as a state machine over nonblocking MPI calls.
 *
 * Sums never use MPI's own: each rank receives every rank's part of its shard (all-to-all), adds in rank order with the
 * code that shm uses, and shares the result (all-gather), so the bits are those of shm and do not depend on the
 * library's choice of algorithm. MPI moves data only inside its calls: a waiting caller makes them, and when no caller
 * waits the helper does. The helper also runs while nothing is under way, to reply to queries of other ranks. All calls
 * are under one lock: MPI_THREAD_SERIALIZED is enough.
 */
#include "comm/mpi_impl.h"

enum { N_SPINS_MIN = 10, N_SPINS_MAX = 2560 };

static size_t elem_of(const struct tr_front_op *op)
{
    return tr_dtype_bytes(op->coll.dtype);
}

/* Elements of a shard that one round of a sum moves. */
static size_t piece_of(const struct mpi_channel *ch, const struct tr_front_op *op)
{
    return MPI_SCRATCH_BYTES / (size_t)ch->base.n / 64 * 64 / elem_of(op);
}

/* Elements [*first, *first + *n) of the whole: this round's piece of owner's shard. */
static void span_of(const struct mpi_channel *ch, const struct tr_front_op *op, int owner, size_t *first, size_t *n)
{
    size_t piece = piece_of(ch, op), at = ch->round * piece, whole;
    tr_coll_shard(&op->coll, ch->base.n, owner, first, &whole);
    at = at < whole ? at : whole;
    *first += at;
    *n = whole - at < piece ? whole - at : piece;
}

static enum tr_status posted(struct mpi_channel *ch, int code)
{
    return code == 0 ? TR_OK : tr_mpi_failed(world_of(ch), tr_coll_name(ch->base.first->coll.kind), code);
}

/* Announcements go from all ranks to all, or from the sender to the receiver. */
enum tr_status tr_mpi_announce(struct tr_front_channel *base, struct tr_front_op *op)
{
    struct mpi_channel *ch = (struct mpi_channel *)base;
    const struct tr_mpi_api *api = world_of(ch)->api;
    const struct tr_coll *c = &op->coll;
    tr_mpi_comm handle = comm_of(ch)->handle;
    int bytes = (int)sizeof ch->mine, code;
    bool is_receiver = base->peer >= 0 && base->me == 1;
    ch->mine = (struct mpi_announcement){ .seq = op->seq, .signature = tr_signature_of(c, base->peer >= 0) };
    if (c->site)
        memcpy(ch->mine.site, c->site, strnlen(c->site, TR_SITE_MAX));
    if (op->is_small && !is_receiver)
        tr_small_put(c, base->n, base->me, ch->mine.small);
    ch->seq = op->seq;
    op->state = TR_FRONT_ANNOUNCED;
    if (base->peer < 0)
        code = api->allgather(&ch->mine, ch->theirs, bytes, handle, &ch->request);
    else if (is_receiver)
        code = api->recv(ch->theirs, bytes, 1, base->peer, MPI_TAG_ANNOUNCEMENT, handle, &ch->request);
    else
        code = api->send(&ch->mine, bytes, 1, base->peer, MPI_TAG_ANNOUNCEMENT, handle, &ch->request);
    return posted(ch, code);
}

static struct tr_front_announced announced(int seat, const struct mpi_announcement *a)
{
    return (struct tr_front_announced){ seat, &a->signature, a->site };
}

/* All ranks must have announced the same operation. Of a pair, the receiver compares. */
static enum tr_status compare(struct mpi_channel *ch)
{
    enum tr_status st = TR_OK;
    int n = ch->base.peer < 0 ? ch->base.n : ch->base.me;
    for (int i = 0; i < n && st == TR_OK; i++)
        st = tr_front_compare(&ch->base, announced(ch->base.me, &ch->mine), announced(i, &ch->theirs[i]));
    return st;
}

static void take_small(struct mpi_channel *ch, const struct tr_front_op *op)
{
    if (ch->base.peer >= 0) {
        if (ch->base.me == 1 && !op->coll.is_elsewhere)
            memcpy(op->coll.out, ch->theirs->small, op->coll.count * elem_of(op));
        return;
    }
    for (int i = 0; i < ch->base.n; i++)
        comm_of(ch)->inputs[i] = ch->theirs[i].small;
    tr_small_take(&op->coll, ch->base.n, ch->base.me, comm_of(ch)->inputs);
}

static size_t block_of(const struct tr_front_op *op)
{
    return MPI_BLOCK_BYTES / elem_of(op);
}

static void plan_rounds(struct mpi_channel *ch, const struct tr_front_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t first, longest, each;
    tr_coll_shard(c, ch->base.n, 0, &first, &longest);
    if (c->kind == TR_BROADCAST)
        each = block_of(op);
    else
        each = tr_coll_reduces(c->kind) ? piece_of(ch, op) : longest;
    ch->round = 0;
    ch->n_rounds = longest ? (longest + each - 1) / each : 0;
}

/* Every rank's piece of every shard goes to the owner of the shard; this rank's own stays where it is. */
static int move_pieces(struct mpi_channel *ch, const struct tr_front_op *op)
{
    struct mpi_comm *c = comm_of(ch);
    int *n_in = c->counts, *at_in = n_in + ch->base.n, *n_out = at_in + ch->base.n, *at_out = n_out + ch->base.n;
    size_t piece = piece_of(ch, op), first, n, mine;
    span_of(ch, op, ch->base.me, &first, &mine);
    for (int i = 0; i < ch->base.n; i++) {
        span_of(ch, op, i, &first, &n);
        n_in[i] = i == ch->base.me ? 0 : (int)n;
        at_in[i] = (int)first;
        n_out[i] = i == ch->base.me ? 0 : (int)mine;
        at_out[i] = (int)((size_t)i * piece);
    }
    return world_of(ch)->api->alltoallv(op->coll.in, n_in, at_in, c->scratch, n_out, at_out, (int)elem_of(op),
                                        c->handle, &ch->request);
}

static void add_pieces(struct mpi_channel *ch, const struct tr_front_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = elem_of(op), piece = piece_of(ch, op) * elem, first, n, whole, base;
    const void **in = comm_of(ch)->inputs;
    span_of(ch, op, ch->base.me, &first, &n);
    tr_coll_shard(c, ch->base.n, ch->base.me, &base, &whole);
    for (int i = 0; i < ch->base.n; i++)
        in[i] = i == ch->base.me ? (const char *)c->in + first * elem : comm_of(ch)->scratch + (size_t)i * piece;
    void *out = (char *)c->out + (c->kind == TR_ALL_REDUCE ? first : first - base) * elem;
    tr_reduce(c->dtype, c->op, in, ch->base.n, &out, 1, n);
}

/* Shards, or this round's pieces of them, from their owners to all. */
static int share(struct mpi_channel *ch, const struct tr_front_op *op, const void *in)
{
    struct mpi_comm *c = comm_of(ch);
    int *n_out = c->counts, *at_out = n_out + ch->base.n;
    for (int i = 0; i < ch->base.n; i++) {
        size_t first, n;
        if (op->coll.kind == TR_ALL_REDUCE)
            span_of(ch, op, i, &first, &n);
        else
            tr_coll_shard(&op->coll, ch->base.n, i, &first, &n);
        n_out[i] = (int)n;
        at_out[i] = (int)first;
    }
    return world_of(ch)->api->allgatherv(in, n_out[ch->base.me], op->coll.out, n_out, at_out, (int)elem_of(op),
                                         c->handle, &ch->request);
}

static int move_block(struct mpi_channel *ch, const struct tr_front_op *op)
{
    struct mpi_comm *c = comm_of(ch);
    const struct tr_mpi_api *api = world_of(ch)->api;
    const struct tr_coll *x = &op->coll;
    size_t block = block_of(op), at = ch->round * block, n = x->count - at < block ? x->count - at : block;
    int elem = (int)elem_of(op);
    char *out = (char *)x->out + at * (size_t)elem;
    const char *in = (const char *)x->in + at * (size_t)elem;
    if (ch->base.peer >= 0)
        return ch->base.me == 0 ? api->send(in, (int)n, elem, ch->base.peer, MPI_TAG_DATA, c->handle, &ch->request)
                                : api->recv(out, (int)n, elem, ch->base.peer, MPI_TAG_DATA, c->handle, &ch->request);
    if (x->root == ch->base.me && in != out)
        memcpy(out, in, n * (size_t)elem);
    return api->bcast(out, (int)n, elem, x->root, c->handle, &ch->request);
}

static int swap_pieces(struct mpi_channel *ch, const struct tr_front_op *op)
{
    struct mpi_comm *c = comm_of(ch);
    int *n = c->counts, *at = n + ch->base.n, each = (int)(op->coll.count / (size_t)ch->base.n);
    for (int i = 0; i < ch->base.n; i++) {
        n[i] = each;
        at[i] = i * each;
    }
    return world_of(ch)->api->alltoallv(op->coll.in, n, at, op->coll.out, n, at, (int)elem_of(op), c->handle,
                                        &ch->request);
}

static enum tr_status move(struct mpi_channel *ch, struct tr_front_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t first, n;
    op->state = TR_FRONT_MOVING;
    ch->is_sharing = false;
    tr_coll_shard(c, ch->base.n, ch->base.me, &first, &n);
    if (tr_coll_reduces(c->kind))
        return posted(ch, move_pieces(ch, op));
    if (c->kind == TR_ALL_GATHER)
        return posted(ch, share(ch, op, c->in == (char *)c->out + first * elem_of(op) ? NULL : c->in));
    if (c->kind == TR_ALL_TO_ALL)
        return posted(ch, swap_pieces(ch, op));
    return posted(ch, move_block(ch, op));
}

/* The announcements are exchanged: compares them, and starts the first round. */
static enum tr_status begin(struct mpi_channel *ch, struct tr_front_op *op)
{
    TR_PASS(compare(ch));
    if (op->is_small)
        take_small(ch, op);
    else
        plan_rounds(ch, op);
    if (!op->is_small && ch->n_rounds > 0)
        return move(ch, op);
    tr_front_complete(&ch->base, op);
    return TR_OK;
}

/* A call of MPI has ended: takes the next step of the operation. */
static enum tr_status step(struct mpi_channel *ch, struct tr_front_op *op)
{
    if (op->state == TR_FRONT_ANNOUNCED)
        return begin(ch, op);
    if (tr_coll_reduces(op->coll.kind) && !ch->is_sharing) {
        TR_PASS(tr_front_failpoint(ch->base.comm->w, "comm.in_reduce"));
        add_pieces(ch, op);
        ch->is_sharing = op->coll.kind == TR_ALL_REDUCE;
        if (ch->is_sharing)
            return posted(ch, share(ch, op, NULL));
    }
    if (++ch->round < ch->n_rounds)
        return move(ch, op);
    tr_front_complete(&ch->base, op);
    return TR_OK;
}

enum tr_status tr_mpi_advance(struct tr_front_channel *base, struct tr_front_op *op, bool *has_moved)
{
    struct mpi_channel *ch = (struct mpi_channel *)base;
    int is_done = 0, code = world_of(ch)->api->test(&ch->request, &is_done);
    if (code != 0)
        return posted(ch, code);
    if (!is_done)
        return TR_OK;
    *has_moved = true;
    return step(ch, op);
}

/* Spins once after something moved, then naps. Never sched_yield(): on a busy machine that gives a whole time slice
 * away, a nap only its own length. How long it spins is learnt: longer when that was worth it, shorter when it was not
 * (the peer may need this very core, and a rank that gives it up late gets it back late). */
enum tr_status tr_mpi_spin(struct tr_front *front, int n_rests, bool *has_moved)
{
    struct mpi_world *w = (struct mpi_world *)front;
    enum tr_status st = tr_front_look_again(front, n_rests == 0 ? w->n_spins : 0, has_moved);
    if (*has_moved && n_rests == 0)
        w->n_spins = w->n_spins < N_SPINS_MAX ? 2 * w->n_spins : w->n_spins;
    else if (*has_moved)
        w->n_spins = w->n_spins > N_SPINS_MIN ? w->n_spins / 2 : w->n_spins;
    if (*has_moved)
        w->queried_us = 0;
    return st;
}
