/* gguf.h - the container of a GGUF file, version 3: keys with values, then a table of tensors, then their bytes.
 *
 * Little-endian, like every machine that this program runs on. The keys are built in memory, tensors are streamed.
 */
#ifndef TR_EXPORT_GGUF_H
#define TR_EXPORT_GGUF_H

#include "export/ggml.h"

enum { TR_GGUF_ALIGN = 32 };

struct tr_gguf_tensor {
    char name[64];
    enum tr_ggml type;
    int n_dims;
    int64_t dims[2]; /* innermost first: columns, rows */
    uint64_t at;     /* from the start of the data */
};

/* Filled key by key; {0} is empty. tr_str_ok(&keys) is checked once, by tr_gguf_head. */
struct tr_gguf {
    struct tr_str keys;
    uint64_t n_keys;
    struct tr_gguf_tensor *tensor; /* the caller's */
    size_t n_tensors;
};
void tr_gguf_release(struct tr_gguf *g);

void tr_gguf_u32(struct tr_gguf *g, const char *key, uint32_t x);
void tr_gguf_f32(struct tr_gguf *g, const char *key, double x);
void tr_gguf_bool(struct tr_gguf *g, const char *key, bool x);
void tr_gguf_str(struct tr_gguf *g, const char *key, const char *text);
/* Lists. Of strings the caller adds n of them with tr_gguf_add_text, of others n numbers with tr_gguf_add. */
enum tr_gguf_item { TR_GGUF_I32 = 5, TR_GGUF_F32 = 6, TR_GGUF_BOOL = 7, TR_GGUF_TEXT = 8 };
void tr_gguf_list(struct tr_gguf *g, const char *key, enum tr_gguf_item item, uint64_t n);
void tr_gguf_add_text(struct tr_gguf *g, const char *text, size_t n);
void tr_gguf_add(struct tr_gguf *g, const void *number, size_t n_bytes);

/* Everything before the data, padded, with the offsets of all tensors set. */
enum tr_status tr_gguf_head(struct tr_gguf *g, struct tr_str *out, uint64_t *data_bytes);
size_t tr_gguf_tensor_bytes(const struct tr_gguf_tensor *t);

#endif
