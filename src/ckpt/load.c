/* load.c - HF directories and optimizer shards into a store. Files are checked whole (names, shapes, ranges) before the
 * first byte is put, so a refused directory leaves the store as it was. */
#include "ckpt/load_impl.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum tr_dtype tr_config_dtype(const cJSON *config)
{
    static const char *const keys[] = { "dtype", "torch_dtype" };
    enum tr_dtype d = TR_F32;
    for (size_t i = 0; i < TR_COUNT_OF(keys); i++) {
        const cJSON *k = cJSON_GetObjectItemCaseSensitive(config, keys[i]);
        if (cJSON_IsString(k) && tr_dtype_parse(k->valuestring, &d) == TR_OK && d <= TR_F64)
            return d;
    }
    tr_error_clear();
    return TR_F32;
}

/* ---- a chunk on its way from a file into the store ----
 *
 * The store's threads read, look and convert a piece each; `put` is called by one, in order. The buffer holds a chunk
 * as F32 and behind it once more in 16 bits. */

enum { PIECE = TR_LOAD_PIECE, CHUNK = TR_LOAD_CHUNK };

struct converting {
    const float *from;
    uint16_t *to;
    enum tr_dtype dtype;
    int64_t n;
};

static void convert_piece(void *ctx, int64_t task, int worker)
{
    const struct converting *c = ctx;
    int64_t at = task * PIECE;
    (void)worker;
    tr_convert(c->from + at, TR_F32, c->to + at, c->dtype, (size_t)tr_min64(PIECE, c->n - at));
}

static int64_t n_pieces(int64_t n)
{
    return (n + PIECE - 1) / PIECE;
}

/* Floats buf[from, from + n) into one state, in the store's dtype: F32 or 16 bits. */
static enum tr_status put(const struct tr_store *s, enum tr_state what, int param, int64_t first, int64_t n, float *buf,
                          int64_t from)
{
    struct converting c = { buf + from, (uint16_t *)(void *)(buf + CHUNK), s->states.row[what].dtype, n };
    if (c.dtype == TR_F32)
        return s->put(s->ctx, what, param, first, n, buf + from);
    tr_pool_run(s->pool, n_pieces(n), convert_piece, &c);
    return s->put(s->ctx, what, param, first, n, c.to);
}

enum tr_status tr_put_weights(const struct tr_store *s, int param, int64_t first, int64_t n, float *buf, int64_t from)
{
    enum tr_status st = TR_OK;
    if (tr_store_packed(s, param)) {
        TR_BUG_ON(from != 0);
        return tr_put_packed(s, param, first, n, buf, NULL);
    }
    if (tr_store_holds(s, TR_S_MASTER, param))
        st = put(s, TR_S_MASTER, param, first, n, buf, from);
    return st == TR_OK ? put(s, TR_S_VALUE, param, first, n, buf, from) : st;
}

struct load_reading {
    const struct tr_hf *hf; /* the tensor's directory, or its file */
    const struct tr_st *f;
    size_t tensor;
    int64_t first, n, piece; /* piece: elements that a thread reads at once */
    void *to;                /* in this dtype */
    enum tr_dtype dtype;
    int64_t turned_rows; /* rows of a matrix that is read as its transpose; 0: elements are read as they are stored */
    const char *name;    /* of a weight, whose values must be finite F32; NULL: any value is allowed */
    pthread_mutex_t lock;
    int64_t failed; /* the first piece that did, and why */
    enum tr_status st;
    char cause[TR_PATH_MAX + 256];
};

/* Index of the first element that is not finite, or n. The first loop has no way out, so it is done many at a time. */
static int64_t first_bad(const float *x, int64_t n)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        any |= (u & 0x7f800000u) == 0x7f800000u;
    }
    int64_t i = any ? 0 : n;
    while (i < n && isfinite(x[i]))
        i++;
    return i;
}

