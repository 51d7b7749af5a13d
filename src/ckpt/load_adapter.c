/* load_adapter.c - a PEFT adapter directory into a store. The names in its file are checked against the adapted model,
 * which was made from its adapter_config.json, before the first byte is put. */
#include "ckpt/load_impl.h"
#include <math.h>
#include <stdlib.h>

static enum tr_status open_adapter(const char *dir, const struct tr_sums *sums, struct tr_hf **out)
{
    if (tr_dir_has(dir, TR_ADAPTER_WEIGHTS))
        return tr_hf_open_file(dir, TR_ADAPTER_WEIGHTS, sums, out);
    if (tr_dir_has(dir, "adapter_model.bin"))
        return tr_fail(TR_USAGE,
                       "%s has only pickled weights (adapter_model.bin), which can run code when loaded and are never "
                       "opened; convert them once in Python: PeftModel.from_pretrained(base, dir).save_pretrained(out)",
                       dir);
    return tr_fail(TR_USAGE, "%s has " TR_ADAPTER_CONFIG " but no " TR_ADAPTER_WEIGHTS, dir);
}

enum tr_status tr_adapter_file(const char *dir, struct tr_hf **out)
{
    return open_adapter(dir, NULL, out);
}

struct found {
    const struct tr_hf *hf;
    struct tr_st_entry *want; /* tensors that must be there, and those of the base that are */
    char (*key)[TR_ADAPTER_KEY_MAX];
    int *param_of;     /* by `want` */
    int *start_of;     /* by `want`: the parameter that is the second half of the tensor; -1: none is */
    bool lacks_starts; /* the file belongs to a base without them */
    size_t n;
};

/* Rows of the table of tokens in the file; 0: it has none. */
static enum tr_status count_rows(const struct tr_model *m, const char *dir, int64_t *out)
{
    static const char *const between[] = { "", ".base_layer" };
    const char *name = m->param[0].name, *tail = strrchr(name, '.');
    char key[TR_ADAPTER_KEY_MAX];
    struct tr_hf *hf = NULL;
    size_t at = 0;
    *out = 0;
    enum tr_status st = open_adapter(dir, NULL, &hf);
    for (size_t i = 0; i < TR_COUNT_OF(between) && st == TR_OK && tail; i++)
        if (tr_format(key, sizeof key, TR_ADAPTER_PREFIX "%.*s%s%s", (int)(tail - name), name, between[i], tail) ==
                TR_OK &&
            tr_hf_find(hf, key, &at) && tr_hf_tensor(hf, at)->n_dims == 2)
            *out = tr_hf_tensor(hf, at)->dims[0];
    tr_hf_close(hf);
    return st;
}

enum tr_status tr_adapter_open_base(const char *base, const char *dir, const struct tr_model_options *opt,
                                    struct tr_model **out)
{
    struct tr_model_options own = *opt;
    struct tr_model *m = NULL;
    int64_t n_rows = 0;
    enum tr_status st = tr_model_open(base, opt, &m);
    if (st == TR_OK && dir)
        st = count_rows(m, dir, &n_rows);
    if (st == TR_OK && n_rows > m->hp.vocab) {
        own.least_vocab = n_rows;
        tr_model_close(m);
        m = NULL;
        st = tr_model_open(base, &own, &m);
    }
    if (st == TR_OK)
        *out = m;
    else
        tr_model_close(m);
    return st;
}

/* Some writers end a magnitude's key in .weight, as the module that holds it is called in memory. */
bool tr_adapter_find(const struct tr_hf *hf, const struct tr_model *m, int param, size_t *out_at)
{
    char key[TR_ADAPTER_KEY_MAX], longer[TR_ADAPTER_KEY_MAX];
    if (tr_adapter_key(m, param, key, sizeof key) != TR_OK)
        return false;
    return tr_hf_find(hf, key, out_at) ||
           (tr_format(longer, sizeof longer, "%s.weight", key) == TR_OK && tr_hf_find(hf, longer, out_at));
}

/* A and B of a run that changed its base are followed by what they began as; PEFT's own directories are not. */
static int start_in_file(struct found *f, const struct tr_model *m, int param, const struct tr_st_tensor *t)
{
    int start = tr_adapter_start_of(m, param), dim = tr_adapter_joins_columns(m->param[param].name) ? 1 : 0;
    if (start < 0 || !t || t->n_dims != 2 || t->dims[dim] != 2 * m->param[param].dim[dim]) {
        f->lacks_starts = f->lacks_starts || start >= 0;
        return -1;
    }
    return start;
}

static void want_param(const struct tr_model *m, int param, int start, struct found *f)
{
    const struct tr_param *p = &m->param[param];
    struct tr_st_entry *e = &f->want[f->n];
    *e = (struct tr_st_entry){ .name = f->key[f->n], .n_dims = p->n_dims };
    e->dims[0] = p->dim[0];
    e->dims[1] = p->dim[1];
    f->start_of[f->n] = start;
    if (start >= 0)
        e->dims[tr_adapter_joins_columns(p->name) ? 1 : 0] *= 2;
    f->param_of[f->n++] = param;
}

