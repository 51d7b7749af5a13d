/* phantom.c - a communicator of any rank and size without the other ranks: it touches no memory and counts what is
 * posted, so that a plan for any cluster is compiled by the code that would run there.
 */
#include "comm/comm_impl.h"
#include <stdlib.h>

struct phantom {
    struct tr_comm base;
    struct tr_comm_counts counts;
    tr_ticket n_posted;
};

static const char *can_use(const struct tr_comm_env *env)
{
    (void)env;
    return NULL;
}

static enum tr_status open_phantom(const struct tr_comm_env *env, struct tr_comm **world)
{
    struct phantom *p = NULL;
    TR_PASS(TR_ALLOC(p, 1, "a communicator"));
    p->base = (struct tr_comm){ .ops = &tr_comm_phantom, .rank = env->rank, .size = env->size };
    *world = &p->base;
    return TR_OK;
}

static enum tr_status split(struct tr_comm *c, int color, int key, int n, struct tr_comm **out)
{
    *out = NULL;
    if (color < 0)
        return TR_OK;
    if (n < 1 || n > c->size || key < 0 || key >= n)
        return tr_fail(
            TR_USAGE,
            "split: rank %d of %d ranks, out of %d: the rank must be below the count, the count at most the size", key,
            n, c->size);
    return open_phantom(&(struct tr_comm_env){ .rank = key, .size = n }, out);
}

static enum tr_status reserve(struct tr_comm *c, size_t bytes, void **base)
{
    struct phantom *p = (struct phantom *)c;
    *base = (void *)(uintptr_t)(TR_COMM_ALIGN +
                                p->counts.reserved_bytes); /* an address for arithmetic only: no memory is there */
    p->counts.reserved_bytes += tr_round_up(bytes, TR_COMM_ALIGN);
    return TR_OK;
}

static enum tr_status run(struct tr_comm *c, const struct tr_coll *coll)
{
    struct phantom *p = (struct phantom *)c;
    p->counts.n_calls[coll->kind]++;
    p->counts.bytes[coll->kind] += coll->count * tr_dtype_bytes(coll->dtype);
    return TR_OK;
}

static enum tr_status post(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out)
{
    *out = ((struct phantom *)c)->n_posted++;
    return run(c, coll);
}

static enum tr_status wait_for(struct tr_comm *c, tr_ticket t)
{
    (void)c;
    (void)t;
    return TR_OK;
}

static enum tr_status check(struct tr_comm *c)
{
    (void)c;
    return TR_OK;
}

static void abort_phantom(struct tr_comm *c, const char *cause)
{
    (void)c;
    (void)cause;
}

static void close_phantom(struct tr_comm *c)
{
    free(c);
}

const struct tr_comm_counts *tr_comm_counts(const struct tr_comm *c)
{
    return c->ops == &tr_comm_phantom ? &((const struct phantom *)c)->counts : NULL;
}

const struct tr_comm_ops tr_comm_phantom = { "phantom", can_use,  open_phantom, split,         reserve,       post,
                                             run,       wait_for, check,        abort_phantom, close_phantom, NULL };
