/* chat.h - conversations to token ids and loss masks, by the model's own chat template or a built-in one.
 *
 * The rendering is what transformers' apply_chat_template gives. The mask trains what the model has to write: each
 * assistant turn with its end-of-turn token, nothing else. A mask that cannot be right is an error that shows the
 * sample.
 */
#ifndef TR_TEXT_CHAT_H
#define TR_TEXT_CHAT_H

#include "text/jinja.h"
#include "token/token.h"

struct tr_chat;

enum tr_chat_mask {
    TR_MASK_ASSISTANT,  /* all assistant turns */
    TR_MASK_LAST,       /* the last assistant turn */
    TR_MASK_COMPLETION, /* everything behind the prompt of the last assistant turn */
    TR_MASK_ALL,        /* every token */
};

/* name: NULL = the model's own (chat_template.jinja, else chat_template of tokenizer_config.json), a name out of the
 * model's list of templates, a built-in name, or a path that ends in ".jinja". model_dir may be NULL: no special
 * tokens, built-in and file templates only. */
enum tr_status tr_chat_open(const char *model_dir, const char *name, struct tr_chat **out);
void tr_chat_close(struct tr_chat *c);

/* A template variable for all later calls: enable_thinking, date_string, ... The value is copied. */
enum tr_status tr_chat_set(struct tr_chat *c, const char *name, const cJSON *value);
/* The clock of strftime_now, in UTC seconds; without it, the time of tr_chat_open. */
void tr_chat_set_clock(struct tr_chat *c, int64_t now_s);
bool tr_chat_uses_date(const struct tr_chat *c); /* a template asks for the date */
/* Sets the clock to 00:00 UTC of a date like 2026-01-31; a newline may follow it. */
enum tr_status tr_chat_set_date(struct tr_chat *c, const char *text);
enum { TR_DATE_MAX = 16 };
void tr_chat_get_date(const struct tr_chat *c, char out[TR_DATE_MAX]); /* "": no template asks for it */

/* Of everything that a rendering depends on besides the conversation: templates, variables, and the clock where a
 * template asks for it. Equal hash = equal text for every conversation. */
enum tr_status tr_chat_hash(const struct tr_chat *c, struct tr_hash128 *out);

const char *const *tr_chat_builtin_names(size_t *n);
const char *tr_chat_builtin(const char *name); /* NULL: there is none */

/* Like tr_json_parse, and a number keeps its spelling: 1.0 stays a float and 2^60 exact where a template prints it. */
enum tr_status tr_chat_parse(const char *text, size_t n, const char *what, cJSON **out);

/* Appends the text. tools may be NULL. spans (may be NULL): the {% generation %} blocks, in bytes of the appended text.
 */
enum tr_status tr_chat_render(const struct tr_chat *c, const cJSON *messages, const cJSON *tools,
                              bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans);

/* Appends ids, and to mask one byte per id: 1 = has loss. Nothing is appended on failure. A turn that the template
 * writes differently once it is history (reasoning cut away) has no loss: the model never writes it like that. */
enum tr_status tr_chat_encode(const struct tr_chat *c, const struct tr_tokenizer *t, const cJSON *messages,
                              const cJSON *tools, enum tr_chat_mask mode, struct tr_ids *ids, struct tr_str *mask);

#endif
