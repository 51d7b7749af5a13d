/* norm.c - the normalizer steps, each from one buffer into the other.
 *
 * A step is skipped when a scan shows that it would change nothing. Most text is ASCII or already composed, so the
 * usual cost is that scan. NFC, NFD, NFKC and NFKD normalise only the ranges that hold a character with a decomposition
 * or one that joins the character before it. Every other character is a boundary and is copied.
 */
#include "token/token_impl.h"

#include <string.h>
#include <utf8proc.h>

static void put(struct tr_str *out, uint32_t c)
{
    char u[4];
    tr_str_add(out, u, tr_utf8_put(c, u));
}

/* ---- NFC, NFD, NFKC, NFKD ---- */

struct form {
    int options;
    unsigned unstable; /* properties of a character that the form may change by itself */
    bool composes;
    unsigned char plain_below; /* a text whose bytes are all smaller is already in this form */
};
static const struct form forms[] = {
    [TR_TOK_NORM_NFC] = { UTF8PROC_STABLE | UTF8PROC_COMPOSE, TR_TOK_CP_CANON, true, 0xCC },
    [TR_TOK_NORM_NFD] = { UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, TR_TOK_CP_CANON, false, 0xC3 },
    [TR_TOK_NORM_NFKC] = { UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, TR_TOK_CP_CANON | TR_TOK_CP_COMPAT,
                           true, 0xC2 },
    [TR_TOK_NORM_NFKD] = { UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, TR_TOK_CP_CANON | TR_TOK_CP_COMPAT,
                           false, 0xC2 },
};

static bool has_byte_from(const char *p, size_t n, unsigned char from)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= from)
            return true;
    return false;
}

/* Whether the character is copied unchanged and no character before it depends on it. */
static bool is_stable(const struct form *f, unsigned row, uint32_t c)
{
    if (row & TR_TOK_CP_JOINS)
        return false;
    if (!(row & f->unstable))
        return true;
    /* the composed letters of these blocks would be decomposed and then composed to the same letter */
    bool is_composed =
        f->composes && !(row & TR_TOK_CP_COMPAT) &&
        (c < 0x300 || (c >= 0x1E00 && c <= 0x1E99) || (c >= 0x1EA0 && c <= 0x1EFF) || (c >= 0xAC00 && c <= 0xD7A3));
    return is_composed;
}

