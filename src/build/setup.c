/* setup.c - configuration -> models, batch shapes, compiled plan. The same function serves `plan` and `train`, so their
 * bytes cannot differ. */
#include "base/host.h"
#include "build/setup_impl.h"
#include "optim/optim.h"
#include <stdlib.h>

enum { DEFAULT_LENGTH = 1024, LOADER_DEPTH = 3 };
static const double LORAPLUS_EMBEDDING_LR = 1e-6;

/* What this build does not do is refused by name, not ignored. */
static enum tr_status check_support(const struct tr_config *cfg)
{
    bool has_masters = cfg->master_dtype == TR_F32 && cfg->grad_dtype == TR_F32 && cfg->moment_dtype == TR_F32;
    if (cfg->dtype == TR_F16 && !has_masters)
        return tr_fail(TR_USAGE, "dtype float16 keeps master_dtype, grad_dtype and moment_dtype in float32: its range "
                                 "is too small for them; drop these options or use --bf16");
    if (cfg->dtype == TR_F16 && cfg->fp8)
        return tr_fail(TR_USAGE, "fp8 has no loss scale; use it with --bf16");
    if (!cfg->fp8 && (cfg->fp8_gradient == TR_E5M2 || cfg->fp8_scaling == TR_FP8_DELAYED))
        return tr_fail(TR_USAGE, "fp8_gradient and fp8_scaling are for --fp8; add it or drop them");
    return TR_OK;
}

const struct tr_device_row *tr_choose_device(const struct tr_config *cfg, int n_ranks)
{
    bool is_alone = n_ranks == 1 && cfg->dp * cfg->tp * cfg->pp * cfg->cp == 1;
    if (cfg->device != TR_DEVICE_CHOICE_AUTO)
        return tr_device_row(tr_config_word("device", (int)cfg->device));
    return is_alone ? tr_device_best() : tr_device_row("cpu");
}

/* Sizes of the axes: zero shards over all data-parallel ranks, or over hybrid_shard of them with replicas of that. */
void tr_setup_axes(const struct tr_config *cfg, int axis[TR_AXES])
{
    int64_t shard = cfg->zero == 0 ? 1 : cfg->hybrid_shard > 0 ? cfg->hybrid_shard : cfg->dp;
    axis[TR_AXIS_PP] = (int)cfg->pp;
    axis[TR_AXIS_DP] = (int)(cfg->dp / shard);
    axis[TR_AXIS_SHARD] = (int)shard;
    axis[TR_AXIS_CP] = (int)cfg->cp;
    axis[TR_AXIS_TP] = (int)cfg->tp;
}

static struct tr_layout layout_of(const struct tr_setup *s)
{
    int coord[TR_AXES];
    tr_mesh_coords(s->env.rank, s->axis, coord);
    struct tr_layout l = { .data_size = s->axis[TR_AXIS_DP] * s->axis[TR_AXIS_SHARD],
                           .data_rank = coord[TR_AXIS_DP] * s->axis[TR_AXIS_SHARD] + coord[TR_AXIS_SHARD],
                           .shard_size = s->axis[TR_AXIS_SHARD],
                           .shard_rank = coord[TR_AXIS_SHARD],
                           .cp_mode = s->cfg->cp_mode,
                           .sync_last = s->cfg->sync == TR_SYNC_LAST,
                           .sp = s->cfg->sp && s->cfg->tp > 1,
                           .zero = (int)s->cfg->zero,
                           .in_order = s->cfg->reproducible == TR_REPRODUCIBLE_LAYOUT };
    memcpy(l.size, s->axis, sizeof l.size);
    memcpy(l.coord, coord, sizeof l.coord);
    return l;
}

/* The reference of pairs has no dropout, so the model that is compared with it has none unless it is asked for. */
static double dropout_of(const struct tr_config *cfg)
{
    return cfg->dropout < 0 && cfg->task != TR_TASK_SFT ? 0 : cfg->dropout;
}

