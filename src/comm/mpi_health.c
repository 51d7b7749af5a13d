/* mpi_health.c - control messages, deaths, and which rank is to blame when nothing moves.
 *
 * MPI reports neither which rank is missing from a collective nor, in general, that a process died. So every rank
 * always has a receive open on a communicator of its own for short messages: a fault (with its text, to all), "this
 * rank has closed", a query of what a rank waits in, and the result of a query. A live rank replies within
 * MPI_RESULT_US whatever it computes, because its helper does. When a wait runs out of time, the rank to blame is one
 * that does not reply, or one that has not begun the operation and waits for no rank itself. Deaths of ranks on the
 * same host are seen at once through pidfds.
 */
#include "comm/mpi_impl.h"
#include <fcntl.h>
#include <unistd.h>

enum { DELIVER_US = 300 * 1000, CLOSED_US = 1000 * 1000, CHAIN_US = 2000 * 1000, TAG_CONTROL = 3 };

enum tr_status tr_mpi_fault(const struct tr_front *front)
{
    const struct mpi_world *w = (const struct mpi_world *)front;
    return w->fault_status == TR_OK ? TR_OK : tr_fail(w->fault_status, "%s", w->fault_text);
}

static void send_control(struct mpi_world *w, struct mpi_outgoing *l, int to)
{
    if (l->request[to] == 0)
        (void)w->api->send(&l->m, (int)sizeof l->m, 1, to, TAG_CONTROL, w->control, &l->request[to]);
}

