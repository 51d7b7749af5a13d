/* nccl_health.cu - what went wrong between GPU ranks, and the thread that ends what hangs.
 *
 * A collective whose peer is gone spins on the GPU for ever, and a caller that waits for the GPU waits with it. So a
 * watcher looks at the host's engine (a rank died, or raised a fault), at the library's own errors, and at the age of
 * the operations under way. On a fault it aborts every communicator, which ends their kernels: the caller's wait
 * returns, and its next call returns the fault.
 */
#include "comm/nccl_impl.cuh"
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { LOOK_US = 50 * 1000, NAP_US_MAX = 2000, N_CHECKS = 50, CHECK_US = 20 * 1000 };

enum tr_status tr_nccl_fault(const struct nccl_world *w)
{
    return w->fault == TR_OK ? TR_OK : tr_fail(w->fault, "%s", w->fault_text);
}

enum tr_status tr_nccl_raise(struct nccl_comm *c, enum tr_status st, const char *fmt, ...)
{
    struct nccl_world *w = c->w;
    char text[NCCL_TEXT_MAX - 32];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&w->fault_lock);
    bool is_first = w->fault == TR_OK;
    if (is_first) {
        (void)snprintf(w->fault_text, sizeof w->fault_text, "rank %d: %s", w->rank, text);
        w->fault = st;
    }
    pthread_mutex_unlock(&w->fault_lock);
    if (is_first)
        tr_comm_abort(c->host,
                      text); /* reports it to the others; if one of them raised a fault first, that one stays */
    return tr_nccl_fault(w);
}

/* Takes over a fault of the host's engine: a rank that died, or raised a fault. */
static enum tr_status host_fault(struct nccl_comm *c)
{
    struct nccl_world *w = c->w;
    enum tr_status st = tr_comm_check(c->host);
    if (st == TR_OK)
        return st;
    pthread_mutex_lock(&w->fault_lock);
    if (w->fault == TR_OK) {
        (void)snprintf(w->fault_text, sizeof w->fault_text, "%s", tr_error_text());
        w->fault = st;
    }
    pthread_mutex_unlock(&w->fault_lock);
    return st;
}

enum tr_status tr_nccl_result(struct nccl_comm *c, const struct nccl_link *l, ncclResult_t r, const char *what)
{
    struct nccl_world *w = c->w;
    int64_t until = tr_clock_us() + w->timeout_us;
    for (useconds_t nap_us = 5; r == ncclInProgress; nap_us = nap_us < NAP_US_MAX ? 2 * nap_us : nap_us) {
        ncclResult_t query = w->fn.ncclCommGetAsyncError(l->comm, &r);
        if (query != ncclSuccess)
            r = query;
        if (r != ncclInProgress)
            break;
        if (w->fault != TR_OK)
            return tr_nccl_fault(w);
        if (tr_clock_us() > until)
            return tr_nccl_raise(c, TR_TIMEOUT, "nccl: %s did not end within %.1f s", what,
                                 (double)w->timeout_us * 1e-6);
        usleep(nap_us);
    }
    if (r == ncclSuccess)
        return TR_OK;
    for (int i = 0; i < N_CHECKS;
         i++, usleep(CHECK_US)) /* a lost connection is a lost rank, and the host engine will know which */
        if (host_fault(c) != TR_OK)
            return tr_nccl_fault(w);
    const char *more = w->fn.ncclGetLastError(NULL);
    return tr_nccl_raise(c, TR_PEER, "nccl: %s: %s (%s)", what, w->fn.ncclGetErrorString(r),
                         more && *more ? more : "no details; set NCCL_DEBUG=WARN");
}

/* Raises a fault when an operation runs for too long. Time counts from the last operation that ended. */
static void look_at_ops(struct nccl_comm *c, int64_t now_us)
{
    struct nccl_world *w = c->w;
    for (int i = 0; i < N_OPS_MAX; i++) {
        struct nccl_op *op = &c->ops[i];
        if (!op->on_device || op->is_over)
            continue;
        if (cudaEventQuery(op->done) == cudaSuccess) {
            op->is_over = true;
            w->moved_us = now_us;
        } else if (now_us - (op->posted_us > w->moved_us ? op->posted_us : w->moved_us) > w->timeout_us) {
            (void)tr_nccl_raise(
                c, TR_TIMEOUT,
                "%s #%llu at \"%s\" did not end on the gpu within %.1f s, although no rank is known to be "
                "gone: is a link down?",
                tr_coll_name(op->kind), (unsigned long long)op->ticket, op->site ? op->site : "",
                (double)w->timeout_us * 1e-6);
            return;
        }
    }
}

static void look(struct nccl_world *w)
{
    int64_t now_us = tr_clock_us();
    bool has_checked = false;
    for (struct nccl_comm *c = w->comms; c && w->fault == TR_OK; c = c->next) {
        if (!has_checked && c->base.size > 1)
            (void)host_fault(c);
        has_checked = has_checked || c->base.size > 1;
        for (int i = 0; i < N_LINKS && w->fault == TR_OK; i++) {
            ncclResult_t r = ncclSuccess;
            if (c->link[i].comm && w->fn.ncclCommGetAsyncError(c->link[i].comm, &r) == ncclSuccess &&
                r != ncclInProgress && r != ncclSuccess)
                (void)tr_nccl_result(c, &c->link[i], r, "a collective");
        }
        if (w->fault == TR_OK)
            look_at_ops(c, now_us);
    }
}

static void abort_links(struct nccl_world *w)
{
    for (struct nccl_comm *c = w->comms; c; c = c->next)
        for (int i = 0; i < N_LINKS; i++) {
            if (c->link[i].comm)
                (void)w->fn.ncclCommAbort(c->link[i].comm);
            c->link[i].comm = NULL;
        }
    w->is_aborted = true;
}

static void *watch(void *arg)
{
    struct nccl_world *w = (struct nccl_world *)arg;
    (void)cudaSetDevice(w->ordinal);
    while (!w->is_closing) {
        usleep(LOOK_US);
        pthread_mutex_lock(&w->lock);
        if (w->fault == TR_OK && !w->is_closing)
            look(w);
        if (w->fault != TR_OK && !w->is_aborted)
            abort_links(w);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

enum tr_status tr_nccl_start_watcher(struct nccl_world *w)
{
    w->has_watcher = tr_thread_start(&w->watcher, watch, w) == 0;
    return w->has_watcher ? TR_OK : tr_fail(TR_NOMEM, "no thread to watch the communication of the gpu");
}

void tr_nccl_stop_watcher(struct nccl_world *w)
{
    w->is_closing = true;
    if (w->has_watcher)
        pthread_join(w->watcher, NULL);
    w->has_watcher = false;
}
