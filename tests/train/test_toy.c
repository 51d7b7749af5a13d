/* An optimizer that lives in one file outside the program (toy_optim.h) is saved, sharded, resumed, planned and checked
 * as the built-in ones are. Its states are odd on purpose: a byte an element, and a float for 32. */
#include "layout_agree.h"
#include "toy_optim.h"
#include "train/debug.h"

/* Widths that tp 2 cuts on multiples of 32; norms of heads that are shorter than a block. */
static const char model_text[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":70,\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"tie_word_embeddings\":false}";
enum { N_MICRO = 4, HALF = 3 };

static enum tr_optim_kind kind;
static char root[64];

struct job {
    struct layout l;
    int first, end;        /* steps */
    const char *from, *to; /* checkpoints; NULL: random weights */
    bool flips;
};

static struct tr_model *open_toy_model(void)
{
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH, .dropout = 0.1 };
    CHECK_OK(tr_json_parse(model_text, strlen(model_text), "config.json", &j));
    CHECK_OK(tr_model_from_json(j, &mo, &m));
    return m;
}

static struct tr_compile_options toy_options(const struct layout *l, int rank)
{
    struct tr_compile_options opt = options(l);
    opt.optim = tr_optim_row(kind);
    opt.layout = layout_of(l, rank);
    opt.stages_saves = true;
    opt.part_bytes = 256;
    opt.save_dtype = TR_F32;
    return opt;
}

static void path_of(const char *name, char out[TR_PATH_MAX])
{
    CHECK_OK(tr_format(out, TR_PATH_MAX, "%s/%s", root, name));
}

static void save(struct run *r, struct tr_mesh *mesh, const char *name)
{
    struct tr_saver *sv = NULL;
    struct tr_save_result res = { 0 };
    char out[TR_PATH_MAX];
    bool is_started = false, is_done = false;
    struct tr_store store = tr_exec_store(r->e);
    struct tr_saver_options opt = { .mesh = mesh,
                                    .dtype = TR_F32,
                                    .staging = tr_exec_arena(r->e, TR_A_STAGING),
                                    .staging_bytes = r->c->memory.bytes[TR_A_STAGING] };
    path_of(name, out);
    CHECK_OK(tr_saver_open(&store, &opt, &sv));
    struct tr_save_job job = { .output = out, .run_id = "run", .step = 1, .state = "{}", .keep = { 0, 0, -1 } };
    CHECK_OK(tr_saver_start(sv, &job, &is_started));
    CHECK_OK(tr_saver_wait(sv, 60, &is_done, &res));
    CHECK(is_started && is_done && res.status == TR_OK);
    CHECK_OK(tr_compare_checkpoint(
        r->e, tr_format(out, sizeof out, "%s/%s/checkpoint-1", root, name) == TR_OK ? out : "", TR_F32));
    tr_saver_close(sv);
}

static void load(struct run *r, const char *name)
{
    struct tr_store store = tr_exec_store(r->e);
    float *buf = (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE);
    char dir[TR_PATH_MAX];
    if (!name) {
        CHECK_OK(tr_load_random(&store, 3, r->pool, buf));
        return;
    }
    CHECK_OK(tr_format(dir, sizeof dir, "%s/%s/checkpoint-1", root, name));
    CHECK_OK(tr_load_weights(&store, dir, buf, NULL));
    CHECK_OK(tr_load_optim(&store, dir, buf, NULL));
}

/* A byte of the state of one replica changes: the check names the state and the rank. */
static void flip_and_check(struct run *r, const struct tr_mesh *mesh)
{
    struct tr_debug *d = NULL;
    int64_t first = 0, n = 0;
    CHECK_OK(tr_debug_open(r->e, &d));
    CHECK_OK(tr_debug_replicas(d, 1));
    char *at = tr_exec_at(r->e, TR_S_OPTIM, 0, &first, &n);
    if (mesh->rank == 1)
        at[5] = (char)(at[5] ^ 1);
    CHECK(tr_debug_replicas(d, 2) == TR_PEER);
    CHECK(strstr(tr_error_text(), "momentum code of model.embed_tokens.weight on rank 1"));
    tr_debug_close(d);
}

