/* seal.h - what was once computed from a whole file, remembered for as long as the file is unchanged.
 *
 * A seal is a small file in CACHE/seals named by a hash of what the system says of the file (device, inode, size, times
 * of modification and of change to the nanosecond) and of what was computed. The time of change cannot be set by a
 * program, so a file with the same seal has the same bytes; a file that was touched, copied or replaced has another and
 * is read again in full. Rejected: trusting name and modification time (both survive a replacement).
 */
#ifndef TR_DATA_SEAL_H
#define TR_DATA_SEAL_H

#include "base/base.h"

#include <sys/stat.h>

struct tr_seals {
    const char *cache_dir; /* NULL: nothing is remembered */
    bool is_ignored;       /* found none, but new ones are saved */
};

/* What of a file? False: unknown, or changed since. */
bool tr_seal_find(const struct tr_seals *s, const struct stat *file, const char *what, struct tr_hash128 *out);
/* `file` is what fstat said before the file was read. One that changed less than min_age_s before is not sealed: it
 * could change again within the same tick of its clock. Best effort: a seal that cannot be written is only slow. */
void tr_seal_save(const struct tr_seals *s, const struct stat *file, int min_age_s, const char *what,
                  struct tr_hash128 value);

#endif
