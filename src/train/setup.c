/* setup.c - configuration -> models, batch shapes, compiled plan. The same function serves `plan` and `train`, so their
 * bytes cannot differ. */
#include "train/train.h"
#include "optim/optim.h"
#include <stdlib.h>

enum { DEFAULT_LENGTH = 1024, LOADER_DEPTH = 3 };

/* One rank: an axis other than 1 is refused by name rather than ignored. */
static enum tr_status check_mesh(const struct tr_config *cfg)
{
    const struct {
        const char *name;
        int64_t value, only;
    } axes[] = { { "dp", cfg->dp, 1 }, { "zero", cfg->zero, 0 }, { "hybrid_shard", cfg->hybrid_shard, 0 },
                 { "tp", cfg->tp, 1 }, { "pp", cfg->pp, 1 },     { "cp", cfg->cp, 1 } };
    for (size_t i = 0; i < TR_COUNT_OF(axes); i++)
        if (axes[i].value != axes[i].only)
            return tr_fail(TR_USAGE, "%s %" PRId64 " needs more than one rank; this build runs one, use %s %" PRId64,
                           axes[i].name, axes[i].value, axes[i].name, axes[i].only);
    if (cfg->device == TR_DEVICE_CHOICE_CUDA)
        return tr_fail(TR_USAGE, "device cuda is not in this build; use --device cpu");
    if (cfg->dtype != TR_F32 && cfg->dtype != TR_BF16)
        return tr_fail(TR_USAGE, "dtype %s is not computed on the cpu; use bfloat16 or float32",
                       tr_dtype_name(cfg->dtype));
    return TR_OK;
}

static enum tr_status open_model(const struct tr_config *cfg, int64_t rows, int64_t length, double dropout,
                                 bool wants_logits, struct tr_model **out)
{
    struct tr_model_options opt = { .rows = rows,
                                    .sequence_length = length,
                                    .dropout = dropout,
                                    .ignore_keys = cfg->ignore_config_keys,
                                    .wants_logits = wants_logits };
    return tr_model_open(cfg->model, &opt, out);
}

/* Tokens per row: as asked, else what the model was made for, up to a length that a CPU trains with. */
static enum tr_status choose_length(const struct tr_config *cfg, int64_t *out)
{
    struct tr_model *probe = NULL;
    enum tr_status st = open_model(cfg, 1, 1, 0, false, &probe);
    if (st != TR_OK)
        return st;
    *out = cfg->sequence_length > 0 ? cfg->sequence_length : tr_min64(probe->hp.max_positions, DEFAULT_LENGTH);
    tr_model_close(probe);
    return TR_OK;
}

static struct tr_compile_options compile_options(const struct tr_setup *s, enum tr_use use)
{
    const struct tr_config *cfg = s->cfg;
    return (struct tr_compile_options){
        .compute_dtype = cfg->dtype,
        .grad_dtype = cfg->grad_dtype,
        .master_dtype = cfg->master_dtype,
        .moment_dtype = cfg->moment_dtype,
        .n_moments = tr_optim_row(cfg->optim)->n_moments,
        .n_micro = (int)cfg->gradient_accumulation_steps,
        .recompute = cfg->recompute,
        .memory_budget = (uint64_t)cfg->memory_budget,
        .n_threads = s->n_threads,
        .data_bytes = s->loader_bytes + s->eval_batch_bytes,
        .save_bytes = use == TR_USE_GENERATE ? 0 : TR_IO_CHUNK * sizeof(float),
        .is_inference = use != TR_USE_TRAIN,
    };
}

enum tr_status tr_setup_open(const struct tr_config *cfg, enum tr_use use, struct tr_setup **out)
{
    enum tr_status st = TR_OK;
    struct tr_pool *pool = NULL;
    struct tr_setup *s = calloc(1, sizeof *s);
    if (!s)
        return tr_fail(TR_NOMEM, "setup: out of memory");
    s->cfg = cfg;
    TR_TRY(check_mesh(cfg));
    TR_TRY(tr_pool_open((int)cfg->threads, &pool));
    s->n_threads = tr_pool_threads(pool);
    TR_TRY(choose_length(cfg, &s->sequence_length));
    bool is_training = use == TR_USE_TRAIN;
    if (is_training) {
        s->loader = (struct tr_loader_shape){ .row_tokens = s->sequence_length,
                                              .batch_rows = cfg->train_batch_size,
                                              .n_rows = cfg->train_batch_size,
                                              .micro_rows = cfg->per_device_train_batch_size,
                                              .depth = LOADER_DEPTH };
        s->loader_bytes = tr_round_up(tr_loader_bytes(&s->loader), 64);
        if (s->loader_bytes == 0)
            TR_TRY(tr_fail(TR_USAGE, "batch of %" PRId64 " rows of %" PRId64 " tokens is not possible",
                           cfg->train_batch_size, s->sequence_length));
        TR_TRY(open_model(cfg, cfg->per_device_train_batch_size, s->sequence_length, cfg->dropout, false, &s->model));
    }
    if (!is_training || cfg->eval_data.n) {
        int64_t rows = use == TR_USE_GENERATE ? 1 : cfg->per_device_eval_batch_size;
        TR_TRY(open_model(cfg, rows, s->sequence_length, 0, use == TR_USE_GENERATE, &s->eval_model));
        s->eval_batch_bytes = tr_batch_bytes(s->eval_model->n_tokens);
    }
    struct tr_compile_options opt = compile_options(s, use);
    TR_TRY(tr_compile(is_training ? s->model : s->eval_model, s->eval_model, NULL, &opt, &s->compiled));
out:
    tr_pool_close(pool);
    if (st == TR_OK)
        *out = s;
    else
        tr_setup_close(s);
    return st;
}

