/* packed.c - grains of packed weights. The codes themselves are quant.c's. */
#include "base/packed.h"
#include "base/quant.h"
#include "base/banned.h"

static const enum tr_q4 q4_of[] = { [TR_PACKED_NF4] = TR_NF4, [TR_PACKED_FP4] = TR_FP4 };
_Static_assert(TR_COUNT_OF(q4_of) == TR_PACKED_COUNT, "one codec a format");

static enum tr_q4 codec(enum tr_packed p)
{
    TR_BUG_ON(p == TR_NOT_PACKED || (unsigned)p >= TR_PACKED_COUNT);
    return q4_of[p];
}

enum { BLOCK = TR_Q4_BLOCK, CODES = BLOCK / 2, BYTES = CODES + (int)sizeof(float) };

const struct tr_storage_format *tr_packed_format(enum tr_packed p)
{
    return tr_storage_q4(codec(p));
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

void tr_packed_encode(enum tr_packed p, const float *x, int64_t n, void *grains)
{
    char *to = grains;
    for (int64_t at = 0; at < n; at += BLOCK, to += BYTES) {
        float scale;
        memset(to, 0, CODES); /* the rest of a last grain that is partly used */
        tr_q4_encode(codec(p), x + at, tr_min64(BLOCK, n - at), (uint8_t *)to, &scale);
        memcpy(to + CODES, &scale, sizeof scale);
    }
}

void tr_packed_decode(enum tr_packed p, const void *grains, int64_t first, int64_t n, void *dst, enum tr_dtype dtype)
{
    char *to = dst;
    for (int64_t at = first, end = first + n, n_now; at < end; at += n_now) {
        const char *grain = (const char *)grains + at / BLOCK * BYTES;
        float scale;
        n_now = tr_min64(end - at, BLOCK - at % BLOCK);
        memcpy(&scale, grain + CODES, sizeof scale);
        tr_q4_decode(codec(p), (const uint8_t *)grain, &scale, at % BLOCK, n_now, to, dtype);
        to += (size_t)n_now * tr_dtype_bytes(dtype);
    }
}

void tr_packed_get_scales(enum tr_packed p, const void *grains, int64_t n, float *scales)
{
    (void)codec(p);
    for (int64_t i = 0; i < n; i++)
        memcpy(&scales[i], (const char *)grains + i * BYTES + CODES, sizeof *scales);
}

void tr_packed_set_scales(enum tr_packed p, void *grains, int64_t n, const float *scales)
{
    (void)codec(p);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)grains + i * BYTES + CODES, &scales[i], sizeof *scales);
}

void tr_packed_join(enum tr_packed p, const uint8_t *codes, const float *scales, int64_t n, void *grains)
{
    char *to = grains;
    (void)codec(p);
    for (int64_t at = 0; at < n; at += BLOCK, to += BYTES) {
        size_t n_bytes = (size_t)(tr_min64(BLOCK, n - at) + 1) / 2;
        memset(to, 0, CODES);
        memcpy(to, codes + at / 2, n_bytes);
        memcpy(to + CODES, scales++, sizeof *scales);
    }
}
