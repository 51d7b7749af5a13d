/* screen_pages.c - pages of a terminal beside the numbers of the steps: data with masks, the machine, norms and loads
 * by layer. What comes from files is escaped before it becomes part of a line. */
#include "watch/screen_impl.h"

#include <math.h>
#include <stdlib.h>

/* The last event of a name; NULL: there is none. */
static cJSON *last_event(const struct tr_watch_run *w, const char *event)
{
    const char *text = tr_watch_last(w, event);
    cJSON *j = NULL;
    if (text && tr_json_parse(text, strlen(text), event, &j) != TR_OK)
        tr_error_clear();
    return j;
}

static double real_of(const cJSON *j, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(j, key);
    return cJSON_IsNumber(x) ? x->valuedouble : (double)NAN;
}

/* ---- data ---- */

struct flow { /* text that is broken at the right edge, with a colour that goes on */
    struct screen_block *b;
    struct tr_str line;
    int used, skip;
    const char *color;
};

static void end_line(struct flow *f)
{
    if (f->skip-- <= 0 && tr_str_ok(&f->line))
        tr_block_add(f->b, f->line.p);
    tr_str_clear(&f->line);
    tr_str_addf(&f->line, "%s", f->color);
    f->used = 0;
}

static void pour(struct flow *f, const char *text)
{
    while (*text) {
        size_t n = tr_utf8_len(text, strlen(text));
        if (f->used == f->b->columns)
            end_line(f);
        tr_str_add(&f->line, text, n ? n : 1);
        f->used++;
        text += n ? n : 1;
    }
}

/* Trained tokens are green, or stand in brackets where there are no colours; a bar begins a document. */
static void add_sample(struct screen_block *b, const cJSON *sample, int skip)
{
    struct flow f = { .b = b, .skip = skip, .color = "" };
    const cJSON *piece;
    tr_str_addf(&f.line, "%s", "");
    cJSON_ArrayForEach(piece, cJSON_GetObjectItemCaseSensitive(sample, "pieces"))
    {
        const cJSON *what = cJSON_GetArrayItem(piece, 0), *text = cJSON_GetArrayItem(piece, 1);
        if (!cJSON_IsNumber(what) || !cJSON_IsString(text) || !(fabs(what->valuedouble) < 8))
            continue;
        int bits = (int)what->valuedouble;
        size_t n = 4 * strlen(text->valuestring) + 1;
        char *shown = malloc(n);
        if (!shown)
            break;
        if (bits & 2)
            pour(&f, "|");
        f.color = b->has_color && (bits & 1) ? "\x1b[0;32m" : b->has_color ? "\x1b[0m" : "";
        tr_str_addf(&f.line, "%s", f.color);
        if (!b->has_color && (bits & 1))
            pour(&f, "[");
        pour(&f, tr_escape(text->valuestring, shown, n));
        if (!b->has_color && (bits & 1))
            pour(&f, "]");
        free(shown);
    }
    end_line(&f);
    tr_str_release(&f.line);
}

void tr_screen_data(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    cJSON *j = last_event(w, "data");
    const cJSON *sample = cJSON_GetObjectItemCaseSensitive(j, "sample"), *source;
    char path[512], format[64];
    tr_block_title(b, j ? "     tokens  documents    skipped  format       source" : "the run has not shown its data");
    cJSON_ArrayForEach(source, cJSON_GetObjectItemCaseSensitive(j, "sources")) if (skip-- <= 0)
        tr_block_line(b, "%11.0f %10.0f %10.0f  %-12s %s", real_of(source, "tokens"), real_of(source, "documents"),
                      real_of(source, "skipped"), tr_screen_text(source, "format", format, sizeof format),
                      tr_screen_text(source, "path", path, sizeof path));
    if (j)
        tr_block_line(b, "%.0f rows, %.1f %% of the tokens are trained, %.0f rows without a target", real_of(j, "rows"),
                      100 * real_of(j, "trained"), real_of(j, "rows_without_target"));
    if (cJSON_IsObject(sample)) {
        tr_block_line(b, "%s", "");
        tr_block_line(b, "%ssample %.0f: %.0f tokens, %.0f of them trained (%s)", b->has_color ? "\x1b[36m" : "",
                      real_of(sample, "id"), real_of(sample, "tokens"), real_of(sample, "trained"),
                      b->has_color ? "green" : "in brackets");
        add_sample(b, sample, (int)tr_max64(0, skip));
    }
    cJSON_Delete(j);
}

