/* block.c - see block.h. Snappy and LZ4 are decoded here: each is a list of literals and copies, and the only bounds to
 * keep are those of the two buffers. */
#include "table/block.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

struct packed_bytes {
    const uint8_t *p, *end;
};
struct sink {
    uint8_t *begin, *p, *end;
};

static size_t left(const struct packed_bytes *in)
{
    return (size_t)(in->end - in->p);
}

static bool put_literal(struct packed_bytes *in, struct sink *out, size_t n)
{
    if (n > left(in) || n > (size_t)(out->end - out->p))
        return false;
    if (n > 0)
        memcpy(out->p, in->p, n);
    in->p += n;
    out->p += n;
    return true;
}

/* n bytes from `back` before the end of what is written; they may overlap what they become. */
static bool put_copy(struct sink *out, size_t back, size_t n)
{
    if (back == 0 || back > (size_t)(out->p - out->begin) || n > (size_t)(out->end - out->p))
        return false;
    if (back >= n) {
        memcpy(out->p, out->p - back, n);
        out->p += n;
    } else {
        for (; n > 0; n--, out->p++)
            *out->p = *(out->p - back);
    }
    return true;
}

/* Little-endian, of n bytes. */
static bool take_number(struct packed_bytes *in, size_t n, size_t *out)
{
    *out = 0;
    if (n > left(in))
        return false;
    for (size_t i = 0; i < n; i++)
        *out |= (size_t)in->p[i] << (8 * i);
    in->p += n;
    return true;
}

static bool snappy(struct packed_bytes in, struct sink out)
{
    size_t n_out = 0, n, back;
    for (unsigned shift = 0;; shift += 7) {
        if (left(&in) == 0 || shift > 28)
            return false;
        n_out |= (size_t)(*in.p & 127) << shift;
        if (*in.p++ < 128)
            break;
    }
    if (n_out != (size_t)(out.end - out.p))
        return false;
    while (left(&in) > 0) {
        uint8_t tag = *in.p++;
        if ((tag & 3) == 0) {
            n = tag >> 2;
            if (n >= 60 && !take_number(&in, n - 59, &n))
                return false;
            if (!put_literal(&in, &out, n + 1))
                return false;
            continue;
        }
        n = (tag & 3) == 1 ? 4 + (size_t)(tag >> 2 & 7) : 1 + (size_t)(tag >> 2);
        if (!take_number(&in, (tag & 3) == 1 ? 1 : (tag & 3) == 2 ? 2 : 4, &back))
            return false;
        if ((tag & 3) == 1)
            back |= (size_t)(tag >> 5) << 8;
        if (!put_copy(&out, back, n))
            return false;
    }
    return out.p == out.end;
}

/* A length of which the token has 15 at most. */
static bool lz4_length(struct packed_bytes *in, size_t *n)
{
    if (*n < 15)
        return true;
    for (uint8_t more = 255; more == 255; *n += more) {
        if (left(in) == 0)
            return false;
        more = *in->p++;
    }
    return true;
}

static bool lz4_block(struct packed_bytes in, struct sink *out)
{
    while (left(&in) > 0) {
        size_t n_literal = *in.p >> 4, n_copy = *in.p & 15, back;
        in.p++;
        if (!lz4_length(&in, &n_literal) || !put_literal(&in, out, n_literal))
            return false;
        if (left(&in) == 0)
            return true; /* the last sequence has no copy */
        if (!take_number(&in, 2, &back) || !lz4_length(&in, &n_copy) || !put_copy(out, back, n_copy + 4))
            return false;
    }
    return true;
}

/* The checksums of a frame are not compared: a buffer of another length or with a copy from outside is refused, and
 * Arrow's own writers leave them out. */
static bool lz4_frame(struct packed_bytes in, struct sink out)
{
    size_t magic, flags, n;
    if (!take_number(&in, 4, &magic) || magic != 0x184D2204 || !take_number(&in, 2, &flags) || (flags >> 6 & 3) != 1)
        return false;
    size_t n_skip = (flags & 8 ? 8u : 0u) + (flags & 1 ? 4u : 0u) + 1; /* content size, dictionary, header checksum */
    if (n_skip > left(&in))
        return false;
    in.p += n_skip;
    for (;;) {
        if (!take_number(&in, 4, &n))
            return false;
        if (n == 0)
            return out.p == out.end;
        size_t k = n & 0x7fffffff;
        if (k > left(&in))
            return false;
        struct packed_bytes block = { in.p, in.p + k };
        if (n >> 31 ? !put_literal(&block, &out, k) : !lz4_block(block, &out))
            return false;
        in.p += k;
        if (flags & 16 && !take_number(&in, 4, &n))
            return false;
    }
}

static bool gzip(const void *in, size_t n_in, void *out, size_t n_out)
{
    z_stream z = { 0 };
    if (n_in > 1u << 31 || n_out > 1u << 31 || inflateInit2(&z, 15 + 32) != Z_OK)
        return false;
    z.next_in = (Bytef *)(uintptr_t)in;
    z.avail_in = (uInt)n_in;
    z.next_out = out;
    z.avail_out = (uInt)n_out;
    int rc = inflate(&z, Z_FINISH);
    while (rc == Z_STREAM_END && z.avail_in > 0 && z.avail_out > 0 && inflateReset(&z) == Z_OK)
        rc = inflate(&z, Z_FINISH);
    bool is_ok = rc == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_ok;
}

bool tr_block_unpack(enum tr_block codec, const void *in, size_t n_in, void *out, size_t n_out)
{
    struct packed_bytes from = { in, (const uint8_t *)in + n_in };
    struct sink to = { out, out, (uint8_t *)out + n_out };
    switch (codec) {
    case TR_BLOCK_PLAIN:
        return n_in == n_out && put_literal(&from, &to, n_in);
    case TR_BLOCK_SNAPPY:
        return snappy(from, to);
    case TR_BLOCK_GZIP:
        return gzip(in, n_in, out, n_out);
    case TR_BLOCK_ZSTD:
        return ZSTD_decompress(out, n_out, in, n_in) == n_out;
    case TR_BLOCK_LZ4:
        return lz4_block(from, &to) && to.p == to.end;
    case TR_BLOCK_LZ4_FRAME:
        return lz4_frame(from, to);
    }
    return false;
}
