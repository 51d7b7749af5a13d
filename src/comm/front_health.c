/* front_health.c - faults of a world, the message that ranks disagree, and watching the processes of other ranks.
 *
 * The first fault of all ranks ends the world: every later call of every rank returns its text. Deaths on this host are
 * seen through pidfds, which a reused pid does not confuse.
 */
#include "comm/front.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

enum tr_status tr_front_fault(const struct tr_front *w)
{
    return atomic_load_explicit(w->fault, memory_order_acquire) ? w->hooks->fault(w) : TR_OK;
}

enum tr_status tr_front_raise(struct tr_front *w, enum tr_status st, const char *fmt, ...)
{
    char text[TR_FRONT_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!atomic_load(w->fault))
        w->hooks->raise(w, st, text);
    return w->hooks->fault(w);
}

enum tr_status tr_front_failpoint(struct tr_front *w, const char *name)
{
    enum tr_status st = tr_failpoint(name);
    return st == TR_OK ? TR_OK : tr_front_raise(w, TR_PEER, "rank %d: %s", w->rank, tr_error_text());
}

enum tr_coll_kind tr_front_kind(const struct tr_front_channel *ch)
{
    return ch->peer < 0 ? ch->first->coll.kind : ch->me == 0 ? TR_SEND : TR_RECV;
}

const char *tr_front_place(const struct tr_front_channel *ch, char *buf, size_t n_buf)
{
    const struct tr_front_op *op = ch ? ch->first : NULL;
    if (!op)
        return "no collective";
    (void)snprintf(buf, n_buf, "%s #%" PRIu64 " %s (%s)", tr_coll_name(tr_front_kind(ch)), op->seq,
                   op->coll.site ? op->coll.site : "", op->state == TR_FRONT_MOVING ? "moving data" : "entering");
    return buf;
}

enum tr_status tr_front_watch(struct tr_front *w, int rank, int pid)
{
    struct tr_front_peer *p = &w->peers[rank];
    p->pid = pid;
    p->fd = pid == getpid() ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    return p->fd < 0 && pid != getpid() && errno == ESRCH
               ? tr_front_raise(w, TR_PEER, "rank %d (pid %d, %s) died while the ranks joined", rank, pid, p->host)
               : TR_OK;
}

enum tr_status tr_front_look_for_dead(struct tr_front *w, const struct tr_front_channel *ch)
{
    char place[TR_FRONT_TEXT_MAX / 2];
    for (int r = 0; r < w->size; r++) {
        struct tr_front_peer *p = &w->peers[r];
        struct pollfd f = { .fd = p->fd, .events = POLLIN };
        if (p->fd < 0 || poll(&f, 1, 0) <= 0)
            continue;
        int64_t until_us = tr_clock_us() + TR_FRONT_SLICE_US; /* its last message may be on its way */
        while (w->hooks->listen && !atomic_load(p->is_closed) && tr_clock_us() < until_us)
            TR_PASS(w->hooks->listen(w));
        if (!atomic_load(p->is_closed))
            return tr_front_raise(w, TR_PEER, "rank %d (pid %d, %s) died; rank %d was in %s", r, p->pid, p->host,
                                  w->rank, tr_front_place(ch, place, sizeof place));
        close(p->fd); /* it has closed its world and ended: do not watch it any more */
        p->fd = -1;
    }
    return TR_OK;
}

enum tr_status tr_front_raise_closed(struct tr_front *w, int rank, const struct tr_front_channel *ch)
{
    char place[TR_FRONT_TEXT_MAX / 2];
    const struct tr_front_peer *p = &w->peers[rank];
    return tr_front_raise(w, TR_PEER, "rank %d (pid %d, %s) closed its communicators; rank %d waits for it in %s", rank,
                          p->pid, p->host, w->rank, tr_front_place(ch, place, sizeof place));
}

static const char *announced_text(const struct tr_front_channel *ch, const struct tr_front_announced *a, char *buf,
                                  size_t n_buf)
{
    const char *name = ch->peer < 0 ? NULL : a->seat == 0 ? "send" : "recv";
    return tr_signature_text(a->signature, name, ch->ranks[a->seat], ch->first->seq, a->site, buf, n_buf);
}

enum tr_status tr_front_raise_differ(struct tr_front_channel *ch, struct tr_front_announced mine,
                                     struct tr_front_announced theirs)
{
    char a[TR_FRONT_TEXT_MAX / 3], b[TR_FRONT_TEXT_MAX / 3];
    return tr_front_raise(ch->comm->w, TR_USAGE, "ranks disagree: %s, but %s", announced_text(ch, &mine, a, sizeof a),
                          announced_text(ch, &theirs, b, sizeof b));
}
