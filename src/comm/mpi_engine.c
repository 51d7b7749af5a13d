/* mpi_engine.c - operations of a channel as a state machine over nonblocking MPI calls.
 *
 * Sums never use MPI's own: each rank gets everybody's part of its shard (all-to-all), adds in rank order with the code
 * that shm uses, and shares the result (all-gather), so the bits are those of shm and do not depend on the library's
 * choice of algorithm. MPI moves data only inside its calls; whoever waits turns the crank, and when nobody waits a
 * helper does, every POLL_US while something is under way and every IDLE_US otherwise (to answer who asks for this
 * rank). All calls are under one lock: MPI_THREAD_SERIALIZED is enough.
 */
#include "comm/mpi_impl.h"
#include <time.h>
#include <unistd.h>
#include "base/banned.h"

enum { N_SPINS_MIN = 10, N_SPINS_MAX = 2560, NAP_US = 50, POLL_US = 200, IDLE_US = 5000 };

static size_t elem_of(const struct mpi_op *op)
{
    return tr_dtype_bytes(op->coll.dtype);
}

/* Elements of a shard that one round of a sum moves. */
static size_t piece_of(const struct mpi_channel *ch, const struct mpi_op *op)
{
    return MPI_SCRATCH_BYTES / (size_t)ch->n / 64 * 64 / elem_of(op);
}

/* Elements [*first, *first + *n) of the whole: this round's piece of owner's shard. */
static void span_of(const struct mpi_channel *ch, const struct mpi_op *op, int owner, size_t *first, size_t *n)
{
    size_t piece = piece_of(ch, op), at = op->round * piece, whole;
    tr_coll_shard(&op->coll, ch->n, owner, first, &whole);
    at = at < whole ? at : whole;
    *first += at;
    *n = whole - at < piece ? whole - at : piece;
}

static enum tr_status posted(struct mpi_channel *ch, int code)
{
    return code == 0 ? TR_OK : tr_mpi_failed(ch->comm->w, tr_coll_name(ch->first->coll.kind), code);
}

/* The notes: all of them to all, or the sender's to the receiver. */
static enum tr_status begin(struct mpi_channel *ch, struct mpi_op *op)
{
    const struct tr_mpi_api *api = ch->comm->w->api;
    const struct tr_coll *c = &op->coll;
    int bytes = (int)sizeof ch->mine, code;
    ch->mine = (struct note){ .seq = op->seq, .card = tr_card_of(c, ch->peer >= 0) };
    if (c->site)
        memcpy(ch->mine.site, c->site, strnlen(c->site, TR_SITE_MAX));
    if (op->is_small && !(ch->peer >= 0 && ch->me == 1))
        tr_small_put(c, ch->n, ch->me, ch->mine.small);
    ch->seq = op->seq;
    op->state = MPI_NOTED;
    if (ch->peer < 0)
        code = api->allgather(&ch->mine, ch->theirs, bytes, ch->comm->handle, &ch->request);
    else if (ch->me == 0)
        code = api->send(&ch->mine, bytes, 1, ch->peer, MPI_TAG_NOTE, ch->comm->handle, &ch->request);
    else
        code = api->recv(ch->theirs, bytes, 1, ch->peer, MPI_TAG_NOTE, ch->comm->handle, &ch->request);
    return posted(ch, code);
}

static enum tr_status disagree(struct mpi_channel *ch, int rank, const char *name, const struct note *theirs)
{
    char a[MPI_TEXT_MAX / 3], b[MPI_TEXT_MAX / 3];
    const char *mine = ch->peer < 0 ? NULL : "recv";
    return tr_mpi_raise(
        ch->comm->w, TR_USAGE, "ranks disagree: %s, but %s",
        tr_card_text(&ch->mine.card, mine, ch->comm->w->rank, ch->mine.seq, ch->mine.site, a, sizeof a),
        tr_card_text(&theirs->card, name, ch->comm->ranks[rank], theirs->seq, theirs->site, b, sizeof b));
}

/* All ranks must mean the same operation. */
static enum tr_status compare(struct mpi_channel *ch)
{
    for (int i = 0; ch->peer < 0 && i < ch->n; i++)
        if (!tr_card_agrees(&ch->mine.card, &ch->theirs[i].card))
            return disagree(ch, i, NULL, &ch->theirs[i]);
    if (ch->peer >= 0 && ch->me == 1 && !tr_card_agrees(&ch->mine.card, &ch->theirs->card))
        return disagree(ch, ch->peer, "send", ch->theirs);
    return TR_OK;
}