/* Elements [first, first + n) of the transpose of a matrix: of each of its rows a short run. */
static enum tr_status read_turned(const struct load_reading *r, int64_t first, int64_t n, float *to)
{
    int64_t rows = r->turned_rows, cols = (int64_t)tr_hf_tensor(r->hf, r->tensor)->n_elems / rows, end = first + n;
    float run[256];
    for (int64_t row = 0; row < rows; row++) {
        int64_t col = (first - row + rows - 1) / rows, col_end = (end - row + rows - 1) / rows, n_now;
        for (; col < col_end; col += n_now) {
            n_now = tr_min64(TR_COUNT_OF(run), col_end - col);
            TR_PASS(tr_hf_read(r->hf, r->tensor, (uint64_t)(row * cols + col), (size_t)n_now, run, TR_F32));
            for (int64_t k = 0; k < n_now; k++)
                to[(col + k) * rows + row - first] = run[k];
        }
    }
    return TR_OK;
}

static void read_piece(void *ctx, int64_t task, int worker)
{
    struct load_reading *r = ctx;
    int64_t at = task * r->piece, n = tr_min64(r->piece, r->n - at);
    char *to = (char *)r->to + (size_t)at * tr_dtype_bytes(r->dtype);
    enum tr_status st = r->turned_rows ? read_turned(r, r->first + at, n, (float *)(void *)to)
                        : r->hf ? tr_hf_read(r->hf, r->tensor, (uint64_t)(r->first + at), (size_t)n, to, r->dtype)
                                : tr_st_read(r->f, r->tensor, (uint64_t)(r->first + at), (size_t)n, to, r->dtype);
    int64_t bad = st == TR_OK && r->name ? first_bad((const float *)(const void *)to, n) : n;
    (void)worker;
    if (bad < n)
        st = tr_fail(TR_USAGE, "%s: tensor %s holds a non-finite value at element %" PRId64,
                     tr_hf_shard(r->hf, r->tensor), r->name, r->first + at + bad);
    if (st == TR_OK)
        return;
    pthread_mutex_lock(&r->lock); /* the cause is this thread's */
    if (r->st == TR_OK || task < r->failed) {
        r->st = st;
        r->failed = task;
        (void)snprintf(r->cause, sizeof r->cause, "%s", tr_error_text());
    }
    pthread_mutex_unlock(&r->lock);
}

static enum tr_status read_chunk(struct tr_pool *pool, struct load_reading *r)
{
    r->piece = PIECE;
    if (r->turned_rows || (r->hf && tr_hf_is_transposed(r->hf, r->tensor)))
        r->piece = n_pieces(r->n / tr_pool_threads(pool) + 1) * PIECE;
    pthread_mutex_init(&r->lock, NULL);
    tr_pool_run(pool, (r->n + r->piece - 1) / r->piece, read_piece, r);
    pthread_mutex_destroy(&r->lock);
    return r->st == TR_OK ? TR_OK : tr_fail(r->st, "%s", r->cause);
}

bool tr_load_wants(const struct tr_store *s, enum tr_state what, int param, int64_t first, int64_t n)
{
    if (tr_store_packed(s, param))
        return tr_wants_packed(s, param, first, n);
    if (what != TR_S_MASTER)
        return s->wants(s->ctx, what, param, first, n);
    return s->wants(s->ctx, TR_S_VALUE, param, first, n) ||
           (tr_store_holds(s, TR_S_MASTER, param) && s->wants(s->ctx, TR_S_MASTER, param, first, n));
}

static enum tr_status fill_random(const struct tr_store *s, uint64_t seed, struct tr_pool *pool, bool is_adapter,
                                  float *buf)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < s->model->n_params && st == TR_OK; i++)
        for (int64_t at = 0; at < s->model->param[i].n && st == TR_OK; at += CHUNK) {
            if (is_adapter && !tr_adapter_owns(s->model->param[i].name))
                break;
            int64_t n = tr_min64(CHUNK, s->model->param[i].n - at);
            if (!tr_load_wants(s, TR_S_MASTER, i, at, n))
                continue;
            st = tr_model_init_param(s->model, i, seed, at, n, pool, buf);
            if (st == TR_OK)
                st = tr_put_weights(s, i, at, n, buf, 0);
        }
    return st;
}

enum tr_status tr_load_random(const struct tr_store *s, uint64_t seed, struct tr_pool *pool, float *buf)
{
    return fill_random(s, seed, pool, false, buf);
}

