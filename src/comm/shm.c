/* shm.c - the row of the engine for one host: opening the world, splitting it, posting and waiting.
 *
 * Communicators of one process share a struct world; the last one closed ends it. A split is two small collectives on
 * the parent, and its seats come from a table in the segment, where those of closed groups are used again.
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const char *can_use(const struct tr_comm_env *env)
{
    if (env->size > SHM_RANKS_MAX)
        return "it is for at most 1024 ranks of one host";
    if (env->n_local && env->n_local != env->size)
        return "its ranks are on one host, these on several; use mpi";
    return env->job && env->job[0] ? NULL : "the job has no name for its ranks to meet at";
}

static void set_channels(struct shm_comm *c)
{
    struct world *w = c->w;
    int n = c->base.size, me = c->base.rank;
    atomic_uint_fast64_t *pairs = at_offset(w, c->group->pairs_at);
    c->all = (struct channel){ .comm = c, .n = n, .me = me, .ranks = c->ranks };
    c->all.seats = at_offset(w, c->group->seats_at);
    for (int i = 0; i < n; i++) {
        c->to[i] = (struct channel){ .comm = c, .n = 2, .me = 0, .pair = { c->ranks[me], c->ranks[i] } };
        c->from[i] = (struct channel){ .comm = c, .n = 2, .me = 1, .pair = { c->ranks[i], c->ranks[me] } };
        c->to[i].ranks = c->to[i].pair;
        c->from[i].ranks = c->from[i].pair;
        c->to[i].pair_at = &pairs[me * n + i];
        c->from[i].pair_at = &pairs[i * n + me];
    }
}

/* Takes over `ranks`, also when it fails. */
static enum tr_status open_comm(struct world *w, struct group *g, int *ranks, int rank, struct tr_comm **out)
{
    struct shm_comm *c = calloc(1, sizeof *c);
    size_t n = (size_t)g->n;
    struct channel *pairs = calloc(2 * n, sizeof *pairs);
    if (!c || !pairs) {
        free(c);
        free(pairs);
        free(ranks);
        return tr_shm_raise(w, TR_NOMEM, "rank %d: no memory for a communicator of %zu ranks", w->rank, n);
    }
    c->base = (struct tr_comm){ .ops = &tr_comm_shm, .rank = rank, .size = g->n };
    c->w = w;
    c->group = g;
    c->ranks = ranks;
    c->to = pairs;
    c->from = pairs + n;
    set_channels(c);
    w->n_comms++;
    *out = &c->base;
    return TR_OK;
}

static void close_world(struct world *w)
{
    tr_shm_stop_helper(w);
    for (int r = 0; w->peers && r < w->size; r++)
        if (w->peers[r].fd >= 0)
            close(w->peers[r].fd);
    if (w->h) {
        atomic_store(&my_slot(w)->is_closed, 1);
        tr_shm_unmap(w->h, w->is_local);
    }
    free(w->peers);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* Memory of the arena now rather than in the first step; huge pages if the kernel has them. */
static enum tr_status fill_arena(struct world *w)
{
    struct slot *s = my_slot(w);
    char *base = at_offset(w, s->arena_at), human[32];
    size_t bytes = tr_round_up(s->arena_bytes, 4096);
    if (!bytes)
        return TR_OK;
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    if (madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
        if (errno != EINVAL)
            return tr_shm_raise(w, TR_NOMEM, "rank %d: the machine refused an arena of %s: %s", w->rank,
                                tr_human_bytes(bytes, human, sizeof human), strerror(errno));
        for (size_t i = 0; i < bytes; i += 4096) /* a kernel before 5.14 */
            ((volatile char *)base)[i] = 0;
    }
    (void)madvise(base, bytes, MADV_COLLAPSE);
    return TR_OK;
}

static enum tr_status start_world(struct world *w, struct tr_comm **world)
{
    enum tr_status st = TR_OK;
    int *ranks = calloc((size_t)w->size, sizeof *ranks);
    if (!ranks) {
        st = tr_shm_raise(w, TR_NOMEM, "rank %d: no memory for %d ranks", w->rank, w->size);
        goto out;
    }
    for (int r = 0; r < w->size; r++)
        ranks[r] = r;
    TR_TRY(open_comm(w, &w->h->groups[0], ranks, w->rank, world));
    TR_TRY(tr_shm_open_peers(w));
    TR_TRY(fill_arena(w));
    TR_TRY(tr_shm_start_helper(w));
    TR_TRY(tr_comm_run(*world, &(struct tr_coll){ .kind = TR_BARRIER, .site = "open" }));
out:
    return st;
}

static enum tr_status open_shm(const struct tr_comm_env *env, struct tr_comm **world)
{
    struct world *w = calloc(1, sizeof *w);
    struct tr_comm *first = NULL;
    if (!w)
        return tr_fail(TR_NOMEM, "no memory for a world of %d ranks", env->size);
    w->rank = env->rank;
    w->size = env->size;
    w->timeout_us = env->timeout_us;
    w->has_cores = env->size <= sysconf(_SC_NPROCESSORS_ONLN);
    w->n_spins = 40;
    if (gethostname(w->host, sizeof w->host - 1) != 0)
        w->host[0] = '?';
    pthread_mutex_init(&w->lock, NULL);
    w->peers = calloc((size_t)env->size, sizeof *w->peers);
    for (int r = 0; w->peers && r < env->size; r++)
        w->peers[r].fd = -1;
    enum tr_status st = w->peers ? tr_shm_join(env, &w->h, &w->is_local)
                                 : tr_fail(TR_NOMEM, "no memory for a world of %d ranks", env->size);
    if (st == TR_OK)
        st = start_world(w, &first);
    if (st == TR_OK)
        *world = first;
    else if (first)
        tr_comm_close(first);
    else
        close_world(w);
    return st;
}

static void reset_seats(struct seat *seats, int n)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < 2; j++)
            atomic_store(&seats[i].head[j].seq, 0);
        for (int p = 0; p < N_PHASES; p++)
            atomic_store(&seats[i].did[p], 0);
    }
}

