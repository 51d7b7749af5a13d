/* chat_mask.c - decides which tokens of a conversation have a loss.
 *
 * A template with {% generation %} blocks marks them itself. Without such blocks, assistant turn i is the text that the
 * rendering of i + 1 messages adds to the prompt of i messages, up to its end-of-turn token. It has a loss only where
 * the full rendering holds the same text at the same place, because templates rewrite history. The full text is
 * tokenized once, and the byte ranges of the turns are mapped to tokens. Rejected: encoding turn by turn, which splits
 * tokens where inference would not.
 */
#include "text/chat_impl.h"

struct sample {
    const struct tr_chat *c;
    struct tr_conversation what;
    size_t n_messages;
    struct tr_str text;
    struct tr_jinja_spans spans;
    struct tr_ids ids;
    struct tr_jinja_spans tokens; /* the byte range of each id; empty: the tokens do not spell the text byte by byte */
};

/* The text that one assistant turn adds to its prompt. */
struct turn {
    struct tr_jinja_span span;
    bool is_consistent; /* the full rendering holds the turn unchanged */
    bool has_end;       /* ends with text from the template: an end-of-turn token */
};

static enum tr_status refuse(const struct sample *s, const char *why)
{
    char head[400], shown[600];
    size_t n = s->text.n < sizeof head ? s->text.n : sizeof head - 1;
    memcpy(head, s->text.p ? s->text.p : "", n);
    head[n] = 0;
    return tr_fail(TR_USAGE, "%s; the sample: \"%s\"%s", why, tr_escape(head, shown, sizeof shown),
                   n < s->text.n ? " ..." : "");
}

static bool is_assistant(const cJSON *message)
{
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "role"));
    return role && strcmp(role, "assistant") == 0;
}

/* Whether the tokens of turn i count in the loss under a mask that trains assistant turns. */
static bool has_loss(const struct sample *s, size_t i, const cJSON *message)
{
    if (i < s->what.n_prompt)
        return false;
    return s->what.has_loss && s->what.has_loss[i] >= 0 ? s->what.has_loss[i] : is_assistant(message);
}

static size_t rstripped(const char *p, size_t n)
{
    while (n > 0 && strchr(" \t\r\n", p[n - 1]) && p[n - 1])
        n--;
    return n;
}

/* The content of a message: its text, or the text of its last part. n = 0: it has none. */
static const char *last_words(const cJSON *message, size_t *n)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content"), *part;
    const char *text = cJSON_GetStringValue(content);
    if (cJSON_IsArray(content))
        cJSON_ArrayForEach(part, content)
        {
            text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, "text"));
        }
    *n = text ? rstripped(text, strlen(text)) : 0;
    return text;
}

/* Whether the added text ends with the content of the message: then the template wrote no end-of-turn token after it.
 */
static bool ends_with_content(const cJSON *message, const char *p, size_t n)
{
    size_t n_text;
    const char *text = last_words(message, &n_text);
    return n_text > 0 ? n >= n_text && memcmp(p + n - n_text, text, n_text) == 0 : n == 0;
}

/* Whether the end of the message is in the text. Its beginning may be missing, because templates remove reasoning. */
static bool holds_content(const cJSON *message, const char *p, size_t n)
{
    enum { N_LETTERS = 8 };
    size_t n_text;
    const char *text = last_words(message, &n_text);
    size_t n_tail = n_text < N_LETTERS ? n_text : N_LETTERS;
    return n_tail == 0 || memmem(p, n, text + n_text - n_tail, n_tail) != NULL;
}

static size_t common_prefix(const struct tr_str *a, const struct tr_str *b)
{
    size_t n = 0;
    while (n < a->n && n < b->n && a->p[n] == b->p[n])
        n++;
    while (n > 0 && n < b->n && ((unsigned char)b->p[n] & 0xc0) == 0x80) /* not inside a UTF-8 character */
        n--;
    return n;
}

/* Where the turn begins: after its prompt. Some generation prompts hold more text than the template writes into history
 * (an opened <think>). There the turn begins where the two differ. */