enum tr_status tr_load_new_adapter(const struct tr_store *s, const char *base, uint64_t seed, struct tr_pool *pool,
                                   float *buf)
{
    enum tr_status st = fill_random(s, seed, pool, true, buf);
    if (st == TR_OK)
        st = tr_load_magnitudes(s, base, buf);
    if (st == TR_OK)
        st = tr_load_new_rows(s, base, buf);
    return st == TR_OK ? tr_load_starts(s, base, true, buf) : st;
}

enum tr_status tr_load_store(const struct tr_store *s, const struct tr_store *from, float *buf)
{
    enum tr_status st = TR_OK;
    TR_BUG_ON(s->model->n_params != from->model->n_params);
    for (int i = 0; i < s->model->n_params && st == TR_OK; i++)
        for (int64_t at = 0; at < s->model->param[i].n && st == TR_OK; at += CHUNK) {
            enum tr_state what = tr_store_weights(from, i);
            int64_t n = tr_min64(CHUNK, s->model->param[i].n - at);
            const void *src = NULL;
            st = from->whole(from->ctx, what, i, at, n, &src);
            if (st == TR_OK) {
                tr_convert(src, from->states.row[what].dtype, buf, TR_F32, (size_t)n);
                st = tr_put_weights(s, i, at, n, buf, 0);
            }
        }
    return st;
}

/* ---- HF weights ---- */

/* Buffers of old transformers versions, and the copy of a tied head that some writers leave in. */
static bool may_ignore(const void *ctx, const char *name)
{
    const struct tr_naming *nm = ctx;
    char buf[TR_FILE_NAME_MAX];
    if ((nm->m->hp.is_tied || nm->m->was_tied) && strcmp(name, tr_naming_file(nm, "lm_head.weight", buf)) == 0)
        return true;
    return tr_naming_carries(nm, name) || tr_hf_ignorable(NULL, name);
}

enum tr_status tr_load_compare(const struct tr_hf *hf, size_t a, size_t b, float *buf, bool *out)
{
    int64_t n = TR_IO_CHUNK / 2, n_all = (int64_t)tr_hf_tensor(hf, a)->n_elems;
    bool is_same = (int64_t)tr_hf_tensor(hf, b)->n_elems == n_all;
    for (int64_t at = 0; at < n_all && is_same; at += n) {
        size_t n_now = (size_t)tr_min64(n, n_all - at);
        TR_PASS(tr_hf_read(hf, a, (uint64_t)at, n_now, buf, TR_F32));
        TR_PASS(tr_hf_read(hf, b, (uint64_t)at, n_now, buf + n, TR_F32));
        is_same = memcmp(buf, buf + n, n_now * sizeof *buf) == 0;
    }
    *out = is_same;
    return TR_OK;
}

/* transformers 5 does not tie what the files hold as two matrices; earlier versions dropped the head. */
static enum tr_status check_tied(const struct tr_hf *hf, const struct tr_naming *nm, const char *dir, float *buf)
{
    char head[TR_FILE_NAME_MAX], table[TR_FILE_NAME_MAX];
    const char *head_name = tr_naming_file(nm, "lm_head.weight", head);
    const char *table_name = tr_naming_param(nm, tr_model_head(nm->m), table);
    size_t a, b;
    bool is_same = true;
    if ((nm->m->hp.is_tied || nm->m->was_tied) && tr_hf_find(hf, head_name, &a) && tr_hf_find(hf, table_name, &b))
        TR_PASS(tr_load_compare(hf, a, b, buf, &is_same));
    return is_same ? TR_OK
                   : tr_fail(TR_USAGE,
                             "%s: %s is another matrix than %s, but config.json ties them; write "
                             "\"tie_word_embeddings\": false there to have both",
                             dir, head_name, table_name);
}

static enum tr_status check_names(const struct tr_hf *hf, const struct tr_naming *nm)
{
    const struct tr_model *m = nm->m;
    char(*name)[TR_FILE_NAME_MAX] = NULL;
    struct tr_st_entry *want = NULL;
    enum tr_status st = TR_OK;
    size_t n = 0, at = 0;
    TR_TRY(TR_ALLOC(want, (size_t)m->n_params, "a load"));
    TR_TRY(TR_ALLOC(name, (size_t)m->n_params, "a load"));
    for (int i = 0; i < m->n_params; i++) {
        if (tr_adapter_owns(m->param[i].name))
            continue;
        want[n] = (struct tr_st_entry){ .name = tr_naming_param(nm, i, name[n]), .n_dims = m->param[i].n_dims };
        bool is_there = tr_hf_find(hf, want[n].name, &at);
        want[n].dims[0] = is_there && tr_is_grown(m, i, hf, at) ? m->vocab_was : m->param[i].dim[0];
        want[n++].dims[1] = m->param[i].dim[1];
    }
    st = tr_hf_check(hf, want, n, may_ignore, nm);
out:
    free(name);
    free(want);
    return st;
}

