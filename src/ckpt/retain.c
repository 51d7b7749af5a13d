/* retain.c - which files of an output directory are removed: leftovers of killed saves, checkpoints beyond the limit,
 * and checkpoints newer than the step that a run was resumed from.
 *
 * Invariants: nothing is removed before a newer checkpoint was read back and verified (V2), nor while somebody holds a
 * lease on it (C17). A deletion begins with a rename to a temp name, so a killed one leaves nothing that looks like a
 * checkpoint. A lease is flock on the directory itself: it needs no file and goes with the process.
 */
#include "ckpt/commit_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool tr_ckpt_is_temp_name(const char *name)
{
    const char *p = tr_ckpt_skip_text(name, TR_NAME_CHECKPOINT);
    p = p ? tr_ckpt_skip_number(p) : NULL;
    p = p ? tr_ckpt_skip_text(p, ".tmp-") : NULL;
    p = p ? tr_ckpt_skip_number(p) : NULL;
    return p && !*p;
}

/* <name>.tmp-<n>: the pointer, or a file of the exported model, before its rename */
static bool is_temp_file_name(const char *name)
{
    const char *p = strstr(name, ".tmp-");
    p = p && p > name ? tr_ckpt_skip_number(p + 5) : NULL;
    return p && !*p;
}

/* Of a temp name; numbers beyond 64 bits are those of no run. */
static int64_t step_of(const char *name)
{
    return strtoll(name + strlen(TR_NAME_CHECKPOINT), NULL, 10);
}

/* Temp directories of steps below `below`, and temp files when it is INT64_MAX. */
static enum tr_status sweep_below(const char *output_dir, int64_t below, size_t *out_removed)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    size_t n = 0;
    DIR *d = opendir(output_dir);
    if (!d && errno != ENOENT)
        return tr_fail(TR_IO, "%s: %s", output_dir, strerror(errno));
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct stat info;
        bool is_dir_name = tr_ckpt_is_temp_name(e->d_name);
        if (is_dir_name ? step_of(e->d_name) >= below : below < INT64_MAX || !is_temp_file_name(e->d_name))
            continue;
        TR_TRY(tr_path_join(path, output_dir, e->d_name));
        if (lstat(path, &info) != 0 || (!is_dir_name && S_ISDIR(info.st_mode)))
            continue;
        TR_TRY(tr_out_remove(output_dir, e->d_name)); /* of a link the name goes, not what it leads to */
        n++;
    }
    if (out_removed)
        *out_removed = n;
out:
    if (d)
        closedir(d);
    return st;
}

enum tr_status tr_ckpt_sweep(const char *output_dir, size_t *out_removed)
{
    return sweep_below(output_dir, INT64_MAX, out_removed);
}

/* ---- leases ---- */

enum tr_status tr_ckpt_lease(const char *dir, struct tr_ckpt_lease *out)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tr_fail(TR_USAGE, "%s: %s", dir, strerror(errno));
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return tr_fail(TR_IO, "%s: is being removed", dir);
    }
    out->fd = fd; /* on a file system without locks the lease protects nothing */
    return TR_OK;
}

void tr_ckpt_release(struct tr_ckpt_lease *l)
{
    if (l->fd > 0)
        close(l->fd);
    l->fd = 0;
}

/* ---- retention ---- */

static enum tr_status remove_step(const char *output_dir, int64_t step, int64_t generation, size_t *n)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], name[TR_CKPT_NAME_MAX], temp[TR_CKPT_NAME_MAX];
    int fd = -1;
    tr_ckpt_step_name(step, name);
    tr_commit_dir_name(step, generation, temp);
    TR_TRY(tr_path_join(path, output_dir, name));
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        goto out; /* a reader holds a lease */
    TR_TRY(tr_out_remove(output_dir, temp));
    int err = tr_out_move(output_dir, name, temp, TR_OUT_RENAME);
    if (err)
        TR_TRY(tr_fail(TR_IO, "%s: rename: %s", path, strerror(err)));
    TR_TRY(tr_fsync_dir(output_dir)); /* before its files go: a name is always a whole checkpoint */
    TR_TRY(tr_failpoint("ckpt.prune"));
    TR_TRY(tr_out_remove(output_dir, temp));
    ++*n;
out:
    if (fd >= 0)
        close(fd);
    return st;
}

/* -1: it names none. */
static enum tr_status best_of(const char *checkpoint, int64_t *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    cJSON *state = NULL;
    *out = -1;
    TR_TRY(tr_path_join(path, checkpoint, TR_CKPT_STATE_DIR "/state.json"));
    TR_TRY(tr_json_load(path, 4 << 20, &state));
    const cJSON *best = cJSON_GetObjectItemCaseSensitive(state, "best");
    if (cJSON_IsObject(best))
        TR_TRY(tr_json_int(best, "step", true, 0, INT64_C(1) << 52, out));
out:
    cJSON_Delete(state);
    return st;
}

static bool is_kept(const struct tr_ckpt_keep *k, int64_t best, int64_t step)
{
    return step == best || (k->every > 0 && step % k->every == 0);
}

enum tr_status tr_ckpt_retain(const char *output_dir, int64_t new_step, int64_t generation,
                              const struct tr_ckpt_keep *keep, bool *out_is_good, size_t *out_removed)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_steps s = { 0 };
    char path[TR_PATH_MAX];
    int64_t best = -1;
    size_t n = 0;
    TR_TRY(tr_ckpt_step_path(output_dir, new_step, path));
    TR_TRY(tr_ckpt_verify(path, NULL, NULL));
    if (out_is_good)
        *out_is_good = true;
    if (keep->limit <= 0)
        goto out;
    TR_TRY(sweep_below(output_dir, new_step, NULL)); /* a removal that failed before is tried again */
    if (keep->best)
        TR_TRY(best_of(path, &best));
    TR_TRY(tr_ckpt_list(output_dir, &s));
    int64_t n_kept = is_kept(keep, best, new_step) ? 0 : 1;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] >= new_step || is_kept(keep, best, s.p[i]))
            continue;
        if (n_kept < keep->limit)
            n_kept++;
        else
            TR_TRY(remove_step(output_dir, s.p[i], generation, &n));
    }
out:
    free(s.p);
    if (st == TR_OK && out_removed)
        *out_removed = n;
    return st;
}

enum tr_status tr_ckpt_set_aside(const char *output_dir, int64_t step, int64_t generation, size_t *out_n)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_steps s = { 0 };
    char name[TR_CKPT_NAME_MAX], aside[TR_CKPT_NAME_MAX];
    *out_n = 0;
    TR_TRY(tr_ckpt_list(output_dir, &s));
    for (size_t i = 0; i < s.n && s.p[i] > step; i++) {
        tr_ckpt_step_name(s.p[i], name);
        TR_TRY(tr_format(aside, sizeof aside, TR_NAME_CHECKPOINT "%" PRId64 ".aside-%" PRId64, s.p[i], generation));
        int err = tr_out_move(output_dir, name, aside, TR_OUT_RENAME);
        if (err)
            TR_TRY(tr_fail(TR_IO, "%s/%s: rename: %s", output_dir, aside, strerror(err)));
        ++*out_n;
    }
    if (*out_n)
        TR_TRY(tr_fsync_dir(output_dir));
out:
    free(s.p);
    return st;
}
