/* regex.c - patterns of a tokenizer.json: literal texts, hand-written scanners, or PCRE2 with limits.
 *
 * The library's engine is Oniguruma with Ruby syntax. Where Ruby and PCRE2 write the same thing differently (\s, \w,
 * \uXXXX), the pattern is rewritten. Where the same text has two meanings (\h, \b, }+, nested classes, &&), the pattern
 * is refused with the name of the feature, because nearly the same ids are wrong ids. A pattern that backtracks without
 * end fails with an error. Work is counted, never time, so that the same text gives the same result on any machine: a
 * start position may take EASY steps for nothing; where that is not enough, positions are tried one by one, and each
 * try takes what it may need from the thread's allowance (base/work.h). Rejected: a clock, which a pause of the process
 * runs down.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/token_parts.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATTERN_MAX = 1 << 16,
    EASY = 1000,               /* backtracks from one start that are free: the work is linear in the text */
    HARDER = 10,               /* a start that needs more gets so many times as much */
    MATCH_LIMIT = 1000 * 1000, /* backtracks from one start at most */
    WINDOW = 512,              /* start positions of one call */
    HEAP_LIMIT_KIB = 64 << 10,
    JIT_STACK_MIN = 32 << 10,
    JIT_STACK_MAX = 4 << 20,
};

