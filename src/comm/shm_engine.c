/* shm_engine.c - operations of a channel, one after the other, as a state machine that never blocks.
 *
 * Whoever waits turns the crank: advance() moves every channel with work as far as its peers allow, so collectives of
 * several communicators and both directions of a ring make progress together. When nobody waits, a helper thread turns
 * it, which gives overlap where there is a spare core; it never spins, keeps away while a caller is inside, and sleeps
 * on the same bell as a waiter. A waiter spins (100 us at most, 1 ms where every rank has a core; less when that did
 * not pay), gives way a few times, then sleeps on its bell in slices, looking after its peers between them. With a core
 * each, a sleep that was short shows that spinning would have paid: else two ranks can keep each other asleep.
 * Rejected: a thread per communicator (cores are for arithmetic); the helper alone (two switches on every small
 * collective).
 */
#include "comm/shm_impl.h"
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/banned.h"

enum {
    N_SPINS_MIN = 10,
    N_SPINS_MAX = 2560,
    N_SPINS_ALONE_MAX = 25600,
    SHORT_NAP_US = 500,
    N_YIELDS = 8,
    YIELD_US = 1000,     /* longer: the core went to a stranger, for a whole time slice */
    N_WAITS_AFTER = 100, /* that sleep at once when that happened */
    HELPER_SLICE_US = 1000 * 1000,
    STOP_LOOK_US = 100 * 1000
};

uint64_t tr_shm_alloc(struct world *w, size_t bytes)
{
    bytes = tr_round_up(bytes, 4096);
    uint64_t at = atomic_fetch_add(&w->h->heap_next, bytes);
    return at < w->h->heap_end && w->h->heap_end - at >= bytes ? at : 0;
}

/* After a store that peers wait for. That store, the count of sleepers and the loads of both are sequentially
 * consistent: either we see that they sleep, or they see the store. */
static void tell(struct channel *ch)
{
    for (int i = 0; i < ch->n; i++)
        if (i != ch->me)
            tr_shm_ring(ch->comm->w, ch->ranks[i]);
}

static bool has_reached(struct channel *ch, const atomic_uint_fast64_t *word, uint64_t value, int seat)
{
    if (atomic_load(word) >= value)
        return true;
    ch->word = word;
    ch->value = value;
    ch->missing = seat;
    return false;
}

static bool all_did(struct channel *ch, enum phase phase, uint64_t n_rounds)
{
    for (int i = 0; i < ch->n; i++)
        if (i != ch->me && !has_reached(ch, &ch->seats[i].did[phase], n_rounds, i))
            return false;
    return true;
}

static bool all_entered(struct channel *ch, uint64_t seq)
{
    for (int i = 0; i < ch->n; i++)
        if (i != ch->me && !has_reached(ch, &ch->seats[i].head[seq & 1].seq, seq, i))
            return false;
    return true;
}

/* The seats of a pair are made by its sender, the first time. */
static bool find_seats(struct channel *ch)
{
    struct world *w = ch->comm->w;
    if (!ch->seats && ch->me == 0 && atomic_load(ch->pair_at) == 0) {
        uint64_t at = tr_shm_alloc(w, 2 * sizeof(struct seat));
        if (!at) {
            tr_shm_raise(w, TR_NOMEM, "rank %d: no room for more pairs that send to each other", w->rank);
            return false;
        }
        atomic_store_explicit(ch->pair_at, at, memory_order_release);
    }
    if (!ch->seats && has_reached(ch, ch->pair_at, 1, 0))
        ch->seats = at_offset(w, atomic_load_explicit(ch->pair_at, memory_order_acquire));
    return ch->seats != NULL;
}

static uint64_t offset_of(const struct world *w, const void *p, size_t bytes)
{
    const struct slot *s = my_slot(w);
    uintptr_t at = (uintptr_t)p, lo = (uintptr_t)at_offset(w, s->arena_at);
    if (!p || at < lo || at - lo > s->arena_bytes || bytes > s->arena_bytes - (at - lo))
        return NOT_SHARED;
    return s->arena_at + (at - lo);
}

