/* test_hfquant.c - quantised HF directories look like plain ones: names, shapes and values of the weights are those
 * that the Python libraries make of them (tests/golden/quant, made by make_quant.py), whole and in any range; and a
 * directory that lies about itself is refused with one line. */
#include "ckpt/tmpdir.h"
#include "ckpt/ckpt.h"
#include <math.h>

#define GOLDEN TR_SOURCE_DIR "/tests/golden/quant"

static const char *const cases[] = {
    "nf4_double",     "nf4_storage",     "nf4_odd",         "nf4_block_32", "nf4_block_128", "fp4",
    "gpt2_swapped",   "bnb_int8",        "fp8_blocks",      "fp8_tensor",   "fp8_rows",      "mxfp4",
    "gptq_v1",        "gptq_v2_ordered", "gptq_8",          "awq",          "packed_4",      "packed_4_zeros",
    "packed_8_zeros", "int_quantized",   "float_quantized", "float_blocks"
};

static float *expected(const char *name, const char *tensor, struct tr_st **out_file, struct tr_st_tensor *out)
{
    char path[TR_PATH_MAX];
    size_t i;
    snprintf(path, sizeof path, GOLDEN "/%s/expected.safetensors", name);
    assert_ok(tr_st_open(path, out_file));
    assert_true(tr_st_find(*out_file, tensor, &i));
    *out = *tr_st_tensor(*out_file, i);
    float *x = malloc(out->n_elems * sizeof *x);
    assert_ok(tr_st_read(*out_file, i, 0, out->n_elems, x, TR_F32));
    return x;
}

/* Whole, and in pieces that begin and end anywhere. */
static void check_reads(const struct tr_hf *hf, size_t i, const float *want, size_t n)
{
    float *got = malloc(n * sizeof *got);
    assert_ok(tr_hf_read(hf, i, 0, n, got, TR_F32));
    for (size_t k = 0; k < n; k++)
        if (memcmp(&got[k], &want[k], sizeof *got) != 0)
            fail_msg("%s: element %zu is %.9g, not %.9g", tr_hf_tensor(hf, i)->name, k, (double)got[k],
                     (double)want[k]);
    for (size_t first = 0; first < n; first += 1 + first / 3)
        for (size_t len = 1; len <= n - first; len += 1 + 3 * len) {
            memset(got, 0xff, n * sizeof *got);
            assert_ok(tr_hf_read(hf, i, first, len, got, TR_F32));
            assert_memory_equal(got, want + first, len * sizeof *got);
        }
    uint16_t half[2], rounded[2];
    assert_ok(tr_hf_read(hf, i, n - 2, 2, half, TR_BF16));
    tr_convert(want + n - 2, TR_F32, rounded, TR_BF16, 2);
    assert_memory_equal(half, rounded, sizeof half);
    assert_fails_with(tr_hf_read(hf, i, n - 1, 2, got, TR_F32), TR_USAGE, "outside");
    free(got);
}

/* Planes decode to the same values as the weight, from any multiple of the grain on. */
static void check_planes(const struct tr_hf *hf, size_t i, const float *want, size_t n)
{
    const struct tr_storage_format *f = tr_hf_storage(hf, i);
    enum tr_dtype dtype = tr_hf_tensor(hf, i)->dtype;
    for (size_t first = 0; first < n; first += 3 * (size_t)f->grain) {
        size_t len = n - first;
        uint8_t *codes = malloc(len);
        float *scale = malloc(len * sizeof *scale), *got = malloc(len * sizeof *got),
              *wide = malloc(len * sizeof *wide);
        assert_ok(tr_hf_read_planes(hf, i, first, len, (void *[]){ codes, scale }));
        if (f == tr_storage_f8())
            tr_f8_decode(codes, scale, 0, (int64_t)len, got, dtype);
        else
            tr_q4_decode(f == tr_storage_q4(TR_NF4) ? TR_NF4 : TR_FP4, codes, scale, 0, (int64_t)len, got, dtype);
        tr_convert(got, dtype, wide, TR_F32, len);
        assert_memory_equal(wide, want + first, len * sizeof *wide);
        free(codes);
        free(scale);
        free(got);
        free(wide);
    }
}