static enum tr_status find_begin(const struct sample *s, size_t i, const struct tr_str *with_turn, size_t *begin,
                                 bool *is_found)
{
    enum tr_status st = TR_OK;
    struct tr_str prompt = { 0 }, before = { 0 };
    TR_TRY(tr_chat_render_first(s->c, &s->what, i, true, &prompt, NULL));
    *begin = common_prefix(&prompt, with_turn);
    *is_found = *begin == prompt.n;
    if (!*is_found) {
        TR_TRY(tr_chat_render_first(s->c, &s->what, i, false, &before, NULL));
        *is_found = before.n < *begin && memcmp(before.p ? before.p : "", with_turn->p, before.n) == 0;
    }
out:
    tr_str_release(&prompt);
    tr_str_release(&before);
    return st;
}

/* The same for a turn that the model does not write: there is no prompt for it, so it begins with its content. Where
 * that is, is seen from a rendering with another content. */
static enum tr_status find_content(const struct sample *s, size_t i, const struct tr_str *with_turn, size_t *begin,
                                   bool *is_found)
{
    static const char mark[] = "[[where the content is]]";
    enum tr_status st = TR_OK;
    struct tr_str marked = { 0 };
    struct tr_conversation other = s->what;
    cJSON *copy = cJSON_Duplicate(s->what.messages, true), *text = cJSON_CreateString(mark);
    cJSON *message = cJSON_GetArrayItem(copy, (int)i);
    if (!message || !text || !cJSON_ReplaceItemInObjectCaseSensitive(message, "content", text)) {
        cJSON_Delete(text);
        TR_TRY(message && text ? TR_OK : tr_fail(TR_NOMEM, "no memory for a conversation")); /* no content: not found */
        *is_found = false;
        goto out;
    }
    other.messages = copy;
    TR_TRY(tr_chat_render_first(s->c, &other, i + 1, false, &marked, NULL));
    const char *at = marked.p ? strstr(marked.p, mark) : NULL;
    *begin = at ? (size_t)(at - marked.p) : 0;
    *is_found = at && *begin < with_turn->n && memcmp(marked.p, with_turn->p, *begin) == 0;
out:
    cJSON_Delete(copy);
    tr_str_release(&marked);
    return st;
}

/* Some templates end every rendering with a closing text (Phi-3: the eos token). Then the rendering of the turn and the
 * full rendering differ after the turn. In that case the turn ends at the last token boundary up to which both agree,
 * provided that the rest is such a closing text and that an end-of-turn token is still inside the turn. */
static void cut_closing_text(const struct sample *s, const cJSON *message, const struct tr_str *with_turn,
                             struct turn *turn)
{
    size_t begin = turn->span.begin, agreed = common_prefix(with_turn, &s->text), cut = 0;
    for (size_t i = 0; i < s->tokens.n && s->tokens.p[i].end <= agreed; i++)
        cut = s->tokens.p[i].end;
    size_t n_rest = with_turn->n - cut;
    if (cut <= begin || n_rest > s->text.n || memcmp(with_turn->p + cut, s->text.p + s->text.n - n_rest, n_rest) != 0)
        return;
    size_t n = rstripped(s->text.p + begin, cut - begin);
    if (ends_with_content(message, s->text.p + begin, n) || !holds_content(message, s->text.p + begin, n))
        return;
    turn->span.end = begin + n;
    turn->is_consistent = true;
}

