/* chat_parts.c - contents of messages that are lists.
 *
 * Most templates of text models write a list as a literal ("[{'type': 'text', ...") or leave it out; those of models of
 * text and images write its parts. Which of them a template does is seen from a rendering in which every text of a part
 * is a mark. A list whose marks are not written as text becomes one text, where all its parts are texts, and is refused
 * otherwise. Rejected: a text of every list, because a template may set its parts apart.
 */
#include "text/chat_impl.h"
#include "text/chat_record.h"

enum { MARK_BYTES = 32 };

static enum tr_status no_memory(void)
{
    return tr_fail(TR_NOMEM, "no memory for a conversation");
}

static const char *text_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static bool is_text(const cJSON *part)
{
    const char *type = text_of(part, "type");
    return type && strcmp(type, "text") == 0 && text_of(part, "text");
}

/* Parts are objects with a type. Other lists are results of tools, which some templates write as JSON. */
static bool are_parts(const cJSON *list)
{
    const cJSON *part;
    cJSON_ArrayForEach(part, list)
    {
        if (!text_of(part, "type"))
            return false;
    }
    return true;
}

static bool are_texts(const cJSON *list)
{
    const cJSON *part;
    cJSON_ArrayForEach(part, list)
    {
        if (!is_text(part))
            return false;
    }
    return true;
}

static enum tr_status refuse_type(const char *type, const char *why)
{
    char shown[64];
    return tr_fail(TR_USAGE, "its content has a part of type \"%s\", %s", tr_escape(type, shown, sizeof shown), why);
}

/* ---- parts with a "value" (LLaMA-Factory) ---- */

/* Moves what a part holds to where templates look for it. *is_moved: the part itself is not needed any more. */
static enum tr_status take_value(cJSON *message, cJSON *part, struct tr_str *reasoning, bool *is_moved)
{
    const char *type = text_of(part, "type"), *value = text_of(part, "value");
    *is_moved = false;
    if (!type || !value)
        return TR_OK;
    if (strcmp(type, "text") == 0 && !text_of(part, "text"))
        return cJSON_AddStringToObject(part, "text", value) ? TR_OK : no_memory();
    *is_moved = true;
    if (strcmp(type, "reasoning") == 0) {
        tr_str_addf(reasoning, "%s", value);
        return TR_OK;
    }
    if (strcmp(type, "tool_call") == 0 || strcmp(type, "tool_calls") == 0)
        return tr_chat_add_calls(message, value);
    *is_moved = false;
    return TR_OK;
}

static enum tr_status take_values(cJSON *message, cJSON *list)
{
    enum tr_status st = TR_OK;
    struct tr_str reasoning = { 0 };
    for (cJSON *part = list->child, *next; part; part = next) {
        bool is_moved;
        next = part->next;
        TR_TRY(take_value(message, part, &reasoning, &is_moved));
        if (is_moved)
            cJSON_Delete(cJSON_DetachItemViaPointer(list, part));
    }
    TR_TRY(tr_str_check(&reasoning, "a conversation"));
    if (reasoning.n > 0 && cJSON_GetObjectItemCaseSensitive(message, "reasoning_content"))
        TR_TRY(tr_fail(TR_USAGE, "it has a reasoning_content beside parts of type \"reasoning\"; keep one of them"));
    if (reasoning.n > 0 && !cJSON_AddStringToObject(message, "reasoning_content", reasoning.p))
        TR_TRY(no_memory());
out:
    tr_str_release(&reasoning);
    return st;
}

/* ---- types ---- */

/* A template that writes parts of a type names it. */
static bool names_type(const struct tr_chat *c, const char *type)
{
    char quoted[2][64];
    for (int i = 0; i < 2; i++)
        if (tr_format(quoted[i], sizeof quoted[i], i ? "'%s'" : "\"%s\"", type) != TR_OK) {
            tr_error_clear();
            return false;
        }
    return strstr(tr_chat_source(c), quoted[0]) || strstr(tr_chat_source(c), quoted[1]);
}

static enum tr_status check_types(const struct tr_chat *c, const cJSON *list)
{
    static const char *const media[] = { "image", "video", "audio", "file" };
    const cJSON *part;
    cJSON_ArrayForEach(part, list)
    {
        const char *type = text_of(part, "type");
        for (size_t i = 0; i < TR_COUNT_OF(media); i++)
            if (strstr(type, media[i]))
                return refuse_type(type, "and only text is trained; leave such records out of the file");
        if (strcmp(type, "text") == 0 && !is_text(part))
            return refuse_type(type, "which has neither \"text\" nor \"value\" as a string");
        if (!is_text(part) && !names_type(c, type))
            return refuse_type(type, "which the chat template does not write; give {\"type\": \"text\", \"text\": "
                                     "...}, or a string as content");
    }
    return TR_OK;
}

/* ---- what the template writes ---- */

static void name_mark(size_t i, char out[MARK_BYTES])
{
    (void)tr_format(out, MARK_BYTES, "[[list %zu]]", i);
}

