/* unicode.c - a table with one row for each code point: its class and the properties that the tokenizers library uses.
 *
 * utf8proc gives categories and decompositions. unicode_tables.h corrects them to those of the library, because the ids
 * must equal those that a model was trained on, not those of the newest Unicode. The table ends where few characters
 * are assigned; the rows beyond it are computed.
 */
#include "token/token_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define X(name) C_##name = UTF8PROC_CATEGORY_##name
enum { X(CN), X(LU), X(LL), X(LT), X(LM), X(LO), X(MN), X(MC), X(ND), X(PO), X(SO) };
#undef X

struct range {
    uint32_t first, last;
    int32_t value;
};
#include "token/unicode_tables.h"

enum {
    LETTERS = 1 << UTF8PROC_CATEGORY_LU | 1 << UTF8PROC_CATEGORY_LL | 1 << UTF8PROC_CATEGORY_LT |
              1 << UTF8PROC_CATEGORY_LM | 1 << UTF8PROC_CATEGORY_LO,
    MARKS = 1 << UTF8PROC_CATEGORY_MN | 1 << UTF8PROC_CATEGORY_MC | 1 << UTF8PROC_CATEGORY_ME,
    NUMBERS = 1 << UTF8PROC_CATEGORY_ND | 1 << UTF8PROC_CATEGORY_NL | 1 << UTF8PROC_CATEGORY_NO,
    PUNCTS = 127 << UTF8PROC_CATEGORY_PC,
    OTHERS = 1 << UTF8PROC_CATEGORY_CC | 1 << UTF8PROC_CATEGORY_CF | 1 << UTF8PROC_CATEGORY_CO,
    WORDS = LETTERS | MARKS | 1 << UTF8PROC_CATEGORY_ND | 1 << UTF8PROC_CATEGORY_NL | 1 << UTF8PROC_CATEGORY_PC,
};
static_assert((int)UTF8PROC_CATEGORY_ZS == TR_TOK_CLASS_WS && (int)UTF8PROC_CATEGORY_ZL == TR_TOK_CLASS_NEWLINE &&
                  (int)UTF8PROC_CATEGORY_ZP == TR_TOK_CLASS_SPACE,
              "white space takes the classes of category Z, whose characters are all white space");
static_assert(UTF8PROC_CATEGORY_PO - UTF8PROC_CATEGORY_PC == 6, "seven categories of punctuation");

