/* export.c - an adapter for other programs.
 *
 * PEFT reads the directory as it is: its files are copied without ours. vLLM takes alpha / r of the header for every
 * module and knows no patterns, so each module's own scale goes into its B, all ranks are filled up with zeros to the
 * largest, and the header says alpha = r. What vLLM has no place for is refused. */
#include "train/train.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct entry {
    char key[TR_ADAPTER_KEY_MAX];
    size_t at; /* in the file */
    bool is_a; /* (r, n): filled up with rows; else (n, r): with columns */
    float scale;
};

struct folding {
    const struct tr_dirs *src;
    struct tr_model *m;
    struct tr_adapter_choice choice;
    struct tr_hf *hf;
    struct entry *e;
    size_t n;
    int64_t r;
};

static enum tr_status refuse_vllm(const struct tr_dirs *s, const char *what)
{
    return tr_fail(TR_USAGE,
                   "%s: vllm has no place for %s of an adapter; merge it into a model instead: trireme ckpt merge %s "
                   "--out DIR",
                   s->dir, what, s->dir);
}

static enum tr_status check_vllm(const struct tr_dirs *s)
{
    const struct tr_adapter *a = s->adapter;
    const struct {
        bool is_used;
        const char *what;
    } part[] = {
        { a->saved.n > 0, "modules_to_save" },          { a->use_dora, "use_dora" },
        { a->bias != TR_LORA_BIAS_NONE, "bias" },       { a->has_b_bias, "lora_bias" },
        { a->n_tokens > 0, "trainable_token_indices" }, { tr_adapter_changes_base(a), "a start that changes the base" }
    };
    for (size_t i = 0; i < TR_COUNT_OF(part); i++)
        if (part[i].is_used)
            return refuse_vllm(s, part[i].what);
    return TR_OK;
}

static enum tr_status add_entry(struct folding *f, const char *module, const char *tail, bool is_a, double scale)
{
    struct entry *e = &f->e[f->n];
    char name[TR_NAME_MAX];
    enum tr_status st = tr_format(name, sizeof name, "%s%s", module, tail);
    if (st == TR_OK)
        st = tr_format(e->key, sizeof e->key, TR_ADAPTER_PREFIX "%s", name);
    if (st != TR_OK || !tr_hf_find(f->hf, e->key, &e->at))
        return st;
    e->is_a = is_a;
    e->scale = is_a ? 1 : (float)scale;
    f->n++;
    return TR_OK;
}

/* Every A and B; a module has either names of a linear or of an embedding. */
static enum tr_status find_entries(struct folding *f)
{
    TR_PASS(TR_ALLOC(f->e, 4 * f->choice.n + 1, "an export"));
    for (size_t i = 0; i < f->choice.n; i++) {
        const struct tr_adapter_target *t = &f->choice.module[i].target;
        if (!t->is_target)
            continue;
        f->r = tr_max64(f->r, t->r);
        TR_PASS(add_entry(f, t->module, ".lora_A.weight", true, t->scale));
        TR_PASS(add_entry(f, t->module, ".lora_B.weight", false, t->scale));
        TR_PASS(add_entry(f, t->module, ".lora_embedding_A", true, t->scale));
        TR_PASS(add_entry(f, t->module, ".lora_embedding_B", false, t->scale));
    }
    return TR_OK;
}

/* One tensor, scaled and filled up to rank r. */
static enum tr_status fold(const struct folding *f, const struct entry *e, struct tr_st_writer *w)
{
    enum tr_status st = TR_OK;
    const struct tr_st_tensor *t = tr_hf_tensor(f->hf, e->at);
    int64_t rows = e->is_a ? f->r : t->dims[0], cols = e->is_a ? t->dims[1] : f->r;
    float *from = malloc((size_t)t->n_elems * sizeof *from), *to = calloc((size_t)(rows * cols), sizeof *to);
    if (!from || !to)
        TR_TRY(tr_fail(TR_NOMEM, "export: out of memory"));
    TR_TRY(tr_hf_read(f->hf, e->at, 0, (size_t)t->n_elems, from, TR_F32));
    for (int64_t i = 0; i < t->dims[0]; i++)
        for (int64_t k = 0; k < t->dims[1]; k++)
            to[i * cols + k] = from[i * t->dims[1] + k] * e->scale;
    TR_TRY(tr_st_writer_add(w, to, TR_F32, (size_t)(rows * cols)));
out:
    free(from);
    free(to);
    return st;
}

