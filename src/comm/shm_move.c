/* shm_move.c - the data of a collective: from which rank's memory to which, and in which round.
 *
 * Elements are cut into shards (one per rank; a broadcast has one shard) and shards into chunks: round k moves chunk k
 * of every shard. A rank reads the input of rank i straight from its buffer when that lies in an arena (direct), else
 * from the staging memory of rank i. The traffic of an in-place direct all-reduce is the least possible: every rank
 * reads its shard of all ranks once, and writes the sum to all ranks while it is in cache. The cut never changes a
 * result: sums of an element always run over the ranks in order.
 */
#include "comm/shm_impl.h"

static size_t chunk_of(const struct shm_channel *ch, const struct tr_front_op *op)
{
    size_t elem = tr_dtype_bytes(op->coll.dtype);
    if (ch->current.is_direct)
        return SHM_PIECE_BYTES / elem;
    return (tr_coll_is_pieced(op->coll.kind) ? SHM_HALF_BYTES / (size_t)ch->base.n / 64 * 64 : SHM_HALF_BYTES) / elem;
}

/* Elements of chunk k of owner's shard: [*at, *at + *n) counted inside the shard, which starts at *first. */
static void span_of(const struct shm_channel *ch, const struct tr_front_op *op, int owner, size_t k, size_t *first,
                    size_t *at, size_t *n)
{
    size_t chunk = chunk_of(ch, op), whole;
    tr_coll_shard(&op->coll, ch->base.n, owner, first, &whole);
    *at = k * chunk < whole ? k * chunk : whole;
    *n = whole - *at < chunk ? whole - *at : chunk;
}

void tr_shm_take_small(struct shm_channel *ch, const struct tr_front_op *op)
{
    const void *small[SHM_RANKS_MAX];
    for (int i = 0; i < ch->base.n; i++)
        small[i] = ch->seats[i].small[op->seq & 1];
    tr_small_take(&op->coll, ch->base.n, ch->base.me, small);
}

/* Do all buffers that other ranks must read or write lie in arenas? All ranks compute the same result. */
static bool can_be_direct(const struct shm_channel *ch, const struct tr_front_op *op)
{
    for (int i = 0; i < ch->base.n; i++) {
        const struct shm_head *h = &ch->seats[i].head[op->seq & 1];
        bool is_read = op->coll.kind != TR_BROADCAST || i == op->coll.root;
        if (is_read && h->in_at == SHM_NOT_SHARED)
            return false;
        if (op->coll.kind == TR_ALL_REDUCE && h->out_at == SHM_NOT_SHARED)
            return false;
    }
    return true;
}

void tr_shm_plan_rounds(struct shm_channel *ch, const struct tr_front_op *op)
{
    size_t first, longest;
    memset(&ch->current, 0, sizeof ch->current);
    ch->current.is_direct = can_be_direct(ch, op);
    tr_coll_shard(&op->coll, ch->base.n, 0, &first, &longest); /* no shard is longer than the first */
    size_t chunk = chunk_of(ch, op), n_chunks = longest / chunk + (longest % chunk != 0);
    ch->current.n_parts = ch->current.is_direct ? n_chunks : 1;
    ch->current.n_rounds = ch->current.is_direct ? 1 : n_chunks;
    ch->current.first_round = ch->n_rounds;
    ch->n_rounds += ch->current.n_rounds;
}

static void stage(struct shm_channel *ch, const struct tr_front_op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), chunk = chunk_of(ch, op), first, at, n;
    char *to = ch->seats[ch->base.me].stage[half];
    const char *in = c->in;
    if (tr_coll_is_pieced(c->kind)) {
        for (int i = 0; i < ch->base.n; i++) {
            span_of(ch, op, i, k, &first, &at, &n);
            if (i != ch->base.me)
                memcpy(to + (size_t)i * chunk * elem, in + (first + at) * elem, n * elem);
        }
    } else if (c->kind == TR_ALL_GATHER || c->root == ch->base.me) {
        span_of(ch, op, ch->base.me, k, &first, &at, &n);
        memcpy(to, in + at * elem, n * elem);
    }
}

