/* layout_rig.h - a tiny model trained on any layout, and how far it may end from the same steps on one rank.
 *
 * Micro-batches are numbered over the whole step and hold packed documents; what each holds is a function of its number
 * and of the step, so that every layout sees the same batch. Bugs can be planted in the schedule, the mesh or the
 * scale.
 */
#ifndef TR_TESTS_TRAIN_LAYOUT_RIG_H
#define TR_TESTS_TRAIN_LAYOUT_RIG_H

#include "layout_models.h"
#include "adapter/adapter.h"
#include "comm/ranks.h"
#include "train/train.h"
#include <math.h>

enum {
    ROWS = 2,
    LENGTH = 16,
    N_TOKENS = ROWS * LENGTH,
    VOCAB = 64,
    WIDEST = 320,
    N_STEPS = 3,
    MAX_MICRO = 32,
    PARAMS_MAX = 200
};
enum { LOSS_SCALE = 1 << 12 }; /* of float16: a few tokens have large gradients */

/* Sizes of 0 are 1. */
struct layout {
    int model, pp, dp, zero, shard; /* shard: ranks that share a copy; 0 = all dp */
    int cp, tp;
    enum tr_cp_mode cp_mode;
    bool sp;
    const char *schedule;
    int chunks, n_micro;
    enum tr_recompute recompute;
    enum tr_dtype dtype, reduce_dtype;
    bool in_order, sync_last;
    int frozen;            /* enum frozen */
    enum tr_packed packed; /* how frozen matrices of linears are held */
    double offload;        /* share of optimizer state on the host */
    double offload_param;  /* share of frozen parameters there */
    bool offload_grads;    /* gradients rest there too */
    bool updates_there;    /* and the host makes the update */
    bool to_disk;          /* both live in a file instead */
    bool stows;            /* activations rest there between forward and backward */
    bool is_decoded;       /* they are held in the compute dtype, with the values of packed ones */
};

/* Which parameters keep their values. */
enum frozen {
    FREEZE_NONE,
    FREEZE_FIRST,
    FREEZE_ALL_BUT_NORMS,
    FREEZE_ALL_BUT_HEAD,
    FREEZE_ALL_BUT_ADAPTER,
    FREEZE_ALL_BUT_DORA,
    N_FROZEN,
    FREEZE_ALL_BUT_V = N_FROZEN
};

struct run {
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_device dev;
    struct tr_pool *pool;
    struct tr_exec *e;
    int32_t tokens[MAX_MICRO][4][N_TOKENS];
    int64_t sample[MAX_MICRO][N_TOKENS];
    struct tr_batch micro[MAX_MICRO];
    double loss, norm;
    bool is_frozen[PARAMS_MAX];
    uint8_t packed_of[PARAMS_MAX];
};

/* Micro-batch `number` of a step: two documents a row. */
static inline void fill(struct run *r, int i, int step, int number)
{
    int32_t(*t)[N_TOKENS] = r->tokens[i];
    r->micro[i] = (struct tr_batch){ t[0], t[1], t[2], t[3], r->sample[i] };
    for (int k = 0; k < N_TOKENS; k++) {
        int at = k % LENGTH, begin = at < 9 ? 0 : 9;
        uint32_t x = (uint32_t)(k + N_TOKENS * (number + MAX_MICRO * step)) * 2654435761u;
        t[0][k] = (int32_t)(x >> 16) % VOCAB;
        t[1][k] = at == 8 || at == LENGTH - 1 ? TR_TARGET_NONE : (int32_t)((x >> 8) % VOCAB);
        t[2][k] = at - begin;
        t[3][k] = k / LENGTH * LENGTH + begin;
        r->sample[i][k] = number * ROWS + k / LENGTH;
    }
}

static inline struct tr_model *open_model(int model)
{
    cJSON *j = NULL;
    struct tr_model *m = NULL;
    struct tr_model_options mo = { .rows = ROWS, .sequence_length = LENGTH, .dropout = 0.1 };
    CHECK_OK(tr_json_parse(configs[model], strlen(configs[model]), "config.json", &j));
    CHECK_OK(tr_model_from_json(j, &mo, &m));
    return m;
}

