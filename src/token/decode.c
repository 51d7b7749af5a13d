/* decode.c - turns ids into text: the decoder steps, and a stream that never splits a character.
 *
 * The steps work on a list of token texts, as in the library, so that a step may use the position of a token. One
 * difference is on purpose: a byte-level decoder returns the bytes of an incomplete character unchanged, where the
 * library writes U+FFFD, because the caller may still have the rest of the character.
 */
#include "token/token_impl.h"

#include <stdlib.h>
#include <string.h>

/* A token is a word or a few; a vocabulary of giants, or a decoder that makes them, wants our memory. */
enum { TOKEN_BYTES = 256, TOKEN_FREE = 1 << 20 };

struct texts { /* spans of one buffer */
    struct tr_str text;
    struct tr_tok_spans spans;
    size_t most; /* bytes of the text */
};

static enum tr_status end_text(struct texts *x, size_t begin)
{
    if (x->text.n > x->most)
        return tr_fail(TR_USAGE, "the tokens decode to more than %d bytes each, and 1 MiB", TOKEN_BYTES);
    if (!tr_str_ok(&x->text) || x->text.n > UINT32_MAX)
        return tr_fail(TR_NOMEM, "no memory to decode");
    return tr_tok_spans_add(&x->spans, begin, x->text.n, false);
}

/* ---- one token ---- */

/* Turns byte characters into bytes. A token that holds any other character is kept unchanged. */
static void put_bytes(const char *p, size_t n, struct tr_str *out)
{
    size_t before = out->n, len;
    for (size_t i = 0; i < n; i += len) {
        int b = tr_tok_byte_of_char(tr_utf8_get(p + i, n - i, &len));
        if (b < 0) {
            out->n = before;
            tr_str_add(out, p, n);
            return;
        }
        char byte = (char)b;
        tr_str_add(out, &byte, 1);
    }
}

/* Stops soon after `most` bytes. */
static void put_replaced(struct tr_str *out, const char *p, size_t n, const char *from, size_t n_from, const char *to,
                         size_t most)
{
    const char *end = p + n, *found;
    while (n_from && out->n <= most && (found = memmem(p, (size_t)(end - p), from, n_from))) {
        tr_str_add(out, p, (size_t)(found - p));
        tr_str_add(out, to, strlen(to));
        p = found + n_from;
    }
    tr_str_add(out, p, (size_t)(end - p));
}

static enum tr_status put_pattern(const struct tr_tokenizer *t, const struct tr_tok_decode *x, const char *p, size_t n,
                                  size_t most, struct tr_str *out)
{
    if (!x->pattern.is_regex) {
        put_replaced(out, p, n, x->pattern.text, x->pattern.n, x->text, most);
        return TR_OK;
    }
    struct tr_tok_spans spans = { 0 };
    struct tr_tok_matcher *m = NULL;
    enum tr_status st = TR_OK;
    TR_TRY(tr_tok_matcher_open(&m));
    TR_TRY(tr_tok_regex_split(&x->pattern.re, m, t->table, p, 0, n, &spans));
    for (size_t i = 0; i < spans.n && out->n <= most; i++)
        tr_str_add(out, spans.p[i].is_match ? x->text : p + spans.p[i].begin,
                   spans.p[i].is_match ? x->n : spans.p[i].end - spans.p[i].begin);
out:
    tr_tok_matcher_close(m);
    free(spans.p);
    return st;
}

static void put_stripped(const struct tr_tok_decode *x, const char *p, size_t n, struct tr_str *out)
{
    size_t k = x->pattern.n;
    for (int64_t i = 0; i < x->start && n >= k && memcmp(p, x->pattern.text, k) == 0; i++, p += k)
        n -= k;
    for (int64_t i = 0; i < x->stop && n >= k && memcmp(p + n - k, x->pattern.text, k) == 0; i++)
        n -= k;
    tr_str_add(out, p, n);
}

