/* runs_diff.c - runs diff A B: what differs between two runs in options, data and curve. Options and inputs are those
 * of the newest checkpoint of each; the curve is compared step by step, to the bit. */
#include "cli/cli.h"
#include <dirent.h>
#include <math.h>
#include <stdlib.h>

struct run_pair {
    const char *path[2];
    cJSON *state[2];             /* NULL: the run has no checkpoint */
    struct tr_str options, data; /* JSON members */
    int n_options, n_data;
    int64_t n_common, first_step; /* -1: all common steps are equal */
    int64_t last_common;
    double loss[2], most; /* at the last common step; the largest difference */
};

/* The step of the newest checkpoint by its name; -1: none. Its tensors are not looked at. */
static int64_t newest_step(const char *output)
{
    enum { PREFIX = sizeof TR_NAME_CHECKPOINT - 1 };
    int64_t newest = -1, step;
    struct dirent *e;
    DIR *dir = opendir(output);
    while (dir && (e = readdir(dir)) != NULL)
        if (strncmp(e->d_name, TR_NAME_CHECKPOINT, PREFIX) == 0 &&
            tr_parse_int(e->d_name + PREFIX, 0, INT64_C(1) << 52, &step) == TR_OK)
            newest = tr_max64(newest, step);
    if (dir)
        closedir(dir);
    tr_error_clear();
    return newest;
}

static enum tr_status load_state(struct run_pair *d, int i)
{
    char dir[TR_PATH_MAX], path[TR_PATH_MAX];
    int64_t step = newest_step(d->path[i]);
    if (step < 0)
        return TR_OK;
    TR_PASS(tr_ckpt_step_path(d->path[i], step, dir));
    TR_PASS(tr_path_join(path, dir, "trireme/state.json"));
    return tr_json_load(path, 64 << 20, &d->state[i]);
}

/* Members of `group` that are not the same in both. */
static int compare_members(const struct run_pair *d, const char *group, struct tr_str *out)
{
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(d->state[0], group);
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(d->state[1], group);
    int n = 0;
    for (int side = 0; side < 2; side++)
        for (const cJSON *x = side ? (b ? b->child : NULL) : (a ? a->child : NULL); x; x = x->next) {
            const cJSON *other = cJSON_GetObjectItemCaseSensitive(side ? a : b, x->string);
            if ((side && other) || (other && cJSON_Compare(x, other, true)))
                continue;
            char *mine = cJSON_PrintUnformatted(x), *theirs = other ? cJSON_PrintUnformatted(other) : NULL;
            tr_str_addf(out, "%s{\"name\": ", n++ ? ", " : "");
            tr_str_json(out, x->string);
            tr_str_addf(out, ", \"a\": %s, \"b\": %s}",
                        side   ? "null"
                        : mine ? mine
                               : "null",
                        side     ? (mine ? mine : "null")
                        : theirs ? theirs
                                 : "null");
            cJSON_free(mine);
            cJSON_free(theirs);
        }
    return n;
}

static bool next_step(struct tr_events *log, struct tr_event *e)
{
    while (tr_events_next(log, e))
        if (e->kind == TR_EVENT_STEP)
            return true;
    return false;
}

static enum tr_status compare_curves(struct run_pair *d)
{
    enum tr_status st = TR_OK;
    struct tr_events *log[2] = { NULL, NULL };
    struct tr_event e[2];
    bool has[2];
    char path[TR_PATH_MAX];
    for (int i = 0; i < 2; i++) {
        TR_TRY(tr_path_join(path, d->path[i], TR_NAME_EVENTS));
        TR_TRY(tr_events_open(path, 0, &log[i]));
        has[i] = next_step(log[i], &e[i]);
    }
    while (has[0] && has[1]) {
        int64_t a = e[0].step, b = e[1].step;
        if (a == b) {
            double off = fabs(e[0].loss - e[1].loss);
            d->n_common++;
            d->last_common = a;
            d->loss[0] = e[0].loss;
            d->loss[1] = e[1].loss;
            d->most = off > d->most ? off : d->most;
            bool is_same = off == 0 || (isnan(e[0].loss) && isnan(e[1].loss));
            d->first_step = d->first_step < 0 && !is_same ? a : d->first_step;
        }
        if (a <= b)
            has[0] = next_step(log[0], &e[0]);
        if (b <= a)
            has[1] = next_step(log[1], &e[1]);
    }
out:
    tr_events_close(log[0]);
    tr_events_close(log[1]);
    return st;
}

