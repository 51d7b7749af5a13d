/* schedule.h - part of the room header: level 2, the actions of one rank for one optimizer step or one evaluation
 * batch.
 *
 * A schedule is a list. The executor issues its actions in that order, and the planner simulates the same list with
 * prices. An action runs on a stream. Actions of the compute stream run one after the other. A posted action (comm,
 * in and out streams) starts when every earlier action of the compute stream is done. It ends at its own time, so an
 * action that needs its result or its buffer waits for it. The list holds all waits.
 */
#ifndef TR_PARALLEL_SCHEDULE_H
#define TR_PARALLEL_SCHEDULE_H

#include "mesh/mesh.h"
#include "model/model.h"

/* id, name, watchdog phase, failpoint, stream. Every table that has a column by kind is expanded from this list. */
#define TR_ACTION_LIST(X)                                                                                              \
    /* segment, micro-batch */                                                                                         \
    X(FORWARD, "forward", FORWARD, "step.forward", COMPUTE)                                                            \
    X(BACKWARD, "backward", BACKWARD, "step.backward", COMPUTE)                   /* both parts at once */             \
    X(BACKWARD_INPUT, "backward-input", BACKWARD, "step.backward_input", COMPUTE) /* the stage before waits for it */  \
    X(BACKWARD_WEIGHT, "backward-weight", BACKWARD, "step.backward_weight", COMPUTE) /* no rank waits for it */        \
    /* an activation or its gradient, to or from another stage; wait: until a send or receive is over */               \
    X(SEND, "send", MESSAGE, "step.send", COMM)                                                                        \
    X(RECV, "recv", MESSAGE, "step.recv", COMM)                                                                        \
    X(WAIT, "wait", MESSAGE, "step.wait", COMPUTE)                                                                     \
    /* parameters of a bucket: every rank's shard to all */                                                            \
    X(GATHER, "gather", GATHER, "step.gather", COMM)                                                                   \
    /* gradients of a bucket that live on the host: the sum of earlier micro-batches to a slot on the device, and back \
     */                                                                                                                \
    X(GRAD_IN, "grad-in", BACKWARD, "step.grad_in", IN)                                                                \
    X(GRAD_OUT, "grad-out", BACKWARD, "step.grad_out", OUT)                                                            \
    /* one hop of the sum of a bucket's gradients over ranks; add: a shard that came, to those of earlier              \
     * micro-batches */                                                                                                \
    X(REDUCE, "reduce", REDUCE, "step.reduce", COMM)                                                                   \
    X(ADD, "add", REDUCE, "step.add", COMPUTE)                                                                         \
    /* reproducible layout: gradients of one micro-batch, added along the tree */                                      \
    X(TREE_ADD, "tree-add", REDUCE, "step.tree_add", COMPUTE)                                                          \
    /* gradients of parameters that two stages hold: summed over both */                                               \
    X(TIE, "tie", REDUCE, "step.tie", COMPUTE)                                                                         \
    /* squares of all gradients, or of those of a bucket that go to the host; losses to the host; the factor that      \
     * clips gradients */                                                                                              \
    X(NORM, "norm", CLIP, "step.norm", COMPUTE)                                                                        \
    X(LOSS, "loss", CLIP, "step.loss", HOST)                                                                           \
    X(CLIP, "clip", CLIP, "step.clip", HOST)                                                                           \
    /* optimizer on the parameters of a bucket */                                                                      \
    X(UPDATE, "update", UPDATE, "step.update", COMPUTE)                                                                \
    /* the same on the host, of a bucket whose states, parameters and gradients live there */                          \
    X(UPDATE_HOST, "update-host", UPDATE, "step.update_host", HOST)                                                    \
    /* optimizer state of a bucket that lives on the host: to a slot on the device, and back */                        \
    X(FETCH, "fetch", UPDATE, "step.fetch", IN)                                                                        \
    X(STORE, "store", UPDATE, "step.store", OUT)                                                                       \
    /* parameters of a bucket that live on the host: to a slot on the device */                                        \
    X(BRING, "bring", GATHER, "step.bring", IN)                                                                        \
    /* an activation that rests between forward and backward: to a slot on the host, and back */                       \
    X(STOW, "stow", FORWARD, "step.stow", OUT)                                                                         \
    X(UNSTOW, "unstow", BACKWARD, "step.unstow", IN)                                                                   \
    /* fp8 with delayed scales: largest elements of earlier steps to the device, those of this step back */            \
    X(AMAX_IN, "amax-in", UPDATE, "step.amax_in", HOST)                                                                \
    X(AMAX_OUT, "amax-out", UPDATE, "step.amax_out", HOST)

