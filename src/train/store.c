/* store.c - the executor's parameters and optimizer state as ckpt sees them: named global tensors, whichever rank holds
 * them.
 *
 * Loading offers every tensor, and a rank keeps its own elements. Saving reads a rank's own elements (optimizer state),
 * or whole tensors in order, a chunk at a time (weights). All ranks take part in the second, and no rank ever holds a
 * whole model.
 */
#include "train/train.h"

enum { UPLOAD_BYTES = 1 << 18 };

static const struct tr_param_place *place_of(const struct tr_exec *e, int param)
{
    return &tr_exec_compiled(e)->place.param[param];
}

static size_t size_of(const struct tr_exec *e, enum tr_state what, int param)
{
    return tr_exec_element(e, what, param).bytes;
}

/* Copies device memory to the host buffer. The copy is valid until the next call. A state that lives on the host is
 * read where it is. */
static enum tr_status on_host(struct tr_exec *e, enum tr_state what, int param, const void **p, size_t bytes)
{
    if (tr_exec_is_on_host(e, what, param))
        return TR_OK;
    char *copy = tr_exec_arena(e, TR_A_SAVE) + tr_exec_compiled(e)->memory.get;
    TR_BUG_ON(bytes > tr_exec_compiled(e)->opt.save_bytes);
    tr_device_copy_now(tr_exec_device(e), copy, *p, bytes);
    *p = copy;
    return tr_device_sync(tr_exec_device(e), TR_STREAM_COMPUTE);
}

/* Reads elements [first, first + n), which this rank holds side by side. */
static enum tr_status store_get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct tr_exec *e = ctx;
    int64_t own_first = 0, own_n = 0, at = first, local = 0;
    TR_PASS(tr_exec_drain(e));
    const char *base = tr_exec_at(e, what, param, &own_first, &own_n);
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    TR_BUG_ON(tr_tp_run(&shard, &at, first + n, &local) != n || at != first);
    TR_BUG_ON(local < own_first || local + n > own_first + own_n);
    *out = base + local * (int64_t)size_of(e, what, param);
    return on_host(e, what, param, out, (size_t)n * size_of(e, what, param));
}

struct upload {
    struct tr_device *dev;
    char *to;
    const char *from;
    size_t bytes, piece;
};

static void upload_piece(void *ctx, int64_t task, int worker)
{
    const struct upload *u = ctx;
    size_t at = (size_t)task * u->piece;
    (void)worker;
    tr_device_copy_now(u->dev, u->to + at, u->from + at, u->bytes - at < u->piece ? u->bytes - at : u->piece);
}

/* Copies in one piece to a device, and with all threads into host memory: the first touch of a page costs more than its
 * copy. */
static void upload(struct tr_exec *e, char *to, const char *from, size_t bytes)
{
    struct upload u = { tr_exec_device(e), to, from, bytes, tr_exec_device(e)->row->is_host ? UPLOAD_BYTES : bytes };
    tr_pool_run(tr_exec_pool(e), (int64_t)((bytes + u.piece - 1) / u.piece), upload_piece, &u);
}

static enum tr_status store_put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    struct tr_exec *e = ctx;
    int64_t own_first = 0, own_n = 0, local = 0, size = (int64_t)size_of(e, what, param), len;
    char *base = tr_exec_at(e, what, param, &own_first, &own_n);
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    tr_exec_changed(e, what, param);
    for (int64_t at = first; at < first + n && (len = tr_tp_run(&shard, &at, first + n, &local)) > 0; at += len) {
        int64_t begin = tr_max64(local, own_first), end = tr_min64(local + len, own_first + own_n);
        if (begin < end)
            upload(e, base + begin * size, (const char *)src + (at - first + begin - local) * size,
                   (size_t)((end - begin) * size));
    }
    return TR_OK;
}

static bool store_wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    const struct tr_exec *e = ctx;
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    int64_t own_first = 0, own_n = 0, local = 0, len;
    (void)tr_exec_part(e, what, param, &own_first, &own_n);
    for (int64_t at = first; own_n && at < first + n && (len = tr_tp_run(&shard, &at, first + n, &local)) > 0;
         at += len)
        if (tr_max64(local, own_first) < tr_min64(local + len, own_first + own_n))
            return true;
    return false;
}

static int store_writer(void *ctx, int param)
{
    const struct tr_exec *e = ctx;
    return tr_exec_compiled(e)->place.param[param].writer;
}

/* An adapter is one file, and its writer may not be of the stage that holds a tensor. */
static bool joins_stages(const struct tr_exec *e)
{
    return tr_exec_compiled(e)->opt.n_saved != NULL;
}

/* Does this rank take part in the tensor that the writer needs? Peers on the axes that split a tensor do; replicas do
 * not. */
static bool takes_part(const struct tr_exec *e, int writer)
{
    return tr_mesh_shares(tr_exec_mesh(e), writer, TR_ON_REPLICAS | (joins_stages(e) ? 0 : TR_ON(TR_AXIS_PP)));
}

