/* scan.c - the split patterns of the well-known tokenizers, matched by hand-written code in one pass.
 *
 * One scanner serves all of them: the patterns are the same seven alternatives with different classes and limits, so
 * each pattern is a row of a table. Only the exact text of a pattern selects its row; any other pattern goes to PCRE2.
 * Every alternative reads its characters once, so the time is linear in the length of any text.
 */
#include "token/token_parts.h"

#include <string.h>
#include <utf8proc.h>

#define C(name) (1u << UTF8PROC_CATEGORY_##name)
#define L       (C(LU) | C(LL) | C(LT) | C(LM) | C(LO))
#define M       (C(MN) | C(MC) | C(ME))
#define N       (C(ND) | C(NL) | C(NO))
#define P       (C(PC) | C(PD) | C(PS) | C(PE) | C(PI) | C(PF) | C(PO))
#define S       (C(SM) | C(SC) | C(SK) | C(SO))
#define NEWLINE (1u << TR_TOK_CLASS_NEWLINE)
#define SPACE   (1u << TR_TOK_CLASS_SPACE)
#define UPPER   (C(LU) | C(LT) | C(LM) | C(LO) | M)
#define LOWER   (C(LL) | C(LM) | C(LO) | M)

enum contraction { NONE, FIRST, FIRST_ANY_CASE, AFTER_WORD };
enum { UNLIMITED = 255 };

struct tr_tok_scan {
    const char *pattern;
    uint32_t lead, letter; /* [lead]?[letter]+ ; letter 0: none */
    bool is_cased;         /* [lead]?[UPPER]*[LOWER]+ | [lead]?[UPPER]+[LOWER]* instead */
    bool has_ascii_words;  /* one ASCII punctuation mark and [A-Za-z]+ */
    enum contraction contraction;
    uint8_t n_digits;  /* at most this many; UNLIMITED: any number, with an optional space before them; 0: none */
    uint32_t punct;    /* ` ?[punct]+` ; 0: none */
    const char *tail;  /* any of these may follow */
    bool has_newlines; /* \s*[\r\n]+ ; \s*[\r\n] matches the same */
    bool has_spaces;   /* \s+(?!\S)|\s+ */
};

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define CASED(suffix)                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" suffix                 \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" suffix
#define SPACES "|\\s+(?!\\S)|\\s+"

static const struct tr_tok_scan scans[] = {
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+" SPACES, SPACE, L, false, false, FIRST,
      UNLIMITED, ~(TR_TOK_WS | L | N), "", false, true }, /* GPT-2 */
    { "(?i:" CONTRACTIONS
      ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES,
      ~(NEWLINE | L | N), L, false, false, FIRST_ANY_CASE, 3, ~(TR_TOK_WS | L | N), "\r\n", true, true }, /* Llama 3 */
    { "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES,
      ~(NEWLINE | L | N), L, false, false, FIRST_ANY_CASE, 1, ~(TR_TOK_WS | L | N), "\r\n", true, true }, /* Qwen 2 */
    { "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]" SPACES,
      ~(NEWLINE | L | N), L, false, false, FIRST_ANY_CASE, 3, ~(TR_TOK_WS | L | N), "\r\n", true, true }, /* cl100k */
    { CASED("(?i:" CONTRACTIONS ")?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" SPACES,
      ~(NEWLINE | L | N), L, true, false, AFTER_WORD, 3, ~(TR_TOK_WS | L | N), "\r\n/", true, true }, /* o200k */
    { CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+" SPACES, ~(NEWLINE | L | N), L, true, false,
      NONE, 1, ~(TR_TOK_WS | L | N), "\r\n/", true, true }, /* Mistral Tekken */
    { "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+" SPACES,
      ~(NEWLINE | L | P | S), L | M, false, true, NONE, 0, P | S, "\r\n", true, true }, /* DeepSeek 3 */
    { "\\p{N}{1,3}", 0, 0, false, false, NONE, 3, 0, "", false, false },
    { "\\p{N}", 0, 0, false, false, NONE, 1, 0, "", false, false },
};

/* Whether two patterns are equal. A line break may be written as itself or as an escape. */
static bool is_same(const char *pattern, const char *known)
{
    for (; *known; pattern++, known++) {
        if (known[0] == '\\' && ((known[1] == 'r' && *pattern == '\r') || (known[1] == 'n' && *pattern == '\n')))
            known++;
        else if (*pattern != *known)
            return false;
    }
    return *pattern == 0;
}

const struct tr_tok_scan *tr_tok_scan_of(const char *pattern)
{
    for (size_t i = 0; i < TR_COUNT_OF(scans); i++)
        if (is_same(pattern, scans[i].pattern))
            return &scans[i];
    return NULL;
}

bool tr_tok_scan_ends_words(const struct tr_tok_scan *s)
{
    return s->has_spaces;
}

struct text {
    const uint16_t *table;
    const char *p;
    size_t n;
};

/* The class bit of the character at i (i < n), and its length. */
static inline uint32_t at(const struct text *t, size_t i, size_t *len)
{
    uint32_t c = tr_utf8_get(t->p + i, t->n - i, len);
    return 1u << (tr_tok_cp(t->table, c) & TR_TOK_CLASS_MASK);
}

static inline size_t run(const struct text *t, size_t i, uint32_t classes)
{
    size_t len;
    while (i < t->n && at(t, i, &len) & classes)
        i += len;
    return i;
}

