/* exec.h - the executor: runs a schedule on a device. Everything is reserved at open; nothing allocates afterwards. */
#ifndef TR_EXEC_EXEC_H
#define TR_EXEC_EXEC_H

#include "config/config.h"
#include "data/data.h"
#include "device/device.h"
#include "mesh/mesh.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

/* fp8 with scales of the past: the largest elements that the last updates found, by segment and value; n 0: none. */
enum { TR_AMAX_STEPS = 16 };
struct tr_amax_history {
    size_t n;
    int64_t n_steps; /* update k is in row k % TR_AMAX_STEPS */
    float *found;    /* (TR_AMAX_STEPS, n) */
    struct {
        float before, now;
    } * pair; /* (n), as the device has them */
};

struct tr_exec;

/* mesh NULL: this rank is alone.
 * Reserves the arenas (exactly c->bytes), uploads constants, clears optimizer state. Parameters are the caller's. */
enum tr_status tr_exec_open(const struct tr_compiled *c, struct tr_device *dev, struct tr_pool *pool,
                            struct tr_mesh *mesh, uint64_t seed, struct tr_exec **out);
/* Bytes of shared memory the mesh must be opened with for this plan. */
size_t tr_exec_shared_bytes(const struct tr_compiled *c);
void tr_exec_close(struct tr_exec *e);
/* What an executor was opened with, and the first byte of an arena. */
const struct tr_compiled *tr_exec_compiled(const struct tr_exec *e);
struct tr_device *tr_exec_device(const struct tr_exec *e);
struct tr_pool *tr_exec_pool(const struct tr_exec *e);
struct tr_mesh *tr_exec_mesh(const struct tr_exec *e);
char *tr_exec_arena(const struct tr_exec *e, enum tr_arena_id a);

struct tr_step_result {
    double loss_sum, grad_norm; /* loss_sum: over the valid targets of the micro-batches given */
    double wait_s, exposed_s;   /* arithmetic held up by other pipeline stages; by communication of any kind */
};
/* From here on every reduction of gradients and activations is checked for flipped bits. Host memory only. */
enum tr_status tr_exec_check_sums(struct tr_exec *e);
/* A step in two parts. Measure: gradients, loss, norm and clip factor, the same on all ranks and as often as wanted.
 * Update: the parameters, which nothing changed before. */
enum tr_status tr_exec_measure(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                               const float values[TR_STEP_COUNT], struct tr_step_result *out);
enum tr_status tr_exec_update(struct tr_exec *e, struct tr_step_result *out);
/* After measure and until the next: norms of the gradients of all parameters, (n_params). Their squares add up to the
 * square of grad_norm, up to rounding; what measure gave is not changed. */
void tr_exec_param_norms(struct tr_exec *e, double *out);
/* One optimizer step: n_micro micro-batches in host memory; values = the step buffer (clip is filled in here). */
enum tr_status tr_exec_step(struct tr_exec *e, const struct tr_config *cfg, const struct tr_batch *micro,
                            const float values[TR_STEP_COUNT], struct tr_step_result *out);
/* Waits for everything that is still on its way from or to peers. Callers that read or write parameters or state
 * between steps call it first. */
enum tr_status tr_exec_drain(struct tr_exec *e);
/* Gradients only: no clip, no update (tests, and evaluation of gradients). */
enum tr_status tr_exec_gradients(struct tr_exec *e, const struct tr_batch *micro, const float values[TR_STEP_COUNT],
                                 double *loss_sum);
/* The eval schedule on one batch: sum of token losses, 0 on ranks without the last stage. */
enum tr_status tr_exec_eval(struct tr_exec *e, const struct tr_batch *batch, double *loss_sum);
/* The eval schedule (or, is_decode, the one of a single token) of a model that ends in logits: (N, V) F32, valid until
 * the next call. With a cache the batch holds positions first_position, first_position + 1, ... */
enum tr_status tr_exec_logits(struct tr_exec *e, bool is_decode, int64_t first_position, const struct tr_batch *batch,
                              const float **logits);

/* Of the last measured step: the losses of all micro-batches of all ranks, and the sums of squares of gradients
 * (tr_compiled.norm_first). */
const double *tr_exec_losses(const struct tr_exec *e);
const double *tr_exec_norms(const struct tr_exec *e);
bool tr_exec_has_one_norm(const struct tr_exec *e); /* slot 0 is the sum of all gradients, the others are 0 */
struct tr_amax_history *tr_exec_amax(struct tr_exec *e);

/* Calls `look` after every action of the gradients; NULL ends it. `look` may ask whether a view is finite, on any
 * device, and where the gradient that an action of a segment wrote is: false: it wrote none for this parameter. */
typedef void tr_exec_look(void *ctx, const struct tr_action *a);
void tr_exec_watch(struct tr_exec *e, tr_exec_look *look, void *ctx);
bool tr_exec_is_finite(struct tr_exec *e, struct tr_view v);
bool tr_exec_gradient(const struct tr_exec *e, const struct tr_action *a, int local_param, struct tr_view *out);

bool tr_exec_has(const struct tr_exec *e, enum tr_state what);
bool tr_exec_holds(const struct tr_exec *e, enum tr_state what, int param); /* of a frozen parameter: VALUE alone */
bool tr_exec_is_sharded(const struct tr_exec *e, enum tr_state what);       /* over the shard axis */
enum tr_dtype tr_exec_dtype(const struct tr_exec *e, enum tr_state what);
/* Where element 0 of a parameter's state is, or would be: only elements [*first, *first + *n) are this rank's; n is 0
 * for a parameter of another stage. Elements are the state's own: blocks of the parameter where the row has blocks.
 * Callers drain first. */
char *tr_exec_at(const struct tr_exec *e, enum tr_state what, int param, int64_t *first, int64_t *n);
/* Which elements of the whole state the tensor axis leaves here. */
struct tr_tp_shard tr_exec_tp_shard(const struct tr_exec *e, enum tr_state what, int param);
/* Sum of one number over the ranks with other rows. */
enum tr_status tr_exec_total(struct tr_exec *e, const char *site, double *x);
/* Adds x of every such rank (a sum over the ranks with its rows) to *sum, rank by rank: how many they are does not
 * change the sum of all. */
enum tr_status tr_exec_add_in_order(struct tr_exec *e, const char *site, double x, double *sum);
/* Numbers that the last stage has and the others hold as 0. */
enum tr_status tr_exec_from_last_stage(struct tr_exec *e, const char *site, double *x, size_t n);
/* Sum over all ranks. */
enum tr_status tr_exec_total_ranks(struct tr_exec *e, const char *site, double *x, size_t n);

#include "exec/trace.h"

#endif