static enum tr_status open_model(const struct tr_config *cfg, const struct tr_dirs *from, int64_t rows, int64_t length,
                                 bool is_training, struct tr_model **out)
{
    bool wants_logits = !is_training && cfg->verb == TR_VERB_EXPLAIN;
    struct tr_model_options opt = { .rows = rows,
                                    .sequence_length = length,
                                    .dropout = is_training ? dropout_of(cfg) : 0,
                                    .noise = is_training ? cfg->neftune_noise_alpha : 0,
                                    .is_dft = is_training && cfg->use_dft_loss,
                                    .is_weighed = is_training && cfg->loss_weights,
                                    .label_smoothing = is_training ? cfg->label_smoothing_factor : 0,
                                    .z_loss = is_training ? cfg->z_loss : 0,
                                    .pair = tr_config_pair(cfg),
                                    .gives_sums = !is_training && !wants_logits &&
                                                  (cfg->eval_choices || cfg->task != TR_TASK_SFT),
                                    .wants_logits = wants_logits,
                                    .ignore_keys = cfg->ignore_config_keys,
                                    .takes_names = cfg->verb == TR_VERB_PLAN };
    return tr_dirs_model(from, &opt, is_training, out);
}

/* The dtype of the weights that came in; where there are none, what config.json says. An adapter is saved as PEFT does:
 * in the dtype that is trained. */
static void choose_save_dtype(struct tr_setup *s)
{
    struct tr_hf *hf = NULL;
    s->save_dtype = s->from.adapter ? s->cfg->master_dtype : tr_config_dtype(s->model->config);
    if (s->from.adapter)
        return;
    if (s->cfg->from_scratch || !tr_dir_exists(s->cfg->model) || tr_hf_open(s->cfg->model, &hf) != TR_OK) {
        tr_error_clear(); /* who needs the weights will say so */
        return;
    }
    if (tr_hf_count(hf) > 0 && tr_hf_tensor(hf, 0)->dtype <= TR_F64)
        s->save_dtype = tr_hf_tensor(hf, 0)->dtype;
    tr_hf_close(hf);
}

/* Every pattern names something: one that does not is a misspelling. */
static enum tr_status check_patterns(const struct tr_model *m, const char *option, const struct tr_words *list)
{
    for (size_t k = 0; k < list->n; k++) {
        int i = 0;
        while (i < m->n_params && !tr_pattern_matches(list->item[k], m->param[i].name))
            i++;
        if (i == m->n_params)
            return tr_fail(TR_USAGE, "%s %s matches no parameter; names are like %s, and * stands for any text", option,
                           list->item[k], m->param[m->n_params / 2].name);
    }
    return TR_OK;
}

/* Of an adapted model the adapter learns. */
static enum tr_status freeze_base(struct tr_setup *s)
{
    if (s->cfg->from_scratch)
        return tr_fail(TR_USAGE, "an adapter needs the weights of its base: drop --from_scratch");
    char key[TR_ADAPTER_KEY_MAX];
    TR_PASS(TR_ALLOC(s->is_frozen, (size_t)s->model->n_params, "a setup"));
    TR_PASS(TR_ALLOC(s->n_saved, (size_t)s->model->n_params, "a setup"));
    for (int i = 0; i < s->model->n_params; i++) {
        s->is_frozen[i] = !tr_adapter_learns(s->model, i);
        s->n_saved[i] = tr_adapter_saves(s->model, i) + tr_adapter_second_key(s->model, i, key, sizeof key);
    }
    return TR_OK;
}

/* Frozen parameters are held and saved in the dtype of compute: what a file has beyond that would be lost. */
static enum tr_status choose_frozen(struct tr_setup *s)
{
    const struct tr_config *cfg = s->cfg;
    const struct tr_model *m = s->model;
    int n = 0;
    if (s->from.adapter)
        return freeze_base(s);
    if (cfg->trainable.n + cfg->frozen.n == 0)
        return TR_OK;
    TR_PASS(check_patterns(m, "trainable", &cfg->trainable));
    TR_PASS(check_patterns(m, "frozen", &cfg->frozen));
    TR_PASS(TR_ALLOC(s->is_frozen, (size_t)m->n_params, "a setup"));
    for (int i = 0; i < m->n_params; i++)
        n += s->is_frozen[i] = !tr_param_learns(cfg, m->param[i].name);
    if (n == m->n_params)
        return tr_fail(TR_USAGE, "--trainable and --frozen together leave none of the %d parameters to train", n);
    if (n > 0 && cfg->from_scratch)
        return tr_fail(TR_USAGE, "frozen parameters come from a file: make one with trireme init, and train from that "
                                 "instead of --from_scratch");
    if (n > 0 && tr_dtype_bytes(s->save_dtype) > tr_dtype_bytes(cfg->dtype))
        return tr_fail(TR_USAGE, "frozen parameters of %s are %s: with dtype %s they would lose bits; use --dtype %s",
                       cfg->model, tr_dtype_name(s->save_dtype), tr_dtype_name(cfg->dtype),
                       tr_dtype_name(s->save_dtype));
    return TR_OK;
}

