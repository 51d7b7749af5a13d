/* map.c - see map.h. Every name of the map is checked when it is opened, so that a slip is not a column that nobody
 * has. */
#include "data/map.h"
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

static enum tr_status no_memory(void)
{
    return tr_fail(TR_NOMEM, "no memory for a source of data");
}

/* ---- the map itself ---- */

enum member_kind { MEMBER_TEXT, MEMBER_NAMES, MEMBER_LISTS, MEMBER_LIST };

static const struct {
    const char *name;
    enum member_kind kind;
} members[] = {
    { "format", MEMBER_TEXT },        { "columns", MEMBER_NAMES },        { "message", MEMBER_NAMES },
    { "roles", MEMBER_LISTS },        { "train_roles", MEMBER_LIST },     { "system", MEMBER_TEXT },
    { "prompt_format", MEMBER_TEXT }, { "no_input_format", MEMBER_TEXT }, { "system_format", MEMBER_TEXT },
    { "output_format", MEMBER_TEXT },
};

/* The members that records of any shape have. */
static const char *const columns[] = {
    "text",      "prompt",   "completion",     "instruction",          "input",           "output",
    "system",    "history",  "messages",       "conversations",        "tools",           "segments",
    "input_ids", "labels",   "attention_mask", "completion_mask",      "assistant_masks", "loss_mask",
    "chosen",    "rejected", "label",          "chat_template_kwargs", "loss_weight",     "loss_weights",
};