static void weights_are_those_of_the_python_libraries(void **state)
{
    (void)state;
    int n_held = 0;
    for (size_t c = 0; c < TR_COUNT_OF(cases); c++) {
        struct tr_hf *hf;
        char dir[TR_PATH_MAX];
        snprintf(dir, sizeof dir, GOLDEN "/%s", cases[c]);
        assert_ok(tr_hf_open(dir, &hf));
        assert_int_equal(tr_hf_count(hf), 2); /* the weight, and a plain tensor */
        for (size_t i = 0; i < 2; i++) {
            struct tr_st *file;
            struct tr_st_tensor t;
            const struct tr_st_tensor *got = tr_hf_tensor(hf, i);
            float *want = expected(cases[c], got->name, &file, &t);
            assert_int_equal(got->n_dims, t.n_dims);
            assert_memory_equal(got->dims, t.dims, (size_t)t.n_dims * sizeof t.dims[0]);
            assert_int_equal(got->dtype, t.dtype);
            check_reads(hf, i, want, t.n_elems);
            if (tr_hf_storage(hf, i)) {
                float *stored = malloc(t.n_elems * sizeof *stored);
                assert_non_null(stored);
                for (size_t k = 0; k < t.n_elems; k++) { /* codes of GPT-2 lie in the order of the transpose */
                    size_t cols = (size_t)t.dims[1], rows = (size_t)t.dims[0];
                    stored[tr_hf_is_transposed(hf, i) ? k % cols * rows + k / cols : k] = want[k];
                }
                check_planes(hf, i, stored, t.n_elems);
                free(stored);
                n_held++;
            }
            free(want);
            tr_st_close(file);
        }
        tr_hf_close(hf);
    }
    assert_int_equal(n_held, 6 + 2); /* 4 bit but for blocks of 32; 8-bit floats whose rows are multiples of 128 */
}

/* ---- bad input ---- */

struct plane {
    const char *name;
    enum tr_dtype dtype;
    int64_t n;
    const void *data; /* NULL: zeros */
};

static const char *const nf4_config = "{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":"
                                      "\"bitsandbytes\",\"load_in_4bit\":true}}";

static void put_model(const char *dir, const char *config, const struct plane *planes, size_t n)
{
    struct tr_st_entry entries[8] = { 0 };
    struct tr_st_writer *w;
    struct tr_pump *pump;
    static const char zeros[4096];
    uint64_t n_bytes;
    struct tr_hash128 hash;
    for (size_t i = 0; i < n; i++)
        entries[i] = (struct tr_st_entry){ planes[i].name, planes[i].dtype, 1, { planes[i].n } };
    assert_ok(tr_pump_open(NULL, &pump));
    assert_ok(tr_st_writer_prepare(entries, n, NULL, 0, &w));
    (void)unlink(in_dir(dir, "model.safetensors"));
    assert_ok(tr_st_writer_begin(w, pump, dir, "model.safetensors"));
    for (size_t i = 0; i < n; i++)
        assert_ok(tr_st_writer_add(w, planes[i].data ? planes[i].data : zeros, planes[i].dtype, (size_t)planes[i].n));
    assert_ok(tr_st_writer_finish(w, &n_bytes, &hash));
    tr_st_writer_close(w);
    tr_pump_close(pump);
    put_file(in_dir(dir, "config.json"), config, strlen(config));
}

#define GOOD "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[4,32]"

static void refuse_nf4(const char *dir, const char *state, int64_t n_codes, int64_t n_absmax, const char *text)
{
    const struct plane planes[] = {
        { "m.weight.absmax", TR_F32, n_absmax, NULL },
        { "m.weight", TR_U8, n_codes, NULL },
        { "m.weight.quant_state.bitsandbytes__nf4", TR_U8, (int64_t)strlen(state), state },
    };
    struct tr_hf *hf = NULL;
    put_model(dir, nf4_config, planes, TR_COUNT_OF(planes));
    if (!text) {
        assert_ok(tr_hf_open(dir, &hf));
        tr_hf_close(hf);
        return;
    }
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, text);
    assert_non_null(strstr(tr_error_text(), "m.weight"));
    assert_null(strchr(tr_error_text(), '\n'));
}

