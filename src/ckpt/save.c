/* save.c - a store out to an HF directory: weights in HF names, config, tokenizer files, and for checkpoints the
 * optimizer state beside them. Headers, file plan and texts are made once at open; saving streams. */
#include "ckpt/ckpt.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const copied_files[] = {
    "generation_config.json",  "tokenizer.json",  "tokenizer_config.json",
    "special_tokens_map.json", "vocab.json",      "merges.txt",
    "added_tokens.json",       "tokenizer.model", "chat_template.jinja",
    "chat_template.json",
};

enum { TR_MAX_WRITERS = 1024 };

struct written {
    int64_t bytes, lo, hi;
};

struct tr_saver {
    struct tr_store s;
    struct tr_mesh *mesh; /* NULL: alone */
    char source[TR_PATH_MAX];
    bool has_source;
    enum tr_dtype dtype;
    struct tr_hf_plan *plan;
    struct written *files;      /* of the plan: what was written, as the writers had it in memory */
    struct tr_st_writer *optim; /* NULL: no optimizer state */
    char *config;               /* text of config.json */
};

/* The next number of a JSON text, strings skipped; NULL at the end. */
static const char *next_number(const char *p, size_t *n)
{
    for (bool in_string = false; *p; p++) {
        if (in_string && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            in_string = !in_string;
        else if (!in_string && (*p == '-' || (*p >= '0' && *p <= '9'))) {
            *n = strspn(p, "+-.0123456789eE");
            return p;
        }
    }
    return NULL;
}

/* Numbers keep their spelling: a parser that wants 30.0 does not take 30. A tree walked in order meets the numbers in
 * the order of the text. */
static bool keep_spelling(cJSON *item, const char **at)
{
    for (; item; item = item->next) {
        size_t n = 0;
        if (cJSON_IsNumber(item)) {
            const char *number = next_number(*at, &n);
            char *raw = number ? malloc(n + 1) : NULL;
            if (!raw)
                return false;
            memcpy(raw, number, n);
            raw[n] = 0;
            item->type = cJSON_Raw;
            item->valuestring = raw; /* freed by cJSON_Delete */
            *at = number + n;
        } else if (item->child && !keep_spelling(item->child, at)) {
            return false;
        }
    }
    return true;
}

static bool set_string(cJSON *c, const char *key, const char *value)
{
    if (cJSON_GetObjectItemCaseSensitive(c, key))
        return cJSON_ReplaceItemInObjectCaseSensitive(c, key, cJSON_CreateString(value));
    return cJSON_AddStringToObject(c, key, value) != NULL;
}

/* config.json with dtype and architectures as we save them; every other key as it came. */
static enum tr_status config_text(const struct tr_model *m, enum tr_dtype dtype, char **out)
{
    cJSON *c = cJSON_Duplicate(m->config, true);
    const char *at = m->config_text;
    bool ok = c != NULL && (!at || keep_spelling(c->child, &at));
    if (ok)
        ok = set_string(c, cJSON_GetObjectItemCaseSensitive(c, "torch_dtype") ? "torch_dtype" : "dtype",
                        tr_dtype_name(dtype));
    if (ok && !cJSON_GetObjectItemCaseSensitive(c, "architectures")) {
        cJSON *arch = cJSON_AddArrayToObject(c, "architectures");
        ok = arch && cJSON_AddItemToArray(arch, cJSON_CreateString(m->arch->class_name));
    }
    *out = ok ? cJSON_Print(c) : NULL;
    cJSON_Delete(c);
    return *out ? TR_OK : tr_fail(TR_NOMEM, "config.json: out of memory");
}

static const struct {
    enum tr_state what;
    const char *name;
} optim_states[] = { { TR_S_MASTER, "master" }, { TR_S_M, "m" }, { TR_S_V, "v" } };

static bool is_saved(const struct tr_saver *sv, enum tr_state what)
{
    return sv->s.has[what];
}

/* The weights file holds the compute copy in save_dtype; when that loses bits and no master exists, keep them here. */
static bool saves_value(const struct tr_saver *sv)
{
    return !sv->s.has[TR_S_MASTER] && sv->s.has[TR_S_M] &&
           tr_dtype_bytes(sv->dtype) < tr_dtype_bytes(sv->s.dtype[TR_S_VALUE]);
}

/* Calls fn for every optimizer entry, in file order: wider dtypes first. */
static enum tr_status each_entry(struct tr_saver *sv,
                                 enum tr_status (*fn)(struct tr_saver *, enum tr_state, const char *, int, void *),
                                 void *ctx)
{
    enum tr_status st = TR_OK;
    for (size_t bytes = 4; bytes >= 2; bytes -= 2) {
        if (saves_value(sv) && tr_dtype_bytes(sv->s.dtype[TR_S_VALUE]) == bytes)
            for (int i = 0; i < sv->s.model->n_params && st == TR_OK; i++)
                st = fn(sv, TR_S_VALUE, "master", i, ctx);
        for (size_t k = 0; k < TR_COUNT_OF(optim_states); k++)
            if (is_saved(sv, optim_states[k].what) && tr_dtype_bytes(sv->s.dtype[optim_states[k].what]) == bytes)
                for (int i = 0; i < sv->s.model->n_params && st == TR_OK; i++)
                    st = fn(sv, optim_states[k].what, optim_states[k].name, i, ctx);
    }
    return st;
}

static int stage_of(const struct tr_saver *sv, int param)
{
    return sv->s.stage ? sv->s.stage(sv->s.ctx, param) : 0;
}

/* Is the stage that saves a parameter this rank's? */
static bool is_mine(const struct tr_saver *sv, int param)
{
    return !sv->mesh || stage_of(sv, param) % sv->mesh->size[TR_AXIS_PP] == sv->mesh->coord[TR_AXIS_PP];
}

/* What this rank saves of a state. */
static int saved_boxes(const struct tr_saver *sv, enum tr_state what, int param, struct tr_box out[TR_MAX_BOXES])
{
    return is_mine(sv, param) ? sv->s.boxes(sv->s.ctx, what, param, out) : 0;
}

struct entries {
    struct tr_st_entry *e;
    char (*name)[TR_NAME_MAX + 32];
    size_t n;
};

static enum tr_status add_entry(struct tr_saver *sv, enum tr_state what, const char *state, int i, void *ctx)
{
    struct entries *x = ctx;
    struct tr_box box[TR_MAX_BOXES];
    enum tr_status st = TR_OK;
    int n = saved_boxes(sv, what, i, box);
    for (int b = 0; b < n && st == TR_OK; b++) {
        struct tr_st_entry *e = &x->e[x->n];
        *e = (struct tr_st_entry){ .name = x->name[x->n],
                                   .dtype = sv->s.dtype[what],
                                   .n_dims = box[b].rows > 1 ? 2 : 1 };
        e->dims[0] = box[b].rows > 1 ? box[b].rows : box[b].cols;
        e->dims[1] = box[b].rows > 1 ? box[b].cols : 0;
        st = tr_format(x->name[x->n++], sizeof x->name[0], "%s/%" PRId64 "/%s", state, box[b].first,
                       sv->s.model->param[i].name);
    }
    return st;
}

/* Replicas of a shard hold the same; the first of them saves it. */
static bool is_replica(const struct tr_saver *sv)
{
    return sv->mesh && sv->mesh->replicas->rank > 0;
}

static enum tr_status prepare_optim(struct tr_saver *sv)
{
    if (is_replica(sv))
        return TR_OK;
    size_t n_max = 4 * TR_MAX_BOXES * (size_t)sv->s.model->n_params;
    struct entries x = { .e = calloc(n_max, sizeof *x.e), .name = calloc(n_max, sizeof *x.name) };
    enum tr_status st = x.e && x.name ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
    if (st == TR_OK)
        st = each_entry(sv, add_entry, &x);
    if (st == TR_OK && x.n)
        st = tr_st_writer_prepare(x.e, x.n, NULL, 0, &sv->optim);
    free(x.e);
    free(x.name);
    return st;
}

static enum tr_status prepare_weights(struct tr_saver *sv)
{
    const struct tr_model *m = sv->s.model;
    struct tr_st_entry *e = calloc((size_t)m->n_params, sizeof *e);
    int *part_of = calloc((size_t)m->n_params, sizeof *part_of);
    enum tr_status st = e && part_of ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
    for (int i = 0; i < m->n_params && st == TR_OK; i++) {
        part_of[i] = stage_of(sv, i);
        e[i] = (struct tr_st_entry){ .name = m->param[i].name, .dtype = sv->dtype, .n_dims = m->param[i].n_dims };
        e[i].dims[0] = m->param[i].dim[0];
        e[i].dims[1] = m->param[i].dim[1];
    }
    if (st == TR_OK)
        st = tr_hf_plan_open(e, (size_t)m->n_params, part_of, TR_HF_SHARD_BYTES, &sv->plan);
    if (st == TR_OK && !(sv->files = calloc(tr_hf_plan_shards(sv->plan), sizeof *sv->files)))
        st = tr_fail(TR_NOMEM, "save: out of memory");
    free(part_of);
    free(e);
    return st;
}

enum tr_status tr_saver_open(const struct tr_store *s, struct tr_mesh *mesh, const char *source_dir,
                             enum tr_dtype save_dtype, struct tr_saver **out)
{
    enum tr_status st = TR_OK;
    struct tr_saver *sv = calloc(1, sizeof *sv);
    if (!sv)
        return tr_fail(TR_NOMEM, "save: out of memory");
    sv->s = *s;
    sv->mesh = mesh;
    sv->dtype = save_dtype;
    sv->has_source = source_dir && tr_dir_exists(source_dir);
    if (sv->has_source)
        TR_TRY(tr_format(sv->source, sizeof sv->source, "%s", source_dir));
    TR_TRY(config_text(s->model, save_dtype, &sv->config));
    TR_TRY(prepare_weights(sv));
    TR_TRY(prepare_optim(sv));
out:
    if (st == TR_OK)
        *out = sv;
    else
        tr_saver_close(sv);
    return st;
}

void tr_saver_close(struct tr_saver *sv)
{
    if (!sv)
        return;
    tr_hf_plan_close(sv->plan);
    tr_st_writer_close(sv->optim);
    free(sv->files);
    cJSON_free(sv->config);
    free(sv);
}

/* A whole tensor; w NULL: only take part in gathering it. Peers gather what this rank gathers, so a failed write is
 * remembered and the gathering goes on. */
static enum tr_status stream_whole(struct tr_saver *sv, struct tr_st_writer *w, int param)
{
    enum tr_status st = TR_OK, written = TR_OK;
    int64_t n_all = sv->s.model->param[param].n;
    for (int64_t at = 0; at < n_all && st == TR_OK; at += TR_IO_CHUNK) {
        int64_t n = tr_min64(TR_IO_CHUNK, n_all - at);
        const void *src = NULL;
        st = sv->s.whole(sv->s.ctx, sv->s.weights, param, at, n, &src);
        if (st == TR_OK && w && written == TR_OK)
            written = tr_st_writer_add(w, src, sv->s.dtype[sv->s.weights], (size_t)n);
    }
    return st != TR_OK ? st : written;
}

static enum tr_status stream_run(struct tr_saver *sv, enum tr_state what, int param, int64_t first, int64_t n_all)
{
    enum tr_status st = TR_OK;
    for (int64_t at = 0; at < n_all && st == TR_OK; at += TR_IO_CHUNK) {
        int64_t n = tr_min64(TR_IO_CHUNK, n_all - at);
        const void *src = NULL;
        st = sv->s.get(sv->s.ctx, what, param, first + at, n, &src);
        if (st == TR_OK)
            st = tr_st_writer_add(sv->optim, src, sv->s.dtype[what], (size_t)n);
    }
    return st;
}

static enum tr_status stream_entry(struct tr_saver *sv, enum tr_state what, const char *state, int i, void *ctx)
{
    struct tr_box box[TR_MAX_BOXES];
    enum tr_status st = TR_OK;
    int n = saved_boxes(sv, what, i, box);
    (void)state;
    (void)ctx;
    for (int b = 0; b < n; b++)
        for (int64_t r = 0; r < box[b].rows && st == TR_OK; r++)
            st = stream_run(sv, what, i, box[b].first + r * sv->s.model->param[i].cols, box[b].cols);
    return st;
}

static bool is_writer(const struct tr_saver *sv)
{
    return !sv->mesh || sv->mesh->rank == 0;
}

/* The rank of a stage that writes its weights. */
static bool is_leader(const struct tr_saver *sv)
{
    for (int a = TR_AXIS_PP + 1; sv->mesh && a < TR_AXES; a++)
        if (sv->mesh->coord[a] > 0)
            return false;
    return true;
}

/* File k, when it is of this rank's stage. */
static enum tr_status write_shard(struct tr_saver *sv, size_t k, const char *path)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    size_t first = 0, n = 0;
    uint64_t bytes = 0;
    struct tr_hash128 hash = { 0 };
    tr_hf_plan_range(sv->plan, k, &first, &n);
    sv->files[k] = (struct written){ 0 };
    if (!is_mine(sv, (int)first))
        return TR_OK;
    struct tr_st_writer *w = is_leader(sv) ? tr_hf_plan_writer(sv->plan, k) : NULL;
    if (w)
        failed = tr_st_writer_begin(w, path);
    for (size_t i = first; i < first + n; i++) {
        st = stream_whole(sv, failed == TR_OK ? w : NULL, (int)i);
        failed = failed == TR_OK ? st : failed;
    }
    if (w && failed == TR_OK)
        failed = tr_st_writer_finish(w, &bytes, &hash);
    if (w && failed != TR_OK)
        tr_st_writer_abort(w);
    else
        sv->files[k] = (struct written){ (int64_t)bytes, (int64_t)hash.lo, (int64_t)hash.hi };
    return failed;
}

