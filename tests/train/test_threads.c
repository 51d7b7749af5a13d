/* test_threads.c - the same layout on two devices: streams that run in place, and a thread for each stream with random
 * delays. A schedule that lists every wait gives the same bits on both, whatever the delays, and wherever states live.
 */
#include "train/layout_agree.h"

static const struct layout rows[] = {
    { .dp = 2 },
    { .dp = 2, .zero = 1, .n_micro = 2 },
    { .dp = 2, .zero = 2, .n_micro = 2 },
    { .dp = 2, .zero = 3, .n_micro = 2, .recompute = TR_RECOMPUTE_BLOCK },
    { .dp = 2, .zero = 3, .n_micro = 2, .sync_last = true },
    { .dp = 2, .zero = 2, .n_micro = 2, .dtype = TR_BF16, .reduce_dtype = TR_BF16 },
    { .dp = 2, .zero = 1, .n_micro = 2, .in_order = true },
    { .tp = 2 },
    { .tp = 2, .sp = true, .n_micro = 2 },
    { .cp = 2, .cp_mode = TR_CP_RING },
    { .cp = 2, .cp_mode = TR_CP_ULYSSES },
    { .pp = 2, .n_micro = 4 },
    { .pp = 2, .n_micro = 4, .schedule = "zb" },
    { .pp = 2, .n_micro = 4, .schedule = "interleaved", .chunks = 2 },
    { .dp = 4, .zero = 2, .shard = 2, .n_micro = 2 },
    { .pp = 2, .dp = 2, .zero = 2, .n_micro = 2, .schedule = "zb" },
    { .pp = 2, .tp = 2, .n_micro = 2 },
    { .dp = 2, .tp = 2, .zero = 3, .n_micro = 2 },
    { .dtype = TR_BF16, .n_micro = 2, .offload = 1 },
    { .dtype = TR_BF16, .n_micro = 2, .offload = 1, .to_disk = true },
    { .dp = 2, .zero = 2, .dtype = TR_BF16, .n_micro = 2, .offload = 1, .to_disk = true },
    { .pp = 2, .dp = 2, .zero = 1, .dtype = TR_BF16, .n_micro = 2, .offload = 0.7, .to_disk = true },
    { .frozen = FREEZE_ALL_BUT_ADAPTER,
      .packed = TR_PACKED_NF4,
      .dtype = TR_BF16,
      .n_micro = 2,
      .offload = 1,
      .offload_param = 1,
      .to_disk = true },
    { .dtype = TR_BF16, .n_micro = 3, .offload = 1, .offload_param = 1, .offload_grads = true },
    { .n_micro = 2, .offload = 1, .offload_param = 1, .offload_grads = true },
    { .dtype = TR_BF16, .n_micro = 2, .offload = 0.6, .offload_param = 1, .offload_grads = true, .stows = true },
    { .dp = 2, .dtype = TR_BF16, .n_micro = 2, .offload = 1, .offload_param = 1, .offload_grads = true },
    { .dp = 2, .reduce_dtype = TR_BF16, .dtype = TR_BF16, .n_micro = 2, .offload = 1, .offload_grads = true },
    { .pp = 2, .n_micro = 4, .dtype = TR_BF16, .offload = 1, .offload_param = 1, .offload_grads = true },
    { .pp = 2,
      .n_micro = 4,
      .schedule = "interleaved",
      .chunks = 2,
      .dtype = TR_BF16,
      .offload = 1,
      .offload_param = 1,
      .offload_grads = true },
    { .pp = 2, .n_micro = 4, .schedule = "zb", .offload = 1, .offload_param = 1, .offload_grads = true },
    { .dtype = TR_BF16, .n_micro = 3, .offload = 1, .offload_param = 1, .offload_grads = true, .updates_there = true },
    { .n_micro = 1, .offload = 0.6, .offload_param = 1, .offload_grads = true, .updates_there = true, .stows = true },
    { .dp = 2,
      .dtype = TR_BF16,
      .n_micro = 2,
      .offload = 1,
      .offload_param = 1,
      .offload_grads = true,
      .updates_there = true },
    { .pp = 2,
      .n_micro = 4,
      .schedule = "zb",
      .dtype = TR_BF16,
      .offload = 1,
      .offload_param = 1,
      .offload_grads = true,
      .updates_there = true },
    { .dp = 2, .zero = 1, .dtype = TR_BF16, .n_micro = 2, .offload = 1 },
    { .pp = 2, .dp = 2, .zero = 2, .dtype = TR_BF16, .n_micro = 2, .offload = 0.5 },
    { .dp = 2, .tp = 2, .zero = 3, .dtype = TR_BF16, .n_micro = 2, .offload = 1 },
    { .n_micro = 2, .recompute = TR_RECOMPUTE_BLOCK, .stows = true },
    { .dp = 2, .zero = 3, .n_micro = 2, .recompute = TR_RECOMPUTE_BLOCK, .stows = true },
    { .pp = 2, .n_micro = 8, .recompute = TR_RECOMPUTE_BLOCK, .stows = true },
    { .pp = 2, .n_micro = 4, .schedule = "zb", .stows = true },
    { .dp = 2,
      .zero = 1,
      .dtype = TR_BF16,
      .n_micro = 2,
      .recompute = TR_RECOMPUTE_BLOCK,
      .offload = 1,
      .stows = true },
    { .frozen = FREEZE_FIRST, .dtype = TR_BF16, .n_micro = 2, .offload_param = 1 },
    { .frozen = FREEZE_ALL_BUT_ADAPTER, .packed = TR_PACKED_NF4, .dtype = TR_BF16, .n_micro = 2, .offload_param = 1 },
    { .frozen = FREEZE_ALL_BUT_NORMS, .dp = 2, .zero = 1, .dtype = TR_BF16, .offload = 1, .offload_param = 1 },
    { .frozen = FREEZE_ALL_BUT_V, .pp = 2, .dp = 2, .zero = 2, .dtype = TR_BF16, .n_micro = 4, .offload_param = 0.6 },
    { .frozen = FREEZE_ALL_BUT_ADAPTER,
      .tp = 2,
      .dtype = TR_BF16,
      .recompute = TR_RECOMPUTE_BLOCK,
      .offload_param = 1 },
    { .frozen = FREEZE_ALL_BUT_DORA, .packed = TR_PACKED_FP8, .dtype = TR_BF16, .offload_param = 1, .stows = true },
    { .frozen = FREEZE_ALL_BUT_HEAD, .pp = 2, .n_micro = 4, .schedule = "zb", .dtype = TR_BF16, .offload_param = 1 },
};

