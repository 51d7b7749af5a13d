/* shm_health.c - how ranks wake each other, learn that one is gone, and say which.
 *
 * The first rank to know a cause writes its text into its own slot and swings header.fault, once; every wait of every
 * rank then ends with that text. Because a rank swings it before it returns from a failed call, a rank that exits over
 * somebody else's fault is never blamed for it. Deaths are seen through pidfds, which a reused pid does not confuse.
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/banned.h"

void tr_shm_ring(struct world *w, int world_rank)
{
    struct slot *s = &w->h->slots[world_rank];
    if (atomic_load(&s->n_asleep) == 0)
        return;
    atomic_fetch_add(&s->bell, 1);
    (void)syscall(SYS_futex, &s->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void tr_shm_sleep(struct world *w, unsigned bell, int64_t us)
{
    struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };
    (void)syscall(SYS_futex, &my_slot(w)->bell, FUTEX_WAIT, bell, &t, NULL, 0);
}

enum tr_status tr_shm_open_peers(struct world *w)
{
    for (int r = 0; r < w->size; r++) {
        int pid = w->h->slots[r].pid;
        w->peers[r] = (struct pollfd){ .fd = -1, .events = POLLIN };
        if (pid == getpid())
            continue;
        w->peers[r].fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (w->peers[r].fd < 0)
            return tr_shm_raise(w, TR_PEER, "rank %d (pid %d, %s): %s", r, pid, w->host,
                                errno == ESRCH ? "died while the ranks joined" : strerror(errno));
    }
    return TR_OK;
}

enum tr_status tr_shm_fault(const struct world *w)
{
    int who = atomic_load_explicit(&w->h->fault, memory_order_acquire);
    if (!who)
        return TR_OK;
    const struct slot *s = &w->h->slots[who - 1];
    return tr_fail((enum tr_status)s->fault_status, "%s", s->fault_text);
}

enum tr_status tr_shm_raise(struct world *w, enum tr_status st, const char *fmt, ...)
{
    struct slot *s = my_slot(w);
    if (atomic_load(&w->h->fault) == 0) { /* else the text may be being read */
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(s->fault_text, sizeof s->fault_text, fmt, args);
        va_end(args);
        s->fault_status = (int32_t)st;
        int none = 0;
        if (atomic_compare_exchange_strong(&w->h->fault, &none, w->rank + 1))
            for (int r = 0; r < w->size; r++)
                tr_shm_ring(w, r);
    }
    return tr_shm_fault(w);
}

/* "all_reduce #17 grads block.3 (entering)" */
static const char *place_text(const struct channel *ch, char *buf, size_t n)
{
    static const char *const phases[] = { "staging", "moving data", "leaving" };
    const struct op *op = ch ? ch->first : NULL;
    if (!op)
        return "no collective";
    const char *phase = "entering";
    for (int p = 0; op->state == OP_RUNNING && p < N_PHASES; p++)
        if (op->done[p] < op->n_rounds) {
            phase = phases[p];
            break;
        }
    const char *name = tr_coll_name(op->coll.kind);
    if (ch != &ch->comm->all)
        name = ch->me == 0 ? "send" : "recv";
    (void)snprintf(buf, n, "%s #%" PRIu64 " %s (%s)", name, op->seq, op->coll.site ? op->coll.site : "", phase);
    return buf;
}

enum tr_status tr_shm_dead_peer(struct world *w, const struct channel *ch)
{
    char where[TEXT_MAX / 2];
    w->checked_us = tr_clock_us();
    if (poll(w->peers, (nfds_t)w->size, 0) > 0)
        for (int r = 0; r < w->size; r++)
            if (w->peers[r].revents) {
                if (!atomic_load(&w->h->slots[r].is_closed))
                    return tr_shm_raise(w, TR_PEER, "rank %d (pid %d, %s) died; rank %d was in %s", r,
                                        w->h->slots[r].pid, w->host, w->rank, place_text(ch, where, sizeof where));
                close(w->peers[r].fd); /* it ended well: look no more */
                w->peers[r].fd = -1;
            }
    if (!ch || !ch->word)
        return TR_OK;
    int r = ch->ranks[ch->missing];
    bool is_closed = atomic_load(&w->h->slots[r].is_closed);
    if (is_closed && atomic_load(ch->word) < ch->value)
        return tr_shm_raise(w, TR_PEER, "rank %d (pid %d, %s) closed its communicators; rank %d waits for it in %s", r,
                            w->h->slots[r].pid, w->host, w->rank, place_text(ch, where, sizeof where));
    return TR_OK;
}

