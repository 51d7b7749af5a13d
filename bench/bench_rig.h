/* bench_rig.h - what the benches of whole optimizer steps share: a model with random weights on random tokens, opened
 * as `train` opens it, and a step of it. */
#ifndef TR_BENCH_RIG_H
#define TR_BENCH_RIG_H

#include "adapter/adapter.h"
#include "base/base.h"
#include "train/scaler.h"
#include "train/train.h"
#include <stdio.h>
#include <stdlib.h>

enum { RIG_MICRO = 16 };

struct rig {
    struct tr_config cfg;
    struct tr_model *m;
    struct tr_compiled *c;
    struct tr_pool *pool;
    struct tr_device dev;
    struct tr_exec *e;
    struct tr_batch batch[RIG_MICRO];
    struct tr_scaler scaler;
    int64_t n_tokens; /* of a step */
    bool *is_frozen;
    uint8_t *packed_of;
};

enum rig_base { RIG_LEARNS, RIG_FROZEN, RIG_NF4, RIG_FP4 };

/* What to open. model: a config.json, or NULL: GPT-2 124M, its vocabulary as the argument says. */
struct rig_shape {
    const char *model, *device;
    int64_t vocab, dropout;     /* vocab: of GPT-2 124M; dropout: percent, below 0: as the config says */
    int64_t rows, length, pack; /* pack: tokens of a document; 0 = a row */
    int64_t lora, lora_dropout; /* rank of an adapter on all linears; 0 = all weights learn. Percent */
    int n_threads;
    enum rig_base base;            /* what all parameters but vectors are */
    struct tr_compile_options opt; /* n_micro, dtypes, recompute, column and the like; sizes are filled in */
};

static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline double seconds_since(int64_t start_us)
{
    return (double)(tr_clock_us() - start_us) * 1e-6;
}

static inline void rig_fill(const struct tr_batch *b, const struct rig_shape *s, int64_t vocab, uint64_t key)
{
    for (int64_t i = 0; i < s->rows * s->length; i++) {
        int64_t in_row = i % s->length, at = in_row % (s->pack > 0 ? s->pack : s->length);
        b->tokens[i] = (int32_t)(tr_philox(key, 0, (uint64_t)i).v[0] % (uint64_t)vocab);
        b->positions[i] = (int32_t)at;
        b->begin[i] = (int32_t)(i - at);
        b->sample[i] = i - at;
        b->targets[i] = (int32_t)(tr_philox(key, 0, (uint64_t)i + 1).v[0] % (uint64_t)vocab);
    }
}

static inline enum tr_status rig_config(const struct rig_shape *s, cJSON **out)
{
    char gpt2[256];
    if (s->model)
        return tr_json_load(s->model, 1 << 20, out);
    enum tr_status st =
        tr_format(gpt2, sizeof gpt2,
                  "{\"model_type\":\"gpt2\",\"vocab_size\":%d,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                  "\"n_positions\":1024}",
                  (int)s->vocab);
    return st == TR_OK ? tr_json_parse(gpt2, strlen(gpt2), "gpt2", out) : st;
}

/* LoRA on every linear, as torch_lean.py has it. */
static inline enum tr_status rig_adapt(struct tr_model *m, int64_t rank, int64_t dropout)
{
    char text[192];
    struct tr_adapter *a = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(tr_format(text, sizeof text,
                     "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%d,\"lora_dropout\":%.2f,"
                     "\"target_modules\":\"all-linear\"}",
                     (int)rank, 2 * (int)rank, (double)dropout / 100));
    TR_TRY(tr_adapter_parse(text, strlen(text), "lora", &a));
    TR_TRY(tr_adapt(m, a, true));
out:
    tr_adapter_close(a);
    return st;
}