static void run_job(const struct tr_comm_env *env, void *ctx)
{
    const struct job *j = ctx;
    struct run *r = calloc(1, sizeof *r);
    struct tr_mesh *mesh = NULL;
    const struct tr_config cfg = {
        .optim = kind,
        .learning_rate = 0.05,
        .momentum = 0.9,
        .max_grad_norm = 0.5,
        .lr_scheduler_type = TR_LR_CONSTANT,
        .adam_beta1 = 0.9,
        .adam_beta2 = 0.95,
        .adam_epsilon = 1e-8,
    };
    int64_t n_targets = (int64_t)N_MICRO * (N_TOKENS - 2 * ROWS);
    float values[TR_STEP_COUNT];
    struct tr_step_result s;
    CHECK(r);
    struct tr_compile_options opt = toy_options(&j->l, env->rank);
    r->m = open_toy_model();
    CHECK_OK(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &opt, &r->c));
    struct tr_comm_env with_arena = *env;
    with_arena.arena_bytes = tr_exec_shared_bytes(r->c);
    if (env->size > 1)
        CHECK_OK(tr_mesh_open("shm", &with_arena, opt.layout.size, &mesh));
    CHECK_OK(tr_pool_open(1, &r->pool));
    CHECK_OK(tr_device_open("cpu", &r->dev));
    CHECK_OK(tr_exec_open(r->c, &r->dev, r->pool, mesh, 7, &r->e));
    CHECK(r->dev.reserved_bytes == tr_compiled_bytes(r->c));
    load(r, j->from);
    for (int step = j->first; step < j->end; step++) {
        for (int i = 0; i < j->l.n_micro; i++)
            fill(r, i, step, opt.layout.data_rank * j->l.n_micro + i);
        tr_step_values(&cfg, step, 2 * HALF, n_targets, values);
        CHECK_OK(tr_exec_step(r->e, &cfg, r->micro, values, &s));
    }
    CHECK_OK(tr_exec_drain(r->e));
    if (j->to)
        save(r, mesh, j->to);
    if (j->flips)
        flip_and_check(r, mesh);
    close_run(r);
    tr_mesh_close(mesh);
    free(r);
}

static void go(struct layout l, int first, int end, const char *from, const char *to)
{
    struct job j = { .l = l, .first = first, .end = end, .from = from, .to = to };
    fill_ones(&j.l);
    j.l.n_micro = N_MICRO / j.l.dp;
    run_ranks(ranks_of(&j.l), run_job, &j);
}

struct checkpoint {
    struct tr_model *m;
    struct tr_memory *x;
    struct tr_store s;
    struct tr_load_result loaded; /* which states the files have */
};

static void open_checkpoint(struct checkpoint *c, const char *name)
{
    char dir[TR_PATH_MAX];
    struct tr_states states;
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    assert_non_null(buf);
    c->m = open_toy_model();
    assert_int_equal(tr_format(dir, sizeof dir, "%s/%s/checkpoint-1", root, name), TR_OK);
    assert_int_equal(tr_optim_states(dir, &states), TR_OK);
    assert_int_equal(tr_memory_open(c->m, &states, &c->x, &c->s), TR_OK);
    assert_int_equal(tr_load_weights(&c->s, dir, buf, NULL), TR_OK);
    c->loaded.fate_of = calloc((size_t)c->m->n_params, 1);
    assert_int_equal(tr_load_optim(&c->s, dir, buf, &c->loaded), TR_OK);
    c->s.fate_of = c->loaded.fate_of;
    for (int row = 0; row < states.n; row++)
        c->s.states.row[row].fates = c->loaded.fates[row];
    free(buf);
}

