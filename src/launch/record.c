/* record.c - one record of a root cause: errors/rank-NNNN.json, a fault event, and torchrun's error file where torchrun
 * has started us. Written when all ranks have ended. None of it can fail the job: a file that cannot be written is
 * reported.
 */
#include "base/host.h"
#include "launch/launch_impl.h"
#include "observe/observe.h"

const char *tr_ended_how(const struct launch_job *j, const struct rank *r, char *buf, size_t n_buf)
{
    char where[240] = "";
    if (r->is_oom)
        (void)tr_host_oom_kills("", where, sizeof where);
    if (r == j->root && tr_hang_text(j))
        snprintf(buf, n_buf, "%s", tr_hang_text(j));
    else if (r->is_oom)
        snprintf(buf, n_buf, "was killed by the kernel because memory ran out in %s (SIGKILL of the OOM killer)",
                 where);
    else if (r->sig)
        snprintf(buf, n_buf, "was ended by SIG%s", sigabbrev_np(r->sig) ? sigabbrev_np(r->sig) : "?");
    else if (r->code == 0 && j->is_early)
        snprintf(buf, n_buf, "ended with exit code 0 while other ranks still ran");
    else
        snprintf(buf, n_buf, "ended with exit code %d", r->code);
    return buf;
}

static void write_or_report(struct launch_job *j, const char *dir, const char *name, const struct tr_str *text)
{
    if (!tr_str_ok(text))
        tr_report(j, "no memory to write %s/%s", dir, name);
    else if (tr_out_write(dir, name, text->p, text->n) != TR_OK)
        tr_report(j, "%s", tr_error_text());
}

static void write_error(struct launch_job *j, const char *how)
{
    const struct rank *r = j->root;
    char name[48];
    struct tr_str s = { 0 };
    snprintf(name, sizeof name, TR_NAME_ERRORS "/" TR_NAME_OF_RANK ".json", r->rank);
    if (tr_mkdirs(j->l->output) != TR_OK || tr_out_mkdir(j->l->output, TR_NAME_ERRORS) != TR_OK) {
        tr_report(j, "%s", tr_error_text());
        return;
    }
    tr_str_addf(&s, "{\"rank\": %d, \"host\": ", r->rank);
    tr_str_json(&s, j->host);
    tr_str_addf(&s, ", \"pid\": %d, ", (int)r->pid);
    tr_hang_where(j, r, &s);
    tr_str_addf(&s, ", ");
    if (r->sig)
        tr_str_addf(&s, "\"code\": null, \"signal\": \"SIG%s\"", sigabbrev_np(r->sig) ? sigabbrev_np(r->sig) : "?");
    else
        tr_str_addf(&s, "\"code\": %d, \"signal\": null", r->code);
    tr_str_member(&s, ", \"cause\": ", how);
    tr_str_addf(&s, ", \"job\": \"%s\", \"generation\": %d, \"time\": %.3f, \"stderr_tail\": ", j->id, j->generation,
                tr_clock_wall());
    tr_str_json(&s, tr_tail(r));
    tr_str_addf(&s, "}\n");
    write_or_report(j, j->l->output, name, &s);
    tr_str_release(&s);
}

/* Only into a log that the run has begun; the run appends to it after a restart. */
void tr_record_event(struct launch_job *j, int rank, const char *phase, const char *action, const char *cause)
{
    char path[TR_PATH_MAX];
    struct tr_observe *o = NULL;
    if (!j->l->output || tr_path_join(path, j->l->output, TR_NAME_EVENTS) != TR_OK || !tr_file_exists(path))
        return;
    struct tr_observe_options opt = { .events_path = path, .run = j->id, .term = { .fd = -1 }, .quiet = true };
    if (tr_observe_open(&opt, &o) != TR_OK) {
        tr_report(j, "%s", tr_error_text());
        return;
    }
    tr_observe_fault(
        o, &(struct tr_event_fault){ .rank = rank, .host = j->host, .phase = phase, .action = action, .cause = cause });
    tr_observe_close(o);
}

/* Writes what every rank did last. */
static void write_flight(struct launch_job *j)
{
    struct tr_str s = { 0 };
    tr_hang_flight(j, &s);
    if (s.n)
        write_or_report(j, j->l->output, TR_NAME_ERRORS "/" TR_NAME_FLIGHT, &s);
    tr_str_release(&s);
}

/* The format that torchrun reads: {"message": {"message": ..., "extraInfo": {..., "timestamp": ...}}}. */
static void write_torchelastic(struct launch_job *j, const char *path, const char *how)
{
    struct tr_str text = { 0 }, s = { 0 };
    char dir[TR_PATH_MAX];
    const char *last;
    if (tr_path_split(path, dir, &last) != TR_OK || !tr_name_is_plain(last)) {
        tr_report(j, "TORCHELASTIC_ERROR_FILE %s is no name of a file", path);
        return;
    }
    tr_str_addf(&text, "rank %d %s\n%s", j->root->rank, how, tr_tail(j->root));
    tr_str_member(&s, "{\"message\": {\"message\": ", tr_str_ok(&text) ? text.p : how);
    tr_str_addf(&s, ", \"extraInfo\": {\"py_callstack\": \"\", \"timestamp\": \"%.0f\"}}}\n", tr_clock_wall());
    write_or_report(j, dir, last, &s);
    tr_str_release(&text);
    tr_str_release(&s);
}

void tr_record_root(struct launch_job *j, int exit_code)
{
    char how[256];
    static const char name[] = "TORCHELASTIC_ERROR_FILE=";
    tr_ended_how(j, j->root, how, sizeof how);
    bool is_stop = tr_hang_is_stop(j, j->root); /* no fault, and the run has logged it */
    /* A run that was refused before it made its output directory must leave none. */
    if (j->l->output && !is_stop && (exit_code != TR_EXIT_USAGE || tr_dir_exists(j->l->output))) {
        write_error(j, how);
        write_flight(j);
        tr_record_event(j, j->root->rank, "run", "launch", how);
    }
    for (char *const *e = j->l->envp; e && *e; e++)
        if (strncmp(*e, name, sizeof name - 1) == 0 && (*e)[sizeof name - 1])
            write_torchelastic(j, *e + sizeof name - 1, how);
}
