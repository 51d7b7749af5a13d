/* chat_end.c - what ends an assistant turn: the trained tokens behind the answer, white space aside. A server stops at
 * ids, so an end of turn that is no token of its own does not stop it. */
#include "text/chat_impl.h"

static const char probe[] = "[{\"role\": \"user\", \"content\": \"Yes?\"}, "
                            "{\"role\": \"assistant\", \"content\": \"Yes!\"}]";

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The trained text behind the answer, without white space around it: bytes [*begin, *end) of text. */
static void find_tail(const struct tr_str *text, size_t *begin, size_t *end)
{
    const char *at = text->p ? strstr(text->p, "Yes!") : NULL;
    *begin = at ? (size_t)(at - text->p) + 4 : text->n;
    *end = text->n;
    while (*begin < *end && is_blank(text->p[*begin]))
        ++*begin;
    while (*end > *begin && is_blank(text->p[*end - 1]))
        --*end;
}

enum tr_status tr_chat_find_end(const struct tr_chat *c, const struct tr_tokenizer *t, struct tr_chat_end *out)
{
    enum tr_status st = TR_OK;
    struct tr_ids ids = { 0 };
    struct tr_str mask = { 0 }, text = { 0 };
    cJSON *messages = NULL;
    size_t begin, end, n = 0;
    *out = (struct tr_chat_end){ .id = -1 };
    TR_TRY(tr_chat_parse(probe, sizeof probe - 1, "probe", &messages));
    TR_TRY(tr_chat_encode(c, t, &(struct tr_conversation){ .messages = messages }, TR_MASK_ASSISTANT, &ids, &mask));
    for (size_t i = 0; i < ids.n; i++)
        if (mask.p[i])
            ids.p[n++] = ids.p[i];
    TR_TRY(tr_tokenizer_decode(t, ids.p, n, &text));
    find_tail(&text, &begin, &end);
    /* the tokens that overlap the tail, counted from the last one */
    for (size_t at = text.n; n > 0 && at > begin; n--) {
        struct tr_str piece = { 0 };
        st = tr_tokenizer_decode(t, &ids.p[n - 1], 1, &piece);
        size_t size = piece.n < at ? piece.n : at;
        at -= size;
        bool is_tail = at < end && at + size > begin;
        out->n_ids += is_tail;
        out->id = is_tail ? ids.p[n - 1] : out->id;
        tr_str_release(&piece);
        TR_TRY(st);
        if (size == 0)
            break;
    }
    out->id = out->n_ids == 1 ? out->id : -1;
    (void)tr_format(out->text, sizeof out->text, "%.*s", (int)(end - begin < 60 ? end - begin : 60),
                    text.p ? text.p + begin : "");
out:
    cJSON_Delete(messages);
    tr_ids_release(&ids);
    tr_str_release(&mask);
    tr_str_release(&text);
    return st;
}
