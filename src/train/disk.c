/* disk.c - files of a run against the disk, before step 0: every checkpoint that will be kept, the one that is written
 * before an old one goes, and the model at the end. The model's room is taken at once.
 *
 * The reserve is a file without a name (O_TMPFILE) whose blocks are allocated: it is gone with the process, however
 * that ends, and leaves no trace. Rejected: a reserve with a name, which a killed run leaves behind. A file system that
 * cannot allocate blocks ahead (NFS before 4.2) keeps no reserve; the check before is then all there is.
 */
#include "base/host.h"
#include "train/room.h"

#include <errno.h>
#include <math.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TEXTS_BYTES = 64 << 10 }; /* configuration, manifest, trainer state */

static uint64_t copied_bytes(const char *dir)
{
    char path[TR_PATH_MAX];
    struct stat info;
    uint64_t sum = 0;
    for (size_t i = 0; tr_copied_files[i]; i++)
        if (tr_path_join(path, dir, tr_copied_files[i]) == TR_OK && stat(path, &info) == 0)
            sum += (uint64_t)info.st_size;
    tr_error_clear();
    return sum;
}

void tr_disk_need(const struct tr_setup *s, struct tr_disk_need *out)
{
    const struct tr_model *m = s->model;
    const struct tr_states *states = &s->compiled->place.states;
    uint64_t weights = 0, optim = 0, n_ranks = 1;
    for (int i = 0; i < m->n_params; i++) {
        weights += (uint64_t)(s->n_saved ? s->n_saved[i] : 1) * (uint64_t)m->param[i].n * tr_dtype_bytes(s->save_dtype);
        enum tr_fate fate = (enum tr_fate)s->compiled->place.fate_of[i];
        if (fate >= TR_FROZEN)
            continue;
        for (int row = 0; row < states->n; row++) {
            const struct tr_state_row *r = &states->row[row];
            bool is_saved = row == TR_S_VALUE ? tr_states_save_value(states, s->save_dtype) : r->is_held && r->name;
            if (is_saved && tr_states_has(states, row, fate))
                optim += (uint64_t)tr_state_count(r, m->param[i].rows, m->param[i].cols) * tr_dtype_bytes(r->dtype);
        }
    }
    for (int a = 0; a < TR_AXES; a++)
        n_ranks *= (uint64_t)s->axis[a];
    uint64_t texts = copied_bytes(s->from.text) + TEXTS_BYTES;
    uint64_t shard = weights < TR_HF_SHARD_BYTES || s->from.adapter ? weights : TR_HF_SHARD_BYTES;
    *out = (struct tr_disk_need){ .model_bytes = weights + texts,
                                  .checkpoint_bytes = weights + (s->cfg->save_only_model ? 0 : optim) + texts,
                                  .file_bytes = shard > optim / n_ranks ? shard : optim / n_ranks };
}

/* Steps between two checkpoints, the least where the run decides; 0: only the last is saved. */
static int64_t save_interval(const struct tr_config *cfg, int64_t total)
{
    switch (cfg->save_strategy) {
    case TR_WHEN_STEPS:
        return tr_config_steps(cfg->save_steps, total);
    case TR_WHEN_EPOCH:
        return tr_max64(1, (int64_t)((double)total / fmax(1, cfg->num_train_epochs)));
    case TR_WHEN_BEST:
        return cfg->eval_strategy == TR_WHEN_EPOCH
                   ? tr_max64(1, (int64_t)((double)total / fmax(1, cfg->num_train_epochs)))
                   : tr_config_steps(cfg->eval_steps, total);
    default:
        return 0;
    }
}

int64_t tr_disk_saves(const struct tr_config *cfg, int64_t from, int64_t total, int64_t n_there)
{
    int64_t every = save_interval(cfg, total), n = every > 0 ? (total - 1) / every - from / every : 0, kept = n + 1;
    if (from >= total)
        return 0;
    if (cfg->save_total_limit <= 0)
        return kept;
    /* One more than are kept: an old one goes after the new one is verified. */
    int64_t most = tr_max64(0, cfg->save_total_limit - n_there) + 1 + (cfg->save_best || cfg->load_best_model_at_end);
    if (cfg->save_keep_every > 0)
        most += total / cfg->save_keep_every - from / cfg->save_keep_every;
    return tr_min64(kept, most);
}

