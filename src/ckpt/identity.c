/* identity.c - which base an adapter belongs to.
 *
 * A base is known by what it computes, not by where it lies: its directory may be moved or cut into other shards. All
 * headers are hashed, and of every tensor a few hundred bytes spread over it. Another model, another fine-tune of the
 * same model, or another precision changes nearly every tensor, so the samples tell them apart; reading everything
 * would cost minutes of a large base at every start.
 */
#include "ckpt/identity.h"
#include "ckpt/hfdir.h"
#include <stdlib.h>

enum { N_SAMPLES = 8, SAMPLE_BYTES = 64 };

/* Keys of config.json that say nothing about what the model computes. */
static bool is_volatile(const char *key)
{
    static const char *const keys[] = { "transformers_version", "_name_or_path", "architectures", "use_cache", "dtype",
                                        "torch_dtype",          "auto_map" };
    return TR_ROW(keys, key) != NULL;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static enum tr_status hash_config(const char *dir, struct tr_hasher *h, struct tr_hash128 *out)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], *value = NULL;
    cJSON *config = NULL;
    const cJSON **item = NULL;
    size_t n = 0;
    TR_TRY(tr_path_join(path, dir, "config.json"));
    TR_TRY(tr_json_load(path, 4 << 20, &config));
    item = calloc((size_t)cJSON_GetArraySize(config) + 1, sizeof(const cJSON *));
    if (!item)
        TR_TRY(tr_fail(TR_NOMEM, "%s: out of memory", path));
    for (const cJSON *k = config->child; k; k = k->next)
        if (k->string && !is_volatile(k->string))
            item[n++] = k;
    qsort(item, n, sizeof(const cJSON *), by_key);
    tr_hasher_clear(h);
    for (size_t i = 0; i < n; i++) {
        value = cJSON_PrintUnformatted(item[i]);
        if (!value)
            TR_TRY(tr_fail(TR_NOMEM, "%s: out of memory", path));
        tr_hasher_add(h, item[i]->string, strlen(item[i]->string) + 1);
        tr_hasher_add(h, value, strlen(value) + 1);
        cJSON_free(value);
    }
    *out = tr_hasher_get(h);
out:
    free(item);
    cJSON_Delete(config);
    return st;
}

static void add_header(struct tr_hasher *h, const struct tr_st_tensor *t)
{
    tr_hasher_add(h, t->name, strlen(t->name) + 1);
    tr_hasher_add(h, t->dtype_name, strlen(t->dtype_name) + 1);
    tr_hasher_add(h, t->dims, (size_t)t->n_dims * sizeof t->dims[0]);
}

/* Elements of a dtype this program cannot read are left to the header. */
static enum tr_status add_samples(struct tr_hasher *h, const struct tr_hf *hf, size_t i)
{
    const struct tr_st_tensor *t = tr_hf_tensor(hf, i);
    char bytes[SAMPLE_BYTES];
    enum tr_status st = TR_OK;
    if (t->dtype == TR_DTYPE_COUNT || t->n_elems == 0)
        return TR_OK;
    uint64_t n = SAMPLE_BYTES / tr_dtype_bytes(t->dtype);
    n = t->n_elems < n ? t->n_elems : n;
    for (uint64_t k = 0; k < N_SAMPLES && st == TR_OK; k++) {
        uint64_t first = (t->n_elems - n) / (N_SAMPLES - 1) * k;
        st = tr_hf_read(hf, i, first, (size_t)n, bytes, t->dtype);
        if (st == TR_OK)
            tr_hasher_add(h, bytes, (size_t)n * tr_dtype_bytes(t->dtype));
    }
    return st;
}

struct named {
    const char *name;
    size_t at;
};

static enum tr_status hash_tensors(const struct tr_hf *hf, const struct named *all, struct tr_hasher *h,
                                   struct tr_base_id *id)
{
    enum tr_status st = TR_OK;
    size_t n = tr_hf_count(hf);
    tr_hasher_clear(h);
    for (size_t i = 0; i < n; i++) {
        const struct tr_st_tensor *t = tr_hf_tensor(hf, all[i].at);
        add_header(h, t);
        id->n_bytes += t->end - t->begin;
    }
    id->n_tensors = (int64_t)n;
    id->tensors = tr_hasher_get(h);
    tr_hasher_clear(h);
    for (size_t i = 0; i < n && st == TR_OK; i++)
        st = add_samples(h, hf, all[i].at);
    id->samples = tr_hasher_get(h);
    return st;
}

