/* source.c - see source.h. A source without names of its own is a plain path, as a person would write it. */
#include "import/source.h"

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

void tr_source_give(const struct source *s, struct tr_import *im, const struct tree *t, const struct leaf *leaf,
                    enum tr_import_verdict verdict, const char *option, const char *path, const char *why)
{
    struct tr_str text = { 0 }, part = { 0 };
    char *members = s->doc != NULL ? cJSON_PrintUnformatted(s->doc) : NULL;
    if (members == NULL) {
        im->is_nomem = true;
        return;
    }
    tr_str_addf(&part, "%s", path);
    if (s->split != NULL && strcmp(s->split, "train") != 0)
        tr_str_addf(&part, "#%s", s->split);
    path = tr_str_ok(&part) ? part.p : path;
    if (s->doc->child != NULL) {
        tr_str_member(&text, "{\"path\":", path);
        tr_str_addf(&text, ",%s", members + 1);
    } else {
        tr_str_addf(&text, "%s", path);
    }
    if (tr_str_ok(&text) && tr_str_ok(&part))
        tr_import_add(im, t, leaf, verdict, option, text.p, why);
    else
        im->is_nomem = true;
    tr_str_release(&text);
    tr_str_release(&part);
    cJSON_free(members);
}

bool tr_source_is_hub(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash != NULL && slash != path && path[0] != '.' && strchr(slash + 1, '/') == NULL &&
           !tr_file_exists(path) && !tr_dir_exists(path) && strchr(slash + 1, '.') == NULL && strchr(path, ':') == NULL;
}
