/* utf8.c - see utf8.h. Table: Unicode 15, table 3-7 (well-formed byte sequences). */
#include "token/utf8.h"

/* The length of the sequence, or of the maximal invalid piece, at the start of s. *is_cut: the sequence is legal so
 * far, but the text ends inside it. */
static size_t step(const unsigned char *s, size_t n, bool *is_valid, bool *is_cut)
{
    unsigned c = s[0], lo = 0x80, hi = 0xBF;
    size_t need = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    *is_valid = *is_cut = false;
    if (need == 0)
        return 1;
    if (c == 0xE0)
        lo = 0xA0; /* shorter forms exist below */
    else if (c == 0xED)
        hi = 0x9F; /* surrogates above */
    else if (c == 0xF0)
        lo = 0x90;
    else if (c == 0xF4)
        hi = 0x8F; /* beyond U+10FFFF */
    for (size_t i = 1; i < need; i++) {
        if (i == n) {
            *is_cut = true;
            return i;
        }
        if (s[i] < lo || s[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xBF;
    }
    *is_valid = true;
    return need;
}

void tr_utf8_clean(const char *text, size_t n, bool is_last, struct tr_str *out, size_t *n_used)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t good = 0, i = 0; /* [good, i) is valid and not yet copied */
    while (i < n) {
        bool is_valid, is_cut;
        size_t k = step(s + i, n - i, &is_valid, &is_cut);
        if (!is_valid) {
            tr_str_add(out, text + good, i - good);
            good = i;
            if (is_cut && !is_last)
                break;
            tr_str_add(out, "\xEF\xBF\xBD", 3);
            good = i + k;
        }
        i += k;
    }
    if (i == n)
        tr_str_add(out, text + good, n - good);
    *n_used = i;
}
