/* ckpt.h - room header of ckpt: what survives the process. Every checkpoint is an HF model directory with the optimizer
 * state beside it; no second format exists.
 *
 * This room moves named tensors between files and a store; it does not know where the store keeps them. A store hands
 * out and takes ranges of elements, so that a rank may hold a part of a tensor and a device may need a copy on the way.
 */
#ifndef TR_CKPT_CKPT_H
#define TR_CKPT_CKPT_H

#include "ckpt/adapter_keys.h"
#include "ckpt/commit.h"
#include "ckpt/hfdir.h"
#include "ckpt/identity.h"
#include "ckpt/safetensors.h"
#include "mesh/mesh.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

struct tr_store {
    void *ctx;
    const struct tr_model *model;
    struct tr_pool *pool;     /* its threads read files and convert; NULL: one */
    struct tr_states states;  /* what is held */
    const uint8_t *fate_of;   /* by parameter, enum tr_fate: which states are held of it; NULL: all are */
    const uint8_t *packed_of; /* by parameter, enum tr_packed: VALUE is held in grains, which are its elements; NULL: in
                                 none */
    const struct tr_sums *sums; /* of the directory that is read, when it was verified; NULL: reads are not compared */
    bool nests_scales;          /* the scales of weights that are packed here are rounded by double quantisation */
    /* Elements [first, first + n) of one state of one parameter as host memory in the dtype of its row, valid until the
     * next call. get: this rank's own, that lie side by side; whole: collective over the ranks that hold parts of what
     * the writer is to have, at most TR_IO_CHUNK of them, in order; *out is NULL for a rank that has nothing to do with
     * it. Elements are counted in the state itself: where a row has blocks, an element is a block of the parameter. */
    enum tr_status (*get)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out);
    enum tr_status (*whole)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out);
    enum tr_status (*put)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src);
    /* Would `put` keep any of these? */
    bool (*wants)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n);
    /* What this rank saves of a state, as ranges of the whole matrix. */
    int (*ranges)(void *ctx, enum tr_state what, int param, struct tr_range out[TR_MAX_RANGES]);
    /* The rank that writes it, whole (NULL: rank 0 writes all). */
    int (*writer)(void *ctx, int param);
};

static inline bool tr_store_holds(const struct tr_store *s, enum tr_state what, int param)
{
    return s->fate_of ? tr_states_has(&s->states, (int)what, (enum tr_fate)s->fate_of[param])
                      : s->states.row[what].is_held;
}
/* What the weights of a file are made of. */
static inline enum tr_state tr_store_weights(const struct tr_store *s, int param)
{
    return tr_store_holds(s, TR_S_MASTER, param) ? TR_S_MASTER : TR_S_VALUE;
}

enum { TR_IO_CHUNK = 1 << 20 }; /* elements moved at a time; the plan counts one such buffer of F32 */
/* Elements of a dtype that the same buffer holds: fewer where they are wider than F32. */
static inline int64_t tr_io_chunk(enum tr_dtype d)
{
    return TR_IO_CHUNK / tr_max64(1, (int64_t)(tr_dtype_bytes(d) / sizeof(float)));
}

/* Weights of an HF directory into VALUE (and MASTER when the store has it). Names may lack the architecture's base
 * prefix ("h.0..." for "transformer.h.0..."). Refuses missing, extra and wrongly shaped tensors, all listed at once,
 * and non-finite values. buf: TR_IO_CHUNK floats. out_dtype: dtype of the first tensor. */
enum tr_status tr_load_weights(const struct tr_store *s, const char *dir, float *buf, enum tr_dtype *out_dtype);
/* The same checks of names and shapes, reading headers only. */
enum tr_status tr_check_weights(const struct tr_model *m, const char *dir);
/* An adapter's directory: adapter_model.safetensors into the parameters that are in the adapter, and into those of the
 * base that it holds a copy of. base: where the file belongs to a base that its start has changed (PEFT's PiSSA), that
 * start is made anew from this directory; NULL: the file is of a run here, or nothing will be computed. Every refusal
 * names all tensors that are missing, extra or of another shape. */
