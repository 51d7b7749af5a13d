/* cmd_check.c - trireme check: before a run on these ranks, is everything it needs there and right?
 *
 * Every link between two ranks, every collective on every group of the mesh, and the file system of the output are used
 * once with data whose result is known. A wrong result does not stop the ranks: each notes it, all go on together, and
 * rank 0 prints the notes of all. Only a wait that times out ends the check, and it names the rank. The exit code is 0
 * only if all is well.
 */
#include "cli/check.h"
#include <math.h>
#include <stdlib.h>

static enum tr_status gather(struct check *k, const void *mine, size_t bytes, void *all)
{
    return tr_comm_run(k->mesh->all, &(struct tr_coll){ .kind = TR_ALL_GATHER,
                                                        .dtype = TR_U8,
                                                        .in = mine,
                                                        .out = all,
                                                        .count = bytes * (size_t)k->mesh->world,
                                                        .site = "check: report" });
}

/* Notes of one part, from all ranks, as lines of the report. */
static enum tr_status report(struct check *k, const char *part)
{
    enum tr_status st = TR_OK;
    size_t n = (size_t)k->mesh->world;
    struct check_note *all = calloc(n, sizeof *all);
    if (!all)
        return tr_fail(TR_NOMEM, "no memory for the notes of %zu ranks", n);
    TR_TRY(gather(k, &k->note, sizeof k->note, all));
    double least = HUGE_VAL, most = 0;
    const struct check_note *bad = NULL;
    for (size_t r = 0; r < n; r++) {
        least = all[r].value < least ? all[r].value : least;
        most = all[r].worst > most ? all[r].worst : most;
        k->n_bad += all[r].n_bad > 0;
        if (all[r].n_bad > (bad ? bad->n_bad : 0)) /* the rank with the most failures is likely the cause */
            bad = &all[r];
    }
    if (bad && !k->first_bad[0])
        snprintf(k->first_bad, sizeof k->first_bad, "%s", bad->text);
    if (k->cfg->json) {
        tr_str_addf(&k->out,
                    "%s{\"part\":\"%s\",\"is_ok\":%s,\"n\":%" PRId64 ",\"worst_us\":%.1f,\"least_gb_per_s\":%.3f",
                    k->n_parts ? "," : "", part, bad ? "false" : "true", k->note.n, most, least);
        tr_str_member(&k->out, ",\"cause\":", bad ? bad->text : "");
        tr_str_addf(&k->out, "}");
    } else
        tr_str_addf(&k->out, "%-24s %-4s %8" PRId64 " %12.1f %10.2f  %s\n", part, bad ? "BAD" : "ok", k->note.n, most,
                    least, bad ? bad->text : k->note.text);
    k->n_parts++;
    k->note = (struct check_note){ 0 };
out:
    free(all);
    return st;
}

static enum tr_status open_mesh(struct check *k)
{
    int axis[TR_AXES];
    struct tr_comm_env env;
    TR_PASS(tr_mesh_env(&env));
    env.timeout_us = (int64_t)(k->cfg->ddp_timeout * 1e6);
    tr_setup_axes(k->cfg, axis);
    const char *engine = k->cfg->comm == TR_COMM_AUTO ? NULL : tr_config_word("comm", (int)k->cfg->comm);
    return tr_mesh_open(engine, &env, axis, &k->mesh);
}

static enum tr_status check_groups(struct check *k)
{
    char part[64];
    TR_PASS(check_collectives(k, k->mesh->all));
    TR_PASS(report(k, "collectives, all ranks"));
    for (int a = 0; a < TR_AXES; a++) {
        if (k->mesh->size[a] == 1)
            continue;
        TR_PASS(check_collectives(k, tr_mesh_axis(k->mesh, a)));
        snprintf(part, sizeof part, "collectives, %s", tr_axis_name((enum tr_axis)a));
        TR_PASS(report(k, part));
    }
    return TR_OK;
}

static void print(struct check *k)
{
    struct tr_str all = { 0 }, columns = { 0 };
    check_columns_print(k->cfg->json, &columns);
    const char *kernels = tr_str_ok(&columns) ? columns.p : "";
    if (k->cfg->json)
        tr_str_addf(&all, "{\"is_ok\":%s,\"ranks\":%d,\"comm\":\"%s\",\"parts\":[%s],\"columns\":[%s]}\n",
                    k->n_bad ? "false" : "true", k->mesh->world, k->mesh->all->ops->name, k->out.p ? k->out.p : "",
                    kernels);
    else
        tr_str_addf(&all, "%d rank%s over %s\n%-24s %-4s %8s %12s %10s\n%s\n%s", k->mesh->world,
                    tr_mesh_is_alone(k->mesh) ? "" : "s", k->mesh->all->ops->name, "part", "", "tests", "worst us",
                    "GB/s", k->out.p ? k->out.p : "", kernels);
    if (tr_mesh_is_first(k->mesh) && tr_str_ok(&all))
        cli_print(all.p);
    tr_str_release(&all);
    tr_str_release(&columns);
}

enum tr_status cmd_check(const struct tr_config *cfg)
{
    enum tr_status st = TR_OK;
    struct check k = { .cfg = cfg };
    TR_TRY(open_mesh(&k));
    TR_TRY(check_links(&k));
    TR_TRY(report(&k, "links, each pair"));
    TR_TRY(check_groups(&k));
    TR_TRY(check_files(&k));
    TR_TRY(report(&k, "output file system"));
    print(&k);
    /* All ranks wait here, because a launcher ends the others as soon as one exits with an error. */
    TR_TRY(tr_comm_run(k.mesh->all, &(struct tr_coll){ .kind = TR_BARRIER, .site = "check: all is said" }));
    if (k.n_bad)
        st = tr_fail(TR_IO, "check: %s", k.first_bad);
out:
    tr_mesh_close(k.mesh);
    tr_str_release(&k.out);
    return st;
}