static void a_quant_state_that_lies_is_refused(void **state)
{
    const char *dir = *state;
    refuse_nf4(dir, GOOD "}", 64, 2, NULL);
    refuse_nf4(dir, GOOD "}", 63, 2, "its codes have 63 bytes");
    refuse_nf4(dir, GOOD "}", 64, 3, "its absmax has 3 elements");
    refuse_nf4(dir, GOOD ",\"nested_offset\":0.5,\"nested_blocksize\":256}", 64, 2, "its absmax has 2 elements of F32");
    refuse_nf4(dir, GOOD ",\"nested_offset\":0.5,\"nested_blocksize\":0}", 64, 2, "nested_blocksize");
    refuse_nf4(dir, GOOD ",\"nested_offset\":1e300,\"nested_blocksize\":256}", 64, 2, "nested_offset");
    refuse_nf4(dir, "{}", 64, 2, "quant_type");
    refuse_nf4(dir, "[]", 64, 2, "not an object");
    refuse_nf4(dir, "{\"quant_type\":\"fp4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[4,32]}", 64, 2,
               "says fp4");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":0,\"dtype\":\"bfloat16\",\"shape\":[4,32]}", 64, 2,
               "blocksize 0");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"int8\",\"shape\":[4,32]}", 64, 2, "dtype");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[-4,32]}", 64, 2,
               "shape");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[1e12,1e12]}", 64, 2,
               "shape");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":null}", 64, 2, "shape");
    refuse_nf4(dir, "{\"quant_type\":\"nf4\",\"blocksize\":64", 64, 2, "quant_state");
}

static void planes_that_are_missing_or_not_finite_are_refused(void **state)
{
    const char *dir = *state, *good = GOOD "}";
    int64_t n = (int64_t)strlen(good);
    const float absmax[2] = { 1, NAN }, map[16] = { 0.5f };
    struct tr_hf *hf = NULL;
    float x[128];
    const struct plane no_absmax[] = { { "m.weight", TR_U8, 64, NULL },
                                       { "m.weight.quant_state.bitsandbytes__nf4", TR_U8, n, good } };
    put_model(dir, nf4_config, no_absmax, 2);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "ends in .absmax is missing");
    const struct plane nan_absmax[] = { { "m.weight.absmax", TR_F32, 2, absmax },
                                        { "m.weight", TR_U8, 64, NULL },
                                        { "m.weight.quant_state.bitsandbytes__nf4", TR_U8, n, good } };
    put_model(dir, nf4_config, nan_absmax, 3);
    assert_ok(tr_hf_open(dir, &hf));
    assert_ok(tr_hf_read(hf, 0, 0, 64, x, TR_F32));
    assert_fails_with(tr_hf_read(hf, 0, 0, 128, x, TR_F32), TR_USAGE, "absmax 1 is not finite");
    tr_hf_close(hf);
    const struct plane other_map[] = { { "m.weight.absmax", TR_F32, 2, NULL },
                                       { "m.weight.quant_map", TR_F32, 16, map },
                                       { "m.weight", TR_U8, 64, NULL },
                                       { "m.weight.quant_state.bitsandbytes__nf4", TR_U8, n, good } };
    put_model(dir, nf4_config, other_map, 4);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "quant_map");
}

/* The file of a case with tensor k left out, shorter by one along a dim, or (dim -2) full of 0xff. */
static void put_mutant(const char *dir, const struct tr_st *f, size_t k, int dim)
{
    struct tr_st_entry entries[8] = { 0 };
    struct tr_st_writer *w;
    struct tr_pump *pump;
    uint64_t n_bytes, n_elems;
    struct tr_hash128 hash;
    size_t n = 0, of[8];
    for (size_t i = 0; i < tr_st_count(f); i++) {
        const struct tr_st_tensor *t = tr_st_tensor(f, i);
        if (i == k && dim == -1)
            continue;
        entries[n] = (struct tr_st_entry){ t->name, t->dtype, t->n_dims, { 0 } };
        memcpy(entries[n].dims, t->dims, sizeof t->dims);
        if (i == k && dim >= 0)
            entries[n].dims[dim]--;
        of[n++] = i;
    }
    for (size_t a = 1; a < n; a++) /* a shorter tensor must not leave the next one unaligned: wider dtypes first */
        for (size_t b = a; b > 0 && tr_dtype_bytes(entries[b].dtype) > tr_dtype_bytes(entries[b - 1].dtype); b--) {
            struct tr_st_entry e = entries[b];
            size_t o = of[b];
            entries[b] = entries[b - 1];
            entries[b - 1] = e;
            of[b] = of[b - 1];
            of[b - 1] = o;
        }
    assert_ok(tr_pump_open(NULL, &pump));
    assert_ok(tr_st_writer_prepare(entries, n, NULL, 0, &w));
    (void)unlink(in_dir(dir, "model.safetensors"));
    assert_ok(tr_st_writer_begin(w, pump, dir, "model.safetensors"));
    for (size_t i = 0; i < n; i++) {
        assert_ok(tr_st_entry_size(&entries[i], &n_elems, &n_bytes));
        char *p = malloc(n_bytes + 1);
        assert_ok(tr_st_read_bytes(f, of[i], 0, n_bytes, p));
        if (of[i] == k && dim == -2)
            memset(p, 0xff, n_bytes);
        assert_ok(tr_st_writer_add(w, p, entries[i].dtype, n_elems));
        free(p);
    }
    assert_ok(tr_st_writer_finish(w, &n_bytes, &hash));
    tr_st_writer_close(w);
    tr_pump_close(pump);
}

