/* chat_record.c - alpaca and ShareGPT records as text or as messages for a chat template.
 *
 * The alpaca text is that of Stanford's train.py. With a chat template, an alpaca record becomes a conversation
 * instead, because a chat model never saw that text. As in LLaMA-Factory, the input follows the instruction on a new
 * line.
 */
#include "text/chat_record.h"
#include "text/chat.h"

#include <string.h>

static enum tr_status no_memory(void)
{
    return tr_fail(TR_NOMEM, "no memory for a conversation");
}

enum tr_status tr_chat_add_message(cJSON *messages, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(messages, m)) {
        cJSON_Delete(m);
        return no_memory();
    }
    return cJSON_AddStringToObject(m, "role", role) && cJSON_AddStringToObject(m, "content", content) ? TR_OK
                                                                                                      : no_memory();
}

/* "tools" is a list, or a string that holds a list as JSON (LLaMA-Factory). */
enum tr_status tr_chat_record_tools(const cJSON *record, cJSON **tools)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(record, "tools");
    *tools = NULL;
    if (!t || cJSON_IsNull(t) || (cJSON_IsString(t) && !*t->valuestring))
        return TR_OK;
    if (cJSON_IsString(t)) {
        TR_PASS(tr_chat_parse(t->valuestring, strlen(t->valuestring), "\"tools\"", tools));
    } else {
        *tools = cJSON_Duplicate(t, true);
        if (!*tools)
            return no_memory();
    }
    if (cJSON_IsArray(*tools))
        return TR_OK;
    cJSON_Delete(*tools);
    *tools = NULL;
    return tr_fail(TR_USAGE, "\"tools\" is not a list of tools, nor a string that holds such a list as JSON");
}

/* ---- alpaca ---- */

struct alpaca {
    const char *instruction, *input, *output, *system;
    const cJSON *history; /* a checked list of [instruction, response], or NULL */
};

static enum tr_status read_alpaca(const cJSON *record, struct alpaca *a)
{
    *a = (struct alpaca){ .input = "", .system = "" };
    TR_PASS(tr_json_str(record, "instruction", true, &a->instruction));
    TR_PASS(tr_json_str(record, "output", true, &a->output));
    TR_PASS(tr_json_str(record, "input", false, &a->input));
    TR_PASS(tr_json_str(record, "system", false, &a->system));
    if (!*a->output)
        return tr_fail(TR_USAGE, "\"output\" is empty, so there is nothing to train on");
    a->history = cJSON_GetObjectItemCaseSensitive(record, "history");
    if (cJSON_IsNull(a->history))
        a->history = NULL;
    for (const cJSON *t = a->history ? a->history->child : NULL; t; t = t->next)
        if (!cJSON_IsArray(t) || cJSON_GetArraySize(t) != 2 || !cJSON_IsString(t->child) ||
            !cJSON_IsString(t->child->next))
            return tr_fail(TR_USAGE, "\"history\" is not a list of [instruction, response]");
    return TR_OK;
}

enum tr_status tr_chat_alpaca_text(const cJSON *record, struct tr_str *prompt, const char **answer)
{
    static const char with_input[] = "Below is an instruction that describes a task, paired with an input that "
                                     "provides further context. Write a response that appropriately completes the "
                                     "request.";
    static const char without[] = "Below is an instruction that describes a task. Write a response that appropriately "
                                  "completes the request.";
    struct alpaca a;
    TR_PASS(read_alpaca(record, &a));
    tr_str_addf(prompt, "%s\n\n", *a.system ? a.system : *a.input ? with_input : without);
    for (const cJSON *t = a.history ? a.history->child : NULL; t; t = t->next)
        tr_str_addf(prompt, "### Instruction:\n%s\n\n### Response:\n%s\n\n", t->child->valuestring,
                    t->child->next->valuestring);
    tr_str_addf(prompt, "### Instruction:\n%s\n\n", a.instruction);
    if (*a.input)
        tr_str_addf(prompt, "### Input:\n%s\n\n", a.input);
    tr_str_addf(prompt, "### Response:\n");
    *answer = a.output;
    return tr_str_ok(prompt) ? TR_OK : no_memory();
}

