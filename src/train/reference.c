/* reference.c - the log-probabilities of answers under the reference, once, before step 0.
 *
 * A step of preference training compares the model with a reference that does not change, so the reference is asked
 * once: its weights are loaded where the model's will be, the pairs run forward, and what each answer's loss was stays
 * beside the data. The numbers are kept in the cache of the data, under a key made of the weights they came from and
 * of the data; a resume therefore finds those of the start, and where the file is gone it loads the starting weights
 * again, never the trained ones. Only what the run will read is asked for: a short run of a large data set waits for
 * its own pairs, and sources that are mixed by weight are read beyond a first pass over all. Rejected: a second model
 * in memory (twice the weights, and a forward pass in every step), and numbers in checkpoints (they are as large as the
 * data has pairs, and never change).
 */
#include "train/reference.h"
#include <math.h>
#include <stdlib.h>

static const char magic[8] = "TRREF\r\n\1";
enum { SUM_PIECE = 4096 };
static const size_t ADAPTER_MAX = (size_t)16 << 30;

/* ---- the key ---- */

static enum tr_status add_id(const char *dir, struct tr_str *out)
{
    struct tr_base_id id;
    char hex[33];
    TR_PASS(tr_base_id_of(dir, &id));
    tr_base_id_hex(&id, hex);
    tr_str_addf(out, " base %s", hex);
    return TR_OK;
}

/* The adapter that a run goes on with is a part of its start. */
static enum tr_status add_adapter(const char *dir, struct tr_str *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], hex[33], *bytes = NULL;
    size_t n = 0;
    TR_TRY(tr_path_join(path, dir, "adapter_model.safetensors"));
    TR_TRY(tr_file_read(path, ADAPTER_MAX, &bytes, &n));
    tr_hash_hex(tr_hash(bytes, n), hex);
    tr_str_addf(out, " adapter %s", hex);
out:
    free(bytes);
    return st;
}

/* What a run reads of a data set. */
struct uses {
    uint64_t *sample, n;     /* the first of each row */
    uint64_t n_docs, n_used; /* documents */
    unsigned char *is_used;  /* by document */
};

static enum tr_status find_uses(const struct tr_data *d, uint64_t total_samples, uint64_t n_docs, struct uses *out)
{
    TR_PASS(TR_ALLOC(out->sample, tr_data_rows(d), "samples of references"));
    TR_PASS(TR_ALLOC(out->is_used, n_docs, "documents of references"));
    TR_PASS(tr_data_first_uses(d, total_samples, out->is_used, out->sample, &out->n));
    out->n_docs = n_docs;
    for (uint64_t i = 0; i < n_docs; i++)
        out->n_used += out->is_used[i];
    return TR_OK;
}

static bool has_all_rows(const struct uses *u, const struct tr_data *d)
{
    return u->n == tr_data_rows(d);
}

static enum tr_status make_key(const struct tr_reference *r, const struct tr_data *d, const struct uses *u,
                               struct tr_hash128 *out)
{
    enum tr_status st = TR_OK;
    const struct tr_config *cfg = r->s->cfg;
    const struct tr_dirs *from = &r->s->from;
    struct tr_str s = { 0 };
    struct tr_data_info info;
    char hex[33];
    tr_data_get_info(d, &info);
    tr_hash_hex(info.hash, hex);
    tr_str_addf(&s, "reference 1 data %s dtype %s fp8 %d packed %d", hex, tr_dtype_name(cfg->dtype), cfg->fp8,
                (int)tr_config_packed(cfg));
    if (cfg->ld_alpha < 1)
        tr_str_addf(&s, " ld_alpha %.17g", cfg->ld_alpha);
    if (!has_all_rows(u, d)) {
        tr_hash_hex(tr_hash(u->is_used, (size_t)u->n_docs), hex);
        tr_str_addf(&s, " documents %s", hex);
    }
    if (cfg->ref_model) {
        TR_TRY(add_id(cfg->ref_model, &s));
    } else if (cfg->from_scratch) {
        tr_hash_hex(tr_hash(r->s->model->config_text, strlen(r->s->model->config_text)), hex);
        tr_str_addf(&s, " config %s seed %" PRId64, hex, cfg->seed);
    } else {
        TR_TRY(add_id(from->base, &s));
        if (from->dir)
            TR_TRY(add_adapter(from->dir, &s));
    }
    TR_TRY(tr_str_check(&s, "the key of a reference"));
    *out = tr_hash(s.p, s.n);
out:
    tr_str_release(&s);
    return st;
}

