/* hub.c - names of the hub (ORG/NAME) as directories of the local cache, for models and for data.
 *
 * The cache is that of huggingface_hub: $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache with
 * huggingface/hub below it; models--ORG--NAME/refs/main names the commit, snapshots/<commit> has its files. A data set
 * may have several parts: ORG/NAME/PART is a directory or a file of the snapshot, or of `data` in it. A path that
 * exists is never a name. Nothing is downloaded: a name that is not in the cache stays as it is, and whoever opens it
 * says how to get it.
 */
#include "config/config_impl.h"

enum { COMMIT_MAX = 128, NAME_MAX_HERE = 256 };

static const char *variable(char *const *envp, const char *name)
{
    size_t n = strlen(name);
    for (; envp != NULL && *envp != NULL; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=' && (*envp)[n + 1] != '\0')
            return *envp + n + 1;
    return NULL;
}

static bool find_root(char *const *envp, char out[TR_PATH_MAX])
{
    static const struct {
        const char *name, *below;
    } roots[] = {
        { "HF_HUB_CACHE", "" },
        { "HF_HOME", "/hub" },
        { "XDG_CACHE_HOME", "/huggingface/hub" },
        { "HOME", "/.cache/huggingface/hub" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(roots); i++) {
        const char *dir = variable(envp, roots[i].name);
        if (dir != NULL)
            return tr_format(out, TR_PATH_MAX, "%s%s", dir, roots[i].below) == TR_OK;
    }
    return false;
}

/* "ORG/NAME" or "NAME" as "ORG--NAME"; false: it cannot be a name of the hub. */
static bool fold(const char *name, char out[NAME_MAX_HERE])
{
    static const char legal[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/";
    const char *slash = strchr(name, '/');
    size_t n = slash != NULL ? (size_t)(slash - name) : 0;
    if (name[0] == '\0' || name[0] == '.' || name[0] == '/' || name[strspn(name, legal)] != '\0' ||
        (slash != NULL && (slash[1] == '\0' || strchr(slash + 1, '/') != NULL || slash[1] == '.')))
        return false;
    int used = slash != NULL ? snprintf(out, NAME_MAX_HERE, "%.*s--%s", (int)n, name, slash + 1)
                             : snprintf(out, NAME_MAX_HERE, "%s", name);
    return used > 0 && used < NAME_MAX_HERE;
}

/* The directory of a name, or NULL. */
static const char *find(struct loader *l, char *const *envp, const char *kind, const char *name)
{
    char root[TR_PATH_MAX], path[TR_PATH_MAX], folded[NAME_MAX_HERE], *commit = NULL;
    const char *found = NULL;
    size_t n = 0;
    if (tr_file_exists(name) || tr_dir_exists(name) || !fold(name, folded) || !find_root(envp, root))
        return NULL;
    if (tr_format(path, sizeof path, "%s/%s--%s/refs/main", root, kind, folded) == TR_OK &&
        tr_file_read(path, COMMIT_MAX, &commit, &n) == TR_OK) {
        commit[strcspn(commit, "\r\n ")] = '\0';
        if (tr_name_is_plain(commit) &&
            tr_format(path, sizeof path, "%s/%s--%s/snapshots/%s", root, kind, folded, commit) == TR_OK &&
            tr_dir_exists(path))
            found = tr_loader_keep(l, path, strlen(path) + 1);
    }
    free(commit);
    tr_error_clear();
    return found;
}

static void find_model(struct loader *l, char *const *envp, const char **model)
{
    const char *dir = *model != NULL ? find(l, envp, "models", *model) : NULL;
    if (dir == NULL)
        return;
    tr_loader_notice(l, "model %s is %s", *model, dir);
    *model = dir;
}

/* The directory of ORG/NAME/PART, or NULL. */
static const char *find_part(struct loader *l, char *const *envp, const char *name)
{
    char head[TR_PATH_MAX], path[TR_PATH_MAX];
    const char *slash = strchr(name, '/'), *part = slash != NULL ? strchr(slash + 1, '/') : NULL;
    if (part == NULL || strstr(part, "/.") != NULL || tr_file_exists(name) || tr_dir_exists(name) ||
        tr_format(head, sizeof head, "%.*s", (int)(part - name), name) != TR_OK)
        return NULL;
    const char *dir = find(l, envp, "datasets", head);
    static const char *const below[] = { "", "/data" };
    for (size_t i = 0; dir != NULL && i < TR_COUNT_OF(below); i++)
        if (tr_format(path, sizeof path, "%s%s%s", dir, below[i], part) == TR_OK &&
            (tr_dir_exists(path) || tr_file_exists(path)))
            return tr_loader_keep(l, path, strlen(path) + 1);
    tr_error_clear();
    return NULL;
}

/* The directory of a name, with the split that the name ends in (ORG/NAME#test), or NULL. */
static const char *find_split(struct loader *l, char *const *envp, const char *path)
{
    char name[TR_PATH_MAX], whole[TR_PATH_MAX];
    size_t n = strcspn(path, "#");
    if (tr_format(name, sizeof name, "%.*s", (int)n, path) != TR_OK)
        return NULL;
    const char *dir = find(l, envp, "datasets", name);
    if (dir == NULL)
        dir = find_part(l, envp, name);
    if (dir == NULL || tr_format(whole, sizeof whole, "%s%s", dir, path + n) != TR_OK)
        return NULL;
    return tr_loader_keep(l, whole, strlen(whole) + 1);
}

static void find_data(struct loader *l, char *const *envp, struct tr_data_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const char *dir = find_split(l, envp, list->item[i].path);
        struct tr_data_source *copy = dir != NULL ? tr_loader_keep(l, list->item, list->n * sizeof *copy) : NULL;
        if (copy == NULL)
            continue;
        tr_loader_notice(l, "data %s is %s", list->item[i].path, dir);
        copy[i].path = dir;
        list->item = copy;
    }
}

void tr_loader_hub(struct loader *l, char *const *envp)
{
    struct tr_config *c = &l->c->pub;
    find_model(l, envp, &c->model);
    find_model(l, envp, &c->model_base);
    find_data(l, envp, &c->data);
    find_data(l, envp, &c->eval_data);
}
