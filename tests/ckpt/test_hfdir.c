/* test_hfdir.c - Hugging Face model directories: single file, shards, hostile indices (F23), pickles (F29), check. */
#include "ckpt/tmpdir.h"
#include "ckpt/hfdir.h"

static const struct tr_st_entry model[] = {
    { "wte.weight", TR_F32, 2, { 4, 2 } },
    { "h.0.attn.weight", TR_F32, 2, { 2, 2 } },
    { "h.0.mlp.weight", TR_F32, 2, { 2, 3 } },
    { "ln_f.weight", TR_F32, 1, { 2 } },
};

/* Element k of tensor e is 100 e + k. */
static void save(const char *dir, const struct tr_st_entry *entries, size_t n, uint64_t max_shard_bytes)
{
    struct tr_hf_plan *p;
    struct tr_pump *pump;
    assert_ok(tr_pump_open(NULL, &pump));
    assert_ok(tr_hf_plan_open("model", entries, n, NULL, max_shard_bytes, &p));
    for (size_t k = 0; k < tr_hf_plan_shards(p); k++) {
        size_t first, n_in;
        uint64_t n_bytes;
        struct tr_hash128 hash;
        struct tr_st_writer *w = tr_hf_plan_writer(p, k);
        tr_hf_plan_range(p, k, &first, &n_in);
        assert_ok(tr_st_writer_begin(w, pump, dir, tr_hf_plan_name(p, k)));
        for (size_t e = first; e < first + n_in; e++) {
            uint64_t n_elems, n_b;
            assert_ok(tr_st_entry_size(&entries[e], &n_elems, &n_b));
            for (uint64_t i = 0; i < n_elems; i++)
                assert_ok(tr_st_writer_add(w, &(float){ (float)(100 * e + i) }, TR_F32, 1));
        }
        assert_ok(tr_st_writer_finish(w, &n_bytes, &hash));
    }
    if (tr_hf_plan_index(p))
        put_file(in_dir(dir, TR_HF_INDEX_NAME), tr_hf_plan_index(p), strlen(tr_hf_plan_index(p)));
    tr_hf_plan_close(p);
    tr_pump_close(pump);
}

static void assert_reads_back(const char *dir)
{
    struct tr_hf *hf;
    assert_ok(tr_hf_open(dir, &hf));
    assert_int_equal(tr_hf_count(hf), TR_COUNT_OF(model));
    for (size_t e = 0; e < TR_COUNT_OF(model); e++) {
        size_t i = 99;
        float last;
        assert_true(tr_hf_find(hf, model[e].name, &i));
        const struct tr_st_tensor *t = tr_hf_tensor(hf, i);
        assert_string_equal(t->name, model[e].name);
        assert_ok(tr_hf_read(hf, i, t->n_elems - 1, 1, &last, TR_F32));
        assert_true(last == (float)(100 * e + t->n_elems - 1));
    }
    size_t i;
    assert_false(tr_hf_find(hf, "absent", &i));
    assert_ok(tr_hf_check(hf, model, TR_COUNT_OF(model), NULL, NULL));
    tr_hf_close(hf);
}

static void one_file_reads_back(void **state)
{
    save(*state, model, TR_COUNT_OF(model), TR_HF_SHARD_BYTES);
    assert_int_equal(access(in_dir(*state, "model.safetensors"), F_OK), 0);
    assert_int_not_equal(access(in_dir(*state, TR_HF_INDEX_NAME), F_OK), 0);
    assert_reads_back(*state);
}

static void any_shard_size_reads_back(void **state)
{
    static const struct {
        uint64_t max_bytes;
        size_t n_shards;
    } rows[] = { { 1, 4 }, { 31, 4 }, { 32, 3 }, { 48, 2 }, { 79, 2 }, { 80, 1 } }; /* tensors of 32, 16, 24, 8 bytes */
    for (size_t r = 0; r < TR_COUNT_OF(rows); r++) {
        char dir[TR_PATH_MAX];
        struct tr_hf_plan *p;
        assert_ok(tr_hf_plan_open("model", model, TR_COUNT_OF(model), NULL, rows[r].max_bytes, &p));
        assert_int_equal(tr_hf_plan_shards(p), rows[r].n_shards);
        tr_hf_plan_close(p);
        snprintf(dir, sizeof dir, "%s", in_dir(*state, "m"));
        assert_ok(tr_mkdirs(dir));
        save(dir, model, TR_COUNT_OF(model), rows[r].max_bytes);
        assert_reads_back(dir);
        assert_ok(tr_remove_tree(dir));
    }
}