static bool is_ascii_punct(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/* The class of a category. White space, which is U+0009..000D, U+0085 and category Z, has classes of its own. */
static unsigned class_of(uint32_t c, unsigned category)
{
    if (c == '\n' || c == '\r')
        return TR_TOK_CLASS_NEWLINE;
    if (c == ' ')
        return TR_TOK_CLASS_SPACE;
    bool is_control_space = (c >= 0x9 && c <= 0xC) || c == 0x85;
    bool is_z = category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
    return is_control_space || is_z ? TR_TOK_CLASS_WS : category;
}

static unsigned properties_of(uint32_t c, unsigned category)
{
    unsigned flags = 0, bit = 1u << category;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    bool is_hangul = c >= 0xAC00 && c <= 0xD7A3;
    bool is_jamo = c >= 0x1161 && c <= 0x11FF; /* vowels and finals compose with the character before them */
    if (is_hangul || (p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0))
        flags |= TR_TOK_CP_CANON;
    else if (p->decomp_seqindex != UINT16_MAX)
        flags |= TR_TOK_CP_COMPAT;
    if (p->combining_class != 0 || bit & MARKS || is_jamo)
        flags |= TR_TOK_CP_JOINS;
    if (bit & PUNCTS || is_ascii_punct(c))
        flags |= TR_TOK_CP_PUNCT;
    if (bit & MARKS)
        flags |= TR_TOK_CP_MARK;
    if (category == UTF8PROC_CATEGORY_MN)
        flags |= TR_TOK_CP_MN;
    if (bit & OTHERS)
        flags |= TR_TOK_CP_OTHER;
    if (bit & WORDS)
        flags |= TR_TOK_CP_WORD;
    if (bit & NUMBERS)
        flags |= TR_TOK_CP_NUMERIC;
    return flags;
}

static void correct(uint16_t *table, const struct range *r, size_t n, unsigned flag)
{
    for (; n--; r++)
        for (uint32_t c = r->first; c <= r->last && c < TR_TOK_CP_TABLE; c++)
            table[c] = (uint16_t)(r->value ? table[c] | flag : table[c] & ~flag);
}

uint16_t *tr_tok_unicode_new(void)
{
    uint16_t *table = malloc(TR_TOK_CP_TABLE * sizeof *table);
    if (!table)
        return NULL;
    for (uint32_t c = 0; c < TR_TOK_CP_TABLE; c++)
        table[c] = (uint16_t)utf8proc_category((utf8proc_int32_t)c);
    for (size_t i = 0; i < TR_COUNT_OF(class_ranges); i++)
        for (uint32_t c = class_ranges[i].first; c <= class_ranges[i].last; c++)
            table[c] = (uint16_t)class_ranges[i].value;
    for (uint32_t c = 0; c < TR_TOK_CP_TABLE; c++)
        if (table[c] != UTF8PROC_CATEGORY_CN) /* unassigned: no property */
            table[c] = (uint16_t)(class_of(c, table[c]) | properties_of(c, table[c]));
#define CORRECT(ranges, flag) correct(table, ranges, TR_COUNT_OF(ranges), flag)
    CORRECT(numeric_ranges, TR_TOK_CP_NUMERIC);
    CORRECT(punct_ranges, TR_TOK_CP_PUNCT);
    CORRECT(mark_ranges, TR_TOK_CP_MARK);
    CORRECT(mn_ranges, TR_TOK_CP_MN);
    CORRECT(other_ranges, TR_TOK_CP_OTHER);
    CORRECT(word_ranges, TR_TOK_CP_WORD);
    CORRECT(inert_ranges, TR_TOK_CP_INERT);
#undef CORRECT
    return table;
}

uint16_t tr_tok_unicode_high(uint32_t c)
{
    unsigned category = c < TR_TOK_CP_INVALID ? (unsigned)utf8proc_category((utf8proc_int32_t)c) : UTF8PROC_CATEGORY_CN;
    return (uint16_t)(category | (c < TR_TOK_CP_INVALID ? properties_of(c, category) : 0));
}

uint32_t tr_tok_unicode_lower(uint32_t c)
{
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    for (size_t i = 0; i < TR_COUNT_OF(lower_ranges) && c >= lower_ranges[i].first; i++)
        if (c <= lower_ranges[i].last)
            return (uint32_t)((int32_t)c + lower_ranges[i].value);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

uint32_t tr_utf8_get_long(const char *p, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)p;
    *len = tr_utf8_len(p, n);
    switch (*len) {
    case 2:
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    case 3:
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    case 4:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
    default:
        *len = 1;
        return TR_TOK_CP_INVALID;
    }
}

size_t tr_utf8_put(uint32_t c, char out[4])
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

size_t tr_utf8_before(const char *p, size_t at)
{
    size_t i = at - 1;
    for (int k = 0; k < 3 && i > 0 && ((unsigned char)p[i] & 0xC0) == 0x80; k++)
        i--;
    return i;
}

bool tr_utf8_is_valid(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint64_t word;
        if (n - i >= sizeof word) {
            memcpy(&word, p + i, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                i += sizeof word;
                continue;
            }
        }
        size_t len = tr_utf8_len(p + i, n - i);
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

uint32_t tr_tok_byte_char(unsigned b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255))
        return b;
    if (b <= 32)
        return 256 + b;
    return b == 173 ? 256 + 67 : 256 + 33 + (b - 127); /* 127..160 follow 0..32; 173 is the last */
}

int tr_tok_byte_of_char(uint32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255))
        return (int)c;
    if (c < 256 || c > 256 + 67)
        return -1;
    c -= 256;
    return c <= 32 ? (int)c : c == 67 ? 173 : (int)c - 33 + 127;
}
