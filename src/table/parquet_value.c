/* parquet_value.c - the encodings of parquet, each as a cursor that gives one value at a time.
 *
 * A cursor takes no memory in proportion to what the page claims: a run or a block of deltas may stand for any number
 * of values, and only those that a row asks for are made. The order of bytes is that of the format, little-endian.
 */
#include "table/parquet.h"

#include <string.h>

static uint64_t le(const uint8_t *p, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static size_t span_left(const uint8_t *p, const uint8_t *end)
{
    return (size_t)(end - p);
}

/* ---- runs ---- */

static bool next_run(struct tr_runs *r)
{
    bool is_bad = false;
    size_t n_bytes = (r->width + 7) / 8;
    uint64_t head = tr_varint(&r->p, r->end, &is_bad);
    r->is_packed = head & 1;
    r->n_bits = 0;
    r->bits = 0;
    if (is_bad || head >> 1 > UINT32_MAX)
        return false;
    if (r->is_packed) {
        r->n_left = (head >> 1) * 8;
        return true;
    }
    r->n_left = head >> 1;
    if (n_bytes > span_left(r->p, r->end))
        return false;
    r->value = (uint32_t)le(r->p, n_bytes);
    r->p += n_bytes;
    return true;
}

bool tr_runs_next(struct tr_runs *r, uint32_t *out)
{
    while (r->n_left == 0)
        if (!next_run(r))
            return false;
    r->n_left--;
    if (!r->is_packed) {
        *out = r->value;
        return true;
    }
    while (r->n_bits < r->width) {
        if (r->p == r->end)
            return false;
        r->bits |= (uint64_t)*r->p++ << r->n_bits;
        r->n_bits += 8;
    }
    *out = (uint32_t)(r->bits & ((UINT64_C(1) << r->width) - 1));
    r->bits >>= r->width;
    r->n_bits -= r->width;
    return true;
}

/* ---- deltas ---- */

bool tr_deltas_open(struct tr_deltas *d, const uint8_t *p, const uint8_t *end)
{
    bool is_bad = false;
    *d = (struct tr_deltas){ .is_first = true };
    uint64_t n_block = tr_varint(&p, end, &is_bad);
    d->n_mini = tr_varint(&p, end, &is_bad);
    d->n_left = tr_varint(&p, end, &is_bad);
    d->value = (uint64_t)tr_zigzag(tr_varint(&p, end, &is_bad));
    if (is_bad || d->n_mini == 0 || n_block == 0 || n_block % d->n_mini != 0 || n_block > 1u << 30 ||
        n_block / d->n_mini % 8 != 0)
        return false;
    d->n_in_mini = n_block / d->n_mini;
    d->i_mini = d->n_mini; /* a block begins with the second value */
    d->i_value = d->n_in_mini;
    d->p = p;
    d->end = end;
    return true;
}

/* Goes to the next miniblock; of a block with values left, all widths are there. */
static bool next_mini(struct tr_deltas *d)
{
    bool is_bad = false;
    d->i_value = 0;
    d->bits = 0;
    d->n_bits = 0;
    if (++d->i_mini < d->n_mini)
        return d->widths[d->i_mini] <= 64;
    d->min_delta = (uint64_t)tr_zigzag(tr_varint(&d->p, d->end, &is_bad));
    if (is_bad || d->n_mini > span_left(d->p, d->end))
        return false;
    d->widths = d->p;
    d->p += d->n_mini;
    d->i_mini = 0;
    return d->widths[0] <= 64;
}

/* The next `width` bits; up to 64 of them, so a byte may be split over two calls. */
static bool take_bits(struct tr_deltas *d, unsigned width, uint64_t *out)
{
    uint64_t x = 0;
    for (unsigned have = 0; have < width;) {
        if (d->n_bits == 0) {
            if (d->p == d->end)
                return false;
            d->bits = *d->p++;
            d->n_bits = 8;
        }
        unsigned n = width - have < d->n_bits ? width - have : d->n_bits;
        x |= (d->bits & ((1u << n) - 1)) << have;
        d->bits >>= n;
        d->n_bits -= n;
        have += n;
    }
    *out = x;
    return true;
}

bool tr_deltas_next(struct tr_deltas *d, int64_t *out)
{
    uint64_t delta;
    if (d->n_left == 0)
        return false;
    d->n_left--;
    if (!d->is_first) {
        if (d->i_value == d->n_in_mini && !next_mini(d))
            return false;
        d->i_value++;
        if (!take_bits(d, d->widths[d->i_mini], &delta))
            return false;
        d->value += d->min_delta + delta;
    }
    d->is_first = false;
    *out = (int64_t)d->value;
    return true;
}

const uint8_t *tr_deltas_end(const struct tr_deltas *from)
{
    struct tr_deltas d = *from;
    uint64_t n = d.n_left > 0 ? d.n_left - 1 : 0;
    while (n > 0) {
        if (!next_mini(&d))
            return NULL;
        uint64_t n_bytes = d.n_in_mini / 8 * d.widths[d.i_mini];
        if (n_bytes > span_left(d.p, d.end))
            return NULL;
        d.p += n_bytes;
        n -= n < d.n_in_mini ? n : d.n_in_mini;
    }
    return d.p;
}

/* ---- values ---- */

size_t tr_pq_width(enum tr_pq_type type, size_t n_fixed)
{
    static const size_t widths[] = {
        [PQ_INT32] = 4, [PQ_INT64] = 8, [PQ_INT96] = 12, [PQ_FLOAT] = 4, [PQ_DOUBLE] = 8, [PQ_FIXED] = 0
    };
    return type == PQ_FIXED ? n_fixed : type < TR_COUNT_OF(widths) ? widths[type] : 0;
}

static bool open_indices(struct tr_pq_values *v)
{
    if (v->p == v->end)
        return true; /* of a page of nulls */
    v->runs = (struct tr_runs){ v->p + 1, v->end, *v->p, 0, 0, 0, 0, false };
    return *v->p <= 32;
}

/* RLE of values, which only bool has: its length in four bytes, then runs. */
static bool open_bools(struct tr_pq_values *v)
{
    if (v->type != PQ_BOOLEAN || span_left(v->p, v->end) < 4 || le(v->p, 4) > span_left(v->p, v->end) - 4)
        return false;
    v->runs = (struct tr_runs){ v->p + 4, v->p + 4 + le(v->p, 4), 1, 0, 0, 0, 0, false };
    return true;
}

static bool open_lengths(struct tr_pq_values *v, const uint8_t *p)
{
    if (!tr_deltas_open(&v->lengths, p, v->end))
        return false;
    v->p = tr_deltas_end(&v->lengths);
    return v->p != NULL;
}

bool tr_pq_values_open(struct tr_pq_values *v, int encoding, const uint8_t *p, const uint8_t *end)
{
    bool is_bytes = v->type == PQ_BYTE_ARRAY || v->type == PQ_FIXED;
    size_t width = tr_pq_width(v->type, v->n_fixed);
    v->encoding = encoding;
    v->p = p;
    v->end = end;
    v->bit = 0;
    v->i_next = 0;
    tr_str_clear(&v->before);
    switch (encoding) {
    case PQ_PLAIN:
        return true;
    case PQ_PLAIN_DICTIONARY:
    case PQ_RLE_DICTIONARY:
        return open_indices(v);
    case PQ_RLE:
        return p == end || open_bools(v);
    case PQ_DELTA_BINARY:
        return (v->type == PQ_INT32 || v->type == PQ_INT64) && (p == end || tr_deltas_open(&v->deltas, p, end));
    case PQ_DELTA_LENGTH:
        return v->type == PQ_BYTE_ARRAY && (p == end || open_lengths(v, p));
    case PQ_DELTA_BYTES: /* the lengths of prefixes, then what follows them */
        if (!is_bytes || (p != end && !tr_deltas_open(&v->deltas, p, end)))
            return false;
        return p == end || ((p = tr_deltas_end(&v->deltas)) != NULL && open_lengths(v, p));
    case PQ_SPLIT:
        v->n_all = width ? span_left(p, end) / width : 0;
        return width > 0 && v->type != PQ_INT96;
    default:
        return false;
    }
}

static bool take_text(struct tr_pq_values *v, uint64_t n, struct tr_pq_value *out)
{
    if (n > span_left(v->p, v->end))
        return false;
    out->p = (const char *)v->p;
    out->n = (size_t)n;
    v->p += n;
    return true;
}

/* A value of fixed width from its bytes. */
static void from_bytes(const struct tr_pq_values *v, const uint8_t *p, struct tr_pq_value *out)
{
    uint32_t bits;
    switch (v->type) {
    case PQ_INT32:
        out->i = (int32_t)le(p, 4);
        break;
    case PQ_INT64:
        out->i = (int64_t)le(p, 8);
        break;
    case PQ_FLOAT: {
        float x;
        bits = (uint32_t)le(p, 4);
        memcpy(&x, &bits, 4);
        out->real = (double)x;
        break;
    }
    case PQ_DOUBLE: {
        uint64_t wide = le(p, 8);
        memcpy(&out->real, &wide, 8);
        break;
    }
    default:
        out->p = (const char *)p;
        out->n = v->n_fixed;
    }
}

static bool next_plain(struct tr_pq_values *v, struct tr_pq_value *out)
{
    if (v->type == PQ_BYTE_ARRAY) {
        if (span_left(v->p, v->end) < 4)
            return false;
        v->p += 4;
        return take_text(v, le(v->p - 4, 4), out);
    }
    if (v->type == PQ_BOOLEAN) {
        if (v->p == v->end)
            return false;
        out->i = *v->p >> v->bit & 1;
        v->bit = (v->bit + 1) % 8;
        v->p += v->bit == 0;
        return true;
    }
    size_t width = tr_pq_width(v->type, v->n_fixed);
    if (width > span_left(v->p, v->end))
        return false;
    from_bytes(v, v->p, out);
    v->p += width;
    return true;
}

static bool next_index(struct tr_pq_values *v, struct tr_pq_value *out)
{
    uint32_t i;
    if (!tr_runs_next(&v->runs, &i) || i >= v->dict->n)
        return false;
    if (v->type == PQ_BYTE_ARRAY) {
        out->p = (const char *)v->dict->p + v->dict->spans[i].at;
        out->n = v->dict->spans[i].n;
    } else {
        from_bytes(v, v->dict->p + i * tr_pq_width(v->type, v->n_fixed), out);
    }
    return true;
}

static bool next_bytes(struct tr_pq_values *v, struct tr_pq_value *out)
{
    int64_t n_prefix, n_rest;
    struct tr_pq_value rest;
    if (!tr_deltas_next(&v->deltas, &n_prefix) || !tr_deltas_next(&v->lengths, &n_rest) || n_prefix < 0 ||
        (uint64_t)n_prefix > v->before.n || n_rest < 0 || !take_text(v, (uint64_t)n_rest, &rest))
        return false;
    v->before.n = (size_t)n_prefix;
    tr_str_add(&v->before, rest.p, rest.n);
    if (!tr_str_ok(&v->before) || (v->type == PQ_FIXED && v->before.n != v->n_fixed))
        return false;
    out->p = v->before.p;
    out->n = v->before.n;
    return true;
}

static bool next_split(struct tr_pq_values *v, struct tr_pq_value *out)
{
    uint8_t bytes[16];
    size_t width = tr_pq_width(v->type, v->n_fixed);
    if (v->i_next >= v->n_all || width > sizeof bytes)
        return false;
    for (size_t k = 0; k < width; k++)
        bytes[k] = v->p[k * v->n_all + v->i_next];
    v->i_next++;
    if (v->type != PQ_FIXED) {
        from_bytes(v, bytes, out);
        return true;
    }
    tr_str_clear(&v->before);
    tr_str_add(&v->before, (const char *)bytes, width);
    out->p = v->before.p;
    out->n = v->before.n;
    return tr_str_ok(&v->before);
}

bool tr_pq_values_next(struct tr_pq_values *v, struct tr_pq_value *out)
{
    uint32_t bit;
    int64_t n;
    switch (v->encoding) {
    case PQ_PLAIN:
        return next_plain(v, out);
    case PQ_PLAIN_DICTIONARY:
    case PQ_RLE_DICTIONARY:
        return next_index(v, out);
    case PQ_RLE:
        out->i = 0;
        if (!tr_runs_next(&v->runs, &bit))
            return false;
        out->i = bit;
        return true;
    case PQ_DELTA_BINARY:
        if (!tr_deltas_next(&v->deltas, &n))
            return false;
        out->i = v->type == PQ_INT32 ? (int32_t)(uint32_t)n : n;
        return true;
    case PQ_DELTA_LENGTH:
        return tr_deltas_next(&v->lengths, &n) && n >= 0 && take_text(v, (uint64_t)n, out);
    case PQ_DELTA_BYTES:
        return next_bytes(v, out);
    case PQ_SPLIT:
        return next_split(v, out);
    default:
        return false;
    }
}
