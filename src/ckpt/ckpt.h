/* ckpt.h - room header of ckpt: what survives the process. Every checkpoint is an HF model directory with the optimizer
 * state beside it; no second format exists.
 *
 * This room moves named tensors between files and a store; it does not know where the store keeps them. A store hands
 * out and takes ranges of elements, so that a rank may hold a part of a tensor and a device may need a copy on the way.
 */
#ifndef TR_CKPT_CKPT_H
#define TR_CKPT_CKPT_H

#include "ckpt/commit.h"
#include "ckpt/hfdir.h"
#include "ckpt/safetensors.h"
#include "mesh/mesh.h"
#include "parallel/parallel.h"

struct tr_store {
    void *ctx;
    const struct tr_model *model;
    bool has[TR_STATE_COUNT];
    enum tr_dtype dtype[TR_STATE_COUNT];
    /* Elements [first, first + n) of one state of one parameter as host memory in dtype[what], valid until the next
     * call: get: this rank's own, that lie side by side; whole: collective, at most TR_IO_CHUNK of them, in order. */
    enum tr_status (*get)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out);
    enum tr_status (*whole)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void **out);
    enum tr_state weights; /* what `whole` is asked for: MASTER where ranks have all of it between them, else VALUE */
    enum tr_status (*put)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n, const void *src);
    /* Would `put` keep any of these? */
    bool (*wants)(void *ctx, enum tr_state what, int param, int64_t first, int64_t n);
    /* What this rank holds of a state and saves, as boxes of the whole matrix. */
    int (*boxes)(void *ctx, enum tr_state what, int param, struct tr_box out[TR_MAX_BOXES]);
    /* The pipeline stage that saves it (NULL: one has all); stage k is rank k % size on the pp axis. */
    int (*stage)(void *ctx, int param);
};

enum { TR_IO_CHUNK = 1 << 20 }; /* elements moved at a time; the plan counts one such buffer of F32 */

/* Weights of an HF directory into VALUE (and MASTER when the store has it). Names may lack the architecture's base
 * prefix ("h.0..." for "transformer.h.0..."). Refuses missing, extra and wrongly shaped tensors, all listed at once,
 * and non-finite values. buf: TR_IO_CHUNK floats. out_dtype: dtype of the first tensor. */
enum tr_status tr_load_weights(const struct tr_store *s, const char *dir, float *buf, enum tr_dtype *out_dtype);
/* The same checks of names and shapes, reading headers only. */
enum tr_status tr_check_weights(const struct tr_model *m, const char *dir);
/* Random weights by the model's own rules. */
enum tr_status tr_load_random(const struct tr_store *s, uint64_t seed, struct tr_pool *pool, float *buf);
/* Optimizer state (and master weights) of a checkpoint, any split of ranges over any number of files. */
enum tr_status tr_load_optim(const struct tr_store *s, const char *dir, float *buf);
/* dtype of a directory's weights, from config.json ("dtype" or "torch_dtype"); F32 when it does not say. */
enum tr_dtype tr_config_dtype(const cJSON *config);

/* Saving. All headers and texts are made at open. */
struct tr_saver;
/* source_dir: where tokenizer and generation files are copied from (NULL: none). mesh: or NULL. Saving is collective:
 * the first rank of each pipeline stage writes that stage's weights into files of their own, every rank its ranges of
 * optimizer state, rank 0 the rest, and all succeed or all fail. */
enum tr_status tr_saver_open(const struct tr_store *s, struct tr_mesh *mesh, const char *source_dir,
                             enum tr_dtype save_dtype, struct tr_saver **out);
void tr_saver_close(struct tr_saver *sv);
/* output/checkpoint-<step>/ by the commit protocol; state and trainer_state are JSON texts. */
enum tr_status tr_saver_checkpoint(struct tr_saver *sv, const char *output, const char *run_id, int64_t step,
                                   int64_t generation, const char *state, const char *trainer_state,
                                   uint64_t *out_bytes);
/* The HF directory itself, without optimizer state: each file under a temporary name, fsynced, renamed, index last. */
enum tr_status tr_saver_model(struct tr_saver *sv, const char *dir);

#endif