/* Where a part of PEFT's file is another copy of a tensor that is there by the name PEFT reads: of modules_to_save,
 * with bias "all" or save_embedding_layers, those of the two modules that it keeps in memory; of a tied model, with
 * save_embedding_layers, the table of tokens as the head. */
struct copies {
    const struct tr_hf *hf;
    const struct tr_model *m;
};

static bool has(const struct tr_hf *hf, const char *key)
{
    size_t at;
    return tr_hf_find(hf, key, &at);
}

static bool is_copy(const void *ctx, const char *name)
{
    /* of a module that holds others the name of the adapter is left in */
    static const char *const wrapped[] = { ".modules_to_save.default.", ".modules_to_save.", ".original_module." };
    const struct copies *c = ctx;
    char key[TR_ADAPTER_KEY_MAX];
    for (size_t i = 0; i < TR_COUNT_OF(wrapped); i++) {
        const char *found = strstr(name, wrapped[i]);
        if (found &&
            tr_format(key, sizeof key, "%.*s.%s", (int)(found - name), name, found + strlen(wrapped[i])) == TR_OK &&
            has(c->hf, key))
            return true;
    }
    if (c->m->hp.is_tied && strcmp(name, TR_ADAPTER_PREFIX "lm_head.weight") == 0 &&
        tr_adapter_key(c->m, 0, key, sizeof key) == TR_OK && has(c->hf, key))
        return true;
    return tr_hf_ignorable(NULL, name);
}

static enum tr_status match(const struct tr_model *m, const char *dir, struct found *f)
{
    enum tr_status st = TR_OK;
    for (int i = 0; i < m->n_params && st == TR_OK; i++) {
        size_t at = 0;
        bool is_here = tr_adapter_find(f->hf, m, i, &at);
        if (!is_here && !tr_adapter_learns(m, i)) /* the base's directory has it, or what follows A and B */
            continue;
        st = is_here ? tr_format(f->key[f->n], sizeof f->key[0], "%s", tr_hf_tensor(f->hf, at)->name)
                     : tr_adapter_key(m, i, f->key[f->n], sizeof f->key[0]);
        want_param(m, i, start_in_file(f, m, i, is_here ? tr_hf_tensor(f->hf, at) : NULL), f);
        /* without the second tensor it was trained as a copy, which leaves the head as it is: PEFT's "wte" of GPT-2 */
        if (tr_adapter_second_key(m, i, f->key[f->n], sizeof f->key[0]))
            want_param(m, i, -1, f);
    }
    if (st == TR_OK)
        st = tr_hf_check(f->hf, f->want, f->n, is_copy, &(struct copies){ f->hf, m });
    return st == TR_OK ? TR_OK : tr_fail_at(st, "%s: what " TR_ADAPTER_CONFIG " describes is not there: ", dir);
}

static enum tr_status open_found(const struct tr_model *m, const char *dir, const struct tr_sums *sums,
                                 struct tr_hf **hf, struct found *f)
{
    size_t n = (size_t)m->n_params + 1; /* one tensor may be there twice */
    *f = (struct found){ 0 };
    TR_PASS(open_adapter(dir, sums, hf));
    *f = (struct found){ .hf = *hf,
                         .want = calloc(n, sizeof *f->want),
                         .key = calloc(n + 1, sizeof *f->key),
                         .param_of = calloc(n, sizeof *f->param_of),
                         .start_of = calloc(n, sizeof *f->start_of) };
    if (!f->want || !f->key || !f->param_of || !f->start_of)
        return tr_fail(TR_NOMEM, "load: out of memory");
    return match(m, dir, f);
}

static void close_found(struct tr_hf *hf, struct found *f)
{
    free(f->want);
    free(f->key);
    free(f->param_of);
    free(f->start_of);
    tr_hf_close(hf);
}

enum tr_status tr_check_adapter(const struct tr_model *m, const char *dir)
{
    struct tr_hf *hf = NULL;
    struct found f;
    enum tr_status st = open_found(m, dir, NULL, &hf, &f);
    close_found(hf, &f);
    return st;
}

/* A head that was trained apart from the embedding has no place in a model that ties them. */
static enum tr_status check_tied(const struct tr_model *m, const struct tr_hf *hf, const char *dir, float *buf)
{
    char key[TR_ADAPTER_KEY_MAX];
    size_t table, head;
    bool is_same = true;
    if (!m->hp.is_tied || tr_adapter_key(m, 0, key, sizeof key) != TR_OK || !tr_hf_find(hf, key, &table) ||
        !tr_hf_find(hf, TR_ADAPTER_PREFIX "lm_head.weight", &head) ||
        tr_hf_tensor(hf, head)->n_elems != tr_hf_tensor(hf, table)->n_elems)
        return TR_OK;
    TR_PASS(tr_load_compare(hf, table, head, buf, &is_same));
    return is_same ? TR_OK
                   : tr_fail(TR_USAGE,
                             "%s: lm_head.weight is another matrix than %s, and its base has one for both; write the "
                             "base with tie_word_embeddings false, or merge the adapter with PEFT",
                             dir, key + strlen(TR_ADAPTER_PREFIX));
}

