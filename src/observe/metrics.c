/* metrics.c - an event of the log as named numbers. Every number of an event gets a name, also one that this file does
 * not know: a new field of `step` shows up in every tracker as train/FIELD. Names of HF's Trainer are kept where it has
 * one. A number that was not finite is null in the log, and is left out. */
#include "observe/track_impl.h"

#include <math.h>
#include <time.h>

/* Kinds whose numbers are metrics; all others are shown as text. */
static const struct {
    const char *kind, *prefix;
    bool is_text; /* also as text */
} kinds[] = {
    { "step", "train", false },           { "eval", "eval", false },
    { "checkpoint", "checkpoint", true }, { "end", "end", true },
    { "system", "system", false },        { "plan", "memory", false },
    { "grad_norms", "grad_norm", false },
};
/* Fields that have another name in trackers. */
static const struct {
    const char *kind, *field, *name;
} names[] = {
    { "step", "lr", "train/learning_rate" },
    { "step", "tokens_per_s", "perf/tokens_per_second" },
    { "step", "mfu", "perf/mfu" },
    { "step", "data_wait_s", "perf/data_wait" },
    { "step", "comm_exposed_s", "perf/comm_exposed" },
    { "end", "seconds", "train/train_runtime" },
};
/* Fields that say where an event belongs, and are no measurements. */
static const char *const skipped[] = { "time", "schema", "step", "samples", "samples_left_out", "part", "parts" };

static bool is_skipped(const char *field)
{
    return TR_ROW(skipped, field) != NULL;
}

static struct tr_metric *add(struct tr_metrics *m)
{
    if (!TR_GROW(m->metric, m->n + 1, &m->n_cap))
        return NULL;
    return &m->metric[m->n++];
}

static bool add_number(struct tr_metrics *m, const char *prefix, const char *name, double value)
{
    struct tr_metric *x = add(m);
    if (!x)
        return false;
    (void)snprintf(x->name, sizeof x->name, "%s%s%s", prefix, *prefix ? "/" : "", name);
    x->value = value;
    return true;
}

static const char *renamed(const char *kind, const char *field)
{
    for (size_t i = 0; i < TR_COUNT_OF(names); i++)
        if (strcmp(names[i].kind, kind) == 0 && strcmp(names[i].field, field) == 0)
            return names[i].name;
    return NULL;
}

/* Arrays of objects: gpus of a system event, arenas of a plan; each becomes a prefix of its own. */
static bool add_items(struct tr_metrics *m, const char *prefix, const cJSON *array)
{
    int i = 0;
    bool ok = true;
    for (const cJSON *item = cJSON_IsArray(array) ? array->child : NULL; item && ok; item = item->next, i++) {
        char inner[224];
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
        const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(item, "bytes");
        if (cJSON_IsString(name) && cJSON_IsNumber(bytes)) {
            ok = add_number(m, prefix, name->valuestring, bytes->valuedouble);
            continue;
        }
        (void)snprintf(inner, sizeof inner, "%.200s.%d", prefix, i);
        for (const cJSON *x = cJSON_IsObject(item) ? item->child : NULL; x && ok; x = x->next)
            ok = !cJSON_IsNumber(x) || strcmp(x->string, "gpu") == 0 || add_number(m, inner, x->string, x->valuedouble);
    }
    return ok;
}

static bool add_norms(struct tr_metrics *m, const cJSON *norms)
{
    bool ok = true;
    for (const cJSON *x = cJSON_IsObject(norms) ? norms->child : NULL; x && ok; x = x->next) {
        if (!cJSON_IsNumber(x))
            continue;
        ok = add_number(m, "grad_norm", x->string, x->valuedouble);
        if (!TR_GROW(m->norm, m->n_norms + 1, &m->n_norms_cap))
            return false;
        m->norm[m->n_norms++] = x->valuedouble;
    }
    return ok;
}

static void make_histogram(const double *x, size_t n, struct tr_histogram *h)
{
    *h = (struct tr_histogram){ .min = x[0], .max = x[0] };
    for (size_t i = 0; i < n; i++) {
        h->min = fmin(h->min, x[i]);
        h->max = fmax(h->max, x[i]);
        h->sum += x[i];
        h->sum_squares += x[i] * x[i];
    }
    double width = (h->max - h->min) / TR_HISTOGRAM_BINS;
    if (!(width > 0)) /* all are equal */
        width = fmax(fabs(h->max), 1) * 1e-9;
    for (int b = 0; b <= TR_HISTOGRAM_BINS; b++)
        h->edge[b] = b == TR_HISTOGRAM_BINS ? fmax(h->max, h->min + width) : h->min + b * width;
    for (size_t i = 0; i < n; i++) {
        int b = 0;
        while (b + 1 < TR_HISTOGRAM_BINS && x[i] > h->edge[b + 1])
            b++;
        h->count[b]++;
    }
}