/* Bytes that differ in the two checkpoints, and how far the weights are apart. */
static int64_t differing(const char *name_a, const char *name_b, double *off)
{
    struct checkpoint a = { 0 }, b = { 0 };
    int64_t n_differ = 0, n_states = 0;
    open_checkpoint(&a, name_a);
    open_checkpoint(&b, name_b);
    assert_int_equal(a.s.states.n, b.s.states.n);
    *off = 0;
    for (int row = 0; row < a.s.states.n; row++) {
        const struct tr_state_row *r = &a.s.states.row[row];
        n_states += r->is_held;
        for (int p = 0; p < a.m->n_params; p++) {
            int64_t n = tr_state_count(r, a.m->param[p].rows, a.m->param[p].cols);
            const void *x = NULL, *y = NULL;
            assert_int_equal(tr_store_holds(&a.s, (enum tr_state)row, p), tr_store_holds(&b.s, (enum tr_state)row, p));
            if (!tr_store_holds(&a.s, (enum tr_state)row, p))
                continue;
            assert_int_equal(a.s.get(a.s.ctx, (enum tr_state)row, p, 0, n, &x), TR_OK);
            assert_int_equal(b.s.get(b.s.ctx, (enum tr_state)row, p, 0, n, &y), TR_OK);
            for (int64_t i = 0; i < n * (int64_t)tr_dtype_bytes(r->dtype); i++)
                n_differ += ((const char *)x)[i] != ((const char *)y)[i];
            for (int64_t i = 0; row == TR_S_VALUE && i < n; i++)
                *off = fmax(*off, fabs((double)((const float *)x)[i] - (double)((const float *)y)[i]));
        }
    }
    assert_int_equal(n_states, kind == TR_OPTIM_ADAMW8 ? 7 : 3); /* value, code, scale */
    struct checkpoint *const both[] = { &a, &b };
    for (int i = 0; i < 2; i++) {
        free(both[i]->loaded.fate_of);
        tr_memory_close(both[i]->x);
        tr_model_close(both[i]->m);
    }
    return n_differ;
}

static const struct layout exact[] = {
    { .dtype = TR_F32, .in_order = true },
    { .dtype = TR_F32, .in_order = true, .dp = 2 },
    { .dtype = TR_F32, .in_order = true, .dp = 2, .zero = 1 },
    { .dtype = TR_F32, .in_order = true, .dp = 4, .zero = 3 },
    { .dtype = TR_F32, .in_order = true, .pp = 2, .dp = 2, .zero = 1 },
};
static const struct layout near[] = {
    { .dtype = TR_F32, .dp = 2, .zero = 2 },
    { .dtype = TR_F32, .tp = 2 },
    { .dtype = TR_F32, .tp = 2, .dp = 2, .zero = 3 },
};

static void a_run_stopped_and_resumed_in_another_layout_keeps_every_bit(void **state)
{
    double off = 0;
    char half[32], whole[32];
    (void)state;
    go(exact[0], 0, 2 * HALF, NULL, "whole");
    for (size_t a = 0; a < TR_COUNT_OF(exact); a++) {
        (void)snprintf(half, sizeof half, "half-%zu", a);
        go(exact[a], 0, HALF, NULL, half);
        for (size_t b = 0; b < TR_COUNT_OF(exact); b++) {
            (void)snprintf(whole, sizeof whole, "whole-%zu-%zu", a, b);
            go(exact[b], HALF, 2 * HALF, half, whole);
            assert_int_equal(differing("whole", whole, &off), 0);
        }
    }
}

static void other_layouts_load_the_same_bytes_and_end_near(void **state)
{
    double off = 0;
    char name[32];
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(near); i++) {
        (void)snprintf(name, sizeof name, "moved-%zu", i);
        go(near[i], 0, 0, "half-3", name); /* loaded and saved */
        assert_int_equal(differing("half-3", name, &off), 0);
        (void)snprintf(name, sizeof name, "near-%zu", i);
        go(near[i], HALF, 2 * HALF, "half-3", name);
        assert_true(differing("whole", name, &off) > 0);
        /* Where a sum rounds the other way, a code may be one more or less: of 127 steps of the largest in its block,
         * three times, each of at most learning rate x the clipped norm. */
        assert_true(off <= 2 * HALF * 0.05 * 0.5 / 127);
    }
}

