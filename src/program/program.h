/* program.h - room header of program. Level 1: what one segment computes, as a straight list of ops over named values.
 *
 * A program is static: no control flow, all shapes known, so it can be printed, rewritten by passes, laid out in memory
 * and run on any device. Values are matrices; a column slice of a value is a view of it and owns no storage.
 * Model files build the forward half for one whole device; passes (parallel/) add the rest. Values are written once.
 */
#ifndef TR_PROGRAM_PROGRAM_H
#define TR_PROGRAM_PROGRAM_H

#include "ops/ops.h"

typedef int32_t tr_val;
enum { TR_NONE = -1, TR_NAME_MAX = 96 };

enum tr_value_kind {
    TR_V_TEMP,  /* made by an op of this program */
    TR_V_PARAM, /* slot = local parameter */
    TR_V_GRAD,  /* accumulated gradient of a parameter; slot = local parameter */
    TR_V_CONST, /* table filled before step 0; slot = enum tr_const_slot */
    TR_V_BATCH, /* part of the micro-batch; slot = enum tr_batch_slot */
    TR_V_STEP,  /* the step buffer (enum tr_step_slot) */
    TR_V_IN,    /* activation from the segment before */
    TR_V_DOUT,  /* gradient from the segment after */
    TR_V_LOSS,  /* running sum of token losses of this step, F64 */
    TR_V_CACHE, /* keys (slot 0) or values (1) of all positions so far: generation only */
    TR_V_AMAX,  /* fp8: the amax history of a value; slot = which history */
};

enum tr_const_slot { TR_C_ROPE, TR_C_ROPE_LOCAL, TR_C_COUNT };

struct tr_value {
    char name[TR_NAME_MAX];
    enum tr_value_kind kind;
    enum tr_dtype dtype;
    bool dtype_is_fixed; /* pass `precision` does not change it: statistics, losses, tables */
    int64_t rows, cols;
    tr_val base; /* view: columns [col, col + cols) of base; TR_NONE = own storage */
    int64_t col;
    bool is_of_weights; /* TEMP: its rows are no tokens, so no axis splits them */
    bool is_alias;      /* a view of all of base with its own gradient */
    int32_t slot;
    int64_t row;         /* BATCH: its first row in the micro-batch */
    bool is_whole;       /* BATCH: it has the tokens of all context ranks; else only those of this rank */
    bool is_saved;       /* memory: lives from forward to backward */
    bool is_split_saved; /* memory: with a split backward, lives from its input part to its weight part */
    size_t offset;       /* memory: inside the saved or split-saved slab, or the work arena */
};

enum tr_phase { TR_FORWARD, TR_BACKWARD_INPUT, TR_BACKWARD_WEIGHT };

struct tr_node {
    enum tr_opcode op;
    enum tr_phase phase;
    tr_val in[TR_MAX_IN], out[TR_MAX_OUT];
    struct tr_attr attr;
    size_t scratch; /* layout: where in the work arena its kernel's scratch is, between the values that live then */
};

/* How the tensor axis splits a parameter: which dim (TR_WHOLE: none), how many equal parts lie side by side in it, each
 * of which is split (q | k | v in one matrix: 3), how many heads a part holds (0: it has no heads; any number of ranks
 * can split it), and how many times as wide the first part is as each other (q with grouped heads). */
enum { TR_WHOLE = -1 };
struct tr_split {
    int dim, n_parts;
    int64_t n_heads, lead;
};

/* A parameter as one segment knows it; `name` is local ("self_attn.q_proj.weight") or global when is_global. */
enum tr_init {
    TR_INIT_NORMAL,
    TR_INIT_ONES,
    TR_INIT_ZEROS,
    TR_INIT_UNIFORM,      /* in (-init_std, init_std) */
    TR_INIT_ORTHOGONAL_A, /* of an adapter: B A is zero, and neither of them is */
    TR_INIT_ORTHOGONAL_B,
    TR_INIT_PISSA, /* from the weight beside it, which the scale init_std goes with; who loads the base makes it */
    TR_INIT_OLORA,
    TR_INIT_ROWS,       /* rows of a table that learn by themselves (tr_model_rows), as the table has them */
    TR_INIT_ROWS_MINUS, /* the same, times -1 */
    TR_INIT_ROWS_PICK   /* (rows of the table, those that learn): 1 where the row is the column's, else 0 */
};
struct tr_local_param {
    char name[TR_NAME_MAX];
    bool is_global;
    int n_dims;
    int64_t rows, cols; /* one-dimensional parameters: rows = 1 */
    int out_dim;        /* the dim of the outputs: 1 for Conv1D, else 0; a bias has that of its weight */
    enum tr_init init;
    float init_std;
    struct tr_split split;
    bool is_partial;       /* `tensor` sets it: every rank has all of it, but only a part of the sum of its gradient */
    bool is_frozen;        /* it has no gradient */
    bool in_adapter;       /* it belongs to an adapter: its products stay in the compute dtype, whatever fp8 does */
    enum tr_packed packed; /* how it is held; TR_NOT_PACKED: in the compute dtype */
};

