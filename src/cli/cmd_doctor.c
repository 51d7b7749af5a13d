/* cmd_doctor.c - doctor: what this machine has, what it is ready for, and for each no the fix. It changes nothing but a
 * file of 64 MiB that it writes to measure the disk and removes. `check` tries ranks and their links; doctor looks at
 * one machine before there is a run. */
#include "cli/doctor.h"
#include <stdarg.h>

static const char *const ready_words[READY_COUNT] = {
    [READY_CPU] = "training on the CPU",          [READY_GPU] = "training on GPUs",
    [READY_RANKS] = "several ranks on this host", [READY_HOSTS] = "several hosts (MPI)",
    [READY_CHECKPOINTS] = "checkpoints",
};
static const char *const ready_names[READY_COUNT] = { "cpu", "gpu", "ranks", "hosts", "checkpoints" };

static void (*const checks[])(struct doctor *d) = { doctor_cpu,   doctor_memory,    doctor_limits,  doctor_shm,
                                                    doctor_gpus,  doctor_libraries, doctor_modules, doctor_network,
                                                    doctor_clock, doctor_disk };

void doctor_fact(struct doctor *d, const char *what, const char *fmt, ...)
{
    char value[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    tr_str_addf(&d->facts, "%-14s %s\n", what, value);
    tr_str_addf(&d->facts_json, "%s{\"what\": ", d->n_facts++ ? ", " : "");
    tr_str_json(&d->facts_json, what);
    tr_str_member(&d->facts_json, ", \"value\": ", value);
    tr_str_addf(&d->facts_json, "}");
}

void doctor_problem(struct doctor *d, int takes, const char *what, const char *value, const char *fix)
{
    tr_str_addf(&d->problems, "  %s: %s\n    fix: %s\n", what, value, fix);
    tr_str_addf(&d->problems_json, "%s{\"what\": ", d->n_problems++ ? ", " : "");
    tr_str_json(&d->problems_json, what);
    tr_str_member(&d->problems_json, ", \"value\": ", value);
    tr_str_member(&d->problems_json, ", \"fix\": ", fix);
    tr_str_addf(&d->problems_json, "}");
    for (int i = 0; i < READY_COUNT; i++)
        if (takes == i || takes == READY_ALL)
            d->has[i] = false;
}

static void print(const struct doctor *d, bool is_json)
{
    struct tr_str out = { 0 };
    int n = 0;
    if (is_json)
        tr_str_addf(&out, "{\"ready_for\": [");
    else
        tr_str_addf(&out, "%s\n%s%s%sready for: ", d->facts.p ? d->facts.p : "", d->n_problems ? "problems:\n" : "",
                    d->problems.p ? d->problems.p : "", d->n_problems ? "\n" : "");
    for (int i = 0; i < READY_COUNT; i++)
        if (d->has[i])
            tr_str_addf(&out, is_json ? "%s\"%s\"" : "%s%s", n++ ? ", " : "",
                        is_json ? ready_names[i] : ready_words[i]);
    if (is_json)
        tr_str_addf(&out, "], \"problems\": [%s], \"facts\": [%s]}\n", d->problems_json.p ? d->problems_json.p : "",
                    d->facts_json.p ? d->facts_json.p : "");
    else
        tr_str_addf(&out, "%s\n", n ? "" : "nothing");
    cli_print(tr_str_ok(&out) ? out.p : "");
    tr_str_release(&out);
}

enum tr_status cmd_doctor(const struct tr_config *cfg)
{
    struct doctor d = { .root = "", .dir = cfg->output ? cfg->output : ".", .has = { true, true, true, true, true } };
    if (cfg->args.n > 0)
        return tr_verb_misused(TR_VERB_DOCTOR);
    for (size_t i = 0; i < TR_COUNT_OF(checks); i++)
        checks[i](&d);
    tr_error_clear();
    print(&d, cfg->json);
    bool is_ready = (d.has[READY_CPU] || d.has[READY_GPU]) && d.has[READY_CHECKPOINTS];
    tr_str_release(&d.facts);
    tr_str_release(&d.facts_json);
    tr_str_release(&d.problems);
    tr_str_release(&d.problems_json);
    return is_ready ? TR_OK : TR_NO;
}
