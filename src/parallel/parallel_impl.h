/* parallel_impl.h - private to the parallel room. */
#ifndef TR_PARALLEL_IMPL_H
#define TR_PARALLEL_IMPL_H

#include "parallel/parallel.h"

/* A first-fit allocator that is only played, never run: offsets for blocks whose lifetimes are known. */
struct tr_sim_block {
    size_t offset, bytes;
};
struct tr_sim {
    struct tr_sim_block *live; /* sorted by offset */
    int n_live, n_cap;
    size_t peak;
    enum tr_status failed;
};
enum { TR_ALIGN = 64 };
size_t tr_sim_alloc(struct tr_sim *s, size_t bytes);
void tr_sim_free(struct tr_sim *s, size_t offset);
void tr_sim_release(struct tr_sim *s);

size_t tr_value_bytes(const struct tr_program *p, tr_val v);

/* bucket.c: which parameters lie in which bucket, and where. */
/* Elements: 64 bytes of the narrowest dtype; in_order, so many that no shard's border cuts a term of the norm. */
enum { TR_BUCKET_ALIGN = 32 };
static inline int64_t tr_bucket_align(const struct tr_layout *l)
{
    return l->in_order ? TR_NORM_PIECE : TR_BUCKET_ALIGN;
}
enum tr_status tr_buckets_measure(struct tr_compiled *c);
/* The parameter after i in the order of buckets, n_params after the last, the first after -1: as the model has them;
 * for a GPU matrices first, so that weights that are used together lie side by side. */
int tr_bucket_next(const struct tr_compiled *c, int i);

/* shard.c: the level-2 pass that gathers and reduces buckets. */
enum tr_status tr_pass_shard(struct tr_compiled *c, const struct tr_model *m, struct tr_schedule *s);

/* pipeline.c: which segments make a stage, then the level-2 pass that plays the slots of a rank. */
enum tr_status tr_pipeline_cut(struct tr_compiled *c);
enum tr_status tr_pass_pipeline(struct tr_compiled *c, const struct tr_model *m, bool is_training,
                                struct tr_schedule *s);

/* place.c: offsets of everything that a compiled run holds. */
enum tr_status tr_place_bytes(struct tr_compiled *c);

/* staging.c: who writes which weights, and what a rank copies before it writes. */
void tr_place_writers(struct tr_compiled *c);
size_t tr_staging_bytes(const struct tr_compiled *c);

/* schedule.c */
enum tr_status tr_schedule_build(struct tr_compiled *c, const struct tr_model *m, bool is_training,
                                 struct tr_schedule *out);
void tr_schedule_release(struct tr_schedule *s);

#endif