/* Index of a group of n seats that nobody uses, or 0. An entry's fields are read only by who has taken it. */
static int take_group(struct world *w, int n)
{
    for (int pass = 0; pass < 2; pass++) /* used ones first */
        for (int i = 1; i < N_GROUPS_MAX; i++) {
            struct group *g = &w->h->groups[i];
            int none = 0;
            if (!atomic_compare_exchange_strong(&g->n_open, &none, n))
                continue;
            if (pass == 0 && g->n == n) {
                atomic_uint_fast64_t *pairs = at_offset(w, g->pairs_at);
                reset_seats(at_offset(w, g->seats_at), n);
                for (int p = 0; p < n * n; p++)
                    if (pairs[p])
                        reset_seats(at_offset(w, pairs[p]), 2);
                return i;
            }
            if (pass == 1 && g->n == 0) {
                g->n = n;
                g->seats_at = tr_shm_alloc(w, (size_t)n * sizeof(struct seat));
                g->pairs_at = tr_shm_alloc(w, (size_t)n * (size_t)n * sizeof(uint64_t));
                return g->seats_at && g->pairs_at ? i : 0;
            }
            atomic_store(&g->n_open, 0);
        }
    return 0;
}

static enum tr_status split(struct tr_comm *base, int color, int key, int n, struct tr_comm **out)
{
    enum tr_status st = TR_OK;
    struct shm_comm *c = (struct shm_comm *)base;
    struct world *w = c->w;
    size_t size = (size_t)base->size;
    struct tr_said *said = calloc(size, sizeof *said);
    int64_t *where = calloc(size, sizeof *where);
    int *ranks = calloc(size, sizeof *ranks);
    int64_t n_found;
    int leader;
    if (!said || !where || !ranks) {
        st = tr_shm_raise(w, TR_NOMEM, "rank %d: no memory to split %zu ranks", w->rank, size);
        goto out;
    }
    said[base->rank] = (struct tr_said){ color, key, n };
    TR_TRY(tr_comm_tell(base, &said[0].color, 3));
    int wrong = tr_split_wrong(said, base->size, &n_found);
    if (wrong >= 0) {
        st = tr_shm_raise(w, TR_USAGE, "split: color %" PRId64 " has %" PRId64 " ranks, rank %d expects %" PRId64,
                          said[wrong].color, n_found, c->ranks[wrong], said[wrong].n);
        goto out;
    }
    int rank = tr_split_pick(said, base->size, base->rank, c->ranks, ranks, &leader);
    bool is_shared = color >= 0 && n > 1;
    if (is_shared && leader == base->rank && (where[leader] = take_group(w, n)) == 0) {
        st = tr_shm_raise(w, TR_NOMEM, "split: more than %d communicators are open; close some", N_GROUPS_MAX);
        goto out;
    }
    TR_TRY(tr_comm_tell(base, where, 1));
    *out = NULL;
    if (is_shared) {
        tr_shm_enter(w);
        st = open_comm(w, &w->h->groups[where[leader]], ranks, rank, out);
        tr_shm_leave(w);
        ranks = NULL;
    } else if (color >= 0) {
        st = tr_comm_self.open(NULL, out);
    }
out:
    free(said);
    free(where);
    free(ranks);
    return st;
}