static enum tr_status refuse_name(const char *where, const char *name, const char *const *names, size_t n)
{
    char shown[64];
    const char *near = tr_nearest(name, names, n);
    struct tr_str all = { 0 };
    for (size_t i = 0; i < n; i++)
        tr_str_addf(&all, "%s%s", i ? ", " : "", names[i]);
    enum tr_status st =
        tr_fail(TR_USAGE, "\"%s\" is no %s%s%s%s; there are: %s", tr_escape(name, shown, sizeof shown), where,
                near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", tr_str_ok(&all) ? all.p : "");
    tr_str_release(&all);
    return st;
}

static bool are_texts(const cJSON *list)
{
    for (const cJSON *c = list->child; c; c = c->next)
        if (!cJSON_IsString(c))
            return false;
    return true;
}

static enum tr_status check_member(const cJSON *m, enum member_kind kind)
{
    static const char *const want[] = { "a text", "an object of names", "an object of names or lists of names",
                                        "a list of names" };
    bool is_ok = kind == MEMBER_TEXT   ? cJSON_IsString(m)
                 : kind == MEMBER_LIST ? cJSON_IsArray(m) && are_texts(m)
                                       : cJSON_IsObject(m);
    for (const cJSON *c = is_ok && cJSON_IsObject(m) ? m->child : NULL; c && is_ok; c = c->next)
        is_ok = cJSON_IsString(c) || cJSON_IsNull(c) || (kind == MEMBER_LISTS && cJSON_IsArray(c) && are_texts(c));
    return is_ok ? TR_OK : tr_fail(TR_USAGE, "\"%s\" is not %s", m->string, want[kind]);
}

static enum tr_status check_names(const struct tr_source_map *m)
{
    static const char *const roles[] = { "user", "assistant", "system", "tool", "function_call" };
    for (const cJSON *c = m->columns ? m->columns->child : NULL; c; c = c->next) {
        size_t i = 0;
        while (i < TR_COUNT_OF(columns) && strcmp(columns[i], c->string) != 0)
            i++;
        if (i == TR_COUNT_OF(columns))
            return refuse_name("column", c->string, columns, TR_COUNT_OF(columns));
    }
    for (const cJSON *c = m->roles ? m->roles->child : NULL; c; c = c->next) {
        size_t i = 0;
        while (i < TR_COUNT_OF(roles) && strcmp(roles[i], c->string) != 0)
            i++;
        if (i == TR_COUNT_OF(roles))
            return refuse_name("role", c->string, roles, TR_COUNT_OF(roles));
    }
    return TR_OK;
}

static enum tr_status find_shape(const char *name, enum tr_shape *out)
{
    const char *names[TR_SHAPE_COUNT];
    for (int s = 0; s < TR_SHAPE_COUNT; s++) {
        names[s] = tr_shape_name((enum tr_shape)s);
        if (strcmp(names[s], name) == 0) {
            *out = (enum tr_shape)s;
            return TR_OK;
        }
    }
    return refuse_name("format", name, names, TR_SHAPE_COUNT);
}

static enum tr_status read_map(struct tr_source_map *m)
{
    const char *names[TR_COUNT_OF(members)], *format = NULL;
    for (size_t i = 0; i < TR_COUNT_OF(members); i++)
        names[i] = members[i].name;
    for (const cJSON *c = m->doc->child; c; c = c->next) {
        size_t i = 0;
        while (i < TR_COUNT_OF(members) && strcmp(members[i].name, c->string) != 0)
            i++;
        if (i == TR_COUNT_OF(members))
            TR_PASS(refuse_name("member of a source", c->string, names, TR_COUNT_OF(names)));
        if (!cJSON_IsNull(c))
            TR_PASS(check_member(c, members[i].kind));
    }
    m->columns = cJSON_GetObjectItemCaseSensitive(m->doc, "columns");
    m->message = cJSON_GetObjectItemCaseSensitive(m->doc, "message");
    m->roles = cJSON_GetObjectItemCaseSensitive(m->doc, "roles");
    m->train_roles = cJSON_GetObjectItemCaseSensitive(m->doc, "train_roles");
    TR_PASS(tr_json_str(m->doc, "format", false, &format));
    TR_PASS(tr_json_str(m->doc, "system", false, &m->system));
    TR_PASS(tr_json_str(m->doc, "prompt_format", false, &m->prompt_format));
    TR_PASS(tr_json_str(m->doc, "no_input_format", false, &m->no_input_format));
    TR_PASS(tr_json_str(m->doc, "system_format", false, &m->system_format));
    TR_PASS(tr_json_str(m->doc, "output_format", false, &m->output_format));
    if (format)
        TR_PASS(find_shape(format, &m->shape));
    if (m->prompt_format && !format)
        m->shape = TR_SHAPE_ALPACA;
    if (m->prompt_format && m->shape != TR_SHAPE_ALPACA)
        return tr_fail(TR_USAGE, "\"prompt_format\" is of records of format alpaca, not of format %s", format);
    if (!m->prompt_format && (m->no_input_format || m->system_format || m->output_format))
        return tr_fail(TR_USAGE, "no_input_format, system_format and output_format need \"prompt_format\"");
    TR_PASS(check_names(m));
    return TR_OK;
}

enum tr_status tr_map_open(const char *json, struct tr_source_map **out)
{
    enum tr_status st = TR_OK;
    struct tr_source_map *m = calloc(1, sizeof *m);
    if (!m)
        return no_memory();
    TR_TRY(tr_json_parse(json, strlen(json), "data", &m->doc));
    if (!cJSON_IsObject(m->doc))
        TR_TRY(tr_fail(TR_USAGE, "a source of data is not an object"));
    m->text = cJSON_PrintUnformatted(m->doc);
    if (!m->text)
        TR_TRY(no_memory());
    TR_TRY(read_map(m));
    *out = m;
    m = NULL;
out:
    tr_map_close(m);
    return st;
}

void tr_map_close(struct tr_source_map *m)
{
    if (!m)
        return;
    cJSON_free(m->text);
    cJSON_Delete(m->doc);
    free(m);
}

/* ---- names ---- */

/* Renames members of an object. All are taken out before any is put back, so names may be swapped; a member with a
 * usual name that another one takes is dropped. */
static enum tr_status rename_members(cJSON *object, const cJSON *names)
{
    enum tr_status st = TR_OK;
    cJSON *taken = cJSON_CreateObject();
    if (!taken)
        return no_memory();
    for (const cJSON *c = names->child; c && st == TR_OK; c = c->next) {
        const char *theirs = cJSON_GetStringValue(c);
        const cJSON *item = theirs ? cJSON_GetObjectItemCaseSensitive(object, theirs) : NULL;
        cJSON *copy = item ? cJSON_Duplicate(item, true) : NULL;
        if (item && (!copy || !cJSON_AddItemToObject(taken, c->string, copy))) {
            cJSON_Delete(copy);
            st = no_memory();
        }
    }
    for (const cJSON *c = names->child; c; c = c->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(object, c->string);
        if (cJSON_IsString(c))
            cJSON_DeleteItemFromObjectCaseSensitive(object, c->valuestring);
    }
    while (taken->child && st == TR_OK) {
        cJSON *item = cJSON_DetachItemViaPointer(taken, taken->child);
        char *name = item->string;
        item->string = NULL;
        if (!cJSON_AddItemToObject(object, name, item)) {
            cJSON_Delete(item);
            st = no_memory();
        }
        cJSON_free(name);
    }
    cJSON_Delete(taken);
    return st;
}

/* The role of ours that the map calls so, or NULL. */
static const char *find_role(const cJSON *roles, const char *theirs)
{
    for (const cJSON *c = roles ? roles->child : NULL; c; c = c->next)
        for (const cJSON *name = cJSON_IsArray(c) ? c->child : c; name; name = cJSON_IsArray(c) ? name->next : NULL)
            if (cJSON_IsString(name) && strcmp(name->valuestring, theirs) == 0)
                return c->string;
    return NULL;
}

/* A role that is null: its turns are left out. */
static void leave_out(const struct tr_source_map *m, cJSON *list)
{
    for (cJSON *turn = list->child, *next; turn; turn = next) {
        const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(turn, "role"));
        next = turn->next;
        if (!role)
            role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(turn, "from"));
        const char *usual = role ? tr_chat_usual_role(role) : NULL;
        if (role && cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(m->roles, usual ? usual : role)))
            cJSON_Delete(cJSON_DetachItemViaPointer(list, turn));
    }
}