/* A checkpoint holds whole weights, which a packed base no longer has; that of an adapter does not hold the base. */
static enum tr_status choose_packed(struct tr_setup *s, bool is_training)
{
    if (tr_config_packed(s->cfg) && is_training && !s->from.adapter)
        return tr_fail(TR_USAGE,
                       "%s holds weights in fewer bits than a checkpoint saves, so it trains adapters only; add "
                       "--finetuning_type lora, or drop it",
                       s->cfg->load_in_4bit ? "load_in_4bit" : "base_dtype fp8");
    if (is_training && !s->from.adapter) /* codes in a file are decoded */
        return TR_OK;
    const struct tr_model *m = is_training ? s->model : s->eval_model ? s->eval_model : s->text_model[TR_FOR_DECODE];
    enum tr_status st = tr_setup_packed(s->cfg, s->from.base, m, is_training ? s->is_frozen : NULL, &s->packed_of);
    const struct tr_adapter *a = s->packed_of ? s->from.adapter : NULL;
    if (st == TR_OK && a && a->init == TR_ADAPTER_PISSA)
        st =
            tr_fail(TR_USAGE, "init_lora_weights pissa needs a base in float32, float16 or bfloat16 (PEFT's rule), and "
                              "this one is held in few bits; use olora, true or gaussian, or a base that is not "
                              "quantised");
    if (st == TR_OK && a && a->init == TR_ADAPTER_OLORA && a->config)
        st = tr_fail(TR_USAGE,
                     "%s began with a part of its base (init_lora_weights olora), and PEFT quantises anew what that "
                     "leaves of a base in few bits; convert it with PEFT (path_initial_model_for_weight_conversion), "
                     "or use a base that is not quantised",
                     s->from.dir);
    return st;
}

enum tr_status tr_setup_positions(const struct tr_config *cfg, int64_t *out)
{
    struct tr_model *probe = NULL;
    struct tr_dirs from = { 0 };
    enum tr_status st = TR_OK;
    TR_TRY(tr_dirs_open(cfg, &from));
    TR_TRY(open_model(cfg, &from, 1, 1, false, &probe));
    *out = probe->hp.max_positions;
out:
    tr_model_close(probe);
    tr_dirs_close(&from);
    return st;
}

/* Tokens per row: as asked, else what the model was made for, up to a length that a CPU trains with. */
enum tr_status tr_setup_length(const struct tr_config *cfg, int64_t *out)
{
    int64_t n_positions = 0;
    TR_PASS(tr_setup_positions(cfg, &n_positions));
    *out = cfg->sequence_length > 0 ? cfg->sequence_length : tr_min64(n_positions, DEFAULT_LENGTH);
    return TR_OK;
}

/* Bytes that recompute auto keeps to. Without a budget that is what the machine has: nine tenths of the memory of the
 * device, or of the host or its cgroup, divided by the ranks that share it. The total, not what is free now: a resume,
 * and the other ranks of the host, must compile the same run. Six significant bits, because hosts of one kind differ by
 * some pages. */
uint64_t tr_setup_budget(const struct tr_device_row *device, uint64_t host_bytes, uint64_t n_ranks)
{
    uint64_t own = tr_device_total(device), beside = TR_GPU_BESIDE_BYTES, unit = 1;
    uint64_t has = device->is_host ? host_bytes / n_ranks : own > beside ? own - beside : 0;
    if (has == 0 || (device->is_host && host_bytes == UINT64_MAX))
        return 0;
    uint64_t budget = has / 10 * 9;
    while (budget / unit >= 64)
        unit *= 2;
    return budget / unit * unit;
}

