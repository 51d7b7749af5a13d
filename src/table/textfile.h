/* textfile.h - reads a text file, perhaps compressed, once from start to end, by chunk or by line, with bounded memory.
 * The bytes on disk are hashed at the same time. */
#ifndef TR_TABLE_TEXTFILE_H
#define TR_TABLE_TEXTFILE_H

#include "base/base.h"
#include "table/unzip.h"

enum { TR_TEXT_CHUNK = 1 << 20, TR_LINE_MAX = 16 << 20 };

struct tr_textfile {
    const char *path;
    int fd;
    uint64_t n_bytes, at;     /* on disk */
    struct tr_hasher *hasher; /* of all bytes read from disk so far */
    struct tr_unzip *unzip;   /* NULL: plain */
    char *raw;                /* of a compressed file: [raw_begin, raw_end) is read and not yet decompressed */
    size_t raw_begin, raw_end;
    char *buf; /* [begin, end) is read and not yet returned */
    size_t n_cap, begin, end;
    size_t max_line;
    int64_t line; /* number of the last line that was returned, from 1 */
};

/* A file whose name ends in .gz or .zst is decompressed. */
enum tr_status tr_textfile_open(struct tr_textfile *f, const char *path, size_t max_line);
/* Bytes that were read before, as a file; f is zeroes with fd = -1, or held such a file before. */
enum tr_status tr_textfile_of(struct tr_textfile *f, const char *path, const char *p, size_t n);
void tr_textfile_release(struct tr_textfile *f); /* safe on zeroes with fd = -1 */

/* Reads more bytes after those that are left in the buffer (begin may move). *n = 0 at the end of the file. */
enum tr_status tr_textfile_more(struct tr_textfile *f, size_t *n);

enum tr_line { TR_LINE_TEXT, TR_LINE_TOO_LONG, TR_LINE_END };
/* The next line without its newline, in the buffer until the next call. A line longer than max_line is skipped without
 * being kept in memory. The last line needs no newline. */
enum tr_status tr_textfile_line(struct tr_textfile *f, enum tr_line *kind, const char **text, size_t *n);

/* Reads the bytes on disk that are left, and gives the hash of all. No text can be read after it. */
enum tr_status tr_textfile_rest(struct tr_textfile *f, struct tr_hash128 *out);
/* Reads the file and hashes its bytes on disk. */
enum tr_status tr_textfile_hash(const char *path, struct tr_hash128 *out);

#endif
