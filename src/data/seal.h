/* seal.h - keeps a value that was computed from a whole file, for as long as the file is unchanged.
 *
 * A seal is a small file in CACHE/seals. Its name is a hash of the file's stat data (device, inode, size, times of
 * modification and of change to the nanosecond) and of the kind of value. A program cannot set the time of change, so a
 * file with the same seal has the same bytes. A file that was touched, copied or replaced has another seal and is read
 * again in full. Rejected: trusting name and modification time (both survive a replacement).
 */
#ifndef TR_DATA_SEAL_H
#define TR_DATA_SEAL_H

#include "base/base.h"

#include <sys/stat.h>

struct tr_seals {
    const char *cache_dir; /* NULL: no value is kept */
    bool is_ignored;       /* existing seals are ignored, but new ones are saved */
};

/* Reads the value `what` of a file. False: there is none, or the file has changed since. */
bool tr_seal_find(const struct tr_seals *s, const struct stat *file, const char *what, struct tr_hash128 *out);
/* `file` is the result of fstat before the file was read. A file that changed less than min_age_s ago is not sealed,
 * because it could change again within the same tick of its clock. Best effort: without the seal, later starts are only
 * slower. */
void tr_seal_save(const struct tr_seals *s, const struct stat *file, int min_age_s, const char *what,
                  struct tr_hash128 value);

#endif
