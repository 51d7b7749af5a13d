/* st_header.c - the safetensors header parser: untrusted text -> checked tensor table.
 *
 * The header is one fixed shape of JSON, so it is read by a hand-written scanner without recursion and without a tree:
 * a general JSON tree would cost ten times the text. Memory: the text + 112 bytes per tensor, each of which needs 50
 * bytes of text, so < 4 x the text; time n log n for two sorts. Strings are unescaped in place.
 * Stricter than the reference reader: no duplicate or unknown keys anywhere, names <= 1 KiB without control bytes and
 * without "..", <= 8 dims, <= 1 M tensors, <= 4096 metadata pairs, integers in plain digits.
 */
#include "ckpt/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_METADATA = 4096, MIN_ENTRY = sizeof("\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}") - 1 };

static const struct file_dtype {
    const char *name;
    unsigned bits;
    enum tr_dtype dtype;
} file_dtypes[] = {
#define X(id, bits, st_name, name, codec) { st_name, bits, TR_##id },
    TR_DTYPE_LIST(X)
#undef X
        { "BOOL", 8, TR_DTYPE_COUNT },
    { "I16", 16, TR_DTYPE_COUNT },
    { "U16", 16, TR_DTYPE_COUNT },
    { "U32", 32, TR_DTYPE_COUNT },
    { "U64", 64, TR_DTYPE_COUNT },
    { "C64", 64, TR_DTYPE_COUNT },
    { "F8_E8M0", 8, TR_DTYPE_COUNT },
    { "F8_E4M3FNUZ", 8, TR_DTYPE_COUNT },
    { "F8_E5M2FNUZ", 8, TR_DTYPE_COUNT },
    { "F6_E2M3", 6, TR_DTYPE_COUNT },
    { "F6_E3M2", 6, TR_DTYPE_COUNT },
    { "F4", 4, TR_DTYPE_COUNT },
};

struct cursor {
    char *start, *p, *end;
};

static enum tr_status bad(const struct cursor *c, const char *what)
{
    return tr_fail(TR_USAGE, "header byte %zu: %s", (size_t)(c->p - c->start), what);
}

static void skip_blanks(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool next_is(struct cursor *c, char ch)
{
    skip_blanks(c);
    if (c->p == c->end || *c->p != ch)
        return false;
    c->p++;
    return true;
}

static enum tr_status expect(struct cursor *c, char ch)
{
    char what[] = "expected 'x'";
    what[10] = ch;
    return next_is(c, ch) ? TR_OK : bad(c, what);
}

static bool hex4(const char *p, uint32_t *out)
{
    uint32_t u = 0;
    for (int i = 0; i < 4; i++) {
        char ch = p[i];
        int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
        if (digit < 0)
            return false;
        u = u << 4 | (uint32_t)digit;
    }
    *out = u;
    return true;
}

static char *put_utf8(char *w, uint32_t u)
{
    if (u < 0x80) {
        *w++ = (char)u;
    } else if (u < 0x800) {
        *w++ = (char)(0xc0 | u >> 6);
        *w++ = (char)(0x80 | (u & 0x3f));
    } else if (u < 0x10000) {
        *w++ = (char)(0xe0 | u >> 12);
        *w++ = (char)(0x80 | (u >> 6 & 0x3f));
        *w++ = (char)(0x80 | (u & 0x3f));
    } else {
        *w++ = (char)(0xf0 | u >> 18);
        *w++ = (char)(0x80 | (u >> 12 & 0x3f));
        *w++ = (char)(0x80 | (u >> 6 & 0x3f));
        *w++ = (char)(0x80 | (u & 0x3f));
    }
    return w;
}

/* Cursor behind the backslash. Never longer than its escape: at most 4 bytes from 12, 3 from 6, 1 from 2. */
static enum tr_status escape(struct cursor *c, char **w)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->p == c->end)
        return bad(c, "string does not end");
    const char *at = *c->p ? strchr(from, *c->p) : NULL;
    if (at) {
        *(*w)++ = to[at - from];
        c->p++;
        return TR_OK;
    }
    uint32_t u, low;
    if (*c->p != 'u' || c->end - c->p < 5 || !hex4(c->p + 1, &u))
        return bad(c, "unknown escape");
    c->p += 5;
    if (u >= 0xd800 && u < 0xdc00 && c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u' && hex4(c->p + 2, &low) &&
        low >= 0xdc00 && low < 0xe000) {
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
        c->p += 6;
    }
    if (u == 0 || (u >= 0xd800 && u < 0xe000))
        return bad(c, u ? "lone surrogate" : "NUL in a string");
    *w = put_utf8(*w, u);
    return TR_OK;
}

