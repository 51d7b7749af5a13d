/* encode.c - the pipeline, the encoder of one thread, and the search for places where a long text may be cut.
 *
 * A text is encoded in chunks, so that the spans and buffers of one chunk stay in the CPU's cache. A cut must change no
 * id. It is made before a single space between two ASCII letters, or after a newline between two characters that are
 * not white space, and only for pipelines that passed the check at loading (cut.c). A text without such a place is
 * encoded whole. Invariant: the ids of a text do not depend on the parts in which it arrived.
 */
#include "token/token_impl.h"
#include "token/utf8.h"

#include <pthread.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 1 << 15 };

struct tr_tok_pool_list {
    pthread_mutex_t lock;
    struct tr_tok_encoder *first;
};

enum tr_status tr_tok_encoder_grow(void *p, size_t *n_cap, size_t n, size_t width)
{
    return tr_room(p, width, n, n_cap, "a piece of %zu symbols", n);
}

enum tr_status tr_tok_work(size_t n_steps)
{
    return tr_work_take((int64_t)n_steps) ? TR_OK
                                          : tr_fail(TR_USAGE, "the tokenizer gave up on this text: too much work");
}

enum tr_status tr_tok_encoder_open(const struct tr_tokenizer *t, struct tr_tok_encoder **out)
{
    enum tr_status st = TR_OK;
    struct tr_tok_encoder *e = calloc(1, sizeof *e);
    if (!e)
        return tr_fail(TR_NOMEM, "no memory for an encoder");
    e->t = t;
    TR_TRY(tr_tok_word_cache_new(&e->cache));
    TR_TRY(tr_tok_matcher_open(&e->matcher));
    *out = e;
    e = NULL;
out:
    tr_tok_encoder_close(e);
    return st;
}

void tr_tok_encoder_close(struct tr_tok_encoder *e)
{
    if (!e)
        return;
    tr_tok_matcher_close(e->matcher);
    for (int i = 0; i < 2; i++) {
        tr_str_release(&e->norm[i]);
        tr_str_release(&e->text[i]);
        free(e->spans[i].p);
    }
    free(e->matches.p);
    tr_str_release(&e->clean);
    tr_str_release(&e->scratch);
    free(e->cache);
    free(e->symbols);
    free(e->links);
    free(e->heap);
    free(e->path);
    free(e);
}

/* ---- the pipeline ---- */

/* Encodes a piece of normalised text that holds no added tokens. */
static enum tr_status encode_words(struct tr_tok_encoder *e, const char *p, size_t n, bool at_start, struct tr_ids *out)
{
    struct tr_tok_spans *words;
    if (n == 0)
        return TR_OK;
    if (e->t->n_splits == 0 && e->t->model == TR_TOK_MODEL_BPE)
        return tr_tok_bpe_text(e, p, n, out);
    TR_PASS(tr_tok_split_text(e, p, n, at_start, &p, &words));
    bool is_split_further = e->t->may_merge != NULL;
    for (size_t i = 0; i < words->n; i++) {
        struct tr_tok_span s = words->p[i];
        if (is_split_further && s.end - s.begin > TR_TOK_WORD_KEY_MAX)
            TR_PASS(tr_tok_bpe_text(e, p + s.begin, s.end - s.begin, out));
        else
            TR_PASS(tr_tok_cached_word(e, p + s.begin, s.end - s.begin, out));
    }
    return TR_OK;
}

/* Encodes a piece of text between added tokens of the kind that is searched before normalisation. */
static enum tr_status encode_piece(struct tr_tok_encoder *e, const char *p, size_t n, bool at_start, bool is_first,
                                   struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    const struct tr_tok_added *a;
    size_t from = 0, i = 0, begin, end;
    TR_PASS(tr_tok_normalize(e, p, n, is_first, &at_start, &p, &n));
    while ((a = tr_tok_added_next(t, &t->added_normal, p, n, from, &i, &begin, &end))) {
        if (begin > from)
            TR_PASS(encode_words(e, p + from, begin - from, at_start && from == 0, out));
        TR_PASS(tr_ids_add(out, a->id));
        from = end;
    }
    return from < n ? encode_words(e, p + from, n - from, at_start && from == 0, out) : TR_OK;
}

/* `is_first`: the text begins here; else this chunk continues an earlier one. */
static enum tr_status encode_chunk(struct tr_tok_encoder *e, const char *p, size_t n, bool is_first, struct tr_ids *out)
{
    const struct tr_tokenizer *t = e->t;
    const struct tr_tok_added *a;
    size_t from = 0, i = 0, begin, end;
    TR_PASS(tr_ids_reserve(out, n / 4));
    while ((a = tr_tok_added_next(t, &t->added_raw, p, n, from, &i, &begin, &end))) {
        if (begin > from)
            TR_PASS(encode_piece(e, p + from, begin - from, is_first && from == 0, is_first || from > 0, out));
        TR_PASS(tr_ids_add(out, a->id));
        from = end;
    }
    return from < n ? encode_piece(e, p + from, n - from, is_first && from == 0, is_first || from > 0, out) : TR_OK;
}

/* ---- cutting ---- */

static bool is_letter(char c)
{
    return ((unsigned char)c | 32) >= 'a' && ((unsigned char)c | 32) <= 'z';
}

