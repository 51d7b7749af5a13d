/* unzip.h - decompresses gzip and zstd as a stream, with a guard against decompression bombs. */
#ifndef TR_TABLE_UNZIP_H
#define TR_TABLE_UNZIP_H

#include "base/base.h"

enum tr_zip { TR_ZIP_NONE, TR_ZIP_GZIP, TR_ZIP_ZSTD };

enum tr_zip tr_zip_of(const char *path); /* by its suffix: .gz, .zst */

/* After the first TR_ZIP_FREE bytes, more than this many bytes of output for one byte of input are refused. Text never
 * comes near this ratio. */
enum { TR_ZIP_RATIO = 256, TR_ZIP_FREE = 64 << 20 };

struct tr_unzip;

enum tr_status tr_unzip_open(enum tr_zip kind, struct tr_unzip **out);
void tr_unzip_close(struct tr_unzip *z); /* NULL is fine */

/* Reads from in[0 .. *n_in) and writes to out[0 .. *n_out). Both counts become the bytes that were used. Consecutive
 * members or frames are one text. *n_out = 0 with all input used: more input is needed. */
enum tr_status tr_unzip_run(struct tr_unzip *z, const void *in, size_t *n_in, void *out, size_t *n_out);
/* Call at the end of the input. TR_IO: it ended inside a member or frame. */
enum tr_status tr_unzip_end(const struct tr_unzip *z);

#endif