static unsigned ccc(uint32_t c)
{
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* Stable sort of n marks by combining class. It counts, because a hostile text can hold a million marks in a row. */
static void sort_marks(uint32_t *p, size_t n, uint32_t *work)
{
    size_t first[257] = { 0 };
    for (size_t i = 0; i < n; i++)
        first[ccc(p[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        first[k] += first[k - 1];
    for (size_t i = 0; i < n; i++)
        work[first[ccc(p[i])]++] = p[i];
    memcpy(p, work, n * sizeof *p);
}

static void order_marks(uint32_t *p, size_t n, uint32_t *work)
{
    for (size_t i = 0, k; i < n; i = k + 1) {
        bool is_sorted = true;
        for (k = i; k < n && ccc(p[k]) != 0; k++)
            if (k > i && ccc(p[k]) < ccc(p[k - 1]))
                is_sorted = false;
        if (!is_sorted)
            sort_marks(p + i, k - i, work);
    }
}

/* Decomposes, orders, and composes again if the form requires it. */
static enum tr_status map_region(struct tr_tok_encoder *e, const struct form *f, const char *p, size_t n,
                                 struct tr_str *out)
{
    enum { EXPANDS_TO = 32 }; /* more code points than the decomposition of any character */
    size_t k = 0, len;
    for (size_t i = 0; i < n; i += len) {
        int bound = 0;
        TR_PASS(tr_tok_encoder_grow(&e->symbols, &e->n_symbols_cap, k + EXPANDS_TO, sizeof *e->symbols));
        uint32_t c = tr_utf8_get(p + i, n - i, &len);
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)c, (utf8proc_int32_t *)e->symbols + k, EXPANDS_TO,
                                    (utf8proc_option_t)(f->options | UTF8PROC_DECOMPOSE), &bound);
        if (got < 0 || got > EXPANDS_TO)
            return tr_fail(TR_USAGE, "normalisation of U+%04X: %s", c, utf8proc_errmsg(got));
        k += (size_t)got;
    }
    TR_PASS(tr_tok_encoder_grow(&e->links, &e->n_links_cap, k, sizeof *e->links));
    order_marks(e->symbols, k, e->links);
    if (f->composes)
        k = (size_t)utf8proc_normalize_utf32((utf8proc_int32_t *)e->symbols, (utf8proc_ssize_t)k,
                                             (utf8proc_option_t)f->options);
    for (size_t i = 0; i < k; i++)
        put(out, e->symbols[i]);
    return TR_OK;
}

/* [safe, i) is unchanged text not yet copied; `last` is where its last character begins if that may join the next. */
static enum tr_status to_form(struct tr_tok_encoder *e, const struct form *f, const char *p, size_t n,
                              struct tr_str *out)
{
    const uint16_t *table = e->t->table;
    size_t copied = 0, last = 0, i = 0, len;
    while (i < n) {
        if ((unsigned char)p[i] < 0x80) {
            last = i++;
            continue;
        }
        uint32_t c = tr_utf8_get(p + i, n - i, &len);
        unsigned row = tr_tok_cp(table, c);
        if (row & TR_TOK_CP_INERT || is_stable(f, row, c)) {
            last = row & TR_TOK_CP_INERT ? i + len : i;
            i += len;
            continue;
        }
        tr_str_add(out, p + copied, last - copied);
        size_t end = i + len;
        while (end < n) {
            c = tr_utf8_get(p + end, n - end, &len);
            row = tr_tok_cp(table, c);
            if (row & TR_TOK_CP_INERT || is_stable(f, row, c))
                break;
            end += len;
        }
        TR_PASS(map_region(e, f, p + last, end - last, out));
        copied = last = i = end;
    }
    tr_str_add(out, p + copied, n - copied);
    return TR_OK;
}

/* ---- character by character ---- */

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool nmt_removes(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

/* Writes the result of one character. False: the character is dropped. */
static bool map_char(enum tr_tok_norm_kind kind, const uint16_t *table, uint32_t c, struct tr_str *out)
{
    unsigned row = tr_tok_cp(table, c);
    bool is_ws = TR_TOK_WS >> (row & TR_TOK_CLASS_MASK) & 1;
    switch (kind) {
    case TR_TOK_NORM_LOWER:
        put(out, c == 0x130 ? 'i' : tr_tok_unicode_lower(c));
        if (c == 0x130)
            put(out, 0x307);
        return true;
    case TR_TOK_NORM_MARKS:
    case TR_TOK_NORM_MN:
        if (row & (kind == TR_TOK_NORM_MN ? TR_TOK_CP_MN : TR_TOK_CP_MARK))
            return false;
        break;
    case TR_TOK_NORM_CLEAN:
        if (c == 0 || row & TR_TOK_CP_OTHER)
            return false;
        c = is_ws ? ' ' : c;
        break;
    case TR_TOK_NORM_CHINESE:
        if (is_chinese(c)) {
            tr_str_add(out, " ", 1);
            put(out, c);
            c = ' ';
        }
        break;
    case TR_TOK_NORM_NMT:
        if (nmt_removes(c))
            return false;
        c = nmt_blanks(c) ? ' ' : c;
        break;
    default: /* TR_TOK_NORM_BYTES */
        break;
    }
    put(out, c);
    return true;
}

static void map_chars(enum tr_tok_norm_kind kind, const uint16_t *table, const char *p, size_t n, bool *at_start,
                      struct tr_str *out)
{
    bool is_first = true;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c = tr_utf8_get(p + i, n - i, &len);
        if (map_char(kind, table, c, out))
            is_first = false;
        else if (is_first)
            *at_start = false;
    }
}

/* ---- the others ---- */

static void strip(const struct tr_tok_norm *x, const uint16_t *table, const char **p, size_t *n, bool *at_start)
{
    size_t len, begin = 0, end = *n;
    while (x->left && begin < end && tr_tok_cp_in(table, tr_utf8_get(*p + begin, end - begin, &len), TR_TOK_WS))
        begin += len;
    while (x->right && end > begin) {
        size_t i = tr_utf8_before(*p, end);
        if (!tr_tok_cp_in(table, tr_utf8_get(*p + i, end - i, &len), TR_TOK_WS))
            break;
        end = i;
    }
    if (begin > 0)
        *at_start = false;
    *p += begin;
    *n = end - begin;
}

/* Normalizers make a character longer, the worst of Unicode's forms 11 times, but never a long text; a file that does
 * so wants our memory. */
enum { GROWTH = 4, GROWTH_FREE = 1 << 20 };

static size_t most_of(size_t n_text)
{
    return n_text < SIZE_MAX / (2 * GROWTH) ? GROWTH_FREE + GROWTH * n_text : SIZE_MAX / 2;
}

static enum tr_status check_growth(size_t n, size_t n_text)
{
    if (n <= most_of(n_text))
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "the normalizers of the tokenizer make more than %d times as much of a text of %zu bytes, and 1 MiB",
                   GROWTH, n_text);
}

static enum tr_status replace(struct tr_tok_encoder *e, const struct tr_tok_norm *x, const char *p, size_t n,
                              size_t n_text, bool *at_start, struct tr_str *out)
{
    e->matches.n = 0;
    enum tr_status st = tr_tok_pattern_split(&x->pattern, e->matcher, e->t->table, p, 0, n, &e->matches);
    size_t n_all = 0;
    for (size_t i = 0; i < e->matches.n && st == TR_OK; i++) {
        const struct tr_tok_span *s = &e->matches.p[i];
        n_all += s->is_match ? x->n : s->end - s->begin; /* each is below 2^28, as the file is */
        st = check_growth(n_all, n_text);
    }
    if (st != TR_OK)
        return st;
    for (size_t i = 0; i < e->matches.n; i++) {
        const struct tr_tok_span *s = &e->matches.p[i];
        if (s->is_match)
            tr_str_add(out, x->text, x->n);
        else
            tr_str_add(out, p + s->begin, s->end - s->begin);
    }
    if (e->matches.n && e->matches.p[0].is_match && x->n == 0)
        *at_start = false;
    return TR_OK;
}

static void to_byte_chars(const char *p, size_t n, struct tr_str *out)
{
    for (size_t i = 0; i < n; i++)
        put(out, tr_tok_byte_char((unsigned char)p[i]));
}

/* n_text: bytes of the text before the first step. */
static enum tr_status apply(struct tr_tok_encoder *e, const struct tr_tok_norm *x, const char *p, size_t n,
                            size_t n_text, bool *at_start, struct tr_str *out)
{
    switch (x->kind) {
    case TR_TOK_NORM_NFC:
    case TR_TOK_NORM_NFD:
    case TR_TOK_NORM_NFKC:
    case TR_TOK_NORM_NFKD:
        return to_form(e, &forms[x->kind], p, n, out);
    case TR_TOK_NORM_REPLACE:
        return replace(e, x, p, n, n_text, at_start, out);
    case TR_TOK_NORM_PREPEND:
        tr_str_add(out, x->text, x->n);
        tr_str_add(out, p, n);
        return TR_OK;
    case TR_TOK_NORM_CHARSMAP:
        tr_tok_charsmap_apply(x, p, n, most_of(n_text), out);
        return TR_OK;
    case TR_TOK_NORM_BYTES:
        to_byte_chars(p, n, out);
        return TR_OK;
    default:
        map_chars(x->kind, e->t->table, p, n, at_start, out);
        return TR_OK;
    }
}

/* Whether a scan shows that the step changes nothing. */
static bool is_idle(const struct tr_tok_norm *x, const char *p, size_t n, bool is_first)
{
    switch (x->kind) {
    case TR_TOK_NORM_NFC:
    case TR_TOK_NORM_NFD:
    case TR_TOK_NORM_NFKC:
    case TR_TOK_NORM_NFKD:
        return !has_byte_from(p, n, forms[x->kind].plain_below);
    case TR_TOK_NORM_MARKS:
    case TR_TOK_NORM_MN:
        return !has_byte_from(p, n, 0xCC); /* marks begin at U+0300 */
    case TR_TOK_NORM_CHINESE:
        return !has_byte_from(p, n, 0xE3); /* Chinese characters begin at U+3400 */
    case TR_TOK_NORM_PREPEND:
        return !is_first || n == 0;
    case TR_TOK_NORM_REPLACE:
        return !x->pattern.is_regex && (x->pattern.n == 0 || !memmem(p, n, x->pattern.text, x->pattern.n));
    default:
        return false;
    }
}

enum tr_status tr_tok_normalize(struct tr_tok_encoder *e, const char *p, size_t n, bool is_first, bool *at_start,
                                const char **out, size_t *n_out)
{
    int which = 0;
    size_t n_text = n;
    for (size_t i = 0; i < e->t->n_norms; i++) {
        const struct tr_tok_norm *x = &e->t->norms[i];
        if (x->kind == TR_TOK_NORM_STRIP) {
            strip(x, e->t->table, &p, &n, at_start);
            continue;
        }
        if (is_idle(x, p, n, is_first))
            continue;
        struct tr_str *to = &e->norm[which ^= 1];
        tr_str_clear(to);
        enum tr_status st = apply(e, x, p, n, n_text, at_start, to);
        if (st == TR_OK)
            st = check_growth(to->n, n_text);
        if (st == TR_OK && to->n / GROWTH > n_text)
            st = tr_tok_work(to->n); /* what short texts become is bounded only together */
        if (st != TR_OK)
            return st;
        TR_PASS(tr_str_check(to, "%zu bytes to normalise", n));
        p = to->n ? to->p : "";
        n = to->n;
    }
    if (n > TR_TOK_PIECE_MAX)
        return tr_fail(TR_USAGE, "a text of %zu bytes without a place to cut it is too long to encode", n);
    *out = p;
    *n_out = n;
    return TR_OK;
}
