/* shm_engine.c - what a channel does with its operations, as a state machine that never blocks; how a rank waits.
 *
 * A caller that waits spins (100 us at most, 1 ms where every rank has a core; less when spinning did not pay), yields
 * the core a few times, then sleeps on its doorbell in slices, and looks at the health of its peers between them. Where
 * every rank has a core, a short sleep shows that spinning would have paid: otherwise two ranks can keep each other
 * asleep. The helper never spins; it sleeps on the same doorbell.
 */
#include "comm/shm_impl.h"
#include <sched.h>

enum {
    N_SPINS_MIN = 10,
    N_SPINS_MAX = 2560,
    N_SPINS_ALONE_MAX = 25600,
    SHORT_NAP_US = 500,
    N_YIELDS = 8,
    YIELD_US = 1000,    /* a longer yield: the core went to another program for a whole time slice */
    N_WAITS_AFTER = 100 /* waits that then sleep at once */
};

uint64_t tr_shm_alloc(struct shm_world *w, size_t bytes)
{
    bytes = tr_round_up(bytes, 4096);
    uint64_t at = atomic_fetch_add(&w->h->heap_next, bytes);
    return at < w->h->heap_end && w->h->heap_end - at >= bytes ? at : 0;
}

/* Rings after a store that peers wait for. That store, the count of sleepers and the loads of both are sequentially
 * consistent: either this rank sees that they sleep, or they see the store. */
static void ring_peers(struct shm_channel *ch)
{
    for (int i = 0; i < ch->base.n; i++)
        if (i != ch->base.me)
            tr_shm_ring(world_of(ch), ch->base.ranks[i]);
}

static bool has_reached(struct shm_channel *ch, const atomic_uint_fast64_t *word, uint64_t value, int seat)
{
    if (atomic_load(word) >= value)
        return true;
    ch->word = word;
    ch->value = value;
    ch->missing = seat;
    return false;
}

static bool all_did(struct shm_channel *ch, enum shm_phase phase, uint64_t n_rounds)
{
    for (int i = 0; i < ch->base.n; i++)
        if (i != ch->base.me && !has_reached(ch, &ch->seats[i].did[phase], n_rounds, i))
            return false;
    return true;
}

static bool all_announced(struct shm_channel *ch, uint64_t seq)
{
    for (int i = 0; i < ch->base.n; i++)
        if (i != ch->base.me && !has_reached(ch, &ch->seats[i].head[seq & 1].seq, seq, i))
            return false;
    return true;
}

/* The sender of a pair makes its seats, the first time. */
static bool find_seats(struct shm_channel *ch)
{
    struct shm_world *w = world_of(ch);
    if (!ch->seats && ch->base.me == 0 && atomic_load(ch->pair_at) == 0) {
        uint64_t at = tr_shm_alloc(w, 2 * sizeof(struct shm_seat));
        if (!at) {
            (void)tr_front_raise(&w->front, TR_NOMEM,
                                 "rank %d: the shared segment is full: too many pairs of ranks send to "
                                 "each other; use mpi",
                                 w->front.rank);
            return false;
        }
        atomic_store_explicit(ch->pair_at, at, memory_order_release);
    }
    if (!ch->seats && has_reached(ch, ch->pair_at, 1, 0))
        ch->seats = at_offset(w, atomic_load_explicit(ch->pair_at, memory_order_acquire));
    return ch->seats != NULL;
}

static uint64_t offset_of(const struct shm_world *w, const void *p, size_t bytes)
{
    const struct shm_slot *s = my_slot(w);
    uintptr_t at = (uintptr_t)p, lo = (uintptr_t)at_offset(w, s->arena_at);
    if (!p || at < lo || at - lo > s->arena_bytes || bytes > s->arena_bytes - (at - lo))
        return SHM_NOT_SHARED;
    return s->arena_at + (at - lo);
}

