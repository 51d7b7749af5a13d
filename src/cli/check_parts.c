/* check_parts.c - what `trireme check` tries: links, collectives, files. */
#include "cli/check.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { N_SMALL = 20, N_LARGE = 4, LARGE_BYTES = 1 << 20, FILE_BYTES = 4 << 20, N_ELEMS = 10007 };

void check_note(struct check *k, bool is_ok, const char *fmt, ...)
{
    k->note.n++;
    if (is_ok)
        return;
    if (k->note.n_bad++ == 0) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(k->note.text, sizeof k->note.text, fmt, ap);
        va_end(ap);
    }
}

static enum tr_status barrier(struct check *k, const char *site)
{
    return tr_comm_run(k->mesh->all, &(struct tr_coll){ .kind = TR_BARRIER, .site = site });
}

/* What rank `from` sends, so that the receiver can tell. */
static void fill(unsigned char *p, size_t n, int from)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)((i * 31 + (size_t)from * 7 + i / 4096) & 255);
}

static bool is_filled(const unsigned char *p, size_t n, int from)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (unsigned char)((i * 31 + (size_t)from * 7 + i / 4096) & 255))
            return false;
    return true;
}

/* Microseconds since start; at least one, so that a coarse clock makes no rate infinite. */
static double us_since(int64_t start)
{
    int64_t us = tr_clock_us() - start;
    return us > 1 ? (double)us : 1;
}

/* n messages there and back; seconds of one way. */
static enum tr_status ping(struct tr_comm *c, int peer, unsigned char *out, unsigned char *in, size_t bytes, int n,
                           double *seconds)
{
    struct tr_coll give = { .kind = TR_SEND, .dtype = TR_U8, .in = out, .count = bytes, .root = peer, .site = "check" };
    struct tr_coll take = { .kind = TR_RECV, .dtype = TR_U8, .out = in, .count = bytes, .root = peer, .site = "check" };
    int64_t start = tr_clock_us();
    for (int i = 0; i < n; i++) {
        TR_PASS(tr_comm_run(c, c->rank < peer ? &give : &take));
        TR_PASS(tr_comm_run(c, c->rank < peer ? &take : &give));
    }
    *seconds = us_since(start) * 1e-6 / (2 * n);
    return TR_OK;
}

static enum tr_status try_link(struct check *k, int peer, unsigned char *out, unsigned char *in)
{
    struct tr_comm *c = k->mesh->all;
    double small = 0, large = 0;
    fill(out, LARGE_BYTES, c->rank);
    memset(in, 0, LARGE_BYTES);
    TR_PASS(ping(c, peer, out, in, 8, N_SMALL, &small));
    TR_PASS(ping(c, peer, out, in, LARGE_BYTES, N_LARGE, &large));
    bool is_ok = tr_failpoint("check.link") == TR_OK && is_filled(in, LARGE_BYTES, peer);
    double gb_per_s = LARGE_BYTES / large * 1e-9;
    check_note(k, is_ok, "link of rank %d and rank %d: what arrives is not what was sent", c->rank, peer);
    k->note.worst = small * 1e6 > k->note.worst ? small * 1e6 : k->note.worst;
    k->note.value = k->note.n == 1 || gb_per_s < k->note.value ? gb_per_s : k->note.value;
    return TR_OK;
}

/* Rounds of a tournament: in each, every rank has at most one partner, and after n of them every pair has met. */
enum tr_status check_links(struct check *k)
{
    enum tr_status st = TR_OK;
    int n = k->mesh->world, me = k->mesh->rank;
    unsigned char *out = malloc(LARGE_BYTES), *in = malloc(LARGE_BYTES);
    if (!out || !in)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for messages"));
    for (int round = 0; round < n && n > 1; round++) {
        int peer = ((round - me) % n + n) % n;
        if (peer != me)
            TR_TRY(try_link(k, peer, out, in));
        TR_TRY(barrier(k, "check: links"));
    }
out:
    free(out);
    free(in);
    return st;
}

/* Sums of small whole numbers are exact in every type. */
static float number(int rank, size_t i)
{
    return (float)((i + 3 * (size_t)rank) % 8);
}

static float total(int n, size_t i, enum tr_reduce_op op)
{
    float sum = 0, most = 0;
    for (int r = 0; r < n; r++) {
        sum += number(r, i);
        most = number(r, i) > most ? number(r, i) : most;
    }
    return op == TR_MAX ? most : sum;
}

static float wanted(const struct tr_coll *c, int n, int me, size_t i)
{
    size_t first, len;
    switch (c->kind) {
    case TR_ALL_REDUCE:
        return total(n, i, c->op);
    case TR_REDUCE_SCATTER:
        tr_shard(c->count, n, me, &first, &len);
        return total(n, first + i, c->op);
    case TR_BROADCAST:
        return number(c->root, i);
    case TR_ALL_TO_ALL:
        len = c->count / (size_t)n;
        return number((int)(i / len), (size_t)me * len + i % len);
    default: /* all-gather: each rank's own numbers from 0 */
        for (int r = 0; r < n; r++) {
            tr_shard(c->count, n, r, &first, &len);
            if (i >= first && i < first + len)
                return number(r, i - first);
        }
        return -1;
    }
}