/* ---- the file: magic, the number of floats, the floats, the hash of all of it ---- */

static enum tr_status file_name(struct tr_hash128 key, char out[48])
{
    char hex[33];
    tr_hash_hex(key, hex);
    return tr_format(out, 48, "%s.ref", hex);
}

/* Whether the file is there and right; one that is not is made again. */
static bool read_file(const char *dir, struct tr_hash128 key, float *ref, uint64_t n)
{
    char path[TR_PATH_MAX], name[48], *bytes = NULL;
    size_t n_data = (size_t)n * sizeof *ref, n_all = 16 + n_data + 16, n_file = 0;
    struct tr_hash128 hash;
    uint64_t count;
    bool is_right = file_name(key, name) == TR_OK && tr_path_join(path, dir, name) == TR_OK &&
                    tr_file_read(path, n_all, &bytes, &n_file) == TR_OK && n_file == n_all &&
                    memcmp(bytes, magic, sizeof magic) == 0;
    if (is_right) {
        memcpy(&count, bytes + 8, sizeof count);
        memcpy(&hash, bytes + 16 + n_data, sizeof hash);
        is_right = count == n && tr_hash_eq(hash, tr_hash(bytes, 16 + n_data));
    }
    if (is_right)
        memcpy(ref, bytes + 16, n_data);
    tr_error_clear();
    free(bytes);
    return is_right;
}

static enum tr_status write_file(const char *dir, struct tr_hash128 key, const float *ref, uint64_t n)
{
    enum tr_status st = TR_OK;
    struct tr_out_at at;
    char name[48];
    size_t n_data = (size_t)n * sizeof *ref, n_head = 16 + n_data;
    char *bytes = malloc(n_head + 16);
    if (!bytes)
        return tr_fail(TR_NOMEM, "no memory for the references of %" PRIu64 " pairs", n / 2);
    memcpy(bytes, magic, sizeof magic);
    memcpy(bytes + 8, &n, sizeof n);
    memcpy(bytes + 16, ref, n_data);
    struct tr_hash128 hash = tr_hash(bytes, n_head);
    memcpy(bytes + n_head, &hash, sizeof hash);
    TR_TRY(file_name(key, name));
    TR_TRY(tr_out_beneath(dir, name, &at));
    TR_TRY(tr_out_write(at.dir, at.name, bytes, n_head + sizeof hash));
out:
    free(bytes);
    return st;
}

/* ---- the numbers ---- */

/* The weights of the reference, where those of the model will be. A new adapter begins as no change of its base. */
static enum tr_status load_weights(const struct tr_reference *r)
{
    const struct tr_config *cfg = r->s->cfg;
    const struct tr_dirs *from = &r->s->from;
    struct tr_store store = tr_exec_store(r->e);
    float *buf = (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE);
    const char *base = cfg->ref_model ? cfg->ref_model : from->base;
    if (cfg->ref_model && tr_dir_has(cfg->ref_model, TR_ADAPTER_CONFIG))
        return tr_fail(TR_USAGE,
                       "ref_model %s is an adapter; merge it into its base with trireme ckpt merge, and name "
                       "what that writes",
                       cfg->ref_model);
    if (cfg->from_scratch && !cfg->ref_model)
        return tr_load_random(&store, (uint64_t)cfg->seed, r->pool, buf);
    if (cfg->ref_model)
        TR_PASS(tr_load_weights(&store, base, buf, NULL));
    else
        TR_PASS(tr_dirs_load(from, &store, buf));
    if (from->adapter && (cfg->ref_model || !from->dir))
        TR_PASS(tr_load_new_adapter(&store, base, (uint64_t)cfg->seed, r->pool, buf));
    return TR_OK;
}

