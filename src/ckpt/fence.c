/* fence.c - generations of one job: who may still write (reliability B8, B17, C12; docs/adr/0004).
 *
 * The launcher of several nodes claims each start of all ranks by a file OUTPUT/generations/NNNNNNNN and tells the
 * ranks their number. A saver makes its temporary directory, then looks here; a new generation is claimed, then sweeps
 * such directories. So an old generation is refused here, or finds its directory gone at the rename. Without claims: no
 * fence.
 */
#include "ckpt/commit_impl.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int64_t own_generation(void)
{
    int64_t n = 0;
    const char *text = getenv("TR_GENERATION");
    return text && tr_parse_int(text, 0, INT64_MAX, &n) == TR_OK ? n : 0;
}

/* -1: they cannot be read, and errno says why. */
static int64_t newest_claim(const char *output_dir)
{
    char path[TR_PATH_MAX];
    int64_t newest = 0;
    DIR *d = tr_path_join(path, output_dir, TR_NAME_GENERATIONS) == TR_OK ? opendir(path) : NULL;
    if (!d && errno != ENOENT)
        return -1;
    for (const struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 0 && n < 19 && strspn(e->d_name, "0123456789") == n)
            newest = tr_max64(newest, strtoll(e->d_name, NULL, 10));
    }
    if (d)
        closedir(d);
    return newest;
}

enum tr_status tr_fence_check(const char *output_dir)
{
    int64_t own = own_generation(), newest = newest_claim(output_dir);
    if (newest < 0)
        return tr_fail(TR_IO, "%s: cannot read whether a newer generation has taken over: %s", output_dir,
                       strerror(errno));
    if (newest <= own)
        return TR_OK;
    return tr_fail(TR_PEER, "generation %" PRId64 " of this job was followed by %" PRId64 ": it may not write any more",
                   own, newest);
}

void tr_fence_name(char *out, size_t n_out)
{
    const char *job = getenv("TR_JOB");
    (void)snprintf(out, n_out, " job %.63s claim %" PRId64, job && !strpbrk(job, " \n") ? job : "-", own_generation());
}

bool tr_fence_is_older(const char *output_dir, const char *holder)
{
    char mine[128], *end;
    tr_fence_name(mine, sizeof mine);
    const char *job = strstr(holder, " job "), *claim = strstr(mine, " claim ");
    size_t n = claim ? (size_t)(claim - mine) + strlen(" claim ") : 0;
    if (!job || !getenv("TR_JOB") || strncmp(job, mine, n) != 0)
        return false;
    int64_t theirs = strtoll(job + n, &end, 10);
    return end != job + n && theirs < own_generation() && newest_claim(output_dir) == own_generation();
}
