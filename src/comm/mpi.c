/* mpi.c - the mpi engine: loading the library's module, opening, splitting, closing, and the hooks.
 *
 * Which module: Open MPI's if its mpirun started this process, else MPICH's, which also starts from a bare PMI service
 * (that of `trireme launch`). MPI's few calls that block (init, split, finalize) run in a thread of their own, which is
 * left behind if they outlast the timeout: the world is then over, and MPI is not called again. MPI starts once a
 * process.
 */
#include "base/host.h"
#include "comm/mpi_impl.h"
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    CLOSE_US = 10 * 1000 * 1000, /* to wait for the others before finalize */
    LINGER_US = 50 * 1000,
    NAP_US = 50,   /* of a waiting caller between two looks */
    POLL_US = 200, /* of the helper while operations are under way */
    IDLE_US = 5000 /* of the helper otherwise */
};

struct tr_module tr_comm_modules[TR_COMM_MODULES] = {
    { .name = "mpich",
      .get = "copy it from the installation, name its directory in TRIREME_MODULES, or install MPI (apt-get "
             "install mpich libmpich-dev) and build again",
      .is_global = true },
    { .name = "openmpi", /* its plug-ins look for its symbols */
      .get = "copy it from the installation, name its directory in TRIREME_MODULES, or install MPI (apt-get "
             "install openmpi-bin libopenmpi-dev) and build again",
      .is_global = true },
};

static struct tr_module *module_of_launcher(void)
{
    return &tr_comm_modules[getenv("OMPI_COMM_WORLD_RANK") ? 1 : 0];
}

static const struct tr_mpi_api *load(struct tr_module *m)
{
    (void)setenv("UCX_DEBUG_SIGNO", "0", 0); /* UCX would take SIGHUP, which asks a rank to stop */
    return tr_module_symbol(m, TR_MPI_API_SYMBOL);
}

static const char *can_use(const struct tr_comm_env *env)
{
    static const char *const starters[] = { "PMI_FD", "PMI_PORT", "OMPI_COMM_WORLD_RANK" };
    bool is_started = env->size == 1;
    for (size_t i = 0; i < TR_COUNT_OF(starters); i++)
        is_started = is_started || getenv(starters[i]);
    if (!is_started)
        return "no MPI started this process; use mpirun, or trireme launch with --comm mpi";
    struct tr_module *m = module_of_launcher();
    return load(m) ? NULL : m->why;
}

struct mpi_errand {
    int (*call)(void *ctx);
    void *ctx;
    int code;
    atomic_bool is_done;
};

static void *run_errand(void *arg)
{
    struct mpi_errand *e = arg;
    e->code = e->call(e->ctx);
    atomic_store(&e->is_done, true);
    return NULL;
}

/* The errand outlives this call when it does not return, hence it is on the heap; ctx must outlive it too. */
enum tr_status tr_mpi_blocking(struct mpi_world *w, const char *what, int (*call)(void *ctx), void *ctx)
{
    pthread_t thread;
    struct mpi_errand *e = calloc(1, sizeof *e);
    if (!e)
        return tr_fail(TR_NOMEM, "rank %d: no memory for %s", w->front.rank, what);
    e->call = call;
    e->ctx = ctx;
    if (pthread_create(&thread, NULL, run_errand, e) != 0) {
        free(e);
        return tr_fail(TR_NOMEM, "rank %d: no thread for %s", w->front.rank, what);
    }
    int64_t until = tr_clock_us() + w->front.timeout_us;
    for (int64_t nap_us = 50; !atomic_load(&e->is_done); nap_us = tr_min64(2 * nap_us, 5000)) {
        if (tr_clock_us() > until) {
            w->is_stuck = true;
            pthread_detach(thread);
            return tr_front_raise(&w->front, TR_TIMEOUT,
                                  "rank %d: %s: %s did not return within %.1f s; did all ranks start?", w->front.rank,
                                  w->api->name, what, (double)w->front.timeout_us * 1e-6);
        }
        usleep((useconds_t)nap_us);
    }
    pthread_join(thread, NULL);
    int code = e->code;
    free(e);
    return code == 0 ? TR_OK : tr_mpi_failed(w, what, code);
}