static void enter(struct channel *ch, struct op *op)
{
    const struct tr_coll *c = &op->coll;
    struct seat *mine = &ch->seats[ch->me];
    struct head *h = &mine->head[op->seq & 1];
    size_t bytes = c->count * tr_dtype_bytes(c->dtype), first, n, n_site = c->site ? strnlen(c->site, SITE_MAX) : 0;
    h->card = tr_card_of(c, ch->pair_at != NULL);
    memcpy(mine->site[op->seq & 1], c->site ? c->site : "", n_site);
    memset(mine->site[op->seq & 1] + n_site, 0, SITE_MAX - n_site);
    if (op->is_small) {
        tr_small_put(c, ch->n, ch->me, mine->small[op->seq & 1]);
    } else {
        tr_shard(c->count, ch->n, ch->me, &first, &n);
        h->in_at = offset_of(ch->comm->w, c->in, c->kind == TR_ALL_GATHER ? n * tr_dtype_bytes(c->dtype) : bytes);
        h->out_at = c->kind == TR_ALL_REDUCE ? offset_of(ch->comm->w, c->out, bytes) : NOT_SHARED;
    }
    atomic_store(&h->seq, op->seq);
    op->state = OP_ENTERED;
    tell(ch);
}

static const char *describe(const struct channel *ch, int seat, uint64_t seq, char *buf, size_t n)
{
    const char *name = !ch->pair_at ? NULL : seat == 0 ? "send" : "recv";
    return tr_card_text(&ch->seats[seat].head[seq & 1].card, name, ch->ranks[seat], seq, ch->seats[seat].site[seq & 1],
                        buf, n);
}

/* All ranks must mean the same collective. */
static enum tr_status compare(struct channel *ch, const struct op *op)
{
    char mine[TEXT_MAX / 3], theirs[TEXT_MAX / 3];
    const struct tr_card *card = &ch->seats[ch->me].head[op->seq & 1].card;
    for (int i = 0; i < ch->n; i++)
        if (!tr_card_agrees(card, &ch->seats[i].head[op->seq & 1].card))
            return tr_shm_raise(ch->comm->w, TR_USAGE, "ranks disagree: %s, but %s",
                                describe(ch, ch->me, op->seq, mine, sizeof mine),
                                describe(ch, i, op->seq, theirs, sizeof theirs));
    return TR_OK;
}

static void complete(struct channel *ch, struct op *op)
{
    struct world *w = ch->comm->w;
    ch->first = op->next;
    ch->word = NULL;
    if (!ch->first) {
        struct channel **p = &w->active;
        while (*p != ch)
            p = &(*p)->next_active;
        *p = ch->next_active;
    }
    op->state = OP_FREE;
    tr_shm_ring(w, w->rank); /* another thread of ours may wait for this one */
}

/* May this rank do the next round of the phase? Staging and result memory have two halves: round g reuses what
 * everybody must have read in round g - 2. */
static bool may_do(struct channel *ch, struct op *op, enum phase phase)
{
    uint64_t k = op->done[phase], g = op->first_round + k, two_ago = g > 0 ? g - 1 : 0;
    if (k == op->n_rounds)
        return false;
    switch (phase) {
    case STAGE:
        return op->is_direct || (k < op->done[LAST] + 2 && all_did(ch, MIDDLE, two_ago));
    case MIDDLE:
        return k < op->done[STAGE] && (op->is_direct || (all_did(ch, STAGE, g + 1) && all_did(ch, LAST, two_ago)));
    default:
        return k < op->done[MIDDLE] && all_did(ch, MIDDLE, g + 1);
    }
}

/* One piece of work, if the peers allow one. */
static enum tr_status step(struct channel *ch, struct op *op, bool *has_moved)
{
    for (enum phase phase = STAGE; phase < N_PHASES; phase++) {
        if (!may_do(ch, op, phase))
            continue;
        enum tr_status st = phase == MIDDLE ? tr_failpoint("comm.in_reduce") : TR_OK;
        if (st != TR_OK)
            return tr_shm_raise(ch->comm->w, TR_PEER, "rank %d: %s", ch->comm->w->rank, tr_error_text());
        *has_moved = true;
        tr_shm_phase(ch, op, phase, op->done[phase]);
        if (phase == MIDDLE && ++op->part < op->n_parts && op->is_direct)
            return TR_OK;
        op->done[phase]++;
        atomic_store(&ch->seats[ch->me].did[phase], op->first_round + op->done[phase]);
        if (!(op->is_direct && phase == STAGE)) /* nobody waits for that */
            tell(ch);
        break;
    }
    if (op->done[LAST] == op->n_rounds)
        complete(ch, op);
    return TR_OK;
}

