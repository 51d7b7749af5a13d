/* file.h - files: names, bounded reads, loops over short writes; what makes files is in base/out.h.
 * Absent, not a regular file or too large is TR_USAGE (somebody named it); every other failure is TR_IO. */
#ifndef TR_BASE_FILE_H
#define TR_BASE_FILE_H

#include "base/status.h"

enum { TR_PATH_MAX = 4096 };

enum tr_status tr_path_join(char out[TR_PATH_MAX], const char *dir, const char *name);
/* The directory of a path ("." where it has none), and its last part, which is in `path`. */
enum tr_status tr_path_split(const char *path, char dir[TR_PATH_MAX], const char **last);
/* A plain file name: no slash, not "." or "..", no control bytes, <= 255 bytes. */
bool tr_name_is_plain(const char *name);

/* One sentence for a failed call, from errno: "cannot <verb> <path>: <reason>". */
enum tr_status tr_file_fail(const char *verb, const char *path);

bool tr_file_exists(const char *path);
bool tr_dir_exists(const char *path);
bool tr_dir_has(const char *dir, const char *name); /* a file of this name; false where dir is NULL */
/* An entry of a directory that is none of these names (NULL at the end); false: there is none, or no directory. */
bool tr_dir_has_other(const char *dir, const char *const *names, char other[256]);

/* Whole regular file of at most max_bytes into a fresh NUL-terminated buffer (caller frees with free()). */
enum tr_status tr_file_read(const char *path, size_t max_bytes, char **out, size_t *out_n);
/* Regular files only (O_NOFOLLOW is not set: models are often linked into caches). */
enum tr_status tr_file_open_read(const char *path, int *fd, uint64_t *n_bytes);
enum tr_status tr_pread_all(int fd, const char *what, void *buf, size_t n, uint64_t at);
enum tr_status tr_write_all(int fd, const char *what, const void *buf, size_t n);

/* Whether reads and writes of fd go past the page cache: buffers, sizes and offsets are then multiples of
 * TR_DIRECT_BLOCK. False: the file system will not have it, and errno says why. */
enum { TR_DIRECT_BLOCK = 4096 };
bool tr_file_direct(int fd, bool is_on);

/* The directory of this program; "" where there is no /proc. */
void tr_self_dir(char out[TR_PATH_MAX]);

/* A directory of this user for what can be made again: $XDG_CACHE_HOME/trireme or ~/.cache/trireme; it is made. */
enum tr_status tr_user_cache(char out[TR_PATH_MAX]);

#endif
