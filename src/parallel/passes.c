/* passes.c - the table of level-1 passes. */
#include "parallel/parallel_impl.h"

const struct tr_pass tr_passes[] = {
    { "tensor", tr_pass_tensor },   { "context", tr_pass_context },     { "precision", tr_pass_precision },
    { "side", tr_pass_side },       { "cache", tr_pass_cache },         { "grad", tr_pass_grad },
    { "fp8", tr_pass_fp8 },         { "recompute", tr_pass_recompute }, { "fuse", tr_pass_fuse },
    { "dequant", tr_pass_dequant }, { "layout", tr_pass_layout },
};
const size_t tr_n_passes = TR_COUNT_OF(tr_passes);

enum tr_status tr_run_passes(struct tr_program *p, const struct tr_pass_ctx *ctx)
{
    for (size_t i = 0; i < tr_n_passes; i++) {
        enum tr_status st = tr_passes[i].run(p, ctx);
        if (st != TR_OK)
            return tr_fail_at(st, "pass %s on %s: ", tr_passes[i].name, p->name);
        tr_program_check(p, tr_passes[i].name);
    }
    return TR_OK;
}