static uint64_t budget_of(const struct tr_setup *s)
{
    const struct tr_config *cfg = s->cfg;
    bool is_fitted = cfg->recompute == TR_RECOMPUTE_AUTO ||
                     ((cfg->offload_optimizer != TR_OFFLOAD_NONE || cfg->offload_param != TR_OFFLOAD_NONE) &&
                      cfg->offload_share < 0);
    return cfg->memory_budget > 0 || !is_fitted ? (uint64_t)cfg->memory_budget : tr_setup_memory(s);
}

uint64_t tr_setup_memory(const struct tr_setup *s)
{
    struct tr_host h;
    uint64_t n = 1;
    for (int a = 0; a < TR_AXES; a++)
        n *= (uint64_t)s->axis[a];
    if (s->env.n_local > 0)
        n = (uint64_t)s->env.n_local;
    tr_host_read("", &h);
    return tr_setup_budget(s->device, h.total_bytes, n);
}

size_t tr_setup_match_bytes(const struct tr_pair_rule *k, int64_t row_tokens, int64_t eval_rows, uint64_t n_rows)
{
    size_t sums = (size_t)(eval_rows * row_tokens * tr_doc_sums(k)) * sizeof(float);
    return k->is_matched ? tr_match_bytes(n_rows, row_tokens) + tr_round_up(sums, 64) : 0;
}

static struct tr_compile_options compile_options(const struct tr_setup *s, enum tr_use use)
{
    const struct tr_config *cfg = s->cfg;
    const struct tr_column *column = tr_column_of(s->device->name);
    int64_t n_train = s->model ? s->model->n_tokens : 0, n_eval = s->eval_model ? s->eval_model->n_tokens : 0;
    bool is_alone = use == TR_USE_PROOF; /* whatever the mesh is */
    size_t batch = tr_batch_bytes(tr_max64(n_train, n_eval));
    return (struct tr_compile_options){
        .compute_dtype = cfg->dtype,
        .grad_dtype = cfg->grad_dtype,
        .reduce_dtype = cfg->reduce_dtype,
        .master_dtype = cfg->master_dtype,
        .moment_dtype = cfg->moment_dtype,
        .optim = use == TR_USE_TRAIN ? tr_optim_row(cfg->optim) : NULL,
        .is_frozen = s->is_frozen,
        .packed_of = s->packed_of,
        .nests_scales = cfg->bnb_4bit_use_double_quant,
        .n_saved = s->n_saved,
        .groups = s->groups,
        .offload_share = use != TR_USE_TRAIN || cfg->offload_optimizer == TR_OFFLOAD_NONE ? 0 : cfg->offload_share,
        .offloads_to_disk = cfg->offload_optimizer == TR_OFFLOAD_DISK,
        .offloads_params_to_disk = cfg->offload_param == TR_OFFLOAD_DISK,
        .offload_dir = cfg->offload_optimizer == TR_OFFLOAD_DISK ? cfg->offload_optimizer_dir : cfg->offload_param_dir,
        .offloads_grads = use == TR_USE_TRAIN && cfg->offload_gradients,
        .updates_on_host = cfg->offload_update == TR_UPDATE_ON_HOST,
        .stows_activations = use == TR_USE_TRAIN && cfg->offload_activations,
        .offload_param_share = use != TR_USE_TRAIN || cfg->offload_param == TR_OFFLOAD_NONE ? 0 : cfg->offload_share,
        .layout = is_alone ? (struct tr_layout){ .data_size = 1, .shard_size = 1 } : layout_of(s),
        .pp_schedule = use == TR_USE_TRAIN ? cfg->pp_schedule : NULL,
        .pp_chunks = use == TR_USE_TRAIN ? (int)cfg->pp_chunks : 1,
        .n_micro = (int)cfg->gradient_accumulation_steps,
        .recompute = cfg->recompute,
        .memory_budget = use == TR_USE_TRAIN ? budget_of(s) : (uint64_t)cfg->memory_budget,
        .n_threads = s->n_threads,
        .column = column,
        .fuses = column->fuses,
        .has_own_memory = !s->device->is_host,
        .any_order = cfg->reproducible == TR_REPRODUCIBLE_OFF,
        .fp8 = cfg->fp8,
        .fp8_e5m2 = cfg->fp8_gradient == TR_E5M2,
        .fp8_history = cfg->fp8_scaling == TR_FP8_DELAYED,
        .data_bytes = s->loader_bytes + s->eval_batch_bytes + s->text_batch_bytes + s->match_bytes,
        .save_bytes = TR_IO_CHUNK * sizeof(float),
        .pages_bytes = use == TR_USE_TRAIN ? TR_SAVE_PAGES_BYTES : 0,
        .stages_saves = cfg->async_save != TR_SAVE_STRAIGHT,
        .part_bytes = TR_SAVE_PART_BYTES,
        .save_dtype = s->save_dtype,
        .batch_bytes = s->device->is_host            ? 0
                       : batch > s->text_batch_bytes ? batch
                                                     : s->text_batch_bytes,
        .cache_rows = s->text.n_context,
        .cache_sequences = s->text.n_sequences,
    };
}