enum tr_status tr_chat_alpaca_messages(const cJSON *record, cJSON *messages)
{
    enum tr_status st = TR_OK;
    struct alpaca a;
    struct tr_str user = { 0 };
    TR_TRY(read_alpaca(record, &a));
    tr_str_addf(&user, "%s%s%s", a.instruction, *a.input ? "\n" : "", a.input);
    if (!tr_str_ok(&user))
        TR_TRY(no_memory());
    if (*a.system)
        TR_TRY(tr_chat_add_message(messages, "system", a.system));
    for (const cJSON *t = a.history ? a.history->child : NULL; t; t = t->next) {
        TR_TRY(tr_chat_add_message(messages, "user", t->child->valuestring));
        TR_TRY(tr_chat_add_message(messages, "assistant", t->child->next->valuestring));
    }
    TR_TRY(tr_chat_add_message(messages, "user", user.p));
    TR_TRY(tr_chat_add_message(messages, "assistant", a.output));
out:
    tr_str_release(&user);
    return st;
}

/* ---- ShareGPT ---- */

static const struct {
    const char *from, *role;
} roles[] = {
    { "human", "user" },
    { "user", "user" },
    { "gpt", "assistant" },
    { "assistant", "assistant" },
    { "chatgpt", "assistant" },
    { "bing", "assistant" },
    { "bard", "assistant" },
    { "model", "assistant" },
    { "system", "system" },
    { "tool", "tool" },
    { "observation", "tool" },
    { "function_response", "tool" },
    { "function_call", "function_call" },
};

const char *tr_chat_usual_role(const char *name)
{
    for (size_t i = 0; i < TR_COUNT_OF(roles); i++)
        if (strcmp(name, roles[i].from) == 0)
            return roles[i].role;
    return NULL;
}

enum tr_status tr_chat_add_calls(cJSON *message, const char *text)
{
    enum tr_status st = TR_OK;
    cJSON *parsed = NULL, *list = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    TR_TRY(tr_chat_parse(text, strlen(text), "function_call", &parsed));
    if (!list)
        list = cJSON_AddArrayToObject(message, "tool_calls");
    if (!list)
        TR_TRY(no_memory());
    for (const cJSON *c = cJSON_IsArray(parsed) ? parsed->child : parsed; c; c = c->next) {
        cJSON *call = cJSON_CreateObject(), *copy = cJSON_Duplicate(c, true);
        if (!cJSON_AddItemToArray(list, call))
            cJSON_Delete(call);
        else if (cJSON_AddStringToObject(call, "type", "function") && cJSON_AddItemToObject(call, "function", copy))
            continue;
        cJSON_Delete(copy);
        TR_TRY(no_memory());
    }
out:
    cJSON_Delete(parsed);
    return st;
}

enum tr_status tr_chat_take_call(cJSON *message)
{
    cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (!cJSON_IsString(content))
        return tr_fail(TR_USAGE, "the content of a function call is not a text");
    TR_PASS(tr_chat_add_calls(message, content->valuestring));
    return cJSON_SetValuestring(role, "assistant") && cJSON_SetValuestring(content, "") ? TR_OK : no_memory();
}

static enum tr_status add_turn(cJSON *messages, const cJSON *turn, int number)
{
    const char *from = NULL, *value = NULL;
    char shown[48];
    if (cJSON_IsObject(turn) && cJSON_GetObjectItemCaseSensitive(turn, "role")) { /* already a message */
        cJSON *copy = cJSON_Duplicate(turn, true);
        if (cJSON_AddItemToArray(messages, copy))
            return TR_OK;
        cJSON_Delete(copy);
        return no_memory();
    }
    TR_PASS(tr_json_str(turn, "from", true, &from));
    TR_PASS(tr_json_str(turn, "value", true, &value));
    const char *role = tr_chat_usual_role(from);
    if (!role)
        return tr_fail(TR_USAGE,
                       "turn %d is from \"%s\"; the known roles are human, gpt, system, function_call and observation; "
                       "name others with roles",
                       number, tr_escape(from, shown, sizeof shown));
    TR_PASS(tr_chat_add_message(messages, role, value));
    if (strcmp(role, "function_call") == 0)
        TR_PASS(tr_chat_take_call(cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1)));
    return TR_OK;
}

enum tr_status tr_chat_sharegpt_messages(const cJSON *record, cJSON *messages)
{
    const char *system = "";
    int number = 0;
    const cJSON *turns = cJSON_GetObjectItemCaseSensitive(record, "conversations");
    if (!turns)
        turns = cJSON_GetObjectItemCaseSensitive(record, "messages"); /* a source that renames its columns */
    if (!cJSON_IsArray(turns))
        return tr_fail(TR_USAGE, "\"conversations\" is %s", turns ? "not a list" : "missing");
    TR_PASS(tr_json_str(record, "system", false, &system));
    if (*system)
        TR_PASS(tr_chat_add_message(messages, "system", system));
    for (const cJSON *t = turns->child; t; t = t->next)
        TR_PASS(add_turn(messages, t, ++number));
    return TR_OK;
}