enum { SEEDS = 3 };

/* Bytes of this rank's weights after the last step, one parameter behind the other. */
static size_t weights_of(struct run *r, char *out)
{
    size_t bytes = 0;
    struct tr_store store = tr_exec_store(r->e);
    struct tr_range range[TR_MAX_RANGES];
    for (int i = 0; i < r->m->n_params; i++) { /* a thread that writes a checkpoint asks while updates wait */
        CHECK(store.ranges(store.ctx, weights(r->e, i), i, range) >= 0);
        (void)store.wants(store.ctx, weights(r->e, i), i, 0, 1);
    }
    CHECK_OK(tr_exec_drain(r->e));
    CHECK_OK(tr_device_sync_all(&r->dev));
    for (int i = 0; i < r->m->n_params; i++) {
        int64_t first, n;
        size_t size = tr_dtype_bytes(tr_exec_dtype(r->e, weights(r->e, i)));
        const char *at = tr_exec_at(r->e, weights(r->e, i), i, &first, &n);
        if (n > 0)
            memcpy(out + bytes, at + (size_t)first * size, (size_t)n * size);
        bytes += (size_t)n * size;
    }
    return bytes;
}

static size_t train_once(const struct layout *l, const struct tr_comm_env *env, int k, char *out, double numbers[2])
{
    struct run *r = calloc(1, sizeof *r);
    struct tr_mesh *mesh = NULL;
    char job[128];
    CHECK(r);
    rig_device = k ? "threads" : "cpu";
    rig_seed = (uint64_t)k;
    struct tr_compile_options opt = options(l);
    opt.layout = layout_of(l, env->rank);
    opt.offload_share = k ? l->offload : 0; /* what lives on the host changes no bit either */
    opt.offload_param_share = k ? l->offload_param : 0;
    opt.offloads_grads = k && l->offload_grads;
    opt.updates_on_host = k && l->updates_there;
    opt.offloads_to_disk = opt.offloads_params_to_disk = l->to_disk;
    opt.offload_dir = "/tmp";
    opt.stows_activations = k && l->stows;
    open_run(r, l, &opt);
    struct tr_comm_env own = *env;
    CHECK_OK(tr_format(job, sizeof job, "%s-%d", env->job, k));
    own.job = job;
    own.arena_bytes = tr_exec_shared_bytes(r->c);
    own.device = &r->dev;
    CHECK_OK(tr_mesh_open("shm", &own, opt.layout.size, &mesh));
    train(r, l, mesh, opt.layout.data_rank * l->n_micro, l->n_micro, l->dp * l->n_micro);
    size_t bytes = weights_of(r, out);
    numbers[0] = r->loss;
    numbers[1] = r->norm;
    close_run(r);
    tr_mesh_close(mesh);
    free(r);
    return bytes;
}

static void rank_of(const struct tr_comm_env *env, void *ctx)
{
    const struct layout *l = ctx;
    enum { MOST = 8 << 20 };
    char *in_place = malloc(MOST), *threads = malloc(MOST);
    double a[2], b[2];
    CHECK(in_place && threads);
    size_t bytes = train_once(l, env, 0, in_place, a);
    CHECK(bytes > 0 && bytes <= MOST);
    for (int k = 1; k <= SEEDS; k++) {
        CHECK(train_once(l, env, k, threads, b) == bytes);
        CHECK(memcmp(a, b, sizeof a) == 0);
        CHECK(memcmp(in_place, threads, bytes) == 0);
    }
    free(in_place);
    free(threads);
}

static void random_delays_change_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++)
        for (int model = LLAMA; model < N_MODELS; model++) {
            struct layout l = rows[i];
            l.model = model;
            l.n_micro = l.n_micro ? l.n_micro : 1;
            fill_ones(&l);
            if (model != LLAMA && (int)i % 3 != model) /* every layout with one model, a third of them with all */
                continue;
            if (l.chunks > 1 && model != LLAMA)
                continue; /* too few segments */
            run_ranks(ranks_of(&l), rank_of, &l);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_delays_change_no_bit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
