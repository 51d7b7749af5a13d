/* load_packed.c - weights that are held in grains: from a file that has the same codes, without loss; from any other,
 * by packing what is read. A rank reads and packs only what it holds, chunk by chunk, so loading needs no more memory
 * than for wide weights. Double quantisation alone needs the scales of the whole tensor: they are made first, in a pass
 * of their own over the tensor.
 */
#include "ckpt/load_impl.h"
#include <stdlib.h>

bool tr_wants_packed(const struct tr_store *s, int param, int64_t first, int64_t n)
{
    int64_t grain = tr_packed_format(tr_store_packed(s, param))->grain;
    return s->wants(s->ctx, TR_S_VALUE, param, first / grain, (n + grain - 1) / grain);
}

/* One chunk on its way into grains. */
struct packing {
    enum tr_packed packed;
    const struct tr_hf *hf;
    size_t tensor;
    int64_t first, n; /* elements of the tensor */
    float *buf;       /* floats, or the planes of a file; grains behind them */
    const float *scales;
    pthread_mutex_t lock;
    enum tr_status st;
    char cause[TR_PATH_MAX + 256];
};

static int64_t n_pieces(int64_t n)
{
    return (n + TR_LOAD_PIECE - 1) / TR_LOAD_PIECE;
}

static char *grains_of(const struct packing *p, int64_t at)
{
    return (char *)(p->buf + TR_LOAD_CHUNK) + tr_packed_bytes(p->packed, at);
}

static void encode_piece(void *ctx, int64_t task, int worker)
{
    const struct packing *p = ctx;
    int64_t at = task * TR_LOAD_PIECE, n = tr_min64(TR_LOAD_PIECE, p->n - at),
            grain = tr_packed_format(p->packed)->grain;
    (void)worker;
    tr_packed_encode(p->packed, p->buf + at, n, grains_of(p, at));
    if (p->scales)
        tr_packed_set_scales(p->packed, grains_of(p, at), (n + grain - 1) / grain, p->scales + (p->first + at) / grain);
}

/* The buffer has room for a chunk of floats: the codes take its first half, the scales the second. */
static void join_piece(void *ctx, int64_t task, int worker)
{
    struct packing *p = ctx;
    const struct tr_storage_format *f = tr_packed_format(p->packed);
    int64_t at = task * TR_LOAD_PIECE, n = tr_min64(TR_LOAD_PIECE, p->n - at);
    uint8_t *codes = (uint8_t *)p->buf + tr_plane_bytes(&f->plane[0], at);
    float *scales = p->buf + TR_LOAD_CHUNK / 2 + at / f->grain;
    void *const planes[] = { codes, scales };
    (void)worker;
    enum tr_status st = tr_hf_read_planes(p->hf, p->tensor, (uint64_t)(p->first + at), (size_t)n, planes);
    if (st == TR_OK) {
        tr_packed_join(p->packed, codes, scales, n, grains_of(p, at));
        return;
    }
    pthread_mutex_lock(&p->lock); /* the cause is this thread's */
    p->st = st;
    (void)snprintf(p->cause, sizeof p->cause, "%s", tr_error_text());
    pthread_mutex_unlock(&p->lock);
}

static enum tr_status put_grains(const struct tr_store *s, int param, const struct packing *p)
{
    int64_t grain = tr_packed_format(p->packed)->grain;
    return s->put(s->ctx, TR_S_VALUE, param, p->first / grain, (p->n + grain - 1) / grain, grains_of(p, 0));
}

enum tr_status tr_put_packed(const struct tr_store *s, int param, int64_t first, int64_t n, float *buf,
                             const float *scales)
{
    struct packing p = { .packed = tr_store_packed(s, param), .first = first, .n = n, .buf = buf, .scales = scales };
    tr_pool_run(s->pool, n_pieces(n), encode_piece, &p);
    return put_grains(s, param, &p);
}

static enum tr_status join_chunk(const struct tr_store *s, int param, struct packing *p)
{
    pthread_mutex_init(&p->lock, NULL);
    tr_pool_run(s->pool, n_pieces(p->n), join_piece, p);
    pthread_mutex_destroy(&p->lock);
    return p->st == TR_OK ? put_grains(s, param, p) : tr_fail(p->st, "%s", p->cause);
}