static void take_small(struct mpi_channel *ch, const struct mpi_op *op)
{
    if (ch->peer >= 0) {
        if (ch->me == 1 && !op->coll.is_elsewhere)
            memcpy(op->coll.out, ch->theirs->small, op->coll.count * elem_of(op));
        return;
    }
    for (int i = 0; i < ch->n; i++)
        ch->comm->gifts[i] = ch->theirs[i].small;
    tr_small_take(&op->coll, ch->n, ch->me, ch->comm->gifts);
}

static size_t block_of(const struct mpi_op *op)
{
    return MPI_BLOCK_BYTES / elem_of(op);
}

static void plan_rounds(const struct mpi_channel *ch, struct mpi_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t first, longest, each;
    tr_coll_shard(c, ch->n, 0, &first, &longest);
    if (c->kind == TR_BROADCAST)
        each = block_of(op);
    else
        each = tr_coll_reduces(c->kind) ? piece_of(ch, op) : longest;
    op->round = 0;
    op->n_rounds = longest ? (longest + each - 1) / each : 0;
}

/* Everybody's piece of every shard goes to its owner; this rank's own stays where it is. */
static int move_pieces(struct mpi_channel *ch, const struct mpi_op *op)
{
    struct mpi_comm *c = ch->comm;
    int *n_in = c->counts, *at_in = n_in + ch->n, *n_out = at_in + ch->n, *at_out = n_out + ch->n;
    size_t piece = piece_of(ch, op), first, n, mine;
    span_of(ch, op, ch->me, &first, &mine);
    for (int i = 0; i < ch->n; i++) {
        span_of(ch, op, i, &first, &n);
        n_in[i] = i == ch->me ? 0 : (int)n;
        at_in[i] = (int)first;
        n_out[i] = i == ch->me ? 0 : (int)mine;
        at_out[i] = (int)((size_t)i * piece);
    }
    return c->w->api->alltoallv(op->coll.in, n_in, at_in, c->scratch, n_out, at_out, (int)elem_of(op), c->handle,
                                &ch->request);
}

static void add_pieces(struct mpi_channel *ch, const struct mpi_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = elem_of(op), piece = piece_of(ch, op) * elem, first, n, whole, base;
    const void **in = ch->comm->gifts;
    span_of(ch, op, ch->me, &first, &n);
    tr_coll_shard(c, ch->n, ch->me, &base, &whole);
    for (int i = 0; i < ch->n; i++)
        in[i] = i == ch->me ? (const char *)c->in + first * elem : ch->comm->scratch + (size_t)i * piece;
    void *out = (char *)c->out + (c->kind == TR_ALL_REDUCE ? first : first - base) * elem;
    tr_reduce(c->dtype, c->op, in, ch->n, &out, 1, n);
}

/* Shards, or this round's pieces of them, from their owners to all. */
static int share(struct mpi_channel *ch, const struct mpi_op *op, const void *in)
{
    struct mpi_comm *c = ch->comm;
    int *n_out = c->counts, *at_out = n_out + ch->n;
    for (int i = 0; i < ch->n; i++) {
        size_t first, n;
        if (op->coll.kind == TR_ALL_REDUCE)
            span_of(ch, op, i, &first, &n);
        else
            tr_coll_shard(&op->coll, ch->n, i, &first, &n);
        n_out[i] = (int)n;
        at_out[i] = (int)first;
    }
    return c->w->api->allgatherv(in, n_out[ch->me], op->coll.out, n_out, at_out, (int)elem_of(op), c->handle,
                                 &ch->request);
}