static inline bool is_read_by(const struct tr_model *m, int segment, int param)
{
    const struct tr_segment *s = &m->segment[segment];
    for (int k = 0; k < m->program[s->program]->n_params; k++)
        if (s->param[k] == param)
            return true;
    return false;
}

static inline bool freezes(const struct tr_model *m, int frozen, int param)
{
    const char *name = m->param[param].name;
    switch (frozen) {
    case FREEZE_FIRST: /* embeddings and the first block */
        return is_read_by(m, 0, param) || is_read_by(m, 1, param);
    case FREEZE_ALL_BUT_NORMS:
        return !strstr(name, "norm") && !strstr(name, "ln_");
    case FREEZE_ALL_BUT_HEAD:
        return !is_read_by(m, m->n_segments - 1, param);
    case FREEZE_ALL_BUT_ADAPTER:
    case FREEZE_ALL_BUT_DORA:
        return !tr_adapter_learns(m, param);
    case FREEZE_ALL_BUT_V: /* a matrix that learns between packed ones */
        return !strstr(name, "v_proj") && !strstr(name, "query_key_value");
    default:
        return false;
    }
}

static inline void adapt(struct tr_model *m, const char *adapter)
{
    struct tr_adapter *a = NULL;
    CHECK_OK(tr_adapter_parse(adapter, strlen(adapter), "adapter_config.json", &a));
    CHECK_OK(tr_adapt(m, a, true));
    tr_adapter_close(a);
}

/* Streams that run in place, or, with a seed, threads with random delays. */
static const char *rig_device = "cpu";
static uint64_t rig_seed;

static inline void open_run(struct run *r, const struct layout *l, const struct tr_compile_options *opt)
{
    struct tr_compile_options with = *opt;
    CHECK_OK(tr_device_open(rig_device, &r->dev));
    if (rig_seed)
        tr_threads_delays(&r->dev, rig_seed, 200);
    r->m = open_model(l->model);
    if (l->frozen == FREEZE_ALL_BUT_ADAPTER || l->frozen == FREEZE_ALL_BUT_DORA)
        adapt(r->m, adapters[l->model][l->frozen - FREEZE_ALL_BUT_ADAPTER]);
    CHECK(r->m->n_params <= PARAMS_MAX);
    for (int i = 0; i < r->m->n_params; i++) {
        r->is_frozen[i] = freezes(r->m, l->frozen, i);
        r->packed_of[i] = r->is_frozen[i] && tr_param_may_pack(r->m, i) ? (uint8_t)l->packed : TR_NOT_PACKED;
    }
    with.is_frozen = r->is_frozen;
    with.packed_of = l->is_decoded ? NULL : r->packed_of;
    CHECK_OK(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &with, &r->c));
}

/* Gradient descent without momentum. */
static const struct tr_optim plain_sgd = { .name = "sgd", .n_phases = 1, .phase = { { .op = TR_OP_SGD } } };

static inline struct tr_compile_options options(const struct layout *l)
{
    return (struct tr_compile_options){ .compute_dtype = l->dtype,
                                        .grad_dtype = TR_F32,
                                        .master_dtype = TR_F32,
                                        .optim = &plain_sgd,
                                        .n_micro = l->n_micro,
                                        .recompute = l->recompute,
                                        .reduce_dtype = l->reduce_dtype,
                                        .pp_schedule = l->schedule,
                                        .pp_chunks = l->chunks,
                                        .n_threads = 1,
                                        .save_bytes = TR_IO_CHUNK * sizeof(float) };
}

/* ---- the weights at the start ----
 *
 * Made once for each model: ranks are forked from the process that has them. They are those of tr_load_random. */

static float *rig_start[N_CONFIGS][3][PARAMS_MAX];