static bool put_mark(cJSON *list, const char *mark)
{
    cJSON *part, *added;
    bool is_put = false;
    if (!are_parts(list)) { /* one text in the place of the results */
        while (list->child)
            cJSON_Delete(cJSON_DetachItemViaPointer(list, list->child));
        added = cJSON_CreateString(mark);
        return cJSON_AddItemToArray(list, added);
    }
    cJSON_ArrayForEach(part, list)
    {
        if (!is_text(part))
            continue;
        if (!cJSON_SetValuestring(cJSON_GetObjectItemCaseSensitive(part, "text"), mark))
            return false;
        is_put = true;
    }
    if (is_put)
        return true;
    added = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, added) && cJSON_AddStringToObject(added, "type", "text") &&
           cJSON_AddStringToObject(added, "text", mark);
}

static bool ends_with(const char *text, size_t n, const char *end)
{
    size_t n_end = strlen(end);
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

/* Whether the rendering holds the mark as often as the list has texts, and never inside a literal. */
static bool is_written(const char *text, const char *mark, const cJSON *list)
{
    static const char *const of_parts[] = { "'text': '", "\"text\": \"", "\"text\":\"" };
    const cJSON *part;
    size_t n = 0, n_texts = 0;
    bool has_parts = are_parts(list);
    for (const char *at = text; (at = strstr(at, mark)) != NULL; at += strlen(mark), n++) {
        for (size_t i = 0; has_parts && i < TR_COUNT_OF(of_parts); i++)
            if (ends_with(text, (size_t)(at - text), of_parts[i]))
                return false;
        if (!has_parts && ends_with(text, (size_t)(at - text), "['"))
            return false;
    }
    cJSON_ArrayForEach(part, list)
    {
        n_texts += is_text(part);
    }
    return n >= (n_texts > 0 ? n_texts : 1);
}

/* Where the template fails nothing is rendered: the rendering of the messages themselves will say why. */
static enum tr_status render_marks(const struct tr_chat *c, const struct tr_conversation *what, struct tr_str *out,
                                   bool *is_rendered)
{
    enum tr_status st = TR_OK;
    struct tr_conversation marked = *what;
    char mark[MARK_BYTES];
    bool is_copy = false;
    size_t i = 0;
    cJSON *copy = cJSON_Duplicate(what->messages, true);
    if (!copy)
        return no_memory();
    for (cJSON *m = copy->child; m; m = m->next, i++) {
        cJSON *list = cJSON_GetObjectItemCaseSensitive(m, "content");
        name_mark(i, mark);
        if (cJSON_IsArray(list) && list->child && !put_mark(list, mark))
            TR_TRY(no_memory());
    }
    TR_TRY(tr_chat_alias(copy, &marked.messages, &is_copy));
    st = tr_chat_render_first(c, &marked, SIZE_MAX, false, out, NULL);
    *is_rendered = st == TR_OK;
    if (st == TR_USAGE) {
        tr_error_clear();
        st = TR_OK;
    }
out:
    if (is_copy)
        cJSON_Delete((cJSON *)(uintptr_t)marked.messages); /* a copy that tr_chat_alias made */
    cJSON_Delete(copy);
    return st;
}

static enum tr_status join(cJSON *message, const cJSON *list)
{
    enum tr_status st = TR_OK;
    const cJSON *part;
    struct tr_str all = { 0 };
    cJSON_ArrayForEach(part, list)
    {
        tr_str_addf(&all, "%s", text_of(part, "text"));
    }
    TR_TRY(tr_str_check(&all, "a conversation"));
    cJSON *text = cJSON_CreateString(all.n > 0 ? all.p : "");
    if (text && cJSON_ReplaceItemInObjectCaseSensitive(message, "content", text))
        goto out;
    cJSON_Delete(text);
    st = no_memory();
out:
    tr_str_release(&all);
    return st;
}

static enum tr_status settle(cJSON *message, size_t i, const char *rendered)
{
    char mark[MARK_BYTES];
    const cJSON *part, *list = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (!cJSON_IsArray(list))
        return TR_OK;
    name_mark(i, mark);
    if (list->child && rendered && is_written(rendered, mark, list))
        return TR_OK;
    if (are_texts(list)) /* or an empty list */
        return join(message, list);
    if (!rendered)
        return TR_OK;
    if (!are_parts(list))
        return tr_fail(TR_USAGE, "its content is a list that the chat template does not write; give a string, for "
                                 "results of a tool the list as JSON");
    cJSON_ArrayForEach(part, list)
    {
        if (!is_text(part))
            return refuse_type(text_of(part, "type"), "and the chat template writes no parts; give a string as "
                                                      "content");
    }
    return TR_OK;
}

enum tr_status tr_chat_read_parts(const struct tr_chat *c, const struct tr_conversation *what, cJSON *messages)
{
    enum tr_status st = TR_OK;
    struct tr_str rendered = { 0 };
    bool has_lists = false, is_rendered = false;
    size_t i = 0;
    for (cJSON *m = messages->child; m; m = m->next, i++) {
        cJSON *list = cJSON_GetObjectItemCaseSensitive(m, "content");
        if (!cJSON_IsArray(list))
            continue;
        TR_TRY(take_values(m, list));
        TR_TRY(are_parts(list) ? check_types(c, list) : TR_OK);
        has_lists = true;
    }
    if (!has_lists)
        return TR_OK;
    TR_TRY(render_marks(c, what, &rendered, &is_rendered));
    i = 0;
    for (cJSON *m = messages->child; m; m = m->next, i++)
        TR_TRY(settle(m, i, is_rendered && tr_str_ok(&rendered) ? rendered.p : NULL));
out:
    tr_str_release(&rendered);
    return st == TR_OK ? st : tr_fail_at(st, "turn %zu: ", i);
}