enum tr_status tr_base_id_of(const char *dir, struct tr_base_id *out)
{
    enum tr_status st = TR_OK;
    struct tr_hf *hf = NULL;
    struct tr_hasher *h = NULL;
    struct tr_base_id id = { 0 };
    struct named *all = NULL;
    TR_TRY(tr_hasher_open(&h));
    TR_TRY(hash_config(dir, h, &id.config));
    TR_TRY(tr_hf_open(dir, &hf));
    TR_TRY(TR_ALLOC(all, tr_hf_count(hf) + 1, "%s", dir));
    for (size_t i = 0; i < tr_hf_count(hf); i++)
        all[i] = (struct named){ tr_hf_tensor(hf, i)->name, i };
    qsort(all, tr_hf_count(hf), sizeof *all, tr_by_text);
    TR_TRY(hash_tensors(hf, all, h, &id));
    *out = id;
out:
    free(all);
    tr_hf_close(hf);
    tr_hasher_close(h);
    return st;
}

enum tr_status tr_base_id_print(const struct tr_base_id *id, const char *path, const char *quant, const char *start,
                                struct tr_str *out)
{
    char config[33], tensors[33], samples[33];
    tr_hash_hex(id->config, config);
    tr_hash_hex(id->tensors, tensors);
    tr_hash_hex(id->samples, samples);
    tr_str_member(out, "{\"schema\": 1, \"path\": ", path);
    if (quant[0])
        tr_str_addf(out, ", \"quant\": \"%s\"", quant);
    if (start)
        tr_str_addf(out, ", \"start\": \"%s\"", start);
    tr_str_addf(out,
                ", \"tensors\": %" PRId64 ", \"bytes\": %" PRIu64
                ", \"config_hash\": \"%s\", \"tensors_hash\": \"%s\", \"samples_hash\": \"%s\"}\n",
                id->n_tensors, id->n_bytes, config, tensors, samples);
    return tr_str_ok(out) ? TR_OK : tr_fail(TR_NOMEM, TR_ADAPTER_BASE ": out of memory");
}

void tr_base_id_hex(const struct tr_base_id *id, char out[33])
{
    struct tr_hash128 all[] = { id->config, id->tensors, id->samples };
    tr_hash_hex(tr_hash(all, sizeof all), out);
}

static bool is_hash(const cJSON *j, const char *key, struct tr_hash128 want)
{
    const cJSON *k = cJSON_GetObjectItemCaseSensitive(j, key);
    char hex[33];
    tr_hash_hex(want, hex);
    return cJSON_IsString(k) && strcmp(k->valuestring, hex) == 0;
}

enum tr_status tr_base_id_check(const char *adapter_dir, const char *base_dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], esc[200];
    cJSON *j = NULL;
    struct tr_str text = { 0 };
    struct tr_base_id id;
    const char *was = "?";
    TR_TRY(tr_path_join(path, adapter_dir, TR_ADAPTER_BASE));
    if (!tr_file_exists(path))
        return TR_OK;
    TR_TRY(tr_json_load(path, 1 << 20, &j));
    TR_TRY(tr_json_str(j, "path", false, &was));
    TR_TRY(tr_base_id_of(base_dir, &id));
    const struct {
        bool is_same;
        const char *what;
    } part[] = { { is_hash(j, "config_hash", id.config), "config.json" },
                 { is_hash(j, "tensors_hash", id.tensors), "names, shapes or dtypes" },
                 { is_hash(j, "samples_hash", id.samples), "weights" } };
    for (size_t i = 0; i < TR_COUNT_OF(part); i++)
        if (!part[i].is_same)
            tr_str_addf(&text, "%s%s", text.n ? "; " : "", part[i].what);
    if (text.n)
        st = tr_fail(TR_USAGE,
                     "adapter %s was trained on another base than %s (other %s); it was %s: name that one with "
                     "--model_base DIR",
                     adapter_dir, base_dir, text.p, tr_escape(was, esc, sizeof esc));
out:
    tr_str_release(&text);
    cJSON_Delete(j);
    return st;
}

enum tr_status tr_base_id_member(const char *adapter_dir, const char *key, char out[TR_PATH_MAX])
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    const char *was = NULL;
    cJSON *j = NULL;
    TR_TRY(tr_path_join(path, adapter_dir, TR_ADAPTER_BASE));
    TR_TRY(tr_json_load(path, 1 << 20, &j));
    TR_TRY(tr_json_str(j, key, true, &was));
    TR_TRY(tr_format(out, TR_PATH_MAX, "%s", was));
out:
    cJSON_Delete(j);
    return st;
}
