/* split.c - the pre-tokenizer steps, which split the spans of a text into smaller spans.
 *
 * A step reads one list of spans and writes the other. Steps that change the text (a space before it, Metaspace, byte
 * characters) write a new text with the spans one after the other. A step never writes an empty span, as in the
 * library.
 */
#include "token/token_impl.h"

#include <string.h>

enum tr_status tr_tok_spans_grow(struct tr_tok_spans *v)
{
    return TR_ROOM(v->p, v->n + 1, &v->n_cap, "%zu words", v->n + 1);
}

/* Matches and gaps of [s->begin, s->end), in order. */
static enum tr_status find_class(const struct tr_tok_split *x, const uint16_t *table, const char *p,
                                 struct tr_tok_span s, struct tr_tok_spans *out)
{
    size_t prev = s.begin, len;
    for (size_t i = s.begin; i < s.end; i += len) {
        uint32_t c = tr_utf8_get(p + i, s.end - i, &len);
        if (!(x->flag ? tr_tok_cp(table, c) & x->flag : tr_tok_cp_in(table, c, TR_TOK_WS)))
            continue;
        if (i > prev)
            TR_PASS(tr_tok_spans_add(out, prev, i, false));
        TR_PASS(tr_tok_spans_add(out, i, i + len, true));
        prev = i + len;
    }
    if (prev < s.end)
        TR_PASS(tr_tok_spans_add(out, prev, s.end, false));
    return TR_OK;
}

static enum tr_status add_nonempty(struct tr_tok_spans *out, struct tr_tok_span s)
{
    return s.end > s.begin ? tr_tok_spans_add(out, s.begin, s.end, false) : TR_OK;
}

/* Joins a match to its neighbour, unless the match before it (in that direction) has just been joined. */
static enum tr_status merge_matches(const struct tr_tok_spans *m, bool to_previous, struct tr_tok_spans *out)
{
    bool was_match = false;
    size_t n_before = out->n;
    for (size_t k = 0; k < m->n; k++) {
        struct tr_tok_span s = m->p[to_previous ? k : m->n - 1 - k];
        struct tr_tok_span *last = out->n > n_before ? &out->p[out->n - 1] : NULL;
        bool joins = s.is_match && !was_match && last;
        was_match = s.is_match;
        if (joins && to_previous)
            last->end = s.end;
        else if (joins)
            last->begin = s.begin;
        else
            TR_PASS(tr_tok_spans_add(out, s.begin, s.end, false));
    }
    for (size_t i = n_before, k = out->n; !to_previous && i + 1 < k; i++) {
        struct tr_tok_span s = out->p[i];
        out->p[i] = out->p[--k];
        out->p[k] = s;
    }
    size_t n = n_before;
    for (size_t i = n_before; i < out->n; i++)
        if (out->p[i].end > out->p[i].begin)
            out->p[n++] = out->p[i];
    out->n = n;
    return TR_OK;
}

static enum tr_status behave(enum tr_tok_behavior behavior, const struct tr_tok_spans *m, struct tr_tok_spans *out)
{
    if (behavior == TR_TOK_MERGED_PREVIOUS || behavior == TR_TOK_MERGED_NEXT)
        return merge_matches(m, behavior == TR_TOK_MERGED_PREVIOUS, out);
    for (size_t i = 0, k; i < m->n; i = k) {
        struct tr_tok_span s = m->p[i];
        k = i + 1;
        if (behavior == TR_TOK_REMOVED && s.is_match)
            continue;
        while (behavior == TR_TOK_CONTIGUOUS && k < m->n && m->p[k].is_match == s.is_match)
            s.end = m->p[k++].end;
        TR_PASS(add_nonempty(out, s));
    }
    return TR_OK;
}

/* Splits into runs of word characters and runs of characters that are neither word nor space. Spaces are dropped. */
static enum tr_status split_words(const uint16_t *table, const char *p, struct tr_tok_span s, struct tr_tok_spans *out)
{
    size_t begin = s.begin, len;
    int was = 0; /* 0 space, 1 word, 2 other */
    for (size_t i = s.begin; i < s.end; i += len) {
        unsigned row = tr_tok_cp(table, tr_utf8_get(p + i, s.end - i, &len));
        int is = row & TR_TOK_CP_WORD ? 1 : TR_TOK_WS >> (row & TR_TOK_CLASS_MASK) & 1 ? 0 : 2;
        if (is != was) {
            if (was)
                TR_PASS(tr_tok_spans_add(out, begin, i, false));
            begin = i;
            was = is;
        }
    }
    if (was)
        TR_PASS(tr_tok_spans_add(out, begin, s.end, false));
    return TR_OK;
}

