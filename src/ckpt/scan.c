/* scan.c - checkpoints on disk: is this one whole, which is the newest whole one.
 *
 * Invariants: no byte counts before its hash was compared; the newest is the largest step, never a file time. Links are
 * never followed.
 */
#include "ckpt/commit_impl.h"
#include "ckpt/sums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ---- */

const char *tr_ckpt_skip_number(const char *p)
{
    size_t n = strspn(p, "0123456789");
    return n == 0 || n > 18 || (n > 1 && *p == '0') ? NULL : p + n;
}

const char *tr_ckpt_skip_text(const char *p, const char *text)
{
    size_t n = strlen(text);
    return strncmp(p, text, n) == 0 ? p + n : NULL;
}

int64_t tr_ckpt_step_of_name(const char *name)
{
    int64_t step = -1;
    const char *number = tr_ckpt_skip_text(name, TR_NAME_CHECKPOINT),
               *end = number ? tr_ckpt_skip_number(number) : NULL;
    if (!end || *end || tr_parse_int(number, 0, INT64_MAX, &step) != TR_OK)
        return -1;
    return step;
}

static bool is_real_dir(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ---- verify ---- */

static enum tr_status open_member(const char *dir, const char *name, int *out_fd, uint64_t *out_bytes)
{
    char path[TR_PATH_MAX];
    struct stat info;
    TR_PASS(tr_path_join(path, dir, name));
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return tr_fail(TR_IO, "%s: %s", name, errno == ELOOP ? "is a link" : strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return tr_fail(TR_IO, "%s: is not a regular file", name);
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return TR_OK;
}

enum tr_status tr_ckpt_load_manifest(const char *dir, struct tr_ckpt_manifest *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *text = NULL;
    int fd = -1;
    uint64_t n = 0;
    TR_TRY(tr_path_join(path, dir, TR_CKPT_STATE_DIR));
    if (!is_real_dir(path))
        TR_TRY(tr_fail(TR_IO, "no trireme/ directory: not a finished checkpoint of ours"));
    TR_TRY(open_member(dir, TR_CKPT_MANIFEST, &fd, &n));
    if (n > TR_CKPT_MAX_MANIFEST)
        TR_TRY(tr_fail(TR_IO, "manifest.json: %" PRIu64 " bytes; the limit is %d", n, TR_CKPT_MAX_MANIFEST));
    text = malloc((size_t)n + 1);
    if (!text)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a manifest of %" PRIu64 " bytes", n));
    TR_TRY(tr_pread_all(fd, TR_CKPT_MANIFEST, text, (size_t)n, 0));
    TR_TRY(tr_ckpt_manifest_parse(text, (size_t)n, out));
out:
    free(text);
    if (fd >= 0)
        close(fd);
    return st;
}

/* sums: gets the hashes of the blocks; NULL: they are not kept. */
static enum tr_status hash_member(const char *dir, const struct tr_ckpt_file *f, struct tr_hasher *h,
                                  struct tr_sums *sums)
{
    enum tr_status st = TR_OK;
    struct tr_sums_file *kept = NULL;
    char chunk[TR_SUM_BLOCK];
    int fd = -1;
    uint64_t n_bytes = 0;
    TR_TRY(open_member(dir, f->name, &fd, &n_bytes));
    if (n_bytes != f->bytes)
        TR_TRY(tr_fail(TR_IO, "%s: %" PRIu64 " bytes, the manifest says %" PRIu64, f->name, n_bytes, f->bytes));
    if (sums)
        TR_TRY(tr_sums_add(sums, f->name, n_bytes, &kept));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* read back from the disk, not from our own cache */
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    tr_hasher_clear(h);
    for (uint64_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < sizeof chunk ? (size_t)(n_bytes - at) : sizeof chunk;
        TR_TRY(tr_pread_all(fd, f->name, chunk, n, at));
        tr_hasher_add(h, chunk, n);
        if (kept)
            kept->block[at / TR_SUM_BLOCK] = tr_hash(chunk, n);
        at += n;
    }
    if (!tr_hash_eq(tr_hasher_get(h), f->hash))
        st = tr_fail(TR_IO, "%s: the hash of bytes 0..%" PRIu64 " is not the one that was written: damaged or swapped",
                     f->name, n_bytes);
out:
    if (fd >= 0)
        close(fd);
    return st;
}

/* Weights and state that the manifest does not list are an error, because other tools would read them. Other files (a
 * README) may stay. */
static enum tr_status check_extra(const char *dir, const char *sub, const struct tr_ckpt_manifest *m)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], text[160];
    DIR *d = NULL;
    TR_TRY(tr_path_join(path, dir, sub));
    d = opendir(path);
    if (!d)
        TR_TRY(tr_fail(TR_IO, "%s: %s", path, strerror(errno)));
    for (const struct dirent *e; (e = readdir(d));) {
        struct tr_ckpt_file key = { .name = path };
        TR_TRY(tr_format(path, sizeof path, "%s%s", sub, e->d_name));
        bool counts = *sub ? e->d_name[0] != '.' && strcmp(path, TR_CKPT_MANIFEST) != 0
                           : strstr(e->d_name, ".safetensors") != NULL;
        if (counts && !bsearch(&key, m->files, m->n_files, sizeof key, tr_by_text))
            TR_TRY(tr_fail(TR_IO, "%s: is not in the manifest", tr_escape(path, text, sizeof text)));
    }
out:
    if (d)
        closedir(d);
    return st;
}

