/* mpi.c - the row of the mpi engine: loading the library's module, opening, splitting, posting and waiting.
 *
 * Which module: Open MPI's if its mpirun started us, else MPICH's, which also starts from a bare PMI service (that of
 * `trireme launch`). MPI's few calls that block (init, split, finalize) run in a thread of their own, which is left
 * behind if they outlast the bound: the world is then over, and MPI is not called again. MPI starts once a process.
 */
#include "comm/mpi_impl.h"
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CLOSE_US = 10 * 1000 * 1000, LINGER_US = 50 * 1000 };

static const char *library_name(void)
{
    return getenv("OMPI_COMM_WORLD_RANK") ? "openmpi" : "mpich";
}

/* libtrireme_NAME.so beside this program, or where it was installed. */
static const struct tr_mpi_api *load(const char *name, char *why, size_t n_why)
{
    char self[TR_PATH_MAX / 2] = "", path[TR_PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = n > 0 ? strrchr(self, '/') : NULL;
    if (slash)
        *slash = 0;
    const char *const dirs[] = { self, TR_MODULE_DIR };
    (void)snprintf(why, n_why, "libtrireme_%s.so is not beside the program", name);
    for (size_t i = 0; i < TR_COUNT_OF(dirs); i++) {
        (void)snprintf(path, sizeof path, "%s/libtrireme_%s.so", dirs[i], name);
        if (access(path, R_OK) != 0)
            continue;
        void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own plug-ins look for its symbols */
        const struct tr_mpi_api *api = module ? dlsym(module, TR_MPI_API_SYMBOL) : NULL;
        if (api && api->version == TR_MPI_API_VERSION)
            return api;
        const char *error = api ? "it is of another build" : dlerror();
        (void)snprintf(why, n_why, "%s: %s", path, error ? error : "no reason given");
    }
    return NULL;
}

static const char *can_use(const struct tr_comm_env *env)
{
    static char why[TR_PATH_MAX + 256];
    static const char *const starters[] = { "PMI_FD", "PMI_PORT", "OMPI_COMM_WORLD_RANK" };
    bool is_started = env->size == 1;
    for (size_t i = 0; i < TR_COUNT_OF(starters); i++)
        is_started = is_started || getenv(starters[i]);
    if (!is_started)
        return "no MPI started this process; use mpirun, or trireme launch with --comm mpi";
    return load(library_name(), why, sizeof why) ? NULL : why;
}

struct errand {
    int (*call)(void *ctx);
    void *ctx;
    int code;
    atomic_bool is_done;
};

static void *run_errand(void *arg)
{
    struct errand *e = arg;
    e->code = e->call(e->ctx);
    atomic_store(&e->is_done, true);
    return NULL;
}

/* The errand outlives this call when it does not come back, hence malloc; so must ctx. */
enum tr_status tr_mpi_blocking(struct mpi_world *w, const char *what, int (*call)(void *ctx), void *ctx)
{
    pthread_t thread;
    struct errand *e = calloc(1, sizeof *e);
    if (!e)
        return tr_fail(TR_NOMEM, "no memory for %s", what);
    e->call = call;
    e->ctx = ctx;
    if (pthread_create(&thread, NULL, run_errand, e) != 0) {
        free(e);
        return tr_fail(TR_NOMEM, "no thread for %s", what);
    }
    int64_t until = tr_clock_us() + w->timeout_us;
    for (int64_t nap_us = 50; !atomic_load(&e->is_done); nap_us = tr_min64(2 * nap_us, 5000)) {
        if (tr_clock_us() > until) {
            w->is_stuck = true;
            pthread_detach(thread);
            return tr_mpi_raise(w, TR_TIMEOUT, "rank %d: %s: %s did not come back within %.1f s; did all ranks start?",
                                w->rank, w->api->name, what, (double)w->timeout_us * 1e-6);
        }
        usleep((useconds_t)nap_us);
    }
    pthread_join(thread, NULL);
    int code = e->code;
    free(e);
    return code == 0 ? TR_OK : tr_mpi_failed(w, what, code);
}

struct start { /* what init and split give back */
    const struct tr_mpi_api *api;
    int rank, size;
    tr_mpi_comm from, data, control;
};

static int call_init(void *ctx)
{
    struct start *s = ctx;
    return s->api->init(&s->rank, &s->size, &s->data, &s->control);
}

static int call_split(void *ctx) /* rank and size: color and key */
{
    struct start *s = ctx;
    return s->api->split(s->from, s->rank, s->size, &s->data);
}

static int call_finalize(void *ctx)
{
    const struct start *s = ctx;
    return s->api->finalize();
}

static void set_channels(struct mpi_comm *c, struct note *notes)
{
    int n = c->base.size, me = c->base.rank;
    c->all = (struct mpi_channel){ .comm = c, .n = n, .me = me, .peer = -1, .theirs = notes };
    for (int i = 0; i < n; i++) {
        c->to[i] = (struct mpi_channel){ .comm = c, .n = 2, .me = 0, .peer = i };
        c->from[i] = (struct mpi_channel){ .comm = c, .n = 2, .me = 1, .peer = i, .theirs = notes + n + i };
    }
}

static void free_comm(struct mpi_comm *c)
{
    free(c->all.theirs);
    free(c->ranks);
    free(c->counts);
    free(c->gifts);
    free(c->scratch);
    free(c->to);
    free(c);
}

/* Takes over `ranks`, also when it fails. */
static enum tr_status open_comm(struct mpi_world *w, tr_mpi_comm handle, uint64_t id, int *ranks, int rank, int size,
                                struct tr_comm **out)
{
    struct mpi_comm *c = calloc(1, sizeof *c);
    size_t n = (size_t)size;
    struct note *notes = calloc(2 * n, sizeof *notes);
    if (c) {
        *c = (struct mpi_comm){ .w = w, .handle = handle, .id = id, .ranks = ranks };
        c->base = (struct tr_comm){ .ops = &tr_comm_mpi, .rank = rank, .size = size };
        c->to = calloc(2 * n, sizeof *c->to);
        c->counts = calloc(4 * n, sizeof *c->counts);
        c->gifts = calloc(n, sizeof *c->gifts);
        c->scratch = malloc(MPI_SCRATCH_BYTES);
    }
    if (!c || !notes || !c->to || !c->counts || !c->gifts || !c->scratch) {
        if (c)
            free_comm(c);
        else
            free(ranks);
        free(notes);
        return tr_mpi_raise(w, TR_NOMEM, "rank %d: no memory for a communicator of %zu ranks", w->rank, n);
    }
    c->from = c->to + n;
    set_channels(c, notes);
    c->next = w->comms;
    w->comms = c;
    *out = &c->base;
    return TR_OK;
}

/* Nobody has anything to say any more. */
static bool stop_hearing(struct mpi_world *w)
{
    int is_done = 0;
    if (w->hearing && w->api->cancel(&w->hearing) != 0)
        return false;
    for (int64_t until = tr_clock_us() + w->timeout_us; w->hearing && !is_done && tr_clock_us() < until;)
        if (w->api->test(&w->hearing, &is_done) != 0)
            return false;
    return is_done || !w->hearing;
}

/* A PMI-1 server is told that this process is through, in MPI's place. MPICH's own finalize may never end over TCP: a
 * rank that has closed its connections waits for the others without serving those who still close theirs. */
static bool leave_pmi(const struct mpi_world *w)
{
    static const char bye[] = "cmd=finalize\n";
    const char *text = getenv("PMI_FD");
    char answer[64];
    int64_t fd;
    if (strcmp(w->api->name, "mpich") != 0 || !text || tr_parse_int(text, 0, INT_MAX, &fd) != TR_OK)
        return false;
    struct pollfd p = { .fd = (int)fd, .events = POLLIN };
    if (write((int)fd, bye, sizeof bye - 1) == (ssize_t)sizeof bye - 1 && poll(&p, 1, 2000) > 0)
        (void)!read((int)fd, answer, sizeof answer);
    return true;
}

static void close_world(struct mpi_world *w)
{
    struct start end = { .api = w->api };
    char cause[MPI_TEXT_MAX]; /* why this rank leaves is its own: what the others say of that comes later */
    (void)snprintf(cause, sizeof cause, "%s", tr_error_text());
    tr_mpi_stop_helper(w);
    if (w->fault_status != TR_OK) /* who has not heard of it yet would see this rank die, and blame it */
        tr_mpi_tell_fault(w);
    if (w->has_started && !w->is_stuck && w->fault_status == TR_OK) { /* together, or MPI would wait for the others */
        int64_t now_us = tr_clock_us(), until = now_us + tr_min64(w->timeout_us, CLOSE_US), heard_us = 0;
        while (now_us < until && !(heard_us && now_us - heard_us > LINGER_US) && tr_mpi_listen(w) == TR_OK) {
            usleep(50);
            now_us = tr_clock_us();
            if (!heard_us && tr_mpi_all_closed(w))
                heard_us = now_us; /* what we said ourselves may still be on its way */
        }
        if (w->fault_status == TR_OK && !leave_pmi(w) && stop_hearing(w))
            (void)tr_mpi_blocking(w, "finalize", call_finalize, &end);
    }
    if (cause[0])
        (void)tr_fail(TR_PEER, "%s", cause);
    for (int r = 0; w->peers && r < w->size; r++) {
        if (w->peers[r].fd >= 0)
            close(w->peers[r].fd);
        free(w->peers[r].reply.request);
    }
    if (w->is_stuck) /* a thread may still write here */
        return;
    free(w->fault.request);
    free(w->closed.request);
    free(w->question.request);
    free(w->peers);
    if (!w->is_used)
        free(w->arena);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static bool make_letters(struct mpi_world *w)
{
    struct letter *const letters[] = { &w->fault, &w->closed, &w->question };
    size_t n = (size_t)w->size;
    bool is_ok = (w->peers = calloc(n, sizeof *w->peers)) != NULL;
    for (size_t i = 0; is_ok && i < TR_COUNT_OF(letters); i++)
        is_ok = (letters[i]->request = calloc(n, sizeof(tr_mpi_request))) != NULL;
    for (size_t r = 0; is_ok && r < n; r++) {
        w->peers[r].fd = -1;
        is_ok = (w->peers[r].reply.request = calloc(n, sizeof(tr_mpi_request))) != NULL;
    }
    return is_ok;
}

static enum tr_status start_world(struct mpi_world *w, struct tr_comm **world)
{
    static struct start s; /* MPI starts once a process */
    enum tr_status st = TR_OK;
    if (s.api)
        TR_TRY(tr_fail(TR_USAGE, "MPI was started before in this process, and starts once"));
    s.api = w->api;
    TR_TRY(tr_mpi_blocking(w, "init", call_init, &s));
    if (s.rank != w->rank || s.size != w->size)
        TR_TRY(tr_fail(TR_USAGE,
                       "%s says rank %d of %d, the environment rank %d of %d; start the ranks by one launcher",
                       w->api->name, s.rank, s.size, w->rank, w->size));
    w->has_started = true;
    w->control = s.control;
    int *ranks = calloc((size_t)w->size, sizeof *ranks);
    if (!ranks)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for %d ranks", w->size));
    for (int r = 0; r < w->size; r++)
        ranks[r] = r;
    TR_TRY(open_comm(w, s.data, 1, ranks, w->rank, w->size, world));
    TR_TRY(tr_mpi_meet_peers(w, *world));
    TR_TRY(tr_mpi_start_helper(w));
out:
    return st;
}

static enum tr_status open_mpi(const struct tr_comm_env *env, struct tr_comm **world)
{
    char why[TR_PATH_MAX + 256];
    struct tr_comm *first = NULL;
    struct mpi_world *w = calloc(1, sizeof *w);
    if (!w)
        return tr_fail(TR_NOMEM, "no memory for a world of %d ranks", env->size);
    *w = (struct mpi_world){ .rank = env->rank, .size = env->size, .timeout_us = env->timeout_us, .n_spins = 40 };
    pthread_mutex_init(&w->lock, NULL);
    w->api = load(library_name(), why, sizeof why);
    w->arena_bytes = tr_round_up(env->arena_bytes, TR_COMM_ALIGN);
    w->arena = w->arena_bytes ? aligned_alloc(TR_COMM_ALIGN, w->arena_bytes) : NULL;
    enum tr_status st = TR_OK;
    if (!w->api)
        st = tr_fail(TR_USAGE, "%s", why);
    else if (!make_letters(w) || (w->arena_bytes && !w->arena))
        st = tr_fail(TR_NOMEM, "no memory for a world of %d ranks", env->size);
    else
        st = start_world(w, &first);
    if (st == TR_OK)
        *world = first;
    else if (first)
        tr_comm_close(first);
    else
        close_world(w);
    return st;
}

/* Everybody checks what everybody expects: MPI's own split would wait for the one that refuses. */
static enum tr_status check_split(struct mpi_comm *c, const struct tr_said *said)
{
    int64_t n = 0;
    int i = tr_split_wrong(said, c->base.size, &n);
    if (i < 0)
        return TR_OK;
    tr_mpi_enter(c->w);
    enum tr_status st =
        tr_mpi_raise(c->w, TR_USAGE, "split: color %" PRId64 " has %" PRId64 " ranks, rank %d expects %" PRId64,
                     said[i].color, n, c->ranks[i], said[i].n);
    tr_mpi_leave(c->w);
    return st;
}

/* Splits may come from any thread, like everything else: MPI's own is called under the lock. */
static enum tr_status split_handle(struct mpi_comm *c, int color, int key, int *ranks, int rank, int n,
                                   struct tr_comm **out)
{
    struct mpi_world *w = c->w;
    struct start *s = calloc(1, sizeof *s);
    if (!s) {
        free(ranks);
        return tr_fail(TR_NOMEM, "no memory to split");
    }
    *s = (struct start){ .api = w->api, .from = c->handle, .rank = color, .size = key };
    uint64_t word[3] = { c->id, (uint64_t)c->n_splits, (uint64_t)(int64_t)color };
    tr_mpi_enter(w);
    enum tr_status st = tr_mpi_fault(w);
    if (st == TR_OK)
        st = tr_mpi_blocking(w, "split", call_split, s);
    c->n_splits++;
    if (st == TR_OK && color >= 0 && n > 1) {
        st = open_comm(w, s->data, tr_hash(word, sizeof word).lo | 2, ranks, rank, n, out);
        ranks = NULL;
    }
    if (!w->is_stuck)
        free(s);
    tr_mpi_leave(w);
    free(ranks);
    if (st == TR_OK && color >= 0 && n == 1)
        st = tr_comm_self.open(NULL, out);
    return st;
}

static enum tr_status split(struct tr_comm *base, int color, int key, int n, struct tr_comm **out)
{
    enum tr_status st = TR_OK;
    struct mpi_comm *c = (struct mpi_comm *)base;
    size_t size = (size_t)base->size;
    struct tr_said *said = calloc(size, sizeof *said);
    int *ranks = calloc(size, sizeof *ranks);
    *out = NULL;
    if (!said || !ranks)
        TR_TRY(tr_fail(TR_NOMEM, "no memory to split %zu ranks", size));
    said[base->rank] = (struct tr_said){ color, key, n };
    TR_TRY(tr_comm_tell(base, &said[0].color, 3));
    TR_TRY(check_split(c, said));
    int leader, rank = tr_split_pick(said, base->size, base->rank, c->ranks, ranks, &leader);
    st = split_handle(c, color, key, ranks, rank, n, out);
    ranks = NULL;
out:
    free(said);
    free(ranks);
    return st;
}

static enum tr_status reserve(struct tr_comm *base, size_t bytes, void **out)
{
    struct mpi_world *w = ((struct mpi_comm *)base)->w;
    tr_mpi_enter(w);
    enum tr_status st = tr_comm_carve(w->arena, w->arena_bytes, bytes, &w->reserved_bytes, out);
    tr_mpi_leave(w);
    return st;
}

static struct mpi_channel *channel_of(struct mpi_comm *c, struct tr_coll *coll)
{
    struct mpi_channel *ch = coll->kind == TR_SEND   ? &c->to[coll->root]
                             : coll->kind == TR_RECV ? &c->from[coll->root]
                                                     : &c->all;
    if (ch != &c->all) {
        coll->kind = TR_BROADCAST;
        coll->root = 0;
    }
    return ch;
}

/* Puts it in its queue. The operation it displaces was posted MPI_OPS_MAX ago and must be over. */
static enum tr_status put(struct mpi_comm *c, const struct tr_coll *coll, struct mpi_op **out)
{
    enum tr_status st = TR_OK;
    struct mpi_op *op = &c->ops[c->n_posted % MPI_OPS_MAX];
    TR_TRY(tr_mpi_fault(c->w));
    if (coll->count > INT_MAX && !coll->is_elsewhere && coll->kind != TR_BROADCAST && coll->kind != TR_SEND &&
        coll->kind != TR_RECV)
        TR_TRY(tr_fail(TR_USAGE, "%s %s of %zu elements: mpi takes at most %d", tr_coll_name(coll->kind),
                       coll->site ? coll->site : "", coll->count, INT_MAX));
    st = tr_failpoint("comm.post");
    if (st != TR_OK)
        return tr_mpi_raise(c->w, TR_PEER, "rank %d: %s", c->w->rank, tr_error_text());
    if (op->state != MPI_FREE)
        TR_TRY(tr_mpi_finish(op, op->ticket));
    *op = (struct mpi_op){ .ticket = c->n_posted, .coll = *coll };
    op->channel = channel_of(c, &op->coll);
    *out = op;
    c->n_posted++;
    TR_TRY(tr_mpi_enqueue(op));
out:
    return st;
}

static enum tr_status post(struct tr_comm *base, const struct tr_coll *coll, tr_ticket *out)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct mpi_op *op;
    tr_mpi_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        *out = op->ticket;
    tr_mpi_leave(c->w);
    return st;
}

static enum tr_status finish(struct mpi_comm *c, const struct mpi_op *op, tr_ticket t)
{
    enum tr_status st = tr_failpoint("comm.wait");
    if (st != TR_OK)
        return tr_mpi_raise(c->w, TR_PEER, "rank %d: %s", c->w->rank, tr_error_text());
    return tr_mpi_finish(op, t);
}

static enum tr_status wait_for(struct tr_comm *base, tr_ticket t)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    tr_mpi_enter(c->w);
    enum tr_status st = finish(c, &c->ops[t % MPI_OPS_MAX], t);
    tr_mpi_leave(c->w);
    return st;
}