enum tr_status tr_load_adapter(const struct tr_store *s, const char *base, const char *dir, float *buf)
{
    struct tr_hf *hf = NULL;
    struct found f;
    enum tr_status st = TR_OK;
    TR_TRY(open_found(s->model, dir, s->sums, &hf, &f));
    TR_TRY(check_tied(s->model, hf, dir, buf));
    TR_TRY(tr_failpoint("ckpt.load_weights"));
    for (size_t i = 0; i < f.n; i++) {
        size_t at = 0;
        TR_BUG_ON(!tr_hf_find(hf, f.want[i].name, &at));
        TR_TRY(tr_failpoint("load.weights"));
        TR_TRY(f.start_of[i] >= 0 ? tr_load_joined(s, hf, at, f.param_of[i], f.start_of[i], buf)
                                  : tr_load_tensor(s, hf, at, f.param_of[i], buf));
    }
    if (f.lacks_starts && base)
        TR_TRY(tr_load_starts(s, base, false, buf));
    else if (base)
        TR_TRY(tr_load_head_rest(s, base, hf, buf));
out:
    close_found(hf, &f);
    return st;
}

/* ---- a new adapter ---- */

static enum tr_status load_magnitude(const struct tr_store *s, const struct tr_hf *hf, int param, int weight,
                                     bool is_table, double *squares, float *buf)
{
    const struct tr_param *w = &s->model->param[weight], *p = &s->model->param[param];
    /* outputs are the columns of a matrix (in, out) and of a table of tokens, and rows once it is packed */
    bool is_in_out = is_table || tr_param_is_in_out(s->model, weight),
         by_column = is_in_out && !tr_store_packed(s, weight);
    int64_t width = is_in_out && !by_column ? w->rows : w->cols;
    enum tr_status st = TR_OK;
    float *scales = NULL;
    size_t at = 0;
    TR_BUG_ON(!tr_weights_find(hf, s->model, weight, &at));
    TR_TRY(tr_load_scales(s, hf, at, weight, buf, &scales));
    memset(squares, 0, (size_t)p->n * sizeof *squares);
    for (int64_t first = 0; first < w->n; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, w->n - first);
        TR_TRY(tr_load_seen(s, hf, at, weight, first, n, scales, buf));
        for (int64_t k = 0; k < n; k++)
            squares[by_column ? (first + k) % width : (first + k) / width] += (double)buf[k] * (double)buf[k];
    }
    for (int64_t first = 0; first < p->n; first += TR_LOAD_CHUNK) {
        int64_t n = tr_min64(TR_LOAD_CHUNK, p->n - first);
        for (int64_t k = 0; k < n; k++)
            buf[k] = (float)sqrt(squares[first + k]);
        TR_TRY(tr_put_weights(s, param, first, n, buf, 0));
    }
out:
    free(scales);
    return st;
}

/* An adapter with magnitudes begins as the base (tr_adapter_check), so the weights of the base are the adapted ones. */
enum tr_status tr_load_magnitudes(const struct tr_store *s, const char *base, float *buf)
{
    static const char tail[] = ".lora_magnitude_vector";
    const struct tr_model *m = s->model;
    struct tr_hf *hf = NULL;
    double *squares = NULL;
    int64_t most = 0;
    enum tr_status st = TR_OK;
    for (int i = 0; i < m->n_params; i++)
        most = tr_max64(most, m->param[i].n_dims == 1 ? m->param[i].n : 0);
    for (int i = 0; i < m->n_params; i++) {
        const struct tr_param *p = &m->param[i];
        int n_module = (int)strlen(p->name) - (int)strlen(tail);
        if (n_module < 0 || strcmp(p->name + n_module, tail) != 0 || !s->wants(s->ctx, TR_S_VALUE, i, 0, p->n))
            continue;
        int weight = tr_model_sibling(m, p->name, n_module, ".weight");
        bool is_table = tr_model_sibling(m, p->name, n_module, ".lora_embedding_A") >= 0;
        TR_BUG_ON(weight < 0);
        if (!hf) {
            TR_TRY(tr_hf_open(base, &hf));
            TR_TRY(TR_ALLOC(squares, (size_t)most, "a load"));
        }
        TR_TRY(load_magnitude(s, hf, i, weight, is_table, squares, buf));
    }
out:
    free(squares);
    tr_hf_close(hf);
    return st;
}