enum tr_status tr_adapter_file(const char *dir, struct tr_hf **out); /* adapter_model.safetensors, opened */
/* The model of a base, whose vocabulary grows to that of the adapter's file: where it grew, PEFT saves its tables
 * whole. dir NULL: as tr_model_open. */
enum tr_status tr_adapter_open_base(const char *base, const char *dir, const struct tr_model_options *opt,
                                    struct tr_model **out);
enum tr_status tr_load_adapter(const struct tr_store *s, const char *base, const char *dir, float *buf);
enum tr_status tr_check_adapter(const struct tr_model *m, const char *dir);
/* The weights of another store of the same model. */
enum tr_status tr_load_store(const struct tr_store *s, const struct tr_store *from, float *buf);
/* Random weights by the model's own rules. */
enum tr_status tr_load_random(const struct tr_store *s, uint64_t seed, struct tr_pool *pool, float *buf);
/* The same of the parameters that only the adapter has. */
enum tr_status tr_load_new_adapter(const struct tr_store *s, const char *base, uint64_t seed, struct tr_pool *pool,
                                   float *buf);
/* Optimizer state (and master weights) of a checkpoint, any split of ranges over any number of files. A parameter that
 * learns here and was frozen there starts with a state of zeros: n_new of them. n_dropped: tensors of state in it whose
 * parameters are frozen here. A tool that holds all states of all parameters learns which of them the files have:
 * fate_of and fates are what the store and its rows must say of them. out may be NULL. */
struct tr_load_result {
    uint8_t *fate_of; /* by parameter; the caller's, or NULL */
    uint8_t fates[TR_STATES_MAX];
    int64_t n_new, n_dropped;
};
enum tr_status tr_load_optim(const struct tr_store *s, const char *dir, float *buf, struct tr_load_result *out);
/* The states that a checkpoint holds, from the names in its files, as a tool holds them: floats as F32, others as they
 * are. VALUE is always among them. dir NULL: VALUE alone. */
enum tr_status tr_optim_states(const char *dir, struct tr_states *out);

/* A store in host memory, for tools. m outlives it. */
struct tr_memory;
enum tr_status tr_memory_open(const struct tr_model *m, const struct tr_states *states, struct tr_memory **out,
                              struct tr_store *store);
void tr_memory_close(struct tr_memory *x);

/* How two HF directories or checkpoints differ: tensors of weights and optimizer state, one line each, at most `most`
 * of them. *out_n: how many differ. */
enum tr_status tr_ckpt_diff(const char *a, const char *b, size_t most, struct tr_str *out, size_t *out_n);

/* The weights of directory `from` into a new directory `to`, those of linears in 4 bits as bitsandbytes has them, so
 * that transformers loads them. Memory: a few chunks, and with double quantisation 1/64 byte an element of one file. */
#define TR_BNB4_SHARD_BYTES UINT64_C(5000000000)
struct tr_bnb4_options {
    enum tr_q4 type;
    bool is_double;
    struct tr_pool *pool; /* its threads read and encode; NULL: one */
    uint64_t shard_bytes; /* of a file, at most */
};
enum tr_status tr_write_bnb4(const struct tr_model *m, const char *from, const char *to,
                             const struct tr_bnb4_options *opt, uint64_t *out_bytes);

/* dtype of a directory's weights, from config.json ("dtype" or "torch_dtype"); F32 when it does not say. */
enum tr_dtype tr_config_dtype(const cJSON *config);

/* Files of a model or an adapter that are neither weights nor configuration; NULL at the end. The first ones are of the
 * model, the others of its tokenizer, which stay together. */
enum { TR_COPIED_OF_MODEL = 4 };
extern const char *const tr_copied_files[];

