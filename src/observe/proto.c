/* proto.c - protobuf on the wire, checksums of record files, and appending: what the tracker files are made of.
 *
 * A message is built in a string and put into the one above it by length, so there is no second pass over sizes.
 * Rejected: the protobuf library, for five wire types of which three are used.
 */
#include "observe/track_impl.h"

#include <errno.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void add_varint(struct tr_str *s, uint64_t x)
{
    char buf[10];
    size_t n = 0;
    for (; x >= 0x80; x >>= 7)
        buf[n++] = (char)(unsigned char)(x | 0x80);
    buf[n++] = (char)x;
    tr_str_add(s, buf, n);
}

static void add_key(struct tr_str *s, int field, unsigned wire)
{
    add_varint(s, (uint64_t)field << 3 | wire);
}

void tr_pb_int(struct tr_str *s, int field, int64_t x)
{
    add_key(s, field, VARINT);
    add_varint(s, (uint64_t)x);
}

void tr_put_le(unsigned char *at, uint64_t x, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(x >> 8 * i);
}

uint64_t tr_get_le(const unsigned char *at, int n_bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < n_bytes; i++)
        x |= (uint64_t)at[i] << 8 * i;
    return x;
}

static void add_double(struct tr_str *s, double x)
{
    uint64_t bits;
    unsigned char raw[8];
    memcpy(&bits, &x, sizeof bits);
    tr_put_le(raw, bits, 8);
    tr_str_add(s, (const char *)raw, sizeof raw);
}

void tr_pb_double(struct tr_str *s, int field, double x)
{
    add_key(s, field, FIXED64);
    add_double(s, x);
}

void tr_pb_float(struct tr_str *s, int field, float x)
{
    uint32_t bits;
    unsigned char raw[4];
    memcpy(&bits, &x, sizeof bits);
    tr_put_le(raw, bits, 4);
    add_key(s, field, FIXED32);
    tr_str_add(s, (const char *)raw, sizeof raw);
}

void tr_pb_bytes(struct tr_str *s, int field, const void *p, size_t n)
{
    add_key(s, field, BYTES);
    add_varint(s, n);
    tr_str_add(s, p, n);
}

void tr_pb_text(struct tr_str *s, int field, const char *text)
{
    tr_pb_bytes(s, field, text, strlen(text));
}

void tr_pb_doubles(struct tr_str *s, int field, const double *x, size_t n)
{
    add_key(s, field, BYTES);
    add_varint(s, 8 * (uint64_t)n);
    for (size_t i = 0; i < n; i++)
        add_double(s, x[i]);
}

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *out)
{
    uint64_t x = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        unsigned char byte = *(*at)++;
        x |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = x;
            return true;
        }
    }
    return false;
}

bool tr_pb_next(const unsigned char **at, const unsigned char *end, struct tr_pb_field *out)
{
    uint64_t key = 0, n = 0;
    *out = (struct tr_pb_field){ 0 };
    if (!read_varint(at, end, &key))
        return false;
    out->field = (int)(key >> 3 & 0x1fffffff);
    switch (key & 7) {
    case VARINT:
        return read_varint(at, end, &out->value);
    case FIXED64:
    case FIXED32:
        n = (key & 7) == FIXED64 ? 8 : 4;
        break;
    case BYTES:
        if (!read_varint(at, end, &n))
            return false;
        break;
    default:
        return false;
    }
    if (n > (uint64_t)(end - *at))
        return false;
    out->p = *at;
    out->n = (size_t)n;
    *at += n;
    return true;
}

/* Four bits at a time: 16 words a polynomial, and fast enough for a few hundred bytes a step. Word i is i after four
 * steps of the polynomial's shift register. */
uint32_t tr_crc(int which, uint32_t before, const void *p, size_t n)
{
    static const uint32_t tables[2][16] = {
        { 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c, 0xedb88320,
          0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c },
        { 0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d, 0x82f63b78,
          0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75 },
    };
    const uint32_t *table = tables[which];
    uint32_t crc = ~before;
    for (const unsigned char *b = p; n > 0; b++, n--) {
        crc ^= *b;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

enum tr_status tr_append(int fd, const char *name, struct tr_str *s)
{
    enum tr_status st = TR_OK;
    if (!tr_str_ok(s))
        st = tr_fail(TR_NOMEM, "%s: no memory", name);
    for (size_t done = 0; st == TR_OK && done < s->n;) {
        ssize_t n = tr_guarded_write(fd, s->p + done, s->n - done);
        if (n <= 0)
            st = tr_fail(TR_IO, "%s: %s", name, n < 0 ? strerror(errno) : "nothing was written");
        else
            done += (size_t)n;
    }
    tr_str_clear(s);
    return st;
}