enum tr_status tr_check_weights(const struct tr_model *m, const char *dir)
{
    struct tr_hf *hf = NULL;
    struct tr_naming nm;
    enum tr_status st = tr_hf_open(dir, &hf);
    if (st == TR_OK) {
        tr_naming_of(m, hf, &nm);
        st = check_names(hf, &nm);
    }
    tr_hf_close(hf);
    return st;
}

enum tr_status tr_load_floats(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, int64_t first,
                              int64_t n, float *buf)
{
    const struct tr_param *p = &s->model->param[param];
    bool is_turned = tr_store_packed(s, param) && tr_param_is_in_out(s->model, param);
    struct load_reading r = { .hf = hf,
                              .tensor = at,
                              .name = p->name,
                              .first = first,
                              .n = n,
                              .to = buf,
                              .dtype = TR_F32,
                              .turned_rows = is_turned ? p->rows : 0 };
    return read_chunk(s->pool, &r);
}

enum tr_status tr_load_tensor(const struct tr_store *s, const struct tr_hf *hf, size_t at, int param, float *buf)
{
    const struct tr_param *p = &s->model->param[param];
    enum tr_status st = TR_OK;
    if (tr_is_grown(s->model, param, hf, at))
        return tr_load_grown(s, hf, at, param, buf);
    if (tr_store_packed(s, param))
        return tr_load_packed(s, hf, at, param, buf);
    for (int64_t first = 0; first < p->n && st == TR_OK; first += CHUNK) {
        int64_t n = tr_min64(CHUNK, p->n - first);
        if (!tr_load_wants(s, TR_S_MASTER, param, first, n))
            continue;
        st = tr_load_floats(s, hf, at, param, first, n, buf);
        if (st == TR_OK)
            st = tr_put_weights(s, param, first, n, buf, 0);
    }
    return st;
}

enum tr_status tr_load_weights(const struct tr_store *s, const char *dir, float *buf, enum tr_dtype *out_dtype)
{
    enum tr_status st = TR_OK;
    struct tr_hf *hf = NULL;
    struct tr_naming nm;
    char name[TR_FILE_NAME_MAX];
    TR_TRY(tr_hf_open_sums(dir, s->sums, &hf));
    tr_naming_of(s->model, hf, &nm);
    TR_TRY(check_names(hf, &nm));
    TR_TRY(check_tied(hf, &nm, dir, buf));
    TR_TRY(tr_failpoint("ckpt.load_weights"));
    for (int i = 0; i < s->model->n_params; i++) {
        const struct tr_param *p = &s->model->param[i];
        size_t at = 0;
        if (tr_adapter_owns(p->name))
            continue;
        TR_TRY(tr_failpoint("load.weights"));
        TR_BUG_ON(!tr_hf_find(hf, tr_naming_param(&nm, i, name), &at));
        if (i == 0 && out_dtype)
            *out_dtype = tr_hf_tensor(hf, at)->dtype;
        TR_TRY(tr_load_tensor(s, hf, at, i, buf));
    }
    TR_TRY(tr_load_rows(s, hf, false, buf));
out:
    tr_hf_close(hf);
    return st;
}

/* ---- optimizer shards: tensors named "<state>/<first>/<HF name>" ---- */

/* *what: its row of the store; -1: a state of an optimizer that this run does not use. */
static bool parse_entry(const struct tr_store *s, const char *name, int *what, int64_t *first, int *param)
{
    char number[24];
    const char *a = strchr(name, '/'), *b = a ? strchr(a + 1, '/') : NULL;
    if (!b || (size_t)(b - a - 1) >= sizeof number)
        return false;
    memcpy(number, a + 1, (size_t)(b - a - 1));
    number[b - a - 1] = 0;
    *param = tr_model_param(s->model, b + 1);
    if (*param < 0 || tr_parse_int(number, 0, INT64_MAX, first) != TR_OK)
        return false;
    *what = tr_states_find(&s->states, name, (size_t)(a - name));
    return *what >= 0 || tr_optim_state(name, (size_t)(a - name));
}

