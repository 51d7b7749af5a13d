/* exec.h - the executor: runs a schedule on a device. Everything is reserved at open; nothing allocates afterwards. */
#ifndef TR_EXEC_EXEC_H
#define TR_EXEC_EXEC_H

#include "config/config.h"
#include "data/data.h"
#include "device/device.h"
#include "mesh/mesh.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

/* fp8 with delayed scales: the amax history, which is the largest element that each of the last updates found, by
 * segment and value. n is 0 in a run that has no delayed scales. */
enum { TR_AMAX_STEPS = 16 };
struct tr_amax_history {
    size_t n;
    int64_t n_steps; /* update k is in row k % TR_AMAX_STEPS */
    float *amax;     /* (TR_AMAX_STEPS, n) */
    struct {
        float before, now;
    } * pair; /* (n), in the layout of the device */
};

struct tr_exec;

/* Reserves the arenas (exactly c->memory.bytes), uploads the constants and clears the optimizer state. The caller fills
 * the parameters. mesh NULL: this rank runs alone. */
enum tr_status tr_exec_open(const struct tr_compiled *c, struct tr_device *dev, struct tr_pool *pool,
                            struct tr_mesh *mesh, uint64_t seed, struct tr_exec **out);
/* Bytes of shared memory that the mesh must be opened with for this plan. */
size_t tr_exec_shared_bytes(const struct tr_compiled *c);
void tr_exec_close(struct tr_exec *e);
/* What the executor was opened with. tr_exec_arena returns the first byte of an arena. */
const struct tr_compiled *tr_exec_compiled(const struct tr_exec *e);
struct tr_device *tr_exec_device(const struct tr_exec *e);
struct tr_pool *tr_exec_pool(const struct tr_exec *e);
struct tr_mesh *tr_exec_mesh(const struct tr_exec *e);
char *tr_exec_arena(const struct tr_exec *e, enum tr_arena_id a);

struct tr_step_result {
    double sum[TR_METRICS];     /* of pairs; else the loss and zeros */
    double loss_sum, grad_norm; /* loss_sum: over the valid targets of the given micro-batches */
    double wait_s, exposed_s; /* how long arithmetic waited for other pipeline stages; for communication of any kind */
};
/* After this call every reduction of gradients and activations is checked for flipped bits. The device must use host
 * memory; any other device is refused with TR_USAGE. */
enum tr_status tr_exec_check_sums(struct tr_exec *e);
/* May micro-batches be dense (tr_batch.n_used)? Ops then read and write the first rows of their values only. Not where
 * ranks split the tokens of a row, and not with 8-bit products, which hold some values turned. */
bool tr_exec_takes_dense(const struct tr_exec *e);
/* A step has two parts. Measure computes the gradients, the loss, the norm and the clip factor, which are the same on
 * all ranks. It changes no parameter, so a caller may repeat it. Update changes the parameters by the gradients of the
 * last measure. */
enum tr_status tr_exec_measure(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                               const float values[TR_STEP_COUNT], struct tr_step_result *out);
enum tr_status tr_exec_update(struct tr_exec *e, struct tr_step_result *out);
/* The norm of the gradient of each parameter, (n_params). Valid after a measure and until the next one. The squares add
 * up to the square of grad_norm, up to rounding. The call does not change the results of measure. */
void tr_exec_param_norms(struct tr_exec *e, double *out);
/* One optimizer step on n_micro micro-batches in host memory. values is the step buffer; the executor fills in the clip
 * factor. */
enum tr_status tr_exec_step(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                            const float values[TR_STEP_COUNT], struct tr_step_result *out);
/* Waits for every collective and message that is still under way. A caller that reads or writes parameters or state
 * between steps calls it first. */
enum tr_status tr_exec_drain(struct tr_exec *e);
/* Computes gradients only, without clip and update (tests, and evaluation of gradients). */
enum tr_status tr_exec_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT],
                                 double *loss_sum);
/* Runs the eval schedule on one batch. sum[0] is the sum of the token losses; of pairs, all of enum tr_metric. They
 * are 0 on ranks without the last stage. */
