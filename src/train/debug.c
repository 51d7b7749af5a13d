/* debug.c - two checks of a training over several ranks: whether replicas still hold the same bits, and the gradient
 * norm of every parameter.
 *
 * Ranks that differ only in their tokens must hold equal weights and equal optimizer state, bit for bit. The check
 * hashes every tensor in place and compares the hashes, so it costs one read of the memory and a few bytes of traffic.
 * It blames the rank in the minority. All memory is reserved at open.
 */
#include "train/debug.h"
#include "exec/exec.h"
#include "train/train.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct tr_debug {
    struct tr_exec *e;
    int n_hashes;         /* entries of this rank: its world rank, then one hash for each state of each parameter */
    uint64_t *mine, *all; /* all: the entries of every rank of a group */
    double *norms;        /* by parameter */
    const char **names;
    bool has_lost_norms; /* the last line of them could not be written */
};

enum tr_status tr_debug_open(struct tr_exec *e, struct tr_debug **out)
{
    struct tr_debug *d = calloc(1, sizeof *d);
    size_t n = 1 + (size_t)tr_exec_compiled(e)->place.states.n * (size_t)tr_exec_compiled(e)->place.model->n_params,
           size = 1;
    size = (size_t)tr_max64(tr_mesh_group(tr_exec_mesh(e), TR_ON_TOKENS)->size, tr_exec_mesh(e)->size[TR_AXIS_TP]);
    if (d) {
        *d = (struct tr_debug){ .e = e, .n_hashes = (int)n };
        d->mine = calloc(n, sizeof *d->mine);
        d->all = calloc(n * size, sizeof *d->all);
        d->norms = calloc((size_t)tr_exec_compiled(e)->place.model->n_params + 1, sizeof *d->norms);
        d->names = calloc((size_t)tr_exec_compiled(e)->place.model->n_params + 1, sizeof *d->names);
    }
    if (!d || !d->mine || !d->all || !d->norms || !d->names) {
        tr_debug_close(d);
        return tr_fail(TR_NOMEM, "no memory to compare %zu tensors of %zu replicas", n - 1, size);
    }
    for (int i = 0; i < tr_exec_compiled(e)->place.model->n_params; i++)
        d->names[i] = tr_exec_compiled(e)->place.model->param[i].name;
    *out = d;
    return TR_OK;
}

void tr_debug_close(struct tr_debug *d)
{
    if (!d)
        return;
    free(d->mine);
    free(d->all);
    free(d->norms);
    free(d->names);
    free(d);
}

static uint64_t hash_of(const struct tr_exec *e, enum tr_state what, int param)
{
    int64_t first, n;
    if (what == TR_S_GRAD || !tr_exec_holds(e, what, param)) /* gradients are scratch between steps */
        return 0;
    const char *at = tr_exec_at(e, what, param, &first, &n);
    size_t elem = tr_exec_element(e, what, param).bytes, chunk = TR_IO_CHUNK * sizeof(float);
    at += (size_t)first * elem;
    if (tr_exec_device(e)->row->is_host)
        return n > 0 ? tr_hash(at, (size_t)n * elem).lo : 0;
    uint64_t pair[2] = { 0 }; /* hashed piece by piece, through the buffer that saving uses */
    for (size_t done = 0; done < (size_t)n * elem; done += chunk) {
        size_t bytes = (size_t)n * elem - done < chunk ? (size_t)n * elem - done : chunk;
        tr_device_copy_now(tr_exec_device(e), tr_exec_arena(e, TR_A_SAVE), at + done, bytes);
        pair[1] = tr_hash(tr_exec_arena(e, TR_A_SAVE), bytes).lo;
        pair[0] = tr_hash(pair, sizeof pair).lo;
    }
    return pair[0];
}