/* One dim: a run of elements from `first` on. Two: a range of the matrix with its corner there; no block of such a
 * state goes over the end of a row. */
static bool is_inside(const struct tr_param *p, const struct tr_state_row *r, const struct tr_st_tensor *t,
                      int64_t first)
{
    int64_t cols = p->cols / r->block;
    if (t->n_dims != 2)
        return (int64_t)t->n_elems <= tr_state_count(r, p->rows, p->cols) - first;
    return r->shape == TR_PER_BLOCK && p->cols % r->block == 0 && t->dims[0] > 0 && t->dims[1] > 0 &&
           t->dims[1] <= cols - first % cols && t->dims[0] <= p->rows - first / cols;
}

/* Elements buf[from, from + n), read as dtype, into their state. MASTER goes to both copies of the weights. */
static enum tr_status put_state(const struct tr_store *s, enum tr_state what, int param, int64_t first, int64_t n,
                                enum tr_dtype dtype, float *buf, int64_t from)
{
    if (what == TR_S_MASTER)
        return tr_put_weights(s, param, first, n, buf, from);
    if (dtype == s->states.row[what].dtype)
        return s->put(s->ctx, what, param, first, n, (char *)buf + (size_t)from * tr_dtype_bytes(dtype));
    return put(s, what, param, first, n, buf, from);
}

/* The dtype to read a tensor as: its own where the store has the same, else F32, from which the store's is made. */
static enum tr_status choose_dtype(const struct tr_store *s, const struct tr_st_tensor *t, enum tr_state what,
                                   enum tr_dtype *out)
{
    const struct tr_state_row *r = &s->states.row[what];
    *out = what != TR_S_MASTER && t->dtype == r->dtype ? t->dtype : TR_F32;
    if (*out != r->dtype && (tr_dtype_bytes(r->dtype) > sizeof(float) || !tr_st_can_convert(TR_F32, r->dtype) ||
                             !tr_st_can_convert(t->dtype, TR_F32)))
        return tr_fail(TR_USAGE,
                       "%s of a checkpoint is %s and cannot be read as %s; resume with the options of its run",
                       r->title, t->dtype_name, tr_dtype_name(r->dtype));
    return TR_OK;
}

static enum tr_status load_range(const struct tr_store *s, const struct tr_st *f, size_t i, enum tr_state what,
                                 int param, int64_t first, float *buf)
{
    enum tr_status st = TR_OK;
    const struct tr_st_tensor *t = tr_st_tensor(f, i);
    bool is_matrix = t->n_dims == 2;
    int64_t width = is_matrix ? t->dims[1] : (int64_t)t->n_elems,
            stride = s->model->param[param].cols / s->states.row[what].block;
    enum tr_dtype dtype = TR_F32;
    st = choose_dtype(s, t, what, &dtype);
    for (int64_t at = 0; at < (int64_t)t->n_elems && st == TR_OK;) {
        int64_t n = tr_min64(tr_min64(CHUNK, tr_io_chunk(dtype)), (int64_t)t->n_elems - at), row = at / width;
        if (is_matrix && n >= width)
            n -= n % width; /* whole rows */
        else if (is_matrix)
            n = tr_min64(n, width - at % width);
        int64_t from = first + (is_matrix ? row * stride : at),
                to_end = is_matrix ? from + ((at + n - 1) / width - row) * stride + width : from + n;
        if (!tr_load_wants(s, what, param, from, to_end - from)) {
            at += n;
            continue;
        }
        st = read_chunk(s->pool,
                        &(struct load_reading){ .f = f, .tensor = i, .first = at, .n = n, .to = buf, .dtype = dtype });
        for (int64_t k = 0; k < n && st == TR_OK; row++) {
            int64_t col = (at + k) % width, len = tr_min64(n - k, width - col),
                    to = first + col + (is_matrix ? row * stride : 0);
            st = put_state(s, what, param, to, len, dtype, buf, k);
            k += len;
        }
        at += n;
    }
    return st;
}