enum tr_status tr_shm_announce(struct tr_front_channel *base, struct tr_front_op *op)
{
    struct shm_channel *ch = (struct shm_channel *)base;
    const struct tr_coll *c = &op->coll;
    if (!find_seats(ch))
        return tr_front_fault(base->comm->w);
    struct shm_seat *mine = &ch->seats[ch->base.me];
    struct shm_head *h = &mine->head[op->seq & 1];
    size_t elem = tr_dtype_bytes(c->dtype), first, n, n_site = c->site ? strnlen(c->site, TR_SITE_MAX) : 0;
    h->signature = tr_signature_of(c, ch->base.peer >= 0);
    memcpy(mine->site[op->seq & 1], c->site ? c->site : "", n_site);
    memset(mine->site[op->seq & 1] + n_site, 0, TR_SITE_MAX - n_site);
    if (op->is_small) {
        tr_small_put(c, ch->base.n, ch->base.me, mine->small[op->seq & 1]);
    } else {
        tr_shard(c->count, ch->base.n, ch->base.me, &first, &n);
        h->in_at = offset_of(world_of(ch), c->in, (c->kind == TR_ALL_GATHER ? n : c->count) * elem);
        h->out_at = c->kind == TR_ALL_REDUCE ? offset_of(world_of(ch), c->out, c->count * elem) : SHM_NOT_SHARED;
    }
    atomic_store(&h->seq, op->seq);
    op->state = TR_FRONT_ANNOUNCED;
    ring_peers(ch);
    return TR_OK;
}

static struct tr_front_announced announced_by(const struct shm_channel *ch, int seat, uint64_t seq)
{
    const struct shm_seat *s = &ch->seats[seat];
    return (struct tr_front_announced){ seat, &s->head[seq & 1].signature, s->site[seq & 1] };
}

/* All ranks must have announced the same collective. */
static enum tr_status compare(struct shm_channel *ch, const struct tr_front_op *op)
{
    for (int i = 0; i < ch->base.n; i++)
        TR_PASS(tr_front_compare(&ch->base, announced_by(ch, ch->base.me, op->seq), announced_by(ch, i, op->seq)));
    return TR_OK;
}

static void complete(struct shm_channel *ch, struct tr_front_op *op)
{
    struct shm_world *w = world_of(ch);
    ch->word = NULL;
    tr_front_complete(&ch->base, op);
    tr_shm_ring(w, w->front.rank); /* another thread of this rank may wait for this operation */
}

/* May this rank do the next round of the phase? Staging and result memory have two halves: round g reuses what
 * all ranks must have read in round g - 2. */
static bool may_do(struct shm_channel *ch, enum shm_phase phase)
{
    uint64_t k = ch->current.done[phase], g = ch->current.first_round + k, two_ago = g > 0 ? g - 1 : 0;
    if (k == ch->current.n_rounds)
        return false;
    switch (phase) {
    case SHM_STAGE:
        return ch->current.is_direct || (k < ch->current.done[SHM_LAST] + 2 && all_did(ch, SHM_MIDDLE, two_ago));
    case SHM_MIDDLE:
        return k < ch->current.done[SHM_STAGE] &&
               (ch->current.is_direct || (all_did(ch, SHM_STAGE, g + 1) && all_did(ch, SHM_LAST, two_ago)));
    default:
        return k < ch->current.done[SHM_MIDDLE] && all_did(ch, SHM_MIDDLE, g + 1);
    }
}

