/* packed.c - grains of packed weights. The codes themselves are quant.c's. */
#include "base/packed.h"
#include "base/quant.h"
#include "base/banned.h"
#include <math.h>

static enum tr_q4 q4_of(enum tr_packed p)
{
    return p == TR_PACKED_FP4 ? TR_FP4 : TR_NF4;
}

const struct tr_storage_format *tr_packed_format(enum tr_packed p)
{
    TR_BUG_ON(p == TR_NOT_PACKED || (unsigned)p >= TR_PACKED_COUNT);
    return tr_packed_is_q4(p) ? tr_storage_q4(q4_of(p)) : tr_storage_f8();
}

/* Where in a grain the scale is. */
static size_t codes_bytes(const struct tr_storage_format *f)
{
    return tr_plane_bytes(&f->plane[0], f->grain);
}

size_t tr_packed_grain_bytes(enum tr_packed p)
{
    const struct tr_storage_format *f = tr_packed_format(p);
    return tr_storage_bytes(f, f->grain);
}

size_t tr_packed_bytes(enum tr_packed p, int64_t n)
{
    int64_t grain = tr_packed_format(p)->grain;
    return (size_t)((n + grain - 1) / grain) * tr_packed_grain_bytes(p);
}

const char *tr_packed_name(enum tr_packed p)
{
    return tr_packed_format(p)->name;
}

/* The largest element becomes the largest e4m3. */
static void f8_encode(const float *x, int64_t n, uint8_t *codes, float *scale)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    *scale = most / TR_E4M3_MOST;
    for (int64_t i = 0; i < n; i++)
        codes[i] = *scale > 0 ? tr_e4m3_of_f32(x[i] / *scale) : 0;
}

void tr_packed_encode(enum tr_packed p, const float *x, int64_t n, void *grains)
{
    const struct tr_storage_format *f = tr_packed_format(p);
    size_t n_codes = codes_bytes(f), bytes = tr_packed_grain_bytes(p);
    char *to = grains;
    for (int64_t at = 0; at < n; at += f->grain, to += bytes) {
        int64_t n_now = tr_min64(f->grain, n - at);
        float scale;
        memset(to, 0, n_codes); /* the rest of a last grain that is partly used */
        if (tr_packed_is_q4(p))
            tr_q4_encode(q4_of(p), x + at, n_now, (uint8_t *)to, &scale);
        else
            f8_encode(x + at, n_now, (uint8_t *)to, &scale);
        memcpy(to + n_codes, &scale, sizeof scale);
    }
}

void tr_packed_decode(enum tr_packed p, const void *grains, int64_t first, int64_t n, void *dst, enum tr_dtype dtype)
{
    const struct tr_storage_format *f = tr_packed_format(p);
    size_t n_codes = codes_bytes(f), bytes = tr_packed_grain_bytes(p);
    char *to = dst;
    for (int64_t at = first, end = first + n, n_now; at < end; at += n_now) {
        const uint8_t *grain = (const uint8_t *)grains + (size_t)(at / f->grain) * bytes;
        float scale;
        n_now = tr_min64(end - at, f->grain - at % f->grain);
        memcpy(&scale, grain + n_codes, sizeof scale);
        if (tr_packed_is_q4(p))
            tr_q4_decode(q4_of(p), grain, &scale, at % f->grain, n_now, to, dtype);
        else
            tr_f8_decode(grain, &scale, at % f->grain, n_now, to, dtype);
        to += (size_t)n_now * tr_dtype_bytes(dtype);
    }
}

void tr_packed_get_scales(enum tr_packed p, const void *grains, int64_t n, float *scales)
{
    size_t at = codes_bytes(tr_packed_format(p)), bytes = tr_packed_grain_bytes(p);
    for (int64_t i = 0; i < n; i++, at += bytes)
        memcpy(&scales[i], (const char *)grains + at, sizeof *scales);
}

void tr_packed_set_scales(enum tr_packed p, void *grains, int64_t n, const float *scales)
{
    size_t at = codes_bytes(tr_packed_format(p)), bytes = tr_packed_grain_bytes(p);
    for (int64_t i = 0; i < n; i++, at += bytes)
        memcpy((char *)grains + at, &scales[i], sizeof *scales);
}

void tr_packed_join(enum tr_packed p, const uint8_t *codes, const float *scales, int64_t n, void *grains)
{
    const struct tr_storage_format *f = tr_packed_format(p);
    size_t n_codes = codes_bytes(f), bytes = tr_packed_grain_bytes(p);
    char *to = grains;
    for (int64_t at = 0; at < n; at += f->grain, to += bytes) {
        memset(to, 0, n_codes);
        memcpy(to, codes + tr_plane_bytes(&f->plane[0], at), tr_plane_bytes(&f->plane[0], tr_min64(f->grain, n - at)));
        memcpy(to + n_codes, scales++, sizeof *scales);
    }
}