static enum tr_status check_identity(const char *dir, const char *run_id, const struct tr_ckpt_manifest *m)
{
    char name[TR_PATH_MAX];
    TR_PASS(tr_format(name, sizeof name, "%s", dir));
    for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
        name[n - 1] = '\0';
    const char *slash = strrchr(name, '/');
    int64_t step = tr_ckpt_step_of_name(slash ? slash + 1 : name);
    if (step >= 0 && step != m->step)
        return tr_fail(TR_IO, "holds step %" PRId64 ": renamed or copied from another checkpoint", m->step);
    if (run_id && strcmp(run_id, m->run_id) != 0)
        return tr_fail(TR_IO, "belongs to run %s, not to %s", m->run_id, run_id);
    return TR_OK;
}

static enum tr_status fill_info(const char *dir, const struct tr_ckpt_manifest *m, struct tr_ckpt_info *out)
{
    *out = (struct tr_ckpt_info){ .step = m->step, .generation = m->generation, .n_files = m->n_files };
    for (size_t i = 0; i < m->n_files; i++)
        out->n_bytes += m->files[i].bytes;
    TR_PASS(tr_format(out->path, sizeof out->path, "%s", dir));
    return tr_format(out->run_id, sizeof out->run_id, "%s", m->run_id);
}

enum tr_status tr_ckpt_peek(const char *dir, struct tr_ckpt_info *out)
{
    struct tr_ckpt_manifest m = { 0 };
    enum tr_status st = tr_ckpt_load_manifest(dir, &m);
    if (st == TR_OK)
        st = fill_info(dir, &m, out);
    tr_ckpt_manifest_release(&m);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: ", dir);
}

enum tr_status tr_ckpt_verify(const char *dir, const char *run_id, struct tr_ckpt_info *out)
{
    return tr_ckpt_verify_sums(dir, run_id, out, NULL);
}

enum tr_status tr_ckpt_verify_sums(const char *dir, const char *run_id, struct tr_ckpt_info *out, struct tr_sums **sums)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_manifest m = { 0 };
    struct tr_hasher *h = NULL;
    struct tr_sums *kept = NULL;
    TR_TRY(tr_hasher_open(&h));
    TR_TRY(tr_ckpt_load_manifest(dir, &m));
    TR_TRY(check_identity(dir, run_id, &m));
    TR_TRY(check_extra(dir, "", &m));
    TR_TRY(check_extra(dir, TR_CKPT_STATE_DIR "/", &m));
    if (sums)
        TR_TRY(tr_sums_open(dir, m.n_files, &kept));
    for (size_t i = 0; i < m.n_files; i++)
        TR_TRY(hash_member(dir, &m.files[i], h, kept));
    if (out)
        TR_TRY(fill_info(dir, &m, out));
    if (sums) {
        *sums = kept;
        kept = NULL;
    }
