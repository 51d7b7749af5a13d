/* nccl.cu - collectives of device memory by NCCL, above an engine of the host.
 *
 * The host's engine stays the control plane: ranks join through it, compare there what they have posted, and learn from
 * it which rank is missing. It also runs collectives of host memory. Collectives of memory that was reserved here run
 * on the GPU: a post starts one on the link's stream, behind the work that the compute stream has so far; a wait makes
 * the compute stream wait for it, and the caller goes on. Sums are NCCL's, in its order: the same on all ranks and from
 * run to run. Each communicator has its own stream, because comm.h promises no order between two of them.
 */
#include "comm/nccl_impl.cuh"
#include <stdlib.h>

static struct nccl_comm *nccl_of(struct tr_comm *c)
{
    return (struct nccl_comm *)c;
}

static bool is_on_device(const struct nccl_world *w, const void *p)
{
    for (int i = 0; i < w->n_pieces; i++)
        if ((uintptr_t)p - (uintptr_t)w->piece[i].base < w->piece[i].bytes)
            return true;
    return false;
}

static ncclDataType_t type_of(enum tr_dtype d)
{
    switch (d) {
    case TR_BF16:
        return ncclBfloat16;
    case TR_F16:
        return ncclFloat16;
    case TR_F64:
        return ncclFloat64;
    case TR_I64:
        return ncclInt64;
    default:
        return ncclFloat32;
    }
}

/* ---- starting one ---- */

static ncclResult_t all_to_all(struct nccl_comm *c, const struct nccl_link *l, const struct tr_coll *x, size_t bytes)
{
    const struct nccl_api *fn = &c->w->fn;
    size_t each = bytes / (size_t)c->base.size;
    ncclResult_t r = fn->ncclGroupStart();
    for (int p = 0; p < c->base.size && (r == ncclSuccess || r == ncclInProgress); p++) {
        r = fn->ncclSend((const char *)x->in + (size_t)p * each, each, ncclInt8, p, l->comm, l->stream);
        if (r == ncclSuccess || r == ncclInProgress)
            r = fn->ncclRecv((char *)x->out + (size_t)p * each, each, ncclInt8, p, l->comm, l->stream);
    }
    ncclResult_t end = fn->ncclGroupEnd();
    return r == ncclSuccess || r == ncclInProgress ? end : r;
}

static ncclResult_t start(struct nccl_comm *c, const struct nccl_link *l, const struct tr_coll *x)
{
    static const ncclRedOp_t ops[] = { ncclSum, ncclAvg, ncclMax };
    const struct nccl_api *fn = &c->w->fn;
    size_t bytes = x->count * tr_dtype_bytes(x->dtype), n = (size_t)c->base.size;
    switch (x->kind) {
    case TR_ALL_REDUCE:
        return fn->ncclAllReduce(x->in, x->out, x->count, type_of(x->dtype), ops[x->op], l->comm, l->stream);
    case TR_REDUCE_SCATTER:
        return fn->ncclReduceScatter(x->in, x->out, x->count / n, type_of(x->dtype), ops[x->op], l->comm, l->stream);
    case TR_ALL_GATHER:
        return fn->ncclAllGather(x->in, x->out, bytes / n, ncclInt8, l->comm, l->stream);
    case TR_BROADCAST:
        return fn->ncclBroadcast(x->in, x->out, bytes, ncclInt8, x->root, l->comm, l->stream);
    case TR_ALL_TO_ALL:
        return all_to_all(c, l, x, bytes);
    case TR_SEND:
        return fn->ncclSend(x->in, bytes, ncclInt8, 1, l->comm, l->stream);
    case TR_RECV:
        return fn->ncclRecv(x->out, bytes, ncclInt8, 0, l->comm, l->stream);
    default:
        return ncclSuccess;
    }
}

static bool is_pair(const struct tr_coll *x)
{
    return x->kind == TR_SEND || x->kind == TR_RECV;
}