/* Bytes of the well-formed UTF-8 sequence at p (Unicode table 3-7), 0 when there is none. */
static size_t utf8_length(const char *p, const char *end)
{
    const unsigned char *s = (const unsigned char *)p;
    unsigned char a = s[0], lo = 0x80, hi = 0xbf;
    size_t n = a < 0x80 ? 1 : a >= 0xc2 && a <= 0xdf ? 2 : a >= 0xe0 && a <= 0xef ? 3 : a >= 0xf0 && a <= 0xf4 ? 4 : 0;
    if (n == 0 || (size_t)(end - p) < n)
        return 0;
    lo = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : lo;
    hi = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : hi;
    for (size_t i = 1; i < n; i++, lo = 0x80, hi = 0xbf)
        if (s[i] < lo || s[i] > hi)
            return 0;
    return n;
}

/* A JSON string, unescaped where it stands and NUL-terminated over its closing quote or before it. */
static enum tr_status string(struct cursor *c, char **out)
{
    TR_PASS(expect(c, '"'));
    char *first = c->p, *w = c->p;
    while (c->p < c->end && *c->p != '"') {
        if (*c->p == '\\') {
            c->p++;
            TR_PASS(escape(c, &w));
            continue;
        }
        size_t n = (unsigned char)*c->p < 0x20 ? 0 : utf8_length(c->p, c->end);
        if (n == 0)
            return bad(c, "control byte or invalid utf-8 in a string");
        if (w != c->p)
            memmove(w, c->p, n);
        w += n;
        c->p += n;
    }
    if (c->p == c->end)
        return bad(c, "string does not end");
    c->p++;
    *w = '\0';
    *out = first;
    return TR_OK;
}

static enum tr_status integer(struct cursor *c, uint64_t max, uint64_t *out)
{
    skip_blanks(c);
    const char *first = c->p;
    uint64_t u = 0;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++) {
        uint64_t digit = (uint64_t)(*c->p - '0');
        if (u > (max - digit) / 10)
            return bad(c, "integer too large");
        u = u * 10 + digit;
    }
    bool is_plain = c->p > first && (*first != '0' || c->p - first == 1);
    if (!is_plain || (c->p < c->end && strchr(".eE", *c->p) && *c->p))
        return bad(c, "expected a non-negative integer in plain digits");
    *out = u;
    return TR_OK;
}

static enum tr_status dtype(struct cursor *c, struct tr_st_tensor *t, unsigned *out_bits)
{
    char *name, text[40];
    TR_PASS(string(c, &name));
    for (size_t i = 0; i < TR_COUNT_OF(file_dtypes); i++) {
        if (strcmp(file_dtypes[i].name, name) == 0) {
            t->dtype = file_dtypes[i].dtype;
            t->dtype_name = file_dtypes[i].name;
            *out_bits = file_dtypes[i].bits;
            return TR_OK;
        }
    }
    return tr_fail(TR_USAGE, "header byte %zu: unknown dtype \"%s\"", (size_t)(c->p - c->start),
                   tr_escape(name, text, sizeof text));
}

static enum tr_status shape(struct cursor *c, struct tr_st_tensor *t)
{
    TR_PASS(expect(c, '['));
    if (next_is(c, ']'))
        return TR_OK;
    do {
        uint64_t dim;
        if (t->n_dims == TR_ST_MAX_DIMS)
            return bad(c, "more than 8 dims");
        TR_PASS(integer(c, INT64_MAX, &dim));
        t->dims[t->n_dims++] = (int64_t)dim;
    } while (next_is(c, ','));
    return expect(c, ']');
}

