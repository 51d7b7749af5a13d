/* save_model.c - the trained model into a directory that may hold an older one: files under temporary names, then all
 * of them renamed, config.json (adapter_config.json) last. A crash leaves the old files, or names of both; never half a
 * file (C20). */
#include "ckpt/save_impl.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static enum tr_status temp_name(const struct tr_saver *sv, const char *dir, size_t k, char *path, char *temp)
{
    enum tr_status st = tr_path_join(path, dir, tr_hf_plan_name(sv->plan, k));
    return st == TR_OK ? tr_format(temp, TR_PATH_MAX, "%s.tmp-%ld", path, (long)getpid()) : st;
}

/* This rank's files under temporary names, and, once all ranks have theirs, under their own. */
static enum tr_status put_weights(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK, failed = TR_OK;
    char path[TR_PATH_MAX], temp[TR_PATH_MAX];
    size_t n = tr_hf_plan_shards(sv->plan);
    for (size_t k = 0; k < n; k++) {
        st = temp_name(sv, dir, k, path, temp);
        if (st == TR_OK)
            st = tr_save_stream_file(sv, k, temp);
        failed = failed == TR_OK ? st : failed;
    }
    st = tr_save_agree(sv, failed);
    for (size_t k = 0; k < n; k++) {
        if (sv->files[k].bytes == 0 || temp_name(sv, dir, k, path, temp) != TR_OK)
            continue;
        if (st != TR_OK)
            (void)unlink(temp);
        else if (rename(temp, path) != 0)
            failed = tr_fail(TR_IO, "%s: rename: %s", path, strerror(errno));
    }
    return st == TR_OK ? tr_save_agree(sv, failed) : st;
}

/* Weights under other names, of another cut: transformers would prefer some of them. An adapter is one file. */
static void remove_stale(const struct tr_saver *sv, const char *dir)
{
    char path[TR_PATH_MAX];
    DIR *d = tr_model_has_adapter(sv->s.model) ? NULL : opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), k = 0;
        bool is_shard = n == strlen("model-00001-of-00002.safetensors") && strncmp(e->d_name, "model-", 6) == 0 &&
                        strncmp(e->d_name + 11, "-of-", 4) == 0 && strcmp(e->d_name + 20, ".safetensors") == 0;
        bool is_index = strcmp(e->d_name, TR_HF_INDEX_NAME) == 0;
        while (k < tr_hf_plan_shards(sv->plan) && strcmp(e->d_name, tr_hf_plan_name(sv->plan, k)) != 0)
            k++;
        bool is_ours = k < tr_hf_plan_shards(sv->plan) || (is_index && tr_hf_plan_index(sv->plan));
        if (!is_ours && (is_shard || is_index || strcmp(e->d_name, "model.safetensors") == 0) &&
            tr_path_join(path, dir, e->d_name) == TR_OK)
            (void)unlink(path);
    }
    if (d)
        closedir(d);
}

/* The directory of a file's path, which is `dir` or trireme/ below it. */
static enum tr_status make_parent(const char *path)
{
    char parent[TR_PATH_MAX];
    enum tr_status st = tr_format(parent, sizeof parent, "%s", path);
    if (st == TR_OK)
        *strrchr(parent, '/') = 0;
    return st == TR_OK ? tr_mkdirs(parent) : st;
}

enum tr_status tr_save_copy_files(const char *from, const char *to)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX], source[TR_PATH_MAX];
    for (size_t i = 0; tr_copied_files[i]; i++) {
        char *text = NULL;
        size_t n = 0;
        TR_TRY(tr_path_join(source, from, tr_copied_files[i]));
        if (!tr_file_exists(source))
            continue;
        TR_TRY(tr_path_join(path, to, tr_copied_files[i]));
        TR_TRY(tr_file_read(source, 256 << 20, &text, &n));
        st = tr_file_write_atomic(path, text, n);
        free(text);
        TR_TRY(st);
    }
out:
    return st;
}

static enum tr_status put_files(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    if (tr_hf_plan_index(sv->plan)) {
        TR_TRY(tr_path_join(path, dir, TR_HF_INDEX_NAME));
        TR_TRY(tr_file_write_atomic(path, tr_hf_plan_index(sv->plan), strlen(tr_hf_plan_index(sv->plan))));
    }
    remove_stale(sv, dir);
    if (sv->has_source)
        TR_TRY(tr_save_copy_files(sv->source, dir));
    for (size_t i = 0; i < sv->n_texts; i++) {
        TR_TRY(tr_path_join(path, dir, sv->text[i].name));
        TR_TRY(make_parent(path));
        TR_TRY(tr_file_write_atomic(path, sv->text[i].text, strlen(sv->text[i].text)));
    }
    TR_TRY(tr_fsync_dir(dir));
out:
    return st;
}

enum tr_status tr_saver_model(struct tr_saver *sv, const char *dir)
{
    enum tr_status st = TR_OK;
    if (sv->phase != TR_SAVE_NONE)
        return tr_fail(TR_TIMEOUT, "%s: the disk does not answer, the model is not written; continue with --resume",
                       dir);
    TR_TRY(tr_save_agree(sv, sv->rank == 0 ? tr_mkdirs(dir) : TR_OK));
    TR_TRY(put_weights(sv, dir));
    TR_TRY(tr_save_agree(sv, sv->rank == 0 ? put_files(sv, dir) : TR_OK));
out:
    return st;
}
