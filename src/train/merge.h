/* merge.h - an adapter merged into its base: the weights of a plain model, made tensor by tensor as they are read. */
#ifndef TR_TRAIN_MERGE_H
#define TR_TRAIN_MERGE_H

#include "build/build.h"

struct tr_merge;
struct tr_merge_options {
    const char *adapter, *base; /* directories */
    bool unties;                /* embedding and head of a tied model become two matrices */
    enum tr_packed packed;      /* how the run held the base; TR_NOT_PACKED where its directory has codes */
    bool nests_scales;          /* with double quantisation */
    struct tr_pool *pool;       /* NULL: one thread */
};
/* Refuses what does not belong together, and a merge that would need to untie what is tied. */
enum tr_status tr_merge_open(const struct tr_merge_options *opt, struct tr_merge **out);
void tr_merge_close(struct tr_merge *x);
const struct tr_model *tr_merge_model(const struct tr_merge *x); /* the plain model */
enum tr_dtype tr_merge_dtype(const struct tr_merge *x);          /* of the base's weights, and of the merged ones */
/* A store whose weights are the merged ones, rounded to tr_merge_dtype. It only reads; one caller at a time. */
struct tr_store tr_merge_store(struct tr_merge *x, enum tr_onto onto);
bool tr_merge_can(const struct tr_merge *x, enum tr_onto onto); /* is there such a base? */

/* How far weights are from a model as it runs (cfg->model), over rows of token ids: the logits of every position are
 * compared. The caller's options ask for float32, so that the distance is that of the weights. */
struct tr_merge_rows {
    const int32_t *id; /* (n, n_tokens) */
    int64_t n, n_tokens;
};
struct tr_distance {
    double max_logit_diff, kl; /* kl: mean over positions, of the running model */
};
struct tr_live; /* the logits of the running model */
enum tr_status tr_live_open(const struct tr_config *cfg, const struct tr_hparams *hp, const struct tr_merge_rows *rows,
                            struct tr_live **out);
enum tr_status tr_live_distance(struct tr_live *l, const struct tr_store *other, struct tr_distance *out);
void tr_live_close(struct tr_live *l);

/* The distance of each candidate from the adapter as it runs. */
struct tr_merge_proof {
    bool has[TR_ONTO_COUNT];
    struct tr_distance to[TR_ONTO_COUNT];
};
enum tr_status tr_merge_prove(struct tr_merge *x, const struct tr_config *cfg, const struct tr_merge_rows *rows,
                              struct tr_merge_proof *out);

/* The adapter of `s` (s->dir) as another program reads it: TR_EXPORT_PEFT or TR_EXPORT_VLLM. out: a directory that is
 * not there, or empty. */
enum tr_status tr_export_adapter(const struct tr_dirs *s, enum tr_export to, const char *out);

/* A directory that gets its name when it is whole: fill writes into `temp` beneath `dir`. out: a directory that is not
 * there, or empty. What was written is removed when fill fails. */
typedef enum tr_status tr_new_dir_fn(void *ctx, const char *dir, const char *temp);
enum tr_status tr_new_dir(const char *out, tr_new_dir_fn *fill, void *ctx);
bool tr_new_dir_takes(const char *out); /* could a directory of this name be renamed into place? */
/* Refuses what tr_new_dir would refuse. For those who have long work to do before they fill it. */
enum tr_status tr_new_dir_check(const char *out);

#endif