static enum tr_status apply_message(const struct tr_source_map *m, cJSON *message)
{
    if (!cJSON_IsObject(message))
        return tr_fail(TR_USAGE, "a message of the conversation is not an object");
    if (m->message)
        TR_PASS(rename_members(message, m->message));
    cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    if (!cJSON_IsString(role) || !(m->roles || m->message))
        return TR_OK;
    const char *ours = find_role(m->roles, role->valuestring);
    ours = ours ? ours : tr_chat_usual_role(role->valuestring);
    if (ours && !cJSON_SetValuestring(role, ours))
        TR_PASS(no_memory());
    if (ours && strcmp(ours, "function_call") == 0)
        TR_PASS(tr_chat_take_call(message));
    return TR_OK;
}

/* A conversation without a system turn begins with the one of the record, or of the source. */
static enum tr_status add_system(const struct tr_source_map *m, const cJSON *record, cJSON *messages)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(m->columns, "system")
                           ? cJSON_GetObjectItemCaseSensitive(record, "system")
                           : NULL;
    const char *text = cJSON_IsString(own) && *own->valuestring ? own->valuestring : m->system;
    const char *first = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(messages->child, "role"));
    if (!text || !*text || (first && strcmp(first, "system") == 0))
        return TR_OK;
    cJSON *turn = cJSON_CreateObject();
    if (cJSON_AddStringToObject(turn, "role", "system") && cJSON_AddStringToObject(turn, "content", text) &&
        cJSON_InsertItemInArray(messages, 0, turn))
        return TR_OK;
    cJSON_Delete(turn);
    return no_memory();
}