static enum tr_status write_tensors(const struct folding *f, const char *dir, const char *name)
{
    enum tr_status st = TR_OK;
    struct tr_st_writer *w = NULL;
    struct tr_pump *pump = NULL;
    uint64_t bytes = 0;
    struct tr_hash128 hash;
    struct tr_st_entry *e = NULL;
    TR_TRY(TR_ALLOC(e, f->n + 1, "an export"));
    for (size_t i = 0; i < f->n; i++) {
        const struct tr_st_tensor *t = tr_hf_tensor(f->hf, f->e[i].at);
        e[i] = (struct tr_st_entry){ .name = f->e[i].key, .dtype = TR_F32, .n_dims = 2 };
        e[i].dims[0] = f->e[i].is_a ? f->r : t->dims[0];
        e[i].dims[1] = f->e[i].is_a ? t->dims[1] : f->r;
    }
    TR_TRY(tr_pump_open(NULL, &pump));
    TR_TRY(tr_st_writer_prepare(e, f->n, NULL, 0, &w));
    TR_TRY(tr_st_writer_begin(w, pump, dir, name));
    for (size_t i = 0; i < f->n; i++)
        TR_TRY(fold(f, &f->e[i], w));
    TR_TRY(tr_st_writer_finish(w, &bytes, &hash));
out:
    tr_st_writer_close(w);
    tr_pump_close(pump);
    free(e);
    return st;
}

/* The header that fits the folded tensors. */
static enum tr_status write_config(const struct folding *f, const char *dir, const char *name)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    struct tr_adapter flat = *f->src->adapter;
    flat.r = f->r;
    flat.alpha = (double)f->r;
    flat.n_rank_patterns = flat.n_alpha_patterns = 0;
    flat.use_rslora = false;
    flat.config = NULL; /* not the file as it was read */
    TR_TRY(tr_adapter_print(&flat, f->m, &text));
    TR_TRY(tr_out_write(dir, name, text.p, text.n));
out:
    tr_str_release(&text);
    return st;
}

/* Files of the directory `temp` beneath `dir`. */
static enum tr_status export_vllm(const struct tr_dirs *s, const char *dir, const char *weights, const char *config)
{
    enum tr_status st = TR_OK;
    struct folding f = { .src = s };
    struct tr_model_options shape = { .rows = 1, .sequence_length = 1 };
    TR_TRY(check_vllm(s));
    TR_TRY(tr_adapted_open(s->base, s->dir, s->adapter, &shape, &f.m));
    if (f.m->vocab_was)
        TR_TRY(refuse_vllm(s, "a grown vocabulary"));
    TR_TRY(tr_adapter_choose(s->adapter, f.m, &f.choice));
    TR_TRY(tr_adapt(f.m, s->adapter, false));
    TR_TRY(tr_check_adapter(f.m, s->dir));
    TR_TRY(tr_adapter_file(s->dir, &f.hf));
    TR_TRY(find_entries(&f));
    TR_TRY(write_tensors(&f, dir, weights));
    TR_TRY(write_config(&f, dir, config));
out:
    tr_hf_close(f.hf);
    tr_model_close(f.m);
    free(f.choice.module);
    free(f.e);
    return st;
}

static enum tr_status copy_file(const char *from_dir, const char *dir, const char *temp, const char *name)
{
    enum tr_status st = TR_OK;
    char from[TR_PATH_MAX], to[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    TR_TRY(tr_path_join(from, from_dir, name));
    if (!tr_file_exists(from))
        return TR_OK;
    TR_TRY(tr_path_join(to, temp, name));
    TR_TRY(tr_file_read(from, (size_t)64 << 30, &text, &n));
    TR_TRY(tr_out_write(dir, to, text, n));
out:
    free(text);
    return st;
}

struct adapter_filling {
    const struct tr_dirs *s;
    enum tr_export to;
};

static enum tr_status fill_dir(void *ctx, const char *dir, const char *temp)
{
    const struct adapter_filling *f = ctx;
    char weights[TR_PATH_MAX], config[TR_PATH_MAX];
    for (size_t i = 0; tr_copied_files[i]; i++)
        TR_PASS(copy_file(f->s->dir, dir, temp, tr_copied_files[i]));
    TR_PASS(tr_path_join(weights, temp, TR_ADAPTER_WEIGHTS));
    TR_PASS(tr_path_join(config, temp, TR_ADAPTER_CONFIG));
    if (f->to == TR_EXPORT_VLLM) {
        TR_PASS(export_vllm(f->s, dir, weights, config));
    } else {
        TR_PASS(copy_file(f->s->dir, dir, temp, "README.md"));
        TR_PASS(copy_file(f->s->dir, dir, temp, TR_ADAPTER_WEIGHTS));
        TR_PASS(copy_file(f->s->dir, dir, temp, TR_ADAPTER_CONFIG));
    }
    return TR_OK;
}

enum tr_status tr_export_adapter(const struct tr_dirs *s, enum tr_export to, const char *out)
{
    struct adapter_filling f = { s, to };
    struct tr_hf *hf = NULL;
    enum tr_status st = tr_adapter_file(s->dir, &hf); /* it can be read: before anything is written */
    if (st == TR_OK)
        st = tr_new_dir(out, fill_dir, &f);
    tr_hf_close(hf);
    return st;
}