/* The rank whose entry i the fewest ranks share, or -1: all agree. */
static int odd_one(const struct tr_debug *d, int size, int i)
{
    int odd = -1, fewest = size;
    for (int r = 0; r < size; r++) {
        int n_same = 0;
        for (int q = 0; q < size; q++)
            n_same += d->all[(size_t)r * (size_t)d->n_hashes + (size_t)i] ==
                      d->all[(size_t)q * (size_t)d->n_hashes + (size_t)i];
        if (n_same <= fewest && n_same < size) { /* on a tie, the later rank */
            fewest = n_same;
            odd = r;
        }
    }
    return odd;
}

static enum tr_status compare(struct tr_debug *d, struct tr_comm *c, enum tr_state what, int64_t step)
{
    bool is_tensor = c == tr_mesh_axis(tr_exec_mesh(d->e), TR_AXIS_TP);
    int n_params = tr_exec_compiled(d->e)->place.model->n_params;
    for (int p = 0; p < n_params; p++) {
        if (is_tensor && tr_exec_compiled(d->e)->place.param[p].tp.is_split) /* each tensor rank holds its own shard */
            continue;
        int r = odd_one(d, c->size, 1 + (int)what * n_params + p);
        if (r < 0)
            continue;
        char text[512];
        (void)snprintf(text, sizeof text, "replica check after step %" PRId64 ": %s of %s on rank %d %s", step,
                       tr_exec_compiled(d->e)->place.states.row[what].title,
                       tr_exec_compiled(d->e)->place.model->param[p].name, (int)d->all[(size_t)r * (size_t)d->n_hashes],
                       c->size > 2 ? "differ from those of its replicas" : "differ from those of its only replica");
        tr_comm_abort(tr_exec_mesh(d->e)->all, text);
        return tr_fail(TR_PEER, "%s", text);
    }
    return TR_OK;
}

static enum tr_status exchange(struct tr_debug *d, struct tr_comm *c)
{
    return tr_comm_run(c, &(struct tr_coll){ .kind = TR_ALL_GATHER,
                                             .dtype = TR_I64,
                                             .in = d->mine,
                                             .out = d->all,
                                             .count = (size_t)d->n_hashes * (size_t)c->size,
                                             .site = "replica check" });
}

/* A fault that tests plant: flips a bit in the middle of the model. */
static void flip(struct tr_exec *e)
{
    int n_params = tr_exec_compiled(e)->place.model->n_params;
    for (int i = 0; i < n_params; i++) {
        int64_t first, n;
        int param = (n_params / 2 + i) % n_params;
        char *at = tr_exec_at(e, TR_S_VALUE, param, &first, &n);
        if (n == 0)
            continue;
        at += (size_t)(first + n / 2) * tr_exec_element(e, TR_S_VALUE, param).bytes;
        char byte = 0;
        tr_device_copy_now(tr_exec_device(e), &byte, at, 1);
        byte ^= 1;
        tr_device_copy_now(tr_exec_device(e), at, &byte, 1);
        return;
    }
}

enum tr_status tr_debug_replicas(struct tr_debug *d, int64_t step)
{
    struct tr_exec *e = d->e;
    int n_params = tr_exec_compiled(e)->place.model->n_params, n_states = tr_exec_compiled(e)->place.states.n;
    TR_PASS(tr_exec_drain(e));
    if (tr_failpoint("train.flip") != TR_OK)
        flip(e);
    d->mine[0] = (uint64_t)tr_exec_mesh(e)->rank;
    for (int s = 0; s < n_states; s++)
        for (int p = 0; p < n_params; p++)
            d->mine[1 + s * n_params + p] = hash_of(e, (enum tr_state)s, p);
    /* A sharded state has replicas only on the dp axis. A tensor that the tensor axis leaves whole has replicas on that
     * axis too. */
    struct tr_comm *const over[] = { tr_mesh_group(tr_exec_mesh(e), TR_ON_TOKENS),
                                     tr_mesh_group(tr_exec_mesh(e), TR_ON_REPLICAS),
                                     tr_mesh_axis(tr_exec_mesh(e), TR_AXIS_TP) };
    for (int pass = 0; pass < 3; pass++) {
        if (over[pass]->size == 1)
            continue;
        TR_PASS(exchange(d, over[pass]));
        for (int s = 0; s < n_states; s++)
            if (pass == 2 || tr_exec_is_sharded(e, (enum tr_state)s) == (pass == 1))
                TR_PASS(compare(d, over[pass], (enum tr_state)s, step));
    }
    return TR_OK;
}