enum tr_status tr_map_apply(const struct tr_source_map *m, cJSON *record)
{
    enum { FIRST_ANSWER = 2 };
    static const char *const lists[] = { "messages", "prompt",          "completion",       "chosen",
                                         "rejected", "chosen_messages", "rejected_messages" };
    if (m->columns)
        TR_PASS(rename_members(record, m->columns));
    for (size_t i = 0; i < TR_COUNT_OF(lists); i++) {
        cJSON *list = cJSON_GetObjectItemCaseSensitive(record, lists[i]);
        if (m->shape == TR_SHAPE_SHAREGPT) {
            if (cJSON_IsArray(list))
                leave_out(m, list);
            continue;
        }
        if (i >= FIRST_ANSWER && cJSON_IsObject(list)) /* an answer that is one message */
            TR_PASS(apply_message(m, list));
        if (!cJSON_IsArray(list))
            continue;
        for (cJSON *message = list->child; message; message = message->next)
            TR_PASS(apply_message(m, message));
        leave_out(m, list);
        if (i < FIRST_ANSWER && list->child)
            TR_PASS(add_system(m, record, list));
    }
    cJSON *turns = cJSON_GetObjectItemCaseSensitive(record, "conversations");
    if (cJSON_IsArray(turns))
        leave_out(m, turns);
    const cJSON *system = cJSON_GetObjectItemCaseSensitive(record, "system");
    if (m->system && !(cJSON_IsString(system) && *system->valuestring)) {
        cJSON_DeleteItemFromObjectCaseSensitive(record, "system");
        if (!cJSON_AddStringToObject(record, "system", m->system))
            TR_PASS(no_memory());
    }
    return TR_OK;
}

enum tr_status tr_map_loss(const struct tr_source_map *m, cJSON *message, int8_t *out)
{
    bool is_marked = m->message && cJSON_GetObjectItemCaseSensitive(m->message, "train");
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "role"));
    *out = -1;
    for (const cJSON *c = m->train_roles ? m->train_roles->child : NULL; c; c = c->next)
        if (role && strcmp(c->valuestring, role) == 0)
            *out = 1;
    if (m->train_roles && *out < 0)
        *out = 0;
    cJSON *mark = is_marked ? cJSON_DetachItemFromObjectCaseSensitive(message, "train") : NULL;
    enum tr_status st = TR_OK;
    if (cJSON_IsBool(mark))
        *out = cJSON_IsTrue(mark) ? 1 : 0;
    else if (cJSON_IsNumber(mark) && (mark->valuedouble == 0 || mark->valuedouble == 1))
        *out = mark->valuedouble == 1;
    else if (mark && !cJSON_IsNull(mark))
        st = tr_fail(TR_USAGE, "the mark of a turn that is trained is neither true nor false");
    cJSON_Delete(mark);
    return st;
}

/* ---- prompts ---- */

static enum tr_status add_value(const cJSON *record, const char *name, size_t n, struct tr_str *out)
{
    char key[128], shown[160];
    const cJSON *v = NULL;
    if (n < sizeof key) {
        memcpy(key, name, n);
        key[n] = 0;
        v = cJSON_GetObjectItemCaseSensitive(record, key);
    } else {
        key[0] = 0;
    }
    if (cJSON_IsString(v))
        tr_str_addf(out, "%s", v->valuestring);
    else if (cJSON_IsNumber(v) && v->valuestring)
        tr_str_addf(out, "%s", v->valuestring);
    else if (cJSON_IsNumber(v))
        tr_str_addf(out, "%.15g", v->valuedouble);
    else
        return tr_fail(TR_USAGE, "the format names {%s}, which the record does not hold as a text",
                       tr_escape(key, shown, sizeof shown));
    return TR_OK;
}

enum tr_status tr_map_format(const char *format, const cJSON *record, struct tr_str *out)
{
    for (const char *p = format; *p;) {
        size_t n = strcspn(p, "{}");
        tr_str_add(out, p, n);
        p += n;
        if (!*p)
            break;
        if (p[1] == p[0]) {
            tr_str_add(out, p, 1);
            p += 2;
            continue;
        }
        const char *end = *p == '{' ? strchr(p, '}') : NULL;
        if (!end)
            return tr_fail(TR_USAGE, "a format has a single brace; write {name}, or {{ and }} for braces");
        TR_PASS(add_value(record, p + 1, (size_t)(end - p) - 1, out));
        p = end + 1;
    }
    return tr_str_ok(out) ? TR_OK : no_memory();
}
