/* textfile.h - a text file, perhaps compressed, read once from start to end in bounded pieces, by chunk or by line, and
 * hashed on the way as it is on disk. */
#ifndef TR_DATA_TEXTFILE_H
#define TR_DATA_TEXTFILE_H

#include "base/base.h"
#include "data/unzip.h"

enum { TR_TEXT_CHUNK = 1 << 20, TR_LINE_MAX = 16 << 20 };

struct tr_textfile {
    const char *path;
    int fd;
    uint64_t n_bytes, at;     /* on disk */
    struct tr_hasher *hasher; /* of all bytes read from disk so far */
    struct tr_unzip *unzip;   /* NULL: plain */
    char *raw;                /* of a compressed file: [raw_begin, raw_end) is read and not yet decompressed */
    size_t raw_begin, raw_end;
    char *buf; /* [begin, end) is read and not yet given out */
    size_t n_cap, begin, end;
    size_t max_line;
    int64_t line; /* number of the line given last, from 1 */
};

/* .gz and .zst are decompressed, whatever comes before that suffix. */
enum tr_status tr_textfile_open(struct tr_textfile *f, const char *path, size_t max_line);
void tr_textfile_release(struct tr_textfile *f); /* safe on zeroes with fd = -1 */

/* Reads more behind what is left of the buffer (begin may move). *n = 0 at the end of the file. */
enum tr_status tr_textfile_more(struct tr_textfile *f, size_t *n);

enum tr_line { TR_LINE_TEXT, TR_LINE_TOO_LONG, TR_LINE_END };
/* The next line without its newline, in the buffer until the next call. A longer one than max_line is passed over
 * without being kept. The last line needs no newline. */
enum tr_status tr_textfile_line(struct tr_textfile *f, enum tr_line *kind, const char **text, size_t *n);

/* Hash of everything in the file as it is on disk, by reading it. */
enum tr_status tr_textfile_hash(const char *path, struct tr_hash128 *out);

#endif