struct tr_tok_matcher {
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

/* ---- from Ruby syntax to that of PCRE2 ---- */

#define WS_CLASS                                                                                                       \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_WS_CLASS                                                                                                   \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD_CLASS                                                                                                     \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"                         \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

static enum tr_status refuse(const char *pattern, const char *what)
{
    char buf[128];
    return tr_fail(TR_USAGE, "the pattern \"%s\" uses %s, which is not supported", tr_escape(pattern, buf, sizeof buf),
                   what);
}

static bool is_letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Rewrites the escape at p[0] = '\\'. */
static enum tr_status rewrite_escape(const char *pattern, const char **pp, bool in_class, struct tr_str *out)
{
    const char *p = *pp;
    char c = p[1], name[3] = { '\\', c, 0 };
    *pp = p + 2;
    if (c == 's' || c == 'w') {
        tr_str_addf(out, in_class ? "%s" : "[%s]", c == 's' ? WS_CLASS : WORD_CLASS);
    } else if (c == 'S') {
        tr_str_addf(out, in_class ? "%s" : "[%s]", NOT_WS_CLASS);
    } else if (c == 'W' && !in_class) {
        tr_str_addf(out, "[^%s]", WORD_CLASS);
    } else if (c == 'u' && strspn(p + 2, "0123456789abcdefABCDEF") >= 4) {
        tr_str_addf(out, "\\x{%.4s}", p + 2);
        *pp = p + 6;
    } else if (is_letter_or_digit(c) ? !strchr("pPdDrntfaexAzZ", c) : c == 0) {
        return refuse(pattern, name);
    } else {
        const char *brace = strchr("pPx", c) && p[2] == '{' ? strchr(p, '}') : NULL; /* \p{L}, \x{20} */
        *pp = brace ? brace + 1 : p + 2;
        tr_str_add(out, p, (size_t)(*pp - p));
    }
    return TR_OK;
}

/* Whether p is not at a group, or at a group that means the same in both syntaxes. */
static bool is_plain_group(const char *p)
{
    static const char *const plain[] = { "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>" };
    if (p[0] != '(' || (p[1] != '?' && p[1] != '*'))
        return true;
    for (size_t i = 0; i < TR_COUNT_OF(plain); i++)
        if (strncmp(p, plain[i], strlen(plain[i])) == 0)
            return true;
    return false;
}

static enum tr_status rewrite(const char *pattern, struct tr_str *out)
{
    bool in_class = false;
    const char *class_start = NULL;
    for (const char *p = pattern; *p;) {
        enum tr_status st = TR_OK;
        if (*p == '\\') {
            if ((st = rewrite_escape(pattern, &p, in_class, out)) != TR_OK)
                return st;
            continue;
        }
        if (in_class && *p == '[')
            return refuse(pattern, "a class inside a class");
        if (in_class && p[0] == '&' && p[1] == '&')
            return refuse(pattern, "&&");
        if (!in_class && !is_plain_group(p))
            return refuse(pattern, "a group other than (, (?:, (?i:, (?=, (?!, (?<=, (?<!, (?>");
        if (!in_class && (strncmp(p, "}+", 2) == 0 || strncmp(p, "{,", 2) == 0))
            return refuse(pattern, "}+ or {,");
        if (*p == '[' && !in_class) {
            in_class = true;
            class_start = p + 1 + (p[1] == '^');
        } else if (*p == ']' && in_class && p != class_start) {
            in_class = false;
        }
        tr_str_add(out, p++, 1);
    }
    return tr_str_check(out, "a pattern");
}

static enum tr_status compile(const char *pattern, struct tr_tok_regex *out)
{
    enum tr_status st = TR_OK;
    struct tr_str s = { 0 };
    int error = 0;
    PCRE2_SIZE where = 0;
    TR_TRY(rewrite(pattern, &s));
    /* Ruby's ^ and $ match at every line; case folding and classes are Unicode's */
    out->code = pcre2_compile((PCRE2_SPTR)s.p, s.n,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_USE_OFFSET_LIMIT,
                              &error, &where, NULL);
    if (!out->code) {
        char why[128], buf[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        TR_TRY(tr_fail(TR_USAGE, "the pattern \"%s\" is not accepted: %s", tr_escape(pattern, buf, sizeof buf), why));
    }
    (void)pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE); /* a system that forbids it interprets the pattern */
out:
    tr_str_release(&s);
    return st;
}

enum tr_status tr_tok_regex_open(const char *pattern, struct tr_tok_regex *out)
{
    *out = (struct tr_tok_regex){ .scan = tr_tok_scan_of(pattern) };
    if (out->scan)
        return TR_OK;
    if (strlen(pattern) > PATTERN_MAX)
        return tr_fail(TR_USAGE, "a pattern is longer than %d bytes", PATTERN_MAX);
    return compile(pattern, out);
}

void tr_tok_regex_close(struct tr_tok_regex *r)
{
    pcre2_code_free(r->code);
    *r = (struct tr_tok_regex){ 0 };
}

/* ---- matching ---- */

enum tr_status tr_tok_matcher_open(struct tr_tok_matcher **out)
{
    struct tr_tok_matcher *m = NULL;
    TR_PASS(TR_ALLOC(m, 1, "a pattern matcher"));
    m->context = pcre2_match_context_create(NULL);
    m->data = pcre2_match_data_create(1, NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!m->context || !m->data || !m->stack) {
        tr_tok_matcher_close(m);
        return tr_fail(TR_NOMEM, "no memory for a pattern matcher");
    }
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return TR_OK;
}

void tr_tok_matcher_close(struct tr_tok_matcher *m)
{
    if (!m)
        return;
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static enum tr_status match_failed(int rc)
{
    char why[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    return tr_fail(TR_USAGE, "a pattern of the tokenizer gave up on this text: %s", why);
}

static size_t next_char(const char *p, size_t n, size_t i)
{
    size_t len = 1;
    if (i < n)
        (void)tr_utf8_get(p + i, n - i, &len);
    return i + len;
}

static int match(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const char *p, size_t n, size_t from,
                 size_t to, int limit)
{
    pcre2_set_offset_limit(m->context, to);
    pcre2_set_match_limit(m->context, (uint32_t)limit);
    return pcre2_match(r->code, (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
}

/* A window in which some start is hard: one start after the other, with more and more work. */
static int match_hard(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const char *p, size_t n, size_t from,
                      size_t to)
{
    int rc = PCRE2_ERROR_NOMATCH;
    for (; from <= to && rc == PCRE2_ERROR_NOMATCH; from = next_char(p, n, from)) {
        rc = match(r, m, p, n, from, from, EASY);
        for (int limit = EASY * HARDER; rc == PCRE2_ERROR_MATCHLIMIT && limit <= MATCH_LIMIT; limit *= HARDER) {
            if (!tr_work_take(limit))
                return rc;
            rc = match(r, m, p, n, from, from, limit);
        }
    }
    return rc;
}

/* Finds the next match at or after `from`; *found is false when there is none. An empty match at the end of the last
 * match does not count. PCRE2 bounds the work of one start position only, so each call tries a window of them. */
static enum tr_status next_match(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const char *p, size_t n,
                                 size_t from, size_t last_end, size_t *begin, size_t *end, bool *found)
{
    *found = false;
    while (from <= n) {
        size_t limit = n - from > WINDOW ? tr_utf8_before(p, from + WINDOW) : n;
        int rc = match(r, m, p, n, from, limit, EASY);
        if (rc == PCRE2_ERROR_MATCHLIMIT)
            rc = match_hard(r, m, p, n, from, limit);
        if (tr_work_left() == 0)
            return tr_fail(TR_USAGE, "a pattern of the tokenizer gave up on this text: too much work for %zu bytes", n);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
            return match_failed(rc);
        if (rc == PCRE2_ERROR_NOMATCH) {
            from = next_char(p, n, limit);
            continue;
        }
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        if (at[1] > at[0] || at[1] != last_end) {
            *begin = at[0];
            *end = at[1];
            *found = true; /* begin <= end, because \K is refused */
            return TR_OK;
        }
        from = next_char(p, n, from);
    }
    return TR_OK;
}

static enum tr_status split_pcre2(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const char *p, size_t n,
                                  size_t base, struct tr_tok_spans *out)
{
    size_t prev = 0, last_end = SIZE_MAX, begin = 0, end = 0;
    bool found = true;
    while (true) {
        TR_PASS(next_match(r, m, p, n, last_end == SIZE_MAX ? 0 : last_end, last_end, &begin, &end, &found));
        if (!found)
            break;
        if (prev != begin)
            TR_PASS(tr_tok_spans_add(out, base + prev, base + begin, false));
        TR_PASS(tr_tok_spans_add(out, base + begin, base + end, true));
        prev = last_end = end;
    }
    if (prev != n)
        TR_PASS(tr_tok_spans_add(out, base + prev, base + n, false));
    return TR_OK;
}

static enum tr_status split_scan(const struct tr_tok_regex *r, const uint16_t *table, const char *p, size_t n,
                                 size_t base, struct tr_tok_spans *out)
{
    size_t prev = 0, begin = 0, end;
    while (tr_tok_scan_next(r->scan, table, p, n, &begin, &end)) {
        if (prev != begin)
            TR_PASS(tr_tok_spans_add(out, base + prev, base + begin, false));
        TR_PASS(tr_tok_spans_add(out, base + begin, base + end, true));
        prev = begin = end;
    }
    if (prev != n)
        TR_PASS(tr_tok_spans_add(out, base + prev, base + n, false));
    return TR_OK;
}

enum tr_status tr_tok_regex_split(const struct tr_tok_regex *r, struct tr_tok_matcher *m, const uint16_t *table,
                                  const char *p, size_t begin, size_t end, struct tr_tok_spans *out)
{
    if (r->scan)
        return split_scan(r, table, p + begin, end - begin, begin, out);
    return split_pcre2(r, m, p + begin, end - begin, begin, out);
}

/* ---- patterns ---- */

void tr_tok_pattern_release(struct tr_tok_pattern *x)
{
    free(x->text);
    tr_tok_regex_close(&x->re);
    *x = (struct tr_tok_pattern){ 0 };
}

enum tr_status tr_tok_pattern_split(const struct tr_tok_pattern *x, struct tr_tok_matcher *m, const uint16_t *table,
                                    const char *p, size_t begin, size_t end, struct tr_tok_spans *out)
{
    if (x->is_regex)
        return tr_tok_regex_split(&x->re, m, table, p, begin, end, out);
    size_t prev = begin;
    while (x->n > 0 && prev < end) {
        const char *found = memmem(p + prev, end - prev, x->text, x->n);
        if (!found)
            break;
        size_t at = (size_t)(found - p);
        if (at > prev)
            TR_PASS(tr_tok_spans_add(out, prev, at, false));
        TR_PASS(tr_tok_spans_add(out, at, at + x->n, true));
        prev = at + x->n;
    }
    if (prev < end)
        TR_PASS(tr_tok_spans_add(out, prev, end, false));
    return TR_OK;
}