static inline bool is_at(const struct text *t, size_t i, uint32_t classes)
{
    size_t len;
    return i < t->n && at(t, i, &len) & classes;
}

/* The end of a contraction at i, or i when there is none. U+017F folds to s. */
static size_t contraction(const struct text *t, size_t i, bool any_case)
{
    const unsigned char *p = (const unsigned char *)t->p + i;
    size_t n = t->n - i;
    unsigned fold = any_case ? 0x20 : 0;
    if (n < 2 || p[0] != '\'')
        return i;
    unsigned a = p[1] | fold, b = n > 2 ? p[2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return i + 3;
    return any_case && n > 2 && p[1] == 0xC5 && p[2] == 0xBF ? i + 3 : i;
}

/* The end of [UPPER]*[LOWER]+ at i, or i. The greedy first part backtracks to a character that is in both classes and
 * can begin the second part. */
static size_t upper_lower(const struct text *t, size_t i)
{
    size_t len, k = i, end = i;
    uint32_t c;
    for (; k < t->n && (c = at(t, k, &len)) & UPPER; k += len)
        if (c & LOWER)
            end = k + len;
    size_t lower = run(t, k, LOWER);
    return lower > k ? lower : end;
}

static size_t cased_word(const struct tr_tok_scan *s, const struct text *t, size_t i, size_t after_lead)
{
    size_t end = i;
    if (after_lead > i && (end = upper_lower(t, after_lead)) == after_lead)
        end = i;
    if (end == i)
        end = upper_lower(t, i);
    if (end == i && after_lead > i && is_at(t, after_lead, UPPER))
        end = run(t, run(t, after_lead, UPPER), LOWER);
    if (end == i && is_at(t, i, UPPER))
        end = run(t, run(t, i, UPPER), LOWER);
    return end > i && s->contraction == AFTER_WORD ? contraction(t, end, true) : end;
}

static bool is_ascii_letter(char c)
{
    return ((unsigned char)c | 0x20) >= 'a' && ((unsigned char)c | 0x20) <= 'z';
}

static size_t ascii_word(const struct text *t, size_t i)
{
    unsigned char c = (unsigned char)t->p[i];
    size_t k = i + 1;
    if (c >= 0x80 || !(t->table[c] & TR_TOK_CP_PUNCT))
        return i;
    while (k < t->n && is_ascii_letter(t->p[k]))
        k++;
    return k > i + 1 ? k : i;
}

static size_t digits(const struct tr_tok_scan *s, const struct text *t, size_t i)
{
    size_t len;
    if (s->n_digits == UNLIMITED)
        return t->p[i] == ' ' && is_at(t, i + 1, N) ? run(t, i + 1, N) : run(t, i, N);
    for (int k = 0; k < s->n_digits && i < t->n && at(t, i, &len) & N; k++)
        i += len;
    return i;
}

static size_t punct(const struct tr_tok_scan *s, const struct text *t, size_t i)
{
    size_t from = t->p[i] == ' ' ? i + 1 : i, end = run(t, from, s->punct);
    if (end == from)
        return i;
    while (*s->tail && end < t->n && t->p[end] && strchr(s->tail, t->p[end]))
        end++;
    return end;
}

/* The end of the match of white space at i. There is at least one such character. */
static size_t spaces(const struct tr_tok_scan *s, const struct text *t, size_t i)
{
    size_t len = 0, end = i, last = i, newline = i; /* newline: the end of the last newline */
    uint32_t c;
    for (; end < t->n && (c = at(t, end, &len)) & TR_TOK_WS; end += len) {
        last = end;
        if (c & NEWLINE)
            newline = end + len;
    }
    if (s->has_newlines && newline > i)
        return newline;
    return end == t->n || last == i ? end : last; /* \s+(?!\S) leaves one for the next word */
}

/* The end of the match at i, or i. */
static size_t match(const struct tr_tok_scan *s, const struct text *t, size_t i)
{
    size_t len, end = i;
    uint32_t c = at(t, i, &len);
    if (s->contraction == FIRST || s->contraction == FIRST_ANY_CASE)
        end = contraction(t, i, s->contraction == FIRST_ANY_CASE);
    if (end == i && s->has_ascii_words)
        end = ascii_word(t, i);
    if (end == i && s->letter) {
        size_t after_lead = c & s->lead ? i + len : i;
        if (s->is_cased)
            end = cased_word(s, t, i, after_lead);
        else if (after_lead > i && is_at(t, after_lead, s->letter))
            end = run(t, after_lead, s->letter);
        else if (c & s->letter)
            end = run(t, i + len, s->letter);
    }
    if (end == i && s->n_digits)
        end = digits(s, t, i);
    if (end == i && s->punct)
        end = punct(s, t, i);
    if (end == i && s->has_spaces && c & TR_TOK_WS)
        end = spaces(s, t, i);
    return end;
}

bool tr_tok_scan_next(const struct tr_tok_scan *s, const uint16_t *table, const char *p, size_t n, size_t *i,
                      size_t *end)
{
    struct text t = { table, p, n };
    size_t len;
    for (; *i < n; *i += len) {
        *end = match(s, &t, *i);
        if (*end > *i)
            return true;
        (void)at(&t, *i, &len);
    }
    return false;
}