/* All ranks learn whether all of them got here well. */
static enum tr_status agree(struct tr_saver *sv, enum tr_status st)
{
    int64_t worst = st;
    struct tr_coll c = { .kind = TR_ALL_REDUCE,
                         .dtype = TR_I64,
                         .op = TR_MAX,
                         .in = &worst,
                         .out = &worst,
                         .count = 1,
                         .site = "save: all well?" };
    if (!sv->mesh)
        return st;
    enum tr_status sent = tr_comm_run(sv->mesh->all, &c);
    if (st != TR_OK || sent != TR_OK)
        return st != TR_OK ? st : sent;
    return worst == TR_OK ? TR_OK : tr_fail(TR_PEER, "checkpoint abandoned: another rank could not write its part");
}

static enum tr_status optim_name(int rank, int size, char *out, size_t n)
{
    return tr_format(out, n, "trireme/optim-%04d-of-%04d.safetensors", rank, size);
}

/* Every rank its own file; rank 0 hears sizes and hashes, as the writers had them in memory, and registers them all. */
static enum tr_status write_optim(struct tr_saver *sv, struct tr_commit *c, const char *dir, uint64_t *total)
{
    enum tr_status st = TR_OK;
    int rank = sv->mesh ? sv->mesh->rank : 0, size = sv->mesh ? sv->mesh->world : 1;
    char path[TR_PATH_MAX], name[64];
    struct written mine = { 0 }, all[TR_MAX_WRITERS];
    struct tr_hash128 hash = { 0 };
    uint64_t bytes = 0;
    if (size > TR_MAX_WRITERS)
        return tr_fail(TR_USAGE, "checkpoints of more than %d ranks are not possible", TR_MAX_WRITERS);
    if (sv->optim) {
        TR_TRY(optim_name(rank, size, name, sizeof name));
        TR_TRY(tr_path_join(path, dir, name));
        TR_TRY(tr_st_writer_begin(sv->optim, path));
        TR_TRY(each_entry(sv, stream_entry, NULL));
        TR_TRY(tr_st_writer_finish(sv->optim, &bytes, &hash));
        mine = (struct written){ (int64_t)bytes, (int64_t)hash.lo, (int64_t)hash.hi };
    }
out:
    if (st != TR_OK)
        tr_st_writer_abort(sv->optim);
    st = agree(sv, st);
    if (st != TR_OK)
        return st;
    all[rank] = mine;
    struct tr_coll g = { .kind = TR_ALL_GATHER,
                         .dtype = TR_I64,
                         .in = &mine,
                         .out = all,
                         .count = 3 * (size_t)size,
                         .site = "save: sizes and hashes" };
    st = sv->mesh ? tr_comm_run(sv->mesh->all, &g) : TR_OK;
    for (int r = 0; c && r < size && st == TR_OK; r++) {
        struct tr_hash128 h = { (uint64_t)all[r].lo, (uint64_t)all[r].hi };
        if (all[r].bytes == 0) /* nothing of this model is that rank's */
            continue;
        st = optim_name(r, size, name, sizeof name);
        if (st == TR_OK)
            st = tr_commit_add(c, name, (uint64_t)all[r].bytes, h);
        *total += (uint64_t)all[r].bytes;
    }
    return st;
}

