/* file.h - files: bounded reads, loops over short writes, atomic replace, durable directories, no symlink surprises.
 * Absent, not a regular file or too large is TR_USAGE (somebody named it); every other failure is TR_IO. */
#ifndef TR_BASE_FILE_H
#define TR_BASE_FILE_H

#include "base/status.h"

enum { TR_PATH_MAX = 4096 };

enum tr_status tr_path_join(char out[TR_PATH_MAX], const char *dir, const char *name);
/* A plain file name: no slash, not "." or "..", no control bytes, <= 255 bytes. */
bool tr_name_is_plain(const char *name);

bool tr_file_exists(const char *path);
bool tr_dir_exists(const char *path);
enum tr_status tr_mkdirs(const char *path);
enum tr_status tr_remove_tree(const char *path); /* never follows links; absent is fine */

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

/* path.tmp-<pid> -> write -> fsync -> rename -> fsync directory. The name holds the old or the new content, never a
 * mix; a link of that name is replaced, not followed. One writer a path and process at a time. Failpoints:
 * file.before_fsync, file.after_fsync, file.after_rename. */
enum tr_status tr_file_write_atomic(const char *path, const void *buf, size_t n);
enum tr_status tr_fsync_dir(const char *path);

/* A directory of this user for what can be made again: $XDG_CACHE_HOME/trireme or ~/.cache/trireme; it is made. */
enum tr_status tr_user_cache(char out[TR_PATH_MAX]);

#endif
