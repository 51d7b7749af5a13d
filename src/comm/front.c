/* front.c - the shared half of the engines with peers: see front.h.
 *
 * The thread that waits does the work: it advances every channel that has operations as far as the peers allow, so
 * collectives of several communicators and both directions of a ring make progress together. When no caller waits, a
 * helper thread does the same; it keeps away while a caller is inside. Rejected: a thread per communicator (cores are
 * for arithmetic); the helper alone (two context switches on every small collective).
 */
#include "comm/front.h"
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum tr_status tr_front_init(struct tr_front *w, const struct tr_front_hooks *hooks, const struct tr_comm_ops *ops,
                             const struct tr_comm_env *env)
{
    w->hooks = hooks;
    w->ops = ops;
    w->rank = env->rank;
    w->size = env->size;
    w->timeout_us = env->timeout_us;
    pthread_mutex_init(&w->lock, NULL);
    w->peers = calloc((size_t)env->size, sizeof *w->peers);
    for (int r = 0; w->peers && r < env->size; r++)
        w->peers[r].fd = -1;
    return w->peers ? TR_OK : tr_fail(TR_NOMEM, "rank %d: no memory for a world of %d ranks", env->rank, env->size);
}

void tr_front_release(struct tr_front *w)
{
    for (int r = 0; w->peers && r < w->size; r++)
        if (w->peers[r].fd >= 0)
            close(w->peers[r].fd);
    free(w->peers);
    pthread_mutex_destroy(&w->lock);
}

/* ---- communicators ---- */

static struct tr_front_channel *channel_at(const struct tr_front_comm *c, int i)
{
    return (struct tr_front_channel *)(void *)(c->channels + (size_t)i * c->w->hooks->channel_bytes);
}

struct tr_front_channel *tr_front_all(const struct tr_front_comm *c)
{
    return channel_at(c, 0);
}

struct tr_front_channel *tr_front_to(const struct tr_front_comm *c, int peer)
{
    return channel_at(c, 1 + peer);
}

struct tr_front_channel *tr_front_from(const struct tr_front_comm *c, int peer)
{
    return channel_at(c, 1 + c->base.size + peer);
}

static void set_channels(struct tr_front_comm *c)
{
    int n = c->base.size, me = c->base.rank;
    *tr_front_all(c) = (struct tr_front_channel){ .comm = c, .n = n, .me = me, .peer = -1, .ranks = c->ranks };
    for (int i = 0; i < n; i++) {
        struct tr_front_channel *to = tr_front_to(c, i), *from = tr_front_from(c, i);
        *to = (struct tr_front_channel){ .comm = c, .n = 2, .me = 0, .peer = i };
        *from = (struct tr_front_channel){ .comm = c, .n = 2, .me = 1, .peer = i };
        to->pair[0] = from->pair[1] = c->ranks[me];
        to->pair[1] = from->pair[0] = c->ranks[i];
        to->ranks = to->pair;
        from->ranks = from->pair;
    }
}

void tr_front_free_comm(struct tr_front_comm *c)
{
    if (!c)
        return;
    free(c->ranks);
    free(c->channels);
    free(c);
}

enum tr_status tr_front_open_comm(struct tr_front *w, size_t bytes, const int *ranks, int rank, int size,
                                  struct tr_front_comm **out)
{
    size_t n = (size_t)size;
    struct tr_front_comm *c = calloc(1, bytes);
    if (c) {
        c->base = (struct tr_comm){ .ops = w->ops, .rank = rank, .size = size };
        c->w = w;
        c->ranks = calloc(n, sizeof *c->ranks);
        c->channels = calloc(1 + 2 * n, w->hooks->channel_bytes);
    }
    if (!c || !c->ranks || !c->channels) {
        tr_front_free_comm(c);
        return tr_front_raise(w, TR_NOMEM, "rank %d: no memory for a communicator of %d ranks", w->rank, size);
    }
    for (int r = 0; r < size; r++)
        c->ranks[r] = ranks ? ranks[r] : r;
    set_channels(c);
    c->next = w->comms;
    w->comms = c;
    *out = c;
    return TR_OK;
}

/* Every rank checks what every rank expects: an engine's own split would wait for the rank that refuses. */
static enum tr_status check_reports(struct tr_front_comm *c, const struct tr_split_report *reports)
{
    int64_t n = 0;
    int i = tr_split_find_wrong(reports, c->base.size, &n);
    if (i < 0)
        return TR_OK;
    tr_front_enter(c->w);
    enum tr_status st =
        tr_front_raise(c->w, TR_USAGE, "split: color %" PRId64 " has %" PRId64 " ranks, rank %d expects %" PRId64,
                       reports[i].color, n, c->ranks[i], reports[i].n);
    tr_front_leave(c->w);
    return st;
}