static enum tr_status find_turn(const struct sample *s, size_t i, const cJSON *message, struct turn *out)
{
    enum tr_status st = TR_OK;
    struct tr_str own = { 0 };
    const struct tr_str *with_turn = &s->text;
    bool has_prompt = false;
    *out = (struct turn){ 0 };
    if (i + 1 < s->n_messages) {
        TR_TRY(tr_chat_render_first(s->c, &s->what, i + 1, false, &own, NULL));
        with_turn = &own;
    }
    TR_TRY(is_assistant(message) ? find_begin(s, i, with_turn, &out->span.begin, &has_prompt)
                                 : find_content(s, i, with_turn, &out->span.begin, &has_prompt));
    size_t begin = out->span.begin, n = with_turn->n - begin;
    size_t n_stripped = n ? rstripped(with_turn->p + begin, n) : 0;
    if (!has_prompt || n == 0)
        goto out;
    out->has_end = n_stripped > 0 && !ends_with_content(message, with_turn->p + begin, n_stripped);
    out->span.end = begin + (out->has_end ? n_stripped : n);
    out->is_consistent = out->span.end <= s->text.n && memcmp(s->text.p, with_turn->p, out->span.end) == 0;
    if (!out->is_consistent && out->has_end)
        cut_closing_text(s, message, with_turn, out);
    if (out->is_consistent && !holds_content(message, s->text.p + begin, out->span.end - begin))
        st = refuse(s, "the template leaves out the content of an assistant turn; is the content a string where the "
                       "template expects a list of parts?");
out:
    tr_str_release(&own);
    return st == TR_OK ? st : tr_fail_at(st, "turn %zu: ", i);
}

/* The last turn that has a loss. NULL: none has. */
static const cJSON *last_with_loss(const struct sample *s, size_t *i_last)
{
    const cJSON *m, *last = NULL;
    size_t i = 0;
    cJSON_ArrayForEach(m, s->what.messages)
    {
        if (has_loss(s, i, m)) {
            last = m;
            *i_last = i;
        }
        i++;
    }
    return last;
}

static enum tr_status spans_of_turns(struct sample *s)
{
    const cJSON *m;
    size_t i = 0;
    s->spans.n = 0;
    cJSON_ArrayForEach(m, s->what.messages)
    {
        struct turn turn;
        bool is_on = has_loss(s, i, m);
        enum tr_status st = is_on ? find_turn(s, i, m, &turn) : TR_OK;
        if (st == TR_OK && is_on && turn.is_consistent)
            st = tr_jinja_spans_add(&s->spans, turn.span.begin, turn.span.end);
        if (st != TR_OK)
            return st;
        i++;
    }
    return TR_OK;
}

/* Checks the last turn of a template with generation blocks: a block must hold its end-of-turn token. */
static enum tr_status check_generation_end(const struct sample *s, const struct turn *last)
{
    if (!last->is_consistent || !last->has_end)
        return TR_OK;
    for (size_t i = 0; i < s->spans.n; i++)
        if (s->spans.p[i].begin < last->span.end && s->spans.p[i].end >= last->span.end)
            return TR_OK;
    return refuse(s, "the template's generation block leaves out the end-of-turn token: the model would never learn to "
                     "stop");
}

/* Keeps the generation blocks behind the prompt. */
static enum tr_status keep_answers(struct sample *s)
{
    size_t begin = 0, n = 0;
    bool is_found = false;
    if (s->what.n_prompt == 0)
        return TR_OK;
    TR_PASS(find_begin(s, s->what.n_prompt, &s->text, &begin, &is_found));
    if (!is_found)
        TR_PASS(refuse(s, "the template writes the prompt differently once it is answered"));
    for (size_t i = 0; i < s->spans.n; i++)
        if (s->spans.p[i].end > begin)
            s->spans.p[n++] = s->spans.p[i];
    s->spans.n = n;
    return TR_OK;
}

/* Keeps the generation blocks of the last turn. */
static void keep_last(struct tr_jinja_spans *spans, const struct turn *last)
{
    size_t n = 0;
    if (spans->n == 0)
        return;
    for (size_t i = 0; last->is_consistent && i < spans->n; i++)
        if (spans->p[i].end > last->span.begin)
            spans->p[n++] = spans->p[i];
    if (n == 0)
        spans->p[n++] = spans->p[spans->n - 1];
    spans->n = n;
}

/* Everything behind the prompt. */
static enum tr_status span_of_completion(struct sample *s)
{
    size_t begin = 0;
    bool is_found = false;
    s->spans.n = 0;
    TR_PASS(find_begin(s, s->what.n_prompt, &s->text, &begin, &is_found));
    if (is_found)
        TR_PASS(tr_jinja_spans_add(&s->spans, begin, s->text.n));
    return TR_OK;
}

