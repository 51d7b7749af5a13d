/* test_load_packed.c - weights on their way into grains: the codes of a file without loss, floats packed as the codec
 * says, scales through double quantisation; on ranks that want only some of them. */
#include "ckpt/load_impl.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>

#define QUANT TR_SOURCE_DIR "/tests/golden/quant/"

struct catcher {
    char *grains;
    size_t grain_bytes;
    int64_t first, end; /* grains that this rank wants */
};

static enum tr_status catch_put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    struct catcher *c = ctx;
    assert_int_equal(what, TR_S_VALUE);
    assert_int_equal(param, 0);
    memcpy(c->grains + (size_t)first * c->grain_bytes, src, (size_t)n * c->grain_bytes);
    return TR_OK;
}

static bool catch_wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    const struct catcher *c = ctx;
    (void)what;
    (void)param;
    return first < c->end && first + n > c->first;
}

struct rig {
    struct tr_hf *hf;
    size_t at;
    struct tr_param param;
    struct tr_model model;
    uint8_t packed;
    struct catcher catcher;
    struct tr_store store;
    float *buf;
};

static void open_rig(struct rig *r, const char *dir, const char *file, size_t at, enum tr_packed packed, bool nests)
{
    memset(r, 0, sizeof *r);
    assert_int_equal(file ? tr_hf_open_file(dir, file, NULL, &r->hf) : tr_hf_open(dir, &r->hf), TR_OK);
    r->at = at;
    r->param.n = (int64_t)tr_hf_tensor(r->hf, at)->n_elems;
    (void)tr_format(r->param.name, sizeof r->param.name, "%s", tr_hf_tensor(r->hf, at)->name);
    r->model = (struct tr_model){ .param = &r->param, .n_params = 1 };
    r->packed = (uint8_t)packed;
    r->catcher = (struct catcher){ .grains = calloc(1, tr_packed_bytes(packed, r->param.n)),
                                   .grain_bytes = tr_packed_grain_bytes(packed),
                                   .end = INT64_MAX };
    r->store = (struct tr_store){ .ctx = &r->catcher,
                                  .model = &r->model,
                                  .packed_of = &r->packed,
                                  .nests_scales = nests,
                                  .put = catch_put,
                                  .wants = catch_wants };
    r->buf = malloc(TR_IO_CHUNK * sizeof *r->buf);
    assert_true(r->catcher.grains && r->buf);
}

static void close_rig(struct rig *r)
{
    tr_hf_close(r->hf);
    free(r->catcher.grains);
    free(r->buf);
}

static float *floats_of(const struct rig *r)
{
    float *x = malloc((size_t)r->param.n * sizeof *x);
    assert_non_null(x);
    assert_int_equal(tr_hf_read(r->hf, r->at, 0, (size_t)r->param.n, x, TR_F32), TR_OK);
    return x;
}

static enum tr_packed format_of(const struct tr_storage_format *f)
{
    for (int p = TR_NOT_PACKED + 1; p < TR_PACKED_COUNT; p++)
        if (f && f == tr_packed_format((enum tr_packed)p))
            return (enum tr_packed)p;
    return TR_NOT_PACKED;
}

/* Every 4-bit weight that bitsandbytes wrote decodes from its grains to what the reader of files makes of it. */
static void codes_of_a_file_are_kept(void **state)
{
    static const char *const dirs[] = { QUANT "nf4_double", QUANT "nf4_odd", QUANT "nf4_storage", QUANT "fp8_blocks" };
    int n_seen = 0;
    (void)state;
    for (size_t d = 0; d < TR_COUNT_OF(dirs); d++) {
        struct tr_hf *hf = NULL;
        assert_int_equal(tr_hf_open(dirs[d], &hf), TR_OK);
        for (size_t i = 0; i < tr_hf_count(hf); i++) {
            enum tr_packed packed = format_of(tr_hf_storage(hf, i));
            struct rig r;
            if (!packed)
                continue;
            open_rig(&r, dirs[d], NULL, i, packed, false);
            float *want = floats_of(&r), *got = malloc((size_t)r.param.n * sizeof *got);
            assert_non_null(got);
            assert_int_equal(tr_load_packed(&r.store, r.hf, i, 0, r.buf), TR_OK);
            /* the values of a file are those of its dtype */
            enum tr_dtype dtype = tr_hf_tensor(r.hf, i)->dtype;
            void *rounded = malloc((size_t)r.param.n * sizeof(float));
            assert_non_null(rounded);
            tr_packed_decode(packed, r.catcher.grains, 0, r.param.n, rounded, dtype);
            tr_convert(rounded, dtype, got, TR_F32, (size_t)r.param.n);
            assert_memory_equal(got, want, (size_t)r.param.n * sizeof *got);
            free(rounded);
            free(want);
            free(got);
            close_rig(&r);
            n_seen++;
        }
        tr_hf_close(hf);
    }
    assert_true(n_seen >= 3);
}

