/* test_quant.c - 4-bit blocks and double quantisation are bitsandbytes', bit for bit: tests/golden/quant/q4.safetensors
 * holds tensors (zero blocks, denormals, large values, ties, odd sizes) and what bitsandbytes made of them. The script
 * that wrote it, tests/golden/check_quant.py, compares 1,000 random tensors where bitsandbytes is installed. */
#include "ckpt/tmpdir.h"
#include "ckpt/safetensors.h"

static struct tr_st *golden;

static void *load(const char *name, const char *part, enum tr_dtype dtype, size_t *out_n)
{
    char full[64];
    size_t i;
    snprintf(full, sizeof full, "%s%s", name, part);
    if (!tr_st_find(golden, full, &i))
        return NULL;
    *out_n = tr_st_tensor(golden, i)->n_elems;
    void *p = malloc(*out_n * tr_dtype_bytes(dtype));
    assert_ok(tr_st_read(golden, i, 0, *out_n, p, dtype));
    return p;
}

static void assert_plane(const char *name, const char *part, enum tr_dtype dtype, const void *got, size_t n)
{
    size_t n_want = 0;
    void *want = load(name, part, dtype, &n_want);
    assert_non_null(want);
    assert_int_equal(n, n_want);
    assert_memory_equal(got, want, n * tr_dtype_bytes(dtype));
    free(want);
}

static void codes_absmax_and_nested_absmax_are_bitsandbytes(void **state)
{
    (void)state;
    int n_cases = 0;
    for (unsigned t = 0; t < TR_Q4_COUNT; t++) {
        for (int k = 0;; k++) {
            char source[16], name[32];
            size_t n;
            snprintf(source, sizeof source, "%d", k);
            snprintf(name, sizeof name, "%d.%s", k, tr_storage_q4((enum tr_q4)t)->name);
            float *x = load(source, ".x", TR_F32, &n);
            if (!x)
                break;
            size_t n_blocks = (n + TR_Q4_BLOCK - 1) / TR_Q4_BLOCK, n_nested = (n_blocks + TR_Q4_NEST - 1) / TR_Q4_NEST;
            uint8_t *codes = malloc(n), *scales = malloc(n_blocks);
            float *absmax = malloc(n_blocks * sizeof *absmax), *nested = malloc(n_nested * sizeof *nested), offset;
            tr_q4_encode((enum tr_q4)t, x, (int64_t)n, codes, absmax);
            tr_q4_nest(absmax, (int64_t)n_blocks, scales, nested, &offset);
            assert_plane(name, ".codes", TR_U8, codes, (n + 1) / 2);
            assert_plane(name, ".absmax", TR_F32, absmax, n_blocks);
            assert_plane(name, ".nested", TR_U8, scales, n_blocks);
            assert_plane(name, ".nested_absmax", TR_F32, nested, n_nested);
            assert_plane(name, ".offset", TR_F32, &offset, 1);
            n_cases++;
            free(x);
            free(codes);
            free(scales);
            free(absmax);
            free(nested);
        }
    }
    assert_int_equal(n_cases, 16);
}

static void dynamic_maps_are_bitsandbytes(void **state)
{
    (void)state;
    float map[256];
    tr_dynamic_map(true, map);
    assert_plane("map", ".signed", TR_F32, map, 256);
    tr_dynamic_map(false, map);
    assert_plane("map", ".unsigned", TR_F32, map, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_absmax_and_nested_absmax_are_bitsandbytes),
        cmocka_unit_test(dynamic_maps_are_bitsandbytes),
    };
    if (tr_st_open(TR_SOURCE_DIR "/tests/golden/quant/q4.safetensors", &golden) != TR_OK) {
        fprintf(stderr, "%s\n", tr_error_text());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tr_st_close(golden);
    return failed;
}
