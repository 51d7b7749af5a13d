/* self.c - the communicator of one rank: a collective copies in to out where they differ. After an abort its later
 * calls fail, as in any other engine.
 */
#include "comm/comm_impl.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { N_PIECES_MAX = 64 };

struct self {
    struct tr_comm base;
    void *pieces[N_PIECES_MAX]; /* reserved */
    int n_pieces;
    _Atomic(char *) cause; /* of an abort, which may come from any thread; NULL: none */
};

static const char *can_use(const struct tr_comm_env *env)
{
    return env->size == 1 ? NULL : "it takes one rank; use shm";
}

static enum tr_status open_self(const struct tr_comm_env *env, struct tr_comm **world)
{
    (void)env;
    struct self *s = NULL;
    TR_PASS(TR_ALLOC(s, 1, "a communicator"));
    s->base = (struct tr_comm){ .ops = &tr_comm_self, .rank = 0, .size = 1 };
    *world = &s->base;
    return TR_OK;
}

static enum tr_status split(struct tr_comm *c, int color, int key, int n, struct tr_comm **out)
{
    (void)c;
    (void)key;
    *out = NULL;
    if (color < 0)
        return TR_OK;
    if (n != 1)
        return tr_fail(TR_USAGE, "split: color %d has 1 rank, the caller expects %d", color, n);
    return open_self(NULL, out);
}

static enum tr_status reserve(struct tr_comm *c, size_t bytes, void **base)
{
    struct self *s = (struct self *)c;
    char human[32];
    if (s->n_pieces == N_PIECES_MAX)
        return tr_fail(TR_USAGE, "more than %d reservations in one communicator", N_PIECES_MAX);
    void *p = aligned_alloc(TR_COMM_ALIGN, tr_round_up(bytes ? bytes : 1, TR_COMM_ALIGN));
    if (!p)
        return tr_fail(TR_NOMEM, "the machine refused %s of memory; use a smaller model or batch",
                       tr_human_bytes(bytes, human, sizeof human));
    s->pieces[s->n_pieces++] = p;
    *base = p;
    return TR_OK;
}

static enum tr_status check(struct tr_comm *c)
{
    struct self *s = (struct self *)c;
    const char *cause = atomic_load(&s->cause);
    return cause ? tr_fail(TR_PEER, "rank 0 aborted: %s", cause) : TR_OK;
}

static enum tr_status run(struct tr_comm *c, const struct tr_coll *coll)
{
    if (!coll->is_elsewhere && coll->out && coll->in && coll->out != coll->in)
        memmove(coll->out, coll->in, coll->count * tr_dtype_bytes(coll->dtype));
    return check(c);
}

static enum tr_status post(struct tr_comm *c, const struct tr_coll *coll, tr_ticket *out)
{
    *out = 0;
    return run(c, coll);
}

static enum tr_status wait_for(struct tr_comm *c, tr_ticket t)
{
    (void)t;
    return check(c);
}

static void abort_self(struct tr_comm *c, const char *cause)
{
    struct self *s = (struct self *)c;
    char *none = NULL, *copy = strdup(cause);
    if (!atomic_compare_exchange_strong(&s->cause, &none, copy))
        free(copy);
}

static void close_self(struct tr_comm *c)
{
    struct self *s = (struct self *)c;
    for (int i = 0; i < s->n_pieces; i++)
        free(s->pieces[i]);
    free(s->cause);
    free(s);
}

const struct tr_comm_ops tr_comm_self = { "self", can_use,  open_self, split,      reserve,    post,
                                          run,    wait_for, check,     abort_self, close_self, NULL };
