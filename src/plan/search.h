/* search.h - the best layout of a model on a cluster. The search prices every mesh that the trainer's own rules allow
 * with the forecast, prunes by memory and by a bound that no schedule beats, ranks the rest and explains the ranking.
 */
#ifndef TR_PLAN_SEARCH_H
#define TR_PLAN_SEARCH_H

#include "parallel/parallel.h"
#include "plan/forecast.h"

/* The options that a search must not change. 0 (zero, sp, keep, sync: -1) leaves an option free. */
struct tr_pins {
    int dp, tp, pp, cp, chunks, micro, shard;
    int zero, sp, keep, sync; /* sync: 1 last, 0 each */
    const char *schedule;
};

/* Kinds of layout whose bytes the forecast misses by about the same factor: no pipeline, 1f1b, interleaved, zb. */
enum { TR_ORDER_KINDS = 4 };

enum { TR_SEARCH_TP = 1024 }; /* a search takes fewer tensor ranks */

struct tr_search_query {       /* do not move it: base points to machine */
    struct tr_machine machine; /* one rank's part of it, because CPU ranks share a host */
    /* shape, machine, impl, seq, global, precision, bytes of a parameter; not the mesh */
    struct tr_forecast_query base;
    const struct tr_model *model;
    enum tr_cp_mode cp_mode;
    bool in_order; /* reproducible layout */
    int64_t block; /* of a packed base; 0: it is not packed */
    const struct tr_optim *optim;
    uint64_t breaks_blocks[TR_SEARCH_TP / 64]; /* by tp, a bit each: it cuts a block of a state of the optimizer */
    enum tr_dtype reduce_dtype;
    bool offloads_params;
    int gpus;
    double room_bytes; /* of a chip */
    struct tr_pins pins;
    /* Only layouts that change at most three options of this one, those that change fewer first; NULL: all layouts. */
    const struct tr_forecast_query *near;
    double grow[TR_ORDER_KINDS][TR_KEEP_AUTO]; /* compiled bytes / forecast bytes; 0: not known yet */
};

struct tr_search_result {
    struct tr_forecast_query query;
    struct tr_forecast f;
};

enum { TR_SEARCH_TOP = 10 };
struct tr_search { /* the best layout of each mesh (tp, pp, cp, dp), fastest first */
    struct tr_search_result top[TR_SEARCH_TOP];
    int n;
    struct tr_search_result least; /* when no layout fits: the one that needs least memory */
    double n_legal, n_over, n_played;
};

void tr_pins_clear(struct tr_pins *p);
/* Makes a query with the precision, batch and pins of a configuration. Only the mesh sizes that the user gave in `cfg`
 * become pins. */
enum tr_status tr_search_query_of(const struct tr_config *cfg, const struct tr_model *m,
                                  const struct tr_machine *machine, int gpus, struct tr_search_query *out);
/* TR_OK with n 0: nothing fits (`least` says by how much), or no mesh is legal (n_legal 0). */
enum tr_status tr_search_run(const struct tr_search_query *q, struct tr_search *out);
/* Corrects the bytes of layouts of this kind by the ratio of compiled to forecast bytes. */
void tr_search_learn(struct tr_search_query *q, const struct tr_search_result *x, double compiled_bytes);
/* Checks the pinned sizes against the rules; TR_OK: they break none. */
enum tr_status tr_search_check_pins(const struct tr_search_query *q);
/* When no mesh of q->gpus is legal: the nearest counts below and above for which a mesh is legal; 0: none. */
void tr_search_nearest(const struct tr_search_query *q, int *below, int *above);
/* Would the trainer accept the layout? Uses its own rules (config/legal.c). */
bool tr_search_is_legal(const struct tr_search_query *q, const struct tr_forecast_query *a);

/* "tp 8 sp, pp 4 interleaved x 2, dp 32 zero 1, 1 row x 32, recompute none" */
void tr_layout_words(const struct tr_forecast_query *a, struct tr_str *out);
/* " --tp 8 --sp --pp 4 ...": the options of `train` and `plan` for the layout. */
void tr_layout_options(const struct tr_forecast_query *a, struct tr_str *out);
/* The same as fields of a configuration. */
void tr_layout_configure(const struct tr_forecast_query *a, struct tr_config *run);
/* " --sequence_length 4096 --model DIR --dtype bfloat16 ...": what the layout does not decide, as far as it was given.
 */
void tr_given_options(const struct tr_config *cfg, const struct tr_forecast_query *a, struct tr_str *out);
/* Bytes of the fullest stage of a layout, by the compile of the run that its options ask for. */
enum tr_status tr_search_exact(const struct tr_config *cfg, const struct tr_search_result *x, double *bytes);

/* ---- optimizer state on the host (offer.c) ---- */

struct tr_offer {
    int64_t rows; /* of a micro-batch */
    double step_s, exposed_s;
    size_t device_bytes, host_bytes; /* of a rank */
    bool offloads, takes_all; /* offloads: false: nothing on the host is faster. all: weights and gradients too */
};
/* The fastest that fits, compiled and played: the layout as it is (where it fits), and with optimizer state on the
 * host. */
enum tr_status tr_search_offer(const struct tr_config *cfg, const struct tr_search_query *q,
                               const struct tr_search_result *x, bool fits, struct tr_offer *out);
void tr_offer_options(const struct tr_offer *o, const struct tr_search_result *x, struct tr_str *out);

/* ---- parts of a step, for readers (explain.c) ---- */

enum tr_part {
    TR_PART_KERNELS,
    TR_PART_AGAIN,
    TR_PART_BUBBLE,
    TR_PART_TP,
    TR_PART_CP,
    TR_PART_PP,
    TR_PART_DP,
    TR_PART_OPTIMIZER,
    TR_PARTS
};
void tr_parts_of(const struct tr_forecast *f, double part[TR_PARTS]);
/* The ranking, why the first wins, what the second loses, what to look at next. exact_bytes: compiled bytes; 0: not
 * known. */
void tr_search_text(const struct tr_search_query *q, const struct tr_search *s, double exact_bytes, struct tr_str *out);
/* command: the command line that runs the best layout; budget: a JSON object. */
void tr_search_json(const struct tr_search_query *q, const struct tr_search *s, double exact_bytes, const char *command,
                    const char *budget, const char *offer, struct tr_str *out);
/* The part that costs most apart from kernels, and what would reduce it. */
void tr_bottleneck_text(const struct tr_search_result *x, struct tr_str *out);
/* When the given layout does not fit the memory: layouts near it that fit when they are compiled, small changes first,
 * then by time. No text: there is none. */
enum tr_status tr_fit_text(const struct tr_config *cfg, const struct tr_search_query *q,
                           const struct tr_forecast_query *asked, struct tr_str *out);

#endif