enum tr_status tr_exec_eval(struct tr_exec *e, const struct tr_batch *batch, double sum[TR_METRICS]);
/* Writes one number of the step buffer that the eval schedule reads. The caller has run that schedule or drained. */
void tr_exec_set_step(struct tr_exec *e, enum tr_step_slot slot, float value);
/* The same with a model that gives sums of documents: (N, tr_doc_sums), in the row where each begins. */
enum tr_status tr_exec_documents(struct tr_exec *e, const struct tr_batch *batch, float *sums);
/* Runs the schedule of a model that ends in logits. *logits is (N, V) F32, or (1, V) where the model wants the last
 * only, valid until the next call; NULL on ranks without the last stage. With a cache, the rows of the batch belong to
 * sequence `sequence` of it and those behind it, and the keys and values of each token go to the row that batch->begin
 * says. */
enum tr_status tr_exec_logits(struct tr_exec *e, enum tr_purpose purpose, int64_t sequence,
                              const struct tr_batch *batch, const float **logits);

/* Results of the last measured step: the losses of all micro-batches of all ranks, and the sums of squares of gradients
 * (indexed by tr_placement.norm_first). */
const double *tr_exec_losses(const struct tr_exec *e);
const double *tr_exec_norms(const struct tr_exec *e);
bool tr_exec_has_one_norm(const struct tr_exec *e); /* slot 0 holds the sum over all gradients, the others hold 0 */
struct tr_amax_history *tr_exec_amax(struct tr_exec *e);

/* Calls `look` after every action of the gradients part; NULL ends the watch. On any device, `look` may test whether a
 * view is finite, and may query where the action of a segment wrote the gradient of a parameter. tr_exec_gradient
 * returns false where the action wrote none. */
typedef void tr_exec_look(void *ctx, const struct tr_action *a);
void tr_exec_watch(struct tr_exec *e, tr_exec_look *look, void *ctx);
bool tr_exec_is_finite(struct tr_exec *e, struct tr_view v);
bool tr_exec_gradient(const struct tr_exec *e, const struct tr_action *a, int local_param, struct tr_view *out);

bool tr_exec_has(const struct tr_exec *e, enum tr_state what);
bool tr_exec_holds(const struct tr_exec *e, enum tr_state what, int param); /* a frozen parameter has VALUE only */
/* A caller has written to a state by its address. */
void tr_exec_changed(struct tr_exec *e, enum tr_state what, int param);
bool tr_exec_is_sharded(const struct tr_exec *e, enum tr_state what); /* over the shard axis */
/* May the host read this state where it is, once all copies are over (tr_exec_drain)? */
bool tr_exec_is_on_host(const struct tr_exec *e, enum tr_state what, int param);
enum tr_dtype tr_exec_dtype(const struct tr_exec *e, enum tr_state what);
/* An element of a state of this parameter: it stands for `block` elements of the parameter. That is one, where the row
 * has blocks one of them, and in the VALUE of a packed parameter a grain. */
struct tr_state_element {
    int32_t block;
    size_t bytes;
};
struct tr_state_element tr_exec_element(const struct tr_exec *e, enum tr_state what, int param);
/* Which elements of a parameter's state are on this rank, as below; false: none. It reads the plan alone, so any thread
 * may ask at any time. */
bool tr_exec_part(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n);
/* Address of element 0 of a parameter's state, whether or not this rank holds element 0: only elements [*first, *first
 * + *n) are on this rank. *n is 0 for a parameter of another stage. The caller drains first. */
char *tr_exec_at(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n);
/* Which elements of the whole state the tensor axis leaves on this rank. */
struct tr_tp_shard tr_exec_tp_shard(const struct tr_exec *e, enum tr_state what, int param);
/* Sums one number over the ranks that read different rows. */
enum tr_status tr_exec_total(struct tr_exec *e, const char *site, double *x);
/* The same of n numbers. */
enum tr_status tr_exec_total_data(struct tr_exec *e, const char *site, double *x, size_t n);
/* Adds the x of each rank that reads different rows to *sum, in the order of ranks. x is first summed over the ranks
 * that share its rows. The fixed order keeps the total independent of the number of ranks. */
enum tr_status tr_exec_add_in_order(struct tr_exec *e, const char *site, double x, double *sum);
/* Gives every stage the numbers of the last stage. The other stages pass 0. */
enum tr_status tr_exec_from_last_stage(struct tr_exec *e, const char *site, double *x, size_t n);
/* Sums n numbers over the ranks that read different rows, and gives every stage those of the last. */
enum tr_status tr_exec_total_rows(struct tr_exec *e, const char *site, double *x, size_t n);
/* Sums n numbers over all ranks. */
enum tr_status tr_exec_total_ranks(struct tr_exec *e, const char *site, double *x, size_t n);

#include "exec/trace.h"

#endif