void tr_setup_close(struct tr_setup *s)
{
    if (!s)
        return;
    tr_compiled_close(s->compiled);
    tr_model_close(s->model);
    tr_model_close(s->eval_model);
    free(s);
}

/* ---- small things that train, eval and generate share ---- */

size_t tr_batch_bytes(int64_t n_tokens)
{
    return 4 * tr_round_up((size_t)n_tokens * sizeof(int32_t), 64) +
           tr_round_up((size_t)n_tokens * sizeof(int64_t), 64);
}

struct tr_batch tr_batch_in(void *mem, int64_t n_tokens)
{
    size_t one = tr_round_up((size_t)n_tokens * sizeof(int32_t), 64);
    char *p = mem;
    return (struct tr_batch){ .tokens = (void *)p,
                              .targets = (void *)(p + one),
                              .positions = (void *)(p + 2 * one),
                              .begin = (void *)(p + 3 * one),
                              .sample = (void *)(p + 4 * one) };
}

static enum tr_status store_get(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out)
{
    struct tr_exec *e = ctx;
    (void)n;
    *out = (const char *)tr_exec_at(e, what, param) + (size_t)first * tr_dtype_bytes(tr_exec_dtype(e, what));
    return TR_OK;
}

static enum tr_status store_put(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src)
{
    struct tr_exec *e = ctx;
    size_t size = tr_dtype_bytes(tr_exec_dtype(e, what));
    e->dev->ops->upload(e->dev, (char *)tr_exec_at(e, what, param) + (size_t)first * size, src, (size_t)n * size);
    return TR_OK;
}

struct tr_store tr_exec_store(struct tr_exec *e)
{
    struct tr_store s = { .ctx = e, .model = e->c->model, .get = store_get, .put = store_put };
    for (int i = 0; i < TR_STATE_COUNT; i++) {
        s.has[i] = tr_exec_has(e, (enum tr_state)i);
        s.dtype[i] = tr_exec_dtype(e, (enum tr_state)i);
    }
    return s;
}

static bool needs_tokenizer(const struct tr_data_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        size_t n = strlen(list->item[i].path);
        if (n < 6 || strcmp(list->item[i].path + n - 6, ".trtok") != 0)
            return true;
    }
    return false;
}

enum tr_status tr_open_data(const struct tr_config *cfg, const struct tr_setup *s, const struct tr_data_list *list,
                            bool is_training, const char *cache_dir, struct tr_tokenizer **tokenizer,
                            struct tr_data **out)
{
    enum tr_status st = TR_OK;
    const struct tr_model *m = s->model ? s->model : s->eval_model;
    const char **paths = calloc(list->n, sizeof *paths);
    if (!paths)
        TR_TRY(tr_fail(TR_NOMEM, "data: out of memory"));
    for (size_t i = 0; i < list->n; i++) {
        paths[i] = list->item[i].path;
        if (list->item[i].weight != 1)
            TR_TRY(tr_fail(TR_USAGE, "data %s: weight %g; sources are read once each, only weight 1", paths[i],
                           list->item[i].weight));
    }
    if (!*tokenizer && needs_tokenizer(list))
        TR_TRY(tr_tokenizer_open(cfg->model, tokenizer));
    struct tr_data_options opt = { .row_tokens = s->sequence_length,
                                   .seed = (uint64_t)cfg->data_seed,
                                   .shuffle = is_training,
                                   .vocab_size = m->hp.vocab,
                                   .cache_dir = cache_dir,
                                   .max_skipped = TR_DATA_MAX_SKIPPED };
    TR_TRY(tr_data_open(paths, list->n, *tokenizer, &opt, out));
out:
    free(paths);
    return st;
}
