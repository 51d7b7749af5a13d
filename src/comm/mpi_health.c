/* mpi_health.c - control messages, deaths, and who is to blame when nothing moves.
 *
 * MPI tells neither who is missing from a collective nor, in general, that a process died. So every rank always has a
 * receive open on a communicator of its own for short messages: a fault (with its text, to all), "I am closed", "where
 * are you?" and its answer. A rank that lives answers within MPI_ANSWER_US whatever it computes, because its helper
 * does; when a wait runs out of time, the one to blame is who does not answer, or who has not begun the operation and
 * waits for nobody itself. Deaths of ranks on the same host are seen at once through pidfds.
 */
#include "comm/mpi_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/banned.h"

enum { DELIVER_US = 300 * 1000, CLOSED_US = 1000 * 1000, CHAIN_US = 2000 * 1000, TAG_CONTROL = 3 };

enum tr_status tr_mpi_fault(const struct mpi_world *w)
{
    return w->fault_status == TR_OK ? TR_OK : tr_fail(w->fault_status, "%s", w->fault_text);
}

static void post_letter(struct mpi_world *w, struct letter *l, int to)
{
    if (l->request[to] == 0)
        (void)w->api->send(&l->m, (int)sizeof l->m, 1, to, TAG_CONTROL, w->control, &l->request[to]);
}

static bool is_delivered(struct mpi_world *w, struct letter *l)
{
    bool all = true;
    for (int r = 0; r < w->size; r++) {
        int is_done = 1;
        if (l->request[r] && w->api->test(&l->request[r], &is_done) == 0 && is_done)
            l->request[r] = 0;
        all = all && is_done;
    }
    return all;
}

static void set_fault(struct mpi_world *w, enum tr_status st, const char *text)
{
    (void)snprintf(w->fault_text, sizeof w->fault_text, "%s", text);
    w->fault_status = st;
    atomic_store(&w->has_fault, true);
}

void tr_mpi_tell_fault(struct mpi_world *w)
{
    struct control *m = &w->fault.m;
    if (!w->has_started || w->is_stuck || m->status != TR_OK)
        return;
    *m = (struct control){ .kind = CONTROL_FAULT, .rank = w->rank, .status = (int32_t)w->fault_status };
    memcpy(m->text, w->fault_text, sizeof m->text);
    for (int r = 0; r < w->size; r++) /* who has closed too: it waits for the others to do the same */
        if (r != w->rank)
            post_letter(w, &w->fault, r);
    for (int64_t until = tr_clock_us() + DELIVER_US; !is_delivered(w, &w->fault) && tr_clock_us() < until;)
        usleep(100);
}

enum tr_status tr_mpi_raise(struct mpi_world *w, enum tr_status st, const char *fmt, ...)
{
    char text[MPI_TEXT_MAX];
    if (w->fault_status != TR_OK)
        return tr_mpi_fault(w);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    set_fault(w, st, text);
    tr_mpi_tell_fault(w);
    return tr_mpi_fault(w);
}

enum tr_status tr_mpi_failed(struct mpi_world *w, const char *what, int code)
{
    char text[MPI_TEXT_MAX / 2];
    w->api->error(code, text, sizeof text);
    return tr_mpi_raise(w, TR_PEER, "rank %d: %s: %s: %s", w->rank, w->api->name, what, text);
}

/* "all_reduce #17 grads block.3" */
static const char *place_text(const struct mpi_channel *ch, char *buf, size_t n)
{
    const struct mpi_op *op = ch ? ch->first : NULL;
    buf[0] = 0;
    if (op)
        (void)snprintf(buf, n, "%s #%" PRIu64 " %s",
                       ch->peer < 0 ? tr_coll_name(op->coll.kind)
                       : ch->me     ? "recv"
                                    : "send",
                       op->seq, op->coll.site ? op->coll.site : "");
    return buf;
}

/* How far this rank is in what `m` asks for, and what it waits in. */
static void answer(struct mpi_world *w, const struct control *m)
{
    struct letter *l = &w->peers[m->rank].reply;
    if (l->request[m->rank]) /* the last answer did not leave yet */
        return;
    l->m = (struct control){ .kind = CONTROL_HERE, .rank = w->rank, .comm = m->comm };
    for (const struct mpi_comm *c = w->comms; c; c = c->next) {
        if (c->id != m->comm)
            continue;
        const struct mpi_channel *ch = &c->all;
        for (int i = 0; m->is_pair && i < c->base.size; i++)
            if (c->ranks[i] == m->rank)
                ch = m->is_pair == 1 ? &c->to[i] : &c->from[i];
        l->m.seq = ch->seq;
    }
    (void)place_text(w->waits_in, l->m.text, sizeof l->m.text);
    post_letter(w, l, m->rank);
}