static enum tr_status put_texts(struct tr_saver *sv, struct tr_commit *c)
{
    enum tr_status st = TR_OK;
    char from[TR_PATH_MAX];
    TR_TRY(tr_commit_put(c, "config.json", sv->config, strlen(sv->config)));
    if (tr_hf_plan_index(sv->plan))
        TR_TRY(tr_commit_put(c, TR_HF_INDEX_NAME, tr_hf_plan_index(sv->plan), strlen(tr_hf_plan_index(sv->plan))));
    for (size_t i = 0; sv->has_source && i < TR_COUNT_OF(copied_files); i++) {
        TR_TRY(tr_path_join(from, sv->source, copied_files[i]));
        if (tr_file_exists(from))
            TR_TRY(tr_commit_copy(c, copied_files[i], from));
    }
out:
    return st;
}

/* Rank 0 alone: everything that is not a tensor, then the commit itself. */
static enum tr_status finish(struct tr_saver *sv, struct tr_commit *c, const char *state, const char *trainer_state)
{
    enum tr_status st = TR_OK;
    TR_TRY(put_texts(sv, c));
    TR_TRY(tr_commit_put(c, "trainer_state.json", trainer_state, strlen(trainer_state)));
    TR_TRY(tr_commit_put(c, "trireme/state.json", state, strlen(state)));
    TR_TRY(tr_commit_finish(c));
out:
    return st;
}

