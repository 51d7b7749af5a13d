/* chat.c - finds a model's chat template and renders conversations with it.
 *
 * The places are searched in the order of transformers: chat_template.jinja first, then chat_template in
 * tokenizer_config.json. That member is a string or a list of named templates. From a list, "default" is used, and
 * "tool_use" for conversations with tools.
 */
#include "text/chat_impl.h"

enum { MAX_CONFIG = 64 << 20 };

static const char *const special_tokens[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token" };

/* Adds the special tokens of one file; a token that is already known keeps its first value. A token is a string or an
 * object with "content". */
static enum tr_status take_special_tokens(struct tr_chat *c, const cJSON *config)
{
    for (size_t i = 0; i < TR_COUNT_OF(special_tokens); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, special_tokens[i]);
        if (cJSON_IsObject(v))
            v = cJSON_GetObjectItemCaseSensitive(v, "content");
        if (!cJSON_IsString(v) || cJSON_GetObjectItemCaseSensitive(c->vars, special_tokens[i]))
            continue;
        if (!cJSON_AddStringToObject(c->vars, special_tokens[i], v->valuestring))
            return tr_fail(TR_NOMEM, "no memory for a special token");
    }
    return TR_OK;
}

static enum tr_status load_if_there(const char *dir, const char *name, cJSON **out)
{
    char path[TR_PATH_MAX];
    enum tr_status st = tr_path_join(path, dir, name);
    return st == TR_OK && tr_file_exists(path) ? tr_json_load(path, MAX_CONFIG, out) : st;
}

/* Takes ownership of text. */
static enum tr_status take_plain(struct tr_chat *c, char *text, const char *name)
{
    c->source = text;
    return text ? tr_jinja_open(text, strlen(text), name, &c->plain)
                : tr_fail(TR_NOMEM, "no memory for a chat template");
}

static enum tr_status open_plain(struct tr_chat *c, const char *text, const char *name)
{
    return take_plain(c, strdup(text), name);
}

static enum tr_status open_file(struct tr_chat *c, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    enum tr_status st = tr_file_read(path, 1 << 20, &text, &n);
    return st == TR_OK ? take_plain(c, text, path) : st;
}

/* The template with this name in a list of {name, template}. NULL: the list has none. */
static const char *named_template(const cJSON *list, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, list)
    {
        const char *row_name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name"));
        if (row_name && strcmp(row_name, name) == 0)
            return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "template"));
    }
    return NULL;
}

static enum tr_status fail_with_names(const char *what, const char *name)
{
    struct tr_str list = { 0 };
    char shown[128];
    size_t n;
    const char *const *names = tr_chat_builtin_names(&n);
    for (size_t i = 0; i < n; i++)
        tr_str_addf(&list, "%s%s", i ? ", " : "", names[i]);
    const char *near = tr_nearest(name, names, n);
    enum tr_status st =
        tr_fail(TR_USAGE, "%s%s%s%s; built-in templates: %s", what, tr_escape(name, shown, sizeof shown),
                near ? "; did you mean " : "", near ? near : "", tr_str_ok(&list) ? list.p : "");
    tr_str_release(&list);
    return st;
}

static enum tr_status open_builtin(struct tr_chat *c, const struct tr_chat_builtin *b)
{
    if (b->needs_eos && !cJSON_GetObjectItemCaseSensitive(c->vars, "eos_token"))
        return tr_fail(TR_USAGE,
                       "chat template %s ends its turns with the eos token, but the model has none; set eos_token in "
                       "tokenizer_config.json",
                       b->name);
    return open_plain(c, b->text, b->name);
}

/* Opens the model's own template. *is_found is false when the model has none. */
static enum tr_status open_own(struct tr_chat *c, const char *dir, const cJSON *config, bool *is_found)
{
    char path[TR_PATH_MAX];
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    const char *text = cJSON_GetStringValue(own), *tools = NULL;
    *is_found = true;
    TR_PASS(tr_path_join(path, dir, "chat_template.jinja"));
    if (tr_file_exists(path))
        return open_file(c, path);
    if (cJSON_IsArray(own)) {
        text = named_template(own, "default");
        tools = named_template(own, "tool_use");
    }
    *is_found = text != NULL;
    if (text)
        TR_PASS(open_plain(c, text, "chat_template"));
    if (text && tools)
        TR_PASS(tr_jinja_open(tools, strlen(tools), "chat_template tool_use", &c->with_tools));
    return TR_OK;
}

