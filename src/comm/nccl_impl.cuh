/* nccl_impl.cuh - NCCL, which is opened at run time, and the state of a world of GPU ranks. */
#ifndef TR_COMM_NCCL_IMPL_CUH
#define TR_COMM_NCCL_IMPL_CUH

#include <cuda_runtime.h>
#include <nccl.h>
extern "C" {
#include "comm/comm_impl.h"
}
#include <pthread.h>

/* Functions of the library: one row each; types come from its header. */
#define TR_NCCL_LIST(X)                                                                                                \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclCommFinalize)                                                                                                \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclAllReduce)                                                                                                   \
    X(ncclReduceScatter)                                                                                               \
    X(ncclAllGather)                                                                                                   \
    X(ncclBroadcast)                                                                                                   \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)                                                                                                        \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)

/* Functions that not every version has: without them the library copies through its own buffers. */
#define TR_NCCL_MAYBE_LIST(X)                                                                                          \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)

struct nccl_api {
#define X(f) decltype(&::f) f;
    TR_NCCL_LIST(X)
    TR_NCCL_MAYBE_LIST(X)
#undef X
};

enum { N_OPS_MAX = 128, N_SPANS_MAX = 256, N_PIECES_MAX = 16, NCCL_TEXT_MAX = 1024, N_LINKS = 5 };

/* A communicator of the library with the stream its operations run on, one after the other. */
struct nccl_link {
    ncclComm_t comm;
    cudaStream_t stream;
    void *known[N_PIECES_MAX]; /* registered memory, which the library sends and receives in place; or NULL */
};

/* The links of a communicator: one for all ranks, and one for each direction to its two neighbours, since a send must
 * wait for nothing but its receive. */
enum nccl_link_id { LINK_ALL, LINK_TO_NEXT, LINK_FROM_PREV, LINK_TO_PREV, LINK_FROM_NEXT };

struct nccl_op {
    tr_ticket ticket, host; /* host: the ticket in the host engine, which compares signatures */
    bool on_device, is_over;
    int64_t posted_us;
    enum tr_coll_kind kind;
    const char *site;
    cudaEvent_t done;
};

struct nccl_span { /* a time in which the compute stream waits */
    cudaEvent_t from, to;
    bool is_open;
};

struct nccl_world;

struct nccl_comm {
    struct tr_comm base;
    struct tr_comm *host; /* the same ranks: compares signatures, and moves what is in host memory */
    struct nccl_world *w;
    struct nccl_link link[N_LINKS];
    bool has_all, has_pairs, has_events;
    tr_ticket n_posted;
    struct nccl_op ops[N_OPS_MAX];
    struct nccl_span spans[N_SPANS_MAX];
    int n_spans;
    int64_t held_up_us; /* by closed spans, and by collectives of host memory */
    struct nccl_comm *next;
};

/* One per process and world. `lock` guards the list, the links and the ops; the watcher takes it too. */
struct nccl_world {
    struct nccl_api fn;
    int rank, size, ordinal;
    int64_t timeout_us, moved_us;
    cudaStream_t compute;
    struct {
        char *base;
        size_t bytes;
    } piece[N_PIECES_MAX]; /* reserved: a buffer in one of them is on the device */
    int n_pieces;
    char *spot; /* a few bytes for the first messages */
    cudaEvent_t ready;
    struct nccl_comm *comms;
    pthread_mutex_t lock, fault_lock;
    pthread_t watcher;
    bool has_watcher, is_aborted;
    volatile bool is_closing;
    volatile enum tr_status fault;
    char fault_text[NCCL_TEXT_MAX];
};

/* nccl_health.cu: faults, missing ranks, and the thread that ends what hangs. */
enum tr_status tr_nccl_fault(const struct nccl_world *w); /* TR_OK, or what was raised, as this thread's error */
enum tr_status tr_nccl_raise(struct nccl_comm *c, enum tr_status st, const char *fmt, ...) TR_PRINTF(3, 4);
/* The result of a call of the library; waits for a call that goes on in the background. */
enum tr_status tr_nccl_result(struct nccl_comm *c, const struct nccl_link *l, ncclResult_t r, const char *what);
enum tr_status tr_nccl_start_watcher(struct nccl_world *w);
void tr_nccl_stop_watcher(struct nccl_world *w);

/* nccl_links.cu: communicators of the library. */
enum tr_status tr_nccl_load(struct nccl_api *fn);
enum tr_status tr_nccl_neighbours(struct tr_comm *host); /* before the library starts, because ranks may share a GPU */
enum tr_status tr_nccl_open_links(struct nccl_comm *c, bool is_pair);
void tr_nccl_close_links(struct nccl_comm *c);

#endif