static struct nccl_link *link_of(struct nccl_comm *c, const struct tr_coll *x)
{
    int n = c->base.size, next = (c->base.rank + 1) % n, prev = (c->base.rank + n - 1) % n;
    if (!is_pair(x))
        return &c->link[LINK_ALL];
    if (x->kind == TR_SEND)
        return x->root == next ? &c->link[LINK_TO_NEXT] : x->root == prev ? &c->link[LINK_TO_PREV] : NULL;
    return x->root == prev ? &c->link[LINK_FROM_PREV] : x->root == next ? &c->link[LINK_FROM_NEXT] : NULL;
}

static enum tr_status check_coll(const struct nccl_comm *c, const struct tr_coll *x)
{
    bool is_cut = x->kind == TR_REDUCE_SCATTER || x->kind == TR_ALL_GATHER;
    if (is_cut && x->count % (size_t)c->base.size != 0)
        return tr_fail(TR_USAGE, "%s of %zu elements on a gpu: the count must be a multiple of the %d ranks",
                       tr_coll_name(x->kind), x->count, c->base.size);
    if (is_pair(x) && !link_of((struct nccl_comm *)c, x))
        return tr_fail(TR_USAGE, "%s between ranks %d and %d of %d on gpus: only neighbours send to each other",
                       tr_coll_name(x->kind), c->base.rank, x->root, c->base.size);
    return TR_OK;
}

/* ---- the front ---- */

/* A world of one rank: a copy in the order of the compute stream. */
static enum tr_status copy(struct nccl_comm *c, const struct tr_coll *x)
{
    size_t bytes = x->count * tr_dtype_bytes(x->dtype);
    cudaError_t e = cudaSuccess;
    if (x->in && x->out && x->in != x->out)
        e = cudaMemcpyAsync(x->out, x->in, bytes, cudaMemcpyDeviceToDevice, c->w->compute);
    return e == cudaSuccess ? TR_OK : tr_nccl_raise(c, TR_IO, "device cuda: a copy failed: %s", cudaGetErrorString(e));
}

static void mark(struct nccl_comm *c, tr_ticket t, const struct tr_coll *x, enum tr_comm_mark mark, cudaStream_t stream)
{
    if (c->base.tracer)
        c->base.tracer->mark(c->base.tracer, &c->base, t, x, mark, stream);
}

static enum tr_status put_on_device(struct nccl_comm *c, struct nccl_op *op, const struct tr_coll *x)
{
    struct nccl_world *w = c->w;
    const struct nccl_link *l = link_of(c, x);
    struct tr_coll on_host = *x;
    on_host.is_elsewhere = true;
    TR_PASS(tr_comm_post(c->host, &on_host, &op->host));
    if (cudaEventRecord(w->ready, w->compute) != cudaSuccess ||
        cudaStreamWaitEvent(l->stream, w->ready, 0) != cudaSuccess)
        return tr_nccl_raise(c, TR_IO, "no event on a stream of the gpu: %s", cudaGetErrorString(cudaGetLastError()));
    mark(c, op->ticket, x, TR_MARK_START, l->stream);
    enum tr_status st = l->comm ? tr_nccl_result(c, l, start(c, l, x), tr_coll_name(x->kind)) : tr_nccl_fault(w);
    mark(c, op->ticket, NULL, TR_MARK_END, l->stream);
    if (st == TR_OK && cudaEventRecord(op->done, l->stream) != cudaSuccess)
        st = tr_nccl_raise(c, TR_IO, "no event on a stream of the gpu after %s", tr_coll_name(x->kind));
    op->on_device = st == TR_OK;
    return st;
}

static enum tr_status post(struct tr_comm *base, const struct tr_coll *x, tr_ticket *out)
{
    struct nccl_comm *c = nccl_of(base);
    struct nccl_world *w = c->w;
    bool on_device = is_on_device(w, x->in) || is_on_device(w, x->out);
    enum tr_status st = tr_nccl_fault(w);
    if (st == TR_OK && on_device && base->size > 1) {
        st = check_coll(c, x);
        if (st == TR_OK)
            st = tr_nccl_open_links(c, is_pair(x));
    }
    if (st != TR_OK)
        return st;
    pthread_mutex_lock(&w->lock);
    tr_ticket t = c->n_posted++;
    struct nccl_op *op = &c->ops[t % N_OPS_MAX];
    cudaEvent_t done = op->done;
    *op = nccl_op{};
    op->ticket = t;
    op->done = done;
    op->kind = x->kind;
    op->site = x->site;
    op->posted_us = tr_clock_us();
    if (on_device && base->size == 1)
        st = copy(c, x);
    else if (on_device)
        st = put_on_device(c, op, x);
    else
        st = tr_comm_post(c->host, x, &op->host);
    pthread_mutex_unlock(&w->lock);
    *out = t;
    return st;
}

