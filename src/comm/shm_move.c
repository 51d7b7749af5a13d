/* shm_move.c - the data of a collective: from whose memory to whose, in which round.
 *
 * Elements are cut in shards (one a rank; a broadcast has one shard) and shards in chunks: round k moves chunk k of
 * every shard. What rank i gives is read straight from its buffer when that lies in an arena (direct), else from its
 * staging memory. Traffic of an in-place direct all-reduce is the least possible: every rank reads its shard of all
 * ranks once and writes the sum to all ranks while it is in cache. The cut never changes a result: sums of an element
 * always run over the ranks in order.
 */
#include "comm/shm_impl.h"

static size_t chunk_of(const struct channel *ch, const struct op *op)
{
    size_t elem = tr_dtype_bytes(op->coll.dtype);
    if (op->is_direct)
        return PIECE_BYTES / elem;
    return (tr_coll_is_pieced(op->coll.kind) ? HALF_BYTES / (size_t)ch->n / 64 * 64 : HALF_BYTES) / elem;
}

/* Elements of chunk k of owner's shard: [*at, *at + *n) counted inside the shard, which starts at *first. */
static void span_of(const struct channel *ch, const struct op *op, int owner, size_t k, size_t *first, size_t *at,
                    size_t *n)
{
    size_t chunk = chunk_of(ch, op), whole;
    tr_coll_shard(&op->coll, ch->n, owner, first, &whole);
    *at = k * chunk < whole ? k * chunk : whole;
    *n = whole - *at < chunk ? whole - *at : chunk;
}

void tr_shm_take_small(struct channel *ch, const struct op *op)
{
    const void *small[SHM_RANKS_MAX];
    for (int i = 0; i < ch->n; i++)
        small[i] = ch->seats[i].small[op->seq & 1];
    tr_small_take(&op->coll, ch->n, ch->me, small);
}

/* Do all that others must read, or write, lie in arenas? Everybody comes to the same answer. */
static bool can_be_direct(const struct channel *ch, const struct op *op)
{
    for (int i = 0; i < ch->n; i++) {
        const struct head *h = &ch->seats[i].head[op->seq & 1];
        bool is_read = op->coll.kind != TR_BROADCAST || i == op->coll.root;
        if (is_read && h->in_at == NOT_SHARED)
            return false;
        if (op->coll.kind == TR_ALL_REDUCE && h->out_at == NOT_SHARED)
            return false;
    }
    return true;
}

void tr_shm_plan_rounds(struct channel *ch, struct op *op)
{
    size_t first, longest;
    op->is_direct = can_be_direct(ch, op);
    tr_coll_shard(&op->coll, ch->n, 0, &first, &longest); /* no shard is longer than the first */
    size_t chunk = chunk_of(ch, op), n_chunks = longest / chunk + (longest % chunk != 0);
    op->n_parts = op->is_direct ? n_chunks : 1;
    op->n_rounds = op->is_direct ? 1 : n_chunks;
    op->first_round = ch->n_rounds;
    ch->n_rounds += op->n_rounds;
}

static void stage(struct channel *ch, const struct op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), chunk = chunk_of(ch, op), first, at, n;
    char *to = ch->seats[ch->me].stage[half];
    const char *in = c->in;
    if (tr_coll_is_pieced(c->kind)) {
        for (int i = 0; i < ch->n; i++) {
            span_of(ch, op, i, k, &first, &at, &n);
            if (i != ch->me)
                memcpy(to + (size_t)i * chunk * elem, in + (first + at) * elem, n * elem);
        }
    } else if (c->kind == TR_ALL_GATHER || c->root == ch->me) {
        span_of(ch, op, ch->me, k, &first, &at, &n);
        memcpy(to, in + at * elem, n * elem);
    }
}

/* Where to read what rank i gives this rank in round k. */
static const char *gift_of(const struct channel *ch, const struct op *op, int i, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    if (i != ch->me && !op->is_direct)
        return ch->seats[i].stage[half] + (tr_coll_is_pieced(c->kind) ? (size_t)ch->me * chunk_of(ch, op) * elem : 0);
    const char *in = c->in;
    if (i != ch->me)
        in = at_offset(ch->comm->w, ch->seats[i].head[op->seq & 1].in_at);
    span_of(ch, op, tr_coll_is_pieced(c->kind) ? ch->me : i, k, &first, &at, &n);
    return in + (tr_coll_is_pieced(c->kind) ? first + at : at) * elem;
}

static void reduce_chunk(struct channel *ch, const struct op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    const void *in[SHM_RANKS_MAX];
    void *out[SHM_RANKS_MAX];
    int n_out = 0;
    span_of(ch, op, ch->me, k, &first, &at, &n);
    for (int i = 0; i < ch->n; i++)
        in[i] = gift_of(ch, op, i, k, half);
    if (c->kind == TR_REDUCE_SCATTER) {
        out[n_out++] = (char *)c->out + at * elem;
    } else {
        out[n_out++] = (char *)c->out + (first + at) * elem;
        if (!op->is_direct)
            out[n_out++] = ch->seats[ch->me].result[half];
        for (int i = 0; op->is_direct && i < ch->n; i++)
            if (i != ch->me)
                out[n_out++] =
                    (char *)at_offset(ch->comm->w, ch->seats[i].head[op->seq & 1].out_at) + (first + at) * elem;
    }
    tr_reduce(c->dtype, c->op, in, ch->n, out, n_out, n);
}

static void put(const struct tr_coll *c, char *to, const char *from, size_t bytes)
{
    if (c->count >= PAST_CACHE_BYTES / tr_dtype_bytes(c->dtype))
        tr_copy_past_cache(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static void copy_chunk(struct channel *ch, const struct op *op, size_t k, unsigned half)
{
    const struct tr_coll *c = &op->coll;
    size_t elem = tr_dtype_bytes(c->dtype), first, at, n;
    for (int j = 0; c->out && j < ch->n; j++) {
        int i = (ch->me + j) % ch->n; /* not all from the same rank at the same time */
        if (c->kind == TR_BROADCAST && i != c->root)
            continue;
        span_of(ch, op, i, k, &first, &at, &n);
        const char *from = gift_of(ch, op, i, k, half);
        char *to = (char *)c->out + (first + at) * elem;
        if (from != to)
            put(c, to, from, n * elem);
    }
}

static void collect(struct channel *ch, const struct op *op, size_t k, unsigned half)
{
    size_t elem = tr_dtype_bytes(op->coll.dtype), first, at, n;
    for (int i = 0; i < ch->n; i++) {
        span_of(ch, op, i, k, &first, &at, &n);
        if (i != ch->me)
            put(&op->coll, (char *)op->coll.out + (first + at) * elem, ch->seats[i].result[half], n * elem);
    }
}

void tr_shm_phase(struct channel *ch, struct op *op, enum phase phase, uint64_t round)
{
    size_t k = (size_t)(op->is_direct ? op->part : round);
    unsigned half = (op->first_round + round) & 1;
    if (phase == MIDDLE && tr_coll_reduces(op->coll.kind))
        reduce_chunk(ch, op, k, half);
    else if (phase == MIDDLE)
        copy_chunk(ch, op, k, half);
    else if (phase == STAGE && !op->is_direct)
        stage(ch, op, k, half);
    else if (phase == LAST && !op->is_direct && op->coll.kind == TR_ALL_REDUCE)
        collect(ch, op, k, half);
}
