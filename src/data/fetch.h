/* fetch.h - sources that are addresses (s3://, https://, ...): a program that the user names copies them into the
 * cache.
 *
 * Trireme itself opens no connection for data. A file that is in the cache is not fetched again.
 */
#ifndef TR_DATA_FETCH_H
#define TR_DATA_FETCH_H

#include "base/base.h"

bool tr_fetch_is_address(const char *path); /* SCHEME://... */

/* Runs the command, with {url} and {path} replaced, and gives the path of the copy. The command is split into words as
 * a shell does it with quotes and backslashes, and is run without a shell. The copy gets its name when the command has
 * ended well, so a name is a whole file. TR_USAGE: no command, or none with {url} and {path}. TR_IO: it failed; the
 * message has its exit code and the end of what it said. TR_TIMEOUT: it ran longer than limit_us. The caller holds the
 * lock of the cache. */
enum tr_status tr_fetch(const char *command, const char *url, const char *cache_dir, int64_t limit_us,
                        char out[TR_PATH_MAX]);

#endif
