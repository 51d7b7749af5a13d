/* test_isa.c - every fast kernel gives the same bits on every instruction set this machine has, so a run may move to
 * another machine, or ranks may sit on different ones. */
#include "ops/case_call.h"
#include "ops/cpu/fast.h"

static const struct mode modes[] = {
    { "f32 padded acc", TR_F32, TR_F32, TR_F32, TR_F32, .is_padded = true, .accumulate = true },
    { "bf16 all", TR_BF16, TR_BF16, TR_BF16, TR_F32, .is_padded = false, .accumulate = false },
};

static void run_on(struct built *b, enum tr_isa isa)
{
    b->c.scratch = aligned_alloc(64, tr_round_up(tr_op_scratch(&b->c, 1), 64) + 64);
    assert_non_null(b->c.scratch);
    tr_fast_kernel(b->c.op, isa)(&b->c);
}

static void check_op(const struct op_case *row, enum tr_opcode op, const struct mode *m, enum tr_isa isa)
{
    struct built base, other;
    build(&base, row, op, m);
    build(&other, row, op, m);
    run_on(&base, TR_ISA_BASE);
    run_on(&other, isa);
    for (int i = TR_MAX_IN; i < N_VIEWS; i++)
        if (base.base[i] && memcmp(base.base[i], other.base[i], base.n_bytes[i]) != 0)
            fail_msg("%s: out[%d] differs between instruction set 0 and %d", base.label, i - TR_MAX_IN, (int)isa);
    release(&base);
    release(&other);
}

static void check_case(const struct op_case *row, enum tr_isa isa)
{
    for (size_t m = 0; m < TR_COUNT_OF(modes); m++) {
        check_op(row, row->op, &modes[m], isa);
        for (size_t g = 0; g < TR_COUNT_OF(grads); g++)
            if (grads[g].forward == row->op)
                check_op(row, grads[g].backward, &modes[m], isa);
    }
}

static void all_instruction_sets_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT_OF(cases); i++)
        for (enum tr_isa isa = TR_ISA_AVX2; isa <= tr_fast_isa() && !cases[i].is_speed; isa++)
            check_case(&cases[i], isa);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_instruction_sets_give_the_same_bits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