/* Whether c is neither white space nor the slash that may belong to the end of a line. Of bytes above ASCII, only those
 * that cannot begin white space are accepted. */
static bool is_plain(char c)
{
    unsigned char u = (unsigned char)c;
    return (u > 0x20 && u < 0x7F && u != '/') || u == 0xD0 || u == 0xD1 || (u >= 0xE4 && u <= 0xED);
}

/* Whether p may be cut at i: 0 < i, i + 1 < n. */
static bool is_cut(const struct tr_tokenizer *t, const char *p, size_t i)
{
    if (t->cuts_at_space && p[i] == ' ')
        return is_letter(p[i - 1]) && is_letter(p[i + 1]);
    if (!t->cuts_at_newline || p[i - 1] != '\n' || i < 2 || !is_plain(p[i]))
        return false;
    size_t len, before = tr_utf8_before(p, i - 1);
    return !tr_tok_cp_in(t->table, tr_utf8_get(p + before, i - 1 - before, &len), TR_TOK_WS);
}

size_t tr_tokenizer_cut(const struct tr_tokenizer *t, const char *text, size_t n, size_t from)
{
    if (t->cuts_at_space || t->cuts_at_newline)
        for (size_t i = from ? from : 1; i + 1 < n; i++)
            if (is_cut(t, text, i))
                return i;
    return n;
}

static enum tr_status encode_text(struct tr_tok_encoder *e, const char *p, size_t n, bool is_first, struct tr_ids *out)
{
    enum tr_status st = TR_OK;
    struct tr_work_scope work = tr_work_enter(tr_work_of(TR_TOK_WORK, TR_TOK_WORK_BYTE, n));
    if (!e->t->takes_bytes && !tr_utf8_is_valid(p, n)) {
        size_t n_used;
        tr_str_clear(&e->clean);
        tr_utf8_clean(p, n, true, &e->clean, &n_used);
        TR_TRY(tr_str_check(&e->clean, "%zu bytes to encode", n));
        p = e->clean.p;
        n = e->clean.n;
    }
    while (n > 0) {
        size_t k = n > CHUNK_BYTES ? tr_tokenizer_cut(e->t, p, n, CHUNK_BYTES) : n;
        TR_TRY(encode_chunk(e, p, k, is_first, out));
        is_first = false;
        p += k;
        n -= k;
    }
    TR_TRY(tr_work_left() > 0 ? TR_OK : tr_tok_work(1)); /* a search for added tokens ends without an error */
out:
    tr_work_leave(work);
    return st;
}

static enum tr_status add_all(struct tr_ids *out, const struct tr_ids *in)
{
    enum tr_status st = tr_ids_reserve(out, in->n);
    for (size_t i = 0; st == TR_OK && i < in->n; i++)
        out->p[out->n++] = in->p[i];
    return st;
}

enum tr_status tr_tok_encoder_encode(struct tr_tok_encoder *e, const char *text, size_t n, bool add_special,
                                     struct tr_ids *out)
{
    enum tr_status st = TR_OK;
    size_t before = out->n;
    if (add_special)
        TR_TRY(add_all(out, &e->t->before));
    TR_TRY(encode_text(e, text, n, true, out));
    if (add_special)
        TR_TRY(add_all(out, &e->t->after));
out:
    if (st != TR_OK)
        out->n = before;
    return st;
}

/* ---- calls without an encoder: they borrow one ---- */

enum tr_status tr_tok_pool_list_open(struct tr_tok_pool_list **out)
{
    struct tr_tok_pool_list *l = calloc(1, sizeof *l);
    if (!l || pthread_mutex_init(&l->lock, NULL) != 0) {
        free(l);
        return tr_fail(TR_NOMEM, "no memory for a list of encoders");
    }
    *out = l;
    return TR_OK;
}

void tr_tok_pool_list_close(struct tr_tok_pool_list *l)
{
    if (!l)
        return;
    while (l->first) {
        struct tr_tok_encoder *e = l->first;
        l->first = e->next;
        tr_tok_encoder_close(e);
    }
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static enum tr_status borrow(const struct tr_tokenizer *t, struct tr_tok_encoder **out)
{
    pthread_mutex_lock(&t->pool->lock);
    struct tr_tok_encoder *e = t->pool->first;
    if (e)
        t->pool->first = e->next;
    pthread_mutex_unlock(&t->pool->lock);
    if (!e)
        return tr_tok_encoder_open(t, out);
    *out = e;
    return TR_OK;
}

static void give_back(const struct tr_tokenizer *t, struct tr_tok_encoder *e)
{
    pthread_mutex_lock(&t->pool->lock);
    e->next = t->pool->first;
    t->pool->first = e;
    pthread_mutex_unlock(&t->pool->lock);
}

enum tr_status tr_tokenizer_encode_part(const struct tr_tokenizer *t, const char *text, size_t n, bool is_first,
                                        struct tr_ids *out)
{
    struct tr_tok_encoder *e;
    size_t before = out->n;
    TR_PASS(borrow(t, &e));
    enum tr_status st = encode_text(e, text, n, is_first, out);
    if (st != TR_OK)
        out->n = before;
    give_back(t, e);
    return st;
}

enum tr_status tr_tokenizer_encode(const struct tr_tokenizer *t, const char *text, size_t n, struct tr_ids *out)
{
    return tr_tokenizer_encode_part(t, text, n, true, out);
}
