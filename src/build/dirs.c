/* dirs.c - which directories a model comes from: the base, an adapter on it, and the tokenizer. --model names a
 * model or an adapter; an adapter names its base, as its writer saw it. */
#include "build/build.h"
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

/* ---- adapters below a directory ---- */

enum { DEPTH = 2 };

static enum tr_status visit(const char *dir, int depth, tr_adapter_dir_fn *fn, void *ctx)
{
    enum tr_status st = TR_OK;
    struct dirent **entry = NULL;
    int n = scandir(dir, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[TR_PATH_MAX];
        struct stat info;
        if (st == TR_OK && entry[i]->d_name[0] != '.' && tr_path_join(path, dir, entry[i]->d_name) == TR_OK &&
            lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            if (tr_dir_has(path, TR_ADAPTER_CONFIG))
                st = fn(ctx, path);
            else if (depth > 1)
                st = visit(path, depth - 1, fn, ctx);
        }
        free(entry[i]);
    }
    free(entry);
    return st;
}

enum tr_status tr_adapter_dirs(const char *dir, tr_adapter_dir_fn *fn, void *ctx)
{
    return visit(dir, DEPTH, fn, ctx);
}

struct dir_names {
    struct tr_str text;
    size_t n;
};

static enum tr_status add_name(void *ctx, const char *path)
{
    struct dir_names *x = ctx;
    if (x->n++ < 20)
        tr_str_addf(&x->text, "\n  %s", path);
    return TR_OK;
}

/* A directory that is neither a model nor an adapter, but holds adapters. */
static enum tr_status refuse_tree(const char *dir)
{
    struct dir_names x = { 0 };
    if (!tr_dir_exists(dir) || tr_dir_has(dir, "config.json") || tr_dir_has(dir, TR_ADAPTER_CONFIG))
        return TR_OK;
    enum tr_status st = tr_adapter_dirs(dir, add_name, &x);
    if (st == TR_OK && x.n > 0)
        st = tr_fail(TR_USAGE, "%s is neither a model nor an adapter, but holds %zu adapters; name one of them:%s", dir,
                     x.n, tr_str_ok(&x.text) ? x.text.p : "");
    tr_str_release(&x.text);
    return st;
}

/* ---- the base ---- */

/* As the adapter names it: from here, else from the adapter's own directory, else where its run had it. */
static enum tr_status find_base(const char *model, const char *model_base, struct tr_dirs *s)
{
    char path[TR_PATH_MAX], esc[200];
    if (!s->dir || model_base)
        return tr_format(s->base, sizeof s->base, "%s", model_base ? model_base : model);
    const char *named = s->adapter->base;
    if (!named)
        return tr_fail(TR_USAGE, "%s: " TR_ADAPTER_CONFIG " names no base; name it with --model_base DIR", s->dir);
    if (tr_dir_has(named, "config.json"))
        return tr_format(s->base, sizeof s->base, "%s", named);
    if (named[0] != '/' && tr_path_join(path, s->dir, named) == TR_OK && tr_dir_has(path, "config.json"))
        return tr_format(s->base, sizeof s->base, "%s", path);
    if (tr_base_id_member(s->dir, "path", path) == TR_OK && tr_dir_has(path, "config.json"))
        return tr_format(s->base, sizeof s->base, "%s", path);
    return tr_fail(TR_USAGE,
                   "the base of adapter %s is %s, which is no model directory here; name it with --model_base DIR (hf "
                   "download %s --local-dir DIR)",
                   s->dir, tr_escape(named, esc, sizeof esc), esc);
}

/* Takes the adapter over. */
static enum tr_status fill(const char *model, const char *model_base, struct tr_adapter *a, struct tr_dirs *out)
{
    enum tr_status st = TR_OK;
    struct tr_dirs s = { .adapter = a, .dir = a && tr_dir_has(model, TR_ADAPTER_CONFIG) ? model : NULL };
    TR_TRY(find_base(model, model_base, &s));
    bool has_text = s.dir && (tr_dir_has(s.dir, "tokenizer.json") || tr_dir_has(s.dir, "tokenizer.model") ||
                              tr_dir_has(s.dir, "vocab.json"));
    TR_TRY(tr_format(s.text, sizeof s.text, "%s", has_text ? s.dir : s.base));
    *out = s;
out:
    if (st != TR_OK)
        tr_adapter_close(a);
    return st;
}

