/* golden_rig.h - one golden case opened for a test: its batch, and an executor with its weights loaded.
 *
 * A golden directory (tests/golden/README.md) holds config.json, model.safetensors and golden.safetensors. The rig is
 * built by the same calls that `train` makes, so what is compared is what runs. */
#ifndef TR_TESTS_TRAIN_GOLDEN_RIG_H
#define TR_TESTS_TRAIN_GOLDEN_RIG_H

#include "golden_file.h"

enum { MAX_MICRO = 2 };

/* How to run it: rows per micro-batch follow from n_micro and the data-parallel ranks. */
struct rig_shape {
    int n_micro, n_threads;
    enum tr_recompute recompute;
    const struct tr_comm_env *env; /* NULL: one rank alone; else this rank of a mesh of these sizes */
    int axis[TR_AXES], zero;
    bool sp;
    bool fuses, is_dft;
    double label_smoothing, z_loss;
    enum tr_cp_mode cp_mode;
    const char *adapter;     /* directory of a golden adapter; NULL: none, and everything learns */
    const char *new_adapter; /* text of adapter_config.json; NULL: none */
};

struct rig {
    struct golden g;
    struct tr_model *model, *logits_model;
    struct tr_compiled *compiled;
    struct tr_device dev;
    struct tr_pool *pool;
    struct tr_mesh *mesh;
    struct tr_exec *exec;
    struct tr_batch whole, micro[MAX_MICRO];
    int32_t *micro_begin, *other;
    int64_t *sample;
    bool *is_frozen; /* by parameter */
    struct tr_config cfg;
};

/* Micro-batch i of data rank `rank` is piece rank * n_micro + i of the rows; begin counts from its own first token. */
static inline void rig_cut(struct rig *r, int n_micro, int n_ranks, int rank)
{
    const struct golden *g = &r->g;
    size_t n = (size_t)g->rows * (size_t)g->length;
    int64_t each = (int64_t)n / n_micro / n_ranks;
    r->sample = calloc(n, sizeof *r->sample);
    r->micro_begin = calloc(n, sizeof *r->micro_begin);
    r->other = malloc(n * sizeof *r->other); /* no pairs */
    assert_true(r->sample && r->micro_begin && r->other);
    memset(r->other, -1, n * sizeof *r->other);
    for (int64_t k = 0; k < (int64_t)n; k++)
        r->micro_begin[k] = (int32_t)(g->begin[k] - k / each * each);
    r->whole = (struct tr_batch){ g->tokens, g->targets, g->positions, g->begin, r->sample, r->other, NULL };
    for (int i = 0; i < n_micro; i++) {
        int64_t at = (rank * n_micro + i) * each;
        r->micro[i] = (struct tr_batch){
            g->tokens + at, g->targets + at, g->positions + at, r->micro_begin + at, r->sample + at, r->other + at, NULL
        };
    }
}

/* TR_TEST_DEVICE=cuda runs every golden case on a GPU. */
static inline const char *rig_device(void)
{
    const char *name = getenv("TR_TEST_DEVICE");
    return name ? name : "cpu";
}

static inline struct tr_layout rig_layout(const struct rig_shape *s)
{
    struct tr_layout l = { .data_size = 1, .shard_size = 1, .cp_mode = s->cp_mode, .sp = s->sp, .zero = s->zero };
    if (!s->env)
        return l;
    memcpy(l.size, s->axis, sizeof l.size);
    tr_mesh_coords(s->env->rank, s->axis, l.coord);
    l.shard_size = l.size[TR_AXIS_SHARD];
    l.shard_rank = l.coord[TR_AXIS_SHARD];
    l.data_size = l.size[TR_AXIS_DP] * l.shard_size;
    l.data_rank = l.coord[TR_AXIS_DP] * l.shard_size + l.shard_rank;
    return l;
}

static inline void rig_open_mesh(struct rig *r, const struct rig_shape *s)
{
    if (!s->env)
        return;
    struct tr_comm_env env = *s->env;
    env.arena_bytes = tr_exec_shared_bytes(r->compiled);
    env.device = &r->dev;
    must(tr_mesh_open("shm", &env, s->axis, &r->mesh));
}

/* Gives both models an adapter; everything else is frozen. What is expected of a golden one is in its own file. */
static inline void rig_adapt(struct rig *r, struct tr_adapter *a)
{
    must(tr_adapt(r->model, a, true));
    must(tr_adapt(r->logits_model, a, false));
    tr_adapter_close(a);
    for (int i = 0; i < r->model->n_params; i++)
        r->is_frozen[i] = !tr_adapter_learns(r->model, i);
}

/* The adapter of a shape, and whether it wants a head of its own. NULL: it has none. */
static inline struct tr_adapter *rig_adapter(struct rig *r, const char *dir, const struct rig_shape *s,
                                             struct tr_model_options *opt)
{
    struct tr_adapter *a = NULL;
    struct tr_model *m = NULL;
    if (!s->adapter && !s->new_adapter)
        return NULL;
    if (s->new_adapter) {
        must(tr_adapter_parse(s->new_adapter, strlen(s->new_adapter), "adapter_config.json", &a));
    } else {
        must(tr_adapter_read(s->adapter, &a));
        tr_st_close(r->g.st);
        golden_open_file(&r->g, s->adapter);
    }
    must(tr_model_open(dir, opt, &m));
    must(tr_adapter_unties(a, m, &opt->unties));
    tr_model_close(m);
    return a;
}

