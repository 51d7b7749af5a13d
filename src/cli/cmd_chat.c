/* cmd_chat.c - trireme chat: a conversation in the terminal, rendered by the model's own template. Empty line or end of
 * input ends it. The conversation is rendered anew each turn and only what is new is read by the model; a template that
 * rewrites history costs a rewind, never a wrong context. */
#include "cli/cli.h"
#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 4096 };

struct talk {
    const struct tr_config *cfg;
    struct tr_tokenizer *tok;
    struct tr_chat *chat;
    struct tr_generator *g;
    cJSON *messages;
    struct tr_ids read; /* what the model has read */
};

static enum tr_status say(struct talk *t, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    bool ok = m && cJSON_AddStringToObject(m, "role", role) && cJSON_AddStringToObject(m, "content", content);
    if (ok && cJSON_AddItemToArray(t->messages, m))
        return TR_OK;
    cJSON_Delete(m);
    return tr_fail(TR_NOMEM, "chat: out of memory");
}

/* Brings the model up to the conversation as the template writes it now. */
static enum tr_status catch_up(struct talk *t, const float **logits)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    struct tr_ids ids = { 0 };
    size_t same = 0;
    TR_TRY(tr_chat_render(t->chat, t->messages, NULL, true, &text, NULL));
    TR_TRY(tr_tokenizer_encode(t->tok, text.p ? text.p : "", text.n, &ids));
    while (same < ids.n && same < t->read.n && ids.p[same] == t->read.p[same])
        same++;
    if (same == ids.n && same > 0)
        same--; /* at least one token must be read for its logits */
    tr_generator_rewind(t->g, (int64_t)same);
    TR_TRY(tr_generator_feed(t->g, ids.p + same, ids.n - same, logits));
    tr_ids_release(&t->read);
    t->read = ids;
    ids = (struct tr_ids){ 0 };
out:
    tr_ids_release(&ids);
    tr_str_release(&text);
    return st;
}

static enum tr_status answer(struct talk *t)
{
    enum tr_status st = TR_OK;
    const float *logits = NULL;
    struct tr_str all = { 0 }, piece = { 0 };
    struct tr_tok_stream *stream = NULL;
    TR_TRY(tr_tok_stream_open(t->tok, true, &stream));
    TR_TRY(catch_up(t, &logits));
    for (int64_t i = 0; i < t->cfg->max_new_tokens && !tr_stop_wanted(); i++) {
        int32_t id = tr_generator_pick(t->g, logits, t->read.p, t->read.n);
        if (tr_generator_is_stop(t->g, id))
            break;
        tr_str_clear(&piece);
        TR_TRY(tr_tok_stream_add(stream, id, &piece));
        cli_print_foreign(piece.p ? piece.p : "", piece.n);
        tr_str_add(&all, piece.p ? piece.p : "", piece.n);
        TR_TRY(tr_ids_add(&t->read, id));
        TR_TRY(tr_generator_feed(t->g, &id, 1, &logits));
    }
    tr_str_clear(&piece);
    TR_TRY(tr_tok_stream_end(stream, &piece));
    cli_print_foreign(piece.p ? piece.p : "", piece.n);
    tr_str_add(&all, piece.p ? piece.p : "", piece.n);
    cli_print("\n");
    TR_TRY(say(t, "assistant", all.p ? all.p : ""));
out:
    tr_tok_stream_close(stream);
    tr_str_release(&all);
    tr_str_release(&piece);
    return st;
}

enum tr_status cmd_chat(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct talk t = { .cfg = cfg, .messages = cJSON_CreateArray() };
    struct tr_dirs from = { 0 };
    char *line = NULL;
    size_t cap = 0;
    int64_t n_positions = 0;
    if (!t.messages)
        TR_TRY(tr_fail(TR_NOMEM, "chat: out of memory"));
    TR_TRY(tr_dirs_open(cfg, &from));
    TR_TRY(tr_dirs_need_model(&from));
    TR_TRY(tr_tokenizer_open(from.text, &t.tok));
    TR_TRY(tr_chat_open(from.text, cfg->chat_template, &t.chat));
    TR_TRY(tr_chat_set_all(t.chat, cfg->chat_template_kwargs));
    TR_TRY(tr_setup_positions(cfg, &n_positions));
    TR_TRY(tr_generator_open(cfg, tr_min64(CONTEXT, n_positions), t.tok, &t.g));
    if (cfg->system)
        TR_TRY(say(&t, "system", cfg->system));
    tr_stop_soon_on_signals();
    for (;;) {
        cli_print(cfg->quiet ? "" : "> ");
        ssize_t n = getline(&line, &cap, stdin);
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (n <= 0 || tr_stop_wanted())
            break;
        TR_TRY(say(&t, "user", line));
        TR_TRY(answer(&t));
    }
out:
    free(line);
    tr_generator_close(t.g);
    tr_chat_close(t.chat);
    tr_tokenizer_close(t.tok);
    tr_ids_release(&t.read);
    tr_dirs_close(&from);
    cJSON_Delete(t.messages);
    return st;
}
