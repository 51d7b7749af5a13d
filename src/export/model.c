/* model.c - the export of a model: its files, the proof, the name. See export.h. */
#include "export/export_impl.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const struct {
    enum tr_export to;
    enum tr_gguf_mix mix;
} mixes[] = {
    { TR_EXPORT_GGUF_F16, TR_GGUF_MIX_F16 },       { TR_EXPORT_GGUF_BF16, TR_GGUF_MIX_BF16 },
    { TR_EXPORT_GGUF_Q8_0, TR_GGUF_MIX_Q8_0 },     { TR_EXPORT_GGUF_Q4_0, TR_GGUF_MIX_Q4_0 },
    { TR_EXPORT_GGUF_Q4_K_M, TR_GGUF_MIX_Q4_K_M }, { TR_EXPORT_GGUF_Q6_K, TR_GGUF_MIX_Q6_K },
    { TR_EXPORT_OLLAMA, TR_GGUF_MIX_Q4_K_M },
};

static enum tr_gguf_mix mix_of(enum tr_export to)
{
    size_t i = 0;
    while (mixes[i].to != to)
        i++;
    return mixes[i].mix;
}

/* ---- the proof ---- */

static enum tr_status prove(struct tr_exporting *x, const struct tr_store *written)
{
    enum tr_status st = TR_OK;
    struct tr_live *live = NULL;
    struct tr_distance *d = &x->result->distance;
    if (x->job->rows->n == 0)
        return TR_OK;
    TR_TRY(tr_live_open(x->job->run, &x->model->hp, x->job->rows, &live));
    TR_TRY(tr_live_distance(live, written, d));
    if (!isfinite(d->max_logit_diff) || !isfinite(d->kl))
        TR_TRY(tr_fail(TR_NUMBERS,
                       "export: logits of the written weights are not finite: the type has no place for weights of "
                       "this size; choose another one, such as gguf:bf16"));
out:
    tr_live_close(live);
    return st;
}

/* ---- GGUF ---- */

static enum tr_status make_keys(struct tr_exporting *x, const struct tr_gguf_arch *a, enum tr_gguf_mix mix,
                                struct tr_gguf *g)
{
    const struct tr_gguf_mix_row *row = tr_gguf_mix_row(mix);
    tr_gguf_str(g, "general.architecture", a->name);
    tr_gguf_str(g, "general.type", "model");
    tr_gguf_str(g, "general.name", tr_export_name(x));
    tr_gguf_u32(g, "general.file_type", row->file_type);
    if (mix != TR_GGUF_MIX_F16 && mix != TR_GGUF_MIX_BF16)
        tr_gguf_u32(g, "general.quantization_version", 2);
    tr_gguf_arch_keys(a, x->model, g, &x->result->notes);
    return tr_gguf_vocab_keys(&x->text, x->model, g, &x->result->notes);
}

static enum tr_status write_gguf(struct tr_exporting *x, const char *dir, const char *temp)
{
    enum tr_status st = TR_OK;
    enum tr_gguf_mix mix = mix_of(x->job->to);
    struct tr_gguf_weights w = { .model = x->model, .pool = x->job->pool, .fd = -1 };
    struct tr_gguf g = { 0 };
    struct tr_str head = { 0 };
    uint64_t data_bytes = 0, n_bytes = 0;
    char name[TR_PATH_MAX], path[TR_PATH_MAX];
    int fd = -1, read_fd = -1;
    TR_TRY(tr_gguf_arch_find(x->model, &w.arch));
    TR_TRY(tr_gguf_weights_open(&w, mix));
    g.tensor = w.tensor;
    g.n_tensors = w.n;
    TR_TRY(make_keys(x, w.arch, mix, &g));
    TR_TRY(tr_gguf_head(&g, &head, &data_bytes));
    TR_TRY(tr_format(x->file, sizeof x->file, "model-%s.gguf", tr_gguf_mix_row(mix)->name));
    TR_TRY(tr_path_join(name, temp, x->file));
    TR_TRY(tr_path_join(path, dir, name));
    TR_TRY(tr_out_open(dir, name, TR_OUT_NEW, &fd));
    TR_TRY(tr_write_all(fd, path, head.p, head.n));
    TR_TRY(tr_gguf_weights_write(&w, x->job->dir, fd, path));
    if (fsync(fd) != 0)
        TR_TRY(tr_file_fail("sync", path));
    TR_TRY(tr_file_open_read(path, &read_fd, &n_bytes));
    if (n_bytes != head.n + data_bytes)
        TR_TRY(
            tr_fail(TR_IO, "%s has %" PRIu64 " bytes, %" PRIu64 " were written", path, n_bytes, head.n + data_bytes));
    w.fd = read_fd;
    w.data_at = head.n;
    x->result->bytes = n_bytes;
    struct tr_store written = tr_gguf_weights_store(&w);
    TR_TRY(prove(x, &written));
out:
    if (fd >= 0)
        close(fd);
    if (read_fd >= 0)
        close(read_fd);
    tr_gguf_weights_close(&w);
    tr_gguf_release(&g);
    tr_str_release(&head);
    return st;
}

