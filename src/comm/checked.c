/* checked.c - reductions that detect a flipped bit (fault D5), made of the public collectives of any engine.
 *
 * Each rank sends an integer checksum of every piece that it gives, taken from the source. The receiver of a piece
 * computes it again, reduces twice, compares the bits of both, and sends a checksum of the result, which every rank
 * checks in the place where the result ends up. A single flip in transport, in the reduction or in the copies always
 * changes one of these checksums, because it adds or subtracts a power of two. The result has the bits of the plain
 * reduction. The cost is about four times its memory traffic. Rejected: a float checksum with a tolerance (low bits
 * pass), and hashes (slower, and no better against one flip).
 */
#include "comm/comm_impl.h"

enum { PIECE_ELEMENTS = 32 << 10 };

size_t tr_comm_checked_bytes(int size)
{
    return ((size_t)(3 * size + 2) * PIECE_ELEMENTS + 3 * (size_t)size) * sizeof(int64_t);
}

struct checked {
    struct tr_comm *c;
    const struct tr_coll *coll;
    size_t elem;
    int64_t *sent, *received, *results; /* by rank: checksums of pieces */
    char *send, *got, *all, *sum[2];
};

static int64_t checksum(const void *p, size_t bytes)
{
    const unsigned char *at = p;
    uint64_t sum = 0;
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        uint16_t word;
        memcpy(&word, at + i, 2);
        sum += word;
    }
    return (int64_t)sum;
}

/* Tests plant a fault here: one bit of one rank. */
static void flip(const char *point, char *at)
{
    if (tr_failpoint(point) == TR_OK)
        return;
    tr_error_clear();
    at[1] ^= 8;
}

static enum tr_status blame(struct checked *k, const char *what, int rank)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%s: a bit flipped %s rank %d of %d, seen by rank %d: its checksum differs",
                   k->coll->site ? k->coll->site : tr_coll_name(k->coll->kind), what, rank, k->c->size, k->c->rank);
    tr_comm_abort(k->c, text);
    return tr_fail(TR_PEER, "%s", text);
}

/* Elements of piece p in this round: the part of shard p from `at` on. */
static size_t piece(const struct checked *k, int p, size_t at, size_t *first)
{
    size_t n = 0;
    tr_shard(k->coll->count, k->c->size, p, first, &n);
    *first += at;
    return n <= at ? 0 : n - at < PIECE_ELEMENTS ? n - at : PIECE_ELEMENTS;
}

static enum tr_status exchange(struct checked *k, enum tr_coll_kind kind, enum tr_dtype dtype, const void *in,
                               void *out, size_t each)
{
    struct tr_coll c = {
        .kind = kind, .dtype = dtype, .in = in, .out = out, .count = each * (size_t)k->c->size, .site = "checked sum"
    };
    return tr_comm_run(k->c, &c);
}

/* Receives every rank's piece for this rank into `got`, and checks that it is what its owner gave. */
static enum tr_status collect(struct checked *k, size_t at)
{
    size_t first, bytes = PIECE_ELEMENTS * k->elem;
    memset(k->send, 0, bytes * (size_t)k->c->size);
    for (int p = 0; p < k->c->size; p++) {
        size_t n = piece(k, p, at, &first) * k->elem;
        const char *from = (const char *)k->coll->in + first * k->elem;
        k->sent[p] = checksum(from, n);
        memcpy(k->send + (size_t)p * bytes, from, n);
    }
    TR_PASS(exchange(k, TR_ALL_TO_ALL, TR_I64, k->sent, k->received, 1));
    TR_PASS(exchange(k, TR_ALL_TO_ALL, k->coll->dtype, k->send, k->got, PIECE_ELEMENTS));
    flip("comm.flip_received", k->got);
    for (int p = 0; p < k->c->size; p++)
        if (checksum(k->got + (size_t)p * bytes, bytes) != k->received[p])
            TR_PASS(blame(k, "on the way from", p));
    return TR_OK;
}

/* Reduces the pieces twice, in rank order. */
static enum tr_status add_up(struct checked *k, size_t at)
{
    enum { SIZE_MAX_HERE = 1024 };
    const void *in[SIZE_MAX_HERE];
    size_t first, n = piece(k, k->c->rank, at, &first);
    if (k->c->size > SIZE_MAX_HERE)
        return tr_fail(TR_USAGE, "checked sums take at most %d ranks; leave out --sdc_check", SIZE_MAX_HERE);
    for (int twice = 0; twice < 2; twice++) {
        void *out = k->sum[twice];
        for (int p = 0; p < k->c->size; p++)
            in[p] = k->got + (size_t)p * PIECE_ELEMENTS * k->elem;
        memset(out, 0, PIECE_ELEMENTS * k->elem);
        tr_reduce(k->coll->dtype, k->coll->op, in, k->c->size, &out, 1, n);
    }
    flip("comm.flip_sum", k->sum[0]);
    return memcmp(k->sum[0], k->sum[1], n * k->elem) == 0 ? TR_OK : blame(k, "in the sum of", k->c->rank);
}

/* Copies the result of piece p to where the caller wants it, and checks it there. */
static enum tr_status put(struct checked *k, int p, const char *from, size_t at)
{
    size_t first, n = piece(k, p, at, &first);
    bool is_scatter = k->coll->kind == TR_REDUCE_SCATTER;
    char *to = (char *)k->coll->out + (is_scatter ? at : first) * k->elem;
    memcpy(to, from, n * k->elem);
    if (p == 0 && n > 0)
        flip("comm.flip_result", to);
    return checksum(to, n * k->elem) == k->results[p] ? TR_OK : blame(k, "in the result of", p);
}

static enum tr_status one_round(struct checked *k, size_t at)
{
    TR_PASS(collect(k, at));
    TR_PASS(add_up(k, at));
    k->results[k->c->rank] = k->sent[0] = checksum(k->sum[1], PIECE_ELEMENTS * k->elem);
    if (k->coll->kind == TR_REDUCE_SCATTER)
        return put(k, k->c->rank, k->sum[0], at);
    TR_PASS(exchange(k, TR_ALL_GATHER, TR_I64, k->sent, k->results, 1));
    TR_PASS(exchange(k, TR_ALL_GATHER, k->coll->dtype, k->sum[0], k->all, PIECE_ELEMENTS));
    for (int p = 0; p < k->c->size; p++)
        TR_PASS(put(k, p, k->all + (size_t)p * PIECE_ELEMENTS * k->elem, at));
    return TR_OK;
}

enum tr_status tr_comm_run_checked(struct tr_comm *c, const struct tr_coll *coll, void *memory)
{
    enum tr_status st = TR_OK;
    size_t size = (size_t)c->size, piece_bytes = PIECE_ELEMENTS * sizeof(int64_t), first, most;
    struct checked k = { .c = c, .coll = coll, .elem = tr_dtype_bytes(coll->dtype), .sent = memory };
    if (c->size == 1 || !tr_coll_reduces(coll->kind))
        return tr_comm_run(c, coll);
    k.received = k.sent + size;
    k.results = k.received + size;
    k.send = (char *)(k.results + size);
    k.got = k.send + size * piece_bytes;
    k.all = k.got + size * piece_bytes;
    k.sum[0] = k.all + size * piece_bytes;
    k.sum[1] = k.sum[0] + piece_bytes;
    tr_shard(coll->count, c->size, 0, &first, &most); /* the first shard is the longest */
    for (size_t at = 0; at < most && st == TR_OK; at += PIECE_ELEMENTS)
        st = one_round(&k, at);
    return st;
}
