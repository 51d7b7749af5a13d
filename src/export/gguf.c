/* gguf.c - the head of a GGUF file. See gguf.h. */
#include "export/gguf.h"

enum { MAGIC = 0x46554747, VERSION = 3 }; /* "GGUF" */
enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STR = 8, TYPE_LIST = 9 };

void tr_gguf_release(struct tr_gguf *g)
{
    tr_str_release(&g->keys);
}

static void put(struct tr_str *s, const void *p, size_t n)
{
    tr_str_add(s, p, n);
}

static void put_u32(struct tr_str *s, uint32_t x)
{
    put(s, &x, sizeof x);
}

static void put_u64(struct tr_str *s, uint64_t x)
{
    put(s, &x, sizeof x);
}

static void put_text(struct tr_str *s, const char *text, size_t n)
{
    put_u64(s, n);
    put(s, text, n);
}

static void put_key(struct tr_gguf *g, const char *key, uint32_t type)
{
    put_text(&g->keys, key, strlen(key));
    put_u32(&g->keys, type);
    g->n_keys++;
}

void tr_gguf_u32(struct tr_gguf *g, const char *key, uint32_t x)
{
    put_key(g, key, TYPE_U32);
    put_u32(&g->keys, x);
}

void tr_gguf_f32(struct tr_gguf *g, const char *key, double x)
{
    float f = (float)x;
    put_key(g, key, TYPE_F32);
    put(&g->keys, &f, sizeof f);
}

void tr_gguf_bool(struct tr_gguf *g, const char *key, bool x)
{
    uint8_t b = x;
    put_key(g, key, TYPE_BOOL);
    put(&g->keys, &b, sizeof b);
}

void tr_gguf_str(struct tr_gguf *g, const char *key, const char *text)
{
    put_key(g, key, TYPE_STR);
    put_text(&g->keys, text, strlen(text));
}

void tr_gguf_list(struct tr_gguf *g, const char *key, enum tr_gguf_item item, uint64_t n)
{
    put_key(g, key, TYPE_LIST);
    put_u32(&g->keys, (uint32_t)item);
    put_u64(&g->keys, n);
}

void tr_gguf_add_text(struct tr_gguf *g, const char *text, size_t n)
{
    put_text(&g->keys, text, n);
}

void tr_gguf_add(struct tr_gguf *g, const void *number, size_t n_bytes)
{
    put(&g->keys, number, n_bytes);
}

size_t tr_gguf_tensor_bytes(const struct tr_gguf_tensor *t)
{
    return tr_ggml_bytes(t->type, t->dims[0] * (t->n_dims == 2 ? t->dims[1] : 1));
}

enum tr_status tr_gguf_head(struct tr_gguf *g, struct tr_str *out, uint64_t *data_bytes)
{
    static const char zeros[TR_GGUF_ALIGN];
    uint64_t at = 0;
    TR_PASS(tr_str_check(&g->keys, "the keys of a GGUF file"));
    put_u32(out, MAGIC);
    put_u32(out, VERSION);
    put_u64(out, g->n_tensors);
    put_u64(out, g->n_keys);
    put(out, g->keys.p, g->keys.n);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct tr_gguf_tensor *t = &g->tensor[i];
        t->at = at;
        put_text(out, t->name, strlen(t->name));
        put_u32(out, (uint32_t)t->n_dims);
        for (int k = 0; k < t->n_dims; k++)
            put_u64(out, (uint64_t)t->dims[k]);
        put_u32(out, tr_ggml_type(t->type)->id);
        put_u64(out, t->at);
        at = tr_round_up(at + tr_gguf_tensor_bytes(t), TR_GGUF_ALIGN);
    }
    put(out, zeros, (TR_GGUF_ALIGN - out->n % TR_GGUF_ALIGN) % TR_GGUF_ALIGN);
    *data_bytes = at;
    return tr_str_check(out, "the head of a GGUF file");
}