struct tr_program {
    char name[32]; /* "embed", "block", "head" */
    struct tr_value *value;
    int n_values;
    struct tr_node *node; /* forward nodes first, then backward */
    int n_nodes;
    struct tr_local_param *param;
    int n_params;
    size_t n_values_cap, n_nodes_cap, n_params_cap;
    tr_val in, out;                                    /* TR_NONE where the segment has none */
    tr_val dout, din;                                  /* after `grad` */
    size_t saved_bytes, split_saved_bytes, work_bytes; /* after `memory` */
    enum tr_status failed;                             /* first allocation failure while building */
};

enum tr_status tr_program_open(const char *name, struct tr_program **out);
void tr_program_close(struct tr_program *p);
enum tr_status tr_program_copy(const struct tr_program *p, struct tr_program **out);

/* Building blocks for passes and for blocks.c. They return no status: p->failed holds the first failure. */
tr_val tr_value_add(struct tr_program *p, enum tr_value_kind kind, enum tr_dtype dtype, int64_t rows, int64_t cols,
                    const char *name);
tr_val tr_value_view(struct tr_program *p, tr_val base, int64_t col, int64_t cols, const char *name);
/* All of base under another name: no storage of its own, but a gradient of its own (what `copy` returns). */
tr_val tr_value_alias(struct tr_program *p, tr_val base, const char *name);
/* A value like v (kind TEMP, same shape and dtype) with its own storage. */
tr_val tr_value_like(struct tr_program *p, tr_val v, const char *name);
/* A value whose dtype pass `precision` does not change. */
tr_val tr_value_fixed(struct tr_program *p, enum tr_value_kind kind, enum tr_dtype dtype, int64_t rows, int64_t cols,
                      const char *name);
/* What the program is given in this slot (BATCH, CONST, STEP). The first call for a slot makes the value. */
tr_val tr_value_given(struct tr_program *p, enum tr_value_kind kind, int slot, enum tr_dtype dtype, int64_t rows,
                      int64_t cols, const char *name);
tr_val tr_value_batch(struct tr_program *p, enum tr_batch_slot slot, int64_t rows);
struct tr_node *tr_node_add(struct tr_program *p, enum tr_opcode op, enum tr_phase phase);
/* Adds a node that reads and writes these values, each in the order of the op's slots: TR_VALS(x, w, bias). attr: or
 * NULL. */
struct tr_vals {
    const tr_val *v;
    size_t n;
};
#define TR_VALS(...)                                                                                                   \
    ((struct tr_vals){ (const tr_val[]){ __VA_ARGS__ }, sizeof((const tr_val[]){ __VA_ARGS__ }) / sizeof(tr_val) })
struct tr_node *tr_node_put(struct tr_program *p, enum tr_opcode op, enum tr_phase phase, struct tr_vals in,
                            struct tr_vals out, const struct tr_attr *attr);
/* Appends a parameter; returns its value. */
tr_val tr_param_add(struct tr_program *p, const struct tr_local_param *l);
tr_val tr_value_root(const struct tr_program *p, tr_val v);

/* The call of one node with shapes but no data, for counting flops and scratch. */
void tr_node_call(const struct tr_program *p, const struct tr_node *n, struct tr_call *out);
double tr_program_flops(const struct tr_program *p, enum tr_phase phase);

/* check.c: aborts with the names of program, op and slot when a node does not agree with the row of its op. after: who
 * made the program ("the model file", "pass grad"). */
void tr_program_check(const struct tr_program *p, const char *after);

/* Has v a row for each token (of this rank)? */
static inline bool tr_value_has_tokens(const struct tr_value *v)
{
    return (v->kind == TR_V_TEMP && !v->is_of_weights) || v->kind == TR_V_IN || v->kind == TR_V_DOUT ||
           v->kind == TR_V_BATCH;
}

/* One line per op, every slot with its name and every value with its number, because two values may have the same name:
 * "y:h#4, rstd:rstd#5 = rmsnorm(x:in#0, w:input_layernorm.weight#3)  bfloat16 (1024, 768)". "-" is an empty slot. */
void tr_program_print(const struct tr_program *p, struct tr_str *out);

#endif