/* AdamW of 8 bits holds codes and scales of matrices, and whole moments of embeddings and norms: parameters of two
 * fates, each with buckets and states of its own. */
static void an_optimizer_that_leaves_some_parameters_to_another_keeps_every_bit(void **state)
{
    double off = 0;
    char half[32], whole[32];
    enum tr_optim_kind before = kind;
    (void)state;
    kind = TR_OPTIM_ADAMW8;
    go(exact[0], 0, 2 * HALF, NULL, "whole8");
    for (size_t a = 0; a < TR_COUNT_OF(exact); a++) {
        (void)snprintf(half, sizeof half, "half8-%zu", a);
        (void)snprintf(whole, sizeof whole, "whole8-%zu", a);
        go(exact[a], 0, HALF, NULL, half);
        go(exact[(a + 3) % TR_COUNT_OF(exact)], HALF, 2 * HALF, half, whole);
        assert_int_equal(differing("whole8", whole, &off), 0);
    }
    kind = before;
}

static void the_plan_counts_states_of_two_optimizers(void **state)
{
    struct layout l = { .dtype = TR_F32, .n_micro = N_MICRO };
    struct tr_compiled *c = NULL;
    struct tr_model *m = open_toy_model();
    int64_t n8 = 0, n32 = 0;
    (void)state;
    fill_ones(&l);
    struct tr_compile_options opt = toy_options(&l, 0);
    opt.optim = &tr_adamw8;
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ m }, &opt, &c), TR_OK);
    for (int i = 0; i < m->n_params; i++) {
        bool is_8 = m->param[i].n >= 4096 && strcmp(m->param[i].name, "model.embed_tokens.weight") != 0;
        assert_int_equal(c->place.fate_of[i], is_8 ? TR_LEARNS : TR_LEARNS_APART);
        *(is_8 ? &n8 : &n32) += m->param[i].n;
    }
    assert_true(n8 > 0 && n32 > 4480);
    size_t least = (size_t)n8 * 2 + (size_t)n8 / 256 * 8 + (size_t)n32 * 8;
    size_t padding = (size_t)m->n_params * 256 * 8 + 6 * 64 * (size_t)c->place.n_buckets;
    assert_true(c->memory.bytes[TR_A_OPTIM] >= least && c->memory.bytes[TR_A_OPTIM] <= least + padding);
    tr_compiled_close(c);
    tr_model_close(m);
}

static void the_plan_counts_its_bytes(void **state)
{
    struct layout l = exact[0];
    struct tr_compiled *c = NULL;
    struct tr_model *m = open_toy_model();
    (void)state;
    fill_ones(&l);
    l.n_micro = N_MICRO;
    l.in_order = false;
    struct tr_compile_options opt = toy_options(&l, 0);
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ m }, &opt, &c), TR_OK);
    size_t least = (size_t)m->n_elements * 36 / 32; /* a byte an element, four bytes a block */
    size_t padding = (size_t)m->n_params * 36 + 2 * 64 * (size_t)c->place.n_buckets;
    assert_true(c->memory.bytes[TR_A_OPTIM] >= least && c->memory.bytes[TR_A_OPTIM] <= least + padding);
    tr_compiled_close(c);
    tr_model_close(m);
}

static void a_flipped_byte_of_a_replica_is_found(void **state)
{
    struct job j = { .l = { .dtype = TR_F32, .dp = 2, .n_micro = N_MICRO / 2 }, .end = 1, .flips = true };
    (void)state;
    fill_ones(&j.l);
    run_ranks(2, run_job, &j);
}