static void hear(struct mpi_world *w)
{
    struct control *m = &w->heard;
    m->text[sizeof m->text - 1] = 0;
    if (m->rank < 0 || m->rank >= w->size)
        return;
    struct mpi_peer *p = &w->peers[m->rank];
    switch (m->kind) {
    case CONTROL_FAULT:
        if (w->fault_status == TR_OK)
            set_fault(w, (unsigned)m->status < TR_STATUS_COUNT ? (enum tr_status)m->status : TR_PEER, m->text);
        break;
    case CONTROL_CLOSED:
        p->is_closed = true;
        break;
    case CONTROL_WHERE:
        answer(w, m);
        break;
    case CONTROL_HERE:
        p->has_answered = true;
        p->answer = *m;
        break;
    default:
        break;
    }
}

enum tr_status tr_mpi_listen(struct mpi_world *w)
{
    int is_done = 0, code = 0;
    if (w->hearing)
        code = w->api->test(&w->hearing, &is_done);
    if (code != 0)
        return tr_mpi_failed(w, "control message", code);
    if (w->hearing && !is_done)
        return TR_OK;
    if (is_done)
        hear(w);
    code = w->api->recv(&w->heard, (int)sizeof w->heard, 1, TR_MPI_ANY, TAG_CONTROL, w->control, &w->hearing);
    return code == 0 ? tr_mpi_fault(w) : tr_mpi_failed(w, "control message", code);
}

static enum tr_status look_for_dead(struct mpi_world *w, const struct mpi_channel *ch)
{
    char where[MPI_TEXT_MAX / 4];
    for (int r = 0; r < w->size; r++) {
        struct mpi_peer *p = &w->peers[r];
        struct pollfd f = { .fd = p->fd, .events = POLLIN };
        if (p->fd < 0 || poll(&f, 1, 0) <= 0)
            continue;
        bool was_closed = p->is_closed;
        if (!was_closed) /* its last words may be on their way */
            for (int64_t until = tr_clock_us() + MPI_SLICE_US; tr_clock_us() < until && !p->is_closed;) {
                enum tr_status st = tr_mpi_listen(w);
                if (st != TR_OK)
                    return st;
            }
        if (!p->is_closed)
            return tr_mpi_raise(w, TR_PEER, "rank %d (pid %d, %s) died; rank %d was in %s", r, p->pid, p->host, w->rank,
                                place_text(ch, where, sizeof where));
        close(p->fd);
        p->fd = -1;
    }
    return TR_OK;
}

static enum tr_status look_for_closed(struct mpi_world *w, const struct mpi_channel *ch)
{
    char where[MPI_TEXT_MAX / 4];
    for (int i = 0; i < ch->comm->base.size; i++) {
        int r = ch->comm->ranks[i];
        const struct mpi_peer *p = &w->peers[r];
        if (p->is_closed && (ch->peer < 0 || ch->peer == i))
            return tr_mpi_raise(w, TR_PEER, "rank %d (pid %d, %s) closed its communicators; rank %d waits for it in %s",
                                r, p->pid, p->host, w->rank, place_text(ch, where, sizeof where));
    }
    return TR_OK;
}

static void ask_all(struct mpi_world *w, const struct mpi_channel *ch)
{
    struct control *m = &w->question.m;
    if (!is_delivered(w, &w->question)) /* to somebody who does not listen: the text is the same */
        return;
    *m = (struct control){ .kind = CONTROL_WHERE, .rank = w->rank, .comm = ch->comm->id };
    m->is_pair = ch->peer < 0 ? 0 : ch->me == 1 ? 1 : 2;
    for (int i = 0; i < ch->comm->base.size; i++) {
        int r = ch->comm->ranks[i];
        w->peers[r].has_answered = false;
        if (r != w->rank && (ch->peer < 0 || ch->peer == i))
            post_letter(w, &w->question, r);
    }
}

/* Who of the channel does not answer, or is behind; -1: nobody. */
static int find_culprit(struct mpi_world *w, const struct mpi_channel *ch)
{
    int behind = -1;
    for (int i = 0; i < ch->comm->base.size; i++) {
        int r = ch->comm->ranks[i];
        if (r == w->rank || (ch->peer >= 0 && ch->peer != i))
            continue;
        if (!w->peers[r].has_answered)
            return r;
        if (w->peers[r].answer.seq < ch->seq && behind < 0)
            behind = r;
    }
    return behind;
}

