/* sink_prometheus.c - --metrics_file X.prom: the newest numbers in Prometheus' text format, for node_exporter's
 * textfile collector. The file is replaced as a whole, about once a second, at the looks of the thread at the log;
 * readers never see half of one. It is not synced: a power cut may cost it, and the next second writes it again.
 * Counters are counted over the whole log, so a resume continues them. */
#include "observe/track_impl.h"

#include <unistd.h>

enum { REWRITE_US = 900 * 1000, N_FAMILIES_MAX = 192, N_SAMPLES_MAX = 65536 };

/* Metrics with a name or a meaning of their own; all others are gauges trireme_GROUP_NAME. */
static const struct known {
    const char *metric, *name, *help;
    bool is_sum; /* a counter: values of all events are added */
} known[] = {
    { "train/loss", "trireme_train_loss", "loss of the last step", false },
    { "train/grad_norm", "trireme_grad_norm", "gradient norm of the last step before clipping", false },
    { "train/learning_rate", "trireme_learning_rate", "learning rate of the last step", false },
    { "train/tokens", "trireme_tokens_total", "tokens trained on, padding included", true },
    { "perf/tokens_per_second", "trireme_tokens_per_second", "speed of the last step, without padding", false },
    { "perf/mfu", "trireme_model_flops_utilization_ratio", "share of the peak that the last step used", false },
    { "perf/data_wait", "trireme_data_wait_seconds_total", "time that steps waited for data", true },
    { "perf/comm_exposed", "trireme_comm_exposed_seconds_total", "time that steps waited for other ranks", true },
    { "eval/loss", "trireme_eval_loss", "loss of the last evaluation", false },
    { "checkpoint/write_s", "trireme_checkpoint_duration_seconds", "time that the last checkpoint took", false },
    { "checkpoint/stall_s", "trireme_checkpoint_stall_seconds", "time that training stood still for it", false },
    { "checkpoint/bytes", "trireme_checkpoint_bytes", "size of the last checkpoint", false },
    { "train/train_runtime", "trireme_run_seconds", "time of the run when it ended", false },
};

struct prom_family {
    char name[128], help[160];
    bool is_counter;
};
struct prom_sample {
    int family;
    char *labels; /* with braces; "": none */
    double value;
};
struct prometheus {
    char dir[TR_PATH_MAX], name[256], temp[300];
    struct prom_family family[N_FAMILIES_MAX];
    struct prom_sample *sample;
    int n_families;
    size_t n, n_cap, cursor; /* cursor: metrics of an event come in the order of the last one */
    int64_t written_us;
    bool is_new; /* something changed since the file was written */
    struct tr_str text;
};

static int family_of(struct prometheus *p, const char *name, const char *help, bool is_counter)
{
    for (int i = 0; i < p->n_families; i++)
        if (strcmp(p->family[i].name, name) == 0)
            return i;
    if (p->n_families == N_FAMILIES_MAX)
        return -1;
    struct prom_family *f = &p->family[p->n_families];
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    (void)snprintf(f->help, sizeof f->help, "%s", help);
    f->is_counter = is_counter;
    return p->n_families++;
}

static struct prom_sample *sample_of(struct prometheus *p, int family, const char *labels)
{
    for (size_t i = 0; i < p->n; i++) {
        size_t at = (p->cursor + i) % p->n;
        if (p->sample[at].family == family && strcmp(p->sample[at].labels, labels) == 0) {
            p->cursor = at + 1;
            return &p->sample[at];
        }
    }
    if (family < 0 || p->n == N_SAMPLES_MAX)
        return NULL;
    if (!TR_GROW(p->sample, p->n + 1, &p->n_cap))
        return NULL;
    char *copy = strdup(labels);
    if (!copy)
        return NULL;
    p->sample[p->n] = (struct prom_sample){ .family = family, .labels = copy };
    return &p->sample[p->n++];
}

static void set(struct prometheus *p, const char *name, const char *help, bool is_sum, const char *labels, double x)
{
    struct prom_sample *s = sample_of(p, family_of(p, name, help, is_sum), labels);
    if (s)
        s->value = is_sum ? s->value + x : x;
    p->is_new = true;
}

/* A label's value: backslash, quote and newline are escaped. */
static void add_label(struct tr_str *s, const char *name, const char *value)
{
    tr_str_addf(s, "%s%s=\"", s->n ? "," : "{", name);
    for (; *value; value++) {
        if (*value == '\n')
            tr_str_addf(s, "\\n");
        else
            tr_str_addf(s, "%s%c", *value == '\\' || *value == '"' ? "\\" : "", *value);
    }
    tr_str_addf(s, "\"");
}