static enum tr_status data_offsets(struct cursor *c, struct tr_st_tensor *t)
{
    TR_PASS(expect(c, '['));
    TR_PASS(integer(c, UINT64_MAX, &t->begin));
    TR_PASS(expect(c, ','));
    TR_PASS(integer(c, UINT64_MAX, &t->end));
    return expect(c, ']');
}

static enum tr_status check_size(struct tr_st_tensor *t, unsigned bits, uint64_t data_bytes)
{
    if (t->begin > t->end || t->end > data_bytes)
        return tr_fail(TR_USAGE, "data_offsets [%" PRIu64 ", %" PRIu64 "] outside the %" PRIu64 " data bytes", t->begin,
                       t->end, data_bytes);
    size_t n = 1, n_bits;
    bool fits = true;
    for (int d = 0; d < t->n_dims && fits; d++)
        fits = tr_mul_size(n, (size_t)t->dims[d], &n);
    if (!fits || !tr_mul_size(n, bits, &n_bits))
        return tr_fail(TR_USAGE, "shape overflows 64 bits");
    if (n_bits % 8 != 0 || n_bits / 8 != t->end - t->begin)
        return tr_fail(TR_USAGE, "%zu elements of %s do not fill the %" PRIu64 " bytes of data_offsets", n,
                       t->dtype_name, t->end - t->begin);
    t->n_elems = n;
    return TR_OK;
}

static enum tr_status tensor(struct cursor *c, uint64_t data_bytes, struct tr_st_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0, bits = 0;
    TR_PASS(expect(c, '{'));
    do {
        char *key;
        TR_PASS(string(c, &key));
        unsigned one = strcmp(key, "dtype") == 0          ? DTYPE
                       : strcmp(key, "shape") == 0        ? SHAPE
                       : strcmp(key, "data_offsets") == 0 ? OFFSETS
                                                          : 0;
        if (one == 0 || (seen & one))
            return bad(c, one ? "key given twice" : "unknown key; a tensor has dtype, shape and data_offsets");
        seen |= one;
        TR_PASS(expect(c, ':'));
        TR_PASS(one == DTYPE ? dtype(c, t, &bits) : one == SHAPE ? shape(c, t) : data_offsets(c, t));
    } while (next_is(c, ','));
    TR_PASS(expect(c, '}'));
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return bad(c, "dtype, shape or data_offsets missing");
    TR_PASS(check_size(t, bits, data_bytes));
    return TR_OK;
}

static bool name_is_sane(const char *name)
{
    if (strlen(name) > TR_ST_MAX_NAME || strstr(name, ".."))
        return false;
    for (; *name; name++)
        if ((unsigned char)*name < 0x20 || *name == 0x7f)
            return false;
    return true;
}

static enum tr_status metadata(struct cursor *c, struct tr_st_header *h)
{
    TR_PASS(expect(c, '{'));
    if (next_is(c, '}'))
        return TR_OK;
    size_t n_cap = 0;
    do {
        if (h->n_metadata == MAX_METADATA)
            return bad(c, "more than 4096 metadata pairs");
        TR_PASS(TR_ROOM(h->metadata, h->n_metadata + 1, &n_cap, "%zu metadata pairs", h->n_metadata + 1));
        char *key, *value;
        TR_PASS(string(c, &key));
        TR_PASS(expect(c, ':'));
        TR_PASS(string(c, &value));
        h->metadata[h->n_metadata++] = (struct tr_st_pair){ key, value };
    } while (next_is(c, ','));
    return expect(c, '}');
}

static enum tr_status entries(struct cursor *c, uint64_t data_bytes, struct tr_st_header *h)
{
    bool has_metadata = false;
    char text[96];
    do {
        char *name;
        TR_PASS(string(c, &name));
        if (!name_is_sane(name))
            return bad(c, "tensor name longer than 1 KiB, or with \"..\" or a control byte");
        TR_PASS(expect(c, ':'));
        if (strcmp(name, "__metadata__") == 0) {
            if (has_metadata)
                return bad(c, "__metadata__ given twice");
            has_metadata = true;
            TR_PASS(metadata(c, h));
            continue;
        }
        if (h->n_tensors == TR_ST_MAX_TENSORS)
            return bad(c, "more than 1000000 tensors");
        struct tr_st_tensor *t = &h->tensors[h->n_tensors++];
        *t = (struct tr_st_tensor){ .name = name };
        enum tr_status st = tensor(c, data_bytes, t);
        if (st != TR_OK)
            return tr_fail_at(st, "tensor \"%s\": ", tr_escape(name, text, sizeof text));
    } while (next_is(c, ','));
    return expect(c, '}');
}