struct loading {
    const struct tr_store *s;
    const char *dir;
    float *buf;
    int64_t *n_seen; /* by row and parameter: elements */
    int64_t n_dropped;
};

static enum tr_status load_optim_file(struct loading *l, const char *path)
{
    const struct tr_store *s = l->s;
    enum tr_status st = TR_OK;
    struct tr_st *f = NULL;
    const struct tr_sums_file *sums = NULL;
    char name[TR_PATH_MAX];
    TR_TRY(tr_format(name, sizeof name, "trireme%s", strrchr(path, '/')));
    TR_TRY(tr_sums_find(s->sums, l->dir, name, &sums));
    TR_TRY(tr_st_open_sums(path, sums, &f));
    for (size_t i = 0; i < tr_st_count(f); i++) {
        const struct tr_st_tensor *t = tr_st_tensor(f, i);
        int64_t first = 0;
        int param = -1, what = -1;
        char esc[160];
        bool is_known = parse_entry(s, t->name, &what, &first, &param);
        if (is_known && what < 0)
            continue;
        if (!is_known || !is_inside(&s->model->param[param], &s->states.row[what], t, first))
            TR_TRY(tr_fail(TR_USAGE, "%s: tensor %s does not belong to this model", path,
                           tr_escape(t->name, esc, sizeof esc)));
        if (what != TR_S_MASTER && !tr_store_holds(s, (enum tr_state)what, param)) {
            l->n_dropped++;
            continue;
        }
        TR_TRY(tr_failpoint("load.optim")); /* MASTER is read even where this run holds VALUE alone */
        TR_TRY(load_range(s, f, i, (enum tr_state)what, param, first, l->buf));
        l->n_seen[(size_t)what * (size_t)s->model->n_params + (size_t)param] += (int64_t)t->n_elems;
    }
out:
    tr_st_close(f);
    return st;
}

enum tr_status tr_each_optim_file(const char *dir, tr_optim_file_fn *fn, void *ctx)
{
    enum tr_status st = TR_OK;
    char sub[TR_PATH_MAX], path[TR_PATH_MAX];
    struct dirent *e;
    DIR *d = NULL;
    TR_TRY(tr_path_join(sub, dir, "trireme"));
    d = opendir(sub);
    if (!d)
        TR_TRY(
            errno == ENOENT || errno == ENOTDIR
                ? tr_fail(TR_USAGE, "%s: no optimizer state; it can be fine-tuned from with --model, not resumed", dir)
                : tr_fail(TR_IO, "%s: %s", sub, strerror(errno)));
    while ((errno = 0, e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, "optim-", 6) != 0 || n < 12 || strcmp(e->d_name + n - 12, ".safetensors") != 0)
            continue;
        TR_TRY(tr_path_join(path, sub, e->d_name));
        TR_TRY(fn(ctx, path));
    }
    if (errno)
        st = tr_fail(TR_IO, "%s: %s", sub, strerror(errno));
out:
    if (d)
        closedir(d);
    return st;
}

static enum tr_status load_one(void *ctx, const char *path)
{
    struct loading *l = ctx;
    enum tr_status st = tr_failpoint("ckpt.load_optim");
    return st == TR_OK ? load_optim_file(l, path) : st;
}

static enum tr_status note_states(void *ctx, const char *path)
{
    struct tr_states *out = ctx;
    struct tr_st *f = NULL;
    enum tr_status st = tr_st_open(path, &f);
    for (size_t i = 0; st == TR_OK && i < tr_st_count(f); i++) {
        const struct tr_st_tensor *t = tr_st_tensor(f, i);
        const char *slash = strchr(t->name, '/');
        size_t n = slash ? (size_t)(slash - t->name) : 0;
        int row = tr_states_find(out, t->name, n);
        const struct tr_state_row *known = row < 0 ? tr_optim_state(t->name, n) : NULL;
        if (known && out->n == TR_STATES_MAX)
            st = tr_fail(TR_USAGE, "%s: states of several optimizers in one checkpoint", path);
        if (known && st == TR_OK) {
            row = out->n++;
            out->row[row] = *known;
            out->row[row].dtype = tr_st_can_convert(t->dtype, TR_F32) ? TR_F32 : t->dtype;
        }
        if (row >= 0 && st == TR_OK)
            out->row[row].is_held = true;
    }
    tr_st_close(f);
    return st;
}