struct mpi_start { /* what init and split give back */
    const struct tr_mpi_api *api;
    int rank, size;
    tr_mpi_comm from, data, control;
};

static int call_init(void *ctx)
{
    struct mpi_start *s = ctx;
    return s->api->init(&s->rank, &s->size, &s->data, &s->control);
}

static int call_split(void *ctx) /* rank and size: color and key */
{
    struct mpi_start *s = ctx;
    return s->api->split(s->from, s->rank, s->size, &s->data);
}

static int call_finalize(void *ctx)
{
    const struct mpi_start *s = ctx;
    return s->api->finalize();
}

static void free_comm(struct mpi_comm *c)
{
    free(c->announcements);
    free(c->counts);
    free(c->inputs);
    free(c->scratch);
    tr_front_free_comm(&c->base);
}

/* ranks NULL: the world. When it fails the communicator stays open, and closing it frees what it has. */
static enum tr_status open_handle(struct mpi_world *w, tr_mpi_comm handle, uint64_t id, const int *ranks, int rank,
                                  int size, struct tr_front_comm **out)
{
    TR_PASS(tr_front_open_comm(&w->front, sizeof(struct mpi_comm), ranks, rank, size, out));
    struct mpi_comm *c = (struct mpi_comm *)*out;
    size_t n = (size_t)size;
    c->handle = handle;
    c->id = id;
    c->announcements = calloc(2 * n, sizeof *c->announcements);
    c->counts = calloc(4 * n, sizeof *c->counts);
    c->inputs = calloc(n, sizeof *c->inputs);
    c->scratch = malloc(MPI_SCRATCH_BYTES);
    if (!c->announcements || !c->counts || !c->inputs || !c->scratch)
        return tr_front_raise(&w->front, TR_NOMEM, "rank %d: no memory for a communicator of %zu ranks", w->front.rank,
                              n);
    ((struct mpi_channel *)tr_front_all(&c->base))->theirs = c->announcements;
    for (size_t i = 0; i < n; i++)
        ((struct mpi_channel *)tr_front_from(&c->base, (int)i))->theirs = c->announcements + n + i;
    return TR_OK;
}

/* Takes back the receive for control messages, after the last one. */
static bool stop_listening(struct mpi_world *w)
{
    int is_done = 0;
    if (w->receiving && w->api->cancel(&w->receiving) != 0)
        return false;
    for (int64_t until = tr_clock_us() + w->front.timeout_us; w->receiving && !is_done && tr_clock_us() < until;)
        if (w->api->test(&w->receiving, &is_done) != 0)
            return false;
    return is_done || !w->receiving;
}

/* Reports to a PMI-1 server that this process is done, in MPI's place. MPICH's own finalize may never end over TCP: a
 * rank that has closed its connections waits for the others, and does not serve those that still close theirs. */
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
    struct mpi_start end = { .api = w->api };
    char cause[TR_FRONT_TEXT_MAX]; /* why this rank leaves; the others report later what they saw of it */
    (void)snprintf(cause, sizeof cause, "%s", tr_error_text());
    tr_front_stop_helper(&w->front);
    if (w->fault_status != TR_OK) /* a rank that does not know of it yet would see this rank die, and blame it */
        tr_mpi_report_fault(w);
    if (w->has_started && !w->is_stuck && w->fault_status == TR_OK) { /* together, or MPI would wait for the others */
        int64_t now_us = tr_clock_us(), until = now_us + tr_min64(w->front.timeout_us, CLOSE_US), closed_us = 0;
        while (now_us < until && !(closed_us && now_us - closed_us > LINGER_US) && tr_mpi_listen(&w->front) == TR_OK) {
            usleep(50);
            now_us = tr_clock_us();
            if (!closed_us && tr_mpi_all_closed(w))
                closed_us = now_us; /* our own report may still be on its way */
        }
        if (w->fault_status == TR_OK && !leave_pmi(w) && stop_listening(w))
            (void)tr_mpi_blocking(w, "finalize", call_finalize, &end);
    }
    if (cause[0])
        (void)tr_fail(TR_PEER, "%s", cause);
    for (int r = 0; w->peers && r < w->front.size; r++)
        free(w->peers[r].reply.request);
    if (w->is_stuck) /* a thread may still write here */
        return;
    free(w->fault.request);
    free(w->closed.request);
    free(w->query.request);
    free(w->peers);
    if (!w->front.is_abandoned) /* else MPI reads from its buffers and writes to them to the end */
        free(w->front.arena);
    tr_front_release(&w->front);
    free(w);
}

