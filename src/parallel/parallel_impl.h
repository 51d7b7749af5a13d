/* parallel_impl.h - private to the parallel room. */
#ifndef TR_PARALLEL_IMPL_H
#define TR_PARALLEL_IMPL_H

#include "parallel/parallel.h"

enum { TR_ALIGN = 64 };
size_t tr_value_bytes(const struct tr_program *p, tr_val v);

/* bucket.c: which parameters lie in which bucket, and where. */
/* Alignment of parameters and shards, in elements. It covers 64 bytes of the narrowest dtype of VALUE and at least one
 * block of every state. In order it is so large that no shard ends inside a term of the norm. All three are powers of
 * 2. */
enum { TR_BUCKET_ALIGN = 32, TR_GRAINS_ALIGN = 4 /* grains: 16 bytes of every format, for wide loads */ };
static inline int64_t tr_bucket_align(const struct tr_layout *l)
{
    return tr_max64(l->in_order ? TR_NORM_PIECE : TR_BUCKET_ALIGN, l->grain);
}
enum tr_status tr_buckets_measure(struct tr_placement *p);
/* The parameter after i in the order of buckets: the first after -1, n_params after the last. The order is that of the
 * model, or matrices come first. */
int tr_bucket_next(const struct tr_placement *p, int i);

/* actions.c: the writer of level-2 passes. */
struct tr_emit {
    const struct tr_compiled *c;
    struct tr_schedule *s;
    struct tr_action *from; /* the list that the pass before wrote */
    int n_from;
    enum tr_status st;        /* first failure */
    struct tr_action nowhere; /* target of writes after a failure */
};
void tr_emit_begin(struct tr_emit *e, const struct tr_compiled *c, struct tr_schedule *s);
enum tr_status tr_emit_end(struct tr_emit *e);
/* Both return the action in the list, for the caller to complete. The pointer is valid until the next call. */
struct tr_action *tr_emit(struct tr_emit *e, const struct tr_action *a);
struct tr_action *tr_emit_new(struct tr_emit *e, enum tr_action_kind kind, enum tr_step_part part, int segment,
                              int micro);
int tr_slot_add(struct tr_emit *e, enum tr_region region, int bucket, size_t bytes); /* a new buffer */
int tr_fixed_buffer(const struct tr_schedule *s, enum tr_region region, int bucket);
struct tr_buffer_use *tr_use_add(struct tr_action *a, int buffer, enum tr_role role, bool writes);
void tr_use_free(struct tr_action *a, int buffer); /* nothing reads the slot after this action */
void tr_wait_add(struct tr_emit *e, struct tr_action *a, int action, int lag);

/* frozen.c: marks the frozen and packed parameters of a segment's program. Two segments that share a program share its
 * rewritten form only when the same parameters are. */
void tr_program_freeze(const struct tr_placement *p, int segment, struct tr_program *out);
/* Does a gradient cross the border in front of the segment? It does where a segment before it learns, and in all
 * pipeline stages but the first: their messages do not depend on what learns, so the gradient goes down to the first.
 */
bool tr_segment_gives_din(const struct tr_placement *p, int segment);
/* A segment's program after pass grad, on one rank of its axes. */
void tr_segment_ctx(const struct tr_placement *p, int segment, struct tr_pass_ctx *ctx);
bool tr_segments_are_alike(const struct tr_placement *p, int a, int b);

/* Level-2 passes, in the order of the table in schedule.c. Of the run they see options, placement and pipe; memory is
 * not placed yet. */
typedef enum tr_status tr_level2_fn(const struct tr_compiled *c, struct tr_schedule *s);
tr_level2_fn tr_pass_pipeline;           /* segments in the order of the pipeline schedule, messages */
tr_level2_fn tr_pass_shard;              /* zero 3: whole parameters are gathered and freed */
tr_level2_fn tr_pass_reduce;             /* gradients: overwritten or added to, then summed over ranks */
tr_level2_fn tr_pass_update;             /* norm, clip, optimizer, new weights to all ranks */
tr_level2_fn tr_pass_offload;            /* states on the host: fetched and stored around their update */
tr_level2_fn tr_pass_stow;               /* activations on the host between forward and backward */
tr_level2_fn tr_pass_overlap;            /* posts actions earlier, and adds waits where results are needed */
tr_level2_fn tr_pass_memory;             /* lifetimes -> offsets */
void tr_level2_list(struct tr_str *out); /* their names, in order */

/* pipeline.c: which segments make a stage. */
enum tr_status tr_pipeline_stages(struct tr_compiled *c);

/* place.c: offsets of everything that a compiled run holds. */
enum tr_status tr_place_bytes(struct tr_compiled *c);

/* offload.c: which buckets have their states, parameters and gradients on the host; and the bytes that travel to an
 * update. */
void tr_offload_choose(struct tr_placement *p, const struct tr_compile_options *o);
size_t tr_bucket_state_bytes(const struct tr_placement *p, int bucket);

/* whole.c: what the phases of the optimizer on whole matrices need. */
bool tr_has_whole(const struct tr_compiled *c);
size_t tr_whole_scratch(const struct tr_compiled *c);
void tr_whole_bytes(const struct tr_compiled *c, size_t *direction, size_t *matrix);
/* sums.c: what the phases of the optimizer with sums need. */
size_t tr_sums_bytes(const struct tr_compiled *c);
size_t tr_sums_scratch(const struct tr_compiled *c);

/* staging.c: which rank writes which weights, and what a rank copies before it writes. */
void tr_place_writers(struct tr_placement *p, const struct tr_compile_options *o);
size_t tr_staging_bytes(const struct tr_compiled *c);

/* schedule.c */
enum tr_status tr_schedule_build(const struct tr_compiled *c, struct tr_schedule *s);
void tr_schedule_release(struct tr_schedule *s); /* purpose and model stay, for the next build */
const char *tr_bucket_name(const struct tr_model *m, int bucket, char *buf, size_t n);

#endif