/* All norms of a step are here with the last event of its list. */
static void finish_norms(struct tr_metrics *m, const struct tr_event *e, struct tr_track_event *out)
{
    int64_t part = 0, parts = 1;
    if (tr_json_int(e->json, "part", false, 0, 1 << 20, &part) != TR_OK ||
        tr_json_int(e->json, "parts", false, 1, 1 << 20, &parts) != TR_OK)
        tr_error_clear();
    if (part + 1 < parts)
        return;
    if (m->n_norms > 0) {
        make_histogram(m->norm, m->n_norms, &m->histogram);
        out->histogram = &m->histogram;
        out->histogram_name = "grad_norm/all";
    }
    m->n_norms = 0;
}

/* A number of an event; of a named set of evaluation data it has that name in front: eval/code_loss, as in HF. */
static bool add_field(struct tr_metrics *m, const char *prefix, const cJSON *set, const cJSON *x)
{
    char name[160];
    if (!cJSON_IsString(set))
        return add_number(m, prefix, x->string, x->valuedouble);
    (void)snprintf(name, sizeof name, "%.64s_%.64s", set->valuestring, x->string);
    return add_number(m, prefix, name, x->valuedouble);
}

static bool add_fields(struct tr_metrics *m, const char *kind, const char *prefix, const cJSON *json)
{
    const cJSON *set = cJSON_GetObjectItemCaseSensitive(json, "set");
    bool ok = true;
    for (const cJSON *x = json->child; x && ok; x = x->next) {
        const char *name = renamed(kind, x->string);
        if (is_skipped(x->string))
            continue;
        if (cJSON_IsNumber(x))
            ok = name ? add_number(m, "", name, x->valuedouble) : add_field(m, prefix, set, x);
        else if (cJSON_IsArray(x))
            ok = add_items(m, strcmp(x->string, "gpus") == 0 ? "system/gpu" : prefix, x);
    }
    return ok;
}

/* A plan is an event of each rank: memory/rank_3/params. */
static bool add_plan(struct tr_metrics *m, const cJSON *json)
{
    char prefix[64];
    const cJSON *rank = cJSON_GetObjectItemCaseSensitive(json, "rank");
    const cJSON *total = cJSON_GetObjectItemCaseSensitive(json, "total_bytes");
    const cJSON *reserved = cJSON_GetObjectItemCaseSensitive(json, "reserved_bytes");
    (void)snprintf(prefix, sizeof prefix, "memory/rank_%.0f", cJSON_IsNumber(rank) ? rank->valuedouble : 0.0);
    return (!cJSON_IsNumber(total) || add_number(m, prefix, "total", total->valuedouble)) &&
           (!cJSON_IsNumber(reserved) || add_number(m, prefix, "reserved", reserved->valuedouble)) &&
           add_items(m, prefix, cJSON_GetObjectItemCaseSensitive(json, "arenas"));
}

bool tr_metrics_of(struct tr_metrics *m, const struct tr_event *e, struct tr_track_event *out)
{
    const char *kind = "";
    const cJSON *time_of = cJSON_GetObjectItemCaseSensitive(e->json, "time");
    bool ok = true;
    if (tr_json_str(e->json, "event", true, &kind) != TR_OK)
        tr_error_clear();
    m->n = 0;
    if (e->step >= 0 && e->kind != TR_EVENT_CHECKPOINT) /* which may come after later steps */
        m->last_step = e->step;
    *out = (struct tr_track_event){ .event = e,
                                    .kind = kind,
                                    .step = e->step >= 0 ? e->step : m->last_step,
                                    .time = cJSON_IsNumber(time_of) ? time_of->valuedouble : 0,
                                    .is_text = true };
    for (size_t i = 0; i < TR_COUNT_OF(kinds); i++) {
        if (strcmp(kind, kinds[i].kind) != 0)
            continue;
        out->is_text = kinds[i].is_text;
        if (e->kind == TR_EVENT_NORMS) {
            ok = add_norms(m, cJSON_GetObjectItemCaseSensitive(e->json, "norms"));
            finish_norms(m, e, out);
        } else {
            ok = strcmp(kind, "plan") == 0 ? add_plan(m, e->json) : add_fields(m, kind, kinds[i].prefix, e->json);
        }
    }
    out->metric = m->metric;
    out->n_metrics = m->n;
    return ok;
}

void tr_metrics_release(struct tr_metrics *m)
{
    free(m->metric);
    free(m->norm);
    *m = (struct tr_metrics){ 0 };
}

void tr_str_number(struct tr_str *s, double x)
{
    tr_str_addf(s, "%.17g", x);
}

void tr_iso_time(double t, char out[40])
{
    time_t seconds = (time_t)floor(t);
    struct tm parts = { 0 };
    (void)gmtime_r(&seconds, &parts);
    size_t n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(out + n, 40 - n, ".%06d+00:00", (int)((t - floor(t)) * 1e6));
}