static enum tr_status advance_channel(struct channel *ch, bool *has_moved)
{
    struct op *op = ch->first;
    if (op->state == OP_QUEUED) {
        if (!find_seats(ch))
            return tr_shm_fault(ch->comm->w);
        enter(ch, op);
        *has_moved = true;
    }
    if (op->state == OP_ENTERED) {
        if (!all_entered(ch, op->seq))
            return TR_OK;
        enum tr_status st = compare(ch, op);
        if (st != TR_OK)
            return st;
        *has_moved = true;
        if (op->is_small) {
            tr_shm_take_small(ch, op);
            complete(ch, op);
            return TR_OK;
        }
        tr_shm_plan_rounds(ch, op);
        op->state = OP_RUNNING;
    }
    return step(ch, op, has_moved);
}

static enum tr_status advance(struct world *w, bool *has_moved)
{
    enum tr_status st = TR_OK;
    for (struct channel *ch = w->active, *next; ch && st == TR_OK; ch = next) {
        next = ch->next_active;
        st = advance_channel(ch, has_moved);
    }
    return st;
}

void tr_shm_enqueue(struct op *op)
{
    struct channel *ch = op->channel;
    struct world *w = ch->comm->w;
    op->seq = ++ch->seq;
    op->is_small = tr_small_fits(&op->coll, ch->n, SMALL_BYTES);
    op->state = OP_QUEUED;
    if (ch->first) {
        ch->last->next = op;
        ch->last = op;
        return;
    }
    ch->first = ch->last = op;
    ch->next_active = w->active;
    w->active = ch;
    if (find_seats(ch)) /* at once: peers may need nothing more from us */
        enter(ch, op);
}

void tr_shm_forget(struct world *w, const struct shm_comm *c)
{
    for (struct channel **p = &w->active; *p;) {
        if ((*p)->comm == c)
            *p = (*p)->next_active;
        else
            p = &(*p)->next_active;
    }
}

/* Looks again for a while before sleeping, which costs more than most peers are late by. How long without leaving the
 * core is learnt: longer when that was worth it, shorter when it was not (the peer may need this very core). Where
 * ranks share cores it then gives way. */
static enum tr_status spin(struct world *w, bool *has_moved)
{
    enum tr_status st = TR_OK;
    int n_max = w->has_cores ? N_SPINS_ALONE_MAX : N_SPINS_MAX;
    for (int i = 0; i < w->n_spins && st == TR_OK && !*has_moved; i++) {
        tr_cpu_pause();
        st = advance(w, has_moved);
    }
    w->n_spins = *has_moved ? (w->n_spins < n_max ? w->n_spins * 2 : w->n_spins)
                            : (w->n_spins > N_SPINS_MIN ? w->n_spins / 2 : w->n_spins);
    if (w->has_cores || *has_moved || (w->n_sleepy > 0 && w->n_sleepy--))
        return st;
    for (int i = 0; i < N_YIELDS && st == TR_OK && !*has_moved && w->n_sleepy == 0; i++) {
        int64_t start_us = tr_clock_us();
        sched_yield();
        if (tr_clock_us() - start_us > YIELD_US)
            w->n_sleepy = N_WAITS_AFTER;
        st = advance(w, has_moved);
    }
    return st;
}

/* Sleeps until the bell rings or `us` have passed, unless something moves. Lets go of the lock meanwhile. */
static enum tr_status nap(struct world *w, int64_t us)
{
    struct slot *s = my_slot(w);
    bool has_moved = false;
    atomic_fetch_add(&s->n_asleep, 1);
    unsigned bell = atomic_load(&s->bell);
    enum tr_status st = advance(w, &has_moved);
    if (st == TR_OK && !has_moved && atomic_load(&w->h->fault) == 0) {
        pthread_mutex_unlock(&w->lock);
        tr_shm_sleep(w, bell, us);
        pthread_mutex_lock(&w->lock);
    }
    atomic_fetch_sub(&s->n_asleep, 1);
    return st;
}

