/* hfindex.c - model.safetensors.index.json: reading a stranger's, planning and writing ours.
 *
 * The plan is a pure function of the entry list, so every rank computes the same cut without talking. All text is made
 * when the plan is opened; a save only streams.
 */
#include "ckpt/hfdir.h"

#include <stdlib.h>
#include <string.h>

static bool is_shard_name(const char *name)
{
    static const char tail[] = ".safetensors";
    size_t n = strlen(name);
    return tr_name_is_plain(name) && n >= sizeof tail && strcmp(name + n - (sizeof tail - 1), tail) == 0;
}

static enum tr_status collect(const cJSON *weight_map, struct tr_hf_index *ix)
{
    char text[96], name[96];
    for (const cJSON *e = weight_map->child; e; e = e->next)
        ix->n_map++;
    if (ix->n_map == 0 || ix->n_map > TR_ST_MAX_TENSORS)
        return tr_fail(TR_USAGE, "weight_map has %zu tensors; 1..%d are allowed", ix->n_map, TR_ST_MAX_TENSORS);
    ix->map = malloc(ix->n_map * sizeof *ix->map);
    ix->shards = malloc(ix->n_map * sizeof(const char *));
    if (!ix->map || !ix->shards)
        return tr_fail(TR_NOMEM, "no memory for %zu tensors", ix->n_map);
    size_t i = 0;
    for (const cJSON *e = weight_map->child; e; e = e->next, i++) {
        tr_escape(e->string, name, sizeof name);
        if (!cJSON_IsString(e))
            return tr_fail(TR_USAGE, "weight_map of tensor \"%s\" is no file name", name);
        if (!is_shard_name(e->valuestring))
            return tr_fail(TR_USAGE,
                           "weight_map of tensor \"%s\" is \"%s\"; only plain *.safetensors names are allowed", name,
                           tr_escape(e->valuestring, text, sizeof text));
        ix->map[i] = (struct tr_hf_mapped){ e->string, e->valuestring };
        ix->shards[i] = e->valuestring;
    }
    return TR_OK;
}

enum tr_status tr_hf_parse_index(const char *json, size_t n, struct tr_hf_index *out)
{
    enum tr_status st = TR_OK;
    struct tr_hf_index ix = { 0 };
    if (n > TR_HF_MAX_INDEX)
        return tr_fail(TR_USAGE, TR_HF_INDEX_NAME ": %zu bytes; the limit is %d", n, TR_HF_MAX_INDEX);
    TR_TRY(tr_json_parse(json, n, TR_HF_INDEX_NAME, &ix.json));
    const cJSON *weight_map = cJSON_GetObjectItemCaseSensitive(ix.json, "weight_map");
    if (!cJSON_IsObject(weight_map))
        TR_TRY(tr_fail(TR_USAGE, TR_HF_INDEX_NAME ": no weight_map object"));
    st = collect(weight_map, &ix);
    if (st != TR_OK) {
        tr_fail_at(st, TR_HF_INDEX_NAME ": ");
        goto out;
    }
    qsort(ix.map, ix.n_map, sizeof *ix.map, tr_by_text);
    qsort(ix.shards, ix.n_map, sizeof(const char *), tr_by_text);
    for (size_t i = 0; i < ix.n_map; i++)
        if (ix.n_shards == 0 || strcmp(ix.shards[ix.n_shards - 1], ix.shards[i]) != 0)
            ix.shards[ix.n_shards++] = ix.shards[i];
    if (ix.n_shards > TR_HF_MAX_SHARDS)
        TR_TRY(tr_fail(TR_USAGE, TR_HF_INDEX_NAME ": %zu shards; the limit is %d", ix.n_shards, TR_HF_MAX_SHARDS));
    *out = ix;
    return TR_OK;
out:
    tr_hf_index_release(&ix);
    return st;
}

void tr_hf_index_release(struct tr_hf_index *ix)
{
    cJSON_Delete(ix->json);
    free(ix->map);
    free(ix->shards);
    *ix = (struct tr_hf_index){ 0 };
}

/* ---- planning files to write ---- */

struct shard {
    char name[64];
    size_t first, n;
    struct tr_st_writer *writer;
};

struct tr_hf_plan {
    struct shard *shards;
    size_t n_shards;
    struct tr_str index;
};