enum tr_status tr_front_split(struct tr_comm *base, int color, int key, int n, struct tr_comm **out)
{
    enum tr_status st = TR_OK;
    struct tr_front_comm *c = (struct tr_front_comm *)base, *made = NULL;
    size_t size = (size_t)base->size;
    struct tr_split_report *reports = calloc(size, sizeof *reports);
    int64_t *values = calloc(size, sizeof *values);
    int *ranks = calloc(size, sizeof *ranks);
    *out = NULL;
    if (!reports || !values || !ranks) {
        tr_front_enter(c->w);
        st = tr_front_raise(c->w, TR_NOMEM, "rank %d: no memory to split %zu ranks", c->w->rank, size);
        tr_front_leave(c->w);
        goto out;
    }
    reports[base->rank] = (struct tr_split_report){ color, key, n };
    TR_TRY(tr_split_exchange(base, &reports[0].color, 3));
    TR_TRY(check_reports(c, reports));
    struct tr_front_group s = { .color = color, .key = key, .n = n, .ranks = ranks, .values = values };
    s.rank = tr_split_pick(reports, base->size, base->rank, c->ranks, ranks, &s.leader);
    st = c->w->hooks->split(c, &s, &made);
    if (st != TR_OK && made)
        tr_front_close(&made->base);
    else if (made)
        *out = &made->base;
    else if (st == TR_OK && color >= 0)
        st = tr_comm_self.open(NULL, out);
out:
    free(reports);
    free(values);
    free(ranks);
    return st;
}

enum tr_status tr_front_reserve(struct tr_comm *base, size_t bytes, void **out)
{
    struct tr_front *w = ((struct tr_front_comm *)base)->w;
    tr_front_enter(w);
    enum tr_status st = tr_comm_carve(w->arena, w->arena_bytes, bytes, &w->reserved_bytes, out);
    tr_front_leave(w);
    return st;
}

void tr_front_close(struct tr_comm *base)
{
    struct tr_front_comm *c = (struct tr_front_comm *)base, **at;
    struct tr_front *w = c->w;
    tr_front_enter(w);
    for (struct tr_front_channel **p = &w->active; *p;) /* no caller will wait for its operations any more */
        if ((*p)->comm == c) {
            *p = (*p)->next_active;
            w->is_abandoned = true;
        } else {
            p = &(*p)->next_active;
        }
    for (at = &w->comms; *at != c;)
        at = &(*at)->next;
    *at = c->next;
    bool is_last = w->comms == NULL;
    tr_front_leave(w);
    w->hooks->close(c, is_last);
}

/* ---- operations ---- */

static enum tr_status advance_channel(struct tr_front_channel *ch, bool *has_moved)
{
    const struct tr_front_hooks *h = ch->comm->w->hooks;
    struct tr_front_op *op = ch->first;
    enum tr_status st = TR_OK;
    if (op->state == TR_FRONT_QUEUED) {
        st = h->announce(ch, op);
        *has_moved = *has_moved || op->state != TR_FRONT_QUEUED;
    }
    return st == TR_OK && op->state != TR_FRONT_QUEUED ? h->advance(ch, op, has_moved) : st;
}

enum tr_status tr_front_advance(struct tr_front *w, bool *has_moved)
{
    enum tr_status st = w->hooks->listen ? w->hooks->listen(w) : TR_OK;
    for (struct tr_front_channel *ch = w->active, *next; ch && st == TR_OK; ch = next) {
        next = ch->next_active;
        st = advance_channel(ch, has_moved);
    }
    return st;
}

enum tr_status tr_front_look_again(struct tr_front *w, int n_times, bool *has_moved)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < n_times && st == TR_OK && !*has_moved; i++) {
        tr_cpu_pause();
        st = tr_front_advance(w, has_moved);
    }
    return st;
}

void tr_front_complete(struct tr_front_channel *ch, struct tr_front_op *op)
{
    struct tr_front_channel **p = &ch->comm->w->active;
    ch->first = op->next;
    op->state = TR_FRONT_FREE;
    if (ch->first)
        return;
    while (*p != ch)
        p = &(*p)->next_active;
    *p = ch->next_active;
}

static bool is_open(const struct tr_front_op *op, tr_ticket t)
{
    return op->ticket == t && op->state != TR_FRONT_FREE;
}

