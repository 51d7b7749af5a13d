/* column.c - the table of kernel columns, and the rule about dtypes that all of them share. */
#include "ops/cpu/gemm.h"
#include "ops/cuda/scratch.h"
#include <pthread.h>

static void no_arithmetic(const struct tr_call *c)
{
    (void)c;
}

static tr_kernel phantom_kernel(enum tr_opcode op)
{
    (void)op;
    return no_arithmetic;
}

static bool is_float8(enum tr_dtype d)
{
    return d == TR_E4M3 || d == TR_E5M2;
}

static bool is_update(enum tr_opcode op)
{
    return op == TR_OP_ADAMW || op == TR_OP_ADAMW8 || op == TR_OP_LION || op == TR_OP_LION8 || op == TR_OP_SGD ||
           op == TR_OP_MUON || op == TR_OP_MUON_APPLY || op == TR_OP_ADAFACTOR_SUMS || op == TR_OP_ADAFACTOR_NORM ||
           op == TR_OP_ADAFACTOR_APPLY;
}

/* Values are float32, bfloat16 or float16. Only the operands of matmul8 and the result of quant are 8-bit floats. */
static const char *refuses_dtype(const struct tr_call *c)
{
    for (int i = 0; is_update(c->op) && i < TR_MAX_OUT; i += i ? 1 : 2) /* 1: the copy has the compute dtype */
        if (c->in[0].dtype == TR_F16 || c->out[i].dtype == TR_F16)
            return "takes gradients and states in float32 or bfloat16 only";
    const struct tr_view *q = c->op == TR_OP_MATMUL8 ? &c->in[0] : c->op == TR_OP_QUANT ? &c->out[0] : NULL;
    if (q && !is_float8(q->dtype))
        return "takes 8-bit floats only";
    if (c->op == TR_OP_MATMUL8 && c->in[0].dtype == TR_E5M2 && c->in[2].dtype == TR_E5M2)
        return "does not multiply two e5m2 matrices; one must be e4m3";
    if (!q && c->op != TR_OP_ZERO && is_float8(c->out[0].dtype))
        return "has no kernel for 8-bit floats";
    return NULL;
}

static const char *cuda_refuses(const struct tr_call *c)
{
    bool is_attention = c->op == TR_OP_ATTENTION || c->op == TR_OP_ATTENTION_BWD || c->op == TR_OP_ATTENTION_CACHED ||
                        c->op == TR_OP_RING_ATTENTION || c->op == TR_OP_RING_ATTENTION_BWD;
    if (is_attention && c->attr.head_dim > TR_CUDA_HEAD_DIM_MAX)
        return "takes heads of at most 1024 elements";
    return refuses_dtype(c);
}

/* A column without a kernel has them in the module of its device. */
static struct tr_column columns[] = {
    { .name = "cuda",
      .device = "cuda",
      .refuses = cuda_refuses,
      .scratch = tr_cuda_scratch,
      .fuses = true,
      .may_reorder = true },
    { .name = "cpu",
      .device = "cpu",
      .kernel = tr_op_cpu_fast,
      .refuses = refuses_dtype,
      .scratch = tr_op_scratch,
      .add_terms = TR_GEMM_KC },
    { .name = "reference",
      .device = "cpu",
      .kernel = tr_op_cpu_ref,
      .refuses = refuses_dtype,
      .scratch = tr_op_scratch },
    { .name = "phantom",
      .device = "phantom",
      .kernel = phantom_kernel,
      .refuses = refuses_dtype,
      .scratch = tr_op_scratch,
      .add_terms = TR_GEMM_KC },
    { .name = "threads",
      .device = "threads",
      .kernel = tr_op_cpu_fast,
      .refuses = refuses_dtype,
      .scratch = tr_op_scratch,
      .add_terms = TR_GEMM_KC },
};

static void join_modules(void)
{
    for (size_t i = 0; i < TR_COUNT_OF(columns); i++) {
        struct tr_column *c = &columns[i];
        const struct tr_column_code *code = c->kernel ? NULL : tr_device_symbol(c->device, TR_COLUMN_SYMBOL);
        if (!code)
            continue;
        c->kernel = code->kernel;
        c->update = code->update;
        c->open = code->open;
        c->close = code->close;
    }
}

const struct tr_column *tr_column_at(size_t i)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, join_modules);
    return i < TR_COUNT_OF(columns) ? &columns[i] : NULL;
}

const struct tr_column *tr_column_of(const char *device)
{
    (void)tr_column_at(0); /* modules are joined */
    return TR_ROW(columns, device);
}

const char *tr_column_refuses(const struct tr_column *c, enum tr_opcode op, enum tr_dtype dtype)
{
    struct tr_call call = { .op = op };
    bool has_float8 = op == TR_OP_QUANT || op == TR_OP_MATMUL8;
    for (int i = 0; i < TR_MAX_IN; i++)
        call.in[i].dtype = has_float8 ? TR_F32 : dtype;
    for (int i = 0; i < TR_MAX_OUT; i++)
        call.out[i].dtype = has_float8 ? TR_F32 : dtype;
    if (op == TR_OP_QUANT)
        call.out[0].dtype = call.out[1].dtype = dtype;
    if (op == TR_OP_MATMUL8) {
        call.in[0].dtype = dtype;
        call.in[2].dtype = TR_E4M3;
    }
    return c->refuses(&call);
}