static struct tr_legal_query legal_query(const struct tr_config *cfg, const struct tr_model *m)
{
    struct tr_legal_query q;
    tr_legal_query_of(cfg, &q);
    tr_legal_add_model(m, &q);
    return q;
}

/* The host has other kernels than a GPU, whose products of float it does not follow to the bit; and kernels of its own
 * for what is updated element by element. */
static enum tr_status check_update_place(const struct tr_setup *s)
{
    const struct tr_config *cfg = s->cfg;
    const char *name = tr_config_word("optim", (int)cfg->optim);
    for (const struct tr_optim *o = tr_optim_row(cfg->optim); o; o = o->rest)
        for (int k = 0; k < o->n_phases; k++)
            if (o->phase[k].is_whole || o->phase[k].sums)
                return tr_fail(TR_USAGE,
                               "offload_update cpu: optim %s works on whole matrices, which the device has; use adamw, "
                               "adamw_8bit, lion, lion_8bit or sgd",
                               name);
    if (!s->device->is_host && cfg->reproducible != TR_REPRODUCIBLE_OFF)
        return tr_fail(TR_USAGE,
                       "offload_update cpu: the host rounds the last bits of an update otherwise than %s, which "
                       "reproducible %s does not allow; add --reproducible off, or leave offload_update out",
                       s->device->name, tr_config_word("reproducible", (int)cfg->reproducible));
    return TR_OK;
}

enum tr_status tr_setup_legal(const struct tr_config *cfg, struct tr_str *out)
{
    struct tr_model *m = NULL;
    struct tr_dirs from = { 0 };
    int64_t length = 0;
    enum tr_status st = TR_OK;
    if (!cfg->model) {
        tr_legal_print(NULL, cfg->json, out);
        return TR_OK;
    }
    TR_TRY(tr_setup_length(cfg, &length));
    TR_TRY(tr_dirs_open(cfg, &from));
    TR_TRY(open_model(cfg, &from, cfg->per_device_train_batch_size, length, false, &m));
    struct tr_legal_query q = legal_query(cfg, m);
    TR_TRY(tr_legal_add_schedule(&q));
    tr_legal_print(&q, cfg->json, out);
out:
    tr_model_close(m);
    tr_dirs_close(&from);
    return st;
}

/* LoRA+: B and all vectors learn faster than A by a factor. Adapters of embeddings have a small rate of their own, as
 * PEFT's optimizer has it. */
static enum tr_status add_loraplus(struct tr_setup *s)
{
    double ratio = s->from.adapter ? s->from.adapter->loraplus_ratio : 1, lr = s->cfg->learning_rate;
    if (!(ratio > 0) || ratio == 1)
        return TR_OK;
    TR_PASS(tr_groups_add(&s->groups, "*.lora_embedding_*", 0, lr > 0 ? LORAPLUS_EMBEDDING_LR / lr : 1));
    TR_PASS(tr_groups_add(&s->groups, "*.lora_B.*", 0, ratio));
    return tr_groups_add(&s->groups, "*", 1, ratio);
}

