/* test_adapter.c - the directory of an adapter: PEFT's keys, what is in the file and what is not, the way back,
 * refusals that name everything at once, and the identity of the base. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt/ckpt.h"

static const char config[] = "{\"model_type\":\"llama\",\"vocab_size\":11,\"hidden_size\":8,\"intermediate_size\":12,"
                             "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
                             "\"max_position_embeddings\":16,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

struct rig {
    struct tr_model *m;
    struct tr_memory *x;
    struct tr_store store;
    char dir[64];
    float *buf;
};

static void must(enum tr_status st)
{
    if (st != TR_OK)
        fail_msg("%s", tr_error_text());
}

static int param(const struct tr_model *m, const char *name)
{
    for (int i = 0; i < m->n_params; i++)
        if (strcmp(m->param[i].name, name) == 0)
            return i;
    fail_msg("no parameter %s", name);
    return -1;
}

static void add(struct tr_model *m, const char *name, int n_dims, int64_t rows, int64_t cols)
{
    m->param = realloc(m->param, ((size_t)m->n_params + 1) * sizeof *m->param);
    assert_non_null(m->param);
    struct tr_param *p = &m->param[m->n_params++];
    *p = (struct tr_param){ .n_dims = n_dims, .dim = { rows, cols }, .rows = rows, .cols = cols, .n = rows * cols };
    if (n_dims == 1)
        *p = (struct tr_param){ .n_dims = 1, .dim = { cols, 0 }, .rows = 1, .cols = cols, .n = cols };
    p->in_adapter = true;
    must(tr_format(p->name, sizeof p->name, "%s", name));
}

/* A linear with DoRA, the embedding as a target, the last norm saved whole. The rewrite of the model is the adapter
 * room's; here only parameters matter. */
static void open_rig(struct rig *r)
{
    cJSON *json = NULL;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 8 };
    struct tr_states states;
    *r = (struct rig){ .dir = "/tmp/trireme-adapter-XXXXXX" };
    assert_non_null(mkdtemp(r->dir));
    must(tr_json_parse(config, strlen(config), "model", &json));
    must(tr_model_from_json(json, &opt, &r->m));
    add(r->m, "model.layers.0.self_attn.q_proj.lora_A.weight", 2, 2, 8);
    add(r->m, "model.layers.0.self_attn.q_proj.lora_B.weight", 2, 8, 2);
    add(r->m, "model.layers.0.self_attn.q_proj.lora_magnitude_vector", 1, 1, 8);
    add(r->m, "model.embed_tokens.lora_embedding_A", 2, 2, 11);
    add(r->m, "model.embed_tokens.lora_embedding_B", 2, 8, 2);
    r->m->param[param(r->m, "model.norm.weight")].in_adapter = true;
    must(tr_optim_states(NULL, &states));
    must(tr_memory_open(r->m, &states, &r->x, &r->store));
    r->buf = malloc(TR_IO_CHUNK * sizeof *r->buf);
    assert_non_null(r->buf);
    for (int i = 0; i < r->m->n_params; i++)
        for (int64_t k = 0; k < r->m->param[i].n && tr_adapter_saves(r->m, i); k++) {
            float v = (float)i + (float)k / 64;
            must(r->store.put(r->store.ctx, TR_S_VALUE, i, k, 1, &v));
        }
}

static void close_rig(struct rig *r)
{
    must(tr_remove_tree(r->dir));
    tr_memory_close(r->x);
    tr_model_close(r->m);
    free(r->buf);
}

static void save(struct rig *r)
{
    const struct tr_save_text text[] = { { TR_ADAPTER_BASE, "{\"samples_hash\": \"0\"}\n" },
                                         { TR_ADAPTER_CONFIG, "{\"r\": 2}\n" } };
    struct tr_saver_options opt = { .dtype = TR_F32, .text = text, .n_texts = TR_COUNT_OF(text) };
    struct tr_saver *sv = NULL;
    must(tr_saver_open(&r->store, &opt, &sv));
    must(tr_saver_model(sv, r->dir));
    tr_saver_close(sv);
}

static bool has(const struct rig *r, const char *name)
{
    char path[TR_PATH_MAX];
    must(tr_path_join(path, r->dir, name));
    return tr_file_exists(path);
}

static void a_directory_is_what_peft_writes(void **state)
{
    static const char *const want[] = {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.embed_tokens.lora_embedding_B",
        "base_model.model.model.embed_tokens.base_layer.weight", /* the matrix under an adapted embedding */
        "base_model.model.model.norm.weight",                    /* modules_to_save */
    };
    struct rig r;
    struct tr_st *f = NULL;
    char path[TR_PATH_MAX];
    (void)state;
    open_rig(&r);
    save(&r);
    assert_true(has(&r, TR_ADAPTER_CONFIG) && has(&r, TR_ADAPTER_BASE) && !has(&r, "config.json"));
    assert_true(tr_dir_has(r.dir, TR_ADAPTER_CONFIG) && !has(&r, "model.safetensors"));
    must(tr_path_join(path, r.dir, TR_ADAPTER_WEIGHTS));
    must(tr_st_open(path, &f));
    assert_int_equal(tr_st_count(f), TR_COUNT_OF(want));
    assert_string_equal(tr_st_metadata(f, "format"), "pt");
    for (size_t i = 0, at; i < TR_COUNT_OF(want); i++)
        if (!tr_st_find(f, want[i], &at))
            fail_msg("%s is missing", want[i]);
    tr_st_close(f);
    close_rig(&r);
}

