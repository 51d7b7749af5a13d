/* runs_diff.c - runs diff A B: what differs between two runs in options, data and curve. Options are those of the last
 * start in the log. Inputs (hashes of data and tokenizer) are those of the newest checkpoint of each; where one has no
 * checkpoint, what the log counts of the data is compared. The curve is compared step by step, to the bit. */
#include "cli/cli.h"
#include <dirent.h>
#include <math.h>
#include <stdlib.h>

struct run_pair {
    const char *path[2];
    cJSON *state[2];             /* NULL: the run has no checkpoint */
    cJSON *set[2], *counts[2];   /* options by name, what the log says of the data; NULL: it says nothing */
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

/* Members that are not the same in `a` and `b`, but those of `known`. */
static int compare_members(const cJSON *a, const cJSON *b, const cJSON *known, struct tr_str *out)
{
    int n = 0;
    for (int side = 0; side < 2; side++)
        for (const cJSON *x = side ? b->child : a->child; x; x = x->next) {
            const cJSON *other = cJSON_GetObjectItemCaseSensitive(side ? a : b, x->string);
            if ((side && other) || (other && cJSON_Compare(x, other, true)) ||
                (known && cJSON_HasObjectItem(known, x->string)))
                continue;
            char *mine = cJSON_PrintUnformatted(x), *theirs = other ? cJSON_PrintUnformatted(other) : NULL;
            const char *sides[2] = { mine ? mine : "null", theirs ? theirs : "null" };
            tr_str_addf(out, "%s{\"name\": ", n++ ? ", " : "");
            tr_str_json(out, x->string);
            tr_str_addf(out, ", \"a\": %s, \"b\": %s}", sides[side], sides[!side]);
            cJSON_free(mine);
            cJSON_free(theirs);
        }
    return n;
}

/* The values of a run's options, without the place of its output, by which the two runs are called. */
static cJSON *values_of(const cJSON *options)
{
    cJSON *out = cJSON_CreateObject();
    for (const cJSON *x = out && cJSON_IsObject(options) ? options->child : NULL; x; x = x->next)
        if (strcmp(x->string, "output") != 0)
            cJSON_AddItemToObject(out, x->string, cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(x, "value"), true));
    return out;
}

/* The log of run i says what its options are, or its data. */
static void note(struct run_pair *d, int i, const cJSON *e)
{
    static const char *const of_the_log[] = { "event", "time", "run", "schema", "sample" };
    const char *name = "";
    if (tr_json_str(e, "event", false, &name) != TR_OK)
        tr_error_clear();
    if (strcmp(name, "config") == 0) {
        cJSON_Delete(d->set[i]);
        d->set[i] = values_of(cJSON_GetObjectItemCaseSensitive(e, "options"));
    } else if (strcmp(name, "data") == 0) {
        cJSON_Delete(d->counts[i]);
        d->counts[i] = cJSON_Duplicate(e, true);
        for (size_t k = 0; k < TR_COUNT_OF(of_the_log); k++)
            cJSON_DeleteItemFromObjectCaseSensitive(d->counts[i], of_the_log[k]);
    }
}

static bool next_step(struct run_pair *d, int i, struct tr_events *log, struct tr_event *e)
{
    while (tr_events_next(log, e))
        if (e->kind == TR_EVENT_STEP)
            return true;
        else if (e->kind == TR_EVENT_OTHER)
            note(d, i, e->json);
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
        has[i] = next_step(d, i, log[i], &e[i]);
    }
    while (has[0] && has[1]) {
        int64_t a = e[0].step, b = e[1].step;
        if (a == b) {
            bool is_same = e[0].loss == e[1].loss || (isnan(e[0].loss) && isnan(e[1].loss));
            double off = is_same ? 0 : fabs(e[0].loss - e[1].loss);
            d->n_common++;
            d->last_common = a;
            d->loss[0] = e[0].loss;
            d->loss[1] = e[1].loss;
            d->most = isnan(off) ? INFINITY : off > d->most ? off : d->most; /* NaN: one of them is not finite */
            d->first_step = d->first_step < 0 && !is_same ? a : d->first_step;
        }
        if (a <= b)
            has[0] = next_step(d, 0, log[0], &e[0]);
        if (b <= a)
            has[1] = next_step(d, 1, log[1], &e[1]);
    }
    for (int i = 0; i < 2; i++) /* a later start may have other options */
        while (has[i])
            has[i] = next_step(d, i, log[i], &e[i]);
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
                    d->set[0] && d->set[1] ? "true" : "false", d->options.p ? d->options.p : "",
                    d->data.p ? d->data.p : "");
        tr_str_addf(&out, ", \"curve\": {\"common_steps\": %" PRId64 ", \"first_difference\": ", d->n_common);
        if (d->first_step < 0)
            tr_str_addf(&out, "null");
        else
            tr_str_addf(&out, "%" PRId64, d->first_step);
        if (isfinite(d->most))
            tr_str_addf(&out, ", \"largest_difference\": %.17g}}\n", d->most);
        else
            tr_str_addf(&out, ", \"largest_difference\": null}}\n");
    } else {
        if (!d->set[0] || !d->set[1])
            tr_str_addf(&out, "the log of %s has no options: they are not compared\n", d->path[d->set[0] ? 1 : 0]);
        if (!d->state[0] || !d->state[1])
            tr_str_addf(&out, "%s has no checkpoint: data is compared by what the log counts of it\n",
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
    if (d.set[0] && d.set[1])
        d.n_options = compare_members(d.set[0], d.set[1], NULL, &d.options);
    const cJSON *a_data = d.counts[0], *b_data = d.counts[1];
    if (d.state[0] && d.state[1]) {
        a_data = cJSON_GetObjectItemCaseSensitive(d.state[0], "inputs");
        b_data = cJSON_GetObjectItemCaseSensitive(d.state[1], "inputs");
    }
    if (cJSON_IsObject(a_data) && cJSON_IsObject(b_data))
        d.n_data = compare_members(a_data, b_data, d.set[0], &d.data);
    print(&d, cfg->json);
    if (d.n_options || d.n_data || d.first_step >= 0)
        st = TR_NO;
out:
    for (int i = 0; i < 2; i++) {
        cJSON_Delete(d.state[i]);
        cJSON_Delete(d.set[i]);
        cJSON_Delete(d.counts[i]);
    }
    tr_str_release(&d.options);
    tr_str_release(&d.data);
    return st;
}