static bool make_messages(struct mpi_world *w)
{
    struct mpi_outgoing *const messages[] = { &w->fault, &w->closed, &w->query };
    size_t n = (size_t)w->front.size;
    bool is_ok = (w->peers = calloc(n, sizeof *w->peers)) != NULL;
    for (size_t i = 0; is_ok && i < TR_COUNT_OF(messages); i++)
        is_ok = (messages[i]->request = calloc(n, sizeof(tr_mpi_request))) != NULL;
    for (size_t r = 0; is_ok && r < n; r++) {
        w->front.peers[r].is_closed = &w->peers[r].is_closed;
        is_ok = (w->peers[r].reply.request = calloc(n, sizeof(tr_mpi_request))) != NULL;
    }
    return is_ok;
}

static enum tr_status start_world(struct mpi_world *w, struct tr_front_comm **world)
{
    static struct mpi_start s; /* MPI starts once a process */
    if (s.api)
        return tr_fail(TR_USAGE, "MPI was started before in this process, and it starts only once a process");
    s.api = w->api;
    TR_PASS(tr_mpi_blocking(w, "init", call_init, &s));
    if (s.rank != w->front.rank || s.size != w->front.size)
        return tr_fail(TR_USAGE,
                       "%s reports rank %d of %d, the environment rank %d of %d; start all ranks by one launcher",
                       w->api->name, s.rank, s.size, w->front.rank, w->front.size);
    w->has_started = true;
    w->control = s.control;
    TR_PASS(open_handle(w, s.data, 1, NULL, w->front.rank, w->front.size, world));
    TR_PASS(tr_mpi_meet_peers(w, &(*world)->base));
    return tr_front_start_helper(&w->front);
}

static const struct tr_front_hooks hooks;

/* UCX, under MPICH, maps its queues in /dev/shm without allocating them: where they do not fit, a rank ends by SIGBUS
 * in the middle of init. A rank looks at the size for all ranks of its host, and at what is free for itself alone,
 * because others may have taken theirs already. Open MPI allocates and copes. */
static enum tr_status check_shm(const struct tr_comm_env *env)
{
    enum { RANK_BYTES = 4352 << 10 }; /* measured: 4.12 MiB a rank of 2 to 8 */
    static const char *const users[] = { "all", "sm", "shm", "mm", "posix", "^" };
    const char *tls = getenv("UCX_TLS");
    bool uses_shm = !tls;
    for (size_t i = 0; tls && i < TR_COUNT_OF(users); i++)
        uses_shm = uses_shm || strstr(tls, users[i]);
    uint64_t n_local = (uint64_t)(env->n_local > 0 ? env->n_local : env->size), all = n_local * RANK_BYTES;
    uint64_t size = tr_host_disk_size("/dev/shm"), room = tr_host_disk_room("/dev/shm");
    char a[32], b[32], c[32];
    if (strcmp(module_of_launcher()->name, "mpich") != 0 || !uses_shm || env->size == 1 ||
        (size >= all && room >= RANK_BYTES))
        return TR_OK;
    return tr_fail(
        TR_USAGE,
        "MPI needs %s in /dev/shm for the %d ranks of this host, which has %s there, %s of it free; enlarge it "
        "(mount -o remount,size=1G /dev/shm, docker run --shm-size 1g), or use --comm shm on one host, or "
        "UCX_TLS=tcp,self",
        tr_human_bytes(all, a, sizeof a), (int)n_local, tr_human_bytes(size, b, sizeof b),
        tr_human_bytes(room, c, sizeof c));
}

