/* sums.h - hashes of the blocks of files that were verified, and reads that are compared with them.
 *
 * Verification reads every file whole and compares its hash with the manifest. A load reads again, each rank its own
 * parts, and a disk or another process may have changed them by then. So verification keeps the hash of every block,
 * and a read hashes the blocks it has read, in the memory from which they are used. What was verified is what is used.
 * Memory: 16 bytes for each 64 KiB of a checkpoint, until it is loaded. */
#ifndef TR_CKPT_SUMS_H
#define TR_CKPT_SUMS_H

#include "base/base.h"

enum { TR_SUM_BLOCK = 1 << 16 };

struct tr_sums_file {
    char *name; /* in the directory: "trireme/state.json" */
    uint64_t bytes;
    struct tr_hash128 *block;
};
struct tr_sums {
    char dir[TR_PATH_MAX];
    struct tr_sums_file *file;
    size_t n, n_cap;
};
enum tr_status tr_sums_open(const char *dir, size_t n_files, struct tr_sums **out);
void tr_sums_close(struct tr_sums *s); /* NULL is fine */
/* The next file; its blocks are the caller's to fill. */
enum tr_status tr_sums_add(struct tr_sums *s, const char *name, uint64_t bytes, struct tr_sums_file **out);

/* The file of `name` in `dir`. *out NULL: s is NULL, or of another directory: reads are not compared. TR_IO: the
 * directory is the one that was verified, but had no such file. */
enum tr_status tr_sums_find(const struct tr_sums *s, const char *dir, const char *name,
                            const struct tr_sums_file **out);
/* As tr_pread_all, and TR_IO where a block is not what was verified. f NULL: not compared. May be called by several
 * threads. */
enum tr_status tr_sums_pread(const struct tr_sums_file *f, int fd, const char *path, void *buf, size_t n, uint64_t at);
/* As tr_file_read, compared. */
enum tr_status tr_sums_read(const struct tr_sums *s, const char *dir, const char *name, size_t max_bytes, char **out,
                            size_t *out_n);

#endif