static enum tr_status reserve(struct tr_comm *base, size_t bytes, void **out)
{
    struct world *w = ((struct shm_comm *)base)->w;
    const struct slot *s = my_slot(w);
    tr_shm_enter(w);
    enum tr_status st = tr_comm_carve(at_offset(w, s->arena_at), s->arena_bytes, bytes, &w->reserved_bytes, out);
    tr_shm_leave(w);
    return st;
}

static struct channel *channel_of(struct shm_comm *c, struct tr_coll *coll)
{
    struct channel *ch = coll->kind == TR_SEND   ? &c->to[coll->root]
                         : coll->kind == TR_RECV ? &c->from[coll->root]
                                                 : &c->all;
    if (coll->kind == TR_SEND)
        coll->out = NULL;
    if (coll->kind == TR_RECV)
        coll->in = NULL;
    if (ch != &c->all) {
        coll->kind = TR_BROADCAST;
        coll->root = 0;
    }
    return ch;
}

/* Puts it in its queue. The operation it displaces was posted N_OPS_MAX ago and must be over. */
static enum tr_status put(struct shm_comm *c, const struct tr_coll *coll, struct op **out)
{
    enum tr_status st = TR_OK;
    tr_ticket t = c->n_posted;
    struct op *op = &c->ops[t % N_OPS_MAX];
    if (atomic_load_explicit(&c->w->h->fault, memory_order_relaxed))
        return tr_shm_fault(c->w);
    st = tr_failpoint("comm.post");
    if (st != TR_OK)
        return tr_shm_raise(c->w, TR_PEER, "rank %d: %s", c->w->rank, tr_error_text());
    if (op->state != OP_FREE)
        TR_TRY(tr_shm_finish(op, op->ticket));
    *op = (struct op){ .ticket = t, .coll = *coll };
    op->channel = channel_of(c, &op->coll);
    *out = op;
    c->n_posted++;
    tr_shm_enqueue(op);
out:
    return st;
}

static enum tr_status post(struct tr_comm *base, const struct tr_coll *coll, tr_ticket *out)
{
    struct shm_comm *c = (struct shm_comm *)base;
    struct op *op;
    tr_shm_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        *out = op->ticket;
    tr_shm_leave(c->w);
    return st;
}

static enum tr_status finish(struct shm_comm *c, const struct op *op, tr_ticket t)
{
    enum tr_status st = tr_failpoint("comm.wait");
    if (st != TR_OK)
        return tr_shm_raise(c->w, TR_PEER, "rank %d: %s", c->w->rank, tr_error_text());
    return tr_shm_finish(op, t);
}

static enum tr_status wait_for(struct tr_comm *base, tr_ticket t)
{
    struct shm_comm *c = (struct shm_comm *)base;
    tr_shm_enter(c->w);
    enum tr_status st = finish(c, &c->ops[t % N_OPS_MAX], t);
    tr_shm_leave(c->w);
    return st;
}

static enum tr_status run(struct tr_comm *base, const struct tr_coll *coll)
{
    struct shm_comm *c = (struct shm_comm *)base;
    struct op *op;
    tr_shm_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        st = finish(c, op, op->ticket);
    tr_shm_leave(c->w);
    return st;
}

static enum tr_status check(struct tr_comm *base)
{
    struct world *w = ((struct shm_comm *)base)->w;
    tr_shm_enter(w);
    enum tr_status st = tr_shm_fault(w);
    if (st == TR_OK)
        st = tr_shm_dead_peer(w, NULL);
    tr_shm_leave(w);
    return st;
}

static void abort_shm(struct tr_comm *base, const char *cause)
{
    struct world *w = ((struct shm_comm *)base)->w;
    tr_shm_enter(w);
    (void)tr_shm_raise(w, TR_PEER, "rank %d aborted: %s", w->rank, cause);
    tr_shm_leave(w);
}

static void close_shm(struct tr_comm *base)
{
    struct shm_comm *c = (struct shm_comm *)base;
    struct world *w = c->w;
    tr_shm_enter(w);
    tr_shm_forget(w, c);
    atomic_fetch_sub(&c->group->n_open, 1);
    bool is_last = --w->n_comms == 0;
    tr_shm_leave(w);
    free(c->ranks);
    free(c->to);
    free(c);
    if (is_last)
        close_world(w);
}

const struct tr_comm_ops tr_comm_shm = { "shm", can_use,  open_shm, split,     reserve,   post,
                                         run,   wait_for, check,    abort_shm, close_shm, NULL };