/* Greedy, in order; a tensor larger than the limit gets a file of its own. shards NULL: only counts. */
static enum tr_status cut(const struct tr_st_entry *entries, size_t n, const int *part_of, uint64_t max_bytes,
                          struct shard *shards, size_t *out_n)
{
    size_t n_shards = 0;
    uint64_t used = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t n_elems, n_bytes;
        TR_PASS(tr_st_entry_size(&entries[i], &n_elems, &n_bytes));
        bool is_border = part_of && i > 0 && part_of[i] != part_of[i - 1];
        if (n_shards == 0 || is_border || (used > 0 && (n_bytes > max_bytes || used > max_bytes - n_bytes))) {
            if (shards)
                shards[n_shards].first = i;
            n_shards++;
            used = 0;
        }
        used += n_bytes;
        if (shards)
            shards[n_shards - 1].n++;
    }
    *out_n = n_shards;
    return TR_OK;
}

static enum tr_status build_index(struct tr_hf_plan *p, const struct tr_st_entry *entries, size_t n)
{
    uint64_t n_params = 0, n_size = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t n_elems, n_bytes;
        TR_PASS(tr_st_entry_size(&entries[i], &n_elems, &n_bytes));
        n_params += n_elems;
        n_size += n_bytes;
    }
    struct tr_str *s = &p->index;
    tr_str_addf(s,
                "{\n  \"metadata\": {\n    \"total_parameters\": %" PRIu64 ",\n    \"total_size\": %" PRIu64
                "\n  },\n  \"weight_map\": {",
                n_params, n_size);
    for (size_t k = 0; k < p->n_shards; k++) {
        for (size_t i = 0; i < p->shards[k].n; i++) {
            size_t at = p->shards[k].first + i;
            tr_str_addf(s, "%s\n    ", at ? "," : "");
            tr_str_json(s, entries[at].name);
            tr_str_addf(s, ": \"%s\"", p->shards[k].name);
        }
    }
    tr_str_addf(s, "\n  }\n}\n");
    return tr_str_check(s, "the index of %zu tensors", n);
}

enum tr_status tr_hf_plan_open(const char *stem, const struct tr_st_entry *entries, size_t n_entries,
                               const int *part_of, uint64_t max_shard_bytes, struct tr_hf_plan **out)
{
    enum tr_status st = TR_OK;
    struct tr_hf_plan *p = calloc(1, sizeof *p);
    size_t n_shards = 0;
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for a shard plan");
    TR_TRY(cut(entries, n_entries, part_of, max_shard_bytes, NULL, &n_shards));
    if (n_shards == 0 || n_shards > TR_HF_MAX_SHARDS)
        TR_TRY(tr_fail(TR_USAGE, "%zu tensors in files of %" PRIu64 " bytes make %zu files; 1..%d are allowed",
                       n_entries, max_shard_bytes, n_shards, TR_HF_MAX_SHARDS));
    TR_TRY(TR_ALLOC(p->shards, n_shards, "%zu shards", n_shards));
    p->n_shards = n_shards;
    TR_TRY(cut(entries, n_entries, part_of, max_shard_bytes, p->shards, &n_shards));
    for (size_t k = 0; k < n_shards; k++) {
        struct shard *s = &p->shards[k];
        if (n_shards == 1)
            TR_TRY(tr_format(s->name, sizeof s->name, "%s.safetensors", stem));
        else
            TR_TRY(tr_format(s->name, sizeof s->name, "%s-%05zu-of-%05zu.safetensors", stem, k + 1, n_shards));
        TR_TRY(tr_st_writer_prepare(entries + s->first, s->n, NULL, 0, &s->writer));
    }
    if (n_shards > 1)
        TR_TRY(build_index(p, entries, n_entries));
    *out = p;
    return TR_OK;
out:
    tr_hf_plan_close(p);
    return st;
}

void tr_hf_plan_close(struct tr_hf_plan *p)
{
    if (!p)
        return;
    for (size_t k = 0; k < p->n_shards; k++)
        tr_st_writer_close(p->shards[k].writer);
    free(p->shards);
    tr_str_release(&p->index);
    free(p);
}

size_t tr_hf_plan_shards(const struct tr_hf_plan *p)
{
    return p->n_shards;
}

const char *tr_hf_plan_name(const struct tr_hf_plan *p, size_t k)
{
    return p->shards[k].name;
}

void tr_hf_plan_range(const struct tr_hf_plan *p, size_t k, size_t *out_first, size_t *out_n)
{
    *out_first = p->shards[k].first;
    *out_n = p->shards[k].n;
}

struct tr_st_writer *tr_hf_plan_writer(struct tr_hf_plan *p, size_t k)
{
    return p->shards[k].writer;
}

const char *tr_hf_plan_index(const struct tr_hf_plan *p)
{
    return p->n_shards > 1 ? p->index.p : NULL;
}