static void what_is_saved_is_loaded(void **state)
{
    struct rig r, back;
    (void)state;
    open_rig(&r);
    open_rig(&back);
    save(&r);
    for (int i = 0; i < back.m->n_params; i++)
        for (int64_t k = 0; k < back.m->param[i].n && tr_adapter_saves(back.m, i); k++)
            must(back.store.put(back.store.ctx, TR_S_VALUE, i, k, 1, &(float){ 0 }));
    must(tr_load_adapter(&back.store, NULL, r.dir, back.buf));
    for (int i = 0; i < r.m->n_params; i++) {
        const void *a = NULL, *b = NULL;
        if (!tr_adapter_saves(r.m, i))
            continue;
        must(r.store.get(r.store.ctx, TR_S_VALUE, i, 0, r.m->param[i].n, &a));
        must(back.store.get(back.store.ctx, TR_S_VALUE, i, 0, r.m->param[i].n, &b));
        assert_memory_equal(a, b, (size_t)r.m->param[i].n * sizeof(float));
    }
    close_rig(&r);
    close_rig(&back);
}

static void expect(struct rig *r, const char *text)
{
    assert_int_equal(tr_load_adapter(&r->store, NULL, r->dir, r->buf), TR_USAGE);
    if (!strstr(tr_error_text(), text))
        fail_msg("\"%s\" does not say \"%s\"", tr_error_text(), text);
}

static void write_file(struct rig *r, const struct tr_st_entry *e, size_t n, float step)
{
    char path[TR_PATH_MAX];
    float x[88] = { 1 };
    struct tr_st_writer *w = NULL;
    struct tr_pump *pump = NULL;
    struct tr_hash128 hash;
    uint64_t bytes = 0;
    must(tr_path_join(path, r->dir, TR_ADAPTER_WEIGHTS));
    (void)unlink(path);
    must(tr_st_writer_prepare(e, n, NULL, 0, &w));
    must(tr_pump_open(NULL, &pump));
    must(tr_st_writer_begin(w, pump, r->dir, TR_ADAPTER_WEIGHTS));
    for (size_t i = 0; i < n; i++, x[0] += step)
        must(tr_st_writer_add(w, x, TR_F32, (size_t)(e[i].dims[0] * (e[i].n_dims > 1 ? e[i].dims[1] : 1))));
    must(tr_st_writer_finish(w, &bytes, &hash));
    tr_st_writer_close(w);
    tr_pump_close(pump);
}

/* PEFT saves some tensors more than once: with bias "all" or save_embedding_layers those of modules_to_save, and with
 * the latter the table of a tied model as the head. */
static void copies_in_the_file_are_left_alone(void **state)
{
#define BASE "base_model.model."
#define ATTN BASE "model.layers.0.self_attn."
    const struct tr_st_entry e[] = {
        { ATTN "o_proj.bias", TR_F32, 1, { 8 } },
        { ATTN "o_proj.modules_to_save.bias", TR_F32, 1, { 8 } },
        { ATTN "o_proj.original_module.bias", TR_F32, 1, { 8 } },
        { BASE "model.embed_tokens.weight", TR_F32, 2, { 11, 8 } },
        { BASE "model.embed_tokens.original_module.weight", TR_F32, 2, { 11, 8 } },
        { BASE "lm_head.weight", TR_F32, 2, { 11, 8 } },
        { BASE "model.layers.0.mlp.up_proj.bias", TR_F32, 1, { 8 } },
        { BASE "model.layers.0.mlp.modules_to_save.default.up_proj.bias", TR_F32, 1, { 8 } },
        { ATTN "k_proj.modules_to_save.bias", TR_F32, 1, { 8 } }, /* a copy of nothing */
    };
#undef ATTN
#undef BASE
    struct rig r;
    (void)state;
    open_rig(&r);
    for (int i = 0; i < r.m->n_params; i++)
        r.m->param[i].in_adapter = false;
    for (int i = r.m->n_params; i-- > 0;) /* the table is no target here */
        if (strstr(r.m->param[i].name, ".lora_") || strcmp(r.m->param[i].name, "lm_head.weight") == 0)
            must(tr_format(r.m->param[i].name, TR_NAME_MAX, "other.%d.weight", i));
    r.m->hp.is_tied = true;
    add(r.m, "model.layers.0.self_attn.o_proj.bias", 1, 1, 8);
    add(r.m, "model.layers.0.mlp.up_proj.bias", 1, 1, 8);
    write_file(&r, e, 8, 0);
    must(tr_check_adapter(r.m, r.dir));
    write_file(&r, e, 9, 0);
    assert_int_equal(tr_check_adapter(r.m, r.dir), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "0 missing, 1 extra"));
    assert_non_null(strstr(tr_error_text(), "k_proj.modules_to_save.bias"));
    write_file(&r, e, 8, 1); /* the head is another matrix than the table */
    must(tr_check_adapter(r.m, r.dir));
    assert_int_equal(tr_load_adapter(&r.store, NULL, r.dir, r.buf), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "lm_head.weight is another matrix than model.embed_tokens.weight"));
    close_rig(&r);
}