/* A line that does not fit the disk is cut off again, so that the next one begins a line. */
static enum tr_status append_norms(const struct tr_debug *d, const char *dir, int64_t step)
{
    const struct tr_model *m = tr_exec_compiled(d->e)->place.model;
    enum tr_status st = TR_OK;
    struct tr_str line = { 0 };
    struct stat before;
    int fd = -1;
    TR_TRY(tr_out_open(dir, TR_NAME_GRAD_NORMS, TR_OUT_APPEND, &fd));
    tr_str_addf(&line, "{\"step\":%" PRId64 ",\"norms\":{", step);
    for (int i = 0; i < m->n_params; i++) {
        tr_str_member(&line, i ? "," : "", m->param[i].name);
        tr_str_addf(&line, ":%.9g", d->norms[i]);
    }
    tr_str_addf(&line, "}}\n");
    TR_TRY(tr_str_check(&line, TR_NAME_GRAD_NORMS));
    bool can_cut = fstat(fd, &before) == 0;
    st = tr_write_all(fd, TR_NAME_GRAD_NORMS, line.p, line.n);
    if (st != TR_OK && can_cut)
        (void)!ftruncate(fd, before.st_size);
out:
    if (fd >= 0)
        close(fd);
    tr_str_release(&line);
    return st;
}

void tr_debug_norms(struct tr_debug *d, const char *dir, struct tr_observe *ob, int64_t step)
{
    tr_exec_param_norms(d->e, d->norms);
    tr_observe_norms(ob, step, d->names, d->norms, (size_t)tr_exec_compiled(d->e)->place.model->n_params);
    bool is_lost = append_norms(d, dir, step) != TR_OK;
    if (is_lost && !d->has_lost_norms) {
        struct tr_event_fault f = {
            .rank = 0, .host = "", .phase = "step", .action = TR_NAME_GRAD_NORMS, .cause = tr_error_text()
        };
        tr_observe_fault(ob, &f);
    }
    d->has_lost_norms = is_lost;
    tr_error_clear();
}

/* How far the lines of steps up to `step` reach. Of a line only its beginning is kept: whatever the file holds, it
 * takes no memory. */
static off_t kept_bytes(FILE *f, int64_t step)
{
    enum { LINE_MOST = 1 << 28 };
    static const char begin[] = "{\"step\":";
    enum { N_BEGIN = sizeof begin - 1 };
    char head[N_BEGIN + 24] = "";
    off_t kept = 0, n = 0;
    for (int c; (c = getc_unlocked(f)) != EOF && n < LINE_MOST; n++) {
        if (n < (off_t)sizeof head - 1)
            head[n] = (char)c;
        if ((n < N_BEGIN && c != begin[n]) || (c == '\n' && strtoll(head + N_BEGIN, NULL, 10) > step))
            break;
        if (c == '\n') {
            kept += n + 1;
            n = -1;
        }
    }
    return kept;
}

enum tr_status tr_debug_norms_cut(const char *dir, int64_t step)
{
    char path[TR_PATH_MAX];
    int fd = -1;
    TR_PASS(tr_path_join(path, dir, TR_NAME_GRAD_NORMS));
    if (!tr_file_exists(path))
        return TR_OK;
    TR_PASS(tr_out_open(dir, TR_NAME_GRAD_NORMS, TR_OUT_APPEND, &fd));
    FILE *f = fdopen(fd, "r+");
    if (!f) {
        close(fd);
        return tr_fail(TR_NOMEM, "no memory to read %s", path);
    }
    rewind(f);
    bool is_cut = ftruncate(fileno(f), kept_bytes(f, step)) == 0;
    return fclose(f) == 0 && is_cut ? TR_OK : tr_fail(TR_IO, "cannot cut %s back to step %" PRId64, path, step);
}
