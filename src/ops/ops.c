/* ops.c - the table of ops and the reference column. */
#include "ops/cpu/ref.h"
#include <assert.h>

const struct tr_op_row *tr_op_row(enum tr_opcode op)
{
    static const struct tr_op_row *const rows[] = {
#define X(id, name) &tr_row_##name,
        TR_OP_LIST(X)
#undef X
    };
    static_assert(TR_COUNT_OF(rows) == TR_OP_COUNT, "one row per op");
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT);
    return rows[op];
}

tr_kernel tr_op_cpu_ref(enum tr_opcode op)
{
    static const tr_kernel kernels[] = {
#define X(id, name) tr_ref_##id,
        TR_OP_LIST(X)
#undef X
    };
    static_assert(TR_COUNT_OF(kernels) == TR_OP_COUNT, "one reference per op");
    TR_BUG_ON((unsigned)op >= TR_OP_COUNT);
    return kernels[op];
}