enum tr_action_kind {
#define X(id, name, phase, failpoint, stream) TR_DO_##id,
    TR_ACTION_LIST(X)
#undef X
        TR_ACTION_KINDS
};

/* The host decides once per step, between measure and update, whether the parameters change. So a step has parts, which
 * run one by one. Evaluation and generation have one part, gradients. */
enum tr_step_part { TR_PART_BEGIN, TR_PART_GRADIENTS, TR_PART_MEASURE, TR_PART_UPDATE, TR_PART_END, TR_STEP_PARTS };

/* A buffer is symbolic until the pass `memory` has run. Actions take and free slots; `memory` gives each slot an offset
 * in its region. All other buffers exist for the whole run (place.c). */
enum tr_region {
    TR_BUF_ACTS,                 /* slot: activations */
    TR_BUF_VALUES,               /* slot: parameters of a bucket that come and go (zero 3, or from the host) */
    TR_BUF_GRADS,                /* slot: whole gradients of a bucket (zero 2 and 3, or from the host) */
    TR_BUF_STATES,               /* slot: states of a bucket that live on the host */
    TR_BUF_RESTING,              /* slot on the host: activations between forward and backward */
    TR_BUF_SLOTS,                /* number of regions of slots */
    TR_BUF_VALUE = TR_BUF_SLOTS, /* by bucket: parameters, whole or the shard */
    TR_BUF_GRAD,                 /* by bucket: gradients, whole or the shard */
    TR_BUF_STATE,                /* by bucket: all states of the optimizer */
    TR_BUF_HOST,                 /* by bucket: states that live on the host */
    TR_BUF_LEVELS,               /* by bucket: sums of earlier micro-batches (reproducible layout) */
    TR_BUF_STAGING,              /* a reduced shard before it is added; gradients in reduce_dtype */
    TR_BUF_STEP,
    TR_BUF_LOSS,
    TR_BUF_NORM,
    TR_BUF_AMAX,
    TR_REGIONS
};
struct tr_buffer {
    enum tr_region region;
    int bucket; /* -1: of none */
    size_t bytes, offset;
};

/* A segment reads its own buckets and those of parameters that several segments share, of every fate. */
enum { TR_MAX_BUCKETS = 8, TR_MAX_USES = 8 + 2 * TR_MAX_BUCKETS };

/* What an action does with a buffer, and as what: the basis of lifetimes and of the hazard check. */
enum tr_role {
    TR_AS_IN,
    TR_AS_OUT,
    TR_AS_DOUT,
    TR_AS_DIN,
    TR_AS_SAVED,
    TR_AS_SPLIT_SAVED,
    TR_AS_VALUE,
    TR_AS_GRAD,
    TR_AS_STATE,
    TR_AS_OTHER
};
struct tr_buffer_use {
    int32_t buffer;
    uint8_t role, index; /* index: for VALUE and GRAD, which of the action's buckets */
    bool writes, takes, frees;
    bool is_idle; /* the action frees it and does not touch its bytes */
};

struct tr_wait {
    int32_t action; /* a posted one */
    uint8_t lag;    /* 0: an action of this step; 1: of the step before. No wait where that step did not run. */
};

