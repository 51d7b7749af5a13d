/* thrift.h - reads Thrift's compact protocol, in which parquet writes its metadata. Nothing is copied, every byte is
 * inside the text, and a text that is wrong sets is_bad, after which every read gives 0 and every list ends. */
#ifndef TR_TABLE_THRIFT_H
#define TR_TABLE_THRIFT_H

#include "base/base.h"

struct tr_thrift {
    const uint8_t *p, *end;
    bool is_bad;
};

enum {
    TR_THRIFT_TRUE = 1,
    TR_THRIFT_FALSE,
    TR_THRIFT_BYTE,
    TR_THRIFT_I16,
    TR_THRIFT_I32,
    TR_THRIFT_I64,
    TR_THRIFT_DOUBLE,
    TR_THRIFT_BINARY,
    TR_THRIFT_LIST,
    TR_THRIFT_SET,
    TR_THRIFT_MAP,
    TR_THRIFT_STRUCT
};

/* A struct is read field by field: while (tr_thrift_field(&t, &f)) switch (f.id) ...; each field must be read, or
 * passed over with tr_thrift_skip. */
struct tr_thrift_field {
    int id, type;
};
bool tr_thrift_field(struct tr_thrift *t, struct tr_thrift_field *f); /* f is zero before the first; false: the end */
void tr_thrift_skip(struct tr_thrift *t, int type);

int64_t tr_thrift_int(struct tr_thrift *t, const struct tr_thrift_field *f); /* of any width; also a bool */
/* The number of elements, which is at most the bytes that are left. *type is that of the elements. */
size_t tr_thrift_list(struct tr_thrift *t, const struct tr_thrift_field *f, int *type);
const char *tr_thrift_text(struct tr_thrift *t, const struct tr_thrift_field *f, size_t *n);
/* Before a struct's fields are read: false if the field is none, and it is passed over. */
bool tr_thrift_struct(struct tr_thrift *t, const struct tr_thrift_field *f);

uint64_t tr_varint(const uint8_t **p, const uint8_t *end, bool *is_bad);
static inline int64_t tr_zigzag(uint64_t x)
{
    return (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
}

#endif