/* Joins the parts of a tensor. Each rank writes its elements into zeros, and the bits are summed as integers over the
 * axes that split the tensor, which is exact for any dtype. A rank of a stage that does not hold it adds zeros. */
static enum tr_status join_parts(struct tr_exec *e, enum tr_state what, int param, int64_t first, int64_t n, void *out)
{
    int64_t own_first = 0, own_n = 0, local = 0, len;
    size_t size = size_of(e, what, param), words = tr_round_up((size_t)n * size, sizeof(int64_t)) / sizeof(int64_t);
    const char *base = tr_exec_at(e, what, param, &own_first, &own_n);
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    bool holds = tr_param_is_first(&tr_exec_compiled(e)->place, param);
    memset(out, 0, words * sizeof(int64_t));
    for (int64_t at = first; holds && at < first + n && (len = tr_tp_run(&shard, &at, first + n, &local)) > 0;
         at += len) {
        int64_t begin = tr_max64(local, own_first), end = tr_min64(local + len, own_first + own_n);
        if (begin < end)
            tr_device_copy_now(tr_exec_device(e), (char *)out + (size_t)(at - first + begin - local) * size,
                               base + begin * (int64_t)size, (size_t)(end - begin) * size);
    }
    TR_PASS(tr_device_sync(tr_exec_device(e), TR_STREAM_COMPUTE));
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = TR_I64,
                         .op = TR_SUM,
                         .in = out,
                         .out = out,
                         .count = words,
                         .site = "join the parts of a tensor" };
    if (holds && tr_exec_is_sharded(e, what))
        TR_PASS(tr_comm_run(tr_mesh_axis(tr_exec_mesh(e), TR_AXIS_SHARD), &c));
    if (holds && shard.is_split)
        TR_PASS(tr_comm_run(tr_mesh_axis(tr_exec_mesh(e), TR_AXIS_TP), &c));
    return joins_stages(e) ? tr_comm_run(tr_mesh_axis(tr_exec_mesh(e), TR_AXIS_PP), &c) : TR_OK;
}

static enum tr_status store_whole(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct tr_exec *e = ctx;
    const struct tr_param_place *p = place_of(e, param);
    int64_t own_first = 0, own_n = 0;
    size_t size = size_of(e, what, param);
    TR_PASS(tr_exec_drain(e));
    bool is_here = p->writer == tr_exec_mesh(e)->rank;
    TR_BUG_ON(n > TR_IO_CHUNK);
    *out = NULL;
    if (!takes_part(e, p->writer))
        return TR_OK;
    if (p->tp.is_split || tr_exec_is_sharded(e, what) || joins_stages(e)) {
        *out = tr_exec_arena(e, TR_A_SAVE);
        return join_parts(e, what, param, first, n, tr_exec_arena(e, TR_A_SAVE));
    }
    if (!is_here)
        return TR_OK;
    *out = tr_exec_at(e, what, param, &own_first, &own_n) + first * (int64_t)size;
    return on_host(e, what, param, out, (size_t)n * size);
}

/* The ranges that this rank saves. Ranks that hold the same elements save equal shares. A parameter that several stages
 * hold is saved by the ranks of the first. */
static int store_ranges(void *ctx, enum tr_state what, int param, struct tr_range out[TR_MAX_RANGES])
{
    const struct tr_exec *e = ctx;
    const int *size = tr_exec_compiled(e)->place.layout->size, *coord = tr_exec_compiled(e)->place.layout->coord;
    int64_t first = 0, n = 0, n_shares = 1, share = 0;
    struct tr_tp_shard shard = tr_exec_tp_shard(e, what, param);
    const bool alike[TR_AXES] = { [TR_AXIS_DP] = true,
                                  [TR_AXIS_SHARD] = !tr_exec_is_sharded(e, what),
                                  [TR_AXIS_CP] = true,
                                  [TR_AXIS_TP] = !shard.is_split };
    (void)tr_exec_part(e, what, param, &first, &n);
    if (!tr_param_is_first(&tr_exec_compiled(e)->place, param))
        return 0;
    for (int a = 0; a < TR_AXES; a++)
        if (alike[a]) {
            share = share * size[a] + coord[a];
            n_shares *= size[a];
        }
    int64_t begin = n * share / n_shares, end = n * (share + 1) / n_shares;
    return end > begin ? tr_tp_ranges(&shard, first + begin, end - begin, out) : 0;
}

struct tr_store tr_exec_store(struct tr_exec *e)
{
    return (struct tr_store){ .ctx = e,
                              .states = tr_exec_compiled(e)->place.states,
                              .model = tr_exec_compiled(e)->place.model,
                              .pool = tr_exec_pool(e),
                              .get = store_get,
                              .put = store_put,
                              .whole = store_whole,
                              .wants = store_wants,
                              .ranges = store_ranges,
                              .writer = store_writer,
                              .fate_of = tr_exec_compiled(e)->place.fate_of,
                              .packed_of = tr_exec_compiled(e)->place.packed_of,
                              .nests_scales = tr_exec_compiled(e)->opt.nests_scales };
}
