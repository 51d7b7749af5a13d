/* agent_disk.c - claims on the disk that all nodes share: OUTPUT/generations/.
 *
 * 00000007 is the claim of generation 7, made by one link() of a durable file: exactly one agent wins, on NFS too. The
 * coordinator rewrites "beat"; "over" holds the generation and exit code of a job that has ended. Claims are never
 * removed: a slow agent that could claim an old number again would split the job.
 */
#include "launch/agent_disk.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define BENEATH TR_NAME_GENERATIONS "/"

enum tr_status tr_disk_open(const char *output, struct agent_disk *d)
{
    TR_PASS(tr_format(d->output, sizeof d->output, "%s", output));
    TR_PASS(tr_path_join(d->dir, output, TR_NAME_GENERATIONS));
    TR_PASS(tr_mkdirs(output));
    TR_PASS(tr_out_mkdir(output, TR_NAME_GENERATIONS));
    TR_PASS(tr_fsync_dir(output)); /* a claim outlives a power cut */
    return TR_OK;
}

static bool read_text(const char *dir, const char *name, char *buf, size_t n_buf)
{
    char path[TR_PATH_MAX];
    int fd = tr_path_join(path, dir, name) == TR_OK ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    ssize_t n = fd >= 0 ? read(fd, buf, n_buf - 1) : -1;
    if (fd >= 0)
        close(fd);
    buf[n > 0 ? n : 0] = 0;
    return n > 0;
}

enum tr_status tr_disk_claim(struct agent_disk *d, const struct disk_view *claim, bool *won)
{
    char temp[64], final[64], text[256];
    *won = false;
    snprintf(temp, sizeof temp, BENEATH "claim-%016" PRIx64, claim->leader);
    snprintf(final, sizeof final, BENEATH "%08" PRId64, claim->generation);
    snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64 " %s\n", claim->leader, claim->job, claim->addr);
    TR_PASS(tr_out_write(d->output, temp, text, strlen(text)));
    int err = tr_out_move(d->output, temp, final, TR_OUT_LINK);
    *won = err == 0;
    (void)tr_out_unlink(d->output, temp);
    if (*won)
        TR_PASS(tr_fsync_dir(d->dir));
    else if (err != EEXIST)
        return tr_fail(TR_IO, "%s/%s: cannot claim it: %s", d->output, final, strerror(err));
    return TR_OK;
}

void tr_disk_beat(struct agent_disk *d, int64_t beat)
{
    char text[40];
    int fd = -1, n = snprintf(text, sizeof text, "%20" PRId64 "\n", beat);
    if (tr_out_open(d->output, BENEATH "beat", TR_OUT_SHARE, &fd) != TR_OK)
        return;
    (void)!pwrite(fd, text, (size_t)n, 0);
    close(fd);
}

void tr_disk_over(struct agent_disk *d, int64_t generation, int code)
{
    char text[64];
    snprintf(text, sizeof text, "%" PRId64 " %d\n", generation, code);
    (void)tr_out_write(d->output, BENEATH "over", text, strlen(text));
}

static int64_t newest(const char *dir)
{
    int64_t max = 0, n;
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d && (e = readdir(d)) != NULL)
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && strspn(e->d_name, "0123456789") == strlen(e->d_name) &&
            sscanf(e->d_name, "%" SCNd64, &n) == 1)
            max = tr_max64(max, n);
    if (d)
        closedir(d);
    return max;
}

void tr_disk_read(struct agent_disk *d, struct disk_view *v)
{
    char text[256], name[32];
    int64_t n;
    int code;
    v->generation = newest(d->dir);
    snprintf(name, sizeof name, "%08" PRId64, v->generation);
    if (v->generation && (!read_text(d->dir, name, text, sizeof text) ||
                          sscanf(text, "%" SCNu64 " %" SCNu64 " %63s", &v->leader, &v->job, v->addr) != 3))
        v->leader = v->job = 0;
    if (read_text(d->dir, "beat", text, sizeof text) && sscanf(text, "%" SCNd64, &n) == 1)
        v->beat = n;
    if (read_text(d->dir, "over", text, sizeof text) && sscanf(text, "%" SCNd64 " %d", &n, &code) == 2) {
        v->over_generation = n;
        v->over_code = code;
    }
}

/* ---- the key ---- */

enum tr_status tr_key_from_fd(int fd, const char *name, unsigned char out[TR_SHA256_BYTES])
{
    unsigned char text[4096];
    size_t n = 0;
    for (ssize_t k; n < sizeof text && (k = read(fd, text + n, sizeof text - n)) > 0;)
        n += (size_t)k;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (n < 16)
        return tr_fail(TR_USAGE, "%s: a key must have at least 16 bytes, this one has %zu", name, n);
    tr_sha256(text, n, out);
    return TR_OK;
}

enum tr_status tr_key_from_file(const char *path, unsigned char out[TR_SHA256_BYTES])
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return tr_fail(TR_USAGE, "key file %s: %s", path, strerror(errno));
    enum tr_status st = TR_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        st = tr_fail(TR_USAGE, "key file %s is not a regular file; give one with mode 600", path);
    else if (info.st_uid != geteuid() || (info.st_mode & 077) != 0)
        st = tr_fail(TR_USAGE, "key file %s can be read by others (mode %03o); chmod 600 it", path,
                     (unsigned)info.st_mode & 0777);
    else
        st = tr_key_from_fd(fd, path, out);
    close(fd);
    return st;
}

/* OUTPUT/generations/key, made by the first node. A process that can read the 0600 files of the output belongs to the
 * user of the job. */
enum tr_status tr_key_from_disk(struct agent_disk *d, unsigned char out[TR_SHA256_BYTES])
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], temp[64];
    unsigned char bits[40], hex[2 * TR_SHA256_BYTES + 1];
    int fd = -1;
    TR_TRY(tr_path_join(path, d->dir, "key"));
    if (tr_file_exists(path))
        return tr_key_from_file(path, out);
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return tr_fail(TR_IO, "no random bytes for a key: %s", strerror(errno));
    for (int i = 0; i < TR_SHA256_BYTES; i++)
        snprintf((char *)hex + 2 * i, 3, "%02x", bits[i]);
    snprintf(temp, sizeof temp, BENEATH "key-%02x%02x%02x%02x%02x%02x", bits[32], bits[33], bits[34], bits[35],
             bits[36], bits[37]);
    TR_TRY(tr_out_open(d->output, temp, TR_OUT_SECRET, &fd));
    st = tr_write_all(fd, temp, (const char *)hex, 2 * TR_SHA256_BYTES);
    if (st == TR_OK && fsync(fd) != 0)
        st = tr_fail(TR_IO, "%s: fsync: %s", temp, strerror(errno));
    close(fd);
    int err = st == TR_OK ? tr_out_move(d->output, temp, BENEATH "key", TR_OUT_LINK) : 0;
    if (err && err != EEXIST) /* another node was faster, and its key is used */
        st = tr_fail(TR_IO, "%s: %s", path, strerror(err));
    (void)tr_out_unlink(d->output, temp);
    TR_TRY(st);
    st = tr_key_from_file(path, out);
out:
    return st;
}
