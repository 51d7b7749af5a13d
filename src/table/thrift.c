/* thrift.c - see thrift.h. */
#include "table/thrift.h"

enum { MAX_DEPTH = 16 };

static void fail(struct tr_thrift *t)
{
    t->is_bad = true;
    t->p = t->end;
}

uint64_t tr_varint(const uint8_t **p, const uint8_t *end, bool *is_bad)
{
    uint64_t x = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return x;
    }
    *is_bad = true;
    return 0;
}

static uint64_t number(struct tr_thrift *t)
{
    bool is_bad = false;
    uint64_t x = tr_varint(&t->p, t->end, &is_bad);
    if (is_bad)
        fail(t);
    return x;
}

static void pass(struct tr_thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->p))
        fail(t);
    else
        t->p += n;
}

bool tr_thrift_field(struct tr_thrift *t, struct tr_thrift_field *f)
{
    if (t->p == t->end)
        fail(t);
    if (t->is_bad)
        return false;
    uint8_t head = *t->p++;
    if (head == 0)
        return false;
    f->type = head & 15;
    if (head >> 4)
        f->id += head >> 4;
    else
        f->id = (int)(int16_t)tr_zigzag(number(t));
    if (f->id < 0 || f->id > INT16_MAX)
        fail(t);
    return !t->is_bad;
}

static size_t list_head(struct tr_thrift *t, int *type)
{
    if (t->p == t->end)
        fail(t);
    if (t->is_bad)
        return 0;
    uint8_t head = *t->p++;
    *type = head & 15;
    uint64_t n = head >> 4 == 15 ? number(t) : head >> 4;
    if (n > (uint64_t)(t->end - t->p)) /* every element takes a byte at least */
        fail(t);
    return t->is_bad ? 0 : (size_t)n;
}

/* Recursion ends at MAX_DEPTH. */
static void skip(struct tr_thrift *t, int type, bool is_element, int depth);

static void skip_struct(struct tr_thrift *t, int depth)
{
    struct tr_thrift_field f = { 0 };
    while (tr_thrift_field(t, &f))
        skip(t, f.type, false, depth + 1);
}

static void skip_list(struct tr_thrift *t, int depth)
{
    int type = 0;
    for (size_t n = list_head(t, &type); n > 0 && !t->is_bad; n--)
        skip(t, type, true, depth + 1);
}

static void skip_map(struct tr_thrift *t, int depth)
{
    uint64_t n = number(t);
    if (n == 0)
        return;
    if (n > (uint64_t)(t->end - t->p) || t->p == t->end) {
        fail(t);
        return;
    }
    uint8_t types = *t->p++;
    for (; n > 0 && !t->is_bad; n--) {
        skip(t, types >> 4, true, depth + 1);
        skip(t, types & 15, true, depth + 1);
    }
}

static void skip(struct tr_thrift *t, int type, bool is_element, int depth)
{
    switch (depth > MAX_DEPTH ? -1 : type) {
    case TR_THRIFT_TRUE:
    case TR_THRIFT_FALSE:
        pass(t, is_element); /* of a field, the type is the value */
        break;
    case TR_THRIFT_BYTE:
        pass(t, 1);
        break;
    case TR_THRIFT_I16:
    case TR_THRIFT_I32:
    case TR_THRIFT_I64:
        (void)number(t);
        break;
    case TR_THRIFT_DOUBLE:
        pass(t, 8);
        break;
    case TR_THRIFT_BINARY:
        pass(t, number(t));
        break;
    case TR_THRIFT_LIST:
    case TR_THRIFT_SET:
        skip_list(t, depth);
        break;
    case TR_THRIFT_MAP:
        skip_map(t, depth);
        break;
    case TR_THRIFT_STRUCT:
        skip_struct(t, depth);
        break;
    default:
        fail(t);
    }
}

void tr_thrift_skip(struct tr_thrift *t, int type)
{
    skip(t, type, false, 0);
}

int64_t tr_thrift_int(struct tr_thrift *t, const struct tr_thrift_field *f)
{
    switch (f->type) {
    case TR_THRIFT_TRUE:
    case TR_THRIFT_FALSE:
        return f->type == TR_THRIFT_TRUE;
    case TR_THRIFT_BYTE:
        pass(t, 1);
        return t->is_bad ? 0 : (int8_t)t->p[-1];
    case TR_THRIFT_I16:
    case TR_THRIFT_I32:
    case TR_THRIFT_I64:
        return tr_zigzag(number(t));
    default:
        fail(t);
        return 0;
    }
}

size_t tr_thrift_list(struct tr_thrift *t, const struct tr_thrift_field *f, int *type)
{
    *type = 0;
    if (f->type != TR_THRIFT_LIST)
        fail(t);
    return list_head(t, type);
}

const char *tr_thrift_text(struct tr_thrift *t, const struct tr_thrift_field *f, size_t *n)
{
    uint64_t k = 0;
    if (f->type == TR_THRIFT_BINARY)
        k = number(t);
    else
        fail(t);
    pass(t, k);
    *n = t->is_bad ? 0 : (size_t)k;
    return (const char *)t->p - *n;
}

bool tr_thrift_struct(struct tr_thrift *t, const struct tr_thrift_field *f)
{
    if (f->type == TR_THRIFT_STRUCT)
        return true;
    fail(t);
    return false;
}