static enum tr_status open_mpi(const struct tr_comm_env *env, struct tr_comm **world)
{
    struct tr_module *module = module_of_launcher();
    struct tr_front_comm *first = NULL;
    enum tr_status st = check_shm(env);
    struct mpi_world *w = st == TR_OK ? calloc(1, sizeof *w) : NULL;
    if (st != TR_OK)
        return st;
    if (!w)
        return tr_fail(TR_NOMEM, "rank %d: no memory for a world of %d ranks", env->rank, env->size);
    struct tr_front *f = &w->front;
    st = tr_front_init(f, &hooks, &tr_comm_mpi, env);
    f->small_bytes = MPI_SMALL_BYTES;
    f->n_elements_max = INT_MAX;
    f->rest_us = NAP_US;
    f->help_us = POLL_US;
    f->idle_us = IDLE_US;
    f->fault = &w->has_fault;
    f->arena_bytes = tr_round_up(env->arena_bytes, TR_COMM_ALIGN);
    f->arena = f->arena_bytes ? aligned_alloc(TR_COMM_ALIGN, f->arena_bytes) : NULL;
    w->n_spins = 40;
    w->api = load(module);
    if (st == TR_OK && !w->api)
        st = tr_fail(TR_USAGE, "%s", module->why);
    else if (st == TR_OK && (!make_messages(w) || (f->arena_bytes && !f->arena)))
        st = tr_fail(TR_NOMEM, "rank %d: no memory for a world of %d ranks", env->rank, env->size);
    else if (st == TR_OK)
        st = start_world(w, &first);
    if (st == TR_OK)
        *world = &first->base;
    else if (first)
        tr_comm_close(&first->base);
    else
        close_world(w);
    return st;
}

/* Splits may come from any thread, like every other call: MPI's own is called under the lock. */
static enum tr_status split(struct tr_front_comm *base, const struct tr_front_group *g, struct tr_front_comm **out)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct mpi_world *w = (struct mpi_world *)base->w;
    struct mpi_start *s = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "rank %d: no memory to split", base->w->rank);
    *s = (struct mpi_start){ .api = w->api, .from = c->handle, .rank = g->color, .size = g->key };
    uint64_t word[3] = { c->id, (uint64_t)c->n_splits, (uint64_t)(int64_t)g->color };
    tr_front_enter(base->w);
    enum tr_status st = tr_front_fault(base->w);
    if (st == TR_OK)
        st = tr_mpi_blocking(w, "split", call_split, s);
    c->n_splits++;
    if (st == TR_OK && g->color >= 0 && g->n > 1)
        st = open_handle(w, s->data, tr_hash(word, sizeof word).lo | 2, g->ranks, g->rank, g->n, out);
    if (!w->is_stuck)
        free(s);
    tr_front_leave(base->w);
    return st;
}

/* After a fault, or with operations under way, MPI may still use the buffers of a communicator: they stay. */
static void close_mpi(struct tr_front_comm *base, bool is_last)
{
    struct mpi_world *w = (struct mpi_world *)base->w;
    if (w->fault_status == TR_OK && !base->w->is_abandoned)
        free_comm((struct mpi_comm *)base);
    if (is_last)
        close_world(w);
}

static const struct tr_front_hooks hooks = { .channel_bytes = sizeof(struct mpi_channel),
                                             .announce = tr_mpi_announce,
                                             .advance = tr_mpi_advance,
                                             .listen = tr_mpi_listen,
                                             .spin = tr_mpi_spin,
                                             .look = tr_mpi_look,
                                             .fault = tr_mpi_fault,
                                             .raise = tr_mpi_raise,
                                             .split = split,
                                             .close = close_mpi };

const struct tr_comm_ops tr_comm_mpi = { "mpi", can_use, open_mpi, TR_FRONT_OPS };
