/* save_model.c - the trained model into a directory that may hold an older one: files under temporary names, then all
 * of them renamed, config.json (adapter_config.json) last. A crash leaves the old files, or names of both; never half a
 * file (C20). */
#include "ckpt/save_impl.h"
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

static enum tr_status temp_name(const struct tr_saver *sv, size_t k, char temp[TR_PATH_MAX])
{
    return tr_format(temp, TR_PATH_MAX, "%s.tmp-%ld", tr_hf_plan_name(sv->plan, k), (long)getpid());
}

/* This rank's files under temporary names, and, once all ranks have theirs, under their own. */
static enum tr_status put_weights(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    char temp[TR_PATH_MAX];
    size_t n = tr_hf_plan_shards(sv->plan);
    for (size_t k = 0; k < n; k++) {
        st = temp_name(sv, k, temp);
        if (st == TR_OK && tr_saver_writes(sv, k))
            (void)tr_out_unlink(dir, temp); /* left by an earlier process of this number */
        if (st == TR_OK)
            st = tr_save_stream_file(sv, k, dir, temp);
        failed = failed == TR_OK ? st : failed;
    }
    st = tr_save_agree(sv, failed);
    for (size_t k = 0; k < n; k++) {
        if (sv->files[k].bytes == 0 || temp_name(sv, k, temp) != TR_OK)
            continue;
        const char *name = tr_hf_plan_name(sv->plan, k);
        int err = st != TR_OK ? tr_out_unlink(dir, temp) : tr_out_move(dir, temp, name, TR_OUT_RENAME);
        if (st == TR_OK && err)
            failed = tr_fail(TR_IO, "%s/%s: rename: %s", dir, name, strerror(err));
    }
    return st == TR_OK ? tr_save_agree(sv, failed) : st;
}

/* Weights under other names, of another cut: transformers would prefer some of them. An adapter is one file. */
static void remove_stale(const struct tr_saver *sv, const char *dir)
{
    DIR *d = tr_model_has_adapter(sv->s.model) ? NULL : opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), k = 0;
        bool is_shard = n == strlen("model-00001-of-00002.safetensors") && strncmp(e->d_name, "model-", 6) == 0 &&
                        strncmp(e->d_name + 11, "-of-", 4) == 0 && strcmp(e->d_name + 20, ".safetensors") == 0;
        bool is_index = strcmp(e->d_name, TR_HF_INDEX_NAME) == 0;
        while (k < tr_hf_plan_shards(sv->plan) && strcmp(e->d_name, tr_hf_plan_name(sv->plan, k)) != 0)
            k++;
        bool is_ours = k < tr_hf_plan_shards(sv->plan) || (is_index && tr_hf_plan_index(sv->plan));
        if (!is_ours && (is_shard || is_index || strcmp(e->d_name, "model.safetensors") == 0))
            (void)tr_out_unlink(dir, e->d_name);
    }
    if (d)
        closedir(d);
}

/* The directory of a text, which is `dir` or trireme/ below it. */
static enum tr_status make_parent(const char *dir, const char *name)
{
    char parent[TR_PATH_MAX];
    const char *slash = strrchr(name, '/');
    enum tr_status st = slash ? tr_format(parent, sizeof parent, "%.*s", (int)(slash - name), name) : TR_OK;
    return slash && st == TR_OK ? tr_out_mkdir(dir, parent) : st;
}

/* Copies a file that is there. */
static enum tr_status copy_file(const char *from, const char *to, const char *name)
{
    char source[TR_PATH_MAX], *text = NULL;
    size_t n = 0;
    TR_PASS(tr_path_join(source, from, name));
    if (!tr_file_exists(source))
        return TR_OK;
    TR_PASS(tr_file_read(source, 256 << 20, &text, &n));
    enum tr_status st = tr_out_write(to, name, text, n);
    free(text);
    return st;
}

enum tr_status tr_save_copy_files(const char *from, const char *to)
{
    for (size_t i = 0; tr_copied_files[i]; i++)
        TR_PASS(copy_file(from, to, tr_copied_files[i]));
    return TR_OK;
}

static enum tr_status put_files(struct tr_saver *sv, const char *dir)
{
    const char *index = tr_hf_plan_index(sv->plan);
    if (index)
        TR_PASS(tr_out_write(dir, TR_HF_INDEX_NAME, index, strlen(index)));
    remove_stale(sv, dir);
    for (size_t i = 0; sv->has_base && i < TR_COPIED_OF_MODEL; i++)
        TR_PASS(copy_file(sv->base, dir, tr_copied_files[i]));
    if (sv->has_source)
        TR_PASS(tr_save_copy_files(sv->source, dir));
    for (size_t i = 0; i < sv->n_texts; i++) {
        TR_PASS(make_parent(dir, sv->text[i].name));
        TR_PASS(tr_out_write(dir, sv->text[i].name, sv->text[i].text, strlen(sv->text[i].text)));
    }
    return tr_fsync_dir(dir);
}

enum tr_status tr_saver_model(struct tr_saver *sv, const char *dir)
{
    if (sv->phase != TR_SAVE_NONE)
        return tr_fail(TR_TIMEOUT, "%s: the disk does not answer, the model is not written; continue with --resume",
                       dir);
    TR_PASS(tr_save_agree(sv, sv->rank == 0 ? tr_mkdirs(dir) : TR_OK));
    TR_PASS(put_weights(sv, dir));
    return tr_save_agree(sv, sv->rank == 0 ? put_files(sv, dir) : TR_OK);
}
