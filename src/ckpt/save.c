/* save.c - a store out to files: weights in HF names, each tensor whole and by one rank, and every rank's ranges of
 * optimizer state. Headers and the file plan are made once at open.
 *
 * There is one walk over what a rank writes, in the order of its files; it ends either in staging memory or in the
 * files themselves, and staged memory is written by its lengths alone. Rejected: ranks that write their ranges into one
 * file of weights (no gather, but no rank knows the file's hash from its memory).
 */
#include "ckpt/save_impl.h"
#include <stdlib.h>

const char *const tr_copied_files[] = { "generation_config.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "video_preprocessor_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        NULL };

/* ---- what there is to write ---- */

static bool is_saved(const struct tr_saver *sv, int row)
{
    const struct tr_state_row *r = &sv->s.states.row[row];
    return row == TR_S_VALUE ? tr_states_save_value(&sv->s.states, sv->opt.dtype) : r->is_held && r->name;
}

/* A frozen parameter has come from a file of weights, and has no bits that such a file does not hold. */
static bool is_frozen(const struct tr_saver *sv, int param)
{
    return sv->s.fate_of && sv->s.fate_of[param] >= TR_FROZEN;
}

typedef enum tr_status entry_fn(struct tr_saver *sv, enum tr_state what, int param, void *ctx);

/* Calls fn for every optimizer entry, in file order: wider dtypes first. */
static enum tr_status each_entry(struct tr_saver *sv, entry_fn *fn, void *ctx)
{
    enum tr_status st = TR_OK;
    for (size_t bytes = 8; bytes >= 1; bytes /= 2)
        for (int row = 0; row < sv->s.states.n; row++) {
            if (!is_saved(sv, row) || tr_dtype_bytes(sv->s.states.row[row].dtype) != bytes)
                continue;
            for (int i = 0; i < sv->s.model->n_params && st == TR_OK; i++)
                if (!is_frozen(sv, i) && tr_store_holds(&sv->s, (enum tr_state)row, i))
                    st = fn(sv, (enum tr_state)row, i, ctx);
        }
    return st;
}

struct entries {
    struct tr_st_entry *e;
    char (*name)[TR_NAME_MAX + 32];
    size_t n;
};

static enum tr_status add_entry(struct tr_saver *sv, enum tr_state what, int i, void *ctx)
{
    struct entries *x = ctx;
    struct tr_range range[TR_MAX_RANGES];
    enum tr_status st = TR_OK;
    int n = sv->s.ranges(sv->s.ctx, what, i, range);
    for (int b = 0; b < n && st == TR_OK; b++) {
        struct tr_st_entry *e = &x->e[x->n];
        *e = (struct tr_st_entry){ .name = x->name[x->n],
                                   .dtype = sv->s.states.row[what].dtype,
                                   .n_dims = range[b].rows > 1 ? 2 : 1 };
        e->dims[0] = range[b].rows > 1 ? range[b].rows : range[b].cols;
        e->dims[1] = range[b].rows > 1 ? range[b].cols : 0;
        st = tr_format(x->name[x->n++], sizeof x->name[0], "%s/%" PRId64 "/%s", sv->s.states.row[what].name,
                       range[b].first, sv->s.model->param[i].name);
    }
    return st;
}

