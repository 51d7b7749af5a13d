/* unzip.h - gzip and zstd, streamed: compressed bytes in, text out, with a guard against bombs. */
#ifndef TR_DATA_UNZIP_H
#define TR_DATA_UNZIP_H

#include "base/base.h"

enum tr_zip { TR_ZIP_NONE, TR_ZIP_GZIP, TR_ZIP_ZSTD };

enum tr_zip tr_zip_of(const char *path); /* by its suffix: .gz, .zst */

/* More than this many bytes out for one byte in, after the first TR_ZIP_FREE bytes, is refused: text never comes near.
 */
enum { TR_ZIP_RATIO = 256, TR_ZIP_FREE = 64 << 20 };

struct tr_unzip;

enum tr_status tr_unzip_open(enum tr_zip kind, struct tr_unzip **out);
void tr_unzip_close(struct tr_unzip *z); /* NULL is fine */

/* Takes from in[0 .. *n_in), puts into out[0 .. *n_out); both become what was used. Several members or frames one after
 * the other are one text. *n_out = 0 with all input used: give more. */
enum tr_status tr_unzip_run(struct tr_unzip *z, const void *in, size_t *n_in, void *out, size_t *n_out);
/* The input has ended: TR_IO when it ended inside a member or frame. */
enum tr_status tr_unzip_end(const struct tr_unzip *z);

#endif
