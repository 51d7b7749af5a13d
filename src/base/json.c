/* json.c - a strict scan of RFC 8259 in front of cJSON, and typed members.
 *
 * Invariant: what the scan lets through, cJSON reads to the same document: one value, depth <= 64, well-formed UTF-8,
 * no U+0000 (cJSON strings end there), no byte order mark, no key twice in one object. Time is linear but for one sort
 * of the key hashes. Keys are compared by 128-bit hash of their decoded bytes: a chance collision is out of reach, and
 * a made one only gets its own file refused. Rejected: trusting cJSON alone (it takes lone surrogates, bad UTF-8,
 * duplicate keys and numbers cut at 63 characters), and a hash table per object (more code for the same order).
 *
 * The scan also adds up what the tree will take, so that a document that is all brackets and commas is refused before
 * memory is taken for it. Rejected: counting in cJSON's allocator, which is one for the whole process and is asked only
 * after the memory of the values before is gone.
 */
#include "base/json.h"
#include <math.h>
#include "base/file.h"
#include "base/misc.h"
#include "base/str.h"
#include "base/banned.h"

enum {
    NUMBER_MAX = 400,      /* characters; more than any finite double needs */
    CJSON_NUMBER_MAX = 63, /* cJSON stops reading a number there */
    MALLOC_BYTES = 16,     /* what an allocation takes besides its bytes */
    NODE_BYTES = sizeof(cJSON) + MALLOC_BYTES,
};

struct json_key {
    struct tr_hash128 hash;
    size_t object; /* where its object starts */
    size_t at;
};

struct scan {
    const char *p;
    size_t n, at;
    const char *what;
    struct json_key *keys;
    size_t n_keys, n_keys_cap;
    struct tr_str key; /* the decoded current key */
    /* The text with over-long numbers rewritten, up to n_copied of the input; empty when there are none. */
    struct tr_str shorter;
    size_t n_copied;
    size_t n_tree; /* bytes that the values so far will take */
};

static enum tr_status fail_at(const struct scan *s, size_t at, const char *why)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        if (s->p[i] == '\n') {
            line++;
            column = 1;
        } else {
            column += ((unsigned char)s->p[i] & 0xc0) != 0x80; /* characters, not bytes */
        }
    }
    return tr_fail(TR_USAGE, "%s:%zu:%zu: %s", s->what, line, column, at < s->n ? why : "unexpected end of the text");
}

static enum tr_status fail_nomem(const struct scan *s)
{
    return tr_fail(TR_NOMEM, "%s: no memory for this document", s->what);
}

/* Charges the tree for `n` bytes. */
static enum tr_status charge(struct scan *s, size_t n)
{
    s->n_tree += n; /* at most NODE_BYTES for each byte of a text that fits into memory */
    if (s->n_tree <= TR_JSON_FREE || (s->n_tree - TR_JSON_FREE) / TR_JSON_FACTOR < s->n)
        return TR_OK;
    return tr_fail(TR_USAGE,
                   "%s: the values of these %zu bytes would take more than %d times as much memory and %d MiB; nothing "
                   "that we read looks like this",
                   s->what, s->n, TR_JSON_FACTOR, TR_JSON_FREE >> 20);
}

/* The byte here, or 0 at the end: no rule accepts a 0, so ends need no case of their own. */
static char peek(const struct scan *s)
{
    return s->at < s->n ? s->p[s->at] : 0;
}

static bool take(struct scan *s, char c)
{
    if (s->at >= s->n || s->p[s->at] != c)
        return false;
    s->at++;
    return true;
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->n && (s->p[s->at] == ' ' || s->p[s->at] == '\n' || s->p[s->at] == '\r' || s->p[s->at] == '\t'))
        s->at++;
}

static bool take_hex4(struct scan *s, unsigned *out)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = peek(s);
        if (c >= '0' && c <= '9')
            v = v * 16 + (unsigned)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (unsigned)((c | 32) - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return true;
}