/* Every plane of every case, missing, too short, or garbage: an error of one line when it is opened or read, or (planes
 * that a format does not need, garbage that means something) a directory that can be read to its end. */
static void mutants_are_refused_or_read_to_their_end(void **state)
{
    int n_refused = 0, n_read = 0;
    for (size_t c = 0; c < TR_COUNT_OF(cases); c++) {
        char path[TR_PATH_MAX], *text;
        size_t n;
        struct tr_st *f;
        snprintf(path, sizeof path, GOLDEN "/%s/config.json", cases[c]);
        assert_ok(tr_file_read(path, 1 << 20, &text, &n));
        put_file(in_dir(*state, "config.json"), text, n);
        free(text);
        snprintf(path, sizeof path, GOLDEN "/%s/model.safetensors", cases[c]);
        assert_ok(tr_st_open(path, &f));
        for (size_t k = 0; k < tr_st_count(f); k++)
            for (int dim = -2; dim < tr_st_tensor(f, k)->n_dims; dim++) {
                struct tr_hf *hf = NULL;
                put_mutant(*state, f, k, dim);
                enum tr_status st = tr_hf_open(*state, &hf);
                for (size_t i = 0; st == TR_OK && i < tr_hf_count(hf); i++) {
                    float *x = malloc(tr_hf_tensor(hf, i)->n_elems * sizeof *x + 1);
                    st = tr_hf_read(hf, i, 0, tr_hf_tensor(hf, i)->n_elems, x, TR_F32);
                    free(x);
                }
                n_refused += st != TR_OK;
                n_read += st == TR_OK;
                if (st != TR_OK)
                    assert_true(st == TR_USAGE && !strchr(tr_error_text(), '\n'));
                tr_hf_close(hf);
            }
        tr_st_close(f);
    }
    assert_true(n_refused > 100 && n_read > 20);
}

static void methods_that_are_not_read_say_so(void **state)
{
    const char *dir = *state;
    const struct plane plain[] = { { "m.weight", TR_F32, 4, NULL } };
    struct tr_hf *hf = NULL;
    put_model(dir, "{\"quantization_config\":{\"quant_method\":\"hqq\"}}", plain, 1);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "\"hqq\" is not one of bitsandbytes, fp8");
    put_model(dir, "{\"quantization_config\":{\"quant_method\":\"awq\",\"version\":\"gemv\"}}", plain, 1);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "only gemm");
    put_model(dir, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}}",
              plain, 1);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "marlin-24");
    put_model(dir, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}}", plain, 1);
    assert_fails_with(tr_hf_open(dir, &hf), TR_USAGE, "weight_block_size");
    put_model(dir, "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", plain, 1); /* nothing is quantised: plain */
    assert_ok(tr_hf_open(dir, &hf));
    assert_int_equal(tr_hf_count(hf), 1);
    tr_hf_close(hf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_of_the_python_libraries),
        cmocka_unit_test_setup_teardown(a_quant_state_that_lies_is_refused, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(planes_that_are_missing_or_not_finite_are_refused, tmpdir_setup,
                                        tmpdir_teardown),
        cmocka_unit_test_setup_teardown(mutants_are_refused_or_read_to_their_end, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(methods_that_are_not_read_say_so, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
