/* test_t12.c - T12, the resume matrix: a state that is a function of name and element is saved in every layout of at
 * most eight ranks and loaded in every other; every element of weights, master and moments comes back bit for bit, and
 * what is exported from any of the checkpoints has the same bytes. Ranks are processes over shared memory. usage:
 * fault_t12 [full]; the short version takes layouts of at most four ranks. */
#include "comm/ranks.h"
#include "train/train.h"
#include <string.h>
#include <sys/stat.h>

enum { MAX_LAYOUTS = 256 };

struct layout {
    int axis[TR_AXES], zero, n_ranks;
};
static struct layout layouts[MAX_LAYOUTS];
static int n_layouts;
static char root[TR_PATH_MAX];
static enum tr_dtype compute; /* F32, or BF16 beside an F32 master */
static bool is_planted;

static const char config[] =
    "{\"model_type\":\"llama\",\"vocab_size\":27,\"hidden_size\":16,\"intermediate_size\":24,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":8,\"head_dim\":4,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"max_position_embeddings\":32,\"rope_theta\":10000.0,"
    "\"tie_word_embeddings\":true}";

static struct tr_model *open_model(void)
{
    struct tr_model_options opt = { .rows = 1, .sequence_length = 16 };
    struct tr_model *m = NULL;
    cJSON *j = NULL;
    CHECK_OK(tr_json_parse(config, sizeof config - 1, "config", &j));
    CHECK_OK(tr_model_from_json(j, &opt, &m));
    return m;
}

static void add_layout(const struct tr_model *m, int most, const int axis[TR_AXES], int zero)
{
    struct layout l = { .zero = zero, .n_ranks = 1 };
    struct tr_legal_query q = tr_legal_mesh(m, axis);
    q.n_micro = 4;
    memcpy(l.axis, axis, sizeof l.axis);
    for (int a = 0; a < TR_AXES; a++)
        l.n_ranks *= axis[a];
    bool shards = axis[TR_AXIS_SHARD] > 1;
    if (l.n_ranks > most || shards != (zero > 0) || tr_legal_check(&q) != TR_OK)
        return;
    CHECK(n_layouts < MAX_LAYOUTS);
    layouts[n_layouts++] = l;
}

static void list_layouts(int most)
{
    struct tr_model *m = open_model();
    n_layouts = 0;
    for (int pp = 1; pp <= 4; pp *= 2)
        for (int dp = 1; dp <= 8; dp++)
            for (int shard = 1; shard <= 8; shard++)
                for (int cp = 1; cp <= 8; cp *= 2)
                    for (int tp = 1; tp <= 8; tp *= 2)
                        for (int zero = 0; zero <= 3; zero++)
                            if (dp * shard == 1 || dp * shard % 2 == 0 || dp * shard == 3)
                                add_layout(m, most, (int[TR_AXES]){ pp, dp, shard, cp, tp }, zero);
    tr_error_clear();
    tr_model_close(m);
}

/* ---- one rank of one layout ---- */

struct rank {
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_mesh *mesh;
    struct tr_device dev;
    struct tr_exec *e;
    struct tr_store s;
};

static void open_rank(struct rank *r, const struct layout *l, const struct tr_comm_env *env)
{
    struct tr_layout t = { .cp_mode = TR_CP_RING, .zero = l->zero };
    struct tr_comm_env own = *env;
    *r = (struct rank){ .m = open_model() };
    memcpy(t.size, l->axis, sizeof t.size);
    tr_mesh_coords(env->rank, l->axis, t.coord);
    t.shard_size = l->axis[TR_AXIS_SHARD];
    t.shard_rank = t.coord[TR_AXIS_SHARD];
    t.data_size = l->axis[TR_AXIS_DP] * t.shard_size;
    t.data_rank = t.coord[TR_AXIS_DP] * t.shard_size + t.shard_rank;
    struct tr_compile_options opt = { .compute_dtype = compute,
                                      .grad_dtype = TR_F32,
                                      .master_dtype = TR_F32,
                                      .moment_dtype = TR_F32,
                                      .optim = &tr_adamw,
                                      .layout = t,
                                      .n_micro = 4,
                                      .n_threads = 1,
                                      .save_bytes = TR_IO_CHUNK * sizeof(float),
                                      .stages_saves = true,
                                      .part_bytes = 256, /* every rank writes weights */
                                      .save_dtype = compute };
    CHECK_OK(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &opt, &r->c));
    own.arena_bytes = tr_exec_shared_bytes(r->c);
    if (l->n_ranks > 1)
        CHECK_OK(tr_mesh_open("shm", &own, l->axis, &r->mesh));
    CHECK_OK(tr_device_open("cpu", &r->dev));
    CHECK_OK(tr_exec_open(r->c, &r->dev, NULL, r->mesh, 0, &r->e));
    CHECK(r->dev.reserved_bytes == tr_compiled_bytes(r->c));
    r->s = tr_exec_store(r->e);
}