out:
    tr_sums_close(kept);
    tr_ckpt_manifest_release(&m);
    tr_hasher_close(h);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: ", dir);
}

/* ---- scan ---- */

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static enum tr_status add_step(struct tr_ckpt_steps *s, int64_t step)
{
    TR_PASS(TR_ROOM(s->p, s->n + 1, &s->n_cap, "%zu checkpoints", s->n + 1));
    s->p[s->n++] = step;
    return TR_OK;
}

/* What is no checkpoint but says that one is or was here. A name of our own goes before `latest`. */
static void note_other(struct tr_ckpt_steps *s, const char *name)
{
    bool is_latest = strcmp(name, TR_NAME_LATEST) == 0;
    if (is_latest ? !s->other[0] : tr_ckpt_skip_text(name, TR_NAME_CHECKPOINT) && !tr_ckpt_is_temp_name(name))
        (void)snprintf(s->other, sizeof s->other, "%s", name);
}

/* No output_dir: none. */
enum tr_status tr_ckpt_list(const char *output_dir, struct tr_ckpt_steps *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    DIR *d = opendir(output_dir);
    out->link_step = -1;
    out->other[0] = '\0';
    if (!d)
        return errno == ENOENT ? TR_OK : tr_fail(TR_IO, "%s: %s", output_dir, strerror(errno));
    for (const struct dirent *e; (errno = 0, e = readdir(d));) {
        int64_t step = tr_ckpt_step_of_name(e->d_name);
        struct stat info;
        if (step < 0) {
            note_other(out, e->d_name);
            continue;
        }
        TR_TRY(tr_path_join(path, output_dir, e->d_name));
        if (lstat(path, &info) != 0) /* an unreadable checkpoint is an error, not an absent one (C10) */
            TR_TRY(tr_fail(TR_IO, "%s: %s", path, strerror(errno)));
        if (S_ISDIR(info.st_mode))
            TR_TRY(add_step(out, step));
        else
            out->link_step = tr_max64(out->link_step, step);
    }
    if (errno)
        TR_TRY(tr_fail(TR_IO, "%s: %s", output_dir, strerror(errno)));
    if (out->n)
        qsort(out->p, out->n, sizeof *out->p, newest_first);
out:
    closedir(d);
    return st;
}

enum tr_status tr_ckpt_steps(const char *output_dir, int64_t **out, size_t *out_n)
{
    struct tr_ckpt_steps s = { 0 };
    enum tr_status st = tr_ckpt_list(output_dir, &s);
    if (st != TR_OK)
        free(s.p);
    *out = st == TR_OK ? s.p : NULL;
    *out_n = st == TR_OK ? s.n : 0;
    return st;
}

enum tr_status tr_ckpt_check_new(const char *output_dir)
{
    struct tr_ckpt_steps s = { 0 };
    enum tr_status st = tr_ckpt_list(output_dir, &s);
    if (st == TR_OK && (s.n > 0 || s.link_step >= 0))
        st = tr_fail(TR_USAGE,
                     "output %s has checkpoints of an earlier run, the newest of step %" PRId64
                     "; go on from it with --resume, or name another --output",
                     output_dir, tr_max64(s.link_step, s.n > 0 ? s.p[0] : -1));
    free(s.p);
    return st;
}

void tr_ckpt_step_name(int64_t step, char out[TR_CKPT_NAME_MAX])
{
    (void)snprintf(out, TR_CKPT_NAME_MAX, TR_NAME_CHECKPOINT "%" PRId64, step);
}

enum tr_status tr_ckpt_step_path(const char *output_dir, int64_t step, char path[TR_PATH_MAX])
{
    char name[TR_CKPT_NAME_MAX];
    tr_ckpt_step_name(step, name);
    return tr_path_join(path, output_dir, name);
}