enum tr_status tr_optim_states(const char *dir, struct tr_states *out)
{
    tr_states_of(NULL, &(struct tr_state_dtypes){ TR_F32, TR_F32, TR_F32, TR_F32 }, out);
    enum tr_status st = dir ? tr_each_optim_file(dir, note_states, out) : TR_OK;
    qsort(out->row + TR_S_OPTIM, (size_t)(out->n - TR_S_OPTIM), sizeof *out->row, tr_by_text); /* not by file */
    return st;
}

/* The first state of the optimizer that a parameter has; -1: none. */
static int first_row(const struct tr_store *s, int param)
{
    for (int row = TR_S_OPTIM; row < s->states.n; row++)
        if (s->states.row[row].name && tr_store_holds(s, (enum tr_state)row, param))
            return row;
    return -1;
}

/* Parameters whose states are those of the first such parameter learn, others with a state learn apart. */
static void find_fates(const struct loading *l, struct tr_load_result *out)
{
    const struct tr_states *states = &l->s->states;
    size_t n_params = (size_t)l->s->model->n_params;
    int main_row = -1;
    for (size_t i = 0; i < n_params; i++) {
        int seen = -1;
        for (int row = states->n - 1; row >= TR_S_OPTIM; row--)
            seen = l->n_seen[(size_t)row * n_params + i] > 0 ? row : seen;
        main_row = main_row < 0 ? seen : main_row;
        out->fate_of[i] = (uint8_t)(seen < 0 ? TR_FROZEN : seen == main_row ? TR_LEARNS : TR_LEARNS_APART);
    }
    for (int row = 0; row < states->n; row++) {
        out->fates[row] = states->row[row].fates;
        for (size_t i = 0; row >= TR_S_OPTIM && i < n_params; i++)
            out->fates[row] |= (uint8_t)((l->n_seen[(size_t)row * n_params + i] > 0) << out->fate_of[i]);
    }
}

/* Of one state: all of a parameter is there, or nothing of it, which is then new. But an optimizer that finds nothing
 * of a state of its own is another one than that of the checkpoint. */
static enum tr_status check_seen(const struct loading *l, const char *dir, int row, struct tr_load_result *out)
{
    const struct tr_store *s = l->s;
    const struct tr_state_row *r = &s->states.row[row];
    const int64_t *n_seen = l->n_seen + (size_t)row * (size_t)s->model->n_params;
    int64_t n_all = 0, n_sum = 0, n_bad = 0;
    for (int i = 0; i < s->model->n_params; i++) {
        int64_t n = tr_store_holds(s, (enum tr_state)row, i)
                        ? tr_state_count(r, s->model->param[i].rows, s->model->param[i].cols)
                        : 0;
        n_all += n;
        n_sum += n_seen[i];
        n_bad += n_seen[i] != n && n_seen[i] != 0;
        out->n_new += n > 0 && n_seen[i] == 0 && row == first_row(s, i);
    }
    if (n_bad > 0 || (n_all > 0 && n_sum == 0))
        return tr_fail(TR_USAGE,
                       "%s: optimizer state %s covers %" PRId64 " of %" PRId64
                       " elements; was it saved by another --optim?",
                       dir, r->name, n_sum, n_all);
    return TR_OK;
}

enum tr_status tr_load_optim(const struct tr_store *s, const char *dir, float *buf, struct tr_load_result *out)
{
    enum tr_status st = TR_OK;
    struct tr_load_result ignored = { 0 };
    struct loading l = { .s = s, .dir = dir, .buf = buf };
    out = out ? out : &ignored;
    TR_TRY(TR_ALLOC(l.n_seen, (size_t)s->states.n * (size_t)s->model->n_params, "a load"));
    TR_TRY(tr_each_optim_file(dir, load_one, &l));
    for (int row = TR_S_OPTIM; row < s->states.n; row++)
        if (s->states.row[row].is_held && s->states.row[row].name)
            TR_TRY(check_seen(&l, dir, row, out));
    out->n_dropped = l.n_dropped;
    if (out->fate_of)
        find_fates(&l, out);
out:
    free(l.n_seen);
    return st;
}
