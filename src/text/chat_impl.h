/* chat_impl.h - what chat.c (templates), chat_mask.c (masks) and chat_builtin.c share. */
#ifndef TR_TEXT_CHAT_IMPL_H
#define TR_TEXT_CHAT_IMPL_H

#include "text/chat.h"

struct tr_chat {
    struct tr_jinja *plain;
    struct tr_jinja *with_tools; /* NULL: plain serves both */
    cJSON *vars;                 /* special tokens and what tr_chat_set gave */
    int64_t now_s;
};

struct tr_chat_builtin {
    const char *name;
    bool needs_eos; /* ends its turns with the model's eos token */
    const char *text;
};
const struct tr_chat_builtin *tr_chat_find_builtin(const char *name);

/* The first n messages (already through tr_chat_alias). */
enum tr_status tr_chat_render_first(const struct tr_chat *c, const cJSON *messages, size_t n, const cJSON *tools,
                                    bool add_generation_prompt, struct tr_str *out, struct tr_jinja_spans *spans);
/* As transformers: a message's reasoning is there as reasoning_content and as thinking, whatever it came as. *out is
 * messages itself, or a copy that the caller deletes when *is_copy. */
enum tr_status tr_chat_alias(const cJSON *messages, const cJSON **out, bool *is_copy);
const struct tr_jinja *tr_chat_template(const struct tr_chat *c, const cJSON *tools);

#endif