/* Saving. All headers and texts are made at open.
 *
 * A checkpoint is taken in three parts. start, on all ranks together: every rank copies what it is to write into its
 * staging memory; this is all that a step waits for. Then a thread of each rank writes its files. Then rank 0 commits,
 * reads back, and removes what is too old, again in its thread. poll, on all ranks together and between steps, moves
 * from one part to the next. At most one save is in flight. Nothing here stops a training: what failed is told by poll.
 * Without staging memory the files are written by start itself. */
struct tr_saver;
/* A small file beside the weights, by its name in the directory ("trireme/x" is allowed). */
struct tr_save_text {
    const char *name, *text;
};
enum { TR_SAVE_PAGES_BYTES = 4 << 20 }; /* of the file that is being written */
struct tr_saver_options {
    struct tr_mesh *mesh;   /* NULL: this process saves alone */
    struct tr_pool *pool;   /* its threads copy; NULL: one */
    const char *source_dir; /* where tokenizer and generation files are copied from; NULL: none */
    /* Where what is not text comes from when source_dir does not have it: tensors that are no parameters, and the first
     * TR_COPIED_OF_MODEL files. NULL: source_dir alone. */
    const char *base_dir;
    enum tr_dtype dtype; /* of the weights */
    bool only_model;     /* no optimizer state */
    /* Small files beside the weights; copied. They take the place of files of that name in source_dir. The last one is
     * written last, because with it the directory counts as whole: of an adapter that is adapter_config.json, and
     * otherwise config.json, which the saver makes. */
    const struct tr_save_text *text;
    size_t n_texts;
    void *staging; /* NULL: none */
    size_t staging_bytes;
    void *pages; /* as pump.h wants them; NULL: its own */
};
enum tr_status tr_saver_open(const struct tr_store *s, const struct tr_saver_options *opt, struct tr_saver **out);
/* False: a thread hangs in the disk. It is left behind, and with it all that it may still use, which is the caller's to
 * keep: store, staging memory, job. */
bool tr_saver_close(struct tr_saver *sv);

struct tr_save_job {
    const char *output, *run_id; /* outlive the save */
    int64_t step, generation;
    const char *state; /* text of trireme/state.json; copied */
    /* text of trainer_state.json, made in the thread of rank 0; ctx outlives the save */
    enum tr_status (*trainer_state)(void *ctx, int64_t step, struct tr_str *out);
    void *ctx;
    struct tr_ckpt_keep keep;
};
struct tr_save_result {
    int64_t step;
    enum tr_status status; /* the same on all ranks; cause and rank: of the first rank that failed */
    int rank;
    char cause[512];
    double write_s; /* of rank 0: from the snapshot to the end of the verification, which reads the files back */
    uint64_t bytes;
    bool is_verified;
    char stays[256]; /* of rank 0: why an old checkpoint could not be removed; empty when all were */
};
/* *out_started false: the save before is still in flight, and this one is not made (C4). */
enum tr_status tr_saver_start(struct tr_saver *sv, const struct tr_save_job *job, bool *out_started);
bool tr_saver_is_busy(const struct tr_saver *sv); /* the same on all ranks */
/* Collective while busy. *out_done: that save has ended, and *out tells how. Fails only when ranks cannot talk. */
enum tr_status tr_saver_poll(struct tr_saver *sv, bool *out_done, struct tr_save_result *out);
/* Polls until it has ended; TR_TIMEOUT after seconds on rank 0. */
enum tr_status tr_saver_wait(struct tr_saver *sv, double seconds, bool *out_done, struct tr_save_result *out);
double tr_saver_age(const struct tr_saver *sv); /* seconds since the start of the save in flight; 0: none */

/* The HF directory itself, without optimizer state: each file under a temporary name, fsynced, renamed, index last.
 * Collective. */
enum tr_status tr_saver_model(struct tr_saver *sv, const char *dir);

#endif