static void close_rank(struct rank *r)
{
    tr_exec_close(r->e);
    tr_device_close(&r->dev);
    tr_mesh_close(r->mesh);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
}

static float number(enum tr_state what, int param, int64_t i)
{
    int w = what == TR_S_VALUE ? TR_S_MASTER : (int)what; /* the value is the master, rounded */
    return (float)((w * 131 + param * 7 + 1) * 1009 + i) * 0.00137f;
}

/* Elements [first, first + n) as the store's dtype has them. */
static const void *expected(const struct tr_store *s, enum tr_state what, int param, int64_t first, int64_t n)
{
    static float wide[4096];
    static uint16_t narrow[4096];
    CHECK(n <= 4096);
    for (int64_t i = 0; i < n; i++)
        wide[i] = number(what, param, first + i);
    if (s->states.row[what].dtype == TR_F32)
        return wide;
    tr_convert(wide, TR_F32, narrow, s->states.row[what].dtype, (size_t)n);
    return narrow;
}

static bool is_held(const struct tr_store *s, int what)
{
    return what != TR_S_GRAD && s->states.row[what].is_held;
}

static void fill(struct rank *r)
{
    for (int w = 0; w < TR_STATES_MAX; w++)
        for (int p = 0; is_held(&r->s, w) && p < r->m->n_params; p++)
            for (int64_t at = 0; at < r->m->param[p].n; at += 512) {
                int64_t n = tr_min64(512, r->m->param[p].n - at);
                CHECK_OK(r->s.put(r->s.ctx, (enum tr_state)w, p, at, n, expected(&r->s, (enum tr_state)w, p, at, n)));
            }
}

/* Every element that this rank holds; returns how many there are. */
static int64_t check(struct rank *r)
{
    int64_t count = 0;
    for (int w = 0; w < TR_STATES_MAX; w++)
        for (int p = 0; is_held(&r->s, w) && p < r->m->n_params; p++) {
            int64_t first, n, local, len;
            size_t size = tr_dtype_bytes(r->s.states.row[w].dtype);
            const char *base = tr_exec_at(r->e, (enum tr_state)w, p, &first, &n);
            for (int64_t at = 0; n && at < r->m->param[p].n &&
                                 (len = tr_tp_run(&r->c->place.param[p].tp, &at, r->m->param[p].n, &local)) > 0;
                 at += len)
                for (int64_t k = 0; k < len; k++)
                    if (local + k >= first && local + k < first + n) {
                        bool is_same = memcmp(base + (local + k) * (int64_t)size,
                                              expected(&r->s, (enum tr_state)w, p, at + k, 1), size) == 0;
                        if (!is_same)
                            fprintf(stderr, "T12: %s of %s, element %d differs\n", w == TR_S_VALUE ? "value" : "state",
                                    r->m->param[p].name, (int)(at + k));
                        CHECK(is_same);
                        count++;
                    }
        }
    return count;
}

static void output_of(int i, char out[TR_PATH_MAX])
{
    CHECK_OK(tr_format(out, TR_PATH_MAX, "%s/%s-%d", root, tr_dtype_name(compute), i));
}

static void save_as(const struct tr_comm_env *env, void *ctx)
{
    int i = *(int *)ctx;
    struct rank r;
    struct tr_saver *sv = NULL;
    struct tr_save_result res = { 0 };
    char out[TR_PATH_MAX];
    bool is_started = false, is_done = false;
    open_rank(&r, &layouts[i], env);
    fill(&r);
    output_of(i, out);
    struct tr_saver_options opt = { .mesh = r.mesh,
                                    .dtype = compute,
                                    .staging = tr_exec_arena(r.e, TR_A_STAGING),
                                    .staging_bytes = r.c->memory.bytes[TR_A_STAGING] };
    CHECK_OK(tr_saver_open(&r.s, &opt, &sv));
    struct tr_save_job job = { .output = out, .run_id = "run", .step = 1, .state = "{}", .keep = { 0, 0, -1 } };
    CHECK_OK(tr_saver_start(sv, &job, &is_started));
    CHECK_OK(tr_saver_wait(sv, 60, &is_done, &res));
    if (res.status != TR_OK)
        fprintf(stderr, "T12: %s\n", res.cause);
    CHECK(is_started && is_done && res.status == TR_OK);
    tr_saver_close(sv);
    close_rank(&r);
}