/* Every rank runs the same number of batches, because gathers are collective. */
static enum tr_status run_pairs(const struct tr_reference *r, struct tr_data *d, const struct uses *u,
                                bool are_mismatched)
{
    enum tr_status st = TR_OK;
    int64_t rows = r->s->eval_model->n_tokens / r->s->eval_model->sequence_length;
    uint64_t n_batches = tr_data_steps(u->n, (uint64_t)rows);
    const struct tr_comm *group = tr_mesh_group(tr_exec_mesh(r->e), TR_ON_DATA);
    struct tr_batch b = tr_batch_in(tr_exec_arena(r->e, TR_A_DATA) + r->s->loader_bytes, r->s->eval_model->n_tokens);
    const struct tr_pair_rule *rule = &r->s->eval_model->pair;
    int n_sums = tr_doc_sums(rule), i_loss = rule->weighs_tokens ? TR_DOC_WEIGHED : TR_DOC_LOSS;
    float *sums = malloc((size_t)(r->s->eval_model->n_tokens * n_sums) * sizeof *sums);
    if (!sums)
        TR_TRY(tr_fail(TR_NOMEM, "reference: out of memory"));
    for (uint64_t k = 0; k < n_batches; k += (uint64_t)group->size) {
        uint64_t at = (k + (uint64_t)group->rank) * (uint64_t)rows;
        int64_t n = at < u->n ? tr_min64(rows, (int64_t)(u->n - at)) : 0; /* rows past the end are padding */
        const uint64_t *samples = u->sample + (n > 0 ? at : 0);
        TR_TRY(tr_data_fill_samples(d, samples, n, rows, are_mismatched, &b));
        TR_TRY(tr_exec_documents(r->e, &b, sums));
        TR_TRY(tr_data_take_references(d, samples, n, &b, are_mismatched, sums + i_loss, n_sums));
        if (tr_mesh_is_alone(tr_exec_mesh(r->e)) && tr_stop_wanted())
            TR_TRY(tr_fail(TR_STOPPED, "stopped by a signal before the first step"));
    }
out:
    free(sums);
    return st;
}

/* Each rank has the pairs of its rows, and zeros for the others. */
static enum tr_status share(const struct tr_reference *r, float *ref, uint64_t n)
{
    enum tr_status st = TR_OK;
    double x[SUM_PIECE];
    for (uint64_t at = 0; at < n && st == TR_OK; at += SUM_PIECE) {
        size_t count = n - at < SUM_PIECE ? (size_t)(n - at) : SUM_PIECE;
        for (size_t i = 0; i < count; i++)
            x[i] = (double)ref[at + i];
        st = tr_exec_total_rows(r->e, "references of pairs", x, count);
        for (size_t i = 0; i < count; i++)
            ref[at + i] = (float)x[i];
    }
    return st;
}

static enum tr_status fill(const struct tr_reference *r, struct tr_data *d, const struct uses *u, bool *has_loaded,
                           float *ref, uint64_t n)
{
    if (!*has_loaded)
        TR_PASS(load_weights(r));
    *has_loaded = true;
    memset(ref, 0, (size_t)n * sizeof *ref);
    TR_PASS(run_pairs(r, d, u, false));
    if (tr_data_has_labels(d))
        TR_PASS(run_pairs(r, d, u, true));
    TR_PASS(share(r, ref, n));
    for (uint64_t i = 0; i < n && !has_all_rows(u, d); i++)
        if (!u->is_used[i / 2])
            ref[i] = NAN; /* whoever reads it all the same shall see it */
    return TR_OK;
}

enum tr_status tr_reference_fill(const struct tr_reference *r, struct tr_data *d, uint64_t total_samples,
                                 bool *has_loaded, struct tr_str *notes)
{
    enum tr_status st = TR_OK;
    struct tr_hash128 key;
    struct uses u = { 0 };
    uint64_t n;
    float *ref = tr_data_references(d, &n);
    int64_t start = tr_clock_us();
    const char *what = tr_data_has_labels(d) ? "answers" : "pairs";
    TR_TRY(find_uses(d, total_samples, n / 2, &u));
    TR_TRY(make_key(r, d, &u, &key));
    double n_missing = !read_file(r->cache_dir, key, ref, n);
    TR_TRY(tr_exec_total_ranks(r->e, "references that are missing", &n_missing, 1));
    if (n_missing == 0) {
        tr_str_addf(notes, "reference: the log-probabilities of %" PRIu64 " %s are in the cache\n", u.n_used, what);
        goto out;
    }
    TR_TRY(fill(r, d, &u, has_loaded, ref, n));
    if (tr_mesh_is_first(tr_exec_mesh(r->e)))
        TR_TRY(write_file(r->cache_dir, key, ref, n));
    tr_str_addf(notes, "reference: the log-probabilities of %" PRIu64 " %s took %.1f s; they are kept\n", u.n_used,
                what, (double)(tr_clock_us() - start) * 1e-6);
out:
    free(u.sample);
    free(u.is_used);
    return st == TR_OK ? TR_OK : tr_fail_at(st, "reference: ");
}
