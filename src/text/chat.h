/* chat.h - turns conversations into token ids and loss masks, with the model's own chat template or a built-in one.
 *
 * The rendering equals that of transformers' apply_chat_template. The mask gives a loss to what the model has to write,
 * which is each assistant turn with its end-of-turn token, and to nothing else. A mask that cannot be right is an
 * error, and the message shows the sample.
 */
#ifndef TR_TEXT_CHAT_H
#define TR_TEXT_CHAT_H

#include "text/jinja.h"
#include "token/token.h"

struct tr_chat;

enum tr_chat_mask {
    TR_MASK_ASSISTANT,  /* all assistant turns */
    TR_MASK_LAST,       /* the last assistant turn */
    TR_MASK_COMPLETION, /* everything after the prompt: n_prompt messages, or all before the last assistant turn */
    TR_MASK_ALL,        /* every token */
};

/* name is a name in the model's list of templates, a built-in name, the text of a template, as other trainers' files
 * have it, or a path that ends in ".jinja". NULL means the
 * model's own template: chat_template.jinja, else chat_template of tokenizer_config.json. model_dir may be NULL; then
 * there are no special tokens, and only built-in templates and files can be opened. */
enum tr_status tr_chat_open(const char *model_dir, const char *name, struct tr_chat **out);
void tr_chat_close(struct tr_chat *c);

/* The text of the template (of several, the one for conversations without tools). It lives as long as c. */
const char *tr_chat_source(const struct tr_chat *c);

/* What ends an assistant turn, found with a conversation of one question and one answer. */
struct tr_chat_end {
    size_t n_ids; /* 0: nothing behind the answer has a loss, so the model never learns to stop */
    int32_t id;   /* n_ids 1 */
    char text[64];
};
/* TR_USAGE: the template refuses such a conversation. */
enum tr_status tr_chat_find_end(const struct tr_chat *c, const struct tr_tokenizer *t, struct tr_chat_end *out);

/* Sets a template variable for all later calls: enable_thinking, date_string, ... The value is copied. */
enum tr_status tr_chat_set(struct tr_chat *c, const char *name, const cJSON *value);
/* The same for each member of a JSON object, which is text. NULL: nothing. */
enum tr_status tr_chat_set_all(struct tr_chat *c, const char *object);
bool tr_chat_uses_date(const struct tr_chat *c); /* a template calls strftime_now */
/* Sets the clock that strftime_now reads to 00:00 UTC of a date like 2026-01-31; a newline may follow it. Without this
 * call it is the time of tr_chat_open. */
enum tr_status tr_chat_set_date(struct tr_chat *c, const char *text);
enum { TR_DATE_MAX = 16 };
void tr_chat_get_date(const struct tr_chat *c, char out[TR_DATE_MAX]); /* "": no template uses it */

/* The hash of everything that a rendering depends on besides the conversation: the templates, the variables, and the
 * clock when a template uses it. Two chats with equal hashes render every conversation to the same text. */
enum tr_status tr_chat_hash(const struct tr_chat *c, struct tr_hash128 *out);

const char *const *tr_chat_builtin_names(size_t *n);
const char *tr_chat_builtin(const char *name); /* NULL: no such template */

/* Like tr_json_parse, but a number keeps its spelling: where a template prints it, 1.0 stays a float and 2^60 stays
 * exact. */
enum tr_status tr_chat_parse(const char *text, size_t n, const char *what, cJSON **out);

/* Appends the text to out. tools may be NULL. spans may be NULL; else it receives the {% generation %} blocks as byte
 * ranges of the appended text. */
enum tr_status tr_chat_render(const struct tr_chat *c, const cJSON *messages, const cJSON *tools,
                              bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans);

/* A conversation to learn from. Members that are zero are not used. */
struct tr_conversation {
    const cJSON *messages;
    const cJSON *tools;     /* a list */
    const cJSON *vars;      /* an object: template variables of this conversation, before those of tr_chat_set */
    size_t n_prompt;        /* the first messages, none of which has a loss */
    const int8_t *has_loss; /* for each message 1, 0, or -1: by its role */
};
/* Makes the contents that are lists of parts such that the template writes them: messages, which are those of what,
 * lose parts with a "value" (LLaMA-Factory) to text, reasoning_content and tool_calls, and texts that the template
 * would write as a literal become one text. A list that neither gives to read is refused. */
enum tr_status tr_chat_read_parts(const struct tr_chat *c, const struct tr_conversation *what, cJSON *messages);
/* Appends ids, and to mask one byte per id: 1 = the token has a loss. Nothing is appended on failure. Some templates
 * write a turn differently once it is history, for example without its reasoning. Such a turn has no loss, because the
 * model never writes it in that form. */
enum tr_status tr_chat_encode(const struct tr_chat *c, const struct tr_tokenizer *t, const struct tr_conversation *what,
                              enum tr_chat_mask mode, struct tr_ids *ids, struct tr_str *mask);

#endif