/* What a setup is asked for. */
struct ask {
    const struct tr_config *cfg;
    enum tr_use use;
    int rank;                         /* below 0: this process */
    const struct tr_text_shape *text; /* TR_USE_TEXT */
    const cJSON *config;
};

static enum tr_status open_training(struct tr_setup *s)
{
    const struct tr_config *cfg = s->cfg;
    int64_t rows = cfg->per_device_train_batch_size * cfg->gradient_accumulation_steps;
    s->loader = (struct tr_loader_shape){ .row_tokens = s->sequence_length,
                                          .batch_rows = cfg->train_batch_size,
                                          .first_row = layout_of(s).data_rank * rows,
                                          .n_rows = rows,
                                          .micro_rows = cfg->per_device_train_batch_size,
                                          .depth = LOADER_DEPTH };
    s->loader_bytes = tr_round_up(tr_loader_bytes(&s->loader), 64);
    if (s->loader_bytes == 0)
        return tr_fail(TR_USAGE, "batch of %" PRId64 " rows of %" PRId64 " tokens is not possible",
                       cfg->train_batch_size, s->sequence_length);
    TR_PASS(open_model(cfg, &s->from, cfg->per_device_train_batch_size, s->sequence_length, true, &s->model));
    choose_save_dtype(s);
    TR_PASS(choose_frozen(s));
    TR_PASS(tr_groups_load(cfg->optim_groups, &s->groups));
    for (int g = 1; g < s->groups.n; g++) {
        const char *pattern = s->groups.group[g].pattern;
        TR_PASS(check_patterns(s->model, cfg->optim_groups, &(struct tr_words){ &pattern, 1, NULL }));
    }
    return add_loraplus(s);
}

/* A run that trains splits its evaluation batches too. */
static enum tr_status check_legal_eval(const struct tr_setup *s, struct tr_legal_query q)
{
    if (!s->model || !s->eval_model)
        return TR_OK;
    q.train_batch_size = 0;
    q.micro_rows = s->eval_model->n_tokens / s->eval_model->sequence_length;
    enum tr_status st = tr_legal_check(&q);
    return st == TR_OK ? st : tr_fail_at(st, "per_device_eval_batch_size %" PRId64 ": ", q.micro_rows);
}

/* The mesh against the model with the batch that its axes split. */
static enum tr_status check_legal(const struct tr_setup *s, enum tr_use use)
{
    const struct tr_model *m = s->model ? s->model : s->eval_model ? s->eval_model : s->text_model[TR_FOR_DECODE];
    struct tr_legal_query q = legal_query(s->cfg, m);
    if (use == TR_USE_PROOF)
        return TR_OK;
    if (use != TR_USE_TRAIN) { /* what is about steps */
        q.train_batch_size = 0;
        q.in_order = false;
        q.pp_chunks = 1;
    }
    if (use == TR_USE_TEXT) { /* each of these ranks computes all tokens */
        q.cp = 1;
        q.sp = false;
    }
    TR_PASS(tr_legal_check(&q));
    return check_legal_eval(s, q);
}