static void refusals_name_every_tensor(void **state)
{
    struct rig r;
    char from[TR_PATH_MAX], to[TR_PATH_MAX];
    (void)state;
    open_rig(&r);
    save(&r);
    /* the model that adapter_config.json describes is another one: rank 3, no DoRA, v_proj instead of the norm */
    r.m->param[param(r.m, "model.layers.0.self_attn.q_proj.lora_A.weight")].dim[0] = 3;
    must(tr_format(r.m->param[param(r.m, "model.layers.0.self_attn.q_proj.lora_magnitude_vector")].name, TR_NAME_MAX,
                   "model.layers.0.self_attn.v_proj.lora_A.weight"));
    expect(&r, "1 missing, 1 extra, 1 of wrong shape");
    expect(&r, "missing: base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight");
    expect(&r, "extra: base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector");
    expect(&r, "lora_A.weight is F32 [2, 8], wanted F32 [3, 8]");
    /* a pickle is named, never opened */
    must(tr_path_join(from, r.dir, TR_ADAPTER_WEIGHTS));
    must(tr_path_join(to, r.dir, "adapter_model.bin"));
    assert_int_equal(rename(from, to), 0);
    expect(&r, "PeftModel.from_pretrained(base, dir).save_pretrained(out)");
    assert_int_equal(unlink(to), 0);
    expect(&r, "has adapter_config.json but no adapter_model.safetensors");
    close_rig(&r);
}

/* ---- identity ---- */

static void write_base(const char *dir, const char *text, float value)
{
    char path[TR_PATH_MAX];
    const struct tr_st_entry e[] = { { "a.weight", TR_F32, 2, { 4, 5 } }, { "b.weight", TR_F32, 1, { 3 } } };
    float x[20] = { value };
    struct tr_st_writer *w = NULL;
    struct tr_pump *pump = NULL;
    struct tr_hash128 hash;
    uint64_t bytes = 0;
    must(tr_path_join(path, dir, "config.json"));
    must(tr_file_write_atomic(path, text, strlen(text)));
    must(tr_path_join(path, dir, "model.safetensors"));
    (void)unlink(path);
    must(tr_st_writer_prepare(e, TR_COUNT_OF(e), NULL, 0, &w));
    must(tr_pump_open(NULL, &pump));
    must(tr_st_writer_begin(w, pump, dir, "model.safetensors"));
    must(tr_st_writer_add(w, x, TR_F32, 20));
    must(tr_st_writer_add(w, x, TR_F32, 3));
    must(tr_st_writer_finish(w, &bytes, &hash));
    tr_st_writer_close(w);
    tr_pump_close(pump);
}

static void another_base_is_refused_by_what_differs(void **state)
{
    char base[64] = "/tmp/trireme-base-XXXXXX", adapter[64] = "/tmp/trireme-adapter-XXXXXX", path[TR_PATH_MAX];
    struct tr_base_id id;
    struct tr_str text = { 0 };
    (void)state;
    assert_true(mkdtemp(base) && mkdtemp(adapter));
    write_base(base, "{\"x\": 1, \"transformers_version\": \"4\"}", 1);
    must(tr_base_id_check(adapter, base)); /* other tools write no identity: any base is taken */
    must(tr_base_id_of(base, &id));
    assert_true(id.n_tensors == 2 && id.n_bytes == 92);
    must(tr_base_id_print(&id, "some/where", "", NULL, &text));
    must(tr_path_join(path, adapter, "trireme"));
    must(tr_mkdirs(path));
    must(tr_path_join(path, adapter, TR_ADAPTER_BASE));
    must(tr_file_write_atomic(path, text.p, text.n));
    must(tr_base_id_check(adapter, base));
    write_base(base, "{\"transformers_version\": \"5\", \"x\": 1}", 1); /* the same model, saved again */
    must(tr_base_id_check(adapter, base));
    write_base(base, "{\"x\": 2}", 1);
    assert_int_equal(tr_base_id_check(adapter, base), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "(other config.json); it was some/where"));
    write_base(base, "{\"x\": 1}", 2);
    assert_int_equal(tr_base_id_check(adapter, base), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "(other weights)"));
    tr_str_release(&text);
    must(tr_remove_tree(base));
    must(tr_remove_tree(adapter));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_directory_is_what_peft_writes),         cmocka_unit_test(what_is_saved_is_loaded),
        cmocka_unit_test(copies_in_the_file_are_left_alone),       cmocka_unit_test(refusals_name_every_tensor),
        cmocka_unit_test(another_base_is_refused_by_what_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