/* All files of weights, each by its stage at the same time; rank 0 hears sizes and hashes and registers them. */
static enum tr_status write_weights(struct tr_saver *sv, struct tr_commit *c, const char *dir, uint64_t *total)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    size_t n = tr_hf_plan_shards(sv->plan);
    char path[TR_PATH_MAX];
    for (size_t k = 0; k < n; k++) {
        st = tr_path_join(path, dir, tr_hf_plan_name(sv->plan, k));
        if (st == TR_OK)
            st = write_shard(sv, k, path);
        failed = failed == TR_OK ? st : failed;
    }
    TR_TRY(agree(sv, failed));
    struct tr_coll g = { .kind = TR_ALL_REDUCE, /* one rank has each, the others 0 */
                         .dtype = TR_I64,
                         .op = TR_SUM,
                         .in = sv->files,
                         .out = sv->files,
                         .count = 3 * n,
                         .site = "save: sizes and hashes of weights" };
    if (sv->mesh)
        TR_TRY(tr_comm_run(sv->mesh->all, &g));
    for (size_t k = 0; k < n; k++) {
        const struct written *f = &sv->files[k];
        if (c)
            TR_TRY(tr_commit_add(c, tr_hf_plan_name(sv->plan, k), (uint64_t)f->bytes,
                                 (struct tr_hash128){ (uint64_t)f->lo, (uint64_t)f->hi }));
        *total += (uint64_t)f->bytes;
    }