/* With an adapter everything else is frozen; without one, base freezes the matrices. */
static inline enum tr_status rig_freeze(struct rig *r, const struct rig_shape *s, struct tr_compile_options *opt)
{
    static const enum tr_packed packed[] = {
        [RIG_LEARNS] = TR_NOT_PACKED, [RIG_FROZEN] = TR_NOT_PACKED, [RIG_NF4] = TR_PACKED_NF4, [RIG_FP4] = TR_PACKED_FP4
    };
    enum tr_status st = s->lora > 0 ? rig_adapt(r->m, s->lora, s->lora_dropout) : TR_OK;
    if (st != TR_OK || (s->base == RIG_LEARNS && s->lora == 0))
        return st;
    r->is_frozen = calloc((size_t)r->m->n_params, sizeof *r->is_frozen);
    r->packed_of = calloc((size_t)r->m->n_params, sizeof *r->packed_of);
    if (!r->is_frozen || !r->packed_of)
        return tr_fail(TR_NOMEM, "no memory for %d parameters", r->m->n_params);
    for (int i = 0; i < r->m->n_params; i++) {
        r->is_frozen[i] = s->lora > 0 ? !r->m->param[i].in_adapter : r->m->param[i].n_dims == 2;
        r->packed_of[i] = r->is_frozen[i] && tr_param_may_pack(r->m, i) ? (uint8_t)packed[s->base] : TR_NOT_PACKED;
    }
    opt->is_frozen = r->is_frozen;
    opt->packed_of = r->packed_of;
    return TR_OK;
}

/* Close what failed to open, too. */
static inline enum tr_status rig_open(struct rig *r, const struct rig_shape *s)
{
    enum tr_status st = TR_OK;
    cJSON *json = NULL;
    struct tr_compile_options opt = s->opt;
    struct tr_model_options mo = { .rows = s->rows, .sequence_length = s->length, .dropout = (double)s->dropout / 100 };
    size_t batch = tr_batch_bytes(s->rows * s->length);
    *r = (struct rig){ .cfg = { .optim = TR_OPTIM_ADAMW,
                                .learning_rate = 1e-4,
                                .adam_beta1 = 0.9,
                                .adam_beta2 = 0.999,
                                .adam_epsilon = 1e-8,
                                .max_grad_norm = 1,
                                .weight_decay = 0.01,
                                .lr_scheduler_type = TR_LR_CONSTANT },
                       .scaler = tr_scaler_of(opt.compute_dtype),
                       .n_tokens = opt.n_micro * s->rows * s->length };
    TR_TRY(rig_config(s, &json));
    TR_TRY(tr_model_from_json(json, &mo, &r->m));
    TR_TRY(tr_pool_open(s->n_threads, &r->pool));
    opt.n_threads = tr_pool_threads(r->pool);
    opt.optim = opt.optim ? opt.optim : &tr_adamw;
    opt.save_bytes = TR_IO_CHUNK * sizeof(float);
    opt.batch_bytes = opt.has_own_memory ? batch : 0;
    opt.data_bytes = (size_t)opt.n_micro * batch;
    TR_TRY(rig_freeze(r, s, &opt));
    TR_TRY(tr_compile((const struct tr_model *[TR_PURPOSES]){ r->m }, &opt, &r->c));
    TR_TRY(tr_device_open(s->device, &r->dev));
    TR_TRY(tr_exec_open(r->c, &r->dev, r->pool, NULL, 1, &r->e));
    struct tr_store store = tr_exec_store(r->e);
    TR_TRY(tr_load_random(&store, 1, r->pool, (float *)(void *)tr_exec_arena(r->e, TR_A_SAVE)));
    for (int i = 0; i < opt.n_micro; i++) {
        r->batch[i] = tr_batch_in(tr_exec_arena(r->e, TR_A_DATA) + (size_t)i * batch, s->rows * s->length);
        rig_fill(&r->batch[i], s, r->m->hp.vocab, (uint64_t)i + 1);
    }
out:
    return st;
}

static inline void rig_close(struct rig *r)
{
    tr_exec_close(r->e);
    tr_device_close(&r->dev);
    tr_pool_close(r->pool);
    tr_compiled_close(r->c);
    tr_model_close(r->m);
    free(r->is_frozen);
    free(r->packed_of);
}

static inline void rig_values(const struct rig *r, int64_t step, int64_t n_steps, float values[TR_STEP_COUNT])
{
    tr_step_values(&r->cfg, step, n_steps, r->n_tokens, values);
    if (r->scaler.scale > 0)
        tr_step_scale(&r->cfg, step, r->scaler.scale, r->scaler.n_skipped, values);
}

