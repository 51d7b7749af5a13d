/* shard.h - token shards (.trtok): documents as token ids on disk, verified in full at open, read with pread.
 *
 * The format is docs/formats/token-shard.md. Invariant of an open shard: its bytes matched both checksums, every id is
 * below the vocabulary size, and the documents are not empty and cover all tokens. Reads check again the values on
 * which memory safety depends, because the file can change while it is open. Rejected: mmap (a truncated file causes a
 * SIGBUS) and an index in memory (a corpus of short documents would need more memory than the model).
 */
#ifndef TR_DATA_SHARD_H
#define TR_DATA_SHARD_H

#include "base/base.h"
#include "data/seal.h"

enum { TR_SHARD_HEADER_BYTES = 128, TR_SHARD_VERSION = 1 };

struct tr_shard_info {
    uint32_t token_bytes; /* 2 or 4 */
    uint32_t part;        /* number among the shards of one source, from 0 */
    bool has_mask;        /* the shard holds one bit for each token: whether it is a target */
    bool is_last;         /* the last part of its source */
    bool keeps_whole;     /* documents are records (prompts, conversations) to be packed whole, not a stream of text */
    bool has_pairs;       /* documents are two answers to one prompt: prompt, chosen, prompt, rejected */
    bool has_labels;      /* documents are an answer to a prompt; the mask of the first token is its label */
    bool has_weights;     /* the shard holds a number for each token: its weight in the loss, in units */
    uint64_t n_tokens, n_docs;
    uint64_t n_skipped;          /* records of the source that were skipped before this part was complete */
    uint64_t vocab_size;         /* every id is below it */
    struct tr_hash128 tokenizer; /* zero: unknown */
    struct tr_hash128 source;    /* zero: unknown */
    struct tr_hash128 payload;
};

/* Reads the header from the first bytes of a file of n_file bytes. */
enum tr_status tr_shard_parse(const unsigned char header[TR_SHARD_HEADER_BYTES], uint64_t n_file,
                              struct tr_shard_info *out);
void tr_shard_format(const struct tr_shard_info *info, unsigned char header[TR_SHARD_HEADER_BYTES]);
/* The number of bytes after the header. False: it does not fit into 63 bits. Sections are file offsets; the
 * last one is where the file ends. */
struct tr_shard_sections {
    uint64_t docs, mask, weights, end;
};
bool tr_shard_layout(const struct tr_shard_info *info, struct tr_shard_sections *out);

/* ---- reader ---- */

struct tr_shard;

/* Reads and verifies everything once. Ids at or above vocab_size are refused. */
enum tr_status tr_shard_open(const char *path, uint64_t vocab_size, struct tr_shard **out);
/* The same, but a file that is verified and unchanged according to these seals (data/seal.h) is not read again. */
enum tr_status tr_shard_open_sealed(const char *path, uint64_t vocab_size, const struct tr_seals *seals,
                                    struct tr_shard **out);
void tr_shard_close(struct tr_shard *s);
const struct tr_shard_info *tr_shard_get_info(const struct tr_shard *s);
const char *tr_shard_path(const struct tr_shard *s);
void tr_shard_park(struct tr_shard *s); /* closes its descriptor; tr_shard_begin opens the file again */

/* Reads are between begin and end. begin checks that the file is the one that was verified. */
enum tr_status tr_shard_begin(const struct tr_shard *s, int *fd);
void tr_shard_end(const struct tr_shard *s, int fd);
enum tr_status tr_shard_read(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, int32_t *out);
/* First token of documents first.. (n of them); document n_docs "starts" at n_tokens. */
enum tr_status tr_shard_doc_starts(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, uint64_t *out);
enum tr_status tr_shard_find_doc(const struct tr_shard *s, int fd, uint64_t token, uint64_t *doc);
/* Sets targets[i] to TR_TARGET_NONE where token first + i is not a target (targets may be NULL), and counts the others.
 */
enum tr_status tr_shard_mask(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, int32_t *targets,
                             int64_t *n_targets);
/* The weights of tokens first.., in units (TR_WEIGHT_ONE); of a shard without weights they are 1. */
enum tr_status tr_shard_weights(const struct tr_shard *s, int fd, uint64_t first, uint64_t n, uint32_t *out);

/* ---- writer: streams to a temporary file beside path; path appears complete and durable, or not at all ---- */

struct tr_shard_writer;

/* Reads part, has_mask, keeps_whole, has_pairs, has_labels, has_weights, vocab_size, tokenizer and source of info. */
enum tr_status tr_shard_writer_open(const char *path, const struct tr_shard_info *info, struct tr_shard_writer **out);
/* Appends to the current document. mask: n bytes, 0 = not a target; NULL = all are targets. weight: NULL = all 1. */
enum tr_status tr_shard_writer_add(struct tr_shard_writer *w, const int32_t *ids, const uint8_t *mask,
                                   const uint32_t *weight, size_t n);
enum tr_status tr_shard_writer_end_doc(struct tr_shard_writer *w);
/* The counts so far, of complete documents only. */
void tr_shard_writer_counts(const struct tr_shard_writer *w, uint64_t *n_tokens, uint64_t *n_docs);
/* Closes the writer whatever the result. */
enum tr_status tr_shard_writer_commit(struct tr_shard_writer *w, bool is_last, uint64_t n_skipped);
void tr_shard_writer_abort(struct tr_shard_writer *w); /* removes the temporary file; w may be NULL */

#endif