static enum tr_status open_setup(const struct ask *a, struct tr_setup **out)
{
    enum tr_status st = TR_OK;
    const struct tr_config *cfg = a->cfg;
    bool is_training = a->use == TR_USE_TRAIN, is_proof = a->use == TR_USE_PROOF;
    struct tr_pool *pool = NULL;
    struct tr_setup *s = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "setup: out of memory");
    s->cfg = cfg;
    TR_TRY(check_support(cfg));
    tr_setup_axes(cfg, s->axis);
    TR_TRY(tr_mesh_env(&s->env));
    if (a->rank >= 0)
        s->env.rank = a->rank;
    s->env.timeout_us = (int64_t)(cfg->ddp_timeout * 1e6);
    s->device = is_proof ? tr_device_row("cpu") : tr_choose_device(cfg, s->env.size);
    TR_TRY(tr_pool_open((int)cfg->threads, &pool));
    s->n_threads = tr_pool_threads(pool);
    TR_TRY(tr_dirs_open(cfg, &s->from));
    if (a->use != TR_USE_TEXT)
        TR_TRY(tr_setup_length(cfg, &s->sequence_length));
    if (is_training)
        TR_TRY(open_training(s));
    if (is_training && cfg->sample_prompts) {
        TR_TRY(tr_prompts_open(cfg, &s->from, cfg->sample_prompts, NULL, &s->prompts));
        s->text = tr_text_shape_of(tr_text_sequences(cfg, s->prompts.n, (int)cfg->dp), tr_prompts_context(&s->prompts),
                                   false);
    } else if (a->text) {
        s->text = *a->text;
    }
    bool has_reference = tr_config_needs_reference(cfg);
    bool explains = cfg->verb == TR_VERB_EXPLAIN; /* one row at a time: logits are large */
    bool has_eval = is_training
                        ? cfg->eval_data.n || cfg->eval_split > 0 || cfg->eval_choices || has_reference || explains
                        : a->use != TR_USE_TEXT;
    if (has_eval) {
        int64_t rows = is_proof ? TR_PROOF_ROWS : explains ? 1 : cfg->per_device_eval_batch_size;
        TR_TRY(open_model(cfg, &s->from, rows, s->sequence_length, false, &s->eval_model));
        s->eval_batch_bytes = tr_batch_bytes(s->eval_model->n_tokens);
        if (is_training)
            s->match_bytes =
                tr_setup_match_bytes(&s->eval_model->pair, s->sequence_length, rows, (uint64_t)cfg->train_batch_size);
    }
    TR_TRY(tr_setup_text(s, a->config));
    TR_TRY(check_legal(s, a->use));
    if (is_training && cfg->offload_update == TR_UPDATE_ON_HOST)
        TR_TRY(check_update_place(s));
    if (!a->config)
        TR_TRY(choose_packed(s, is_training));
    struct tr_compile_options opt = compile_options(s, a->use);
    const struct tr_model *const models[TR_PURPOSES] = { [TR_FOR_TRAIN] = s->model,
                                                         [TR_FOR_EVAL] = s->eval_model,
                                                         [TR_FOR_PREFILL] = s->text_model[TR_FOR_PREFILL],
                                                         [TR_FOR_CHUNK] = s->text_model[TR_FOR_CHUNK],
                                                         [TR_FOR_DECODE] = s->text_model[TR_FOR_DECODE] };
    TR_TRY(tr_compile(models, &opt, &s->compiled));
out:
    tr_pool_close(pool);
    if (st == TR_OK)
        *out = s;
    else
        tr_setup_close(s);
    return st;
}

enum tr_status tr_setup_open(const struct tr_config *cfg, enum tr_use use, struct tr_setup **out)
{
    return open_setup(&(struct ask){ .cfg = cfg, .use = use, .rank = -1 }, out);
}

enum tr_status tr_setup_open_rank(const struct tr_config *cfg, enum tr_use use, int rank, struct tr_setup **out)
{
    return open_setup(&(struct ask){ .cfg = cfg, .use = use, .rank = rank }, out);
}

enum tr_status tr_setup_open_text(const struct tr_config *cfg, const struct tr_text_shape *text, const cJSON *config,
                                  struct tr_setup **out)
{
    return open_setup(&(struct ask){ .cfg = cfg, .use = TR_USE_TEXT, .rank = -1, .text = text, .config = config }, out);
}

void tr_setup_note_positions(const struct tr_setup *s, struct tr_str *out)
{
    const struct tr_model *m = s->model ? s->model : s->eval_model;
    if (s->sequence_length > m->hp.max_positions)
        tr_str_addf(
            out, "sequence_length %" PRId64 " is beyond the %" PRId64 " positions that config.json gives the model\n",
            s->sequence_length, m->hp.max_positions);
}

void tr_setup_close(struct tr_setup *s)
{
    if (!s)
        return;
    tr_compiled_close(s->compiled);
    tr_model_close(s->model);
    tr_model_close(s->eval_model);
    for (int k = 0; k < TR_PURPOSES; k++)
        tr_model_close(s->text_model[k]);
    tr_prompts_close(&s->prompts);
    tr_dirs_close(&s->from);
    free(s->is_frozen);
    free(s->packed_of);
    free(s->n_saved);
    free(s);
}
