/* safetensors.h - one safetensors file: hostile-input reader, and a writer whose header is built once and used often.
 *
 * Reader: plain pread, never mmap: a file that shrinks under us is an error, not a SIGBUS. Memory <= 4 x header bytes.
 * Writer: prepare once before training, then begin/add/finish for every checkpoint without any allocation. Conversion
 * goes through 64 KiB on the stack (stays in cache, needs no buffer from the caller); the hash is taken from memory.
 */
#ifndef TR_CKPT_SAFETENSORS_H
#define TR_CKPT_SAFETENSORS_H

#include "base/base.h"
#include "ckpt/pump.h"
#include "ckpt/sums.h"

enum {
    TR_ST_MAX_DIMS = 8,
    TR_ST_MAX_NAME = 1024,        /* bytes of a tensor name */
    TR_ST_MAX_HEADER = 100000000, /* the reference reader's limit */
    TR_ST_MAX_TENSORS = 1000000,
    TR_ST_ALIGN = 64, /* of the data section, in files we write */
};

struct tr_st_tensor {
    const char *name;
    const char *dtype_name; /* as in the file: "BF16" */
    uint64_t begin, end;    /* bytes, from the start of the data section */
    uint64_t n_elems;
    int64_t dims[TR_ST_MAX_DIMS];
    int n_dims;
    enum tr_dtype dtype; /* TR_DTYPE_COUNT: legal in a file (BOOL, F8_E8M0 ...), but no tensor we can read */
};

/* Reader. Tensors are numbered in the order of their data. Reads may run in several threads. */
struct tr_st;
enum tr_status tr_st_open(const char *path, struct tr_st **out);
/* Reads are compared with what was verified (NULL: are not); sums outlives the file. */
enum tr_status tr_st_open_sums(const char *path, const struct tr_sums_file *sums, struct tr_st **out);
void tr_st_close(struct tr_st *st);
const char *tr_st_path(const struct tr_st *st);
size_t tr_st_count(const struct tr_st *st);
const struct tr_st_tensor *tr_st_tensor(const struct tr_st *st, size_t i);
bool tr_st_find(const struct tr_st *st, const char *name, size_t *out_i);
const char *tr_st_metadata(const struct tr_st *st, const char *key); /* NULL: absent */
/* Any float type to any float type; other types only to themselves. */
static inline bool tr_st_can_convert(enum tr_dtype from, enum tr_dtype to)
{
    const unsigned floats = 1u << TR_F32 | 1u << TR_BF16 | 1u << TR_F16 | 1u << TR_F64;
    return from < TR_DTYPE_COUNT && to < TR_DTYPE_COUNT && (from == to || (floats >> from & floats >> to & 1u));
}
/* Elements [first, first + n) of tensor i as dst_dtype. Any float type to any float type; other types only to
 * themselves. */
enum tr_status tr_st_read(const struct tr_st *st, size_t i, uint64_t first, size_t n, void *dst,
                          enum tr_dtype dst_dtype);
/* Bytes [first, first + n) of tensor i, whatever its dtype. */
enum tr_status tr_st_read_bytes(const struct tr_st *st, size_t i, uint64_t first, size_t n, void *dst);

/* The header as a pure function: json is rewritten in place (names are unescaped there) and must outlive *out. */
struct tr_st_pair {
    const char *key, *value;
};
struct tr_st_header {
    struct tr_st_tensor *tensors; /* sorted by begin, end */
    uint32_t *by_name;            /* indices sorted by name */
    struct tr_st_pair *metadata;  /* sorted by key */
    size_t n_tensors, n_metadata;
};
enum tr_status tr_st_parse_header(char *json, size_t n, uint64_t data_bytes, struct tr_st_header *out);
void tr_st_header_release(struct tr_st_header *h);

/* Writer. Entries are written in the order given: wider dtypes first when they are mixed (each must start aligned).
 * metadata may be NULL; {"format":"pt"} is always written. */
struct tr_st_entry {
    const char *name;
    enum tr_dtype dtype;
    int n_dims;
    int64_t dims[TR_ST_MAX_DIMS];
};
enum tr_status tr_st_entry_size(const struct tr_st_entry *e, uint64_t *out_elems, uint64_t *out_bytes);
struct tr_st_writer;
enum tr_status tr_st_writer_prepare(const struct tr_st_entry *entries, size_t n_entries,
                                    const struct tr_st_pair *metadata, size_t n_metadata, struct tr_st_writer **out);
void tr_st_writer_close(struct tr_st_writer *w);           /* drops a file in progress; NULL is fine */
uint64_t tr_st_writer_bytes(const struct tr_st_writer *w); /* size of the finished file */

/* A new file: dir/name must not exist. Its bytes go through the pump, which has no other file until it ends. On any
 * error the file is abandoned (closed and unlinked); begin may be called again.
 */
enum tr_status tr_st_writer_begin(struct tr_st_writer *w, struct tr_pump *pump, const char *dir, const char *name);
/* The next n elements of the current entry; an entry may come in any number of pieces, none crosses into the next. */
enum tr_status tr_st_writer_add(struct tr_st_writer *w, const void *src, enum tr_dtype src_dtype, size_t n);
/* All entries complete -> fsync -> close. The directory is the caller's to sync. */
enum tr_status tr_st_writer_finish(struct tr_st_writer *w, uint64_t *out_bytes, struct tr_hash128 *out_hash);
void tr_st_writer_abort(struct tr_st_writer *w);

#endif
