/* source.c - see source.h. A source without names of its own is a plain path, as a person would write it. */
#include "import/source.h"

#include <math.h>

void tr_source_open(struct source *s)
{
    *s = (struct source){ .doc = cJSON_CreateObject() };
}

void tr_source_close(struct source *s)
{
    cJSON_Delete(s->doc);
}

static void spoil(struct source *s)
{
    cJSON_Delete(s->doc);
    s->doc = NULL;
}

/* Takes ownership of the value. */
static void put(struct source *s, const char *group, const char *name, cJSON *value)
{
    cJSON *to = s->doc;
    if (to != NULL && group != NULL && (to = cJSON_GetObjectItemCaseSensitive(s->doc, group)) == NULL)
        to = cJSON_AddObjectToObject(s->doc, group);
    cJSON_DeleteItemFromObjectCaseSensitive(to, name);
    if (value != NULL && cJSON_AddItemToObject(to, name, value))
        return;
    cJSON_Delete(value);
    spoil(s);
}

void tr_source_set(struct source *s, const char *group, const char *name, const char *value)
{
    put(s, group, name, value != NULL ? cJSON_CreateString(value) : cJSON_CreateNull());
}

void tr_source_list(struct source *s, const char *group, const char *name, const struct leaf *leaf)
{
    cJSON *list = cJSON_CreateArray();
    bool is_ok = list != NULL;
    for (size_t i = 0; i < leaf->n_items && is_ok; i++)
        is_ok = cJSON_AddItemToArray(list, cJSON_CreateString(leaf->items[i]));
    if (is_ok && !leaf->is_list && !leaf->is_null)
        is_ok = cJSON_AddItemToArray(list, cJSON_CreateString(leaf->text));
    put(s, group, name, list);
    if (!is_ok)
        spoil(s);
}

/* One item of the option: a path, or an object with the names. */
static void give_one(const struct source *s, struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                     enum tr_import_verdict verdict, const char *option, const char *path, const char *why)
{
    struct tr_str text = { 0 };
    char *members = s->doc != NULL ? cJSON_PrintUnformatted(s->doc) : NULL;
    if (members == NULL) {
        im->is_nomem = true;
        return;
    }
    if (s->doc->child != NULL) {
        tr_str_member(&text, "{\"path\":", path);
        tr_str_addf(&text, ",%s", members + 1);
    } else {
        tr_str_addf(&text, "%s", path);
    }
    if (tr_str_ok(&text))
        tr_import_add(im, t, leaf, verdict, option, text.p, why);
    else
        im->is_nomem = true;
    tr_str_release(&text);
    cJSON_free(members);
}

/* A part of a data set is a directory of its name. */
static void add_config(const struct source *s, const char *path, struct tr_str *out)
{
    char dir[TR_PATH_MAX];
    tr_str_addf(out, "%s", path);
    if (s->config == NULL || s->config[0] == '\0' || strcmp(s->config, "default") == 0)
        return;
    if (tr_source_is_hub(path) || (tr_path_join(dir, path, s->config) == TR_OK && tr_dir_exists(dir)))
        tr_str_addf(out, "/%s", s->config);
    tr_error_clear();
}

void tr_source_give(const struct source *s, struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                    enum tr_import_verdict verdict, const char *option, const char *path, const char *why)
{
    const char *split = s->split != NULL ? s->split : "train";
    for (size_t n; n = strcspn(split, "+"), n != 0; split += n, split += *split == '+') { /* train+validation */
        struct tr_str whole = { 0 };
        add_config(s, path, &whole);
        if (strncmp(split, "train", n) != 0 || n != 5 || strchr(s->split != NULL ? s->split : "", '+') != NULL)
            tr_str_addf(&whole, "#%.*s", (int)n, split);
        if (tr_str_ok(&whole))
            give_one(s, im, t, leaf, verdict, option, whole.p, why);
        else
            im->is_nomem = true;
        tr_str_release(&whole);
    }
}

/* data/train.jsonl has the suffix of a file, org/Llama-3.1 has not. */
bool tr_source_is_hub(const char *path)
{
    const char *slash = strchr(path, '/'), *dot = strrchr(path, '.');
    bool has_suffix = slash != NULL && dot > slash && !(dot[1] >= '0' && dot[1] <= '9');
    return slash != NULL && slash != path && path[0] != '.' && strchr(slash + 1, '/') == NULL &&
           !tr_file_exists(path) && !tr_dir_exists(path) && !has_suffix && strchr(path, ':') == NULL;
}

bool tr_source_part(const char *split, const struct leaf *share, char *out, size_t n_out)
{
    double part = 0;
    bool is_part = share != NULL && tr_parse_real(share->text, &part) == TR_OK && part > 0 && part < 1;
    double percent = nearbyint(part * 100);
    tr_error_clear();
    split = split != NULL ? split : "train";
    return is_part && strchr(split, '[') == NULL && fabs(percent - part * 100) < 1e-6 &&
           (size_t)snprintf(out, n_out, "%s[:%g%%]", split, percent) < n_out;
}
