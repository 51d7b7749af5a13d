/* comm.c - finding an engine, and the checks that every collective passes before an engine sees it. */
#include "comm/comm_impl.h"

const char *tr_coll_name(enum tr_coll_kind kind)
{
    static const char *const names[] = { "all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "all_to_all", "send",           "recv",       "barrier" };
    _Static_assert(TR_COUNT_OF(names) == TR_COLL_KINDS, "one name a kind");
    return (unsigned)kind < TR_COLL_KINDS ? names[kind] : "unknown collective";
}

static enum tr_status check_env(const struct tr_comm_env *env)
{
    if (env->size < 1 || env->rank < 0 || env->rank >= env->size)
        return tr_fail(TR_USAGE,
                       "rank %d of a world of %d: ranks count from 0 to the size less 1; check RANK and WORLD_SIZE",
                       env->rank, env->size);
    if (env->timeout_us <= 0)
        return tr_fail(TR_USAGE, "communication timeout of %" PRId64 " us: it must be more than 0; give --ddp_timeout",
                       env->timeout_us);
    return TR_OK;
}

static enum tr_status unknown_engine(const char *engine)
{
    struct tr_str list = { 0 };
    for (const struct tr_comm_ops *const *row = tr_comm_engines; *row; row++)
        tr_str_addf(&list, "%s%s", list.n ? ", " : "", (*row)->name);
    enum tr_status st = tr_fail(TR_USAGE, "communication engine \"%s\" is not one of %s", engine ? engine : "auto",
                                tr_str_ok(&list) ? list.p : "the list");
    tr_str_release(&list);
    return st;
}

static enum tr_status open_host(const char *engine, const struct tr_comm_env *env, struct tr_comm **world)
{
    for (const struct tr_comm_ops *const *row = tr_comm_engines; *row; row++) {
        if (engine ? strcmp(engine, (*row)->name) != 0 : *row == &tr_comm_phantom)
            continue;
        const char *why_not = (*row)->can_use(env);
        if (!why_not)
            return (*row)->open(env, world);
        if (engine)
            return tr_fail(TR_USAGE, "communication engine %s: %s", engine, why_not);
    }
    return unknown_engine(engine);
}

static enum tr_status open_above(struct tr_comm *host, const struct tr_comm_env *env, struct tr_comm **world)
{
    const struct tr_comm_above *above = tr_device_symbol(env->device->row->name, TR_COMM_ABOVE_SYMBOL);
    if (!above)
        return tr_fail(TR_USAGE, "device %s has no communication engine of its own; use --device cpu for several ranks",
                       env->device->row->name);
    return above->open(host, env, world);
}

enum tr_status tr_comm_open(const char *engine, const struct tr_comm_env *env, struct tr_comm **world)
{
    enum tr_status st = check_env(env);
    if (st != TR_OK)
        return st;
    if (!env->device || env->device->row->is_host) {
        st = open_host(engine, env, world);
        if (st == TR_OK)
            (*world)->device = env->device;
        return st;
    }
    struct tr_comm_env host_env = *env;
    struct tr_comm *host = NULL;
    host_env.arena_bytes = 0; /* tensors are on the device */
    st = open_host(engine, &host_env, &host);
    if (st == TR_OK)
        st = open_above(host, env, world);
    if (st != TR_OK)
        tr_comm_close(host);
    return st;
}

void tr_comm_close(struct tr_comm *c)
{
    if (c)
        c->ops->close(c);
}

static const char *what_is_wrong(const struct tr_comm *c, const struct tr_coll *coll)
{
    size_t bytes;
    bool is_pair = coll->kind == TR_SEND || coll->kind == TR_RECV;
    if ((unsigned)coll->kind >= TR_COLL_KINDS || (unsigned)coll->dtype >= TR_DTYPE_COUNT ||
        (unsigned)coll->op >= TR_REDUCE_OPS)
        return "the kind, dtype or op is not in the list";
    if (!tr_mul_size(coll->count, tr_dtype_bytes(coll->dtype), &bytes) || bytes > SIZE_MAX / 4)
        return "the buffer is larger than any memory";
    if (tr_coll_reduces(coll->kind) && coll->dtype > TR_F64 && coll->dtype != TR_I64)
        return "sums take floats or int64";
    if ((is_pair || coll->kind == TR_BROADCAST) && (coll->root < 0 || coll->root >= c->size))
        return "the root is not a rank of the communicator";
    if (is_pair && coll->root == c->rank)
        return "a rank cannot send to itself";
    if (coll->kind == TR_ALL_TO_ALL && coll->count % (size_t)c->size != 0)
        return "the count must be a multiple of the number of ranks";
    if (coll->kind == TR_ALL_TO_ALL && c->size > 1 && coll->count && coll->in == coll->out)
        return "in and out must be two buffers";
    return NULL;
}

static enum tr_status check_coll(const struct tr_comm *c, const struct tr_coll *coll)
{
    const char *wrong = what_is_wrong(c, coll);
    if (!wrong)
        return TR_OK;
    return tr_fail(TR_USAGE, "%s %s (%zu elements, root %d, %d ranks): %s", tr_coll_name(coll->kind),
                   coll->site ? coll->site : "", coll->count, coll->root, c->size, wrong);
}

enum tr_status tr_comm_split(struct tr_comm *c, int color, int key, int n, struct tr_comm **out)
{
    enum tr_status st = c->ops->split(c, color, key, n, out);
    if (st == TR_OK && *out)
        (*out)->device = c->device;
    return st;
}

enum tr_status tr_comm_reserve(struct tr_comm *c, size_t bytes, void **base)
{
    return c->ops->reserve(c, bytes, base);
}

/* An engine with waited_us runs on a device, and marks the streams there itself. */
static void mark(struct tr_comm *c, tr_ticket t, const struct tr_coll *x, enum tr_comm_mark mark)
{
    if (c->tracer && !c->ops->waited_us)
        c->tracer->mark(c->tracer, c, t, x, mark, NULL);
}

/* What was issued before a collective is done when the host reads it. */
static enum tr_status after_compute(struct tr_comm *c)
{
    return c->device ? tr_device_sync(c->device, TR_STREAM_COMPUTE) : TR_OK;
}

enum tr_status tr_comm_post(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out)
{
    TR_PASS(check_coll(c, coll));
    TR_PASS(after_compute(c));
    TR_PASS(c->ops->post(c, coll, out));
    mark(c, *out, coll, TR_MARK_START);
    return TR_OK;
}

static int64_t begin_wait(struct tr_comm *c, tr_ticket t, const char *site)
{
    if (c->size > 1)
        tr_phase_wait(site);
    mark(c, t, NULL, TR_MARK_WAIT);
    return tr_clock_us();
}

static void end_wait(struct tr_comm *c, tr_ticket t, int64_t start_us)
{
    mark(c, t, NULL, TR_MARK_WAITED);
    mark(c, t, NULL, TR_MARK_END);
    if (c->size > 1)
        tr_phase_waited();
    c->waited_us += tr_clock_us() - start_us;
}

enum tr_status tr_comm_wait(struct tr_comm *c, tr_ticket t)
{
    int64_t start_us = begin_wait(c, t, NULL);
    enum tr_status st = c->ops->wait(c, t);
    end_wait(c, t, start_us);
    return st;
}

enum tr_status tr_comm_run(struct tr_comm *c, const struct tr_coll *coll)
{
    enum tr_status st = check_coll(c, coll);
    if (st == TR_OK)
        st = after_compute(c);
    if (st != TR_OK)
        return st;
    mark(c, UINT64_MAX, coll, TR_MARK_START);
    int64_t start_us = begin_wait(c, UINT64_MAX, coll->site);
    st = c->ops->run(c, coll);
    end_wait(c, UINT64_MAX, start_us);
    return st;
}

int64_t tr_comm_waited_us(struct tr_comm *c)
{
    int64_t us = c->ops->waited_us ? c->ops->waited_us(c) : c->waited_us;
    c->waited_us = 0;
    return us;
}

enum tr_status tr_comm_check(struct tr_comm *c)
{
    return c->ops->check(c);
}

void tr_comm_abort(struct tr_comm *c, const char *cause)
{
    c->ops->abort(c, cause);
}