static void add_utf8(struct tr_str *s, unsigned u)
{
    char c[4] = { (char)u };
    size_t n = u < 0x80 ? 1 : u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    if (n > 1) {
        for (size_t i = n - 1; i > 0; i--, u >>= 6)
            c[i] = (char)(0x80u | (u & 0x3fu));
        c[0] = (char)(lead[n] | u);
    }
    tr_str_add(s, c, n);
}

/* After the 'u' of an escape; the code point may take a second escape. */
static enum tr_status scan_unicode(struct scan *s, struct tr_str *decoded)
{
    size_t start = s->at;
    unsigned u, low;
    if (!take_hex4(s, &u))
        return fail_at(s, s->at, "\\u needs four hex digits");
    if (u == 0)
        return fail_at(s, start, "\\u0000 is not allowed");
    if (u >= 0xdc00 && u <= 0xdfff)
        return fail_at(s, start, "low surrogate without a high one");
    if (u >= 0xd800 && u <= 0xdbff) {
        if (!take(s, '\\') || !take(s, 'u') || !take_hex4(s, &low) || low < 0xdc00 || low > 0xdfff)
            return fail_at(s, start, "high surrogate without a low one");
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    if (decoded)
        add_utf8(decoded, u);
    return TR_OK;
}

static enum tr_status scan_escape(struct scan *s, struct tr_str *decoded)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (take(s, 'u'))
        return scan_unicode(s, decoded);
    char c = peek(s);
    const char *found = c ? strchr(names, c) : NULL;
    if (!found)
        return fail_at(s, s->at, "unknown escape");
    s->at++;
    if (decoded)
        tr_str_add(decoded, &values[found - names], 1);
    return TR_OK;
}

/* A string whose first quote is here; its value goes into `decoded` unless that is NULL. */
static enum tr_status scan_string(struct scan *s, struct tr_str *decoded)
{
    size_t first = s->at;
    if (!take(s, '"'))
        return fail_at(s, s->at, "expected a string in double quotes");
    for (;;) {
        size_t start = s->at;
        while (s->at < s->n && s->p[s->at] != '"' && s->p[s->at] != '\\') {
            if ((unsigned char)s->p[s->at] < 0x20)
                return fail_at(s, s->at, "control character in a string; escape it");
            size_t len = tr_utf8_len(s->p + s->at, s->n - s->at);
            if (len == 0)
                return fail_at(s, s->at, "not valid UTF-8");
            s->at += len;
        }
        if (decoded)
            tr_str_add(decoded, s->p + start, s->at - start);
        if (take(s, '"'))
            return charge(s, s->at - first + MALLOC_BYTES);
        if (!take(s, '\\'))
            return fail_at(s, s->at, "");
        TR_PASS(scan_escape(s, decoded));
    }
    return TR_OK;
}

static bool take_digits(struct scan *s)
{
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at > start;
}

/* cJSON cuts numbers at 63 characters, so a longer one is handed on in its shortest exact form. */
static enum tr_status shorten_number(struct scan *s, size_t start)
{
    char text[NUMBER_MAX + 1];
    size_t n = s->at - start;
    if (n > NUMBER_MAX)
        return fail_at(s, start, "number of more than 400 characters");
    memcpy(text, s->p + start, n);
    text[n] = 0;
    double v = strtod(text, NULL);
    tr_str_add(&s->shorter, s->p + s->n_copied, start - s->n_copied);
    if (isfinite(v))
        tr_str_addf(&s->shorter, "%.17g", v);
    else
        tr_str_addf(&s->shorter, "%s1e999", v < 0 ? "-" : ""); /* infinite to cJSON as well */
    s->n_copied = s->at;
    return TR_OK;
}

static enum tr_status scan_number(struct scan *s)
{
    size_t start = s->at;
    take(s, '-');
    if (!take(s, '0') && !take_digits(s))
        return fail_at(s, s->at, "expected a digit");
    if (take(s, '.') && !take_digits(s))
        return fail_at(s, s->at, "expected a digit after the point");
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '-'))
            take(s, '+');
        if (!take_digits(s))
            return fail_at(s, s->at, "expected a digit in the exponent");
    }
    return s->at - start > CJSON_NUMBER_MAX ? shorten_number(s, start) : TR_OK;
}

