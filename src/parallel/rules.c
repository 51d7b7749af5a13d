/* rules.c - checks that the list of rules covers every op, and reports an op that has no rule in a pass. */
#include "parallel/rules.h"
#include <assert.h>

static_assert((int)TR_N_RULES == (int)TR_OP_COUNT,
              "an op has no line in TR_RULE_LIST: say what each pass does with it");

void tr_no_rule(const char *pass, const struct tr_program *p, enum tr_opcode op, const char *reason)
{
    char text[256];
    (void)tr_format(text, sizeof text, "pass %s on %s: op %s has no rule: %s (parallel/rules.h)", pass, p->name,
                    tr_op_row(op)->name, reason);
    tr_bug(__FILE__, __LINE__, text);
}