/* Nothing moves: is everybody well, and is there time left? */
static enum tr_status look_around(struct world *w, const struct channel *ch, int64_t waited_us, int64_t now_us)
{
    enum tr_status st = tr_shm_fault(w);
    bool is_held_up = false;
    if (st == TR_OK && now_us - w->checked_us >= SLICE_US) {
        st = tr_shm_dead_peer(w, ch);
        is_held_up = waited_us >= STOP_LOOK_US && tr_shm_is_held_up(w, ch, now_us);
    }
    if (st == TR_OK && (waited_us >= w->timeout_us || is_held_up) && ch->word)
        st = tr_shm_timed_out(w, ch, waited_us);
    tr_shm_here(w, ch);
    return st;
}

enum tr_status tr_shm_finish(const struct op *op, tr_ticket t)
{
    enum tr_status st = TR_OK;
    int64_t waited_us = 0, last_us = 0; /* since something moved */
    bool is_published = false;
    if (op->ticket != t || op->state == OP_FREE)
        return TR_OK;
    struct channel *ch = op->channel;
    struct world *w = ch->comm->w;
    while (op->ticket == t && op->state != OP_FREE) {
        bool has_moved = false;
        TR_TRY(advance(w, &has_moved));
        if (!has_moved)
            TR_TRY(spin(w, &has_moved));
        if (has_moved) {
            waited_us = last_us = 0;
            continue;
        }
        int64_t now_us = tr_clock_us();
        if (last_us) /* a gap longer than our sleeps: this rank itself was stopped, which is nobody else's fault */
            waited_us += tr_min64(now_us - last_us, 2 * SLICE_US);
        last_us = now_us;
        is_published = true;
        TR_TRY(look_around(w, ch, waited_us, now_us));
        TR_TRY(nap(w, tr_min64(SLICE_US, tr_max64(w->timeout_us - waited_us, 1000))));
        if (w->has_cores && tr_clock_us() - now_us < SHORT_NAP_US) /* spinning on would have been quicker */
            w->n_spins = N_SPINS_ALONE_MAX;
    }
out:
    if (is_published)
        tr_shm_here(w, NULL);
    return st;
}

/* Work that does not only wait for the peers to enter. */
static bool wants_helper(const struct world *w)
{
    for (const struct channel *ch = w->active; ch; ch = ch->next_active)
        if (ch->first->next || !ch->first->is_small || ch->first->state == OP_QUEUED)
            return true;
    return false;
}

static void kick_helper(struct world *w)
{
    atomic_fetch_add(&w->kick, 1);
    (void)syscall(SYS_futex, &w->kick, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void tr_shm_enter(struct world *w)
{
    atomic_fetch_add(&w->n_callers, 1);
    pthread_mutex_lock(&w->lock);
}

void tr_shm_leave(struct world *w)
{
    bool needs_help = w->active && wants_helper(w) && atomic_load_explicit(&w->h->fault, memory_order_relaxed) == 0;
    pthread_mutex_unlock(&w->lock);
    if (atomic_fetch_sub(&w->n_callers, 1) == 1 && needs_help)
        kick_helper(w);
}

static void *help(void *arg)
{
    struct world *w = arg;
    const struct timespec second = { .tv_sec = 1 };
    for (;;) {
        unsigned kick = atomic_load(&w->kick);
        bool is_busy = false;
        pthread_mutex_lock(&w->lock);
        bool is_closing = w->is_closing;
        if (!is_closing && w->active && atomic_load(&w->n_callers) == 0 && atomic_load(&w->h->fault) == 0) {
            is_busy = true;
            bool has_moved = false;
            if (advance(w, &has_moved) == TR_OK && !has_moved)
                (void)nap(w, HELPER_SLICE_US); /* who waits will report what went wrong */
        }
        pthread_mutex_unlock(&w->lock);
        if (is_closing)
            return NULL;
        if (!is_busy)
            (void)syscall(SYS_futex, &w->kick, FUTEX_WAIT_PRIVATE, kick, &second, NULL, 0);
    }
}

enum tr_status tr_shm_start_helper(struct world *w)
{
    w->has_helper = tr_thread_start(&w->helper, help, w) == 0;
    return w->has_helper ? TR_OK : tr_fail(TR_NOMEM, "no thread for communication in the background");
}

void tr_shm_stop_helper(struct world *w)
{
    if (!w->has_helper)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_mutex_unlock(&w->lock);
    atomic_fetch_add(&my_slot(w)->bell, 1);
    (void)syscall(SYS_futex, &my_slot(w)->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    kick_helper(w);
    pthread_join(w->helper, NULL);
}
