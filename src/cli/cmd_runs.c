/* cmd_runs.c - runs: the runs beneath a directory, one line each, and what differs between two of them. The directories
 * are the registry: a run is one that holds events.jsonl. A list reads the end of each log only, so a long run costs as
 * much as a short one; a comparison reads both logs side by side, one line of each in memory. */
#include "cli/cli.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 1 << 19, RUNS_MAX = 100000, DEPTH_MAX = 3 };

struct run_row {
    char *path;
    const char *state;
    int64_t step, eval_step;
    double loss, eval_loss, tokens_per_s, lr, time; /* NaN: unknown */
};
struct run_list {
    struct run_row *row;
    size_t n, n_cap;
    const char *sort;
};

/* ---- one run ---- */

/* Is a process of the run alive? Of another host it is unknown, and taken for alive until it says that it ended. */
static bool is_alive(const char *path)
{
    struct tr_phase_page page;
    char host[64] = "";
    if (!tr_phase_read(path, 0, &page) || page.is_ended)
        return false;
    (void)gethostname(host, sizeof host - 1);
    return strcmp(page.host, host) != 0 || kill(page.pid, 0) == 0 || errno == EPERM;
}

static void read_run(struct run_row *r)
{
    char path[TR_PATH_MAX];
    const double none = (double)NAN;
    const char *status = NULL;
    struct tr_events *log = NULL;
    struct tr_event e;
    struct stat info;
    r->step = r->eval_step = -1;
    r->loss = r->eval_loss = r->tokens_per_s = r->lr = r->time = none;
    r->state = "new";
    if (tr_path_join(path, r->path, TR_NAME_EVENTS) != TR_OK || tr_events_open(path, TAIL_BYTES, &log) != TR_OK)
        tr_error_clear();
    if (log && stat(path, &info) == 0)
        r->time = (double)info.st_mtime;
    while (tr_events_next(log, &e)) {
        if (e.kind == TR_EVENT_STEP) {
            r->step = e.step;
            r->loss = e.loss;
            r->lr = e.lr;
            r->tokens_per_s = e.tokens_per_s;
            r->state = "killed";
        } else if (e.kind == TR_EVENT_EVAL && !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(e.json, "best_of"))) {
            r->eval_step = e.step;
            r->eval_loss = e.loss;
        } else if (e.kind == TR_EVENT_END && tr_json_str(e.json, "status", false, &status) == TR_OK && status) {
            r->state = strcmp(status, "done") == 0 ? "done" : strcmp(status, "stopped") == 0 ? "stopped" : "failed";
        }
    }
    tr_events_close(log);
    tr_error_clear();
    if (is_alive(r->path))
        r->state = "running";
}

/* ---- all runs of a directory ---- */

static enum tr_status add_run(struct run_list *l, const char *path)
{
    if (l->n == RUNS_MAX)
        return tr_fail(TR_USAGE, "more than %d runs; name a directory further down", RUNS_MAX);
    TR_PASS(TR_ROOM(l->row, l->n + 1, &l->n_cap, "%zu runs", l->n + 1));
    struct run_row *r = &l->row[l->n];
    *r = (struct run_row){ .path = strdup(path) };
    if (!r->path)
        return tr_fail(TR_NOMEM, "no memory for the runs");
    l->n++;
    read_run(r);
    return TR_OK;
}

/* A run holds no runs; links are not followed, so that a loop of them ends. */
static enum tr_status find_runs(struct run_list *l, const char *dir, int depth)
{
    enum tr_status st = TR_OK;
    char path[TR_PATH_MAX];
    struct dirent *d;
    struct stat info;
    TR_TRY(tr_path_join(path, dir, TR_NAME_EVENTS));
    if (tr_file_exists(path))
        return add_run(l, dir);
    DIR *entries = depth < DEPTH_MAX ? opendir(dir) : NULL;
    while (entries && st == TR_OK && (d = readdir(entries)) != NULL) {
        bool is_ours =
            d->d_name[0] != '.' && strncmp(d->d_name, TR_NAME_CHECKPOINT, sizeof TR_NAME_CHECKPOINT - 1) != 0;
        if (!is_ours || tr_format(path, sizeof path, "%s%s%s", strcmp(dir, ".") == 0 ? "" : dir,
                                  strcmp(dir, ".") == 0 ? "" : "/", d->d_name) != TR_OK)
            continue;
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode))
            st = find_runs(l, path, depth + 1);
    }
    if (entries)
        closedir(entries);
    tr_error_clear();
out:
    return st;
}

static const char *sort_by; /* qsort has no context */

static int by_number(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return (a > b) - (a < b);
}