/* One piece of work, if the peers allow one. */
static enum tr_status step(struct shm_channel *ch, struct tr_front_op *op, bool *has_moved)
{
    for (enum shm_phase phase = SHM_STAGE; phase < SHM_PHASES; phase++) {
        if (!may_do(ch, phase))
            continue;
        TR_PASS(phase == SHM_MIDDLE ? tr_front_failpoint(ch->base.comm->w, "comm.in_reduce") : TR_OK);
        *has_moved = true;
        tr_shm_phase(ch, op, phase, ch->current.done[phase]);
        if (phase == SHM_MIDDLE && ++ch->current.part < ch->current.n_parts && ch->current.is_direct)
            return TR_OK;
        ch->current.done[phase]++;
        atomic_store(&ch->seats[ch->base.me].did[phase], ch->current.first_round + ch->current.done[phase]);
        if (!(ch->current.is_direct && phase == SHM_STAGE)) /* no peer waits for that */
            ring_peers(ch);
        break;
    }
    if (ch->current.done[SHM_LAST] == ch->current.n_rounds)
        complete(ch, op);
    return TR_OK;
}

enum tr_status tr_shm_advance(struct tr_front_channel *base, struct tr_front_op *op, bool *has_moved)
{
    struct shm_channel *ch = (struct shm_channel *)base;
    if (op->state == TR_FRONT_ANNOUNCED) {
        if (!all_announced(ch, op->seq))
            return TR_OK;
        TR_PASS(compare(ch, op));
        *has_moved = true;
        if (op->is_small) {
            tr_shm_take_small(ch, op);
            complete(ch, op);
            return TR_OK;
        }
        tr_shm_plan_rounds(ch, op);
        op->state = TR_FRONT_MOVING;
    }
    return step(ch, op, has_moved);
}

/* Looks again for a while before sleeping, which costs more than most peers are late by. How long without leaving the
 * core is learnt: longer when that was worth it, shorter when it was not (the peer may need this very core). Where
 * ranks share cores, a caller then yields its core a few times. */
enum tr_status tr_shm_spin(struct tr_front *front, int n_rests, bool *has_moved)
{
    struct shm_world *w = (struct shm_world *)front;
    int n_max = w->has_cores ? N_SPINS_ALONE_MAX : N_SPINS_MAX;
    (void)n_rests;
    if (*has_moved)
        return TR_OK;
    enum tr_status st = tr_front_look_again(front, w->n_spins, has_moved);
    w->n_spins = *has_moved ? (w->n_spins < n_max ? w->n_spins * 2 : w->n_spins)
                            : (w->n_spins > N_SPINS_MIN ? w->n_spins / 2 : w->n_spins);
    if (w->has_cores || *has_moved || (w->n_sleepy > 0 && w->n_sleepy--))
        return st;
    for (int i = 0; i < N_YIELDS && st == TR_OK && !*has_moved && w->n_sleepy == 0; i++) {
        int64_t start_us = tr_clock_us();
        sched_yield();
        if (tr_clock_us() - start_us > YIELD_US)
            w->n_sleepy = N_WAITS_AFTER;
        st = tr_front_advance(front, has_moved);
    }
    return st;
}

/* Sleeps until the doorbell rings or `us` have passed, unless something moves. Gives up the lock meanwhile. */
enum tr_status tr_shm_rest(struct tr_front *front, int64_t us)
{
    struct shm_world *w = (struct shm_world *)front;
    struct shm_slot *s = my_slot(w);
    bool has_moved = false;
    int64_t start_us = tr_clock_us();
    atomic_fetch_add(&s->n_asleep, 1);
    unsigned doorbell = atomic_load(&s->doorbell);
    enum tr_status st = tr_front_advance(front, &has_moved);
    if (st == TR_OK && !has_moved && atomic_load(&w->h->fault) == 0) {
        pthread_mutex_unlock(&front->lock);
        tr_shm_sleep(w, doorbell, us);
        pthread_mutex_lock(&front->lock);
    }
    atomic_fetch_sub(&s->n_asleep, 1);
    bool is_caller = us <= front->rest_us; /* the helper rests longer, and never spins */
    if (is_caller && w->has_cores && tr_clock_us() - start_us < SHORT_NAP_US) /* spinning on would have been quicker */
        w->n_spins = N_SPINS_ALONE_MAX;
    return st;
}