static enum tr_status find_spans(struct sample *s, enum tr_chat_mask mode)
{
    bool has_blocks = tr_jinja_has_generation(tr_chat_template(s->c, s->what.tools)) && !s->what.has_loss;
    struct turn turn;
    size_t i = 0;
    const cJSON *last = last_with_loss(s, &i);
    if (mode == TR_MASK_ALL)
        return tr_jinja_spans_add(&s->spans, 0, s->text.n);
    if (!last)
        return refuse(s, "the conversation has no assistant turn to learn, so there is nothing to train on");
    if (mode == TR_MASK_COMPLETION && s->what.n_prompt)
        return span_of_completion(s);
    if (mode == TR_MASK_ASSISTANT && !has_blocks)
        return spans_of_turns(s);
    enum tr_status st = find_turn(s, i, last, &turn);
    if (st == TR_USAGE && has_blocks && !turn.is_consistent && mode != TR_MASK_COMPLETION)
        st = TR_OK; /* the template cannot render the prompt alone, so its blocks are taken as they are */
    TR_PASS(st);
    if (mode == TR_MASK_COMPLETION) {
        s->spans.n = 0;
        if (turn.is_consistent)
            TR_PASS(tr_jinja_spans_add(&s->spans, turn.span.begin, s->text.n));
    } else if (!has_blocks) {
        s->spans.n = 0;
        if (turn.is_consistent)
            TR_PASS(tr_jinja_spans_add(&s->spans, turn.span.begin, turn.span.end));
    } else {
        TR_PASS(check_generation_end(s, &turn));
        TR_PASS(keep_answers(s));
        if (mode == TR_MASK_LAST)
            keep_last(&s->spans, &turn);
    }
    return TR_OK;
}

/* ---- tokens ---- */