static void floats_are_packed_as_the_codec_says(void **state)
{
    (void)state;
    for (int nests = 0; nests < 2; nests++)
        for (int p = TR_NOT_PACKED + 1; p < TR_PACKED_COUNT; p++) {
            enum tr_packed packed = (enum tr_packed)p;
            struct rig r;
            open_rig(&r, QUANT "nf4_double", "expected.safetensors", 0, packed, nests);
            float *x = floats_of(&r);
            size_t bytes = tr_packed_bytes(packed, r.param.n);
            int64_t n_grains = (int64_t)(bytes / r.catcher.grain_bytes);
            char *want = malloc(bytes);
            assert_non_null(want);
            tr_packed_encode(packed, x, r.param.n, want);
            if (nests && tr_packed_is_q4(packed)) {
                float *scales = malloc((size_t)n_grains * 2 * sizeof *scales), map[256], offset = 0;
                uint8_t *codes = malloc((size_t)n_grains);
                assert_true(scales && codes);
                tr_packed_get_scales(packed, want, n_grains, scales);
                tr_q4_nest(scales, n_grains, codes, scales + n_grains, &offset);
                tr_dynamic_map(true, map);
                tr_q4_unnest(map, codes, scales + n_grains, offset, 0, n_grains, scales);
                tr_packed_set_scales(packed, want, n_grains, scales);
                free(scales);
                free(codes);
            }
            assert_int_equal(tr_load_packed(&r.store, r.hf, 0, 0, r.buf), TR_OK);
            assert_memory_equal(r.catcher.grains, want, bytes);
            free(want);
            free(x);
            close_rig(&r);
        }
}

/* The grains of a matrix (in, out) are those of its transpose: packed from floats, and as bitsandbytes wrote them. */
static void a_matrix_in_out_is_packed_transposed(void **state)
{
    enum { IN = 24, OUT = 72, N = IN * OUT };
    struct tr_local_param local = { .n_dims = 2, .out_dim = 1 };
    struct tr_program program = { .param = &local, .n_params = 1 }, *programs[] = { &program };
    int param = 0;
    struct tr_segment segment = { .param = &param };
    float turned[N], got[N];
    uint16_t rounded[N];
    char want[N];
    (void)state;
    for (int has_codes = 0; has_codes < 2; has_codes++) {
        size_t at = 0;
        struct tr_hf *hf = NULL;
        struct rig r;
        const char *file = has_codes ? NULL : "expected.safetensors";
        assert_int_equal(file ? tr_hf_open_file(QUANT "gpt2_swapped", file, NULL, &hf)
                              : tr_hf_open(QUANT "gpt2_swapped", &hf),
                         TR_OK);
        assert_true(tr_hf_find(hf, "h.0.attn.c_attn.weight", &at));
        tr_hf_close(hf);
        open_rig(&r, QUANT "gpt2_swapped", file, at, TR_PACKED_NF4, false);
        assert_int_equal(r.param.n, N);
        r.param.rows = IN, r.param.cols = OUT;
        r.model.program = programs, r.model.n_programs = 1, r.model.segment = &segment, r.model.n_segments = 1;
        float *x = floats_of(&r);
        for (int i = 0; i < N; i++)
            turned[i % OUT * IN + i / OUT] = x[i];
        assert_int_equal(tr_load_packed(&r.store, r.hf, at, 0, r.buf), TR_OK);
        if (has_codes) {
            tr_packed_decode(TR_PACKED_NF4, r.catcher.grains, 0, N, rounded, TR_BF16);
            tr_convert(rounded, TR_BF16, got, TR_F32, N);
            assert_memory_equal(got, turned, sizeof got);
        } else {
            tr_packed_encode(TR_PACKED_NF4, turned, N, want);
            assert_memory_equal(r.catcher.grains, want, tr_packed_bytes(TR_PACKED_NF4, N));
        }
        free(x);
        close_rig(&r);
    }
}

static void a_rank_reads_only_what_it_wants(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, QUANT "nf4_double", NULL, 0, TR_PACKED_NF4, true);
    r.catcher.end = 0;
    assert_int_equal(tr_load_packed(&r.store, r.hf, 0, 0, r.buf), TR_OK);
    for (size_t i = 0; i < tr_packed_bytes(TR_PACKED_NF4, r.param.n); i++)
        assert_int_equal(r.catcher.grains[i], 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_a_file_are_kept),
        cmocka_unit_test(floats_are_packed_as_the_codec_says),
        cmocka_unit_test(a_matrix_in_out_is_packed_transposed),
        cmocka_unit_test(a_rank_reads_only_what_it_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