static enum tr_status note_key(struct scan *s, size_t object, size_t at)
{
    if (!tr_str_ok(&s->key) || !TR_GROW(s->keys, s->n_keys + 1, &s->n_keys_cap))
        return fail_nomem(s);
    s->keys[s->n_keys++] = (struct json_key){ tr_hash(s->key.p, s->key.n), object, at };
    return TR_OK;
}

static enum tr_status scan_value(struct scan *s, int depth);

/* Members up to the closing bracket, which follows the opening one that was just taken. */
static enum tr_status scan_members(struct scan *s, int depth, bool is_object)
{
    size_t object = s->at;
    char close = is_object ? '}' : ']';
    if (depth > TR_JSON_MAX_DEPTH)
        return fail_at(s, s->at - 1, "nested deeper than 64");
    skip_blanks(s);
    if (take(s, close))
        return TR_OK;
    for (;;) {
        if (is_object) {
            skip_blanks(s);
            size_t at = s->at;
            tr_str_clear(&s->key);
            TR_PASS(scan_string(s, &s->key));
            TR_PASS(note_key(s, object, at));
            skip_blanks(s);
            if (!take(s, ':'))
                return fail_at(s, s->at, "expected ':' after the key");
        }
        TR_PASS(scan_value(s, depth));
        if (take(s, close))
            return TR_OK;
        if (!take(s, ','))
            return fail_at(s, s->at, is_object ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    return TR_OK;
}

static enum tr_status scan_word(struct scan *s, const char *word)
{
    for (; *word; word++)
        if (!take(s, *word))
            return fail_at(s, s->at, "expected true, false or null");
    return TR_OK;
}

/* A value with the blanks around it. `depth` counts the brackets that are open. */
static enum tr_status scan_value(struct scan *s, int depth)
{
    enum tr_status st = charge(s, NODE_BYTES);
    if (st != TR_OK)
        return st;
    skip_blanks(s);
    switch (peek(s)) {
    case '{':
    case '[':
        s->at++;
        st = scan_members(s, depth + 1, s->p[s->at - 1] == '{');
        break;
    case '"':
        st = scan_string(s, NULL);
        break;
    case 't':
        st = scan_word(s, "true");
        break;
    case 'f':
        st = scan_word(s, "false");
        break;
    case 'n':
        st = scan_word(s, "null");
        break;
    default:
        if (peek(s) != '-' && (peek(s) < '0' || peek(s) > '9'))
            return fail_at(s, s->at, "expected a value");
        st = scan_number(s);
    }
    skip_blanks(s);
    return st;
}

static int compare_keys(const void *pa, const void *pb)
{
    const struct json_key *a = pa, *b = pb;
    if (a->object != b->object)
        return a->object < b->object ? -1 : 1;
    if (a->hash.hi != b->hash.hi)
        return a->hash.hi < b->hash.hi ? -1 : 1;
    if (a->hash.lo != b->hash.lo)
        return a->hash.lo < b->hash.lo ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static enum tr_status check_duplicates(struct scan *s)
{
    if (s->n_keys < 2)
        return TR_OK;
    qsort(s->keys, s->n_keys, sizeof *s->keys, compare_keys);
    size_t first = SIZE_MAX; /* the first second use in the text */
    for (size_t i = 1; i < s->n_keys; i++) {
        const struct json_key *k = &s->keys[i];
        if (k->object == k[-1].object && tr_hash_eq(k->hash, k[-1].hash) && k->at < first)
            first = k->at;
    }
    return first == SIZE_MAX ? TR_OK : fail_at(s, first, "duplicate key");
}

static enum tr_status scan_document(struct scan *s)
{
    if (s->n >= 3 && memcmp(s->p, "\xef\xbb\xbf", 3) == 0)
        return fail_at(s, 0, "byte order mark; save the file as UTF-8 without one");
    TR_PASS(scan_value(s, 0));
    if (s->at < s->n)
        return fail_at(s, s->at, "text after the end of the document");
    TR_PASS(check_duplicates(s));
    if (s->n_copied) {
        tr_str_add(&s->shorter, s->p + s->n_copied, s->n - s->n_copied);
        if (!tr_str_ok(&s->shorter))
            return fail_nomem(s);
    }
    return TR_OK;
}

enum tr_status tr_json_parse(const char *text, size_t n, const char *what, cJSON **out)
{
    struct scan s = { .p = text, .n = n, .what = what };
    enum tr_status st = TR_OK;
    TR_TRY(scan_document(&s));
    free(s.keys);
    s.keys = NULL;
    cJSON *tree = s.n_copied ? cJSON_ParseWithLength(s.shorter.p, s.shorter.n) : cJSON_ParseWithLength(text, n);
    if (tree)
        *out = tree;
    else
        st = fail_nomem(&s); /* the scan left no other reason */
out:
    free(s.keys);
    tr_str_release(&s.key);
    tr_str_release(&s.shorter);
    return st;
}

enum tr_status tr_json_load(const char *path, size_t max_bytes, cJSON **out)
{
    char *text = NULL;
    size_t n = 0;
    TR_PASS(tr_file_read(path, max_bytes, &text, &n));
    enum tr_status st = tr_json_parse(text, n, path, out);
    free(text);
    return st;
}

/* The member, or NULL with TR_OK when it may be absent. */
static enum tr_status find(const cJSON *obj, const char *key, bool required, const cJSON **out)
{
    *out = NULL;
    if (!cJSON_IsObject(obj))
        return tr_fail(TR_USAGE, "\"%s\" is looked for in something that is not an object", key);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(obj, key);
    if (item && !cJSON_IsNull(item))
        *out = item;
    else if (required)
        return tr_fail(TR_USAGE, "\"%s\" is missing", key);
    return TR_OK;
}

enum tr_status tr_json_int(const cJSON *obj, const char *key, bool required, int64_t lo, int64_t hi, int64_t *out)
{
    const cJSON *item;
    enum tr_status st = find(obj, key, required, &item);
    if (st != TR_OK || !item)
        return st;
    double v = item->valuedouble;
    if (!cJSON_IsNumber(item) || !(fabs(v) <= 0x1p53) || v != floor(v))
        return tr_fail(TR_USAGE, "\"%s\" is not a whole number", key);
    if ((int64_t)v < lo || (int64_t)v > hi)
        return tr_fail(TR_USAGE, "\"%s\" is %.0f, outside %" PRId64 " to %" PRId64, key, v, lo, hi);
    *out = (int64_t)v;
    return TR_OK;
}

enum tr_status tr_json_real(const cJSON *obj, const char *key, bool required, double *out)
{
    const cJSON *item;
    enum tr_status st = find(obj, key, required, &item);
    if (st != TR_OK || !item)
        return st;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return tr_fail(TR_USAGE, "\"%s\" is not a finite number", key);
    *out = item->valuedouble;
    return TR_OK;
}

enum tr_status tr_json_bool(const cJSON *obj, const char *key, bool required, bool *out)
{
    const cJSON *item;
    enum tr_status st = find(obj, key, required, &item);
    if (st != TR_OK || !item)
        return st;
    if (!cJSON_IsBool(item))
        return tr_fail(TR_USAGE, "\"%s\" is not true or false", key);
    *out = cJSON_IsTrue(item);
    return TR_OK;
}

enum tr_status tr_json_str(const cJSON *obj, const char *key, bool required, const char **out)
{
    const cJSON *item;
    enum tr_status st = find(obj, key, required, &item);
    if (st != TR_OK || !item)
        return st;
    if (!cJSON_IsString(item))
        return tr_fail(TR_USAGE, "\"%s\" is not a string", key);
    *out = item->valuestring;
    return TR_OK;
}
