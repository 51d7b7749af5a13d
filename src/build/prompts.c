/* prompts.c - the prompts that a run continues, as token ids, before anything is compiled: their lengths decide how
 * many bytes the cache of keys and values has (text.h). */
#include "build/build.h"
#include "text/text.h"
#include <stdlib.h>

enum { FILE_MAX = 64 << 20 };

struct prompt_reader {
    const struct tr_config *cfg;
    const struct tr_dirs *from;
    struct tr_tokenizer *tok;
    struct tr_chat *chat; /* NULL: no conversation was met yet */
    const char *path;
    int64_t line;
    int64_t n_positions; /* of the model; dynamic scaling is made for texts that are longer than it was trained on */
    struct tr_prompts *out;
    size_t cap;
};

static enum tr_status count_new(const struct prompt_reader *r, int64_t n_prompt, int64_t *out)
{
    int64_t left = r->n_positions - n_prompt, n_new = r->cfg->max_new_tokens;
    if (left < 1)
        return tr_fail(TR_USAGE,
                       "the prompt has %" PRId64 " tokens, and the model has %" PRId64
                       " positions for it and the new ones; shorten the prompt",
                       n_prompt, r->n_positions);
    if (n_new > left && tr_config_is_set(r->cfg, "max_new_tokens"))
        return tr_fail(TR_USAGE,
                       "the prompt has %" PRId64 " tokens, and max_new_tokens %" PRId64 " more do not fit the %" PRId64
                       " positions of the model; try --max_new_tokens %" PRId64,
                       n_prompt, n_new, r->n_positions, left);
    *out = tr_min64(n_new, left);
    return TR_OK;
}

static enum tr_status add(struct prompt_reader *r, const char *text, size_t n)
{
    struct tr_prompts *p = r->out;
    TR_PASS(TR_ROOM(p->item, p->n + 1, &r->cap, "prompts"));
    struct tr_prompt *x = &p->item[p->n++];
    *x = (struct tr_prompt){ .text = strndup(text, n) };
    if (!x->text)
        return tr_fail(TR_NOMEM, "no memory for prompts");
    TR_PASS(tr_tokenizer_encode(r->tok, text, n, &x->ids));
    if (x->ids.n == 0)
        TR_PASS(tr_ids_add(&x->ids, tr_tokenizer_eos(r->tok) >= 0 ? tr_tokenizer_eos(r->tok) : 0));
    return count_new(r, (int64_t)x->ids.n, &x->n_new);
}

static enum tr_status add_messages(struct prompt_reader *r, const cJSON *messages)
{
    enum tr_status st = TR_OK;
    struct tr_str text = { 0 };
    if (!r->chat) {
        TR_TRY(tr_chat_open(r->from->text, r->cfg->chat_template, &r->chat));
        TR_TRY(tr_chat_set_all(r->chat, r->cfg->chat_template_kwargs));
    }
    TR_TRY(tr_chat_render(r->chat, messages, NULL, true, &text, NULL));
    TR_TRY(add(r, text.p ? text.p : "", text.n));
out:
    tr_str_release(&text);
    return st;
}

static enum tr_status add_record(struct prompt_reader *r, const char *text, size_t n)
{
    cJSON *j = NULL;
    enum tr_status st = tr_chat_parse(text, n, "a prompt", &j);
    const cJSON *prompt = cJSON_GetObjectItemCaseSensitive(j, "prompt");
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(j, "messages");
    if (st == TR_OK && cJSON_IsString(prompt))
        st = add(r, prompt->valuestring, strlen(prompt->valuestring));
    else if (st == TR_OK && cJSON_IsArray(messages))
        st = add_messages(r, messages);
    else if (st == TR_OK)
        st =
            tr_fail(TR_USAGE, "a record has \"prompt\", a text, or \"messages\", a conversation; this one has neither");
    cJSON_Delete(j);
    return st;
}

static enum tr_status read_lines(struct prompt_reader *r, const char *bytes, size_t n)
{
    size_t n_path = strlen(r->path);
    bool is_json = n_path > 6 && strcmp(r->path + n_path - 6, ".jsonl") == 0;
    for (size_t at = 0, end; at < n; at = end + 1) {
        const char *stop = memchr(bytes + at, '\n', n - at);
        end = stop ? (size_t)(stop - bytes) : n;
        size_t n_line = end - at;
        n_line -= n_line > 0 && bytes[at + n_line - 1] == '\r';
        r->line++;
        if (n_line == 0)
            continue;
        enum tr_status st = (is_json ? add_record : add)(r, bytes + at, n_line);
        if (st != TR_OK)
            return tr_fail_at(st, "%s:%" PRId64 ": ", r->path, r->line);
    }
    return r->out->n > 0 ? TR_OK : tr_fail(TR_USAGE, "%s has no prompts; write one on each line", r->path);
}

enum tr_status tr_prompts_open(const struct tr_config *cfg, const struct tr_dirs *from, const char *path,
                               const char *text, struct tr_prompts *out)
{
    enum tr_status st = TR_OK;
    const struct tr_model_options opt = { .rows = 1, .sequence_length = 1, .ignore_keys = cfg->ignore_config_keys };
    struct prompt_reader r = { .cfg = cfg, .from = from, .path = path, .out = out };
    struct tr_model *m = NULL;
    char *bytes = NULL;
    size_t n = 0;
    *out = (struct tr_prompts){ 0 };
    TR_TRY(tr_tokenizer_open(from->text, &r.tok));
    TR_TRY(tr_dirs_model(from, &opt, false, &m));
    r.n_positions = m->hp.rope[TR_C_ROPE].type == TR_ROPE_DYNAMIC ? INT32_MAX : m->hp.max_positions;
    if (path) {
        TR_TRY(tr_file_read(path, FILE_MAX, &bytes, &n));
        TR_TRY(read_lines(&r, bytes, n));
    } else {
        TR_TRY(add(&r, text ? text : "", text ? strlen(text) : 0));
    }
out:
    free(bytes);
    tr_model_close(m);
    tr_chat_close(r.chat);
    tr_tokenizer_close(r.tok);
    if (st != TR_OK)
        tr_prompts_close(out);
    return st;
}

void tr_prompts_close(struct tr_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->item[i].text);
        tr_ids_release(&p->item[i].ids);
    }
    free(p->item);
    *p = (struct tr_prompts){ 0 };
}

int64_t tr_prompts_context(const struct tr_prompts *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->n; i++)
        most = tr_max64(most, (int64_t)p->item[i].ids.n + p->item[i].n_new);
    return most;
}

int64_t tr_prompts_new(const struct tr_prompts *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->n; i++)
        most = tr_max64(most, p->item[i].n_new);
    return most;
}