/* The scales of all grains of a tensor, rounded by double quantisation. */
static enum tr_status nested_scales(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf,
                                    float **out)
{
    enum tr_packed packed = tr_store_packed(s, param);
    int64_t n_all = s->model->param[param].n, grain = tr_packed_format(packed)->grain,
            n_grains = (n_all + grain - 1) / grain, n_nests = (n_grains + TR_Q4_NEST - 1) / TR_Q4_NEST;
    float *scales = malloc((size_t)n_grains * sizeof *scales), *nested = malloc((size_t)n_nests * sizeof *nested);
    uint8_t *codes = malloc((size_t)n_grains);
    float map[256], offset = 0;
    enum tr_status st = TR_OK;
    if (!scales || !nested || !codes)
        TR_TRY(
            tr_fail(TR_NOMEM, "load: no memory for %" PRId64 " scales of %s", n_grains, s->model->param[param].name));
    for (int64_t first = 0; first < n_all; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_all - first);
        struct packing p = { .packed = packed, .first = first, .n = n, .buf = buf };
        TR_TRY(tr_load_floats(s, hf, at, param, first, n, buf));
        tr_pool_run(s->pool, n_pieces(n), encode_piece, &p);
        tr_packed_get_scales(packed, grains_of(&p, 0), (n + grain - 1) / grain, scales + first / grain);
    }
    tr_dynamic_map(true, map);
    tr_q4_nest(scales, n_grains, codes, nested, &offset);
    tr_q4_unnest(map, codes, nested, offset, 0, n_grains, scales);
    *out = scales;
    scales = NULL;
out:
    free(scales);
    free(nested);
    free(codes);
    return st;
}

static bool has_codes_of(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param)
{
    return tr_hf_storage(hf, at) == tr_packed_format(tr_store_packed(s, param));
}

enum tr_status tr_load_scales(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf,
                              float **out)
{
    enum tr_packed packed = tr_store_packed(s, param);
    *out = NULL;
    return s->nests_scales && tr_packed_is_q4(packed) && !has_codes_of(s, hf, at, param)
               ? nested_scales(s, hf, at, param, buf, out)
               : TR_OK;
}

static void decode_piece(void *ctx, int64_t task, int worker)
{
    const struct packing *p = ctx;
    int64_t at = task * TR_LOAD_PIECE, n = tr_min64(TR_LOAD_PIECE, p->n - at);
    (void)worker;
    tr_packed_decode(p->packed, grains_of(p, at), 0, n, p->buf + at, TR_F32);
}

enum tr_status tr_load_seen(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t first,
                            int64_t n, const float *scales, float *buf)
{
    enum tr_dtype dtype = s->states.row[TR_S_VALUE].dtype;
    enum tr_packed packed = tr_store_packed(s, param);
    struct packing p = { .packed = packed, .first = first, .n = n, .buf = buf, .scales = scales };
    enum tr_status st = tr_load_floats(s, hf, at, param, first, n, buf);
    if (st == TR_OK && packed && !has_codes_of(s, hf, at, param)) {
        tr_pool_run(s->pool, n_pieces(n), encode_piece, &p);
        tr_pool_run(s->pool, n_pieces(n), decode_piece, &p);
    }
    for (int64_t i = 0, n_now; st == TR_OK && dtype != TR_F32 && i < n; i += n_now) {
        uint16_t rounded[256];
        n_now = tr_min64(TR_COUNT_OF(rounded), n - i);
        tr_convert(buf + i, TR_F32, rounded, dtype, (size_t)n_now);
        tr_convert(rounded, dtype, buf + i, TR_F32, (size_t)n_now);
    }
    return st;
}

enum tr_status tr_load_packed(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf)
{
    enum tr_packed packed = tr_store_packed(s, param);
    bool has_codes = has_codes_of(s, hf, at, param);
    int64_t n_all = s->model->param[param].n;
    float *scales = NULL;
    enum tr_status st = TR_OK;
    if (tr_wants_packed(s, param, 0, n_all))
        TR_TRY(tr_load_scales(s, hf, at, param, buf, &scales));
    for (int64_t first = 0; first < n_all; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, n_all - first);
        struct packing p = { .packed = packed, .hf = hf, .tensor = at, .first = first, .n = n, .buf = buf };
        if (!tr_wants_packed(s, param, first, n))
            continue;
        if (has_codes) {
            TR_TRY(join_chunk(s, param, &p));
            continue;
        }
        TR_TRY(tr_load_floats(s, hf, at, param, first, n, buf));
        TR_TRY(tr_put_packed(s, param, first, n, buf, scales));
    }
out:
    free(scales);
    return st;
}