/* One optimizer step; in float16 one that overflows changes the scale only. */
static inline enum tr_status rig_step(struct rig *r, int64_t step, int64_t n_steps, struct tr_step_result *out)
{
    float values[TR_STEP_COUNT];
    rig_values(r, step, n_steps, values);
    if (r->scaler.scale == 0)
        return tr_exec_step(r->e, &r->cfg, r->batch, values, out);
    enum tr_status st = tr_exec_measure(r->e, &r->cfg, r->batch, values, out);
    bool is_overflow = st == TR_OK && tr_scaler_overflows(&r->scaler, out);
    if (st == TR_OK && !is_overflow)
        st = tr_exec_update(r->e, out);
    tr_scaler_count(&r->scaler, is_overflow);
    return st;
}

/* ---- name=value among the arguments ---- */

static inline const char *arg_text(int argc, char **argv, const char *name, const char *fallback)
{
    size_t n = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return argv[i] + n + 1;
    return fallback;
}

static inline int64_t arg_number(int argc, char **argv, const char *name, const char *fallback)
{
    int64_t v = 0;
    if (tr_parse_int(arg_text(argc, argv, name, fallback), 0, 1 << 20, &v) != TR_OK) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], name, tr_error_text());
        exit(1);
    }
    return v;
}

static inline enum tr_dtype arg_dtype(int argc, char **argv, const char *name)
{
    enum tr_dtype d = TR_F32;
    if (tr_dtype_parse(arg_text(argc, argv, name, "float32"), &d) != TR_OK) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], name, tr_error_text());
        exit(1);
    }
    return d;
}

/* [CONFIG.json|gpt2] vocab dropout rows length micro threads pack lora lora_dropout dtype grad state device recompute
 * fuse fp8 any_order optim8 offload offload_param offload_grad stow, with the defaults that bench_gpu.c names. */
static inline struct rig_shape arg_shape(int argc, char **argv)
{
    const char *device = arg_text(argc, argv, "device", "cpu"),
               *model = argc > 1 && !strchr(argv[1], '=') ? argv[1] : "gpt2";
    const struct tr_device_row *row = tr_device_row(device);
    const struct tr_column *column = row ? tr_column_of(device) : NULL;
    return (struct rig_shape){
        .model = strcmp(model, "gpt2") == 0 ? NULL : model,
        .device = device,
        .vocab = arg_number(argc, argv, "vocab", "50304"),
        .dropout =
            strcmp(arg_text(argc, argv, "dropout", ""), "published") == 0 ? -1 : arg_number(argc, argv, "dropout", "0"),
        .rows = arg_number(argc, argv, "rows", "4"),
        .length = arg_number(argc, argv, "length", "256"),
        .pack = arg_number(argc, argv, "pack", "0"),
        .lora = arg_number(argc, argv, "lora", "0"),
        .lora_dropout = arg_number(argc, argv, "lora_dropout", "0"),
        .n_threads = (int)arg_number(argc, argv, "threads", "2"),
        .base = (enum rig_base)tr_min64(RIG_FP4, arg_number(argc, argv, "base", "0")),
        .opt = { .optim = arg_number(argc, argv, "optim8", "0") ? &tr_adamw8 : &tr_adamw,
                 .compute_dtype = arg_dtype(argc, argv, "dtype"),
                 .grad_dtype = arg_dtype(argc, argv, "grad"),
                 .master_dtype = arg_dtype(argc, argv, "state"),
                 .moment_dtype = arg_dtype(argc, argv, "state"),
                 .n_micro = (int)tr_max64(1, tr_min64(RIG_MICRO, arg_number(argc, argv, "micro", "1"))),
                 .recompute = (enum tr_recompute)arg_number(argc, argv, "recompute", "0"),
                 .column = column,
                 .has_own_memory = row && !row->is_host,
                 .fuses = arg_number(argc, argv, "fuse", column && column->fuses ? "1" : "0") != 0,
                 .fp8 = arg_number(argc, argv, "fp8", "0") != 0,
                 .fp8_e5m2 = arg_number(argc, argv, "e5m2", "0") != 0,
                 .fp8_history = arg_number(argc, argv, "delayed", "0") != 0,
                 .offload_share = 0.01 * (double)arg_number(argc, argv, "offload", "0"),
                 .offload_param_share = 0.01 * (double)arg_number(argc, argv, "offload_param", "0"),
                 .offloads_grads = arg_number(argc, argv, "offload_grad", "0") != 0,
                 .stows_activations = arg_number(argc, argv, "stow", "0") != 0,
                 .any_order = arg_number(argc, argv, "any_order", "0") != 0 },
    };
}

#endif