static enum tr_status open_named(struct tr_chat *c, const cJSON *config, const char *name)
{
    const char *text = named_template(cJSON_GetObjectItemCaseSensitive(config, "chat_template"), name);
    const struct tr_chat_builtin *b = tr_chat_find_builtin(name);
    size_t n = strlen(name);
    if (text)
        return open_plain(c, text, name);
    if (b)
        return open_builtin(c, b);
    if (strstr(name, "{%") != NULL || strstr(name, "{{") != NULL)
        return open_plain(c, name, "chat_template");
    if (n > 6 && strcmp(name + n - 6, ".jinja") == 0)
        return open_file(c, name);
    return fail_with_names("unknown chat template ", name);
}

enum tr_status tr_chat_open(const char *model_dir, const char *name, struct tr_chat **out)
{
    enum tr_status st = TR_OK;
    cJSON *config = NULL, *map = NULL;
    bool is_found = false;
    struct tr_chat *c = calloc(1, sizeof *c);
    if (!c || !(c->vars = cJSON_CreateObject()))
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a chat template"));
    c->now_s = (int64_t)tr_clock_wall();
    if (model_dir) {
        TR_TRY(load_if_there(model_dir, "tokenizer_config.json", &config));
        TR_TRY(load_if_there(model_dir, "special_tokens_map.json", &map));
        TR_TRY(take_special_tokens(c, config));
        TR_TRY(take_special_tokens(c, map));
    }
    if (name)
        TR_TRY(open_named(c, config, name));
    else if (model_dir)
        TR_TRY(open_own(c, model_dir, config, &is_found));
    if (!name && !is_found)
        TR_TRY(fail_with_names("no chat template in ", model_dir ? model_dir : "a model without a directory"));
    *out = c;
    c = NULL;
out:
    tr_chat_close(c);
    cJSON_Delete(config);
    cJSON_Delete(map);
    return st;
}

void tr_chat_close(struct tr_chat *c)
{
    if (!c)
        return;
    tr_jinja_close(c->plain);
    tr_jinja_close(c->with_tools);
    free(c->source);
    cJSON_Delete(c->vars);
    free(c);
}

enum tr_status tr_chat_set(struct tr_chat *c, const char *name, const cJSON *value)
{
    cJSON *copy = cJSON_Duplicate(value, true);
    cJSON_DeleteItemFromObjectCaseSensitive(c->vars, name);
    if (copy && cJSON_AddItemToObject(c->vars, name, copy))
        return TR_OK;
    cJSON_Delete(copy);
    return tr_fail(TR_NOMEM, "no memory for the template variable %s", name);
}

enum tr_status tr_chat_set_all(struct tr_chat *c, const char *object)
{
    cJSON *vars = NULL;
    enum tr_status st = object ? tr_chat_parse(object, strlen(object), "chat_template_kwargs", &vars) : TR_OK;
    for (const cJSON *v = vars ? vars->child : NULL; v && st == TR_OK; v = v->next)
        st = tr_chat_set(c, v->string, v);
    cJSON_Delete(vars);
    return st;
}

const char *tr_chat_source(const struct tr_chat *c)
{
    return c->source;
}

const struct tr_jinja *tr_chat_template(const struct tr_chat *c, const cJSON *tools)
{
    return tools && c->with_tools ? c->with_tools : c->plain;
}

enum tr_status tr_chat_render_first(const struct tr_chat *c, const struct tr_conversation *what, size_t n,
                                    bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans)
{
    enum { N_OWN = 4, N_MAX = 64 };
    struct tr_jinja_var vars[N_MAX];
    size_t n_vars = N_OWN;
    const cJSON *v, *sets[] = { what->vars, c->vars },
                    prompt = { .type = add_generation_prompt ? cJSON_True : cJSON_False };
    if (!cJSON_IsArray(what->messages))
        return tr_fail(TR_USAGE, "a conversation must be a list of messages");
    cJSON_ArrayForEach(v, what->messages)
    {
        if (!cJSON_IsObject(v))
            return tr_fail(TR_USAGE, "a message of the conversation is not an object with role and content");
    }
    vars[0] = (struct tr_jinja_var){ "messages", what->messages, n };
    vars[1] = (struct tr_jinja_var){ "tools", what->tools, SIZE_MAX };
    vars[2] = (struct tr_jinja_var){ "documents", NULL, SIZE_MAX };
    vars[3] = (struct tr_jinja_var){ "add_generation_prompt", &prompt, SIZE_MAX };
    for (size_t k = 0; k < TR_COUNT_OF(sets); k++)
        cJSON_ArrayForEach(v, sets[k])
        {
            if (k > 0 && cJSON_GetObjectItemCaseSensitive(sets[0], v->string))
                continue;
            if (n_vars == N_MAX)
                return tr_fail(TR_USAGE, "there are more than %d template variables, which is the limit",
                               N_MAX - N_OWN);
            vars[n_vars++] = (struct tr_jinja_var){ v->string, v, SIZE_MAX };
        }
    return tr_jinja_render(tr_chat_template(c, what->tools), vars, n_vars, c->now_s, out, spans);
}