/* The compute stream waits, between two events that measure for how long. */
static enum tr_status hold_up(struct nccl_comm *c, cudaEvent_t done)
{
    struct nccl_world *w = c->w;
    struct nccl_span *s = &c->spans[c->n_spans++ % N_SPANS_MAX];
    float ms = 0;
    if (s->is_open && cudaEventElapsedTime(&ms, s->from, s->to) == cudaSuccess)
        c->held_up_us += (int64_t)(ms * 1000.0f);
    s->is_open = true;
    cudaError_t e = cudaEventRecord(s->from, w->compute);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(w->compute, done, 0);
    if (e == cudaSuccess)
        e = cudaEventRecord(s->to, w->compute);
    return e == cudaSuccess ? TR_OK
                            : tr_nccl_raise(c, TR_IO, "no wait on a stream of the gpu: %s", cudaGetErrorString(e));
}

static enum tr_status wait_for(struct tr_comm *base, tr_ticket t)
{
    struct nccl_comm *c = nccl_of(base);
    struct nccl_op *op = &c->ops[t % N_OPS_MAX];
    enum tr_status st = tr_nccl_fault(c->w);
    if (st == TR_OK && op->ticket == t && base->size > 1) /* else a later operation took its place, and ends after it */
        st = tr_comm_wait(c->host, op->host);
    if (st == TR_OK && op->on_device) {
        mark(c, t, NULL, TR_MARK_WAIT, c->w->compute);
        st = hold_up(c, op->done);
        mark(c, t, NULL, TR_MARK_WAITED, c->w->compute);
    }
    return st;
}

static enum tr_status run(struct tr_comm *base, const struct tr_coll *x)
{
    struct nccl_comm *c = nccl_of(base);
    tr_ticket t = 0;
    if (!is_on_device(c->w, x->in) && !is_on_device(c->w, x->out)) {
        if (base->size > 1)
            (void)cudaStreamSynchronize(c->w->compute); /* else two waits at the same time would count twice */
        int64_t start_us = tr_clock_us();
        enum tr_status st = tr_nccl_fault(c->w);
        st = st == TR_OK ? tr_comm_run(c->host, x) : st;
        c->held_up_us += tr_clock_us() - start_us;
        return st;
    }
    enum tr_status st = post(base, x, &t);
    return st == TR_OK ? wait_for(base, t) : st;
}

static int64_t waited_us(struct tr_comm *base)
{
    struct nccl_comm *c = nccl_of(base);
    int64_t us = c->held_up_us;
    for (int i = 0; i < N_SPANS_MAX; i++) {
        float ms = 0;
        struct nccl_span *s = &c->spans[i];
        if (s->is_open && cudaEventElapsedTime(&ms, s->from, s->to) == cudaSuccess)
            us += (int64_t)(ms * 1000.0f);
        s->is_open = false;
    }
    c->held_up_us = 0;
    return us;
}

static enum tr_status check(struct tr_comm *base)
{
    struct nccl_comm *c = nccl_of(base);
    enum tr_status st = tr_nccl_fault(c->w);
    return st == TR_OK ? tr_comm_check(c->host) : st;
}

static void abort_nccl(struct tr_comm *base, const char *cause)
{
    struct nccl_comm *c = nccl_of(base);
    (void)tr_nccl_raise(c, TR_PEER, "%s", cause);
}

static enum tr_status reserve(struct tr_comm *base, size_t bytes, void **out)
{
    struct nccl_world *w = nccl_of(base)->w;
    char human[32];
    void *p = NULL;
    if (w->n_pieces == N_PIECES_MAX)
        return tr_fail(TR_USAGE, "more than %d reservations on a gpu in one world", N_PIECES_MAX);
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return tr_fail(TR_NOMEM,
                       "the gpu refused %s of memory (%s); lower per_device_train_batch_size or use --recompute",
                       tr_human_bytes(bytes, human, sizeof human), cudaGetErrorString(e));
    }
    w->piece[w->n_pieces].base = (char *)p;
    w->piece[w->n_pieces++].bytes = bytes;
    *out = p;
    return TR_OK;
}