static int by_begin(const void *a, const void *b)
{
    const struct tr_st_tensor *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : x->end != y->end ? (x->end < y->end ? -1 : 1) : 0;
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct tr_st_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Sorted by position, every tensor begins where the one before ended: no overlap, no hole, and the last ends the file.
 */
static enum tr_status check_cover(const struct tr_st_header *h, uint64_t data_bytes)
{
    uint64_t at = 0;
    char text[96];
    for (size_t i = 0; i < h->n_tensors; i++) {
        const struct tr_st_tensor *t = &h->tensors[i];
        if (t->begin != at)
            return tr_fail(TR_USAGE, "tensor \"%s\" begins at data byte %" PRIu64 ", %s %" PRIu64,
                           tr_escape(t->name, text, sizeof text), t->begin,
                           t->begin < at ? "overlapping the one that ends at" : "leaving a hole from", at);
        at = t->end;
    }
    if (at != data_bytes)
        return tr_fail(TR_USAGE, "tensors end at data byte %" PRIu64 " but the file has %" PRIu64, at, data_bytes);
    return TR_OK;
}

static enum tr_status sort_and_check_names(struct tr_st_header *h)
{
    char text[96];
    for (size_t i = 0; i < h->n_tensors; i++)
        h->by_name[i] = (uint32_t)i;
    qsort_r(h->by_name, h->n_tensors, sizeof *h->by_name, by_name, h->tensors);
    for (size_t i = 1; i < h->n_tensors; i++) {
        const char *name = h->tensors[h->by_name[i]].name;
        if (strcmp(h->tensors[h->by_name[i - 1]].name, name) == 0)
            return tr_fail(TR_USAGE, "tensor \"%s\" given twice", tr_escape(name, text, sizeof text));
    }
    if (h->n_metadata)
        qsort(h->metadata, h->n_metadata, sizeof *h->metadata, tr_by_text);
    for (size_t i = 1; i < h->n_metadata; i++)
        if (strcmp(h->metadata[i - 1].key, h->metadata[i].key) == 0)
            return tr_fail(TR_USAGE, "metadata key \"%s\" given twice",
                           tr_escape(h->metadata[i].key, text, sizeof text));
    return TR_OK;
}

enum tr_status tr_st_parse_header(char *json, size_t n, uint64_t data_bytes, struct tr_st_header *out)
{
    enum tr_status st = TR_OK;
    struct tr_st_header h = { 0 };
    struct cursor c = { json, json, json + n };
    size_t n_cap = n / MIN_ENTRY + 1;

    if (n == 0 || *json != '{')
        return tr_fail(TR_USAGE, "header does not begin with '{'");
    h.tensors = malloc(n_cap * sizeof *h.tensors); /* covered by the bytes present; shrunk below */
    if (!h.tensors)
        return tr_fail(TR_NOMEM, "no memory for a header of %zu bytes", n);
    c.p++;
    if (!next_is(&c, '}'))
        TR_TRY(entries(&c, data_bytes, &h));
    skip_blanks(&c);
    if (c.p != c.end)
        TR_TRY(bad(&c, "text behind the closing brace"));

    struct tr_st_tensor *exact = realloc(h.tensors, (h.n_tensors + 1) * sizeof *exact);
    if (exact)
        h.tensors = exact;
    TR_TRY(TR_ALLOC(h.by_name, h.n_tensors + 1, "%zu tensors", h.n_tensors));
    qsort(h.tensors, h.n_tensors, sizeof *h.tensors, by_begin);
    TR_TRY(check_cover(&h, data_bytes));
    TR_TRY(sort_and_check_names(&h));
    *out = h;
    return TR_OK;
out:
    tr_st_header_release(&h);
    return st;
}

void tr_st_header_release(struct tr_st_header *h)
{
    free(h->tensors);
    free(h->by_name);
    free(h->metadata);
    *h = (struct tr_st_header){ 0 };
}
