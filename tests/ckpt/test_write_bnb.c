/* test_write_bnb.c - a directory written in 4 bits holds what encoding its source gives, in as many files as asked for,
 * and nothing of a directory that could not be written stays. That bitsandbytes and transformers load it: check_bnb.py.
 */
#include "ckpt/tmpdir.h"
#include "ckpt/ckpt.h"

#define SOURCE TR_SOURCE_DIR "/tests/golden/llama_mqa_bias"

static struct tr_model *open_model(const char *dir)
{
    struct tr_model *m;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    assert_ok(tr_model_open(dir, &opt, &m));
    return m;
}

static void check_tensor(const struct tr_hf *from, size_t i, const struct tr_hf *to, size_t k, bool is_double,
                         enum tr_q4 q)
{
    const struct tr_st_tensor *a = tr_hf_tensor(from, i), *b = tr_hf_tensor(to, k);
    size_t n = a->n_elems, n_blocks = (n + 63) / 64;
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y), *absmax = malloc(n_blocks * sizeof *absmax);
    assert_int_equal(a->n_dims, b->n_dims);
    assert_memory_equal(a->dims, b->dims, (size_t)a->n_dims * sizeof a->dims[0]);
    assert_ok(tr_hf_read(from, i, 0, n, x, TR_F32));
    assert_ok(tr_hf_read(to, k, 0, n, y, TR_F32));
    if (tr_hf_storage(to, k)) {
        uint8_t *codes = malloc(n), *scales = malloc(n_blocks);
        float *nested = malloc(n_blocks * sizeof *nested), offset, map[256];
        assert_ptr_equal(tr_hf_storage(to, k), tr_storage_q4(q));
        tr_q4_encode(q, x, (int64_t)n, codes, absmax);
        tr_dynamic_map(true, map);
        tr_q4_nest(absmax, (int64_t)n_blocks, scales, nested, &offset);
        if (is_double)
            tr_q4_unnest(map, scales, nested, offset, 0, (int64_t)n_blocks, absmax);
        tr_q4_decode(q, codes, absmax, 0, (int64_t)n, x, TR_F32);
        free(codes);
        free(scales);
        free(nested);
    }
    assert_memory_equal(x, y, n * sizeof *x);
    free(x);
    free(y);
    free(absmax);
}

static void a_directory_holds_its_source_encoded(void **state)
{
    struct tr_model *m = open_model(SOURCE);
    for (int c = 0; c < 4; c++) {
        struct tr_bnb4_options opt = { .type = c & 1 ? TR_FP4 : TR_NF4,
                                       .is_double = c & 2,
                                       .shard_bytes = c ? 4096 : 1 << 30 };
        char name[8];
        struct tr_hf *from, *to;
        int n_quantised = 0;
        uint64_t bytes = 0;
        snprintf(name, sizeof name, "%d", c);
        const char *dir = in_dir(*state, name);
        assert_ok(tr_write_bnb4(m, SOURCE, dir, &opt, &bytes));
        assert_true(bytes > 0);
        assert_int_equal(access(in_dir(dir, "model.safetensors"), F_OK) == 0, c == 0); /* one file, or several */
        assert_ok(tr_hf_open(SOURCE, &from));
        assert_ok(tr_hf_open(dir, &to));
        assert_int_equal(tr_hf_count(from), tr_hf_count(to));
        for (size_t i = 0, k; i < tr_hf_count(from); i++) {
            assert_true(tr_hf_find(to, tr_hf_tensor(from, i)->name, &k));
            n_quantised += tr_hf_storage(to, k) != NULL;
            check_tensor(from, i, to, k, opt.is_double, opt.type);
        }
        assert_int_equal(n_quantised, 7 * m->hp.layers); /* q k v o, gate up down */
        struct tr_model *again = open_model(dir);
        assert_ok(tr_check_weights(again, dir));
        assert_fails_with(tr_write_bnb4(again, dir, in_dir(*state, "twice"), &opt, NULL), TR_USAGE,
                          "quantised already");
        assert_fails_with(tr_write_bnb4(m, SOURCE, dir, &opt, NULL), TR_USAGE, "is there already");
        tr_model_close(again);
        tr_hf_close(from);
        tr_hf_close(to);
    }
    tr_model_close(m);
}

/* A weight that is not finite is found in the second file; the first goes too. */
static void what_fails_leaves_no_weights(void **state)
{
    const char *dir = in_dir(*state, "bad"), *out = in_dir(*state, "out");
    struct tr_model *m = open_model(SOURCE);
    struct tr_bnb4_options opt = { .shard_bytes = 4096 };
    char *text;
    size_t n, i;
    struct tr_st *f;
    uint32_t nan = 0x7fc00000;
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_ok(tr_file_read(SOURCE "/config.json", 1 << 20, &text, &n));
    put_file(in_dir(dir, "config.json"), text, n);
    free(text);
    assert_ok(tr_file_read(SOURCE "/model.safetensors", 1 << 24, &text, &n));
    assert_ok(tr_st_open(SOURCE "/model.safetensors", &f));
    assert_true(tr_st_find(f, "model.layers.1.mlp.up_proj.weight", &i));
    memcpy(text + n - tr_st_tensor(f, tr_st_count(f) - 1)->end + tr_st_tensor(f, i)->begin, &nan, sizeof nan);
    tr_st_close(f);
    put_file(in_dir(dir, "model.safetensors"), text, n);
    free(text);
    assert_fails_with(tr_write_bnb4(m, dir, out, &opt, NULL), TR_USAGE,
                      "up_proj.weight holds a non-finite value at element 0");
    struct tr_hf *hf;
    assert_fails_with(tr_hf_open(out, &hf), TR_USAGE, "has no weights");
    assert_int_not_equal(access(in_dir(out, "model-00001-of-00016.safetensors"), F_OK), 0);
    tr_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_directory_holds_its_source_encoded, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(what_fails_leaves_no_weights, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