/* ---- HF ---- */

/* The weights of a directory in memory. */
static enum tr_status load_memory(const struct tr_model *m, const char *dir, struct tr_memory **mem,
                                  struct tr_store *store, enum tr_dtype *dtype)
{
    enum tr_status st = TR_OK;
    struct tr_states states;
    float *buf = malloc(TR_IO_CHUNK * sizeof *buf);
    if (!buf)
        return tr_fail(TR_NOMEM, "export: out of memory");
    TR_TRY(tr_optim_states(NULL, &states));
    TR_TRY(tr_memory_open(m, &states, mem, store));
    TR_TRY(tr_load_weights(store, dir, buf, dtype));
out:
    free(buf);
    return st;
}

static enum tr_status write_hf(struct tr_exporting *x, const char *path)
{
    enum tr_status st = TR_OK;
    struct tr_memory *mem = NULL;
    struct tr_saver *sv = NULL;
    struct tr_store store;
    enum tr_dtype dtype = TR_F32;
    TR_TRY(load_memory(x->model, x->job->dir, &mem, &store, &dtype));
    store.pool = x->job->pool;
    struct tr_saver_options opt = { .dtype = dtype, .source_dir = x->job->dir, .pool = x->job->pool };
    TR_TRY(tr_saver_open(&store, &opt, &sv));
    TR_TRY(tr_saver_model(sv, path));
out:
    (void)tr_saver_close(sv);
    tr_memory_close(mem);
    return st;
}

static enum tr_status count_bytes(const char *path, uint64_t *out)
{
    struct tr_hf *hf = NULL;
    enum tr_status st = tr_hf_open(path, &hf);
    for (size_t i = 0; st == TR_OK && i < tr_hf_count(hf); i++)
        *out += tr_hf_tensor(hf, i)->end - tr_hf_tensor(hf, i)->begin;
    tr_hf_close(hf);
    return st;
}

/* What was written is opened as another program would: by its config.json. */
static enum tr_status prove_hf(struct tr_exporting *x, const char *path)
{
    enum tr_status st = TR_OK;
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    struct tr_model *m = NULL;
    struct tr_memory *mem = NULL;
    struct tr_store store;
    enum tr_dtype dtype;
    TR_TRY(count_bytes(path, &x->result->bytes));
    if (x->job->rows->n == 0)
        goto out;
    TR_TRY(tr_model_open(path, &opt, &m));
    TR_TRY(load_memory(m, path, &mem, &store, &dtype));
    TR_TRY(prove(x, &store));
out:
    tr_memory_close(mem);
    tr_model_close(m);
    return st;
}

/* ---- the directory ---- */

static enum tr_status write_text(const char *dir, const char *temp, const char *name, const char *text, size_t n)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, temp, name);
    return st == TR_OK ? tr_out_write(dir, path, text, n) : st;
}

static enum tr_status fill(void *ctx, const char *dir, const char *temp)
{
    struct tr_exporting *x = ctx;
    enum tr_status st = TR_OK;
    struct tr_str card = { 0 }, modelfile = { 0 };
    char path[TR_PATH_MAX];
    TR_TRY(tr_path_join(path, dir, temp));
    if (tr_export_is_gguf(x->job->to)) {
        TR_TRY(write_gguf(x, dir, temp));
    } else {
        TR_TRY(write_hf(x, path));
        TR_TRY(prove_hf(x, path));
    }
    TR_TRY(tr_export_card(x, &card));
    TR_TRY(write_text(dir, temp, "README.md", card.p, card.n));
    TR_TRY(write_text(dir, temp, ".gitattributes", tr_export_attributes, strlen(tr_export_attributes)));
    if (x->job->to == TR_EXPORT_OLLAMA) {
        TR_TRY(tr_export_modelfile(x, &modelfile));
        TR_TRY(write_text(dir, temp, "Modelfile", modelfile.p, modelfile.n));
    }
out:
    tr_str_release(&card);
    tr_str_release(&modelfile);
    return st;
}

enum tr_status tr_export_model(const struct tr_export_job *job, struct tr_export_result *out)
{
    enum tr_status st = TR_OK;
    struct tr_exporting x = { .job = job, .result = out };
    struct tr_model_options opt = { .rows = 1, .sequence_length = 1 };
    TR_TRY(tr_model_open(job->dir, &opt, &x.model));
    TR_TRY(tr_check_weights(x.model, job->dir));
    TR_TRY(tr_export_text_open(job->dir, x.model, &x.text));
    TR_TRY(tr_new_dir(job->out, fill, &x));
    tr_export_next(&x, &out->next);
    if ((out->notes.n && !tr_str_ok(&out->notes)) || !tr_str_ok(&out->next))
        TR_TRY(tr_fail(TR_NOMEM, "export: out of memory"));
out:
    tr_export_text_close(&x.text);
    tr_model_close(x.model);
    return st;
}