static inline enum tr_status start_at(void *ctx, enum tr_state what, int param, int64_t first, int64_t n,
                                      const void **out)
{
    float *const *start = ctx;
    (void)what;
    (void)n;
    *out = start[param] + first;
    return TR_OK;
}

static inline float **start_of(const struct layout *l)
{
    bool is_adapted = l->frozen == FREEZE_ALL_BUT_ADAPTER || l->frozen == FREEZE_ALL_BUT_DORA;
    return rig_start[l->model][is_adapted ? 1 + l->frozen - FREEZE_ALL_BUT_ADAPTER : 0];
}

static inline void load_start(const struct run *r, const struct layout *l, const struct tr_store *store)
{
    float **start = start_of(l);
    struct tr_store from = { .ctx = start, .model = r->m, .states = store->states, .whole = start_at };
    for (int i = 0; i < r->m->n_params && !start[i]; i++) {
        start[i] = malloc((size_t)r->m->param[i].n * sizeof *start[i]);
        CHECK(start[i] != NULL);
        CHECK_OK(tr_model_init_param(r->m, i, 3, 0, r->m->param[i].n, NULL, start[i]));
    }
    for (int k = 0; k < from.states.n; k++)
        from.states.row[k].dtype = TR_F32;
    CHECK_OK(tr_load_store(store, &from, (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE)));
}

/* Gives matrices that are held in the compute dtype the values that they would have packed. */
static inline void load_decoded(const struct run *r, const struct layout *l, const struct tr_store *store)
{
    for (int i = 0; i < r->m->n_params; i++) {
        int64_t n = r->m->param[i].n;
        enum tr_packed packed = (enum tr_packed)r->packed_of[i];
        if (!packed || r->c->place.packed_of[i])
            continue;
        float *y = malloc((size_t)n * sizeof *y);
        void *grains = malloc(tr_packed_bytes(packed, n));
        CHECK(y && grains);
        tr_packed_encode(packed, start_of(l)[i], n, grains);
        tr_packed_decode(packed, grains, 0, n, y, r->c->opt.compute_dtype);
        CHECK_OK(store->put(store->ctx, TR_S_VALUE, i, 0, n, y));
        free(y);
        free(grains);
    }
}

/* Random weights through the store, as `train --from_scratch` does; plain gradient descent: what a gradient is off by,
 * a weight is off by as much, whatever its size. */
static inline void train(struct run *r, const struct layout *l, struct tr_mesh *mesh, int first_micro, int n_micro,
                         int n_global)
{
    const struct tr_config cfg = {
        .optim = TR_OPTIM_SGD, .learning_rate = 0.05, .max_grad_norm = 0.5, .lr_scheduler_type = TR_LR_CONSTANT
    };
    int64_t n_targets = (int64_t)n_global * (N_TOKENS - 2 * ROWS);
    float values[TR_STEP_COUNT];
    struct tr_step_result s;
    CHECK_OK(tr_pool_open(1, &r->pool));
    CHECK_OK(tr_exec_open(r->c, &r->dev, r->pool, mesh, 7, &r->e));
    CHECK(r->dev.reserved_bytes == tr_compiled_bytes(r->c));
    struct tr_store store = tr_exec_store(r->e);
    load_start(r, l, &store);
    load_decoded(r, l, &store);
    for (int step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < n_micro; i++)
            fill(r, i, step, first_micro + i);
        tr_step_values(&cfg, step, N_STEPS, n_targets, values);
        if (r->c->opt.compute_dtype == TR_F16)
            tr_step_scale(&cfg, step, LOSS_SCALE, 0, values);
        CHECK_OK(tr_exec_step(r->e, &cfg, r->micro, values, &s));
    }
    r->loss = s.loss_sum / (double)n_targets;
    r->norm = s.grad_norm;
}

static inline void close_run(struct run *r)
{
    tr_exec_close(r->e);
    tr_device_close(&r->dev);
    tr_pool_close(r->pool);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
}

#endif
