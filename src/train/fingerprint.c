/* fingerprint.c - the gradients of a step as a norm and a hash for each parameter.
 *
 * A hash is a sum over elements: of the element's place in the whole tensor, mixed with its bits. A sum has no order,
 * so each rank adds the elements that it owns, and equal hashes on two layouts mean equal bits. Rejected: a hash of
 * bytes in order, which needs whole tensors on one rank.
 */
#include "train/fingerprint.h"
#include <stdlib.h>

enum tr_status tr_fingerprint_open(const struct tr_exec *e, struct tr_fingerprint *out)
{
    const struct tr_model *m = tr_exec_compiled(e)->place.model;
    size_t n = (size_t)m->n_params;
    *out = (struct tr_fingerprint){ .n = m->n_params };
    out->norm = calloc(n, sizeof *out->norm);
    out->hash = calloc(n, sizeof *out->hash);
    out->name = calloc(n, sizeof *out->name);
    bool is_whole = out->norm && out->hash && out->name;
    for (int i = 0; is_whole && i < out->n; i++)
        is_whole = !tr_exec_holds(e, TR_S_GRAD, i) || (out->name[i] = strdup(m->param[i].name)) != NULL;
    return is_whole ? TR_OK : tr_fail(TR_NOMEM, "no memory for the gradients of %d parameters", out->n);
}

void tr_fingerprint_release(struct tr_fingerprint *f)
{
    for (int i = 0; f->name && i < f->n; i++)
        free(f->name[i]);
    free(f->name);
    free(f->norm);
    free(f->hash);
    *f = (struct tr_fingerprint){ 0 };
}

/* splitmix64 */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t bits_at(const char *p, size_t size)
{
    uint32_t wide;
    uint16_t narrow;
    if (size == sizeof wide) {
        memcpy(&wide, p, sizeof wide);
        return wide;
    }
    memcpy(&narrow, p, sizeof narrow);
    return narrow;
}

/* n elements on this rank from its local place, which are [place, place + n) of the whole tensor. */
static uint64_t hash_run(struct tr_exec *e, const char *at, size_t size, int64_t place, int64_t n)
{
    uint64_t sum = 0;
    const int64_t chunk = TR_IO_CHUNK * (int64_t)sizeof(float) / (int64_t)size;
    for (int64_t done = 0; done < n; done += chunk) {
        int64_t here = tr_min64(chunk, n - done);
        const char *p = at + done * (int64_t)size;
        if (!tr_exec_device(e)->row->is_host) {
            tr_device_copy_now(tr_exec_device(e), tr_exec_arena(e, TR_A_SAVE), p, (size_t)here * size);
            p = tr_exec_arena(e, TR_A_SAVE);
        }
        for (int64_t i = 0; i < here; i++)
            sum += mix((uint64_t)(place + done + i) << 32 ^ mix(bits_at(p + (size_t)i * size, size)));
    }
    return sum;
}

static uint64_t hash_own(struct tr_exec *e, int param)
{
    const struct tr_placement *place = &tr_exec_compiled(e)->place;
    const struct tr_param_place *p = &place->param[param];
    int64_t first = 0, n = 0, local = 0, len, all = place->model->param[param].n, end = p->first + p->n;
    size_t size = tr_dtype_bytes(tr_exec_dtype(e, TR_S_GRAD));
    uint64_t sum = 0;
    if (!tr_param_is_counted(place, param) || !tr_exec_holds(e, TR_S_GRAD, param))
        return 0;
    const char *at = tr_exec_at(e, TR_S_GRAD, param, &first, &n);
    struct tr_tp_shard shard = tr_exec_tp_shard(e, TR_S_GRAD, param);
    for (int64_t k = 0; k < all && (len = tr_tp_run(&shard, &k, all, &local)) > 0; k += len) {
        int64_t from = tr_max64(local, p->first), to = tr_min64(local + len, end);
        if (from < to)
            sum += hash_run(e, at + from * (int64_t)size, size, k + from - local, to - from);
    }
    return sum;
}

enum tr_status tr_fingerprint_take(struct tr_exec *e, struct tr_fingerprint *out)
{
    struct tr_mesh *mesh = tr_exec_mesh(e);
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = TR_I64,
                         .op = TR_SUM,
                         .in = out->hash,
                         .out = out->hash,
                         .count = (size_t)out->n,
                         .site = "hashes of gradients" };
    TR_PASS(tr_exec_drain(e));
    for (int i = 0; i < out->n; i++)
        out->hash[i] = hash_own(e, i);
    if (tr_exec_compiled(e)->opt.layout.zero >= 1) /* with zero 0 every rank has all elements */
        TR_PASS(tr_comm_run(tr_mesh_axis(mesh, TR_AXIS_SHARD), &c));
    TR_PASS(tr_comm_run(tr_mesh_axis(mesh, TR_AXIS_TP), &c));
    TR_PASS(tr_comm_run(tr_mesh_axis(mesh, TR_AXIS_PP), &c));
    tr_exec_param_norms(e, out->norm);
    return TR_OK;
}
