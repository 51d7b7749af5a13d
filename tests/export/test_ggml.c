/* test_ggml.c - blocks of a GGUF file are llama.cpp's, bit for bit: tests/golden/quant/ggml.safetensors holds rows
 * (zeros, one sign, outliers, tiny and large magnitudes, ties) with the bytes that its quantiser makes of them and the
 * hash of what PyPI's gguf decodes. tests/golden/check_gguf.py wrote it. */
#include "ckpt/tmpdir.h"
#include "ckpt/safetensors.h"
#include "export/ggml.h"

static struct tr_st *golden;

static void *load(const char *name, const char *part, enum tr_dtype dtype, size_t *out_n)
{
    char full[64];
    size_t i;
    snprintf(full, sizeof full, "%s%s", name, part);
    assert_true(tr_st_find(golden, full, &i));
    *out_n = tr_st_tensor(golden, i)->n_elems;
    void *p = malloc(*out_n * tr_dtype_bytes(dtype));
    assert_ok(tr_st_read(golden, i, 0, *out_n, p, dtype));
    return p;
}

static void bytes_and_values_are_llama_cpps(void **state)
{
    (void)state;
    size_t n, n_bytes, n_hash;
    float *x = load("x", "", TR_F32, &n), *back = malloc(n * sizeof *back);
    for (int t = TR_GGML_Q4_0; t < TR_GGML_COUNT; t++) {
        const struct tr_ggml_type *type = tr_ggml_type((enum tr_ggml)t);
        uint8_t *want = load(type->name, "", TR_U8, &n_bytes), *hash = load(type->name, ".sha256", TR_U8, &n_hash);
        uint8_t *got = malloc(n_bytes), now[TR_SHA256_BYTES];
        assert_int_equal(tr_ggml_bytes((enum tr_ggml)t, (int64_t)n), n_bytes);
        tr_ggml_encode((enum tr_ggml)t, x, (int64_t)n, got);
        for (size_t i = 0; i < n_bytes; i++)
            if (got[i] != want[i])
                fail_msg("%s: byte %zu of block %zu is %d, want %d", type->name, i % type->bytes, i / type->bytes,
                         got[i], want[i]);
        tr_ggml_decode((enum tr_ggml)t, want, (int64_t)n, back);
        for (size_t i = 0; i < n; i++)
            back[i] = back[i] == 0 ? 0 : back[i]; /* -0 of a negative scale is the decoder's own */
        tr_sha256(back, n * sizeof *back, now);
        assert_int_equal(n_hash, TR_SHA256_BYTES);
        assert_memory_equal(now, hash, TR_SHA256_BYTES);
        free(want);
        free(hash);
        free(got);
    }
    free(x);
    free(back);
}

static void tiny_and_odd_blocks_have_an_encoding(void **state)
{
    (void)state;
    float x[TR_GGML_BLOCK_MAX], back[TR_GGML_BLOCK_MAX];
    uint8_t bytes[TR_GGML_BLOCK_MAX * 4];
    const float scale[] = { 1e-45f, 1e-41f, 1e-38f, 1e-15f, 1e30f };
    for (int t = 0; t < TR_GGML_COUNT; t++)
        for (size_t k = 0; k < TR_COUNT_OF(scale); k++) {
            for (int i = 0; i < TR_GGML_BLOCK_MAX; i++)
                x[i] = scale[k] * (float)(i % 7 - 3);
            tr_ggml_encode((enum tr_ggml)t, x, TR_GGML_BLOCK_MAX, bytes);
            tr_ggml_decode((enum tr_ggml)t, bytes, TR_GGML_BLOCK_MAX, back);
        }
}

static void rows_that_blocks_do_not_divide_get_smaller_blocks(void **state)
{
    (void)state;
    assert_int_equal(tr_ggml_for_row(TR_GGML_Q4_K, 512), TR_GGML_Q4_K);
    assert_int_equal(tr_ggml_for_row(TR_GGML_Q4_K, 96), TR_GGML_Q5_0);
    assert_int_equal(tr_ggml_for_row(TR_GGML_Q5_K, 96), TR_GGML_Q5_1);
    assert_int_equal(tr_ggml_for_row(TR_GGML_Q6_K, 96), TR_GGML_Q8_0);
    assert_int_equal(tr_ggml_for_row(TR_GGML_Q6_K, 40), TR_GGML_F16);
    assert_int_equal(tr_ggml_for_row(TR_GGML_BF16, 7), TR_GGML_BF16);
}

static int open_golden(void **state)
{
    (void)state;
    assert_ok(tr_st_open(TR_SOURCE_DIR "/tests/golden/quant/ggml.safetensors", &golden));
    return 0;
}

static int close_golden(void **state)
{
    (void)state;
    tr_st_close(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_and_values_are_llama_cpps),
        cmocka_unit_test(tiny_and_odd_blocks_have_an_encoding),
        cmocka_unit_test(rows_that_blocks_do_not_divide_get_smaller_blocks),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