/* The clean-up of English text that BERT's decoder does. */
static void clean_up(struct tr_str *out, size_t begin)
{
    static const char *const pairs[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },     { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },   { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    for (size_t i = 0; i < TR_COUNT_OF(pairs) && tr_str_ok(out); i++) {
        struct tr_str s = { 0 };
        const char *from = pairs[i][0];
        if (!memmem(out->p + begin, out->n - begin, from, strlen(from)))
            continue;
        put_replaced(&s, out->p + begin, out->n - begin, from, strlen(from), pairs[i][1], SIZE_MAX);
        out->n = begin;
        if (tr_str_ok(&s)) {
            tr_str_add(out, s.p, s.n);
        } else {
            tr_str_release(out);
            out->n_cap = SIZE_MAX; /* marks the string as failed, as str.h defines it */
        }
        tr_str_release(&s);
    }
}

static void put_wordpiece(const struct tr_tok_decode *x, bool is_first, const char *p, size_t n, struct tr_str *out)
{
    size_t begin = out->n, k = x->pattern.n;
    bool goes_on = n >= k && memcmp(p, x->pattern.text, k) == 0;
    if (!is_first && goes_on) {
        p += k;
        n -= k;
    } else if (!is_first) {
        tr_str_add(out, " ", 1);
    }
    tr_str_add(out, p, n);
    if (x->cleanup)
        clean_up(out, begin);
}

static enum tr_status put_token(const struct tr_tokenizer *t, const struct tr_tok_decode *x, size_t i, size_t n_tokens,
                                const char *p, size_t n, size_t most, struct tr_str *out)
{
    switch (x->kind) {
    case TR_TOK_DECODE_BYTES:
        put_bytes(p, n, out);
        break;
    case TR_TOK_DECODE_METASPACE:
        put_replaced(out, p, n, x->pattern.text, x->pattern.n, i == 0 && !x->keeps_first ? "" : " ", most);
        break;
    case TR_TOK_DECODE_REPLACE:
        return put_pattern(t, x, p, n, most, out);
    case TR_TOK_DECODE_STRIP:
        put_stripped(x, p, n, out);
        break;
    case TR_TOK_DECODE_WORDPIECE:
        put_wordpiece(x, i == 0, p, n, out);
        break;
    case TR_TOK_DECODE_BPE:
        put_replaced(out, p, n, x->pattern.text, x->pattern.n, i + 1 == n_tokens ? "" : " ", most);
        break;
    case TR_TOK_DECODE_FUSE:
    case TR_TOK_DECODE_FALLBACK:
        tr_str_add(out, p, n);
        break;
    }
    return TR_OK;
}

/* ---- steps over the list ---- */

/* The byte of "<0xAB>", or -1. */
static int fallback_byte(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>')
        return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        int d = p[i] >= '0' && p[i] <= '9'                 ? p[i] - '0'
                : (p[i] | 32) >= 'a' && (p[i] | 32) <= 'f' ? (p[i] | 32) - 'a' + 10
                                                           : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* A run of byte tokens becomes its bytes if they are UTF-8, else one U+FFFD for each byte. */
static enum tr_status end_bytes(struct texts *to, size_t begin)
{
    size_t n = to->text.n - begin;
    if (n == 0)
        return TR_OK;
    if (!tr_str_ok(&to->text) || tr_utf8_is_valid(to->text.p + begin, n))
        return end_text(to, begin);
    to->text.n = begin;
    for (size_t i = 0; i < n; i++) {
        size_t at = to->text.n;
        tr_str_add(&to->text, "\xEF\xBF\xBD", 3);
        TR_PASS(end_text(to, at));
    }
    return TR_OK;
}

static enum tr_status fall_back(const struct texts *from, struct texts *to)
{
    size_t begin = 0;
    for (size_t i = 0; i < from->spans.n; i++) {
        const char *p = from->text.p + from->spans.p[i].begin;
        size_t n = from->spans.p[i].end - from->spans.p[i].begin;
        int b = fallback_byte(p, n);
        char byte = (char)b;
        if (b >= 0) {
            tr_str_add(&to->text, &byte, 1);
            continue;
        }
        TR_PASS(end_bytes(to, begin));
        begin = to->text.n;
        tr_str_add(&to->text, p, n);
        TR_PASS(end_text(to, begin));
        begin = to->text.n;
    }
    return end_bytes(to, begin);
}

static enum tr_status decode_step(const struct tr_tokenizer *t, const struct tr_tok_decode *x, const struct texts *from,
                                  struct texts *to)
{
    tr_str_clear(&to->text);
    tr_str_add(&to->text, "", 0);
    to->spans.n = 0;
    if (x->kind == TR_TOK_DECODE_FALLBACK)
        return fall_back(from, to);
    for (size_t i = 0; i < from->spans.n; i++) {
        struct tr_tok_span s = from->spans.p[i];
        size_t begin = to->text.n;
        TR_PASS(put_token(t, x, i, from->spans.n, from->text.p + s.begin, s.end - s.begin, to->most, &to->text));
        TR_PASS(end_text(to, begin));
    }
    if (x->kind == TR_TOK_DECODE_FUSE || x->kind == TR_TOK_DECODE_BYTES) {
        to->spans.n = 0;
        TR_PASS(end_text(to, 0));
    }
    return TR_OK;
}

static const char *token_text(const struct tr_tokenizer *t, int64_t id, size_t *n, bool *is_special)
{
    *is_special = false;
    if (id >= 0 && (size_t)id < t->n_ids && t->added_of_id[id] >= 0) {
        const struct tr_tok_added *a = &t->added[t->added_of_id[id]];
        *is_special = a->is_special;
        *n = a->n_normal; /* the normalised form, which the decoder converts back */
        return a->normal;
    }
    return tr_tok_vocab_text(&t->vocab, id, n);
}

static enum tr_status list_tokens(const struct tr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                  struct texts *out)
{
    tr_str_add(&out->text, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t len, begin = out->text.n;
        bool is_special;
        const char *p = token_text(t, ids[i], &len, &is_special);
        if (!p)
            return tr_fail(TR_USAGE, "token id %d at position %zu is not in the vocabulary", ids[i], i);
        if (is_special && skip_special)
            continue;
        tr_str_add(&out->text, p, len);
        TR_PASS(end_text(out, begin));
    }
    return TR_OK;
}

enum tr_status tr_tokenizer_decode_text(const struct tr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                        struct tr_str *out)
{
    enum tr_status st = TR_OK;
    size_t most = n < SIZE_MAX / (2 * TOKEN_BYTES) ? TOKEN_FREE + TOKEN_BYTES * n : SIZE_MAX / 2;
    struct texts x[2] = { { .most = most }, { .most = most } };
    int which = 0;
    struct tr_work_scope work = tr_work_enter(tr_work_of(TR_TOK_WORK, TR_TOK_WORK_BYTE, n));
    TR_TRY(list_tokens(t, ids, n, skip_special, &x[0]));
    for (size_t i = 0; i < t->n_decodes; i++, which ^= 1)
        TR_TRY(decode_step(t, &t->decodes[i], &x[which], &x[which ^ 1]));
    for (size_t i = 0; i < x[which].spans.n; i++) {
        struct tr_tok_span s = x[which].spans.p[i];
        if (!t->has_decoder && i > 0)
            tr_str_add(out, " ", 1);
        tr_str_add(out, x[which].text.p + s.begin, s.end - s.begin);
    }
    if (!tr_str_ok(out))
        st = tr_fail(TR_NOMEM, "no memory to decode %zu tokens", n);
out:
    tr_work_leave(work);
    for (int i = 0; i < 2; i++) {
        tr_str_release(&x[i].text);
        free(x[i].spans.p);
    }
    return st;
}

enum tr_status tr_tokenizer_decode(const struct tr_tokenizer *t, const int32_t *ids, size_t n, struct tr_str *out)
{
    return tr_tokenizer_decode_text(t, ids, n, false, out);
}

/* ---- streaming ---- */

/* A character takes at most four byte tokens, so more ids than this without text are not an incomplete character. */
enum { STREAM_WAIT = 8 };

struct tr_tok_stream {
    const struct tr_tokenizer *t;
    bool skip_special;
    struct tr_ids
        ids; /* the text of [0, n_shown) has been returned; these ids are kept as context, and the rest waits */
    size_t n_shown, n_bytes; /* n_bytes: of the returned text */
    struct tr_str text;
};

enum tr_status tr_tok_stream_open(const struct tr_tokenizer *t, bool skip_special, struct tr_tok_stream **out)
{
    struct tr_tok_stream *s = NULL;
    TR_PASS(TR_ALLOC(s, 1, "a stream of tokens"));
    s->t = t;
    s->skip_special = skip_special;
    *out = s;
    return TR_OK;
}

void tr_tok_stream_close(struct tr_tok_stream *s)
{
    if (!s)
        return;
    tr_ids_release(&s->ids);
    tr_str_release(&s->text);
    free(s);
}

/* The bytes of the text without an incomplete character at its end. */
static size_t whole(const char *p, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)p[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
        return need > back ? n - back : n;
    }
    return n;
}

/* Returns the text that is new and complete. The ids of the last call stay in front as context, because some decoders
 * treat the first token of a text differently. */
static enum tr_status show(struct tr_tok_stream *s, bool is_last, struct tr_str *out)
{
    tr_str_clear(&s->text);
    TR_PASS(tr_tokenizer_decode_text(s->t, s->ids.p, s->ids.n, s->skip_special, &s->text));
    size_t n = s->text.n, n_waiting = s->ids.n - s->n_shown;
    bool is_open = n >= 3 && memcmp(s->text.p + n - 3, "\xEF\xBF\xBD", 3) == 0; /* perhaps an incomplete character */
    bool is_cut = n > 0 && whole(s->text.p, n) < n;
    if (!is_last && n_waiting < STREAM_WAIT && (is_open || is_cut))
        return TR_OK;
    size_t from = s->n_bytes < n ? s->n_bytes : n;
    tr_str_add(out, s->text.p ? s->text.p + from : "", n - from);
    TR_PASS(tr_str_check(out, "a text to decode"));
    memmove(s->ids.p, s->ids.p + s->n_shown, n_waiting * sizeof *s->ids.p);
    s->ids.n = s->n_shown = n_waiting;
    tr_str_clear(&s->text);
    TR_PASS(tr_tokenizer_decode_text(s->t, s->ids.p, s->ids.n, s->skip_special, &s->text));
    s->n_bytes = s->text.n;
    return TR_OK;
}

enum tr_status tr_tok_stream_add(struct tr_tok_stream *s, int32_t id, struct tr_str *out)
{
    enum tr_status st = tr_ids_add(&s->ids, id);
    if (st == TR_OK)
        st = show(s, false, out);
    if (st != TR_OK && s->ids.n > s->n_shown)
        s->ids.n--;
    return st;
}

enum tr_status tr_tok_stream_end(struct tr_tok_stream *s, struct tr_str *out)
{
    enum tr_status st = s->ids.n > s->n_shown ? show(s, true, out) : TR_OK;
    s->ids.n = s->n_shown = s->n_bytes = 0;
    return st;
}