static enum tr_status try_one(struct check *k, struct tr_comm *c, struct tr_coll *x, float *in, float *out)
{
    size_t n = x->count, first;
    for (size_t i = 0; i < x->count; i++) {
        in[i] = number(c->rank, i);
        out[i] = -1;
    }
    x->in = in;
    x->out = out;
    int64_t start = tr_clock_us();
    enum tr_status st = tr_comm_run(c, x);
    double us = us_since(start);
    if (st != TR_OK)
        return st;
    if (x->kind == TR_REDUCE_SCATTER)
        tr_shard(x->count, c->size, c->rank, &first, &n);
    bool is_ok = tr_failpoint("check.collective") == TR_OK;
    for (size_t i = 0; is_ok && i < n; i++)
        is_ok = out[i] == wanted(x, c->size, c->rank, i);
    check_note(k, is_ok, "%s of %zu on %d ranks: rank %d of the group got a wrong answer", tr_coll_name(x->kind),
               x->count, c->size, c->rank);
    double gb_per_s = (double)(x->count * sizeof(float)) / fmax(us, 1) * 1e-3; /* the clock counts microseconds */
    if (x->count < 100 && us > k->note.worst)
        k->note.worst = us;
    if (x->count > 100 && (k->note.value == 0 || gb_per_s < k->note.value))
        k->note.value = gb_per_s;
    return TR_OK;
}

enum tr_status check_collectives(struct check *k, struct tr_comm *c)
{
    enum tr_status st = TR_OK;
    float *in = malloc(N_ELEMS * sizeof *in), *out = malloc(N_ELEMS * sizeof *out);
    if (!in || !out)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for collectives"));
    for (int kind = TR_ALL_REDUCE; kind <= TR_ALL_TO_ALL; kind++)
        for (size_t count = 17; count <= N_ELEMS; count += N_ELEMS - 17) {
            struct tr_coll x = { .kind = (enum tr_coll_kind)kind, .dtype = TR_F32, .site = "check", .count = count };
            x.op = kind == TR_ALL_REDUCE && count == 17 ? TR_MAX : TR_SUM;
            x.root = c->size - 1;
            x.count -= kind == TR_ALL_TO_ALL ? count % (size_t)c->size : 0;
            TR_TRY(try_one(k, c, &x, in, out));
        }
out:
    free(in);
    free(out);
    return st;
}

/* Written, made durable, renamed, read back. "" = well, else what failed. */
static const char *try_file(const char *dir, const char *temp, const char *final, const char *path,
                            const unsigned char *data, unsigned char *back)
{
    int fd = -1;
    (void)tr_out_unlink(dir, temp); /* left by a check that was killed */
    if (tr_out_open(dir, temp, TR_OUT_NEW, &fd) != TR_OK)
        return "create";
    bool is_written = tr_write_all(fd, temp, data, FILE_BYTES) == TR_OK;
    bool is_synced = is_written && fsync(fd) == 0;
    if (close(fd) != 0 || !is_synced)
        return is_written ? "fsync" : "write";
    errno = tr_out_move(dir, temp, final, TR_OUT_RENAME);
    if (errno)
        return "rename";
    fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0, at = 0;
    while (fd >= 0 && at < FILE_BYTES && (n = read(fd, back + at, (size_t)(FILE_BYTES - at))) > 0)
        at += n;
    if (fd >= 0)
        close(fd);
    return at == FILE_BYTES && memcmp(data, back, FILE_BYTES) == 0 ? "" : "read back";
}

static enum tr_status look_for_the_others(struct check *k, const char *dir)
{
    char path[TR_PATH_MAX];
    enum tr_status st = barrier(k, "check: files");
    for (int r = 0; st == TR_OK && r < k->mesh->world; r++) {
        (void)snprintf(path, sizeof path, "%s/.trireme-check-%d", dir, r);
        check_note(k, access(path, R_OK) == 0,
                   "rank %d does not see the file of rank %d in %s: is it shared between hosts?", k->mesh->rank, r,
                   dir);
    }
    return st == TR_OK ? barrier(k, "check: files are seen") : st;
}

enum tr_status check_files(struct check *k)
{
    enum tr_status st = TR_OK;
    const char *dir = k->cfg->output ? k->cfg->output : ".";
    char temp[64], final[64], path[TR_PATH_MAX], human[32];
    unsigned char *data = malloc(FILE_BYTES), *back = malloc(FILE_BYTES);
    struct statvfs fs;
    if (!data || !back)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a file"));
    bool is_new = k->cfg->output && !tr_dir_exists(dir);
    TR_TRY(barrier(k, "check: the directory")); /* all looked before one makes it */
    if (is_new && tr_mkdirs(dir) != TR_OK)
        check_note(k, false, "rank %d: cannot make %s: %s", k->mesh->rank, dir, tr_error_text());
    TR_TRY(tr_format(final, sizeof final, ".trireme-check-%d", k->mesh->rank));
    TR_TRY(tr_format(temp, sizeof temp, ".trireme-check-%d.tmp", k->mesh->rank));
    TR_TRY(tr_path_join(path, dir, final));
    fill(data, FILE_BYTES, k->mesh->rank);
    int64_t start = tr_clock_us();
    const char *failed = tr_failpoint("check.file") == TR_OK ? try_file(dir, temp, final, path, data, back) : "write";
    double us = us_since(start);
    check_note(k, !failed[0], "rank %d: %s of %s fails: %s", k->mesh->rank, failed, path, strerror(errno));
    k->note.worst = us;
    k->note.value = FILE_BYTES / fmax(us, 1) * 1e-3;
    TR_TRY(look_for_the_others(k, dir));
    if (k->note.n_bad == 0 && statvfs(dir, &fs) == 0)
        (void)snprintf(k->note.text, sizeof k->note.text, "%s: %s free", dir,
                       tr_human_bytes((uint64_t)fs.f_bavail * fs.f_frsize, human, sizeof human));
    (void)tr_out_unlink(dir, temp);
    (void)tr_out_unlink(dir, final);
    if (is_new && tr_mesh_is_first(k->mesh))
        rmdir(dir); /* if nobody else's file is in it any more */
out:
    free(data);
    free(back);
    return st;
}
