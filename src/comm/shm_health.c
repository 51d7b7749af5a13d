/* shm_health.c - how ranks wake each other, learn that one is gone, and report which.
 *
 * The first rank to know a cause writes its text into its own slot and sets header.fault, once; every wait of every
 * rank then ends with that text. A rank sets it before it returns from a failed call, so a rank that exits because of
 * another rank's fault is never blamed for it. Deaths are seen through pidfds, which a reused pid does not confuse.
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STOP_LOOK_US = 100 * 1000 }; /* shorter waits do not look whether the peer is stopped */

void tr_shm_ring(struct shm_world *w, int world_rank)
{
    struct shm_slot *s = &w->h->slots[world_rank];
    if (atomic_load(&s->n_asleep) == 0)
        return;
    atomic_fetch_add(&s->doorbell, 1);
    (void)syscall(SYS_futex, &s->doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tr_shm_sleep(struct shm_world *w, unsigned doorbell, int64_t us)
{
    struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };
    (void)syscall(SYS_futex, &my_slot(w)->doorbell, FUTEX_WAIT, doorbell, &t, NULL, 0);
}

enum tr_status tr_shm_open_peers(struct shm_world *w)
{
    enum tr_status st = TR_OK;
    for (int r = 0; r < w->front.size && st == TR_OK; r++) {
        struct tr_front_peer *p = &w->front.peers[r];
        const struct shm_slot *s = &w->h->slots[r];
        if (gethostname(p->host, sizeof p->host - 1) != 0)
            p->host[0] = '?';
        p->is_closed = &s->is_closed;
        st = tr_front_watch(&w->front, r, s->pid);
        if (st == TR_OK && p->fd < 0 && p->pid != getpid())
            st = tr_front_raise(&w->front, TR_PEER, "rank %d (pid %d, %s): no pidfd: %s", r, p->pid, p->host,
                                strerror(errno));
    }
    return st;
}

enum tr_status tr_shm_fault(const struct tr_front *front)
{
    const struct shm_header *h = ((const struct shm_world *)front)->h;
    int rank_1 = atomic_load_explicit(&h->fault, memory_order_acquire);
    if (!rank_1)
        return TR_OK;
    const struct shm_slot *s = &h->slots[rank_1 - 1];
    return tr_fail((enum tr_status)s->fault_status, "%s", s->fault_text);
}

/* Only while no fault is set: otherwise a peer may be reading the text. */
void tr_shm_raise(struct tr_front *front, enum tr_status st, const char *text)
{
    struct shm_world *w = (struct shm_world *)front;
    struct shm_slot *s = my_slot(w);
    int none = 0;
    (void)snprintf(s->fault_text, sizeof s->fault_text, "%s", text);
    s->fault_status = (int32_t)st;
    if (atomic_compare_exchange_strong(&w->h->fault, &none, front->rank + 1))
        for (int r = 0; r < front->size; r++)
            tr_shm_ring(w, r);
}

static bool is_stopped(const struct shm_world *w, int r)
{
    return tr_is_stopped(w->h->slots[r].pid);
}

/* The rank that holds up ch: a stopped rank of the channel if there is one, else the rank that ch misses. If that rank
 * only waits itself, the rank that it waits for, and so on. */
static int culprit_of(struct shm_world *w, const struct shm_channel *ch)
{
    for (int i = 0; i < ch->base.n; i++)
        if (i != ch->base.me && is_stopped(w, ch->base.ranks[i]))
            return ch->base.ranks[i];
    int r = ch->base.ranks[ch->missing];
    for (int hops = 0; hops < w->front.size; hops++) {
        int next = atomic_load(&w->h->slots[r].waits_for) - 1;
        if (next < 0 || next == w->front.rank || is_stopped(w, r))
            break;
        r = next;
    }
    return r;
}

static enum tr_status raise_timeout(struct shm_world *w, const struct shm_channel *ch, int64_t waited_us)
{
    char mine[TR_FRONT_TEXT_MAX / 4], theirs[TR_FRONT_TEXT_MAX / 4] = "no collective", site[TR_SITE_MAX + 1] = "";
    int r = culprit_of(w, ch);
    const struct shm_slot *s = &w->h->slots[r];
    uint64_t where = atomic_load(&s->where);
    for (size_t i = 0; i < SHM_SITE_WORDS; i++) {
        uint64_t word = atomic_load(&s->where_site[i]);
        memcpy(site + i * 8, &word, 8);
    }
    if (where)
        (void)snprintf(theirs, sizeof theirs, "%s #%" PRIu64 " %s",
                       tr_coll_name((enum tr_coll_kind)((where & 255) - 1)), where >> 8, site);
    bool is_direct = r == ch->base.ranks[ch->missing];
    const char *lacks = !is_direct                                 ? "holds up"
                        : ch->base.first->state == TR_FRONT_MOVING ? "has not moved in"
                                                                   : "has not entered";
    return tr_front_raise(&w->front, TR_TIMEOUT, "rank %d (pid %d, %s) %s %s after %.1f s; it is in %s%s", r, s->pid,
                          w->front.peers[r].host, lacks, tr_front_place(&ch->base, mine, sizeof mine),
                          (double)waited_us * 1e-6, theirs, is_stopped(w, r) ? " (stopped by a signal)" : "");
}

enum tr_status tr_shm_look(struct tr_front *front, const struct tr_front_channel *base, int64_t waited_us,
                           int64_t now_us)
{
    struct shm_world *w = (struct shm_world *)front;
    const struct shm_channel *ch = (const struct shm_channel *)base;
    enum tr_status st = tr_shm_fault(front);
    bool is_held_up = false;
    if (st == TR_OK && now_us - front->checked_us >= TR_FRONT_SLICE_US) {
        front->checked_us = now_us;
        st = tr_front_look_for_dead(front, base);
        int missing = ch && ch->word ? ch->base.ranks[ch->missing] : -1;
        if (st == TR_OK && missing >= 0 && atomic_load(front->peers[missing].is_closed) &&
            atomic_load(ch->word) < ch->value)
            st = tr_front_raise_closed(front, missing, base);
        if (ch && ch->word && waited_us >= STOP_LOOK_US)
            is_held_up = tr_stopped_too_long(&front->stopped, w->h->slots[culprit_of(w, ch)].pid, now_us);
    }
    if (st == TR_OK && ch && ch->word && (waited_us >= front->timeout_us || is_held_up))
        st = raise_timeout(w, ch, waited_us);
    return st;
}

void tr_shm_publish(struct tr_front *front)
{
    const struct shm_channel *ch = (const struct shm_channel *)front->waits_in;
    const struct tr_front_op *op = ch ? ch->base.first : NULL;
    struct shm_slot *s = my_slot((struct shm_world *)front);
    if (!op) {
        atomic_store_explicit(&s->waits_for, 0, memory_order_relaxed);
        atomic_store_explicit(&s->where, 0, memory_order_relaxed);
        return;
    }
    uint64_t words[SHM_SITE_WORDS] = { 0 };
    if (op->coll.site)
        memcpy(words, op->coll.site, strnlen(op->coll.site, sizeof words));
    for (size_t i = 0; i < SHM_SITE_WORDS; i++)
        atomic_store_explicit(&s->where_site[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&s->where, op->seq << 8 | ((uint64_t)tr_front_kind(&ch->base) + 1), memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, ch->base.ranks[ch->missing] + 1, memory_order_relaxed);
}