static void publish(struct tr_front *w, const struct tr_front_channel *ch)
{
    w->waits_in = ch;
    if (w->hooks->publish)
        w->hooks->publish(w);
}

static enum tr_status rest(struct tr_front *w, int64_t us)
{
    if (w->hooks->rest)
        return w->hooks->rest(w, us);
    struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };
    pthread_mutex_unlock(&w->lock);
    nanosleep(&t, NULL);
    pthread_mutex_lock(&w->lock);
    return TR_OK;
}

/* Waits, unless t is over and op holds another operation. The deadline counts from the last time something moved. */
static enum tr_status finish(struct tr_front *w, const struct tr_front_op *op, tr_ticket t)
{
    enum tr_status st = TR_OK;
    int64_t waited_us = 0, last_us = 0;
    bool is_published = false;
    const struct tr_front_channel *ch = op->channel;
    for (int n_rests = 0; is_open(op, t); n_rests++) {
        bool has_moved = false;
        TR_TRY(tr_front_advance(w, &has_moved));
        if (w->hooks->spin)
            TR_TRY(w->hooks->spin(w, n_rests, &has_moved));
        if (has_moved) {
            waited_us = last_us = 0;
            n_rests = -1;
            continue;
        }
        int64_t now_us = tr_clock_us();
        if (last_us) /* a longer gap: this rank itself was stopped, which is no fault of a peer */
            waited_us += tr_min64(now_us - last_us, 2 * TR_FRONT_SLICE_US);
        last_us = now_us;
        is_published = true;
        TR_TRY(w->hooks->look(w, ch, waited_us, now_us));
        publish(w, ch);
        TR_TRY(rest(w, tr_min64(w->rest_us, tr_max64(w->timeout_us - waited_us, 1000))));
    }
out:
    if (is_published)
        publish(w, NULL);
    return st;
}

/* A send or a receive becomes a broadcast on the channel of its pair. */
static struct tr_front_channel *channel_of(const struct tr_front_comm *c, struct tr_coll *coll)
{
    enum tr_coll_kind kind = coll->kind;
    int peer = coll->root;
    if (kind != TR_SEND && kind != TR_RECV)
        return tr_front_all(c);
    coll->kind = TR_BROADCAST;
    coll->root = 0;
    if (kind == TR_RECV) {
        coll->in = NULL;
        return tr_front_from(c, peer);
    }
    coll->out = NULL;
    return tr_front_to(c, peer);
}

static enum tr_status check_count(const struct tr_front *w, const struct tr_coll *coll)
{
    bool is_bounded = coll->kind <= TR_ALL_TO_ALL && coll->kind != TR_BROADCAST && !coll->is_elsewhere;
    if (!is_bounded || !w->n_elements_max || coll->count <= w->n_elements_max)
        return TR_OK;
    return tr_fail(TR_USAGE, "%s %s of %zu elements: engine %s takes at most %zu; cut it into several",
                   tr_coll_name(coll->kind), coll->site ? coll->site : "", coll->count, w->ops->name,
                   w->n_elements_max);
}

/* Puts it into the queue of its channel. The operation whose place it takes was posted TR_FRONT_OPS_MAX ago and must be
 * over. */
static enum tr_status put(struct tr_front_comm *c, const struct tr_coll *coll, struct tr_front_op **out)
{
    struct tr_front *w = c->w;
    struct tr_front_op *op = &c->ops[c->n_posted % TR_FRONT_OPS_MAX];
    TR_PASS(tr_front_fault(w));
    TR_PASS(check_count(w, coll));
    TR_PASS(tr_front_failpoint(w, "comm.post"));
    if (op->state != TR_FRONT_FREE)
        TR_PASS(finish(w, op, op->ticket));
    *op = (struct tr_front_op){ .state = TR_FRONT_QUEUED, .ticket = c->n_posted++, .coll = *coll };
    struct tr_front_channel *ch = op->channel = channel_of(c, &op->coll);
    op->seq = ++ch->n_queued;
    op->is_small = tr_small_fits(&op->coll, ch->n, w->small_bytes);
    *out = op;
    if (ch->first) {
        ch->last->next = op;
        ch->last = op;
        return TR_OK;
    }
    ch->first = ch->last = op;
    ch->next_active = w->active;
    w->active = ch;
    return w->hooks->announce(ch, op); /* at once: the peers may need nothing more from this rank */
}

enum tr_status tr_front_post(struct tr_comm *base, const struct tr_coll *coll, tr_ticket *out)
{
    struct tr_front_comm *c = (struct tr_front_comm *)base;
    struct tr_front_op *op;
    tr_front_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        *out = op->ticket;
    tr_front_leave(c->w);
    return st;
}

