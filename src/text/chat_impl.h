/* chat_impl.h - what chat.c (templates), chat_mask.c (masks) and chat_builtin.c share. */
#ifndef TR_TEXT_CHAT_IMPL_H
#define TR_TEXT_CHAT_IMPL_H

#include "text/chat.h"

struct tr_chat {
    struct tr_jinja *plain;
    char *source;                /* text of plain */
    struct tr_jinja *with_tools; /* NULL: plain is used with tools as well */
    cJSON *vars;                 /* special tokens, and the variables of tr_chat_set */
    int64_t now_s;
};

struct tr_chat_builtin {
    const char *name;
    bool needs_eos; /* ends its turns with the model's eos token */
    const char *text;
};
const struct tr_chat_builtin *tr_chat_find_builtin(const char *name);

/* Renders the first n messages. The caller has passed them through tr_chat_alias. */
enum tr_status tr_chat_render_first(const struct tr_chat *c, const struct tr_conversation *what, size_t n,
                                    bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans);
/* Makes a message's reasoning visible under both names, reasoning_content and thinking, whichever name it came with, as
 * transformers does. *out is messages itself or, when *is_copy, a copy that the caller deletes. */
enum tr_status tr_chat_alias(const cJSON *messages, const cJSON **out, bool *is_copy);
const struct tr_jinja *tr_chat_template(const struct tr_chat *c, const cJSON *tools);

#endif