/* `latest` is a hint for people; a note says when it names another checkpoint. */
static void note_pointer(const char *output_dir, int64_t found_step, struct tr_str *notes)
{
    char text[300] = "", shown[320];
    int fd;
    uint64_t n;
    enum tr_status st = open_member(output_dir, TR_NAME_LATEST, &fd, &n);
    if (st == TR_OK) {
        st = tr_pread_all(fd, TR_NAME_LATEST, text, n < sizeof text ? (size_t)n : sizeof text - 1, 0);
        close(fd);
    }
    text[strcspn(text, "\n")] = '\0';
    if (st != TR_OK)
        tr_str_addf(notes, "%s; ignored\n", tr_error_text());
    else if (tr_ckpt_step_of_name(text) != found_step)
        tr_str_addf(notes, "latest names \"%s\"; the newest good checkpoint is checkpoint-%" PRId64 "\n",
                    tr_escape(text, shown, sizeof shown), found_step);
}

/* Where checkpoints are, or what looks like them, a run does not start from scratch, nor from an older one (C10). */
static enum tr_status refuse_scratch(const char *output_dir, const struct tr_ckpt_steps *s, int64_t found_step,
                                     const struct tr_str *notes)
{
    char shown[300];
    if (s->link_step > found_step)
        return tr_fail(TR_USAGE,
                       "%s/" TR_NAME_CHECKPOINT "%" PRId64
                       " is newer than every checkpoint here, but a link or a file, and links are not followed; move "
                       "the directory back, name it with --resume_from_checkpoint DIR, or remove the link",
                       output_dir, s->link_step);
    if (found_step >= 0)
        return TR_OK;
    if (s->n > 0)
        return tr_fail(TR_IO, "%s: none of %zu checkpoints is good; move them away, and `latest`, to start again:\n%s",
                       output_dir, s->n, tr_str_ok(notes) ? notes->p : "");
    if (s->other[0])
        return tr_fail(
            TR_USAGE,
            "%s has no checkpoint to resume from, but \"%s\", which a run with checkpoints has left; put its "
            "checkpoint-STEP back, or move \"%s\" away to start again",
            output_dir, tr_escape(s->other, shown, sizeof shown), shown);
    return TR_OK;
}

enum tr_status tr_ckpt_scan(const char *output_dir, const char *run_id, bool *out_found, struct tr_ckpt_info *out,
                            struct tr_str *notes)
{
    return tr_ckpt_scan_below(output_dir, run_id, INT64_MAX, out_found, out, notes, NULL);
}

enum tr_status tr_ckpt_scan_below(const char *output_dir, const char *run_id, int64_t below, bool *out_found,
                                  struct tr_ckpt_info *out, struct tr_str *notes, struct tr_sums **sums)
{
    enum tr_status st = TR_OK;
    struct tr_ckpt_steps s = { 0 };
    struct tr_str own = { 0 };
    char path[TR_PATH_MAX];
    if (!notes)
        notes = &own;
    TR_TRY(tr_ckpt_list(output_dir, &s));
    *out_found = false;
    for (size_t i = 0; i < s.n && !*out_found; i++) {
        if (s.p[i] >= below)
            continue;
        TR_TRY(tr_ckpt_step_path(output_dir, s.p[i], path));
        st = tr_ckpt_verify_sums(path, run_id, out, sums);
        if (st == TR_OK) {
            *out_found = true;
            if (below == INT64_MAX) /* else `latest` may well be a newer one */
                note_pointer(output_dir, s.p[i], notes);
        } else if (st != TR_IO) {
            goto out; /* a newer format, no memory: falling back would hide it */
        } else {
            tr_str_addf(notes, "%s\n", tr_error_text());
        }
    }
    st = refuse_scratch(output_dir, &s, *out_found ? out->step : -1, notes);
out:
    tr_str_release(&own);
    free(s.p);
    return st;
}