static void set_labelled(struct prometheus *p, const char *name, const char *help, bool is_sum, const char *key,
                         const char *value, const char *key2, const char *value2, double x)
{
    struct tr_str labels = { 0 };
    add_label(&labels, key, value);
    if (key2)
        add_label(&labels, key2, value2);
    tr_str_addf(&labels, "}");
    if (tr_str_ok(&labels))
        set(p, name, help, is_sum, labels.p, x);
    tr_str_release(&labels);
}

/* Letters that a metric's name may have. */
static void clean(char *name)
{
    for (; *name; name++)
        if (!((*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') || (*name >= '0' && *name <= '9')))
            *name = '_';
}

/* Units are written out, as Prometheus' own check of names wants them. */
static void spell_unit(char *name, size_t size)
{
    static const struct {
        const char *ours, *theirs;
    } rows[] = { { "_per_s", "_per_second" }, { "_s", "_seconds" }, { "_w", "_watts" }, { "_c", "_celsius" } };
    size_t n = strlen(name);
    for (size_t i = 0; i < TR_COUNT_OF(rows); i++) {
        size_t n_unit = strlen(rows[i].ours);
        if (n > n_unit && strcmp(name + n - n_unit, rows[i].ours) == 0) {
            (void)snprintf(name + n - n_unit, size - (n - n_unit), "%s", rows[i].theirs);
            return;
        }
    }
}

/* "memory/rank_3/params", "system/gpu.0/power_w": the part in the middle is a label. */
static bool set_special(struct prometheus *p, const char *metric, double x)
{
    char middle[64], last[128], name[160];
    if (strncmp(metric, "grad_norm/", 10) == 0) {
        set_labelled(p, "trireme_parameter_grad_norm", "gradient norm of a parameter", false, "parameter", metric + 10,
                     NULL, NULL, x);
        return true;
    }
    if (sscanf(metric, "memory/rank_%63[0-9]/%127s", middle, last) == 2) {
        set_labelled(p, "trireme_memory_bytes", "planned memory of a rank", false, "rank", middle, "arena", last, x);
        return true;
    }
    if (sscanf(metric, "system/gpu.%63[0-9]/%127s", middle, last) == 2) {
        clean(last);
        spell_unit(last, sizeof last);
        (void)snprintf(name, sizeof name, "trireme_gpu_%s", last);
        set_labelled(p, name, "as the driver reports it", false, "gpu", middle, NULL, NULL, x);
        return true;
    }
    return false;
}

/* labels: of all samples of the event, with braces; "": none. */
static void set_named(struct prometheus *p, const char *metric, const char *labels, double x)
{
    char name[256], full[280], help[300];
    for (size_t i = 0; i < TR_COUNT_OF(known); i++)
        if (strcmp(known[i].metric, metric) == 0) {
            set(p, known[i].name, known[i].help, known[i].is_sum, labels, x);
            return;
        }
    (void)snprintf(name, sizeof name, "%s", metric);
    clean(name);
    spell_unit(name, sizeof name);
    (void)snprintf(full, sizeof full, "trireme_%.120s", name);
    (void)snprintf(help, sizeof help, "%.100s of the last event that has it", metric);
    set(p, full, help, false, labels, x);
}

/* "eval/code_loss" of the set "code" is trireme_eval_loss{set="code"}: in a name of its own, a set "a-b" would be the
 * set "a_b", and a set "h" an abbreviated unit. */
static void set_metric(struct prometheus *p, const struct tr_metric *m, const char *eval_set)
{
    char name[256], prefix[160];
    struct tr_str labels = { 0 };
    size_t n = (size_t)snprintf(prefix, sizeof prefix, "eval/%s_", eval_set);
    if (set_special(p, m->name, m->value))
        return;
    if (!*eval_set || strncmp(m->name, prefix, n) != 0) {
        set_named(p, m->name, "", m->value);
        return;
    }
    add_label(&labels, "set", eval_set);
    tr_str_addf(&labels, "}");
    (void)snprintf(name, sizeof name, "eval/%s", m->name + n);
    if (tr_str_ok(&labels))
        set_named(p, name, labels.p, m->value);
    tr_str_release(&labels);
}

static enum tr_status replace_file(struct prometheus *p)
{
    enum tr_status st = TR_OK;
    int fd = -1;
    tr_str_clear(&p->text);
    for (int f = 0; f < p->n_families; f++) {
        const struct prom_family *family = &p->family[f];
        tr_str_addf(&p->text, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name,
                    family->is_counter ? "counter" : "gauge");
        for (size_t i = 0; i < p->n; i++)
            if (p->sample[i].family == f)
                tr_str_addf(&p->text, "%s%s %.17g\n", family->name, p->sample[i].labels, p->sample[i].value);
    }
    (void)tr_out_unlink(p->dir, p->temp);
    TR_TRY(tr_out_open(p->dir, p->temp, TR_OUT_NEW, &fd));
    TR_TRY(tr_append(fd, p->name, &p->text));
    int err = tr_out_move(p->dir, p->temp, p->name, TR_OUT_RENAME);
    if (err)
        TR_TRY(tr_fail(TR_IO, "%s/%s: %s", p->dir, p->name, strerror(err)));
    p->is_new = false;
    p->written_us = tr_clock_us();
out:
    if (fd >= 0)
        close(fd);
    if (st != TR_OK && fd >= 0)
        (void)tr_out_unlink(p->dir, p->temp);
    return st;
}

static enum tr_status flush(void *sink)
{
    struct prometheus *p = sink;
    return p->is_new && tr_clock_us() - p->written_us >= REWRITE_US ? replace_file(p) : TR_OK;
}

static enum tr_status close_prometheus(void *sink, bool is_over)
{
    struct prometheus *p = sink;
    enum tr_status st = is_over && p->is_new ? replace_file(p) : TR_OK;
    for (size_t i = 0; i < p->n; i++)
        free(p->sample[i].labels);
    free(p->sample);
    tr_str_release(&p->text);
    free(p);
    return st;
}

static enum tr_status open_prometheus(const struct tr_track_run *run, void **sink, int64_t *from, struct tr_str *place)
{
    enum tr_status st = TR_OK;
    const char *name;
    char shown[300];
    struct prometheus *p = calloc(1, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory");
    TR_TRY(tr_path_split(run->metrics_file, p->dir, &name));
    if (!tr_name_is_plain(name))
        TR_TRY(tr_fail(TR_USAGE, "\"%s\" is no name for a file", tr_escape(name, shown, sizeof shown)));
    TR_TRY(tr_format(p->name, sizeof p->name, "%s", name));
    TR_TRY(tr_format(p->temp, sizeof p->temp, "%s.tmp-%d", name, (int)getpid()));
    *from = 0;
    set_labelled(p, "trireme_build_info", "version of the trainer", false, "version", TR_VERSION, NULL, NULL, 1);
    set_labelled(p, "trireme_run_info", "the run", false, "run", run->id, "name", run->name, 1);
    set(p, "trireme_steps_planned", "steps of the whole run", false, "", (double)run->total_steps);
    tr_str_addf(place, "%s", run->metrics_file);
    TR_TRY(replace_file(p));
    *sink = p;
out:
    if (st != TR_OK)
        (void)close_prometheus(p, false);
    return st;
}

static enum tr_status write_event(void *sink, const struct tr_track_event *e)
{
    struct prometheus *p = sink;
    const char *action = "", *eval_set = "";
    if (tr_json_str(e->event->json, "set", false, &eval_set) != TR_OK)
        tr_error_clear();
    for (size_t i = 0; i < e->n_metrics; i++)
        set_metric(p, &e->metric[i], eval_set);
    if (e->event->kind == TR_EVENT_STEP) {
        set(p, "trireme_step", "last step", false, "", (double)e->step);
        set(p, "trireme_last_progress_timestamp_seconds", "when the last step ended", false, "", e->time);
    }
    if (e->event->kind == TR_EVENT_CHECKPOINT)
        set(p, "trireme_checkpoint_last_step", "step of the last checkpoint", false, "", (double)e->step);
    if (strcmp(e->kind, "start") == 0)
        set(p, "trireme_starts_total", "starts of the run that reached a step", true, "", 1);
    if (strcmp(e->kind, "fault") == 0) {
        if (tr_json_str(e->event->json, "action", false, &action) != TR_OK)
            tr_error_clear();
        set_labelled(p, "trireme_faults_total", "faults by what was done", true, "action", action, NULL, NULL, 1);
    }
    return TR_OK;
}

const struct tr_sink_row tr_sink_prometheus = {
    .name = "metrics_file",
    .note = "%s has the newest numbers for Prometheus",
    .open = open_prometheus,
    .event = write_event,
    .flush = flush,
    .close = close_prometheus,
};