/* ---- worlds ---- */

extern const struct tr_comm_ops tr_comm_nccl;

/* Takes over `host`, unless it fails. */
static enum tr_status add_comm(struct nccl_world *w, struct tr_comm *host, struct tr_comm **out)
{
    struct nccl_comm *c = (struct nccl_comm *)calloc(1, sizeof *c);
    if (!c)
        return tr_fail(TR_NOMEM, "no memory for a communicator of %d ranks", host->size);
    c->base.ops = &tr_comm_nccl;
    c->base.rank = host->rank;
    c->base.size = host->size;
    c->host = host;
    c->w = w;
    pthread_mutex_lock(&w->lock);
    c->next = w->comms;
    w->comms = c;
    pthread_mutex_unlock(&w->lock);
    *out = &c->base;
    return TR_OK;
}

static enum tr_status split(struct tr_comm *base, int color, int key, int n, struct tr_comm **out)
{
    struct tr_comm *host = NULL;
    struct nccl_comm *c = nccl_of(base);
    enum tr_status st = tr_comm_split(c->host, color, key, n, &host);
    *out = NULL;
    if (st != TR_OK || !host)
        return st;
    st = add_comm(c->w, host, out);
    if (st != TR_OK)
        tr_comm_close(host);
    return st;
}

static void close_world(struct nccl_world *w)
{
    tr_nccl_stop_watcher(w);
    for (int i = 0; i < w->n_pieces; i++)
        (void)cudaFree(w->piece[i].base);
    if (w->ready)
        (void)cudaEventDestroy(w->ready);
    (void)cudaFree(w->spot);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->fault_lock);
    free(w);
}

static void close_nccl(struct tr_comm *base)
{
    struct nccl_comm *c = nccl_of(base), **at;
    struct nccl_world *w = c->w;
    pthread_mutex_lock(&w->lock);
    for (at = &w->comms; *at != c;)
        at = &(*at)->next;
    *at = c->next;
    bool is_last = w->comms == NULL;
    pthread_mutex_unlock(&w->lock);
    tr_nccl_close_links(c);
    if (is_last)
        close_world(w);
    tr_comm_close(c->host);
    free(c);
}

static enum tr_status open_above(struct tr_comm *host, const struct tr_comm_env *env, struct tr_comm **world)
{
    struct nccl_world *w = (struct nccl_world *)calloc(1, sizeof *w);
    if (!w)
        return tr_fail(TR_NOMEM, "no memory for a world of %d ranks", env->size);
    w->rank = env->rank;
    w->size = env->size;
    w->timeout_us = env->timeout_us;
    w->compute = (cudaStream_t)tr_device_stream(env->device, TR_STREAM_COMPUTE);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_mutex_init(&w->fault_lock, NULL);
    enum tr_status st = tr_nccl_load(&w->fn);
    if (st == TR_OK &&
        (cudaGetDevice(&w->ordinal) != cudaSuccess || cudaMalloc((void **)&w->spot, 1024) != cudaSuccess ||
         cudaEventCreateWithFlags(&w->ready, cudaEventDisableTiming) != cudaSuccess))
        st = tr_fail(TR_NOMEM, "the gpu refused 1 KiB of memory and an event for communication; is it full?");
    if (st == TR_OK)
        st = tr_nccl_neighbours(host);
    if (st == TR_OK)
        st = add_comm(w, host, world);
    if (st == TR_OK) {
        st = tr_nccl_start_watcher(w);
        if (st == TR_OK)
            return st;
        free(*world);
        *world = NULL;
    }
    close_world(w);
    return st;
}

const struct tr_comm_ops tr_comm_nccl = { "nccl", NULL,     NULL,  split,      reserve,    post,
                                          run,    wait_for, check, abort_nccl, close_nccl, waited_us };

extern "C" TR_EXPORT const struct tr_comm_above tr_comm_of_module = { open_above };