static enum tr_status split_spans(struct tr_tok_encoder *e, const struct tr_tok_split *x, const char *p,
                                  const struct tr_tok_spans *in, struct tr_tok_spans *out)
{
    const uint16_t *table = e->t->table;
    for (size_t i = 0; i < in->n; i++) {
        /* isolated: every match and every gap is a word, so they are written directly. Patterns that can match an empty
         * text go through PCRE2, and behave() drops empty spans. */
        bool is_direct = x->behavior == TR_TOK_ISOLATED && !(x->pattern.is_regex && x->pattern.re.code);
        struct tr_tok_spans *to = is_direct ? out : &e->matches;
        if (x->kind == TR_TOK_SPLIT_WORDS) {
            TR_PASS(split_words(table, p, in->p[i], out));
            continue;
        }
        e->matches.n = 0;
        if (x->kind == TR_TOK_SPLIT_CLASS)
            TR_PASS(find_class(x, table, p, in->p[i], to));
        else
            TR_PASS(tr_tok_pattern_split(&x->pattern, e->matcher, table, p, in->p[i].begin, in->p[i].end, to));
        for (size_t k = 0; x->invert && k < e->matches.n; k++)
            e->matches.p[k].is_match = !e->matches.p[k].is_match;
        if (!is_direct)
            TR_PASS(behave(x->behavior, &e->matches, out));
    }
    return TR_OK;
}

/* ---- steps that rewrite the text ---- */

static void put_byte_chars(const char *p, size_t n, struct tr_str *out)
{
    char u[4];
    for (size_t i = 0; i < n; i++)
        tr_str_add(out, u, tr_utf8_put(tr_tok_byte_char((unsigned char)p[i]), u));
}

/* Metaspace on one span: spaces become the replacement, one may be put before the span, and each begins a word. */
static enum tr_status put_metaspace(const struct tr_tok_split *x, const char *p, size_t n, bool is_first,
                                    struct tr_str *out, struct tr_tok_spans *words)
{
    const char *mark = x->pattern.text;
    size_t n_mark = x->pattern.n, begin = out->n;
    bool has_mark = (n && *p == ' ') || (n >= n_mark && memcmp(p, mark, n_mark) == 0);
    if (!has_mark && (x->prepend == TR_TOK_PREPEND_ALWAYS || (x->prepend == TR_TOK_PREPEND_FIRST && is_first)))
        tr_str_add(out, mark, n_mark);
    for (size_t i = 0; i < n;) {
        bool is_mark = p[i] == ' ' || (n - i >= n_mark && memcmp(p + i, mark, n_mark) == 0);
        size_t len = p[i] == ' ' || !is_mark ? 1 : n_mark;
        if (is_mark && x->has_split && out->n > begin) {
            TR_PASS(tr_tok_spans_add(words, begin, out->n, false));
            begin = out->n;
        }
        if (is_mark) {
            tr_str_add(out, mark, n_mark);
        } else {
            while (i + len < n && p[i + len] != ' ' && p[i + len] != *mark)
                len++;
            tr_str_add(out, p + i, len);
        }
        i += len;
    }
    if (out->n > begin)
        TR_PASS(tr_tok_spans_add(words, begin, out->n, false));
    return TR_OK;
}

static enum tr_status rewrite_spans(const struct tr_tok_split *x, const char *p, bool at_start,
                                    const struct tr_tok_spans *in, struct tr_str *text, struct tr_tok_spans *out)
{
    tr_str_clear(text);
    tr_str_add(text, "\n", at_start && in->n && in->p[0].begin == 0 ? 0 : 1); /* offset 0 means the start of the text */
    for (size_t i = 0; i < in->n; i++) {
        struct tr_tok_span s = in->p[i];
        size_t begin = text->n;
        if (x->kind == TR_TOK_SPLIT_METASPACE) {
            TR_PASS(put_metaspace(x, p + s.begin, s.end - s.begin, at_start && s.begin == 0, text, out));
        } else {
            if (x->kind == TR_TOK_SPLIT_PREFIX && p[s.begin] != ' ')
                tr_str_add(text, " ", 1);
            if (x->kind == TR_TOK_SPLIT_BYTES)
                put_byte_chars(p + s.begin, s.end - s.begin, text);
            else
                tr_str_add(text, p + s.begin, s.end - s.begin);
            TR_PASS(tr_tok_spans_add(out, begin, text->n, false));
        }
    }
    if (!tr_str_ok(text) || text->n > UINT32_MAX)
        return tr_fail(TR_NOMEM, "no memory to split a text into words");
    return TR_OK;
}

enum tr_status tr_tok_split_text(struct tr_tok_encoder *e, const char *p, size_t n, bool at_start, const char **text,
                                 struct tr_tok_spans **words)
{
    int which = 0, buffer = 0;
    e->spans[0].n = 0;
    TR_PASS(tr_tok_spans_add(&e->spans[0], 0, n, false));
    for (size_t i = 0; i < e->t->n_splits; i++) {
        const struct tr_tok_split *x = &e->t->splits[i];
        struct tr_tok_spans *in = &e->spans[which], *out = &e->spans[which ^ 1];
        out->n = 0;
        if (x->kind == TR_TOK_SPLIT_METASPACE || x->kind == TR_TOK_SPLIT_PREFIX || x->kind == TR_TOK_SPLIT_BYTES) {
            struct tr_str *to = &e->text[buffer];
            TR_PASS(rewrite_spans(x, p, at_start, in, to, out));
            p = to->p;
            at_start = out->n && out->p[0].begin == 0;
            buffer ^= 1;
        } else {
            TR_PASS(split_spans(e, x, p, in, out));
        }
        which ^= 1;
    }
    *text = p;
    *words = &e->spans[which];
    return TR_OK;
}