static int move_block(struct mpi_channel *ch, const struct mpi_op *op)
{
    struct mpi_comm *c = ch->comm;
    const struct tr_mpi_api *api = c->w->api;
    const struct tr_coll *x = &op->coll;
    size_t block = block_of(op), at = op->round * block, n = x->count - at < block ? x->count - at : block;
    int elem = (int)elem_of(op);
    char *out = (char *)x->out + at * (size_t)elem;
    const char *in = (const char *)x->in + at * (size_t)elem;
    if (ch->peer >= 0)
        return ch->me == 0 ? api->send(in, (int)n, elem, ch->peer, MPI_TAG_DATA, c->handle, &ch->request)
                           : api->recv(out, (int)n, elem, ch->peer, MPI_TAG_DATA, c->handle, &ch->request);
    if (x->root == ch->me && in != out)
        memcpy(out, in, n * (size_t)elem);
    return api->bcast(out, (int)n, elem, x->root, c->handle, &ch->request);
}

static int swap_pieces(struct mpi_channel *ch, const struct mpi_op *op)
{
    struct mpi_comm *c = ch->comm;
    int *n = c->counts, *at = n + ch->n, each = (int)(op->coll.count / (size_t)ch->n);
    for (int i = 0; i < ch->n; i++) {
        n[i] = each;
        at[i] = i * each;
    }
    return c->w->api->alltoallv(op->coll.in, n, at, op->coll.out, n, at, (int)elem_of(op), c->handle, &ch->request);
}

static enum tr_status move(struct mpi_channel *ch, struct mpi_op *op)
{
    const struct tr_coll *c = &op->coll;
    size_t first, n;
    op->state = MPI_MOVING;
    tr_coll_shard(c, ch->n, ch->me, &first, &n);
    if (tr_coll_reduces(c->kind))
        return posted(ch, move_pieces(ch, op));
    if (c->kind == TR_ALL_GATHER)
        return posted(ch, share(ch, op, c->in == (char *)c->out + first * elem_of(op) ? NULL : c->in));
    if (c->kind == TR_ALL_TO_ALL)
        return posted(ch, swap_pieces(ch, op));
    return posted(ch, move_block(ch, op));
}

static void complete(struct mpi_channel *ch, struct mpi_op *op)
{
    struct mpi_channel **p = &ch->comm->w->active;
    ch->first = op->next;
    op->state = MPI_FREE;
    if (ch->first)
        return;
    while (*p != ch)
        p = &(*p)->next_active;
    *p = ch->next_active;
}

/* What was under way is done: what now? */
static enum tr_status step(struct mpi_channel *ch, struct mpi_op *op)
{
    enum tr_status st = TR_OK;
    if (op->state == MPI_NOTED) {
        TR_TRY(compare(ch));
        if (op->is_small)
            take_small(ch, op);
        else
            plan_rounds(ch, op);
        if (op->is_small || op->n_rounds == 0) {
            complete(ch, op);
            return TR_OK;
        }
        return move(ch, op);
    }
    if (op->state == MPI_MOVING && tr_coll_reduces(op->coll.kind)) {
        st = tr_failpoint("comm.in_reduce");
        if (st != TR_OK)
            return tr_mpi_raise(ch->comm->w, TR_PEER, "rank %d: %s", ch->comm->w->rank, tr_error_text());
        add_pieces(ch, op);
        if (op->coll.kind == TR_ALL_REDUCE) {
            op->state = MPI_SHARING;
            return posted(ch, share(ch, op, NULL));
        }
    }
    if (++op->round < op->n_rounds)
        return move(ch, op);
    complete(ch, op);
out:
    return st;
}

static enum tr_status advance_channel(struct mpi_channel *ch, bool *has_moved)
{
    struct mpi_op *op = ch->first;
    if (op->state == MPI_QUEUED) {
        *has_moved = true;
        return begin(ch, op);
    }
    int is_done = 0, code = ch->comm->w->api->test(&ch->request, &is_done);
    if (code != 0)
        return posted(ch, code);
    if (!is_done)
        return TR_OK;
    *has_moved = true;
    return step(ch, op);
}

enum tr_status tr_mpi_advance(struct mpi_world *w, bool *has_moved)
{
    enum tr_status st = tr_mpi_fault(w);
    if (st == TR_OK)
        st = tr_mpi_listen(w);
    for (struct mpi_channel *ch = w->active, *next; ch && st == TR_OK; ch = next) {
        next = ch->next_active;
        st = advance_channel(ch, has_moved);
    }
    return st;
}

