/* charsmap.c - SentencePiece's precompiled character map (normalizer "Precompiled").
 *
 * The blob is a darts double array, followed by zero-terminated texts; the values of the array are offsets into these.
 * As in the library, the text is read by grapheme clusters. A cluster of less than six bytes is looked up as a whole,
 * and the shortest key that is a prefix of it wins. Other clusters are looked up character by character. The blob
 * comes from a file, so every step of a lookup is checked against its end.
 */
#include "token/token_impl.h"

#include <string.h>
#include <utf8proc.h>

enum { GRAPHEME_MAX = 6 };

struct map {
    const char *units, *texts;
    size_t n_units, n_texts;
};

static uint32_t load32(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

static struct map map_of(const char *blob, size_t n)
{
    size_t n_trie = load32(blob);
    return (struct map){ blob + 4, blob + 4 + n_trie, n_trie / 4, n - 4 - n_trie };
}

enum tr_status tr_tok_charsmap_check(const char *blob, size_t n)
{
    if (n < 4 || load32(blob) > n - 4 || load32(blob) % 4 != 0 || load32(blob) == 0)
        return tr_fail(TR_USAGE, "precompiled_charsmap is shorter than its size field says");
    struct map m = map_of(blob, n);
    if (m.n_texts == 0 || m.texts[m.n_texts - 1] != 0)
        return tr_fail(TR_USAGE, "precompiled_charsmap does not end with a zero byte");
    if (!tr_utf8_is_valid(m.texts, m.n_texts))
        return tr_fail(TR_USAGE, "precompiled_charsmap holds text that is not UTF-8");
    return TR_OK;
}

static bool unit_at(const struct map *m, size_t i, uint32_t *unit)
{
    if (i >= m->n_units)
        return false;
    *unit = load32(m->units + 4 * i);
    return true;
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The text for the shortest key that is a prefix of [p, p + n), or NULL. */
static const char *lookup(const struct map *m, const char *p, size_t n)
{
    uint32_t unit;
    size_t node = 0;
    if (!unit_at(m, 0, &unit))
        return NULL;
    node ^= offset_of(unit);
    for (size_t i = 0; i < n && p[i]; i++) {
        unsigned char c = (unsigned char)p[i];
        node ^= c;
        if (!unit_at(m, node, &unit) || (unit & (1u << 31 | 0xFF)) != c)
            return NULL;
        node ^= offset_of(unit);
        if (unit >> 8 & 1) {
            if (!unit_at(m, node, &unit) || (unit & INT32_MAX) >= m->n_texts)
                return NULL;
            return m->texts + (unit & INT32_MAX);
        }
    }
    return NULL;
}

static void put_cluster(const struct map *m, const char *p, size_t n, struct tr_str *out)
{
    const char *to = n < GRAPHEME_MAX ? lookup(m, p, n) : NULL;
    if (to) {
        tr_str_add(out, to, strlen(to));
        return;
    }
    for (size_t i = 0, len; i < n; i += len) {
        (void)tr_utf8_get(p + i, n - i, &len);
        to = lookup(m, p + i, len);
        tr_str_add(out, to ? to : p + i, to ? strlen(to) : len);
    }
}

void tr_tok_charsmap_apply(const struct tr_tok_norm *x, const char *p, size_t n, size_t most, struct tr_str *out)
{
    struct map m = map_of(x->text, x->n);
    utf8proc_int32_t state = 0;
    uint32_t c = 0, next;
    for (size_t begin = 0, i = 0, len; i < n && out->n <= most; i += len, c = next) {
        next = tr_utf8_get(p + i, n - i, &len);
        if (i > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) {
            put_cluster(&m, p + begin, i - begin, out);
            begin = i;
        }
        if (i + len == n)
            put_cluster(&m, p + begin, n - begin, out);
    }
}
