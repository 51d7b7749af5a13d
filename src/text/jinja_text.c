/* jinja_text.c - characters of UTF-8 strings with Python's meaning: white space, letter case, counting.
 *
 * Python's case tables are not rebuilt here. upper, lower, title and capitalize refuse a letter above ASCII that has
 * case, because a nearly right letter is a wrong token. Letters of scripts without case are accepted.
 */
#include "text/jinja_impl.h"

size_t tr_jinja_char_len(const char *p, size_t n)
{
    size_t len = tr_utf8_len(p, n);
    return len ? len : 1;
}

uint32_t tr_jinja_char(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    size_t len = tr_utf8_len(p, n);
    if (len < 2)
        return u[0];
    uint32_t c = u[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        c = c << 6 | (u[i] & 0x3fu);
    return c;
}

size_t tr_jinja_put_char(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80u | (c & 0x3fu));
    out[0] = (char)((0xf00u >> n) | c);
    return n;
}

/* str.isspace, and \s of Python's regular expressions. */
bool tr_jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t tr_jinja_n_chars(struct tr_jinja_str *s)
{
    if (s->n_chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; n++)
            i += tr_jinja_char_len(s->p + i, s->n - i);
        s->n_chars = n;
    }
    return s->n_chars;
}

size_t tr_jinja_byte_of(const struct tr_jinja_str *s, size_t i_char)
{
    if (s->n_chars == s->n)
        return i_char < s->n ? i_char : s->n;
    size_t i = 0;
    while (i < s->n && i_char-- > 0)
        i += tr_jinja_char_len(s->p + i, s->n - i);
    return i;
}

static bool is_stripped(const char *p, size_t n, const struct tr_jinja_str *chars)
{
    if (!chars)
        return tr_jinja_is_space(tr_jinja_char(p, n));
    return n > 0 &&
           memmem(chars->p, chars->n, p, n) != NULL; /* p is a whole character, and UTF-8 has no false matches */
}

void tr_jinja_strip(const char **p, size_t *n, const struct tr_jinja_str *chars, bool left, bool right)
{
    while (left && *n > 0) {
        size_t len = tr_jinja_char_len(*p, *n);
        if (!is_stripped(*p, len, chars))
            break;
        *p += len;
        *n -= len;
    }
    while (right && *n > 0) {
        size_t len = 1;
        while (len < *n && len < 4 && ((unsigned char)(*p)[*n - len] & 0xc0) == 0x80)
            len++;
        if (tr_utf8_len(*p + *n - len, len) != len)
            len = 1;
        if (!is_stripped(*p + *n - len, len, chars))
            break;
        *n -= len;
    }
}

/* Blocks above ASCII in which no character has case. The script that writes the golden files checks them against
 * Python's tables. */
static const struct {
    uint32_t first, last;
} caseless[] = {
    { 0x0080, 0x00a9 }, { 0x00ab, 0x00b4 }, { 0x00b6, 0x00b9 },   { 0x00bb, 0x00bf },   { 0x00d7, 0x00d7 },
    { 0x00f7, 0x00f7 }, { 0x0590, 0x109f }, { 0x1100, 0x139f },   { 0x1400, 0x1c7f },   { 0x2000, 0x2070 },
    { 0x20a0, 0x2101 }, { 0x2190, 0x24b5 }, { 0x24ea, 0x2bff },   { 0x2e00, 0xa63f },   { 0xac00, 0xfaff },
    { 0xfb20, 0xff20 }, { 0xff5b, 0xfffd }, { 0x1f000, 0x1f12f }, { 0x1f190, 0x1fbff }, { 0x20000, 0x3ffff },
};

bool tr_jinja_has_case(uint32_t c)
{
    for (size_t i = 0; i < TR_COUNT_OF(caseless); i++)
        if (c >= caseless[i].first && c <= caseless[i].last)
            return false;
    return c >= 0x80;
}

struct tr_jinja_val tr_jinja_case(struct tr_jinja_eval *e, const struct tr_jinja_str *s, enum tr_jinja_letter_case how)
{
    char *out = tr_jinja_get(e, s->n + 1);
    bool in_word = false;
    for (size_t i = 0; out && i < s->n;) {
        size_t len = tr_jinja_char_len(s->p + i, s->n - i);
        uint32_t c = tr_jinja_char(s->p + i, s->n - i);
        bool is_lower = c >= 'a' && c <= 'z', is_upper = c >= 'A' && c <= 'Z';
        if (tr_jinja_has_case(c))
            return tr_jinja_fail(e, "changing the case of U+%04X is not supported; only ASCII letters have case here",
                                 (unsigned)c);
        bool up = how == CASE_UPPER || (how == CASE_TITLE && !in_word) || (how == CASE_CAPITAL && i == 0);
        memcpy(out + i, s->p + i, len);
        if (up && is_lower)
            out[i] = (char)(c - 'a' + 'A');
        else if (!up && is_upper)
            out[i] = (char)(c - 'A' + 'a');
        in_word = is_lower || is_upper;
        i += len;
    }
    struct tr_jinja_val v = tr_jinja_str_ref(e, out ? out : "", out ? s->n : 0);
    v.s->is_safe = s->is_safe;
    return v;
}

/* str.replace; max < 0: replaces all. */
struct tr_jinja_val tr_jinja_replace(struct tr_jinja_eval *e, const struct tr_jinja_str *s,
                                     const struct tr_jinja_str *from, const struct tr_jinja_str *to, int64_t max)
{
    struct tr_str out = { 0 };
    size_t i = 0;
    while (max != 0 && tr_jinja_step(e, 1) && out.n <= TR_JINJA_MAX_OUTPUT) {
        const char *hit = memmem(s->p + i, s->n - i, from->p, from->n);
        if (!hit)
            break;
        size_t at = (size_t)(hit - s->p);
        tr_str_add(&out, s->p + i, at - i);
        tr_str_add(&out, to->p, to->n);
        max--;
        i = at + from->n;
        if (from->n > 0)
            continue;
        if (i == s->n) /* an empty `from` matches before each character and at the end */
            break;
        size_t len = tr_jinja_char_len(s->p + i, s->n - i);
        tr_str_add(&out, s->p + i, len);
        i += len;
    }
    tr_str_add(&out, s->p + i, s->n - i);
    tr_jinja_check_length(e, "replace", out.n);
    return tr_jinja_str_take(e, &out);
}

void tr_jinja_check_length(struct tr_jinja_eval *e, const char *what, size_t n)
{
    if (n > TR_JINJA_MAX_OUTPUT)
        tr_jinja_fail(e, "%s: the result is larger than %d MiB, which is the limit", what, TR_JINJA_MAX_OUTPUT >> 20);
}