static bool is_stopped(const struct world *w, int r)
{
    return tr_is_stopped(w->h->slots[r].pid);
}

/* Who is behind in ch, and is it only waiting itself? Then the one it waits for, and so on. */
static int culprit_of(struct world *w, const struct channel *ch)
{
    for (int i = 0; i < ch->n; i++)
        if (i != ch->me && is_stopped(w, ch->ranks[i]))
            return ch->ranks[i];
    int r = ch->ranks[ch->missing];
    for (int hops = 0; hops < w->size; hops++) {
        int next = atomic_load(&w->h->slots[r].waits_for) - 1;
        if (next < 0 || next == w->rank || is_stopped(w, r))
            break;
        r = next;
    }
    return r;
}

bool tr_shm_is_held_up(struct world *w, const struct channel *ch, int64_t now_us)
{
    return ch->word && tr_stopped_too_long(&w->stopped, w->h->slots[culprit_of(w, ch)].pid, now_us);
}

enum tr_status tr_shm_timed_out(struct world *w, const struct channel *ch, int64_t waited_us)
{
    char mine[TEXT_MAX / 4], site[SITE_MAX + 1] = "";
    int r = culprit_of(w, ch);
    const struct slot *s = &w->h->slots[r];
    uint64_t where = atomic_load(&s->where);
    for (size_t i = 0; i < WAIT_SITE_WORDS; i++) {
        uint64_t word = atomic_load(&s->where_site[i]);
        memcpy(site + i * 8, &word, 8);
    }
    place_text(ch, mine, sizeof mine);
    const char *stopped = is_stopped(w, r) ? " (stopped by a signal)" : "";
    bool is_direct = r == ch->ranks[ch->missing];
    const char *lacks = !is_direct                       ? "holds up"
                        : ch->first->state == OP_RUNNING ? "has not moved in"
                                                         : "has not entered";
    if (!where)
        return tr_shm_raise(w, TR_TIMEOUT, "rank %d (pid %d, %s) %s %s after %.1f s; it is in no collective%s", r,
                            s->pid, w->host, lacks, mine, (double)waited_us * 1e-6, stopped);
    return tr_shm_raise(w, TR_TIMEOUT, "rank %d (pid %d, %s) %s %s after %.1f s; it is in %s #%" PRIu64 " %s%s", r,
                        s->pid, w->host, lacks, mine, (double)waited_us * 1e-6,
                        tr_coll_name((enum tr_coll_kind)((where & 255) - 1)), where >> 8, site, stopped);
}

void tr_shm_here(struct world *w, const struct channel *ch)
{
    struct slot *s = my_slot(w);
    const struct op *op = ch ? ch->first : NULL;
    if (!op) {
        atomic_store_explicit(&s->waits_for, 0, memory_order_relaxed);
        atomic_store_explicit(&s->where, 0, memory_order_relaxed);
        return;
    }
    uint64_t words[WAIT_SITE_WORDS] = { 0 };
    if (op->coll.site)
        memcpy(words, op->coll.site, strnlen(op->coll.site, sizeof words));
    for (size_t i = 0; i < WAIT_SITE_WORDS; i++)
        atomic_store_explicit(&s->where_site[i], words[i], memory_order_relaxed);
    enum tr_coll_kind kind = ch == &ch->comm->all ? op->coll.kind : ch->me == 0 ? TR_SEND : TR_RECV;
    atomic_store_explicit(&s->where, op->seq << 8 | ((uint64_t)kind + 1), memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, ch->ranks[ch->missing] + 1, memory_order_relaxed);
}
