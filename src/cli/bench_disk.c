/* bench_disk.c - trireme bench disk --output DIR: how fast one file is written and synced there, and read back, both
 * past the page cache where the file system allows it, as checkpoints are written. What a checkpoint's write_s is to be
 * compared with. */
#include "cli/cli.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 8 << 20 };

/* The file, from memory that is written again and again. */
static enum tr_status write_all(const char *dir, const char *name, const char *buf, int64_t bytes, double *seconds)
{
    char path[TR_PATH_MAX];
    int64_t start = tr_clock_us();
    int fd = -1;
    enum tr_status st = tr_path_join(path, dir, name);
    if (st == TR_OK)
        st = tr_out_open(dir, name, TR_OUT_NEW, &fd);
    if (st != TR_OK)
        return st;
    bool is_direct = tr_file_direct(fd, true);
    for (int64_t at = 0; at < bytes && st == TR_OK; at += PIECE) {
        st = tr_write_all(fd, path, buf, PIECE);
        if (!is_direct)
            (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    if (st == TR_OK && fsync(fd) != 0)
        st = tr_fail(TR_IO, "%s: fsync: %s", path, strerror(errno));
    close(fd);
    *seconds = (double)(tr_clock_us() - start) * 1e-6;
    return st;
}

enum tr_status cli_disk_write(const char *dir, const char *name, int64_t bytes, double *seconds)
{
    char *buf = aligned_alloc(TR_DIRECT_BLOCK, PIECE);
    if (!buf)
        return tr_fail(TR_NOMEM, "bench: out of memory");
    for (size_t i = 0; i < PIECE; i++) /* nothing that a clever disk makes small */
        buf[i] = (char)(i * UINT64_C(0x9e3779b97f4a7c15) >> 56);
    enum tr_status st = write_all(dir, name, buf, bytes, seconds);
    free(buf);
    return st;
}

static enum tr_status read_all(const char *path, char *buf, int64_t bytes, double *seconds)
{
    int fd = -1;
    uint64_t n = 0;
    enum tr_status st = tr_file_open_read(path, &fd, &n);
    if (st != TR_OK)
        return st;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    int64_t start = tr_clock_us();
    for (int64_t at = 0; at < bytes && st == TR_OK; at += PIECE)
        st = tr_pread_all(fd, path, buf, PIECE, (uint64_t)at);
    *seconds = (double)(tr_clock_us() - start) * 1e-6;
    close(fd);
    return st;
}

enum tr_status cli_bench_disk(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    static const char name[] = ".trireme.bench";
    const char *dir = cfg->output ? cfg->output : ".";
    char path[TR_PATH_MAX];
    int64_t bytes = (int64_t)tr_round_up((size_t)cfg->bytes_max, PIECE);
    double write_s = 0, read_s = 0;
    char *buf = malloc(PIECE);
    TR_TRY(tr_path_join(path, dir, name));
    if (!buf)
        TR_TRY(tr_fail(TR_NOMEM, "bench: out of memory"));
    TR_TRY(tr_out_remove(dir, name)); /* left by a run that was killed */
    st = cli_disk_write(dir, name, bytes, &write_s);
    if (st == TR_OK)
        st = read_all(path, buf, bytes, &read_s);
    (void)tr_out_unlink(dir, name);
    TR_TRY(st);
    if (cfg->json)
        printf("{\"bytes\": %" PRId64 ", \"write_gb_per_s\": %.4f, \"read_gb_per_s\": %.4f}\n", bytes,
               (double)bytes / write_s * 1e-9, (double)bytes / read_s * 1e-9);
    else
        printf("%.0f MB: written and synced at %.3f GB/s, read back at %.3f GB/s\n", (double)bytes * 1e-6,
               (double)bytes / write_s * 1e-9, (double)bytes / read_s * 1e-9);
out:
    free(buf);
    return st;
}