static const cJSON *reasoning_of(const cJSON *message)
{
    static const char *const names[] = { "reasoning_content", "thinking", "reasoning" };
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(message, names[i]);
        if (v && !cJSON_IsNull(v))
            return v;
    }
    return NULL;
}

/* {"thinking": reasoning, **message, "reasoning_content": reasoning} */
static cJSON *alias_one(const cJSON *message)
{
    const cJSON *reasoning = reasoning_of(message), *v;
    if (!reasoning)
        return cJSON_Duplicate(message, true);
    const cJSON *thinking = cJSON_GetObjectItemCaseSensitive(message, "thinking");
    cJSON *out = cJSON_CreateObject();
    bool is_ok = out && cJSON_AddItemToObject(out, "thinking", cJSON_Duplicate(thinking ? thinking : reasoning, true));
    cJSON_ArrayForEach(v, message)
    {
        bool is_content = strcmp(v->string, "reasoning_content") == 0;
        if (is_ok && strcmp(v->string, "thinking") != 0)
            is_ok = cJSON_AddItemToObject(out, v->string, cJSON_Duplicate(is_content ? reasoning : v, true));
    }
    if (is_ok && !cJSON_GetObjectItemCaseSensitive(out, "reasoning_content"))
        is_ok = cJSON_AddItemToObject(out, "reasoning_content", cJSON_Duplicate(reasoning, true));
    if (!is_ok) {
        cJSON_Delete(out);
        return NULL;
    }
    return out;
}

enum tr_status tr_chat_alias(const cJSON *messages, const cJSON **out, bool *is_copy)
{
    const cJSON *m;
    bool needs = false;
    cJSON_ArrayForEach(m, messages)
    {
        needs = needs || (cJSON_IsObject(m) && reasoning_of(m));
    }
    *out = messages;
    *is_copy = false;
    if (!needs)
        return TR_OK;
    cJSON *copy = cJSON_CreateArray();
    cJSON_ArrayForEach(m, messages)
    {
        cJSON *one = cJSON_IsObject(m) ? alias_one(m) : cJSON_Duplicate(m, true);
        if (!copy || !one || !cJSON_AddItemToArray(copy, one)) {
            cJSON_Delete(one);
            cJSON_Delete(copy);
            return tr_fail(TR_NOMEM, "no memory for a conversation");
        }
    }
    *out = copy;
    *is_copy = true;
    return TR_OK;
}

enum tr_status tr_chat_render(const struct tr_chat *c, const cJSON *messages, const cJSON *tools,
                              bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans)
{
    const cJSON *all;
    bool is_copy;
    enum tr_status st = tr_chat_alias(messages, &all, &is_copy);
    if (st == TR_OK)
        st = tr_chat_render_first(c, &(struct tr_conversation){ .messages = all, .tools = tools }, SIZE_MAX,
                                  add_generation_prompt, out, spans);
    if (is_copy)
        cJSON_Delete((cJSON *)(uintptr_t)all); /* a copy made here; const only because it may also be the caller's */
    return st;
}

/* ---- numbers as they are spelled in the text ---- */

/* Visits the numbers of a tree in document order. A number that a double would not print back as it was written keeps
 * its spelling in valuestring. */
static bool keep_spelling(cJSON *item, const char **p)
{
    if (cJSON_IsNumber(item)) {
        while (**p != '-' &&
               !(**p >= '0' && **p <= '9')) { /* ends, because the text is legal JSON and holds this number */
            if (**p == '"')
                for ((*p)++; **p != '"'; (*p)++)
                    *p += **p == '\\';
            (*p)++;
        }
        size_t n = strspn(*p, "+-.0123456789eE");
        if (n > 15 || strcspn(*p, ".eE") < n) {
            item->valuestring = cJSON_malloc(n + 1);
            if (!item->valuestring)
                return false;
            memcpy(item->valuestring, *p, n);
            item->valuestring[n] = 0;
        }
        *p += n;
    }
    for (cJSON *c = item->child; c; c = c->next)
        if (!keep_spelling(c, p))
            return false;
    return true;
}

enum tr_status tr_chat_parse(const char *text, size_t n, const char *what, cJSON **out)
{
    cJSON *doc = NULL;
    char *copy = malloc(n + 1);
    enum tr_status st = copy ? tr_json_parse(text, n, what, &doc) : tr_fail(TR_NOMEM, "no memory for %s", what);
    if (st == TR_OK) {
        memcpy(copy, text, n);
        copy[n] = 0;
        const char *p = copy;
        if (!keep_spelling(doc, &p))
            st = tr_fail(TR_NOMEM, "no memory for %s", what);
    }
    free(copy);
    if (st == TR_OK)
        *out = doc;
    else
        cJSON_Delete(doc);
    return st;
}