static int by_field(const void *x, const void *y)
{
    const struct run_row *a = x, *b = y;
    int order = strcmp(sort_by, "loss") == 0           ? by_number(a->loss, b->loss)
                : strcmp(sort_by, "step") == 0         ? (a->step < b->step) - (a->step > b->step)
                : strcmp(sort_by, "tokens_per_s") == 0 ? by_number(-a->tokens_per_s, -b->tokens_per_s)
                : strcmp(sort_by, "time") == 0         ? by_number(-a->time, -b->time)
                : strcmp(sort_by, "state") == 0        ? strcmp(a->state, b->state)
                                                       : 0;
    return order ? order : strcmp(a->path, b->path);
}

static void add_number(struct tr_str *out, const char *name, double x)
{
    if (isfinite(x))
        tr_str_addf(out, ", \"%s\": %.17g", name, x);
    else
        tr_str_addf(out, ", \"%s\": null", name);
}

static void add_json(const struct run_list *l, struct tr_str *out)
{
    tr_str_addf(out, "{\"runs\": [");
    for (size_t i = 0; i < l->n; i++) {
        const struct run_row *r = &l->row[i];
        tr_str_addf(out, "%s{\"path\": ", i ? ", " : "");
        tr_str_json(out, r->path);
        tr_str_addf(out, ", \"state\": \"%s\", \"step\": %" PRId64, r->state, r->step < 0 ? 0 : r->step);
        add_number(out, "loss", r->loss);
        add_number(out, "eval_loss", r->eval_loss);
        add_number(out, "learning_rate", r->lr);
        add_number(out, "tokens_per_s", r->tokens_per_s);
        add_number(out, "time", r->time);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}\n");
}

static void add_cell(struct tr_str *out, double x, int width, const char *format)
{
    char text[32] = "-";
    if (isfinite(x)) {
        if (strcmp(format, "count") == 0)
            (void)tr_human_count(x, text, sizeof text);
        else
            (void)snprintf(text, sizeof text, strcmp(format, "loss") == 0 ? "%.4f" : "%.3g", x);
    }
    tr_str_addf(out, " %*s", width, text);
}

static void add_table(const struct run_list *l, struct tr_str *out)
{
    char shown[512];
    tr_str_addf(out, "%-8s %9s %9s %9s %9s %9s  %s\n", "state", "step", "loss", "eval loss", "lr", "tok/s", "path");
    for (size_t i = 0; i < l->n; i++) {
        const struct run_row *r = &l->row[i];
        tr_str_addf(out, "%-8s %9" PRId64, r->state, r->step < 0 ? 0 : r->step);
        add_cell(out, r->loss, 9, "loss");
        add_cell(out, r->eval_loss, 9, "loss");
        add_cell(out, r->lr, 9, "real");
        add_cell(out, r->tokens_per_s, 9, "count");
        tr_str_addf(out, "  %s\n", tr_escape(r->path, shown, sizeof shown));
    }
}

static enum tr_status list_runs(const struct tr_config *cfg, const char *dir)
{
    static const char *const fields[] = { "path", "time", "state", "step", "loss", "tokens_per_s" };
    enum tr_status st = TR_OK;
    struct run_list l = { .sort = cfg->sort };
    struct tr_str out = { 0 };
    bool is_field = false;
    for (size_t i = 0; i < TR_COUNT_OF(fields); i++)
        is_field = is_field || strcmp(cfg->sort, fields[i]) == 0;
    if (!is_field)
        TR_TRY(tr_fail(TR_USAGE, "sort %s: the fields are path, time, state, step, loss, tokens_per_s", cfg->sort));
    if (!tr_dir_exists(dir))
        TR_TRY(tr_fail(TR_USAGE, "%s: no such directory", dir));
    TR_TRY(find_runs(&l, dir, 0));
    sort_by = l.sort;
    if (l.n)
        qsort(l.row, l.n, sizeof *l.row, by_field);
    if (cfg->json)
        add_json(&l, &out);
    else if (l.n)
        add_table(&l, &out);
    else
        tr_str_addf(&out, "no runs in %s: no directory down to %d levels holds " TR_NAME_EVENTS "\n", dir, DEPTH_MAX);
    cli_print(tr_str_ok(&out) ? out.p : "");
out:
    for (size_t i = 0; i < l.n; i++)
        free(l.row[i].path);
    free(l.row);
    tr_str_release(&out);
    return st;
}

enum tr_status cmd_runs(const struct tr_config *cfg)
{
    if (cfg->args.n == 3 && strcmp(cfg->args.item[0], "diff") == 0)
        return runs_diff(cfg, cfg->args.item[1], cfg->args.item[2]);
    if (cfg->args.n > 1)
        return tr_verb_misused(TR_VERB_RUNS);
    return list_runs(cfg, cfg->args.n == 1 ? cfg->args.item[0] : ".");
}
