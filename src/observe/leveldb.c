/* leveldb.c - LevelDB's log, the file of W&B's offline runs: blocks of 32 KiB of chunks with checksum, length and type;
 * a record is one chunk or several. A reader stops at the first record that is not whole. */
#include "observe/track_impl.h"

#include <unistd.h>

enum { BLOCK = 32768, CHUNK_HEAD = 7, RECORD_MAX = 64 << 20 };
enum { CHUNK_FULL = 1, CHUNK_FIRST, CHUNK_MIDDLE, CHUNK_LAST };

static void add_chunk(struct tr_str *out, off_t *at, int type, const char *p, size_t n)
{
    unsigned char head[CHUNK_HEAD];
    tr_put_le(head + 4, n, 2);
    head[6] = (unsigned char)type;
    tr_put_le(head, tr_crc(TR_CRC32, tr_crc(TR_CRC32, 0, head + 6, 1), p, n), 4);
    tr_str_add(out, (const char *)head, sizeof head);
    tr_str_add(out, p, n);
    *at += (off_t)(sizeof head + n);
}

void tr_leveldb_add(struct tr_str *out, off_t *at, const char *p, size_t n)
{
    static const char zeros[CHUNK_HEAD];
    bool is_first = true, is_last = false;
    while (!is_last) {
        size_t left = BLOCK - (size_t)(*at % BLOCK);
        if (left < CHUNK_HEAD) {
            tr_str_add(out, zeros, left);
            *at += (off_t)left;
            left = BLOCK;
        }
        size_t part = n < left - CHUNK_HEAD ? n : left - CHUNK_HEAD;
        is_last = part == n;
        add_chunk(out, at,
                  is_first  ? (is_last ? CHUNK_FULL : CHUNK_FIRST)
                  : is_last ? CHUNK_LAST
                            : CHUNK_MIDDLE,
                  p, part);
        is_first = false;
        p += part;
        n -= part;
    }
}

static bool read_chunk(struct tr_leveldb *l, int *type)
{
    unsigned char head[CHUNK_HEAD], data[BLOCK];
    size_t left = BLOCK - (size_t)(l->at % BLOCK);
    if (left < CHUNK_HEAD)
        l->at += (off_t)left;
    if (pread(l->fd, head, sizeof head, l->at) != (ssize_t)sizeof head)
        return false;
    size_t n = (size_t)tr_get_le(head + 4, 2), room = BLOCK - (size_t)(l->at % BLOCK) - CHUNK_HEAD;
    if (n > room || pread(l->fd, data, n, l->at + CHUNK_HEAD) != (ssize_t)n)
        return false;
    if (tr_get_le(head, 4) != tr_crc(TR_CRC32, tr_crc(TR_CRC32, 0, head + 6, 1), data, n))
        return false;
    *type = head[6];
    tr_str_add(&l->record, (const char *)data, n);
    l->at += (off_t)(CHUNK_HEAD + n);
    return l->record.n <= RECORD_MAX && tr_str_ok(&l->record);
}

bool tr_leveldb_next(struct tr_leveldb *l)
{
    int type = 0;
    bool is_first = true;
    tr_str_clear(&l->record);
    do {
        if (!read_chunk(l, &type) || is_first != (type == CHUNK_FULL || type == CHUNK_FIRST))
            return false;
        is_first = false;
    } while (type == CHUNK_FIRST || type == CHUNK_MIDDLE);
    return type == CHUNK_FULL || type == CHUNK_LAST;
}