static void load_all(const struct tr_comm_env *env, void *ctx)
{
    struct rank r;
    open_rank(&r, &layouts[*(int *)ctx], env);
    for (int i = 0; i < n_layouts; i++) {
        char out[TR_PATH_MAX], dir[TR_PATH_MAX];
        output_of(i, out);
        CHECK_OK(tr_path_join(dir, out, "checkpoint-1"));
        memset(tr_exec_arena(r.e, TR_A_PARAMS), 0, r.c->memory.bytes[TR_A_PARAMS]);
        memset(tr_exec_arena(r.e, TR_A_OPTIM), 0, r.c->memory.bytes[TR_A_OPTIM]);
        CHECK_OK(tr_load_weights(&r.s, dir, (float *)(void *)tr_exec_arena(r.e, TR_A_SAVE), NULL));
        CHECK_OK(tr_load_optim(&r.s, dir, (float *)(void *)tr_exec_arena(r.e, TR_A_SAVE), NULL));
        if (is_planted && env->rank == 0) /* an element in the wrong place */
            CHECK_OK(r.s.put(r.s.ctx, TR_S_OPTIM, 0, 0, 1, &(float){ 0.5f }));
        if (check(&r) == 0)
            CHECK(r.mesh != NULL);
    }
    close_rank(&r);
}

/* The model of a checkpoint as one rank writes it. */
static struct tr_hash128 export_hash(int i)
{
    struct tr_model *m = open_model();
    struct tr_memory *x = NULL;
    struct tr_store s;
    struct tr_saver *sv = NULL;
    struct tr_states states;
    char out[TR_PATH_MAX], dir[TR_PATH_MAX], *bytes = NULL;
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    size_t n = 0;
    output_of(i, out);
    CHECK(buf != NULL);
    CHECK_OK(tr_path_join(dir, out, "checkpoint-1"));
    CHECK_OK(tr_ckpt_verify(dir, "run", NULL));
    CHECK_OK(tr_optim_states(NULL, &states));
    CHECK_OK(tr_memory_open(m, &states, &x, &s));
    struct tr_saver_options opt = { .dtype = compute };
    CHECK_OK(tr_load_weights(&s, dir, buf, NULL));
    CHECK_OK(tr_saver_open(&s, &opt, &sv));
    CHECK_OK(tr_saver_model(sv, out));
    CHECK_OK(tr_path_join(dir, out, "model.safetensors"));
    CHECK_OK(tr_file_read(dir, 1 << 24, &bytes, &n));
    struct tr_hash128 h = tr_hash(bytes, n);
    free(bytes);
    free(buf);
    tr_saver_close(sv);
    tr_memory_close(x);
    tr_model_close(m);
    return h;
}

static void run_matrix(int most)
{
    struct tr_hash128 first = { 0 };
    list_layouts(most);
    for (int i = 0; i < n_layouts; i++) {
        run_ranks(layouts[i].n_ranks, save_as, &i);
        struct tr_hash128 h = export_hash(i);
        first = i == 0 ? h : first;
        assert_true(tr_hash_eq(h, first));
    }
    for (int i = 0; i < n_layouts; i++)
        run_ranks(layouts[i].n_ranks, load_all, &i);
    printf(
        "T12 %s: %d layouts of at most %d ranks, %d pairs of save and load, all elements and exports the same bytes\n",
        tr_dtype_name(compute), n_layouts, most, n_layouts * n_layouts);
}

static int n_most = 4;

static void every_layout_loads_every_other(void **state)
{
    static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16 };
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(dtypes); i++) {
        compute = dtypes[i];
        run_matrix(n_most);
    }
}

static void an_element_in_the_wrong_place_is_seen(void **state)
{
    char job[64];
    int i = 0, status = 0;
    (void)state;
    is_planted = true; /* layout 0 is one rank, and its checkpoint is there */
    n_layouts = 1;
    struct tr_comm_env env = env_of(0, 1, job, sizeof job);
    pid_t pid = start_rank(&env, load_all, &i);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    is_planted = false;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_loads_every_other),
        cmocka_unit_test(an_element_in_the_wrong_place_is_seen),
    };
    if (argc > 1 && strcmp(argv[1], "full") == 0)
        n_most = 8;
    (void)snprintf(root, sizeof root, "%s/trireme-t12-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)tr_remove_tree(root);
    return rc;
}