static bool is_delivered(struct mpi_world *w, struct mpi_outgoing *l)
{
    bool all = true;
    for (int r = 0; r < w->front.size; r++) {
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

void tr_mpi_report_fault(struct mpi_world *w)
{
    struct mpi_control *m = &w->fault.m;
    if (!w->has_started || w->is_stuck || m->status != TR_OK)
        return;
    *m = (struct mpi_control){ .kind = CONTROL_FAULT, .rank = w->front.rank, .status = (int32_t)w->fault_status };
    memcpy(m->text, w->fault_text, sizeof m->text);
    for (int r = 0; r < w->front.size; r++) /* closed ranks too: they wait for the others to close */
        if (r != w->front.rank)
            send_control(w, &w->fault, r);
    for (int64_t until = tr_clock_us() + DELIVER_US; !is_delivered(w, &w->fault) && tr_clock_us() < until;)
        usleep(100);
}

void tr_mpi_raise(struct tr_front *front, enum tr_status st, const char *text)
{
    struct mpi_world *w = (struct mpi_world *)front;
    set_fault(w, st, text);
    tr_mpi_report_fault(w);
}

enum tr_status tr_mpi_failed(struct mpi_world *w, const char *what, int code)
{
    char text[TR_FRONT_TEXT_MAX / 2];
    w->api->error(code, text, sizeof text);
    return tr_front_raise(&w->front, TR_PEER, "rank %d: %s: %s: %s", w->front.rank, w->api->name, what, text);
}

/* Replies to query `m`: how far this rank is in that channel, and what it waits in (no text: nothing). */
static void reply(struct mpi_world *w, const struct mpi_control *m)
{
    struct mpi_outgoing *l = &w->peers[m->rank].reply;
    if (l->request[m->rank]) /* the last reply has not left yet */
        return;
    l->m = (struct mpi_control){ .kind = CONTROL_RESULT, .rank = w->front.rank, .comm = m->comm };
    for (const struct tr_front_comm *c = w->front.comms; c; c = c->next) {
        if (((const struct mpi_comm *)c)->id != m->comm)
            continue;
        const struct tr_front_channel *ch = tr_front_all(c);
        for (int i = 0; m->is_pair && i < c->base.size; i++)
            if (c->ranks[i] == m->rank)
                ch = m->is_pair == 1 ? tr_front_to(c, i) : tr_front_from(c, i);
        l->m.seq = ((const struct mpi_channel *)ch)->seq;
    }
    if (w->front.waits_in && w->front.waits_in->first)
        (void)tr_front_place(w->front.waits_in, l->m.text, sizeof l->m.text);
    send_control(w, l, m->rank);
}

static void take_control(struct mpi_world *w)
{
    struct mpi_control *m = &w->received;
    m->text[sizeof m->text - 1] = 0;
    if (m->rank < 0 || m->rank >= w->front.size)
        return;
    struct mpi_peer *p = &w->peers[m->rank];
    switch (m->kind) {
    case CONTROL_FAULT:
        if (w->fault_status == TR_OK)
            set_fault(w, (unsigned)m->status < TR_STATUS_COUNT ? (enum tr_status)m->status : TR_PEER, m->text);
        break;
    case CONTROL_CLOSED:
        atomic_store(&p->is_closed, 1);
        break;
    case CONTROL_QUERY:
        reply(w, m);
        break;
    case CONTROL_RESULT:
        p->has_result = true;
        p->result = *m;
        break;
    default:
        break;
    }
}

enum tr_status tr_mpi_listen(struct tr_front *front)
{
    struct mpi_world *w = (struct mpi_world *)front;
    int is_done = 0, code = 0;
    if (w->fault_status != TR_OK)
        return tr_mpi_fault(front);
    if (w->receiving)
        code = w->api->test(&w->receiving, &is_done);
    if (code != 0)
        return tr_mpi_failed(w, "control message", code);
    if (w->receiving && !is_done)
        return TR_OK;
    if (is_done)
        take_control(w);
    code = w->api->recv(&w->received, (int)sizeof w->received, 1, TR_MPI_ANY, TAG_CONTROL, w->control, &w->receiving);
    return code == 0 ? tr_mpi_fault(front) : tr_mpi_failed(w, "control message", code);
}

static enum tr_status look_for_closed(struct mpi_world *w, const struct mpi_channel *ch)
{
    for (int i = 0; i < ch->base.comm->base.size; i++) {
        int r = ch->base.comm->ranks[i];
        if (atomic_load(&w->peers[r].is_closed) && (ch->base.peer < 0 || ch->base.peer == i))
            return tr_front_raise_closed(&w->front, r, &ch->base);
    }
    return TR_OK;
}

static void query_all(struct mpi_world *w, const struct mpi_channel *ch)
{
    struct mpi_control *m = &w->query.m;
    if (!is_delivered(
            w, &w->query)) /* the last query is on its way to a rank that does not listen; its text is the same */
        return;
    *m = (struct mpi_control){ .kind = CONTROL_QUERY, .rank = w->front.rank, .comm = comm_of(ch)->id };
    m->is_pair = ch->base.peer < 0 ? 0 : ch->base.me == 1 ? 1 : 2;
    for (int i = 0; i < ch->base.comm->base.size; i++) {
        int r = ch->base.comm->ranks[i];
        w->peers[r].has_result = false;
        if (r != w->front.rank && (ch->base.peer < 0 || ch->base.peer == i))
            send_control(w, &w->query, r);
    }
}

/* A rank of the channel that has not replied, else one that is behind; -1: none. */
static int find_culprit(struct mpi_world *w, const struct mpi_channel *ch)
{
    int behind = -1;
    for (int i = 0; i < ch->base.comm->base.size; i++) {
        int r = ch->base.comm->ranks[i];
        if (r == w->front.rank || (ch->base.peer >= 0 && ch->base.peer != i))
            continue;
        if (!w->peers[r].has_result)
            return r;
        if (w->peers[r].result.seq < ch->seq && behind < 0)
            behind = r;
    }
    return behind;
}

static enum tr_status blame(struct mpi_world *w, const struct mpi_channel *ch, int64_t waited_us)
{
    char mine[TR_FRONT_TEXT_MAX / 4];
    int64_t since_us = tr_clock_us() - w->queried_us;
    int r = find_culprit(w, ch);
    double s = (double)waited_us * 1e-6;
    tr_front_place(&ch->base, mine, sizeof mine);
    if (r < 0)
        return since_us < CHAIN_US
                   ? TR_OK
                   : tr_front_raise(&w->front, TR_TIMEOUT,
                                    "rank %d: %s has not moved for %.1f s, although all its ranks reply; "
                                    "is the network between them cut?",
                                    w->front.rank, mine, s);
    const struct tr_front_peer *p = &w->front.peers[r];
    const struct mpi_control *result = &w->peers[r].result;
    if (!w->peers[r].has_result)
        return tr_front_raise(&w->front, TR_TIMEOUT,
                              "rank %d (pid %d, %s) holds up %s after %.1f s and does not reply to rank %d: it is "
                              "stopped, or its host is gone",
                              r, p->pid, p->host, mine, s, w->front.rank);
    if (result->text[0] && since_us < CHAIN_US) /* it waits itself, and will raise a fault that names its peer */
        return TR_OK;
    return tr_front_raise(&w->front, TR_TIMEOUT, "rank %d (pid %d, %s) has not entered %s after %.1f s; it is in %s", r,
                          p->pid, p->host, mine, s, result->text[0] ? result->text : "no collective");
}

/* Raises a fault when a rank of this channel is on this host and has been stopped for too long. */
static enum tr_status look_for_stopped(struct mpi_world *w, const struct mpi_channel *ch, int64_t now_us)
{
    char mine[TR_FRONT_TEXT_MAX / 4];
    for (int i = 0; i < ch->base.comm->base.size; i++) {
        int r = ch->base.comm->ranks[i];
        const struct tr_front_peer *p = &w->front.peers[r];
        if (p->fd < 0 || (ch->base.peer >= 0 && ch->base.peer != i) || !tr_is_stopped(p->pid))
            continue;
        if (!tr_stopped_too_long(&w->front.stopped, p->pid, now_us))
            return TR_OK;
        return tr_front_raise(&w->front, TR_TIMEOUT, "rank %d (pid %d, %s) holds up %s: it is stopped by a signal", r,
                              p->pid, p->host, tr_front_place(&ch->base, mine, sizeof mine));
    }
    return TR_OK;
}

enum tr_status tr_mpi_look(struct tr_front *front, const struct tr_front_channel *base, int64_t waited_us,
                           int64_t now_us)
{
    struct mpi_world *w = (struct mpi_world *)front;
    const struct mpi_channel *ch = (const struct mpi_channel *)base;
    enum tr_status st;
    if (now_us - front->checked_us < TR_FRONT_SLICE_US)
        return TR_OK;
    front->checked_us = now_us;
    st = tr_front_look_for_dead(front, base);
    if (st == TR_OK && waited_us >= CLOSED_US)
        st = look_for_closed(w, ch);
    if (st == TR_OK && ch)
        st = look_for_stopped(w, ch, now_us);
    if (st != TR_OK || waited_us < w->front.timeout_us)
        return st;
    if (!w->queried_us) {
        w->queried_us = now_us;
        query_all(w, ch);
    }
    return now_us - w->queried_us >= MPI_RESULT_US ? blame(w, ch, waited_us) : TR_OK;
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
    } mine = { .pid = getpid() }, *all = calloc((size_t)w->front.size, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "rank %d: no memory for %d ranks", w->front.rank, w->front.size);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        mine.host[0] = '?';
    /* A pid has a meaning inside one kernel and one pid namespace only. */
    read_line("/proc/sys/kernel/random/boot_id", mine.boot, sizeof mine.boot);
    char pid_space[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", pid_space, sizeof pid_space - 1);
    (void)snprintf(mine.boot + 37, sizeof mine.boot - 37, "%.20s", n > 0 ? pid_space : "");
    enum tr_status st = tr_comm_run(world, &(struct tr_coll){ .kind = TR_ALL_GATHER,
                                                              .dtype = TR_U8,
                                                              .in = &mine,
                                                              .out = all,
                                                              .count = (size_t)w->front.size * sizeof mine,
                                                              .site = "hosts and pids" });
    for (int r = 0; st == TR_OK && r < w->front.size; r++) {
        struct tr_front_peer *p = &w->front.peers[r];
        memcpy(p->host, all[r].host, sizeof p->host - 1);
        p->pid = (int)all[r].pid;
        if (memcmp(all[r].boot, mine.boot, sizeof mine.boot) == 0)
            st = tr_front_watch(&w->front, r, p->pid);
    }
    free(all);
    return st;
}

bool tr_mpi_all_closed(struct mpi_world *w)
{
    struct mpi_outgoing *l = &w->closed;
    if (l->m.kind != CONTROL_CLOSED) {
        l->m = (struct mpi_control){ .kind = CONTROL_CLOSED, .rank = w->front.rank };
        for (int r = 0; r < w->front.size; r++)
            if (r != w->front.rank)
                send_control(w, l, r);
    }
    bool all = is_delivered(w, l);
    for (int r = 0; r < w->front.size; r++)
        all = all && (r == w->front.rank || atomic_load(&w->peers[r].is_closed));
    return all;
}
