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

/* A file that has lost its name before a byte of it is written: whatever ends this process, it leaves none. */
static enum tr_status open_file(const char *dir, int *fd)
{
    static const char name[] = ".trireme.bench";
    (void)tr_out_unlink(dir, name); /* of one that was killed; what stays there is named by the open */
    TR_PASS(tr_out_open(dir, name, TR_OUT_NEW, fd));
    (void)tr_out_unlink(dir, name);
    return TR_OK;
}

/* From memory that is written again and again. */
static enum tr_status write_all(int fd, const char *dir, const char *buf, int64_t bytes, double *seconds)
{
    enum tr_status st = TR_OK;
    int64_t start = tr_clock_us();
    bool is_direct = tr_file_direct(fd, true);
    for (int64_t at = 0; at < bytes && st == TR_OK; at += PIECE) {
        st = tr_write_all(fd, dir, buf, PIECE);
        if (!is_direct)
            (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    if (st == TR_OK && fsync(fd) != 0)
        st = tr_fail(TR_IO, "%s: fsync: %s", dir, strerror(errno));
    (void)tr_file_direct(fd, false);
    *seconds = (double)(tr_clock_us() - start) * 1e-6;
    return st;
}

/* written: its descriptor, by which it can be opened once more. */
static enum tr_status read_all(int written, const char *dir, char *buf, int64_t bytes, double *seconds)
{
    char path[64];
    enum tr_status st = tr_format(path, sizeof path, "/proc/self/fd/%d", written);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return tr_fail(TR_IO, "%s: what was written there cannot be read: %s", dir, strerror(errno));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    int64_t start = tr_clock_us();
    for (int64_t at = 0; at < bytes && st == TR_OK; at += PIECE)
        st = tr_pread_all(fd, dir, buf, PIECE, (uint64_t)at);
    *seconds = (double)(tr_clock_us() - start) * 1e-6;
    close(fd);
    return st;
}

enum tr_status cli_disk_rate(const char *dir, int64_t bytes, double *write_s, double *read_s)
{
    enum tr_status st = TR_OK;
    int fd = -1;
    char *buf = aligned_alloc(TR_DIRECT_BLOCK, PIECE);
    if (!buf)
        return tr_fail(TR_NOMEM, "bench: out of memory");
    for (size_t i = 0; i < PIECE; i++) /* nothing that a clever disk makes small */
        buf[i] = (char)(i * UINT64_C(0x9e3779b97f4a7c15) >> 56);
    TR_TRY(open_file(dir, &fd));
    TR_TRY(write_all(fd, dir, buf, bytes, write_s));
    if (read_s)
        TR_TRY(read_all(fd, dir, buf, bytes, read_s));
out:
    if (fd >= 0)
        close(fd);
    free(buf);
    return st;
}

enum tr_status cli_bench_disk(const struct tr_config *cfg)
{
    const char *dir = cfg->output ? cfg->output : ".";
    int64_t bytes = (int64_t)tr_round_up((size_t)cfg->bytes_max, PIECE);
    double write_s = 0, read_s = 0;
    TR_PASS(cli_disk_rate(dir, bytes, &write_s, &read_s));
    if (cfg->json)
        printf("{\"bytes\": %" PRId64 ", \"write_gb_per_s\": %.4f, \"read_gb_per_s\": %.4f}\n", bytes,
               (double)bytes / write_s * 1e-9, (double)bytes / read_s * 1e-9);
    else
        printf("%.0f MB: written and synced at %.3f GB/s, read back at %.3f GB/s\n", (double)bytes * 1e-6,
               (double)bytes / write_s * 1e-9, (double)bytes / read_s * 1e-9);
    return TR_OK;
}
