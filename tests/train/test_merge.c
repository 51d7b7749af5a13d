/* test_merge.c - an adapter merged into its base gives the logits that PEFT computes with the adapter beside the base,
 * for every case in tests/golden/adapters; what has no place in a plain model is refused with the way out. */
#include "golden_bounds.h"

enum { MIN_ADAPTERS = 24 };

/* The logits of the first row, of a plain model with merged weights. */
static void compare(struct tr_merge *x, const char *base, const char *dir, const char *name)
{
    struct rig r;
    struct rig_shape shape = { .n_micro = 1, .n_threads = 1, .recompute = TR_RECOMPUTE_NONE };
    struct golden g = { 0 };
    char path[TR_PATH_MAX];
    int64_t n = 0;
    const float *logits = NULL;
    rig_open(&r, base, shape);
    struct tr_store to = tr_exec_store(r.exec), from = tr_merge_store(x, TR_ONTO_ORIGINAL);
    must(tr_load_store(&to, &from, (float *)(void *)tr_exec_arena(r.exec, TR_A_SAVE)));
    must(tr_exec_logits(r.exec, TR_FOR_EVAL, 0, &r.whole, &logits));
    must(tr_path_join(path, dir, "golden.safetensors"));
    must(tr_st_open(path, &g.st));
    double *want = golden_read(&g, "logits", TR_F64, &n), scale = max_abs(want, n), cap = r.model->hp.final_softcap;
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    for (int64_t i = 0; i < n; i++)
        got[i] = cap > 0 ? (float)(cap * tanh((double)logits[i] / cap)) : logits[i];
    double error = max_diff(got, want, n) / scale, limit = bound(&r, 1);
    printf("%-30s logits %.1e of %.1e\n", name, error, limit);
    if (!(error <= limit))
        fail_msg("%s: logits of the merged model are off by %.3g, allowed %.3g", name, error, limit);
    tr_st_close(g.st);
    free(want);
    free(got);
    rig_close(&r);
}

static void merge_one(const char *base, const char *dir, const char *name, size_t *n_merged)
{
    struct tr_merge_options opt = { .adapter = dir, .base = base };
    struct tr_merge *x = NULL;
    enum tr_status st = tr_merge_open(&opt, &x);
    if (st == TR_OK) {
        compare(x, base, dir, name);
        ++*n_merged;
    } else if (strstr(tr_error_text(), "would untie")) { /* a tied model's embedding */
        opt.unties = true;
        must(tr_merge_open(&opt, &x));
        assert_false(tr_merge_model(x)->hp.is_tied);
    } else if (!strstr(tr_error_text(), "lora_bias") &&                           /* B's bias on a layer without one */
               !strstr(tr_error_text(), "belongs to a base without its start")) { /* PiSSA, OLoRA: unlike the base */
        fail_msg("%s: %s", name, tr_error_text());
    }
    tr_merge_close(x);
}

static void merged_logits_are_those_of_peft(void **state)
{
    glob_t found;
    size_t n_merged = 0;
    (void)state;
    assert_int_equal(glob(TR_SOURCE_DIR "/tests/golden/adapters/*/golden.safetensors", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= MIN_ADAPTERS);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char base[TR_PATH_MAX], *dir = found.gl_pathv[i];
        *strrchr(dir, '/') = 0;
        const char *name = strrchr(dir, '/') + 1;
        must(tr_format(base, sizeof base, TR_SOURCE_DIR "/tests/golden/%.*s", (int)(strrchr(name, '-') - name), name));
        merge_one(base, dir, name, &n_merged);
    }
    assert_true(n_merged >= found.gl_pathc / 2);
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(merged_logits_are_those_of_peft) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