enum tr_status tr_mpi_enqueue(struct mpi_op *op)
{
    struct mpi_channel *ch = op->channel;
    struct mpi_world *w = ch->comm->w;
    op->seq = ++ch->n_queued;
    op->is_small = tr_small_fits(&op->coll, ch->n, MPI_SMALL_BYTES);
    op->state = MPI_QUEUED;
    if (ch->first) {
        ch->last->next = op;
        ch->last = op;
        return TR_OK;
    }
    ch->first = ch->last = op;
    ch->next_active = w->active;
    w->active = ch;
    return begin(ch, op); /* at once: peers may need nothing more from us */
}

static void nap(struct mpi_world *w, int us)
{
    struct timespec t = { .tv_nsec = (long)us * 1000 };
    pthread_mutex_unlock(&w->lock);
    nanosleep(&t, NULL);
    pthread_mutex_lock(&w->lock);
}

/* Nothing moved in the last `n` looks: how to pass the time until the next one. Never sched_yield(): on a busy machine
 * it gives a whole time slice away, a nap only its own length. */
static void pass_time(struct mpi_world *w, int n)
{
    if (n < w->n_spins)
        tr_cpu_pause();
    else
        nap(w, NAP_US);
}

/* How long to look without leaving the core is learnt: longer when that was worth it, shorter when it was not (the peer
 * may need this very core, and who gives it up only when it must waits longest to get it back). */
static void learn(struct mpi_world *w, int n_looks)
{
    if (n_looks < w->n_spins)
        w->n_spins = w->n_spins < N_SPINS_MAX ? 2 * w->n_spins : w->n_spins;
    else
        w->n_spins = w->n_spins > N_SPINS_MIN ? w->n_spins / 2 : w->n_spins;
}

enum tr_status tr_mpi_finish(const struct mpi_op *op, tr_ticket t)
{
    enum tr_status st = TR_OK;
    if (op->ticket != t || op->state == MPI_FREE)
        return TR_OK;
    struct mpi_channel *ch = op->channel;
    struct mpi_world *w = ch->comm->w;
    int64_t waited_us = 0, last_us = 0;
    for (int n_looks = 0; op->ticket == t && op->state != MPI_FREE; n_looks++) {
        bool has_moved = false;
        TR_TRY(tr_mpi_advance(w, &has_moved));
        if (has_moved) {
            learn(w, n_looks);
            n_looks = 0;
            waited_us = last_us = w->asked_us = 0;
            continue;
        }
        pass_time(w, n_looks);
        if (n_looks < w->n_spins)
            continue;
        int64_t now_us = tr_clock_us();
        if (last_us) /* a longer gap: this rank itself was stopped, which is nobody else's fault */
            waited_us += tr_min64(now_us - last_us, 2 * MPI_SLICE_US);
        last_us = now_us;
        w->waits_in = ch;
        TR_TRY(tr_mpi_look_around(w, ch, waited_us));
    }
out:
    w->waits_in = NULL;
    return st;
}

void tr_mpi_enter(struct mpi_world *w)
{
    atomic_fetch_add(&w->n_callers, 1);
    pthread_mutex_lock(&w->lock);
}

void tr_mpi_leave(struct mpi_world *w)
{
    pthread_mutex_unlock(&w->lock);
    atomic_fetch_sub(&w->n_callers, 1);
}

static void *help(void *arg)
{
    struct mpi_world *w = arg;
    for (bool is_closing = false; !is_closing;) {
        bool is_busy = false;
        if (atomic_load(&w->n_callers) == 0 && !atomic_load(&w->has_fault)) {
            pthread_mutex_lock(&w->lock);
            bool has_moved = false;
            if (!w->is_closing) /* who waits will report what went wrong */
                (void)tr_mpi_advance(w, &has_moved);
            is_busy = w->active != NULL;
            pthread_mutex_unlock(&w->lock);
        }
        struct timespec t = { .tv_nsec = (is_busy ? POLL_US : IDLE_US) * 1000L };
        nanosleep(&t, NULL);
        pthread_mutex_lock(&w->lock);
        is_closing = w->is_closing;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

enum tr_status tr_mpi_start_helper(struct mpi_world *w)
{
    w->has_helper = tr_thread_start(&w->helper, help, w) == 0;
    return w->has_helper ? TR_OK : tr_fail(TR_NOMEM, "no thread for communication in the background");
}

void tr_mpi_stop_helper(struct mpi_world *w)
{
    if (!w->has_helper)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->helper, NULL);
    w->has_helper = false;
}