static enum tr_status wait_for(struct tr_front *w, const struct tr_front_op *op, tr_ticket t)
{
    enum tr_status st = tr_front_failpoint(w, "comm.wait");
    return st == TR_OK ? finish(w, op, t) : st;
}

enum tr_status tr_front_wait(struct tr_comm *base, tr_ticket t)
{
    struct tr_front_comm *c = (struct tr_front_comm *)base;
    tr_front_enter(c->w);
    enum tr_status st = wait_for(c->w, &c->ops[t % TR_FRONT_OPS_MAX], t);
    tr_front_leave(c->w);
    return st;
}

enum tr_status tr_front_run(struct tr_comm *base, const struct tr_coll *coll)
{
    struct tr_front_comm *c = (struct tr_front_comm *)base;
    struct tr_front_op *op;
    tr_front_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        st = wait_for(c->w, op, op->ticket);
    tr_front_leave(c->w);
    return st;
}

enum tr_status tr_front_check(struct tr_comm *base)
{
    struct tr_front *w = ((struct tr_front_comm *)base)->w;
    tr_front_enter(w);
    enum tr_status st = tr_front_fault(w);
    if (st == TR_OK && w->hooks->listen)
        st = w->hooks->listen(w);
    w->checked_us = 0;
    if (st == TR_OK)
        st = w->hooks->look(w, NULL, 0, tr_clock_us());
    tr_front_leave(w);
    return st;
}

void tr_front_abort(struct tr_comm *base, const char *cause)
{
    struct tr_front *w = ((struct tr_front_comm *)base)->w;
    tr_front_enter(w);
    (void)tr_front_raise(w, TR_PEER, "rank %d aborted: %s", w->rank, cause);
    tr_front_leave(w);
}

/* ---- callers and the helper ---- */

/* Is there work that does not only wait for the peers' announcements? */
static bool wants_helper(const struct tr_front *w)
{
    if (w->idle_us || !w->active || atomic_load_explicit(w->fault, memory_order_relaxed))
        return false;
    for (const struct tr_front_channel *ch = w->active; ch; ch = ch->next_active)
        if (ch->first->next || !ch->first->is_small || ch->first->state == TR_FRONT_QUEUED)
            return true;
    return false;
}

static void kick_helper(struct tr_front *w)
{
    atomic_fetch_add(&w->kick, 1);
    (void)syscall(SYS_futex, &w->kick, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void tr_front_enter(struct tr_front *w)
{
    atomic_fetch_add(&w->n_callers, 1);
    pthread_mutex_lock(&w->lock);
}

void tr_front_leave(struct tr_front *w)
{
    bool needs_help = wants_helper(w);
    pthread_mutex_unlock(&w->lock);
    if (atomic_fetch_sub(&w->n_callers, 1) == 1 && needs_help)
        kick_helper(w);
}

/* An error is left to the caller that waits: it will find the same fault and report it. */
static void *help(void *arg)
{
    struct tr_front *w = arg;
    const int64_t idle_us = w->idle_us ? w->idle_us : 1000000;
    const struct timespec idle = { .tv_sec = idle_us / 1000000, .tv_nsec = idle_us % 1000000 * 1000 };
    for (;;) {
        unsigned kick = atomic_load(&w->kick);
        bool is_busy = false, has_moved = false;
        pthread_mutex_lock(&w->lock);
        bool is_closing = w->is_closing;
        if (!is_closing && atomic_load(&w->n_callers) == 0 && !atomic_load(w->fault)) {
            is_busy = tr_front_advance(w, &has_moved) == TR_OK && w->active;
            if (is_busy && !has_moved)
                (void)rest(w, w->help_us);
        }
        pthread_mutex_unlock(&w->lock);
        if (is_closing)
            return NULL;
        if (!is_busy)
            (void)syscall(SYS_futex, &w->kick, FUTEX_WAIT_PRIVATE, kick, &idle, NULL, 0);
    }
}

enum tr_status tr_front_start_helper(struct tr_front *w)
{
    w->has_helper = tr_thread_start(&w->helper, help, w) == 0;
    return w->has_helper ? TR_OK : tr_fail(TR_NOMEM, "rank %d: no thread for communication in the background", w->rank);
}

void tr_front_stop_helper(struct tr_front *w)
{
    if (!w->has_helper)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_closing = true;
    pthread_mutex_unlock(&w->lock);
    kick_helper(w);
    pthread_join(w->helper, NULL);
    w->has_helper = false;
}
