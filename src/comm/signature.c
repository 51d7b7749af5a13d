/* signature.c - what every engine with peers does the same way: the signature of a collective, which ranks compare, and
 * collectives so small that their data travels with it. */
#include "comm/comm_impl.h"

struct tr_signature tr_signature_of(const struct tr_coll *c, bool is_pair)
{
    struct tr_signature sig = { .count = c->count, .kind = (uint8_t)c->kind, .dtype = (uint8_t)c->dtype };
    if (is_pair) { /* both ends of a pair do the same: a broadcast from the sender */
        sig.kind = TR_BROADCAST;
        return sig;
    }
    sig.op = tr_coll_reduces(c->kind) ? (uint8_t)c->op : 0;
    sig.root = c->kind == TR_BROADCAST ? c->root : 0;
    sig.site_hash = c->site ? tr_hash(c->site, strnlen(c->site, TR_SITE_MAX)).lo | 1 : 0;
    return sig;
}

bool tr_signature_agrees(const struct tr_signature *a, const struct tr_signature *b)
{
    return a->count == b->count && a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           (a->site_hash == b->site_hash || !a->site_hash || !b->site_hash);
}

const char *tr_signature_text(const struct tr_signature *sig, const char *name, int rank, uint64_t seq,
                              const char *site, char *buf, size_t n_buf)
{
    static const char *const ops[] = { "sum ", "average ", "maximum " };
    _Static_assert(TR_COUNT_OF(ops) == TR_REDUCE_OPS, "one word for each op");
    bool is_sum = tr_coll_reduces((enum tr_coll_kind)sig->kind) && sig->op < TR_REDUCE_OPS;
    (void)snprintf(buf, n_buf, "rank %d posted %s #%" PRIu64 " (%s%" PRIu64 " of %s, root %d) at \"%.*s\"", rank,
                   name ? name : tr_coll_name((enum tr_coll_kind)sig->kind), seq, is_sum ? ops[sig->op] : "",
                   sig->count, tr_dtype_name((enum tr_dtype)sig->dtype), sig->root, TR_SITE_MAX, site);
    return buf;
}

void tr_coll_shard(const struct tr_coll *c, int n, int owner, size_t *first, size_t *n_elems)
{
    *first = 0;
    *n_elems = c->count;
    if (c->kind != TR_BROADCAST)
        tr_shard(c->count, n, owner, first, n_elems);
}

bool tr_small_fits(const struct tr_coll *c, int n, size_t bytes)
{
    size_t each = c->count;
    if (c->kind == TR_ALL_GATHER)
        each = c->count / (size_t)n + (c->count % (size_t)n != 0);
    return c->is_elsewhere || c->kind == TR_BARRIER || each <= bytes / tr_dtype_bytes(c->dtype);
}

void tr_small_put(const struct tr_coll *c, int n, int me, void *small)
{
    size_t first = 0, n_elems = c->count;
    if (c->is_elsewhere || c->kind == TR_BARRIER || (c->kind == TR_BROADCAST && c->root != me))
        return;
    if (c->kind == TR_ALL_GATHER)
        tr_shard(c->count, n, me, &first, &n_elems);
    memcpy(small, c->in, n_elems * tr_dtype_bytes(c->dtype));
}

void tr_small_take(const struct tr_coll *c, int n, int me, const void **small)
{
    size_t elem = tr_dtype_bytes(c->dtype), first, n_elems, mine, n_mine;
    char *out = c->out;
    if (c->is_elsewhere)
        return;
    tr_coll_shard(c, n, me, &mine, &n_mine);
    if (c->kind == TR_ALL_REDUCE) {
        mine = 0;
        n_mine = c->count;
    }
    for (int i = 0; tr_coll_is_pieced(c->kind) && i < n; i++)
        small[i] = (const char *)small[i] + mine * elem;
    if (tr_coll_reduces(c->kind))
        tr_reduce(c->dtype, c->op, small, n, &c->out, 1, n_mine);
    else if (c->kind == TR_BROADCAST && out && !(c->root == me && c->in == out))
        memcpy(out, small[c->root], c->count * elem);
    else if (c->kind == TR_ALL_GATHER || c->kind == TR_ALL_TO_ALL)
        for (int i = 0; i < n; i++) {
            tr_coll_shard(c, n, i, &first, &n_elems);
            if (i != me || c->in != out + first * elem) /* in place: it is there already */
                memcpy(out + first * elem, small[i], n_elems * elem);
        }
}