out:
    return st;
}

enum tr_status tr_saver_checkpoint(struct tr_saver *sv, const char *output, const char *run_id, int64_t step,
                                   int64_t generation, const char *state, const char *trainer_state,
                                   uint64_t *out_bytes)
{
    enum tr_status st = TR_OK;
    struct tr_commit *c = NULL;
    uint64_t total = 0;
    char dir[TR_PATH_MAX];
    TR_TRY(agree(sv, is_writer(sv) ? tr_commit_begin(output, run_id, step, generation, &c) : TR_OK));
    TR_TRY(tr_commit_dir_of(output, step, generation, dir));
    TR_TRY(agree(sv, write_weights(sv, c, dir, &total)));
    TR_TRY(write_optim(sv, c, dir, &total));
    TR_TRY(agree(sv, c ? finish(sv, c, state, trainer_state) : TR_OK));
    *out_bytes = total;
out:
    tr_commit_close(c);
    return st;
}

/* ---- the model itself, without a commit ---- */

static enum tr_status temp_name(const struct tr_saver *sv, const char *dir, size_t k, char *path, char *temp)
{
    enum tr_status st = tr_path_join(path, dir, tr_hf_plan_name(sv->plan, k));
    return st == TR_OK ? tr_format(temp, TR_PATH_MAX, "%s.tmp-%ld", path, (long)getpid()) : st;
}

