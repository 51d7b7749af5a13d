/* save_impl.h - private to saving: the saver, and what its files share. */
#ifndef TR_CKPT_SAVE_IMPL_H
#define TR_CKPT_SAVE_IMPL_H

#include "ckpt/ckpt.h"
#include <pthread.h>

/* What a writer reports of a file: size and hash as they were in its memory. */
struct tr_written {
    int64_t bytes, lo, hi;
};

enum { TR_SAVE_TEXTS = 6 };
enum tr_save_phase { TR_SAVE_NONE, TR_SAVE_WRITING, TR_SAVE_COMMITTING };
enum tr_save_task { TR_TASK_NONE, TR_TASK_TOUCH, TR_TASK_WRITE, TR_TASK_COMMIT, TR_TASK_CLEAN, TR_TASK_LEAVE };

struct tr_saver {
    struct tr_store s;
    struct tr_saver_options opt;
    struct tr_mesh *own_mesh; /* of a caller that gave none */
    char source[TR_PATH_MAX], base[TR_PATH_MAX];
    bool has_source, has_base;
    int rank, world;
    struct tr_save_text text[TR_SAVE_TEXTS]; /* ours; the last one is config.json or adapter_config.json */
    size_t n_texts;
    struct tr_hf_plan *plan;
    int *param_of; /* by entry of the plan; -1 - k: tensor k of carry */
    int *start_of; /* by entry: the frozen parameter that is its second half; -1: it has none */
    char *join;    /* a chunk of both halves; NULL: no entry has a second one */
    size_t n_entries;
    struct tr_naming naming; /* of the source, where tensors are carried over */
    struct {
        struct tr_hf *hf;
        size_t *tensor, n;
        float *buf; /* TR_IO_CHUNK */
    } carry;
    struct tr_written *files; /* of the plan; then of every rank's optimizer file: what was written */
    size_t n_files;
    struct tr_st_writer *optim; /* NULL: no optimizer state here */
    struct tr_pump *pump;       /* of the file that is being written */

    /* the save in flight; the fields of the thread's task are its own while `task` is not NONE */
    struct tr_save_job job;
    char dir[TR_CKPT_NAME_MAX]; /* beneath job.output */
    char *state;
    enum tr_save_phase phase;
    int64_t start_us, write_us;
    struct tr_save_result result;

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    enum tr_save_task task;     /* asked for and not yet done */
    enum tr_status task_status; /* of the last one */
    char task_cause[sizeof((struct tr_save_result *)0)->cause];
};

/* save_config.c: config.json with dtype and architectures as we save them, quant (NULL: none) as its
 * quantization_config, and every other key as it came. */
enum tr_status tr_saved_config(const struct tr_model *m, enum tr_dtype dtype, const cJSON *quant, char **out);

/* Where the walk over what a rank writes ends: memory, or (at NULL) the writer of the file at hand, which may be NULL
 * too. */
struct tr_save_sink {
    struct tr_saver *sv;
    char *at, *end;
    struct tr_st_writer *w;
    enum tr_status failed; /* of the file: peers join the tensors this rank joins, so the walk goes on */
};
void tr_save_take(struct tr_save_sink *k, const void *src, enum tr_dtype dtype, int64_t n);

/* save_join.c: a tensor whose second half is a frozen parameter, [A; A0] and [B, -B0]. */
enum tr_status tr_save_join_open(struct tr_saver *sv);
int tr_save_join_dim(const struct tr_saver *sv, int param); /* which dim of the tensor has both halves */
enum tr_status tr_save_walk_joined(struct tr_save_sink *k, int param, int start);

/* save_carry.c: tensors of the source directory that are no parameters. */
enum tr_status tr_save_carry_open(struct tr_saver *sv);
struct tr_st_entry tr_save_carry_entry(const struct tr_saver *sv, size_t k);
enum tr_status tr_save_carry_copy(struct tr_saver *sv, size_t k, struct tr_st_writer *w);
void tr_save_carry_close(struct tr_saver *sv);

/* save_model.c: tokenizer and generation files of a directory into another. */
enum tr_status tr_save_copy_files(const char *from, const char *to);

/* save_async.c */
enum tr_status tr_save_start_thread(struct tr_saver *sv);

/* save.c */
bool tr_saver_writes(const struct tr_saver *sv, size_t file);
/* All that this rank writes: through `staging` (copied there now, written by tr_save_write_staged) or straight into
 * files below dir. Every rank calls it: tensors are joined on the way. */
enum tr_status tr_save_snapshot(struct tr_saver *sv);
enum tr_status tr_save_write_staged(struct tr_saver *sv);
/* File k of the weights, straight from the store; all ranks call it for every file. */
enum tr_status tr_save_stream_file(struct tr_saver *sv, size_t k, const char *dir, const char *name);
enum tr_status tr_save_stream_optim(struct tr_saver *sv);
enum tr_status tr_save_optim_name(const struct tr_saver *sv, int rank, char *out, size_t n);
/* All ranks learn whether all of them got here well. */
enum tr_status tr_save_agree(struct tr_saver *sv, enum tr_status st);

#endif