static enum tr_status blame(struct mpi_world *w, const struct mpi_channel *ch, int64_t waited_us)
{
    char mine[MPI_TEXT_MAX / 4];
    int64_t since_us = tr_clock_us() - w->asked_us;
    int r = find_culprit(w, ch);
    double s = (double)waited_us * 1e-6;
    place_text(ch, mine, sizeof mine);
    if (r < 0)
        return since_us < CHAIN_US
                   ? TR_OK
                   : tr_mpi_raise(w, TR_TIMEOUT,
                                  "rank %d: %s does not move for %.1f s, although all its ranks answer; "
                                  "is the network between them cut?",
                                  w->rank, mine, s);
    const struct mpi_peer *p = &w->peers[r];
    if (!p->has_answered)
        return tr_mpi_raise(w, TR_TIMEOUT,
                            "rank %d (pid %d, %s) holds up %s after %.1f s and does not answer rank %d: it is stopped, "
                            "or its host is gone",
                            r, p->pid, p->host, mine, s, w->rank);
    if (p->answer.text[0] && since_us < CHAIN_US) /* it waits itself, and will say for whom */
        return TR_OK;
    return tr_mpi_raise(w, TR_TIMEOUT, "rank %d (pid %d, %s) has not entered %s after %.1f s; it is in %s", r, p->pid,
                        p->host, mine, s, p->answer.text[0] ? p->answer.text : "no collective");
}

/* Somebody this channel needs is stopped, on this host, and was so for too long. */
static enum tr_status look_for_stopped(struct mpi_world *w, const struct mpi_channel *ch, int64_t now_us)
{
    char mine[MPI_TEXT_MAX / 4];
    for (int i = 0; i < ch->comm->base.size; i++) {
        int r = ch->comm->ranks[i];
        const struct mpi_peer *p = &w->peers[r];
        if (p->fd < 0 || (ch->peer >= 0 && ch->peer != i) || !tr_is_stopped(p->pid))
            continue;
        if (!tr_stopped_too_long(&w->stopped, p->pid, now_us))
            return TR_OK;
        return tr_mpi_raise(w, TR_TIMEOUT, "rank %d (pid %d, %s) holds up %s: it is stopped by a signal", r, p->pid,
                            p->host, place_text(ch, mine, sizeof mine));
    }
    return TR_OK;
}

enum tr_status tr_mpi_look_around(struct mpi_world *w, const struct mpi_channel *ch, int64_t waited_us)
{
    enum tr_status st;
    int64_t now_us = tr_clock_us();
    if (now_us - w->checked_us < MPI_SLICE_US)
        return TR_OK;
    w->checked_us = now_us;
    st = look_for_dead(w, ch);
    if (st == TR_OK && waited_us >= CLOSED_US)
        st = look_for_closed(w, ch);
    if (st == TR_OK && ch)
        st = look_for_stopped(w, ch, now_us);
    if (st != TR_OK || waited_us < w->timeout_us)
        return st;
    if (!w->asked_us) {
        w->asked_us = now_us;
        ask_all(w, ch);
    }
    return now_us - w->asked_us >= MPI_ANSWER_US ? blame(w, ch, waited_us) : TR_OK;
}

static void read_line(const char *path, char *buf, size_t n_buf)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, n_buf - 1) : 0;
    if (fd >= 0)
        close(fd);
    buf[n > 0 ? n : 0] = 0;
    buf[strcspn(buf, "\n")] = 0;
}

enum tr_status tr_mpi_meet_peers(struct mpi_world *w, struct tr_comm *world)
{
    struct {
        char host[64], boot[64];
        int64_t pid;
    } mine = { .pid = getpid() }, *all = calloc((size_t)w->size, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "no memory for %d ranks", w->size);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        mine.host[0] = '?';
    read_line("/proc/sys/kernel/random/boot_id", mine.boot, sizeof mine.boot); /* pids are of one kernel */
    char pid_space[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", pid_space, sizeof pid_space - 1);
    (void)snprintf(mine.boot + 37, sizeof mine.boot - 37, "%.20s", n > 0 ? pid_space : "");
    enum tr_status st = tr_comm_run(world, &(struct tr_coll){ .kind = TR_ALL_GATHER,
                                                              .dtype = TR_U8,
                                                              .in = &mine,
                                                              .out = all,
                                                              .count = (size_t)w->size * sizeof mine,
                                                              .site = "who is where" });
    for (int r = 0; st == TR_OK && r < w->size; r++) {
        struct mpi_peer *p = &w->peers[r];
        memcpy(p->host, all[r].host, sizeof p->host - 1);
        p->pid = (int32_t)all[r].pid;
        if (r == w->rank || memcmp(all[r].boot, mine.boot, sizeof mine.boot) != 0)
            continue;
        p->fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
        if (p->fd < 0 && errno == ESRCH)
            st = tr_mpi_raise(w, TR_PEER, "rank %d (pid %d, %s) died while the ranks joined", r, p->pid, p->host);
    }
    free(all);
    return st;
}

bool tr_mpi_all_closed(struct mpi_world *w)
{
    struct letter *l = &w->closed;
    if (l->m.kind != CONTROL_CLOSED) {
        l->m = (struct control){ .kind = CONTROL_CLOSED, .rank = w->rank };
        for (int r = 0; r < w->size; r++)
            if (r != w->rank)
                post_letter(w, l, r);
    }
    bool all = is_delivered(w, l);
    for (int r = 0; r < w->size; r++)
        all = all && (r == w->rank || w->peers[r].is_closed);
    return all;
}
