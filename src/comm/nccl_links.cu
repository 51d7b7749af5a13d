/* nccl_links.cu - loading NCCL, and making its communicators.
 *
 * All ranks of a group make a communicator together, at the first collective that needs it. Its id travels through the
 * host's engine, so every way of starting ranks works. Links are nonblocking: making one has a timeout and can be given
 * up. A pair of neighbours has a link for each direction. All links of a group are made and tried in one step: the
 * library connects two ranks inside the first message between them, and ranks around a ring would otherwise wait for
 * each other.
 */
#include "comm/nccl_impl.cuh"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CLOSE_US = 10 * 1000 * 1000, ID_WORDS = sizeof(ncclUniqueId) / sizeof(int64_t) };

enum tr_status tr_nccl_load(struct nccl_api *fn)
{
    static const char *const names[] = { "libnccl.so.2", "libnccl.so", NULL };
    void *so = tr_library_nvidia(names);
    bool is_whole = so != NULL;
#define X(f) is_whole = is_whole && (fn->f = (decltype(fn->f))dlsym(so, #f)) != NULL;
    TR_NCCL_LIST(X)
#undef X
#define X(f) fn->f = so ? (decltype(fn->f))dlsym(so, #f) : NULL;
    TR_NCCL_MAYBE_LIST(X)
#undef X
    return is_whole ? TR_OK
                    : tr_fail(TR_USAGE, "several ranks on GPUs need libnccl.so.2 (2.18 or later); put its folder into "
                                        "LD_LIBRARY_PATH, or use --device cpu");
}

static enum tr_status gather(struct tr_comm *host, void *all, size_t n_words_each, const char *site)
{
    struct tr_coll c = {};
    c.kind = TR_ALL_GATHER;
    c.dtype = TR_I64;
    c.in = (int64_t *)all + (size_t)host->rank * n_words_each;
    c.out = all;
    c.count = n_words_each * (size_t)host->size;
    c.site = site;
    return tr_comm_run(host, &c);
}

/* Where a rank runs. */
struct nccl_place {
    int64_t host, gpu;
};

static struct nccl_place my_place(void)
{
    char name[256] = "", bus[64] = "";
    int ordinal = 0;
    (void)gethostname(name, sizeof name - 1);
    (void)cudaGetDevice(&ordinal);
    (void)cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal);
    return nccl_place{ (int64_t)tr_hash(name, strlen(name)).lo, (int64_t)tr_hash(bus, strlen(bus)).lo };
}

/* The library refuses two ranks on one GPU of one host. Where the user wants that (tests, small machines), each rank
 * claims to be a host of its own, and they talk through sockets. Variables that the user has set stay. */
enum tr_status tr_nccl_neighbours(struct tr_comm *host)
{
    struct nccl_place *all = (struct nccl_place *)calloc((size_t)host->size, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "no memory for %d ranks", host->size);
    all[host->rank] = my_place();
    enum tr_status st = gather(host, all, sizeof *all / sizeof(int64_t), "where ranks run");
    bool is_shared = false, is_one_host = true;
    for (int i = 0; i < host->size; i++) {
        is_one_host = is_one_host && all[i].host == all[0].host;
        for (int j = 0; j < i; j++)
            is_shared = is_shared || (all[i].host == all[j].host && all[i].gpu == all[j].gpu);
    }
    free(all);
    if (st == TR_OK && is_shared) {
        char id[64];
        (void)snprintf(id, sizeof id, "trireme-%d-%d", (int)getpid(), host->rank);
        (void)setenv("NCCL_HOSTID", id, 0);
        (void)setenv("NCCL_IB_DISABLE", "1", 0);
        if (is_one_host)
            (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    return st;
}

/* Starts the stream and the communicator of a link, inside a group call. */
static ncclResult_t begin_link(struct nccl_world *w, struct nccl_link *l, int n, ncclUniqueId id, int rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int least = 0, greatest = 0;
    config.blocking = 0;
    (void)cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, greatest) != cudaSuccess)
        return ncclUnhandledCudaError;
    return w->fn.ncclCommInitRankConfig(&l->comm, n, id, rank, &config);
}