static inline void rig_open(struct rig *r, const char *dir, struct rig_shape shape)
{
    *r = (struct rig){ 0 };
    bool is_host = tr_device_row(rig_device())->is_host;
    const struct tr_column *column = tr_column_of(rig_device());
    golden_open(&r->g, dir);
    struct tr_layout layout = rig_layout(&shape);
    rig_cut(r, shape.n_micro, layout.data_size, layout.data_rank);
    r->cfg = (struct tr_config){ .optim = TR_OPTIM_ADAMW,
                                 .learning_rate = 1e-3,
                                 .weight_decay = 0.1,
                                 .adam_beta1 = 0.9,
                                 .adam_beta2 = 0.999,
                                 .adam_epsilon = 1e-8,
                                 .max_grad_norm = 1.0,
                                 .lr_scheduler_type = TR_LR_CONSTANT };
    struct tr_model_options opt = { .rows = r->g.rows / shape.n_micro / layout.data_size,
                                    .sequence_length = r->g.length,
                                    .dropout = -1,
                                    .is_dft = shape.is_dft,
                                    .label_smoothing = shape.label_smoothing,
                                    .z_loss = shape.z_loss };
    struct tr_adapter *adapter = rig_adapter(r, dir, &shape, &opt);
    must(tr_model_open(dir, &opt, &r->model));
    opt.rows = r->g.rows;
    opt.wants_logits = true;
    must(tr_model_open(dir, &opt, &r->logits_model));
    r->is_frozen = calloc(6 * (size_t)r->model->n_params, sizeof *r->is_frozen); /* an adapter adds less than that */
    assert_non_null(r->is_frozen);
    if (adapter)
        rig_adapt(r, adapter);
    struct tr_compile_options c = { .compute_dtype = TR_F32,
                                    .grad_dtype = TR_F32,
                                    .master_dtype = TR_F32,
                                    .moment_dtype = TR_F32,
                                    .optim = tr_optim_row(r->cfg.optim),
                                    .is_frozen = r->is_frozen,
                                    .layout = layout,
                                    .n_micro = shape.n_micro,
                                    .recompute = shape.recompute,
                                    .n_threads = shape.n_threads,
                                    .column = column,
                                    .has_own_memory = !is_host,
                                    .fuses = column->fuses || shape.fuses,
                                    .batch_bytes = is_host ? 0 : tr_batch_bytes(r->g.rows * r->g.length),
                                    .save_bytes = TR_IO_CHUNK * sizeof(float) };
    bool is_whole = layout.size[TR_AXIS_TP] <= 1 && layout.size[TR_AXIS_CP] <= 1; /* logits are not split */
    const struct tr_model *const models[TR_PURPOSES] = {
        [TR_FOR_TRAIN] = r->model, [TR_FOR_EVAL] = is_whole ? r->logits_model : NULL
    };
    must(tr_compile(models, &c, &r->compiled));
    must(tr_device_open(rig_device(), &r->dev));
    rig_open_mesh(r, &shape);
    must(tr_pool_open(shape.n_threads, &r->pool));
    must(tr_exec_open(r->compiled, &r->dev, r->pool, r->mesh, 0, &r->exec));
    struct tr_store store = tr_exec_store(r->exec);
    must(tr_load_weights(&store, dir, (float *)(void *)tr_exec_arena(r->exec, TR_A_SAVE), NULL));
    if (shape.adapter)
        must(tr_load_adapter(&store, dir, shape.adapter, (float *)(void *)tr_exec_arena(r->exec, TR_A_SAVE)));
    if (shape.new_adapter)
        must(tr_load_new_adapter(&store, dir, 1, r->pool, (float *)(void *)tr_exec_arena(r->exec, TR_A_SAVE)));
}

/* All of one state of a parameter, as the store gives it: valid until the next call. */
static inline const void *rig_state(struct rig *r, enum tr_state what, int param)
{
    struct tr_store store = tr_exec_store(r->exec);
    const void *p = NULL;
    must(store.get(store.ctx, what, param, 0, r->model->param[param].n, &p));
    return p;
}

static inline void rig_close(struct rig *r)
{
    tr_exec_close(r->exec);
    tr_mesh_close(r->mesh);
    tr_device_close(&r->dev);
    tr_pool_close(r->pool);
    tr_compiled_close(r->compiled);
    tr_model_close(r->logits_model);
    tr_model_close(r->model);
    golden_close(&r->g);
    free(r->micro_begin);
    free(r->sample);
    free(r->other);
    free(r->is_frozen);
}

/* Mean loss; gradients stay in the executor. */
static inline double rig_gradients(struct rig *r)
{
    float values[TR_STEP_COUNT];
    double sum = 0;
    tr_step_values(&r->cfg, 0, 1, r->g.n_targets, values);
    must(tr_exec_gradients(r->exec, r->micro, values, &sum));
    return sum / (double)r->g.n_targets;
}

static inline const float *rig_grad(struct rig *r, int param)
{
    return rig_state(r, TR_S_GRAD, param);
}

#endif