static enum tr_status run(struct tr_comm *base, const struct tr_coll *coll)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct mpi_op *op;
    tr_mpi_enter(c->w);
    enum tr_status st = put(c, coll, &op);
    if (st == TR_OK)
        st = finish(c, op, op->ticket);
    tr_mpi_leave(c->w);
    return st;
}

static enum tr_status check(struct tr_comm *base)
{
    struct mpi_world *w = ((struct mpi_comm *)base)->w;
    tr_mpi_enter(w);
    enum tr_status st = tr_mpi_fault(w);
    if (st == TR_OK)
        st = tr_mpi_listen(w);
    w->checked_us = 0;
    if (st == TR_OK)
        st = tr_mpi_look_around(w, NULL, 0);
    tr_mpi_leave(w);
    return st;
}

static void abort_mpi(struct tr_comm *base, const char *cause)
{
    struct mpi_world *w = ((struct mpi_comm *)base)->w;
    tr_mpi_enter(w);
    (void)tr_mpi_raise(w, TR_PEER, "rank %d aborted: %s", w->rank, cause);
    tr_mpi_leave(w);
}

static void close_mpi(struct tr_comm *base)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct mpi_world *w = c->w;
    tr_mpi_enter(w);
    for (struct mpi_channel **p = &w->active; *p;) /* operations nobody waits for any more */
        if ((*p)->comm == c) {
            *p = (*p)->next_active;
            w->is_used = true;
        } else {
            p = &(*p)->next_active;
        }
    struct mpi_comm **at = &w->comms;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    bool is_last = w->comms == NULL;
    tr_mpi_leave(w);
    if (w->fault_status == TR_OK && !w->is_used)
        free_comm(c);
    if (is_last)
        close_world(w);
}

const struct tr_comm_ops tr_comm_mpi = { "mpi", can_use,  open_mpi, split,     reserve,   post,
                                         run,   wait_for, check,    abort_mpi, close_mpi, NULL };