/* Where this rank reads its input from rank i in round k. */
static const char *input_of(const struct shm_channel *ch, const struct tr_front_op *op, int i, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    if (i != ch->base.me && !ch->current.is_direct)
        return ch->seats[i].stage[half] +
               (tr_coll_is_pieced(c->kind) ? (size_t)ch->base.me * chunk_of(ch, op) * elem : 0);
    const char *in = c->in;
    if (i != ch->base.me)
        in = at_offset(world_of(ch), ch->seats[i].head[op->seq & 1].in_at);
    span_of(ch, op, tr_coll_is_pieced(c->kind) ? ch->base.me : i, k, &first, &at, &n);
    return in + (tr_coll_is_pieced(c->kind) ? first + at : at) * elem;
}

static void reduce_chunk(struct shm_channel *ch, const struct tr_front_op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    const void *in[SHM_RANKS_MAX];
    void *out[SHM_RANKS_MAX];
    int n_out = 0;
    span_of(ch, op, ch->base.me, k, &first, &at, &n);
    for (int i = 0; i < ch->base.n; i++)
        in[i] = input_of(ch, op, i, k, half);
    if (c->kind == TR_REDUCE_SCATTER) {
        out[n_out++] = (char *)c->out + at * elem;
    } else {
        out[n_out++] = (char *)c->out + (first + at) * elem;
        if (!ch->current.is_direct)
            out[n_out++] = ch->seats[ch->base.me].result[half];
        for (int i = 0; ch->current.is_direct && i < ch->base.n; i++)
            if (i != ch->base.me)
                out[n_out++] =
                    (char *)at_offset(world_of(ch), ch->seats[i].head[op->seq & 1].out_at) + (first + at) * elem;
    }
    tr_reduce(c->dtype, c->op, in, ch->base.n, out, n_out, n);
}

static void put(const struct tr_coll *c, char *to, const char *from, size_t bytes)
{
    if (c->count >= SHM_PAST_CACHE_BYTES / tr_dtype_bytes(c->dtype))
        tr_copy_past_cache(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void copy_chunk(struct shm_channel *ch, const struct tr_front_op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    for (int j = 0; c->out && j < ch->base.n; j++) {
        int i = (ch->base.me + j) % ch->base.n; /* each rank starts elsewhere: not all read from one rank at a time */
        if (c->kind == TR_BROADCAST && i != c->root)
            continue;
        span_of(ch, op, i, k, &first, &at, &n);
        const char *from = input_of(ch, op, i, k, half);
        char *to = (char *)c->out + (first + at) * elem;
        if (from != to)
            put(c, to, from, n * elem);
    }
}

static void collect(struct shm_channel *ch, const struct tr_front_op *op, size_t k, unsigned half)
{
    size_t elem = tr_dtype_bytes(op->coll.dtype), first, at, n;
    for (int i = 0; i < ch->base.n; i++) {
        span_of(ch, op, i, k, &first, &at, &n);
        if (i != ch->base.me)
            put(&op->coll, (char *)op->coll.out + (first + at) * elem, ch->seats[i].result[half], n * elem);
    }
}

void tr_shm_phase(struct shm_channel *ch, const struct tr_front_op *op, enum shm_phase phase, uint64_t round)
{
    size_t k = (size_t)(ch->current.is_direct ? ch->current.part : round);
    unsigned half = (ch->current.first_round + round) & 1;
    if (phase == SHM_MIDDLE && tr_coll_reduces(op->coll.kind))
        reduce_chunk(ch, op, k, half);
    else if (phase == SHM_MIDDLE)
        copy_chunk(ch, op, k, half);
    else if (phase == SHM_STAGE && !ch->current.is_direct)
        stage(ch, op, k, half);
    else if (phase == SHM_LAST && !ch->current.is_direct && op->coll.kind == TR_ALL_REDUCE)
        collect(ch, op, k, half);
}