/* The newest checkpoint of the output directory, and how many there are. */
static void count_there(const struct tr_config *cfg, int64_t *newest, int64_t *n)
{
    int64_t *step = NULL;
    size_t n_steps = 0;
    *newest = *n = 0;
    if (strcmp(cfg->resume_from_checkpoint, "auto") == 0 && tr_dir_exists(cfg->output) &&
        tr_ckpt_steps(cfg->output, &step, &n_steps) == TR_OK && n_steps > 0) {
        *newest = step[0];
        *n = (int64_t)n_steps;
    }
    tr_error_clear();
    free(step);
}

/* At most three changes with which the files fit. */
static void advise(const struct tr_config *cfg, const struct tr_disk_need *need, uint64_t room, int64_t from,
                   int64_t total, struct tr_str *out)
{
    int64_t fit = room > need->model_bytes ? (int64_t)((room - need->model_bytes) / need->checkpoint_bytes) : 0;
    char human[32];
    uint64_t least = need->model_bytes + need->checkpoint_bytes;
    if (fit >= 2)
        tr_str_addf(out, "\n  --save_total_limit %" PRId64, fit - 1);
    if (fit >= 2 && total > 0 && (total - from) / fit + 1 < total - from)
        tr_str_addf(out, "\n  --save_steps %" PRId64, (total - from) / (fit - 1) + 1);
    if (fit >= 1 && cfg->save_steps > 0)
        tr_str_addf(out, "\n  --save_steps 0");
    if (fit < 1)
        tr_str_addf(out, "\n  an --output with %s free", tr_human_bytes(least, human, sizeof human));
}

enum tr_status tr_disk_check(const struct tr_setup *s, int64_t total_steps)
{
    const struct tr_config *cfg = s->cfg;
    struct tr_disk_need need;
    struct tr_host h;
    struct tr_str why = { 0 };
    char a[32], b[32], c[32], d[32];
    int64_t from = 0, n_there = 0;
    enum tr_status st = TR_OK;
    tr_disk_need(s, &need);
    tr_host_read("", &h);
    if (need.file_bytes > h.file_bytes)
        return tr_fail(TR_USAGE,
                       "does not fit: ulimit -f allows files of %s, and a checkpoint has one of %s; raise it with "
                       "ulimit -f unlimited",
                       tr_human_bytes(h.file_bytes, a, sizeof a), tr_human_bytes(need.file_bytes, b, sizeof b));
    count_there(cfg, &from, &n_there);
    int64_t n = total_steps > 0 ? tr_disk_saves(cfg, from, total_steps, n_there) : 1;
    uint64_t room = tr_host_disk_room(cfg->output), all = UINT64_MAX;
    size_t product = 0;
    if (tr_mul_size((size_t)n, (size_t)need.checkpoint_bytes, &product))
        all = (uint64_t)product + need.model_bytes;
    if (all <= room)
        return TR_OK;
    tr_str_addf(&why,
                "does not fit: %s are free where output %s is, and %" PRId64
                " checkpoints of %s and the model of %s take %s at the most; what fits, the cheapest first:",
                tr_human_bytes(room, a, sizeof a), cfg->output, n, tr_human_bytes(need.checkpoint_bytes, b, sizeof b),
                tr_human_bytes(need.model_bytes, c, sizeof c), tr_human_bytes(all, d, sizeof d));
    advise(cfg, &need, room, from, total_steps, &why);
    st = tr_fail(TR_USAGE, "%s", tr_str_ok(&why) ? why.p : "does not fit the disk");
    tr_str_release(&why);
    return st;
}

enum tr_status tr_disk_reserve(const struct tr_setup *s, int *fd)
{
    struct tr_disk_need need;
    char human[32];
    const char *dir = s->cfg->output;
    tr_disk_need(s, &need);
    *fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0) /* this file system has no files without a name */
        return TR_OK;
    if (fallocate(*fd, 0, 0, (off_t)need.model_bytes) == 0)
        return TR_OK;
    int error = errno;
    tr_disk_release(fd);
    if (error != ENOSPC && error != EDQUOT && error != EFBIG)
        return TR_OK;
    return tr_fail(TR_USAGE, "output %s: no room for the model of %s: %s; name another --output or free the disk", dir,
                   tr_human_bytes(need.model_bytes, human, sizeof human), strerror(error));
}

void tr_disk_release(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}