static enum tr_status open_all(struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    struct nccl_link *l = &c->link[LINK_ALL];
    ncclUniqueId id = {};
    if (c->base.rank == 0 && w->fn.ncclGetUniqueId(&id) != ncclSuccess)
        return tr_nccl_raise(c, TR_IO, "nccl could not make an id: %s", w->fn.ncclGetLastError(NULL));
    struct tr_coll x = {};
    x.kind = TR_BROADCAST;
    x.dtype = TR_I64;
    x.in = x.out = &id;
    x.count = ID_WORDS;
    x.site = "id of a communicator";
    TR_PASS(tr_comm_run(c->host, &x));
    return tr_nccl_result(c, l, begin_link(w, l, c->base.size, id, c->base.rank), "making a communicator");
}

/* Sends a first byte over every link. */
static enum tr_status try_out(struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    ncclResult_t r = w->fn.ncclGroupStart();
    for (int i = LINK_TO_NEXT; i < N_LINKS && r == ncclSuccess; i++) {
        struct nccl_link *l = &c->link[i];
        if (!l->comm)
            continue;
        bool sends = i == LINK_TO_NEXT || i == LINK_TO_PREV;
        r = sends ? w->fn.ncclSend(w->spot, 1, ncclInt8, 1, l->comm, l->stream)
                  : w->fn.ncclRecv(w->spot + 64 * i, 1, ncclInt8, 0, l->comm, l->stream);
        r = r == ncclInProgress ? ncclSuccess : r;
    }
    ncclResult_t end = w->fn.ncclGroupEnd();
    r = r == ncclSuccess ? end : r;
    enum tr_status st = TR_OK;
    for (int i = LINK_TO_NEXT; i < N_LINKS && st == TR_OK; i++)
        if (c->link[i].comm)
            st = tr_nccl_result(c, &c->link[i], r, "a first message");
    return st;
}

static enum tr_status open_pairs(struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    int n = c->base.size, me = c->base.rank, next = (me + 1) % n, prev = (me + n - 1) % n;
    ncclUniqueId(*ids)[2] = (ncclUniqueId(*)[2])calloc((size_t)n, sizeof *ids);
    if (!ids)
        return tr_fail(TR_NOMEM, "no memory for %d ranks", n);
    ncclResult_t r = w->fn.ncclGetUniqueId(&ids[me][0]);
    r = r == ncclSuccess && n > 2 ? w->fn.ncclGetUniqueId(&ids[me][1]) : r;
    enum tr_status st = gather(c->host, ids, 2 * ID_WORDS, "ids of pairs");
    if (st == TR_OK && r == ncclSuccess) {
        (void)w->fn.ncclGroupStart();
        r = begin_link(w, &c->link[LINK_TO_NEXT], 2, ids[me][0], 0);
        r = r == ncclSuccess || r == ncclInProgress ? begin_link(w, &c->link[LINK_FROM_PREV], 2, ids[prev][0], 1) : r;
        if (n > 2) { /* of two ranks, the next one is also the previous one */
            r = r == ncclSuccess || r == ncclInProgress ? begin_link(w, &c->link[LINK_TO_PREV], 2, ids[me][1], 0) : r;
            r = r == ncclSuccess || r == ncclInProgress ? begin_link(w, &c->link[LINK_FROM_NEXT], 2, ids[next][1], 1)
                                                        : r;
        }
        ncclResult_t end = w->fn.ncclGroupEnd();
        r = r == ncclSuccess || r == ncclInProgress ? end : r;
    }
    free(ids);
    for (int i = LINK_TO_NEXT; i < N_LINKS && st == TR_OK; i++)
        if (c->link[i].comm || i == LINK_TO_NEXT)
            st = tr_nccl_result(c, &c->link[i], r, "making the links of neighbours");
    return st == TR_OK ? try_out(c) : st;
}