static enum tr_status count_ids(struct tr_dirs *s)
{
    struct tr_tokenizer *tok = NULL;
    enum tr_status st = tr_tokenizer_open(s->text, &tok);
    if (st == TR_OK)
        s->n_ids = tr_tokenizer_vocab_size(tok);
    tr_tokenizer_close(tok);
    return st;
}

enum tr_status tr_dirs_open(const struct tr_config *cfg, struct tr_dirs *out)
{
    struct tr_adapter *a = NULL;
    TR_PASS(refuse_tree(cfg->model));
    TR_PASS(tr_adapter_open(cfg, &a));
    if (cfg->resize_vocab && a && a->n_tokens > 0) {
        tr_adapter_close(a);
        return tr_fail(TR_USAGE, "resize_vocab: the file of an adapter has no place for grown tables beside "
                                 "trainable_token_indices; train them whole with --lora_modules_to_save");
    }
    TR_PASS(fill(cfg->model, cfg->model_base, a, out));
    return cfg->resize_vocab ? count_ids(out) : TR_OK;
}

enum tr_status tr_dirs_of(const char *dir, const char *model_base, struct tr_dirs *out)
{
    struct tr_adapter *a = NULL;
    enum tr_status st = tr_dir_has(dir, TR_ADAPTER_CONFIG) ? tr_adapter_read(dir, &a) : TR_OK;
    return st == TR_OK ? fill(dir, model_base, a, out) : st;
}

enum tr_status tr_dirs_need_model(const struct tr_dirs *s)
{
    return tr_dir_exists(s->base) ? TR_OK : tr_model_missing(s->base, "");
}

void tr_dirs_close(struct tr_dirs *s)
{
    tr_adapter_close(s->adapter);
    *s = (struct tr_dirs){ 0 };
}

enum tr_status tr_adapted_open(const char *base, const char *dir, const struct tr_adapter *a,
                               const struct tr_model_options *opt, struct tr_model **out)
{
    struct tr_model *m = NULL;
    struct tr_model_options own = *opt;
    enum tr_status st = tr_adapter_open_base(base, dir, &own, &m);
    if (st == TR_OK && a)
        st = tr_adapter_unties(a, m, &own.unties);
    if (st == TR_OK && own.unties) {
        tr_model_close(m);
        m = NULL;
        st = tr_adapter_open_base(base, dir, &own, &m);
    }
    if (st == TR_OK)
        *out = m;
    else
        tr_model_close(m);
    return st;
}

enum tr_status tr_dirs_model(const struct tr_dirs *s, const struct tr_model_options *opt, bool is_training,
                             struct tr_model **out)
{
    struct tr_model *m = NULL;
    struct tr_model_options own = *opt;
    own.least_vocab = s->n_ids;
    enum tr_status st = tr_adapted_open(s->base, s->dir, s->adapter, &own, &m);
    if (st == TR_OK && s->adapter)
        st = tr_adapt(m, s->adapter, is_training);
    if (st == TR_OK)
        *out = m;
    else
        tr_model_close(m);
    return st;
}

enum tr_status tr_dirs_check(const struct tr_dirs *s, const struct tr_model *m)
{
    TR_PASS(tr_check_weights(m, s->base));
    if (s->dir) {
        TR_PASS(tr_check_adapter(m, s->dir));
        TR_PASS(tr_base_id_check(s->dir, s->base));
    }
    return TR_OK;
}

enum tr_status tr_dirs_load(const struct tr_dirs *s, const struct tr_store *store, float *buf)
{
    if (s->dir)
        TR_PASS(tr_base_id_check(s->dir, s->base));
    TR_PASS(tr_load_weights(store, s->base, buf, NULL));
    if (s->dir)
        TR_PASS(tr_load_adapter(store, s->base, s->dir, buf));
    return TR_OK;
}

enum tr_status tr_dirs_restore_base(const struct tr_dirs *s, const struct tr_store *store, float *buf)
{
    return s->adapter ? tr_load_weights(store, s->base, buf, NULL) : TR_OK;
}

enum tr_status tr_dirs_restore(const struct tr_dirs *s, const struct tr_store *store, const char *checkpoint,
                               float *buf)
{
    return s->adapter ? tr_load_adapter(store, s->base, checkpoint, buf)
                      : tr_load_weights(store, checkpoint, buf, NULL);
}