struct tr_action {
    enum tr_action_kind kind;
    enum tr_stream stream; /* from TR_ACTION_LIST, or compute where the action runs in place */
    enum tr_step_part part;
    int segment, micro;
    int of;        /* gather, reduce, add, tree add, tie, update, norm: the bucket; -1: of none */
    int hop;       /* reduce: which */
    bool is_first; /* reduce: the first one of this step; its result is stored, not added. gather: behind its update */
    /* Local parameters of the segment, a bit each. Backward: it adds to these gradients, because they already hold a
     * sum of this step, and overwrites the others. Tree add: it adds the gradients of these. */
    uint64_t params;
    int peer, message; /* messages: pipeline rank; number of the send or receive */
    size_t count;      /* messages: elements */
    enum tr_dtype dtype;
    int n_uses, first_wait, n_waits;
    struct tr_buffer_use use[TR_MAX_USES];
    /* place.c computes these from the uses: offsets in the acts arena (a message is at `in` or `out`; the host's side
     * of a stow or unstow in the host arena), and where the whole parameters and gradients of each bucket are. */
    size_t in, out, dout, din, saved, split_saved;
    size_t state; /* states that live on the host: where they are on the device */
    /* A fetch: its own bucket, then those whose stores, in this step or in the one before, come before it. */
    int n_buckets, bucket[TR_MAX_BUCKETS];
    size_t value[TR_MAX_BUCKETS], grad[TR_MAX_BUCKETS];
};

/* Generation has a cache of keys and values: prefill reads a large chunk of one prompt, chunk a small one, decode a
 * single token of every sequence. Each rank computes all tokens there: rows are not split over the context axis, nor
 * with sp. */
enum tr_purpose { TR_FOR_TRAIN, TR_FOR_EVAL, TR_FOR_PREFILL, TR_FOR_CHUNK, TR_FOR_DECODE, TR_PURPOSES };
static inline bool tr_purpose_has_cache(enum tr_purpose p)
{
    return p >= TR_FOR_PREFILL;
}

/* One rank's actions for one optimizer step (or one evaluation batch), with the programs they run. */
struct tr_schedule {
    enum tr_purpose purpose;
    const struct tr_model *model; /* with the batch of this purpose; NULL: there are no actions */
    struct tr_program **program;
    int n_programs;
    int *program_of; /* by segment */
    struct tr_action *action;
    int n_actions, n_messages;
    struct tr_buffer *buffer;
    int n_buffers;
    struct tr_wait *wait;
    int n_waits;
    size_t n_actions_cap, n_buffers_cap, n_waits_cap;
    int part_first[TR_STEP_PARTS + 1];
    size_t region_bytes[TR_BUF_SLOTS]; /* peaks of the regions of slots */
    size_t work_bytes;
    double flops, recompute_flops; /* of all micro-batches */
};

const char *tr_action_name(enum tr_action_kind kind);
/* The last forward of the head; NULL: another stage has it. */
const struct tr_action *tr_schedule_head(const struct tr_schedule *s);
static inline bool tr_action_has_program(const struct tr_action *a)
{
    return a->kind <= TR_DO_BACKWARD_WEIGHT;
}
/* Does it read the parameters of its buckets (a reader, in the passes)? The weight part of a backward reads activations
 * and gradients only. */
static inline bool tr_action_reads_params(const struct tr_action *a)
{
    return tr_action_has_program(a) && a->kind != TR_DO_BACKWARD_WEIGHT;
}
static inline bool tr_action_has_bucket(const struct tr_action *a, int bucket)
{
    for (int i = 0; i < a->n_buckets; i++)
        if (a->bucket[i] == bucket)
            return true;
    return false;
}
/* Is it an update of the step before, a copy for one, or the gather behind one? It runs only where that step left one.
 */
static inline bool tr_action_is_deferred(const struct tr_action *a)
{
    return a->part == TR_PART_GRADIENTS &&
           (a->kind == TR_DO_UPDATE || a->kind == TR_DO_UPDATE_HOST || a->kind == TR_DO_FETCH ||
            a->kind == TR_DO_STORE || (a->kind == TR_DO_GATHER && a->is_first));
}
/* Does it end at its own time, so that others wait for it? */
static inline bool tr_action_is_posted(const struct tr_action *a)
{
    return a->stream == TR_STREAM_COMM || a->stream == TR_STREAM_IN || a->stream == TR_STREAM_OUT;
}
/* Does an action of this kind run nodes of this phase? */
bool tr_action_runs(enum tr_action_kind kind, enum tr_phase phase);

/* Proves that two actions that touch the same bytes, one of them writing, are ordered, within a step and from one step
 * to the next. TR_BUG names both actions and the bytes. */
enum tr_status tr_schedule_check(const struct tr_schedule *s);

#endif