/* The JSON members as lines for people. */
static void add_lines(const char *title, const struct tr_str *members, struct tr_str *out)
{
    cJSON *list = NULL;
    const cJSON *x;
    struct tr_str text = { 0 };
    tr_str_addf(&text, "[%s]", members->p ? members->p : "");
    if (!tr_str_ok(&text) || tr_json_parse(text.p, text.n, title, &list) != TR_OK)
        tr_error_clear();
    cJSON_ArrayForEach(x, list)
    {
        char *a = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(x, "a"));
        char *b = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(x, "b"));
        const char *name = "";
        (void)tr_json_str(x, "name", false, &name);
        tr_str_addf(out, "%-8s %-32s %s -> %s\n", title, name, a ? a : "null", b ? b : "null");
        cJSON_free(a);
        cJSON_free(b);
    }
    cJSON_Delete(list);
    tr_str_release(&text);
}

static void print(const struct run_pair *d, bool is_json)
{
    struct tr_str out = { 0 };
    if (is_json) {
        tr_str_member(&out, "{\"a\": ", d->path[0]);
        tr_str_member(&out, ", \"b\": ", d->path[1]);
        tr_str_addf(&out, ", \"has_options\": %s, \"options\": [%s], \"data\": [%s]",
                    d->state[0] && d->state[1] ? "true" : "false", d->options.p ? d->options.p : "",
                    d->data.p ? d->data.p : "");
        tr_str_addf(&out, ", \"curve\": {\"common_steps\": %" PRId64 ", \"first_difference\": ", d->n_common);
        if (d->first_step < 0)
            tr_str_addf(&out, "null");
        else
            tr_str_addf(&out, "%" PRId64, d->first_step);
        tr_str_addf(&out, ", \"largest_difference\": %.17g}}\n", d->most);
    } else {
        if (!d->state[0] || !d->state[1])
            tr_str_addf(&out, "%s has no checkpoint: options and data are not compared\n",
                        d->path[d->state[0] ? 1 : 0]);
        add_lines("option", &d->options, &out);
        add_lines("data", &d->data, &out);
        if (d->n_common == 0)
            tr_str_addf(&out, "curve    no step in common\n");
        else if (d->first_step < 0)
            tr_str_addf(&out, "curve    %" PRId64 " common steps, equal to the bit\n", d->n_common);
        else
            tr_str_addf(&out,
                        "curve    %" PRId64 " common steps, different from step %" PRId64
                        " on, by at most %.3g; at step %" PRId64 " %.4f -> %.4f\n",
                        d->n_common, d->first_step, d->most, d->last_common, d->loss[0], d->loss[1]);
    }
    cli_print(tr_str_ok(&out) ? out.p : "");
    tr_str_release(&out);
}

enum tr_status runs_diff(const struct tr_config *cfg, const char *a, const char *b)
{
    enum tr_status st = TR_OK;
    struct run_pair d = { .path = { a, b }, .first_step = -1 };
    TR_TRY(compare_curves(&d));
    TR_TRY(load_state(&d, 0));
    TR_TRY(load_state(&d, 1));
    if (d.state[0] && d.state[1]) {
        d.n_options = compare_members(&d, "config", &d.options);
        d.n_data = compare_members(&d, "inputs", &d.data);
    }
    print(&d, cfg->json);
    if (d.n_options || d.n_data || d.first_step >= 0)
        st = TR_NO;
out:
    cJSON_Delete(d.state[0]);
    cJSON_Delete(d.state[1]);
    tr_str_release(&d.options);
    tr_str_release(&d.data);
    return st;
}
