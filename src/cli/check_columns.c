/* check_columns.c - the part of `trireme check` about kernels: which columns are in this build and on this machine, and
 * the dtypes that each runs, op by op. It asks the columns themselves, so it cannot differ from what plans refuse. */
#include "cli/check.h"
#include "ops/ops.h"

static const enum tr_dtype dtypes[] = { TR_F32, TR_BF16, TR_F16, TR_E4M3, TR_E5M2 };

/* The columns of devices that a user may choose. */
static const struct tr_column *next_offered(size_t *i)
{
    const struct tr_column *c = NULL;
    while ((c = tr_column_at((*i)++)) != NULL)
        if (tr_device_row(c->device)->is_offered)
            return c;
    return NULL;
}

static const char *state_of(const struct tr_column *c)
{
    if (!c->kernel)
        return "its module is not here";
    return tr_device_is_present(tr_device_row(c->device)) ? "present" : "no such device here";
}

/* "F32 BF16 F16", or as a list of JSON. */
static void add_dtypes(const struct tr_column *c, enum tr_opcode op, bool as_json, struct tr_str *out)
{
    bool is_first = true;
    for (size_t d = 0; d < TR_COUNT_OF(dtypes); d++) {
        if (tr_column_refuses(c, op, dtypes[d]))
            continue;
        const char *between = is_first ? "" : as_json ? "," : " ", *quote = as_json ? "\"" : "";
        tr_str_addf(out, "%s%s%s%s", between, quote, tr_dtype_safetensors(dtypes[d]), quote);
        is_first = false;
    }
}

static void add_json(const struct tr_column *c, struct tr_str *out)
{
    tr_str_addf(out, "{\"name\":\"%s\",\"device\":\"%s\",\"state\":\"%s\",\"fuses\":%s,\"may_reorder\":%s,\"ops\":{",
                c->name, c->device, state_of(c), c->fuses ? "true" : "false", c->may_reorder ? "true" : "false");
    for (int op = 0; op < TR_OP_COUNT; op++) {
        tr_str_addf(out, "%s\"%s\":[", op ? "," : "", tr_op_row((enum tr_opcode)op)->name);
        add_dtypes(c, (enum tr_opcode)op, true, out);
        tr_str_addf(out, "]");
    }
    tr_str_addf(out, "}}");
}

static void add_row(int op, struct tr_str *out)
{
    tr_str_addf(out, "%-20s", tr_op_row((enum tr_opcode)op)->name);
    const struct tr_column *c;
    for (size_t i = 0; (c = next_offered(&i)) != NULL;) {
        struct tr_str cell = { 0 };
        add_dtypes(c, (enum tr_opcode)op, false, &cell);
        tr_str_addf(out, " %-18s", tr_str_ok(&cell) && cell.p ? cell.p : "");
        tr_str_release(&cell);
    }
    tr_str_addf(out, "\n");
}

void check_columns_print(bool as_json, struct tr_str *out)
{
    const struct tr_column *c;
    for (size_t i = 0, n = 0; as_json && (c = next_offered(&i)) != NULL; n++) {
        tr_str_addf(out, "%s", n ? "," : "");
        add_json(c, out);
    }
    if (as_json)
        return;
    for (size_t i = 0; (c = next_offered(&i)) != NULL;)
        tr_str_addf(out, "kernels %-12s device %-5s %s%s%s\n", c->name, c->device, state_of(c),
                    c->fuses ? "; fuses ops" : "",
                    c->may_reorder ? "; --reproducible off changes the order of sums" : "");
    tr_str_addf(out, "%-20s", "op, by dtype");
    for (size_t i = 0; (c = next_offered(&i)) != NULL;)
        tr_str_addf(out, " %-18s", c->name);
    tr_str_addf(out, "\n");
    for (int op = 0; op < TR_OP_COUNT; op++)
        add_row(op, out);
}