static enum tr_status prepare_optim(struct tr_saver *sv)
{
    if (!sv->s.ranges || sv->opt.only_model)
        return TR_OK;
    size_t n_max = (size_t)sv->s.states.n * TR_MAX_RANGES * (size_t)sv->s.model->n_params;
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

static int writer_of(const struct tr_saver *sv, int param)
{
    return sv->s.writer && param >= 0 ? sv->s.writer(sv->s.ctx, param) : 0;
}

bool tr_saver_writes(const struct tr_saver *sv, size_t file)
{
    size_t first = 0, n = 0;
    tr_hf_plan_range(sv->plan, file, &first, &n);
    return writer_of(sv, sv->param_of[first]) == sv->rank;
}

/* What the plan of the files is made from, by entry. */
struct weights {
    struct tr_st_entry *e;
    char (*name)[TR_ADAPTER_KEY_MAX];
    int *part_of;
};

/* A frozen tensor in an adapter's file (the matrix under an adapted embedding) keeps the dtype of the base. */
static enum tr_dtype dtype_of(const struct tr_saver *sv, int param)
{
    bool is_base = tr_model_has_adapter(sv->s.model) && !sv->s.model->param[param].in_adapter;
    return is_base ? sv->s.states.row[TR_S_VALUE].dtype : sv->opt.dtype;
}

static void add_tensor(struct tr_saver *sv, int i, struct weights *x)
{
    const struct tr_param *p = &sv->s.model->param[i];
    size_t k = sv->n_entries++;
    sv->param_of[k] = i;
    sv->start_of[k] = tr_adapter_start_of(sv->s.model, i);
    x->part_of[k] = writer_of(sv, i);
    x->e[k] = (struct tr_st_entry){ .name = x->name[k], .dtype = dtype_of(sv, i), .n_dims = p->n_dims };
    x->e[k].dims[0] = p->dim[0];
    x->e[k].dims[1] = p->dim[1];
    if (sv->start_of[k] >= 0)
        x->e[k].dims[tr_save_join_dim(sv, i)] *= 2;
}

static enum tr_status add_weight(struct tr_saver *sv, int i, struct weights *x)
{
    const struct tr_model *m = sv->s.model;
    char *name = x->name[sv->n_entries], file[TR_FILE_NAME_MAX];
    enum tr_status st = tr_model_has_adapter(m) ? tr_adapter_key(m, i, name, sizeof x->name[0])
                                                : tr_format(name, sizeof x->name[0], "%s",
                                                            tr_naming_file(&sv->naming, m->param[i].name, file));
    add_tensor(sv, i, x);
    if (tr_adapter_second_key(m, i, x->name[sv->n_entries], sizeof x->name[0]))
        add_tensor(sv, i, x);
    return st;
}

/* Files of their own, so another number than that of any rank. */
static void add_carried(struct tr_saver *sv, size_t k, struct weights *x)
{
    size_t i = sv->n_entries++;
    sv->param_of[i] = -1 - (int)k;
    sv->start_of[i] = -1;
    x->part_of[i] = -1;
    x->e[i] = tr_save_carry_entry(sv, k);
}

/* A model's parameters under their own names, or of an adapted model those of the adapter, under PEFT's and in one
 * file. Wider dtypes come first. */
static enum tr_status prepare_weights(struct tr_saver *sv)
{
    const struct tr_model *m = sv->s.model;
    TR_PASS(tr_save_carry_open(sv));
    size_t n = (size_t)m->n_params + 1 + sv->carry.n; /* one tensor may be there twice */
    bool has_adapter = tr_model_has_adapter(m);
    struct weights x = { calloc(n, sizeof *x.e), calloc(n, sizeof *x.name), calloc(n, sizeof *x.part_of) };
    sv->param_of = calloc(n, sizeof *sv->param_of);
    sv->start_of = calloc(n, sizeof *sv->start_of);
    bool has_memory = x.e && x.name && x.part_of && sv->param_of && sv->start_of;
    enum tr_status st = has_memory ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
    for (size_t bytes = 8; bytes >= 1; bytes /= 2)
        for (int i = 0; i < m->n_params && st == TR_OK; i++)
            if (tr_dtype_bytes(dtype_of(sv, i)) == bytes && tr_adapter_saves(m, i) &&
                !tr_adapter_is_fixed(m->param[i].name))
                st = add_weight(sv, i, &x);
    for (size_t k = 0; k < sv->carry.n && st == TR_OK; k++)
        add_carried(sv, k, &x);
    if (st == TR_OK)
        st = tr_save_join_open(sv);
    if (st == TR_OK)
        st = tr_hf_plan_open(has_adapter ? "adapter_model" : "model", x.e, sv->n_entries, x.part_of,
                             has_adapter ? UINT64_MAX : TR_HF_SHARD_BYTES, &sv->plan);
    if (st == TR_OK) {
        sv->n_files = tr_hf_plan_shards(sv->plan) + (size_t)sv->world;
        sv->files = calloc(sv->n_files, sizeof *sv->files);
        st = sv->files ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
    }
    free(x.part_of);
    free(x.name);
    free(x.e);
    return st;
}

static enum tr_status add_text(struct tr_saver *sv, const char *name, const char *text)
{
    struct tr_save_text *t = &sv->text[sv->n_texts];
    TR_BUG_ON(sv->n_texts == TR_SAVE_TEXTS);
    t->name = strdup(name);
    t->text = strdup(text);
    sv->n_texts++;
    return t->name && t->text ? TR_OK : tr_fail(TR_NOMEM, "save: out of memory");
}

static enum tr_status prepare_texts(struct tr_saver *sv)
{
    enum tr_status st = TR_OK;
    char *config = NULL;
    for (size_t i = 0; i < sv->opt.n_texts; i++)
        TR_TRY(add_text(sv, sv->opt.text[i].name, sv->opt.text[i].text));
    if (sv->n_texts > 0 && strcmp(sv->text[sv->n_texts - 1].name, TR_ADAPTER_CONFIG) == 0)
        return TR_OK;
    TR_TRY(tr_saved_config(sv->s.model, sv->opt.dtype, NULL, &config));
    TR_TRY(add_text(sv, "config.json", config));
out:
    cJSON_free(config);
    return st;
}

enum tr_status tr_saver_open(const struct tr_store *s, const struct tr_saver_options *opt, struct tr_saver **out)
{
    enum tr_status st = TR_OK;
    struct tr_saver *sv = calloc(1, sizeof *sv);
    if (!sv)
        return tr_fail(TR_NOMEM, "save: out of memory");
    sv->s = *s;
    sv->opt = *opt;
    pthread_mutex_init(&sv->mutex, NULL);
    tr_cond_init(&sv->cond);
    TR_TRY(tr_mesh_given(opt->mesh, &sv->own_mesh, &sv->opt.mesh));
    sv->rank = sv->opt.mesh->rank;
    sv->world = sv->opt.mesh->world;
    sv->has_source = opt->source_dir && tr_dir_exists(opt->source_dir);
    if (sv->has_source)
        TR_TRY(tr_format(sv->source, sizeof sv->source, "%s", opt->source_dir));
    sv->has_base = opt->base_dir && tr_dir_exists(opt->base_dir);
    if (sv->has_base)
        TR_TRY(tr_format(sv->base, sizeof sv->base, "%s", opt->base_dir));
    TR_TRY(tr_pump_open(opt->pages, &sv->pump));
    TR_TRY(prepare_texts(sv));
    TR_TRY(prepare_weights(sv));
    TR_TRY(prepare_optim(sv));
    if (opt->staging)
        TR_TRY(tr_save_start_thread(sv));
out:
    if (st == TR_OK)
        *out = sv;
    else
        (void)tr_saver_close(sv);
    return st;
}

/* ---- the walk ---- */

enum { COPY_BYTES = 1 << 18 };

struct copy {
    char *to;
    const char *from;
    size_t n;
};

static void copy_piece(void *ctx, int64_t task, int worker)
{
    const struct copy *c = ctx;
    size_t at = (size_t)task * COPY_BYTES;
    (void)worker;
    memcpy(c->to + at, c->from + at, c->n - at < COPY_BYTES ? c->n - at : COPY_BYTES);
}

void tr_save_take(struct tr_save_sink *k, const void *src, enum tr_dtype dtype, int64_t n)
{
    size_t bytes = (size_t)n * tr_dtype_bytes(dtype);
    if (!k->at) {
        if (k->w && k->failed == TR_OK)
            k->failed = tr_st_writer_add(k->w, src, dtype, (size_t)n);
        return;
    }
    TR_BUG_ON(bytes > (size_t)(k->end - k->at));
    struct copy c = { k->at, src, bytes };
    tr_pool_run(k->sv->opt.pool, (int64_t)((bytes + COPY_BYTES - 1) / COPY_BYTES), copy_piece, &c);
    k->at += bytes;
}

/* All ranks that hold a part of the tensor come here; its writer takes it. */
static enum tr_status walk_tensor(struct tr_save_sink *k, size_t entry)
{
    const struct tr_store *s = &k->sv->s;
    enum tr_status st = TR_OK;
    int param = k->sv->param_of[entry];
    if (param < 0) { /* what is carried over is never staged */
        if (k->w && k->failed == TR_OK)
            k->failed = tr_save_carry_copy(k->sv, (size_t)(-1 - param), k->w);
        return TR_OK;
    }
    if (k->sv->start_of[entry] >= 0)
        return tr_save_walk_joined(k, param, k->sv->start_of[entry]);
    int64_t n_all = s->model->param[param].n;
    enum tr_state what = tr_store_weights(s, param);
    bool is_writer = writer_of(k->sv, param) == k->sv->rank;
    for (int64_t at = 0; at < n_all && st == TR_OK; at += TR_IO_CHUNK) {
        int64_t n = tr_min64(TR_IO_CHUNK, n_all - at);
        const void *src = NULL;
        st = s->whole(s->ctx, what, param, at, n, &src);
        if (st == TR_OK && is_writer)
            tr_save_take(k, src, s->states.row[what].dtype, n);
    }
    return st;
}

static enum tr_status walk_entry(struct tr_saver *sv, enum tr_state what, int i, void *ctx)
{
    struct tr_range range[TR_MAX_RANGES];
    struct tr_save_sink *k = ctx;
    enum tr_status st = TR_OK;
    const struct tr_state_row *r = &sv->s.states.row[what];
    int n_ranges = sv->s.ranges(sv->s.ctx, what, i, range);
    int64_t stride = sv->s.model->param[i].cols / r->block, most = tr_io_chunk(r->dtype);
    for (int b = 0; b < n_ranges; b++)
        for (int64_t row = 0; row < range[b].rows; row++)
            for (int64_t at = 0; at < range[b].cols && st == TR_OK; at += most) {
                int64_t n = tr_min64(most, range[b].cols - at);
                const void *src = NULL;
                st = sv->s.get(sv->s.ctx, what, i, range[b].first + row * stride + at, n, &src);
                if (st == TR_OK)
                    tr_save_take(k, src, r->dtype, n);
            }
    return st;
}

enum tr_status tr_save_snapshot(struct tr_saver *sv)
{
    struct tr_save_sink k = { .sv = sv, .at = sv->opt.staging, .end = (char *)sv->opt.staging + sv->opt.staging_bytes };
    for (size_t i = 0; i < sv->n_entries; i++)
        TR_PASS(walk_tensor(&k, i));
    if (sv->optim)
        TR_PASS(each_entry(sv, walk_entry, &k));
    return tr_failpoint("ckpt.snapshot");
}

/* ---- files, from the store or from memory ---- */

static struct tr_written *slot_of_optim(struct tr_saver *sv, int rank)
{
    return &sv->files[tr_hf_plan_shards(sv->plan) + (size_t)rank];
}

enum tr_status tr_save_optim_name(const struct tr_saver *sv, int rank, char *out, size_t n)
{
    return tr_format(out, n, "trireme/optim-%04d-of-%04d.safetensors", rank, sv->world);
}

/* Ends the file of a walk; a file that failed is gone. */
static enum tr_status finish_file(struct tr_st_writer *w, enum tr_status st, struct tr_written *out)
{
    uint64_t bytes = 0;
    struct tr_hash128 hash = { 0 };
    if (st == TR_OK)
        st = tr_st_writer_finish(w, &bytes, &hash);
    if (st != TR_OK)
        tr_st_writer_abort(w);
    else
        *out = (struct tr_written){ (int64_t)bytes, (int64_t)hash.lo, (int64_t)hash.hi };
    return st;
}

enum tr_status tr_save_stream_file(struct tr_saver *sv, size_t f, const char *dir, const char *name)
{
    enum tr_status st = TR_OK;
    size_t first = 0, n = 0;
    struct tr_save_sink k = { .sv = sv, .w = tr_saver_writes(sv, f) ? tr_hf_plan_writer(sv->plan, f) : NULL };
    tr_hf_plan_range(sv->plan, f, &first, &n);
    sv->files[f] = (struct tr_written){ 0 };
    if (k.w)
        k.failed = tr_st_writer_begin(k.w, sv->pump, dir, name);
    for (size_t i = first; i < first + n && st == TR_OK; i++)
        st = walk_tensor(&k, i);
    if (k.w)
        k.failed = finish_file(k.w, st == TR_OK ? k.failed : st, &sv->files[f]);
    return st == TR_OK ? k.failed : st;
}

enum tr_status tr_save_stream_optim(struct tr_saver *sv)
{
    char name[64], path[TR_PATH_MAX];
    struct tr_save_sink k = { .sv = sv, .w = sv->optim };
    if (!sv->optim)
        return TR_OK;
    TR_PASS(tr_save_optim_name(sv, sv->rank, name, sizeof name));
    TR_PASS(tr_path_join(path, sv->dir, name));
    k.failed = tr_st_writer_begin(k.w, sv->pump, sv->job.output, path);
    enum tr_status st = k.failed == TR_OK ? each_entry(sv, walk_entry, &k) : TR_OK;
    return finish_file(k.w, st == TR_OK ? k.failed : st, slot_of_optim(sv, sv->rank));
}

struct staged {
    struct tr_st_writer *w;
    const char *at;
};

static enum tr_status write_entry(struct tr_saver *sv, enum tr_state what, int i, void *ctx)
{
    struct tr_range range[TR_MAX_RANGES];
    struct staged *x = ctx;
    enum tr_status st = TR_OK;
    enum tr_dtype dtype = sv->s.states.row[what].dtype;
    int n_ranges = sv->s.ranges(sv->s.ctx, what, i, range);
    for (int b = 0; b < n_ranges && st == TR_OK; b++) {
        size_t n = (size_t)(range[b].rows * range[b].cols);
        st = tr_st_writer_add(x->w, x->at, dtype, n);
        x->at += n * tr_dtype_bytes(dtype);
    }
    return st;
}

static enum tr_status write_optim(struct tr_saver *sv, const char *at)
{
    char name[64], path[TR_PATH_MAX];
    struct staged x = { sv->optim, at };
    enum tr_status st = tr_save_optim_name(sv, sv->rank, name, sizeof name);
    if (st == TR_OK)
        st = tr_path_join(path, sv->dir, name);
    if (st == TR_OK)
        st = tr_st_writer_begin(x.w, sv->pump, sv->job.output, path);
    if (st == TR_OK)
        st = each_entry(sv, write_entry, &x);
    return finish_file(x.w, st, slot_of_optim(sv, sv->rank));
}

/* Weights are staged side by side in the order of their files. *at moves behind this file's. */
static enum tr_status write_file(struct tr_saver *sv, size_t f, const char **at)
{
    enum tr_status st = TR_OK;
    size_t first = 0, n = 0;
    char path[TR_PATH_MAX];
    struct tr_st_writer *w = tr_hf_plan_writer(sv->plan, f);
    tr_hf_plan_range(sv->plan, f, &first, &n);
    st = tr_path_join(path, sv->dir, tr_hf_plan_name(sv->plan, f));
    if (st == TR_OK)
        st = tr_st_writer_begin(w, sv->pump, sv->job.output, path);
    for (size_t i = first; i < first + n && st == TR_OK; i++) {
        int param = sv->param_of[i];
        if (param < 0) {
            st = tr_save_carry_copy(sv, (size_t)(-1 - param), w);
            continue;
        }
        enum tr_dtype dtype = sv->s.states.row[tr_store_weights(&sv->s, param)].dtype;
        size_t n_elems = (size_t)sv->s.model->param[param].n * (sv->start_of[i] >= 0 ? 2 : 1);
        st = tr_st_writer_add(w, *at, dtype, n_elems);
        *at += n_elems * tr_dtype_bytes(dtype);
    }
    return finish_file(w, st, &sv->files[f]);
}

/* What a disk refused once is written again, into a new file: a failed fsync is never repeated (C2). */
enum tr_status tr_save_write_staged(struct tr_saver *sv)
{
    enum tr_status st = TR_OK;
    const char *at = sv->opt.staging;
    for (size_t f = 0; f < tr_hf_plan_shards(sv->plan) && st == TR_OK; f++) {
        const char *begin = at;
        if (!tr_saver_writes(sv, f))
            continue;
        st = write_file(sv, f, &at);
        if (st == TR_IO) {
            at = begin;
            st = write_file(sv, f, &at);
        }
    }
    if (st == TR_OK && sv->optim) {
        st = write_optim(sv, at);
        if (st == TR_IO)
            st = write_optim(sv, at);
    }
    return st;
}