/* The files of this rank's stage under temporary names, and, once all ranks have theirs, under their own. */
static enum tr_status put_weights(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    char path[TR_PATH_MAX], temp[TR_PATH_MAX];
    size_t n = tr_hf_plan_shards(sv->plan);
    for (size_t k = 0; k < n; k++) {
        st = temp_name(sv, dir, k, path, temp);
        if (st == TR_OK)
            st = write_shard(sv, k, temp);
        failed = failed == TR_OK ? st : failed;
    }
    st = agree(sv, failed);
    for (size_t k = 0; k < n; k++) {
        if (sv->files[k].bytes == 0 || temp_name(sv, dir, k, path, temp) != TR_OK)
            continue;
        if (st != TR_OK)
            (void)unlink(temp);
        else if (rename(temp, path) != 0)
            failed = tr_fail(TR_IO, "%s: rename: %s", path, strerror(errno));
    }
    return st == TR_OK ? agree(sv, failed) : st;
}

/* Weights under other names, of another cut: transformers would prefer some of them. */
static void remove_stale(const struct tr_saver *sv, const char *dir)
{
    char path[TR_PATH_MAX];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), k = 0;
        bool is_shard = n == strlen("model-00001-of-00002.safetensors") && strncmp(e->d_name, "model-", 6) == 0 &&
                        strncmp(e->d_name + 11, "-of-", 4) == 0 && strcmp(e->d_name + 20, ".safetensors") == 0;
        bool is_index = strcmp(e->d_name, TR_HF_INDEX_NAME) == 0;
        while (k < tr_hf_plan_shards(sv->plan) && strcmp(e->d_name, tr_hf_plan_name(sv->plan, k)) != 0)
            k++;
        bool is_ours = k < tr_hf_plan_shards(sv->plan) || (is_index && tr_hf_plan_index(sv->plan));
        if (!is_ours && (is_shard || is_index || strcmp(e->d_name, "model.safetensors") == 0) &&
            tr_path_join(path, dir, e->d_name) == TR_OK)
            (void)unlink(path);
    }
    if (d)
        closedir(d);
}

static enum tr_status put_files(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], temp[TR_PATH_MAX];
    if (tr_hf_plan_index(sv->plan)) {
        TR_TRY(tr_path_join(path, dir, TR_HF_INDEX_NAME));
        TR_TRY(tr_file_write_atomic(path, tr_hf_plan_index(sv->plan), strlen(tr_hf_plan_index(sv->plan))));
    }
    remove_stale(sv, dir);
    for (size_t i = 0; sv->has_source && i < TR_COUNT_OF(copied_files); i++) {
        char *text = NULL;
        size_t n = 0;
        TR_TRY(tr_path_join(temp, sv->source, copied_files[i]));
        if (!tr_file_exists(temp))
            continue;
        TR_TRY(tr_path_join(path, dir, copied_files[i]));
        TR_TRY(tr_file_read(temp, 256 << 20, &text, &n));
        st = tr_file_write_atomic(path, text, n);
        free(text);
        TR_TRY(st);
    }
    TR_TRY(tr_path_join(path, dir, "config.json"));
    TR_TRY(tr_file_write_atomic(path, sv->config, strlen(sv->config)));
    TR_TRY(tr_fsync_dir(dir));
out:
    return st;
}

enum tr_status tr_saver_model(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK;
    TR_TRY(agree(sv, is_writer(sv) ? tr_mkdirs(dir) : TR_OK));
    TR_TRY(put_weights(sv, dir));
    TR_TRY(agree(sv, is_writer(sv) ? put_files(sv, dir) : TR_OK));
out:
    return st;
}