static void what_it_cannot_do_is_refused(void **state)
{
    struct layout l = { .dtype = TR_F32, .tp = 2, .n_micro = 1 };
    struct tr_model *m = open_model(LLAMA);
    struct tr_compiled *c = NULL;
    struct tr_optim odd = toy;
    enum tr_optim_kind ignored;
    (void)state;
    fill_ones(&l);
    struct tr_compile_options opt = toy_options(&l, 0);
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ m }, &opt, &c), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "optim toy: tp 2 cuts model.layers.0.self_attn.o_proj.weight (32 x 32) "
                                            "inside a block of 32 elements of its momentum scale"));
    l.tp = 1;
    opt = toy_options(&l, 0);
    opt.has_own_memory = true;
    assert_int_equal(tr_compile((const struct tr_model *[TR_PURPOSES]){ m }, &opt, &c), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "optim toy has no kernels for a GPU"));
    tr_model_close(m);
    assert_int_equal(tr_optim_add(&toy, &ignored), TR_USAGE); /* twice */
    odd.name = "odd";
    odd.state[1].block = 48;
    assert_int_equal(tr_optim_add(&odd, &ignored), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "block 48 of its momentum scale must be a power of 2"));
    odd.state[1] = (struct tr_state_row){ .name = "m", .title = "mean", .dtype = TR_F32, .block = 2, .zero = 1 };
    assert_int_equal(tr_optim_add(&odd, &ignored), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "the name m in files belongs to another state"));
    odd.state[1] = (struct tr_state_row){
        .name = "m", .title = "mean", .dtype = TR_F32, .shape = TR_PER_ROW, .block = 1, .zero = TR_NEVER_SHARDED
    };
    assert_int_equal(tr_optim_add(&odd, &ignored), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "the name m in files belongs to another state"));
    odd = toy;
    odd.name = "odd";
    odd.has_sums = true;
    odd.state[odd.n_states++] =
        (struct tr_state_row){ .name = "odd", .title = "odd", .dtype = TR_F32, .block = 1, .zero = 1 };
    assert_int_equal(tr_optim_add(&odd, &ignored), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "3 states beside sums; at most 2"));
}

static void its_name_is_a_word_of_the_option(void **state)
{
    const struct tr_config *cfg = NULL;
    char *argv[] = { "--optim", "toy" };
    (void)state;
    assert_int_equal(tr_config_load(TR_VERB_CONFIG, 2, argv, NULL, &cfg), TR_OK);
    assert_int_equal(cfg->optim, kind);
    tr_config_close(cfg);
}

/* The guide shows the whole file of this optimizer: what a reader copies is what is tested here. */
static void the_guide_shows_this_very_optimizer(void **state)
{
    char *guide = NULL, *file = NULL;
    size_t n = 0;
    (void)state;
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/docs/guide/add-an-optimizer.md", 1 << 20, &guide, &n), TR_OK);
    assert_int_equal(tr_file_read(TR_SOURCE_DIR "/tests/train/toy_optim.h", 1 << 20, &file, &n), TR_OK);
    assert_non_null(strstr(guide, file));
    free(guide);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_stopped_and_resumed_in_another_layout_keeps_every_bit),
        cmocka_unit_test(other_layouts_load_the_same_bytes_and_end_near),
        cmocka_unit_test(an_optimizer_that_leaves_some_parameters_to_another_keeps_every_bit),
        cmocka_unit_test(the_plan_counts_states_of_two_optimizers),
        cmocka_unit_test(the_plan_counts_its_bytes),
        cmocka_unit_test(a_flipped_byte_of_a_replica_is_found),
        cmocka_unit_test(what_it_cannot_do_is_refused),
        cmocka_unit_test(its_name_is_a_word_of_the_option),
        cmocka_unit_test(the_guide_shows_this_very_optimizer),
    };
    (void)snprintf(root, sizeof root, "%s/trireme-toy-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root) || tr_optim_add(&toy, &kind) != TR_OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)tr_remove_tree(root);
    return rc;
}