/* ---- machine ---- */

static void add_used(struct screen_block *b, const char *name, double used, double all, const char *text)
{
    struct tr_str bar = { 0 };
    tr_block_bar(&bar, all > 0 ? used / all : 0, 20, b->has_unicode);
    tr_block_line(b, "%-8s %s  %s", name, tr_str_ok(&bar) && bar.n ? bar.p : "", text);
    tr_str_release(&bar);
}

static void add_room(struct screen_block *b, const cJSON *health, const char *name, const char *all_key,
                     const char *free_key)
{
    double all = real_of(health, all_key), room = real_of(health, free_key);
    char text[80], of[32], left[32];
    if (!(all > 0) || !(room >= 0))
        return;
    (void)snprintf(text, sizeof text, "%s of %s free", tr_human_bytes((uint64_t)room, left, sizeof left),
                   tr_human_bytes((uint64_t)all, of, sizeof of));
    add_used(b, name, all - room, all, text);
}

static void add_measured(struct screen_block *b, const cJSON *x)
{
    char name[64], human[32];
    if (strcmp(x->string, "cpu") == 0 || strcmp(x->string, "memory_used") == 0) { /* shares */
        tr_block_line(b, "%-32s %.1f %%", x->string, 100 * x->valuedouble);
        return;
    }
    bool is_bytes = strstr(x->string, "bytes") != NULL && x->valuedouble >= 0 && x->valuedouble < 1e18;
    tr_block_line(b, "%-32s %s", tr_escape(x->string, name, sizeof name),
                  is_bytes ? tr_human_bytes((uint64_t)x->valuedouble, human, sizeof human)
                           : tr_human_count(x->valuedouble, human, sizeof human));
}

void tr_screen_machine(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    struct tr_str text = { 0 };
    cJSON *health = NULL, *sample = last_event(w, "system");
    const cJSON *x, *load;
    char host[80], human[2][32], line[80];
    tr_health_json(w, &text);
    if (tr_str_ok(&text) && tr_json_parse(text.p, text.n, "health", &health) != TR_OK)
        tr_error_clear();
    load = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(health, "load"), 0);
    tr_block_line(b, "%shost of this terminal: %s", b->has_color ? "\x1b[36m" : "",
                  tr_screen_text(health, "host", host, sizeof host));
    if (cJSON_IsNumber(load)) {
        (void)snprintf(line, sizeof line, "%.2f of %.0f cores", load->valuedouble, real_of(health, "cores"));
        add_used(b, "load", load->valuedouble, real_of(health, "cores"), line);
    }
    add_room(b, health, "memory", "memory_bytes", "memory_free_bytes");
    add_room(b, health, "disk", "disk_bytes", "disk_free_bytes");
    tr_block_line(b, "%s", "");
    tr_block_title(b, sample ? "host of rank 0, the last sample of the log" : "no sample of the machine in the log");
    cJSON_ArrayForEach(x, cJSON_GetObjectItemCaseSensitive(sample, "gpus")) if (skip-- <= 0)
        tr_block_line(b, "GPU %.0f  busy %.0f %%  %s of %s  %.0f W  %.0f \u00b0C  %.0f MHz", real_of(x, "gpu"),
                      100 * real_of(x, "utilization"),
                      tr_human_bytes((uint64_t)fmin(fmax(real_of(x, "memory_used_bytes"), 0), 1e18), human[0], 32),
                      tr_human_bytes((uint64_t)fmin(fmax(real_of(x, "memory_total_bytes"), 0), 1e18), human[1], 32),
                      real_of(x, "power_w"), real_of(x, "temperature_c"), real_of(x, "clock_mhz"));
    cJSON_ArrayForEach(x, sample) if (cJSON_IsNumber(x) && x->string && strcmp(x->string, "time") != 0 &&
                                      strcmp(x->string, "schema") != 0 && strcmp(x->string, "interval_s") != 0 &&
                                      skip-- <= 0) add_measured(b, x);
    cJSON_Delete(health);
    cJSON_Delete(sample);
    tr_str_release(&text);
}