static int compare_spans(const void *a, const void *b)
{
    const struct tr_jinja_span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Marks the tokens that share text with a span. Both lists are walked once, because a template may make a million
 * spans. */
static void mask_by_bytes(struct sample *s, struct tr_str *mask)
{
    size_t k = 0, reach = 0; /* spans before k have begun; the last byte of any of them is before reach */
    if (s->spans.n > 1)
        qsort(s->spans.p, s->spans.n, sizeof *s->spans.p, compare_spans);
    for (size_t i = 0; i < s->tokens.n; i++) {
        size_t begin = s->tokens.p[i].begin, end = s->tokens.p[i].end;
        for (; k < s->spans.n && (s->spans.p[k].begin < end || s->spans.p[k].begin == begin); k++)
            reach = s->spans.p[k].end > reach ? s->spans.p[k].end : reach;
        tr_str_add(mask, reach > begin ? "\1" : "\0", 1);
    }
}

/* Finds the byte range of each token. The list stays empty when the tokens do not spell the text byte by byte. */
static enum tr_status find_tokens(struct sample *s, const struct tr_tokenizer *t)
{
    enum tr_status st = TR_OK;
    struct tr_str piece = { 0 };
    size_t at = 0;
    bool is_exact = true;
    TR_TRY(tr_tokenizer_encode(t, s->text.p, s->text.n, &s->ids));
    for (size_t i = 0; i < s->ids.n && is_exact; i++) {
        tr_str_clear(&piece);
        TR_TRY(tr_tokenizer_decode(t, &s->ids.p[i], 1, &piece));
        const char *p = piece.p ? piece.p : "";
        /* SentencePiece puts a space before a text that does not begin with one. */
        size_t n_front = i == 0 && *p == ' ' && s->text.p[0] != ' ' ? 1 : 0, n = piece.n - n_front;
        is_exact = n <= s->text.n - at && memcmp(s->text.p + at, p + n_front, n) == 0;
        TR_TRY(tr_jinja_spans_add(&s->tokens, at, at + n));
        at += n;
    }
    if (!is_exact || at != s->text.n)
        s->tokens.n = 0;
out:
    tr_str_release(&piece);
    return st;
}

/* Finds the tokens of the spans by encoding the text in pieces that end at the spans. Legal only when the pieces
 * together have the ids of the whole text. */
static enum tr_status mask_by_pieces(const struct sample *s, const struct tr_tokenizer *t, struct tr_str *mask)
{
    enum tr_status st = TR_OK;
    struct tr_ids joined = { 0 };
    size_t at = 0;
    for (size_t i = 0; i <= s->spans.n; i++) {
        size_t cuts[2] = { i < s->spans.n ? s->spans.p[i].begin : s->text.n, i < s->spans.n ? s->spans.p[i].end : 0 };
        for (int k = 0; k < 2; k++) {
            if (cuts[k] <= at)
                continue;
            size_t n_old = joined.n;
            TR_TRY(tr_tokenizer_encode(t, s->text.p + at, cuts[k] - at, &joined));
            for (size_t j = n_old; j < joined.n; j++)
                tr_str_add(mask, k ? "\1" : "\0", 1);
            at = cuts[k];
        }
    }
    if (joined.n != s->ids.n || (joined.n && memcmp(joined.p, s->ids.p, joined.n * sizeof *joined.p) != 0))
        st = refuse(s,
                    "the tokens of this tokenizer cannot be mapped to the bytes of the text, so there is no loss mask");
out:
    tr_ids_release(&joined);
    return st;
}

static enum tr_status check_mask(const struct sample *s, const struct tr_str *mask, enum tr_chat_mask mode)
{
    size_t n_loss = 0;
    for (size_t i = 0; i < mask->n; i++)
        n_loss += mask->p[i] == 1;
    if (n_loss == 0)
        return refuse(s,
                      "no token of the sample would have a loss: the template writes every assistant turn differently "
                      "in history");
    if (mode != TR_MASK_ALL && n_loss == mask->n)
        return refuse(s, "every token of the sample would have a loss, the prompt included");
    return TR_OK;
}

static enum tr_status append(const struct tr_ids *from_ids, const struct tr_str *from_mask, struct tr_ids *ids,
                             struct tr_str *mask)
{
    size_t n_old = ids->n;
    for (size_t i = 0; i < from_ids->n; i++) {
        enum tr_status st = tr_ids_add(ids, from_ids->p[i]);
        if (st != TR_OK) {
            ids->n = n_old;
            return st;
        }
    }
    tr_str_add(mask, from_mask->p, from_mask->n);
    if (tr_str_ok(mask))
        return TR_OK;
    ids->n = n_old;
    return tr_fail(TR_NOMEM, "no memory for a loss mask");
}

enum tr_status tr_chat_encode(const struct tr_chat *c, const struct tr_tokenizer *t, const struct tr_conversation *what,
                              enum tr_chat_mask mode, struct tr_ids *ids, struct tr_str *mask)
{
    enum tr_status st = TR_OK;
    struct sample s = { .c = c, .what = *what };
    struct tr_str own = { 0 };
    bool is_copy = false, wants_blocks = mode == TR_MASK_ASSISTANT || mode == TR_MASK_LAST;
    TR_TRY(tr_chat_alias(what->messages, &s.what.messages, &is_copy));
    s.n_messages = (size_t)cJSON_GetArraySize(s.what.messages);
    TR_TRY(tr_chat_render_first(c, &s.what, SIZE_MAX, false, &s.text, wants_blocks ? &s.spans : NULL));
    TR_TRY(find_tokens(&s, t));
    TR_TRY(find_spans(&s, mode));
    mask_by_bytes(&s, &own);
    if (s.tokens.n == 0 && s.ids.n > 0)
        TR_TRY(mask_by_pieces(&s, t, &own));
    if (!tr_str_ok(&own) || own.n != s.ids.n)
        TR_TRY(tr_fail(TR_NOMEM, "no memory for a loss mask"));
    TR_TRY(check_mask(&s, &own, mode));
    TR_TRY(append(&s.ids, &own, ids, mask));
out:
    if (is_copy)
        cJSON_Delete((cJSON *)(uintptr_t)s.what.messages); /* a copy made here; see tr_chat_render */
    tr_jinja_spans_release(&s.spans);
    tr_jinja_spans_release(&s.tokens);
    tr_str_release(&s.text);
    tr_ids_release(&s.ids);
    tr_str_release(&own);
    return st;
}
