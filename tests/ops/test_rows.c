/* The rows of ops are well formed, and the table of test cases describes the same slots. */
#include "ops/cases.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <ctype.h>
#include <string.h>

/* "(N, Hd) F32": two sizes of letters and digits in brackets, then perhaps a dtype. */
static bool is_shape(const char *s)
{
    static const char *const dtypes[] = { "", " I32", " I64", " F32", " F64", " U8", " BF16" };
    if (*s++ != '(')
        return false;
    for (int k = 0; k < 2; k++) {
        const char *from = s;
        while (isalnum((unsigned char)*s))
            s++;
        const char *end = k ? ")" : ", ";
        if (s == from || strncmp(s, end, strlen(end)) != 0)
            return false;
        s += strlen(end);
    }
    for (size_t i = 0; i < TR_COUNT_OF(dtypes); i++)
        if (strcmp(s, dtypes[i]) == 0)
            return true;
    return false;
}

static void check_slots(const char *op, const struct tr_slot *slot, int max, bool is_out)
{
    int n = tr_op_n_slots(slot, max);
    for (int k = 0; k < max; k++) {
        const struct tr_slot *s = &slot[k];
        bool is_real = s->name && strcmp(s->name, "-") != 0;
        if (k >= n ? s->name != NULL : is_real != (s->shape != NULL))
            fail_msg("%s: slot %d is misplaced", op, k);
        if (is_real && !is_shape(s->shape))
            fail_msg("%s: slot %s: \"%s\" is no shape", op, s->name, s->shape);
        if (is_out ? s->may_alias || s->is_overwritten || s->is_grad_only : s->accumulates)
            fail_msg("%s: slot %s has a flag of the other side", op, s->name);
        for (int j = 0; j < k && is_real; j++)
            if (strcmp(slot[j].name, s->name) == 0)
                fail_msg("%s: two slots are called %s", op, s->name);
    }
}

static void rows_are_well_formed(void **state)
{
    (void)state;
    static const char *const names[] = {
#define X(id, name) #name,
        TR_OP_LIST(X)
#undef X
    };
    for (int op = 0; op < TR_OP_COUNT; op++) {
        const struct tr_op_row *row = tr_op_row((enum tr_opcode)op);
        int n_alias = 0;
        assert_string_equal(row->name, names[op]);
        check_slots(row->name, row->in, TR_MAX_IN, false);
        check_slots(row->name, row->out, TR_MAX_OUT, true);
        assert_true(tr_op_n_out((enum tr_opcode)op) > 0);
        for (int k = 0; k < TR_MAX_IN; k++)
            if (row->in[k].may_alias && (++n_alias > 1 || strcmp(row->in[k].shape, row->out[0].shape) != 0))
                fail_msg("%s: slot %s cannot take the place of out[0]", row->name, row->in[k].name);
    }
}

/* Views of a case: no slot that the row does not have, and none missing that is not optional. */
static void check_views(const char *op, const char *views, const struct tr_slot *slot, int max)
{
    int k = 0, n = tr_op_n_slots(slot, max);
    for (const char *at = views; *at; k++) {
        bool is_hole = *at == '-', is_optional = strchr("?%~", *at) != NULL;
        if (k >= n || is_hole != (slot[k].shape == NULL) || (is_optional && !slot[k].is_optional))
            fail_msg("%s: view %d of \"%s\" is no slot of the row", op, k, views);
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    for (; k < n; k++)
        if (!slot[k].is_optional)
            fail_msg("%s: \"%s\" has no view for slot %s", op, views, slot[k].name);
}

static void cases_have_the_slots_of_the_rows(void **state)
{
    (void)state;
    bool has_case[TR_OP_COUNT] = { false };
    for (size_t i = 0; i < TR_COUNT_OF(shapes); i++) {
        const struct tr_op_row *row = tr_op_row(shapes[i].op);
        check_views(row->name, shapes[i].in, row->in, TR_MAX_IN);
        check_views(row->name, shapes[i].out, row->out, TR_MAX_OUT);
        has_case[shapes[i].op] = true;
    }
    for (int op = 0; op < TR_OP_COUNT; op++)
        if (!has_case[op])
            fail_msg("%s: has no line in `shapes` of tests/ops/shapes.h", tr_op_row((enum tr_opcode)op)->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_well_formed),
        cmocka_unit_test(cases_have_the_slots_of_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
