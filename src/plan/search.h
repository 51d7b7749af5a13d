/* search.h - the best layout of a model on a cluster: every mesh that the trainer's own rules allow, priced by the
 * forecast, pruned by memory and by a bound that no schedule beats, ranked, and explained.
 */
#ifndef TR_PLAN_SEARCH_H
#define TR_PLAN_SEARCH_H

#include "parallel/parallel.h"
#include "plan/forecast.h"

/* What a search may not change; 0 (zero, sp, keep, sync: -1) leaves it free. */
struct tr_pins {
    int dp, tp, pp, cp, chunks, micro, shard;
    int zero, sp, keep, sync; /* sync: 1 last, 0 each */
    const char *schedule;
};

/* Kinds of layout whose bytes the forecast misses by about the same factor: no pipeline, 1f1b, interleaved, zb. */
enum { TR_ORDER_KINDS = 4 };

struct tr_query {              /* filled once and not moved: base points to machine */
    struct tr_machine machine; /* as one rank sees it: CPU ranks have a part of their host each */
    struct tr_ask base; /* shape, machine, impl, seq, global, number, bytes of a parameter; the mesh is the search's */
    const struct tr_model *model;
    enum tr_cp_mode cp_mode;
    bool in_order; /* reproducible layout */
    enum tr_dtype reduce_dtype;
    int gpus;
    double room_bytes; /* of a chip */
    struct tr_pins pins;
    const struct tr_ask *near; /* only layouts that change three of its options at most, two before three; NULL: all */
    double grow[TR_ORDER_KINDS][TR_KEEP_AUTO]; /* compiled bytes over forecast ones, as far as known; 0: not yet */
};

struct tr_found {
    struct tr_ask ask;
    struct tr_forecast f;
};

enum { TR_SEARCH_TOP = 10 };
struct tr_search { /* the best layout of each mesh (tp, pp, cp, dp), fastest first */
    struct tr_found top[TR_SEARCH_TOP];
    int n;
    struct tr_found least; /* when none fits: the one that holds least */
    double n_legal, n_over, n_played;
};

void tr_pins_clear(struct tr_pins *p);
/* A question with the precision, batch and pins of a configuration. `cfg` gives no mesh unless it was said. */
void tr_query_of(const struct tr_config *cfg, const struct tr_model *m, const struct tr_machine *machine, int gpus,
                 struct tr_query *out);
/* TR_OK with n 0: nothing fits (`least` says by how much), or no mesh is legal (n_legal 0). */
enum tr_status tr_search_run(const struct tr_query *q, struct tr_search *out);
/* The compile knows better: layouts of this kind are taken to hold so much more than their forecasts. */
void tr_search_learn(struct tr_query *q, const struct tr_found *x, double compiled_bytes);
/* What the rules say of the sizes that are pinned; TR_OK: they stand in nobody's way. */
enum tr_status tr_search_check_pins(const struct tr_query *q);
/* No mesh of q->gpus is legal: the nearest counts below and above for which one is; 0: none. */
void tr_search_nearest(const struct tr_query *q, int *below, int *above);
/* Would the trainer take it? By its own rules (config/legal.c). */
bool tr_search_is_legal(const struct tr_query *q, const struct tr_ask *a);

/* "tp 8 sp, pp 4 interleaved x 2, dp 32 zero 1, 1 row x 32, recompute none" */
void tr_layout_words(const struct tr_ask *a, struct tr_str *out);
/* " --tp 8 --sp --pp 4 ...": what `train` and `plan` take. */
void tr_layout_options(const struct tr_ask *a, struct tr_str *out);
/* The same as fields of a configuration. */
void tr_layout_configure(const struct tr_ask *a, struct tr_config *run);
/* " --sequence_length 4096 --dtype bfloat16 ...": what the layout does not decide, as far as it was given. */
void tr_kept_options(const struct tr_config *cfg, const struct tr_ask *a, struct tr_str *out);
/* Bytes of the fullest stage of a layout, by the compile of the run that its options ask for. */
enum tr_status tr_search_exact(const struct tr_config *cfg, const struct tr_found *x, double *bytes);

/* ---- parts of a step, for people (explain.c) ---- */

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
const char *tr_part_name(enum tr_part p);
/* The ranking, why the first wins, what the second loses, what to look at next. exact_bytes: by the compile, 0: not
 * known. */
void tr_search_text(const struct tr_query *q, const struct tr_search *s, double exact_bytes, struct tr_str *out);
/* command: the line that runs it; budget: an object. */
void tr_search_json(const struct tr_query *q, const struct tr_search *s, double exact_bytes, const char *command,
                    const char *budget, struct tr_str *out);
/* Which part costs most beside kernels, and what would shrink it. */
void tr_bottleneck_text(const struct tr_found *x, struct tr_str *out);
/* The asked layout holds more than the room: layouts near it that fit, small changes first, then by time. */
enum tr_status tr_fit_text(const struct tr_query *q, const struct tr_ask *asked, struct tr_str *out);

#endif