/* ---- layers ---- */

/* One of n signs for a share of 0 to 1. */
static const char *sign(double share, bool has_unicode)
{
    static const char *const blocks[] = {
        "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"
    };
    static const char *const digits[] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    int n = has_unicode ? (int)TR_COUNT_OF(blocks) : (int)TR_COUNT_OF(digits);
    int i = (int)(fmin(fmax(share, 0), 1) * n);
    i = i == n ? n - 1 : i;
    return has_unicode ? blocks[i] : digits[i];
}

/* The mean of a row over columns first..end of its steps; NaN: there is no value. */
static double mean_norm(const struct heat *h, int row, int first, int end)
{
    double sum = 0;
    int n = 0;
    for (int c = first; c < end; c++)
        if (isfinite(h->norm[row][c])) {
            sum += (double)h->norm[row][c];
            n++;
        }
    return n ? sum / n : (double)NAN;
}

static void add_norms(struct screen_block *b, const struct heat *h, int skip)
{
    int width = (int)tr_min64(h->n_columns, tr_max64(8, b->columns - 18));
    double lo = INFINITY, hi = 0;
    for (int r = 0; r < h->n_rows; r++)
        for (int c = 0; c < h->n_columns; c++)
            if (h->norm[r][c] > 0 && isfinite(h->norm[r][c])) {
                lo = fmin(lo, (double)h->norm[r][c]);
                hi = fmax(hi, (double)h->norm[r][c]);
            }
    if (!(hi > 0)) {
        tr_block_title(b, "no gradient norms by layer: --grad_norm_steps N writes them every N steps");
        return;
    }
    tr_block_line(b, "%sgradient norm by layer, steps %" PRId64 " to %" PRId64 ", from %.3g (%s) to %.3g (%s)",
                  b->has_color ? "\x1b[36m" : "", h->step[0], h->step[h->n_columns - 1], lo, sign(0, b->has_unicode),
                  hi, sign(1, b->has_unicode));
    for (int r = skip; r < h->n_rows; r++) {
        struct tr_str out = { 0 };
        char name[64];
        tr_str_addf(&out, "%16.16s  ", tr_escape(h->name[r], name, sizeof name));
        for (int c = 0; c < width; c++) {
            double x = mean_norm(h, r, c * h->n_columns / width, (c + 1) * h->n_columns / width);
            tr_str_addf(&out, "%s", x > 0 ? sign(hi > lo ? log(x / lo) / log(hi / lo) : 1, b->has_unicode) : " ");
        }
        if (tr_str_ok(&out))
            tr_block_add(b, out.p);
        tr_str_release(&out);
    }
}

static void add_loads(struct screen_block *b, const cJSON *experts)
{
    const cJSON *layer, *x;
    tr_block_line(b, "%sload of the experts at step %.0f: the fair share is half a bar", b->has_color ? "\x1b[36m" : "",
                  real_of(experts, "step"));
    cJSON_ArrayForEach(layer, cJSON_GetObjectItemCaseSensitive(experts, "layers"))
    {
        struct tr_str out = { 0 };
        const cJSON *load = cJSON_GetObjectItemCaseSensitive(layer, "load");
        int n = cJSON_GetArraySize(load);
        double most = 0;
        tr_str_addf(&out, "%16.0f  ", real_of(layer, "layer"));
        cJSON_ArrayForEach(x, load)
        {
            double share = cJSON_IsNumber(x) ? x->valuedouble * n : 0;
            most = fmax(most, share);
            tr_str_addf(&out, "%s", sign(share / 2, b->has_unicode));
        }
        tr_str_addf(&out, "  largest %.3g x", most);
        if (tr_str_ok(&out))
            tr_block_add(b, out.p);
        tr_str_release(&out);
    }
}

void tr_screen_layers(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    cJSON *experts = last_event(w, "experts");
    add_norms(b, &w->heat, skip);
    if (experts)
        add_loads(b, experts);
    cJSON_Delete(experts);
}