static void the_index_counts_bytes_and_parameters(void **state)
{
    (void)state;
    struct tr_hf_plan *p;
    cJSON *json;
    int64_t n = 0;
    assert_ok(tr_hf_plan_open("model", model, TR_COUNT_OF(model), NULL, 48, &p));
    assert_ok(tr_json_parse(tr_hf_plan_index(p), strlen(tr_hf_plan_index(p)), "index", &json));
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(json, "metadata");
    assert_ok(tr_json_int(metadata, "total_size", true, 0, 1 << 20, &n));
    assert_int_equal(n, 80);
    assert_ok(tr_json_int(metadata, "total_parameters", true, 0, 1 << 20, &n));
    assert_int_equal(n, 20);
    assert_string_equal(tr_hf_plan_name(p, 0), "model-00001-of-00002.safetensors");
    cJSON_Delete(json);
    tr_hf_plan_close(p);
}

#define A "model-00001-of-00002.safetensors"
#define B "model-00002-of-00002.safetensors"

static const struct {
    const char *id, *index, *text;
} bad_indices[] = {
    { "not json", "{\"weight_map\":", "index.json" },
    { "no map", "{}", "no weight_map" },
    { "map is a list", "{\"weight_map\":[]}", "no weight_map" },
    { "empty map", "{\"weight_map\":{}}", "0 tensors" },
    { "value is no string", "{\"weight_map\":{\"a\":1}}", "no file name" },
    { "F23 missing shard", "{\"weight_map\":{\"a\":\"" A "\",\"b\":\"none.safetensors\"}}", "No such file" },
    { "F23 parent", "{\"weight_map\":{\"a\":\"../" A "\"}}", "only plain" },
    { "F23 absolute", "{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "only plain" },
    { "F23 subdirectory", "{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", "only plain" },
    { "F23 control byte", "{\"weight_map\":{\"a\":\"\\u001b.safetensors\"}}", "\\x1b" },
    { "F23 empty name", "{\"weight_map\":{\"a\":\"\"}}", "only plain" },
    { "F23 pickle", "{\"weight_map\":{\"a\":\"pytorch_model.bin\"}}", "only plain" },
    { "F23 link out", "{\"weight_map\":{\"a\":\"link.safetensors\"}}", "is a link" },
    { "F23 same tensor twice", "{\"weight_map\":{\"a\":\"" A "\",\"a\":\"" B "\"}}", "index.json" },
    { "F23 duplicate shard content", "{\"weight_map\":{\"a\":\"" A "\",\"b\":\"" B "\",\"c\":\"copy.safetensors\"}}",
      "is in" },
    { "F23 tensor not in its shard", "{\"weight_map\":{\"a\":\"" B "\",\"b\":\"" A "\"}}", "does not hold it" },
    { "F23 mapped but nowhere", "{\"weight_map\":{\"a\":\"" A "\",\"b\":\"" B "\",\"z\":\"" B "\"}}",
      "does not hold it" },
    { "F23 in a shard but not mapped", "{\"weight_map\":{\"a\":\"" A "\",\"0\":\"" B "\"}}", "does not hold it" },
    { "F23 unlisted", "{\"weight_map\":{\"a\":\"two.safetensors\"}}", "does not list" },
};

static void hostile_indices_are_refused_with_the_cause(void **state)
{
    static const struct tr_st_entry ab[] = { { "a", TR_F32, 1, { 1 } }, { "b", TR_F32, 1, { 1 } } };
    char dir[TR_PATH_MAX];
    struct tr_hf *hf;
    save(*state, ab, 2, TR_HF_SHARD_BYTES); /* both in one file */
    snprintf(dir, sizeof dir, "%s", in_dir(*state, "m"));
    assert_ok(tr_mkdirs(dir));
    save(dir, ab, 2, 1);
    assert_ok(tr_hf_open(dir, &hf));
    tr_hf_close(hf);
    copy_file(in_dir(*state, "model.safetensors"), in_dir(dir, "two.safetensors"));
    copy_file(in_dir(dir, A), in_dir(dir, "copy.safetensors"));
    assert_int_equal(symlink(in_dir(*state, "model.safetensors"), in_dir(dir, "link.safetensors")), 0);
    for (size_t i = 0; i < TR_COUNT_OF(bad_indices); i++) {
        put_file(in_dir(dir, TR_HF_INDEX_NAME), bad_indices[i].index, strlen(bad_indices[i].index));
        enum tr_status st = tr_hf_open(dir, &hf);
        if (st != TR_USAGE || !strstr(tr_error_text(), bad_indices[i].text))
            fail_msg("%s: status %d, \"%s\"", bad_indices[i].id, (int)st, tr_error_text());
    }
}

static void the_links_of_the_hub_cache_are_followed(void **state)
{
    char dir[TR_PATH_MAX], blob[TR_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", in_dir(*state, "hub/snapshots/0123"));
    assert_ok(tr_mkdirs(dir));
    assert_ok(tr_mkdirs(in_dir(*state, "hub/blobs")));
    save(*state, model, TR_COUNT_OF(model), TR_HF_SHARD_BYTES);
    snprintf(blob, sizeof blob, "%s", in_dir(*state, "hub/blobs/00ffaa"));
    copy_file(in_dir(*state, "model.safetensors"), blob);
    assert_int_equal(symlink("../../blobs/00ffaa", in_dir(dir, "model.safetensors")), 0);
    assert_reads_back(dir);
    assert_int_equal(unlink(in_dir(dir, "model.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/../blobs/00ffaa", in_dir(dir, "model.safetensors")), 0);
    struct tr_hf *hf;
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "is a link");
}

static void directories_without_safetensors_say_what_to_do(void **state)
{
    struct tr_hf *hf;
    assert_fails_with(tr_hf_open(in_dir(*state, "absent"), &hf), TR_USAGE, "No such file");
    assert_fails_with(tr_hf_open(*state, &hf), TR_USAGE, "neither model.safetensors");
    put_file(in_dir(*state, "pytorch_model.bin"), "x", 1);
    assert_fails_with(tr_hf_open(*state, &hf), TR_USAGE, "save_pretrained");
}

/* F25: all mismatches at once. */
static void check_lists_every_mismatch_in_one_message(void **state)
{
    static const struct tr_st_entry wanted[] = {
        { "wte.weight", TR_BF16, 2, { 4, 2 } },
        { "h.0.attn.weight", TR_BF16, 2, { 2, 4 } },
        { "h.0.mlp.weight", TR_BF16, 1, { 6 } },
        { "lm_head.weight", TR_BF16, 2, { 4, 2 } },
    };
    struct tr_hf *hf;
    save(*state, model, TR_COUNT_OF(model), TR_HF_SHARD_BYTES);
    assert_ok(tr_hf_open(*state, &hf));
    assert_fails_with(tr_hf_check(hf, wanted, 4, NULL, NULL), TR_USAGE, "1 missing, 1 extra, 2 of wrong");
    const char *text = tr_error_text();
    assert_non_null(strstr(text, "missing: lm_head.weight"));
    assert_non_null(strstr(text, "extra: ln_f.weight"));
    assert_non_null(strstr(text, "h.0.attn.weight is F32 [2, 2], wanted BF16 [2, 4]"));
    assert_non_null(strstr(text, "h.0.mlp.weight is F32 [2, 3], wanted BF16 [6]"));
    assert_null(strstr(text, "wte"));
    tr_hf_close(hf);
}

static void old_buffers_are_ignored_and_others_are_not(void **state)
{
    static const struct tr_st_entry there[] = {
        { "w", TR_F32, 1, { 1 } },
        { "h.0.attn.bias", TR_F32, 1, { 1 } },
        { "h.0.attn.masked_bias", TR_F32, 1, { 1 } },
        { "model.layers.0.self_attn.rotary_emb.inv_freq", TR_F32, 1, { 1 } },
        { "h.0.attn.c_attn.bias", TR_F32, 1, { 1 } },
    };
    struct tr_hf *hf;
    save(*state, there, TR_COUNT_OF(there), TR_HF_SHARD_BYTES);
    assert_ok(tr_hf_open(*state, &hf));
    assert_fails_with(tr_hf_check(hf, there, 1, NULL, NULL), TR_USAGE, "0 missing, 1 extra, 0 of wrong");
    assert_non_null(strstr(tr_error_text(), "c_attn.bias"));
    tr_hf_close(hf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        dir_test(one_file_reads_back),
        dir_test(any_shard_size_reads_back),
        cmocka_unit_test(the_index_counts_bytes_and_parameters),
        dir_test(hostile_indices_are_refused_with_the_cause),
        dir_test(the_links_of_the_hub_cache_are_followed),
        dir_test(directories_without_safetensors_say_what_to_do),
        dir_test(check_lists_every_mismatch_in_one_message),
        dir_test(old_buffers_are_ignored_and_others_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
