/* test_load.c - weights are read in pieces by several threads: every element arrives once, as itself and in 16 bits,
 * and of what is wrong the first is named, whichever thread found it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt/ckpt.h"

enum { VOCAB = 50001, WIDTH = 16, N = VOCAB * WIDTH }; /* over a chunk, and no whole number of pieces */

static const char config[] = "{\"model_type\":\"gpt2\",\"vocab_size\":50001,\"n_embd\":16,\"n_layer\":1,\"n_head\":2,"
                             "\"n_positions\":8,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

struct rig {
    struct tr_model *m;
    struct tr_store store;
    char dir[64];
    float *buf, *data, *master;
    uint16_t *value;
    int64_t n_put[TR_STATES_MAX];
};

static void must(enum tr_status st)
{
    if (st != TR_OK)
        fail_msg("%s", tr_error_text());
}

static enum tr_status put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    struct rig *r = ctx;
    if (param != 0)
        return TR_OK;
    if (what == TR_S_MASTER)
        memcpy(r->master + first, src, (size_t)n * sizeof *r->master);
    else
        memcpy(r->value + first, src, (size_t)n * sizeof *r->value);
    r->n_put[what] += n;
    return TR_OK;
}

static bool wants(void *ctx, enum tr_state what, int param, int64_t first, int64_t n)
{
    (void)ctx, (void)what, (void)param, (void)first, (void)n;
    return true;
}

/* The directory with these numbers in the first tensor and zeroes elsewhere; head: one more tensor, lm_head.weight. */
static void write_all(struct rig *r, const float *head)
{
    char path[96];
    struct tr_st_writer *w = NULL;
    struct tr_pump *pump = NULL;
    struct tr_hash128 hash;
    uint64_t bytes = 0;
    struct tr_st_entry e[64] = { { 0 } };
    float *zeroes = calloc(N, sizeof *zeroes);
    assert_non_null(zeroes);
    size_t n = (size_t)r->m->n_params;
    assert_true(n < 64 && r->m->param[0].n == N);
    for (int i = 0; i < r->m->n_params; i++) {
        e[i] = (struct tr_st_entry){ .name = r->m->param[i].name, .dtype = TR_F32, .n_dims = r->m->param[i].n_dims };
        e[i].dims[0] = r->m->param[i].dim[0];
        e[i].dims[1] = r->m->param[i].dim[1];
    }
    e[n] = (struct tr_st_entry){ .name = "lm_head.weight", .dtype = TR_F32, .n_dims = 2, .dims = { VOCAB, WIDTH } };
    must(tr_format(path, sizeof path, "%s/model.safetensors", r->dir));
    (void)unlink(path);
    must(tr_st_writer_prepare(e, n + (head != NULL), NULL, 0, &w));
    must(tr_pump_open(NULL, &pump));
    must(tr_st_writer_begin(w, pump, r->dir, "model.safetensors"));
    for (int i = 0; i < r->m->n_params; i++)
        must(tr_st_writer_add(w, i == 0 ? r->data : zeroes, TR_F32, (size_t)r->m->param[i].n));
    if (head)
        must(tr_st_writer_add(w, head, TR_F32, N));
    must(tr_st_writer_finish(w, &bytes, &hash));
    tr_st_writer_close(w);
    tr_pump_close(pump);
    free(zeroes);
}

static void write_weights(struct rig *r)
{
    write_all(r, NULL);
}

static void open_rig(struct rig *r, int n_threads)
{
    cJSON *json = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8 };
    *r = (struct rig){ .dir = "/tmp/trireme-load-XXXXXX" };
    assert_non_null(mkdtemp(r->dir));
    must(tr_json_parse(config, strlen(config), "model", &json));
    must(tr_model_from_json(json, &opt, &r->m));
    r->store = (struct tr_store){ .ctx = r, .model = r->m, .put = put, .wants = wants };
    tr_states_of(&tr_adamw, &(struct tr_state_dtypes){ TR_BF16, TR_F32, TR_F32, TR_F32 }, &r->store.states);
    must(tr_pool_open(n_threads, &r->store.pool));
    r->buf = malloc(TR_IO_CHUNK * sizeof *r->buf);
    r->data = malloc(N * sizeof *r->data);
    r->master = malloc(N * sizeof *r->master);
    r->value = malloc(N * sizeof *r->value);
    assert_true(r->buf && r->data && r->master && r->value);
    for (int64_t i = 0; i < N; i++)
        r->data[i] = 1.0f + (float)i / N;
}

static void close_rig(struct rig *r)
{
    must(tr_remove_tree(r->dir));
    tr_pool_close(r->store.pool);
    tr_model_close(r->m);
    free(r->buf);
    free(r->data);
    free(r->master);
    free(r->value);
}

static void every_element_arrives_once(void **state)
{
    (void)state;
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        struct rig r;
        open_rig(&r, n_threads);
        write_weights(&r);
        must(tr_load_weights(&r.store, r.dir, r.buf, NULL));
        assert_true(r.n_put[TR_S_VALUE] == N && r.n_put[TR_S_MASTER] == N);
        assert_memory_equal(r.master, r.data, N * sizeof *r.data);
        for (int64_t i = 0; i < N; i++)
            assert_int_equal(r.value[i], tr_bf16_of_f32(r.data[i]));
        close_rig(&r);
    }
}

static void the_first_bad_element_is_named(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, 3);
    r.data[100001] = NAN; /* in two pieces of one chunk */
    r.data[300001] = INFINITY;
    write_weights(&r);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tr_load_weights(&r.store, r.dir, r.buf, NULL), TR_USAGE);
        if (!strstr(tr_error_text(), "non-finite value at element 100001"))
            fail_msg("%s", tr_error_text());
    }
    close_rig(&r);
}

/* Some writers leave a copy of the table in the files of a tied model; another matrix is a head of its own. */
static void a_tied_head_is_a_copy(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, 1);
    float *head = malloc(N * sizeof *head);
    assert_non_null(head);
    memcpy(head, r.data, N * sizeof *head);
    write_all(&r, head);
    must(tr_load_weights(&r.store, r.dir, r.buf, NULL));
    head[N - 1] += 1;
    write_all(&r, head);
    assert_int_equal(tr_load_weights(&r.store, r.dir, r.buf, NULL), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "lm_head.weight is another matrix than transformer.wte.weight"));
    free(head);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives_once),
        cmocka_unit_test(the_first_bad_element_is_named),
        cmocka_unit_test(a_tied_head_is_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