static bool make_events(struct nccl_comm *c)
{
    bool is_ok = true;
    for (int i = 0; i < N_OPS_MAX && is_ok; i++)
        is_ok = cudaEventCreateWithFlags(&c->ops[i].done, cudaEventDisableTiming) == cudaSuccess;
    for (int i = 0; i < N_SPANS_MAX && is_ok; i++)
        is_ok = cudaEventCreate(&c->spans[i].from) == cudaSuccess && cudaEventCreate(&c->spans[i].to) == cudaSuccess;
    return is_ok;
}

/* Registers the arenas with the library. What it refuses to register, it copies. */
static void register_memory(const struct nccl_world *w, struct nccl_link *l)
{
    if (!l->comm || !w->fn.ncclCommRegister || !w->fn.ncclCommDeregister)
        return;
    for (int i = 0; i < w->n_pieces; i++)
        if (w->fn.ncclCommRegister(l->comm, w->piece[i].base, w->piece[i].bytes, &l->known[i]) != ncclSuccess)
            l->known[i] = NULL;
}

/* Before the communicator ends, and after its last operation. An aborted communicator deregisters by itself. */
static void deregister_memory(const struct nccl_world *w, struct nccl_link *l)
{
    int64_t until = tr_clock_us() + CLOSE_US;
    while (l->comm && w->fault == TR_OK && cudaStreamQuery(l->stream) == cudaErrorNotReady && tr_clock_us() < until)
        usleep(50);
    bool is_idle = l->comm && w->fault == TR_OK && cudaStreamQuery(l->stream) == cudaSuccess;
    for (int i = 0; i < w->n_pieces && is_idle; i++)
        if (l->known[i])
            (void)w->fn.ncclCommDeregister(l->comm, l->known[i]);
}

enum tr_status tr_nccl_open_links(struct nccl_comm *c, bool is_pair)
{
    bool *has = is_pair ? &c->has_pairs : &c->has_all;
    if (*has)
        return TR_OK;
    if (!c->has_events && !make_events(c))
        return tr_nccl_raise(c, TR_NOMEM, "the gpu has no events left for communication");
    c->has_events = true;
    enum tr_status st = is_pair ? open_pairs(c) : open_all(c);
    for (int i = 0; i < N_LINKS && st == TR_OK; i++)
        if ((i != LINK_ALL) == is_pair)
            register_memory(c->w, &c->link[i]);
    *has = st == TR_OK;
    return st;
}

/* Operations under way end first, within CLOSE_US; if a rank is gone, the link is aborted. */
static void close_link(struct nccl_world *w, struct nccl_link *l)
{
    deregister_memory(w, l);
    ncclResult_t r = l->comm && w->fault == TR_OK ? w->fn.ncclCommFinalize(l->comm) : ncclInternalError;
    for (int64_t until = tr_clock_us() + CLOSE_US; r == ncclInProgress && tr_clock_us() < until; usleep(50))
        if (w->fn.ncclCommGetAsyncError(l->comm, &r) != ncclSuccess)
            break;
    if (l->comm)
        (void)(r == ncclSuccess ? w->fn.ncclCommDestroy(l->comm) : w->fn.ncclCommAbort(l->comm));
    if (l->stream)
        (void)cudaStreamDestroy(l->stream);
    *l = nccl_link{};
}

void tr_nccl_close_links(struct nccl_comm *c)
{
    for (int i = 0; i < N_LINKS; i++)
        close_link(c->w, &c->link[i]);
    for (int i = 0; i < N_OPS_MAX && c->has_events; i++)
        (void)cudaEventDestroy(c->ops[i].done);
    for (int i = 0; i < N_SPANS_MAX && c->has_events; i++) {
        (void)cudaEventDestroy(c->spans[i].from);
        (void)cudaEventDestroy(c->spans[i].to);
    }
}
