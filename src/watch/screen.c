/* screen.c - a run on a terminal: lines of text, made anew for every look. Nothing here knows the terminal but its
 * size; what comes from files is escaped before it becomes part of a line. */
#include "base/show.h"
#include "watch/screen_impl.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

static const char *const page_names[] = { "overview", "curves",  "ranks", "events",  "log",
                                          "options",  "samples", "data",  "machine", "layers" };
static_assert(TR_COUNT_OF(page_names) == TR_SCREEN_PAGES, "a name for each page");

/* ---- lines ---- */

/* Bytes of text that take at most `columns` columns, and how many they take; colours take none. */
static size_t cut(const char *text, int columns, int *used)
{
    const char *p = text;
    for (*used = 0; *p && *p != '\n';) {
        size_t n = tr_utf8_len(p, strlen(p));
        if (*p == '\x1b') {
            p += strcspn(p, "m") + (strchr(p, 'm') != NULL);
            continue;
        }
        if (*used == columns)
            break;
        ++*used;
        p += n ? n : 1;
    }
    return (size_t)(p - text);
}

void tr_block_add(struct screen_block *b, const char *text)
{
    int used;
    if (b->n == b->rows)
        return;
    tr_str_add(&b->text, text, cut(text, b->columns, &used));
    tr_str_addf(&b->text, "%s\n", b->has_color ? "\x1b[0m" : "");
    b->n++;
}

void tr_block_line(struct screen_block *b, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tr_block_add(b, text);
}

void tr_block_title(struct screen_block *b, const char *text)
{
    tr_block_line(b, "%s%s", b->has_color ? "\x1b[36m" : "", text);
}

static struct screen_block part_of(const struct screen_block *b, int columns, int rows)
{
    return (struct screen_block){
        .columns = columns, .rows = rows, .has_color = b->has_color, .has_unicode = b->has_unicode
    };
}

static const char *next_line(const char *p)
{
    return p + strcspn(p, "\n") + (p[strcspn(p, "\n")] == '\n');
}

/* Two blocks beside each other; both are released. */
static void add_beside(struct screen_block *b, struct screen_block *left, struct screen_block *right)
{
    const char *l = tr_str_ok(&left->text) && left->text.n ? left->text.p : "";
    const char *r = tr_str_ok(&right->text) && right->text.n ? right->text.p : "";
    while (*l || *r) {
        struct tr_str both = { 0 };
        int used;
        size_t n = cut(l, left->columns, &used);
        tr_str_add(&both, l, n);
        tr_str_addf(&both, "%*s", left->columns - used + 2, "");
        tr_str_add(&both, r, strcspn(r, "\n"));
        if (tr_str_ok(&both))
            tr_block_add(b, both.p);
        tr_str_release(&both);
        l = next_line(l);
        r = next_line(r);
    }
    tr_str_release(&left->text);
    tr_str_release(&right->text);
}

/* A block below; it is released. */
static void add_below(struct screen_block *b, struct screen_block *part)
{
    for (const char *p = tr_str_ok(&part->text) && part->text.n ? part->text.p : ""; *p; p = next_line(p))
        tr_block_add(b, p);
    tr_str_release(&part->text);
}

/* ---- parts ---- */

static void add_value(struct tr_str *out, const char *name, double x, int digits)
{
    if (isfinite(x))
        tr_str_addf(out, "  %s %.*g", name, digits, x);
}

static const char *duration(double s, char *buf, size_t n_buf)
{
    if (s < 120)
        (void)snprintf(buf, n_buf, "%.0f s", s);
    else if (s < 7200)
        (void)snprintf(buf, n_buf, "%.0f min", s / 60);
    else if (s < 172800)
        (void)snprintf(buf, n_buf, "%.0f h %.0f min", floor(s / 3600), fmod(s, 3600) / 60);
    else
        (void)snprintf(buf, n_buf, "%.1f days", s / 86400);
    return buf;
}

/* Parts with two blanks between them, in lines that break there: `rows` of them at most. */
static void add_parts(struct screen_block *b, const char *text, int rows)
{
    for (int row = 1; *text; row++) {
        size_t n = strlen(text), room = (size_t)b->columns;
        for (size_t i = 1, end = n > room && row < rows ? room : 0; i <= end; i++)
            if (text[i] == ' ' && text[i + 1] == ' ')
                n = i; /* the last break that fits */
        tr_block_line(b, "%.*s", (int)n, text);
        if (row == rows)
            return;
        text += n + strspn(text + n, " ");
    }
}

static void add_head(struct screen_block *b, const struct tr_watch_run *w)
{
    const struct tr_series *s = &w->steps;
    struct tr_str out = { 0 };
    char name[512], state[64], human[32];
    int64_t step = s->n ? s->step[s->n - 1] : 0, total = w->total_steps;
    size_t recent = s->n < 50 ? s->n : 50;
    double pace = recent > 1 ? (s->time[s->n - 1] - s->time[s->n - recent]) / (double)(recent - 1) : 0;
    tr_block_line(b, "%s%s%s  %s", b->has_color ? "\x1b[1;34m" : "", tr_escape(w->dir, name, sizeof name),
                  b->has_color ? "\x1b[0m" : "", tr_escape(tr_watch_state(w), state, sizeof state));
    tr_str_addf(&out, "step %" PRId64, step);
    if (total > 0)
        tr_str_addf(&out, "/%" PRId64 " (%.1f %%)", total, 100.0 * (double)step / (double)total);
    if (total > step && pace > 0 && tr_watch_is_live(w))
        tr_str_addf(&out, "  %s left", duration((double)(total - step) * pace, human, sizeof human));
    for (int c = 0; s->n > 0 && c < TR_SERIES_COLUMNS; c++) {
        double x = tr_series_at(s, (enum tr_series_column)c, s->n - 1);
        if (c == TR_SERIES_TOKENS_PER_S && isfinite(x))
            tr_str_addf(&out, "  %s tokens/s", tr_human_count(x, human, sizeof human));
        else if (c == TR_SERIES_MFU && isfinite(x))
            tr_str_addf(&out, "  mfu %.1f %%", 100 * x);
        else if (c <= TR_SERIES_LR)
            add_value(&out, tr_series_name((enum tr_series_column)c), x, 5);
    }
    for (int i = 0; i < w->n_evals; i++)
        if (w->eval[i].rows.n > 0) {
            const struct tr_series *e = &w->eval[i].rows;
            char set[80];
            tr_escape(w->eval[i].name, name, 64);
            (void)snprintf(set, sizeof set, "eval%s%.64s", name[0] ? " " : "", name);
            add_value(&out, set, tr_series_at(e, TR_SERIES_LOSS, e->n - 1), 5);
        }
    if (tr_str_ok(&out))
        add_parts(b, out.p, b->rows < 16 ? 1 : b->rows < 24 ? 2 : 3);
    tr_str_release(&out);
}

static void add_curve(struct screen_block *b, const struct tr_series *s, enum tr_series_column c, const char *name,
                      int rows)
{
    double y[1024];
    struct tr_str out = { 0 };
    size_t n = s->n < TR_COUNT_OF(y) ? s->n : TR_COUNT_OF(y);
    bool has_value = false;
    for (size_t i = 0; i < n; i++) {
        y[i] = tr_series_span(s, c, s->n * i / n, s->n * (i + 1) / n).mean;
        has_value |= isfinite(y[i]);
    }
    if (!has_value || rows < 4)
        return;
    tr_block_title(b, name);
    tr_curve_draw(y, n, s->step[0], s->step[s->n - 1], b->columns, rows - 1, b->has_unicode, &out);
    for (const char *p = tr_str_ok(&out) && out.n ? out.p : ""; *p; p = next_line(p))
        tr_block_add(b, p);
    tr_str_release(&out);
}

void tr_block_bar(struct tr_str *out, double share, int columns, bool has_unicode)
{
    int n = (int)lround(fmin(fmax(isfinite(share) ? share : 0, 0), 1) * columns);
    for (int i = 0; i < columns; i++)
        tr_str_addf(out, "%s", i >= n ? (has_unicode ? "\u2591" : ".") : has_unicode ? "\u2588" : "#");
}

static void add_ranks(struct screen_block *b, const struct tr_watch_run *w, int first)
{
    const struct tr_ranks *k = &w->ranks;
    const struct tr_series *s = &w->steps;
    size_t recent = s->n < 50 ? s->n : 50;
    double step_us = recent > 1 ? (s->time[s->n - 1] - s->time[s->n - recent]) / (double)(recent - 1) * 1e6 : 0;
    char where[64], host[128];
    tr_block_title(b, k->n ? " rank  state         step  busy of a step        score  seconds  action"
                           : "no pages of ranks");
    int last = (int)tr_min64(k->n, first + tr_max64(0, b->rows - b->n - (k->holder >= 0)));
    last -= last < k->n && last > first; /* a line says how many are not here */
    for (int r = first; r < last; r++) {
        const struct tr_rank_row *p = &k->row[r];
        struct tr_str bar = { 0 };
        double seconds = tr_rank_seconds(k, r), share = step_us > 0 ? p->busy_us / step_us : 0;
        tr_block_bar(&bar, share, 16, b->has_unicode);
        tr_block_line(b, "%5d  %-7s %10" PRId64 "  %s %3.0f %%  %5.2f %8.1f  %s%s%s", r, tr_rank_state(k, r), p->step,
                      tr_str_ok(&bar) ? bar.p : "", 100 * fmin(share, 1), tr_rank_score(k, r),
                      seconds < 0 ? 0 : seconds, tr_phase_text(p->kind, p->place, where, sizeof where),
                      k->is_here ? "" : " on ", k->is_here ? "" : tr_escape(p->host, host, sizeof host));
        tr_str_release(&bar);
    }
    if (last < k->n)
        tr_block_line(b, "  ... and %d more (key 3, down)", k->n - last);
    if (k->holder >= 0)
        tr_block_line(b, "rank %d holds up the others", k->holder);
}

static void add_memory(struct screen_block *b, const struct tr_watch_run *w)
{
    double most = 0;
    tr_block_title(b, w->n_plans ? "memory by arena, planned = reserved" : "");
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < w->n_plans && r < (pass ? b->rows / 2 : w->n_plans); r++) {
            cJSON *j = NULL;
            double total = 0;
            struct tr_str bar = { 0 };
            const cJSON *a;
            char human[32];
            if (!w->plan[r] || tr_json_parse(w->plan[r], strlen(w->plan[r]), "plan", &j) != TR_OK) {
                tr_error_clear();
                continue;
            }
            (void)tr_json_real(j, "total_bytes", false, &total);
            most = fmax(most, total);
            cJSON_ArrayForEach(a, cJSON_GetObjectItemCaseSensitive(j, "arenas"))
            {
                double bytes = 0;
                const char *name = "?";
                if (tr_json_real(a, "bytes", false, &bytes) != TR_OK || tr_json_str(a, "name", false, &name) != TR_OK)
                    continue;
                long n = most > 0 ? lround(fmin(fmax(bytes / most, 0), 1) * fmax(8, b->columns - 26)) : 0;
                for (long i = 0; i < n; i++)
                    tr_str_addf(&bar, "%c", name[0] > ' ' && name[0] < 0x7f ? name[0] : '?');
            }
            if (pass)
                tr_block_line(b, "rank %-3d %-*s %s", r, (int)tr_max64(8, b->columns - 24),
                              tr_str_ok(&bar) && bar.n ? bar.p : "",
                              tr_human_bytes(total > 0 && total < 1e18 ? (uint64_t)total : 0, human, sizeof human));
            tr_error_clear();
            tr_str_release(&bar);
            cJSON_Delete(j);
        }
    if (w->n_plans)
        add_parts(b, "p params  g grads  o optim  a acts  w work  c cache  d data  s save, staging", 3);
}

const char *tr_screen_text(const cJSON *j, const char *key, char *buf, size_t n_buf)
{
    const char *text = "";
    if (tr_json_str(j, key, false, &text) != TR_OK)
        tr_error_clear();
    return tr_escape(text, buf, n_buf);
}

/* One event in a line; `after`: the step before it. */
static void add_event(struct screen_block *b, const cJSON *j, int64_t after)
{
    char event[64], cause[1024], path[512], key[64];
    int64_t step = -1, rank = -1;
    double value = 0;
    (void)tr_json_int(j, "step", false, 0, INT64_MAX, &step);
    (void)tr_json_int(j, "rank", false, 0, INT32_MAX, &rank);
    (void)tr_json_real(j, "value", false, &value);
    tr_screen_text(j, "event", event, sizeof event);
    tr_screen_text(j, "path", path, sizeof path);
    if (strcmp(tr_screen_text(j, "action", key, sizeof key), "goes on") == 0)
        (void)snprintf(event, sizeof event, "slow"); /* an action that took longer than it does: nothing was lost */
    if (strcmp(event, "start") == 0) {
        tr_block_line(b, "start: from step %" PRId64, after);
    } else if (strcmp(event, "control") == 0) {
        bool is_refused = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(j, "accepted"));
        char set[128] = "";
        tr_screen_text(j, "action", event, sizeof event);
        if (tr_screen_text(j, "key", key, sizeof key)[0])
            (void)snprintf(set, sizeof set, " %s=%g", key, value);
        tr_block_line(b, "request after step %" PRId64 ": %s%s%s%s", step, event, set, is_refused ? ": refused: " : "",
                      tr_screen_text(j, "why", cause, sizeof cause));
    } else if (step >= 0) {
        tr_block_line(b, "%s at step %" PRId64 "%s%s %s", event, step, path[0] ? ": " : "", path,
                      tr_screen_text(j, "cause", cause, sizeof cause));
    } else if (rank >= 0) {
        tr_block_line(b, "%s: rank %" PRId64 ": %s", event, rank, tr_screen_text(j, "cause", cause, sizeof cause));
    } else {
        tr_block_line(b, "%s: %s", event, tr_screen_text(j, "cause", cause, sizeof cause));
    }
}

/* The last events but steps, the newest at the bottom. */
static void add_events(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    size_t room = (size_t)tr_max64(0, b->rows - b->n - 1), n = tr_watch_n_notes(w);
    n -= tr_min64((int64_t)n, skip) > 0 ? (size_t)tr_min64((int64_t)n, skip) : 0;
    tr_block_title(b, n ? "events" : "no checkpoints, no faults");
    for (size_t i = n > room ? n - room : 0; i < n; i++) {
        cJSON *j = NULL;
        if (tr_json_parse(tr_watch_note(w, i), strlen(tr_watch_note(w, i)), "event", &j) == TR_OK)
            add_event(b, j, tr_watch_note_after(w, i));
        tr_error_clear();
        cJSON_Delete(j);
    }
}

/* The newest texts that the model has generated; the first `skip` are passed over. */
static void add_samples(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    size_t n = tr_watch_n_samples(w);
    tr_block_title(b, n ? "generated samples, the newest first" : "no generated samples");
    for (size_t i = (size_t)tr_min64(skip, (int64_t)n); i < n && b->n < b->rows; i++) {
        const char *event = tr_watch_sample(w, n - 1 - i);
        char prompt[1024], text[4096];
        int64_t step = 0;
        cJSON *j = NULL;
        if (tr_json_parse(event, strlen(event), "sample", &j) == TR_OK) {
            (void)tr_json_int(j, "step", false, 0, INT64_MAX, &step);
            tr_block_line(b, "step %" PRId64 ": %s", step, tr_screen_text(j, "prompt", prompt, sizeof prompt));
            tr_screen_text(j, "text", text, sizeof text);
            size_t width = (size_t)tr_max64(8, b->columns - 3);
            for (size_t at = 0, n_text = strlen(text); at < n_text && b->n < b->rows;) {
                size_t part = n_text - at < width ? n_text - at : width;
                while (part > 1 && at + part < n_text && ((unsigned char)text[at + part] & 0xc0) == 0x80)
                    part--; /* not inside a character */
                tr_block_line(b, "  %.*s", (int)part, text + at);
                at += part;
            }
        }
        tr_error_clear();
        cJSON_Delete(j);
    }
}

static void add_log(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    enum { LOG_BYTES = 16 << 10 };
    char *text = calloc(1, LOG_BYTES + 1);
    struct tr_str shown = { 0 };
    size_t n = text ? tr_log_tail(w, 0, text, LOG_BYTES) : 0;
    if (n > 0) {
        tr_block_title(b, "log of rank 0");
        tr_str_show(&shown, text, n);
    }
    int room = b->rows - b->n, n_lines = 0;
    const char *p = tr_str_ok(&shown) && shown.n ? shown.p : "";
    for (const char *q = p; *q; q = next_line(q))
        n_lines++;
    for (int i = 0; *p && i < n_lines - skip; p = next_line(p), i++)
        if (i >= n_lines - skip - room)
            tr_block_add(b, p);
    tr_str_release(&shown);
    free(text);
}

static void add_options(struct screen_block *b, const struct tr_watch_run *w, int skip)
{
    const char *text = tr_watch_last(w, "config");
    cJSON *j = NULL;
    const cJSON *o;
    tr_block_title(b, text ? "option                       value                        origin"
                           : "the run does not say its options");
    if (text && tr_json_parse(text, strlen(text), "config", &j) == TR_OK)
        cJSON_ArrayForEach(o, cJSON_GetObjectItemCaseSensitive(j, "options"))
        {
            char name[64], value[256], origin[256];
            char *printed = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(o, "value"));
            tr_screen_text(o, "origin", origin, sizeof origin);
            if (strcmp(origin, "default") != 0 && skip-- <= 0)
                tr_block_line(b, "%-28s %-28s %s", tr_escape(o->string ? o->string : "", name, sizeof name),
                              tr_escape(printed ? printed : "", value, sizeof value), origin);
            cJSON_free(printed);
        }
    tr_error_clear();
    cJSON_Delete(j);
}

/* ---- pages ---- */

static void add_overview(struct screen_block *b, const struct tr_watch_run *w)
{
    bool is_wide = b->columns >= 100;
    int upper = (int)tr_max64(6, (b->rows - b->n) / 2),
        ranks = (int)tr_min64(w->ranks.n + 2, (b->rows - b->n - upper) / 2);
    struct screen_block left = part_of(b, is_wide ? b->columns * 6 / 10 : b->columns, upper);
    add_curve(&left, &w->steps, TR_SERIES_LOSS, "loss", upper - 1);
    if (is_wide) {
        struct screen_block right = part_of(b, b->columns - left.columns - 2, upper);
        add_memory(&right, w);
        add_events(&right, w, 0);
        add_beside(b, &left, &right);
    } else {
        add_below(b, &left);
    }
    struct screen_block table = part_of(b, b->columns, ranks);
    add_ranks(&table, w, 0);
    add_below(b, &table);
    if (!is_wide) {
        struct screen_block notes = part_of(b, b->columns, (int)tr_max64(3, (b->rows - b->n) / 2));
        add_events(&notes, w, 0);
        add_below(b, &notes);
    }
    add_log(b, w, 0);
}

static void add_curves(struct screen_block *b, const struct tr_watch_run *w)
{
    static const struct {
        enum tr_series_column column;
        const char *name;
    } curves[] = { { TR_SERIES_LOSS, "loss" },
                   { TR_SERIES_GRAD_NORM, "gradient norm" },
                   { TR_SERIES_LR, "learning rate" },
                   { TR_SERIES_TOKENS_PER_S, "tokens/s" } };
    int rows = (b->rows - b->n) / (b->columns >= 100 ? 2 : 4), half = (b->columns - 2) / 2;
    for (size_t i = 0; i < TR_COUNT_OF(curves); i++) {
        if (b->columns < 100) {
            add_curve(b, &w->steps, curves[i].column, curves[i].name, rows - 1);
            continue;
        }
        struct screen_block left = part_of(b, half, rows), right = part_of(b, half, rows);
        add_curve(&left, &w->steps, curves[i].column, curves[i].name, rows - 1);
        i++;
        add_curve(&right, &w->steps, curves[i].column, curves[i].name, rows - 1);
        add_beside(b, &left, &right);
    }
}

static void add_foot(struct screen_block *b, const struct tr_screen *v)
{
    struct tr_str out = { 0 };
    static const char keys[] = "up, down  r next run  q quits";
    size_t all = sizeof keys + 1;
    for (int i = 0; i < TR_SCREEN_PAGES; i++)
        all += strlen(page_names[i]) + 4;
    bool is_narrow = all > (size_t)b->columns; /* then the other pages are their keys */
    tr_str_addf(&out, "%s", b->has_color ? "\x1b[0;2m" : "");
    for (int i = 0; i < TR_SCREEN_PAGES; i++)
        if (i == (int)v->page)
            tr_str_addf(&out, "[%d %s]%s", (i + 1) % 10, page_names[i], is_narrow ? " " : "  ");
        else
            tr_str_addf(&out, is_narrow ? "%d " : "%d %s  ", (i + 1) % 10, page_names[i]);
    tr_str_addf(&out, "%s", is_narrow ? " q quits" : keys);
    if (tr_str_ok(&out))
        tr_block_add(b, out.p);
    tr_str_release(&out);
}

void tr_screen_draw(const struct tr_watch_run *w, const struct tr_screen *v, struct tr_str *out)
{
    struct screen_block b = { .columns = (int)tr_max64(20, v->columns),
                              .rows = (int)tr_max64(4, v->rows) - 1,
                              .has_color = v->has_color,
                              .has_unicode = v->has_unicode };
    add_head(&b, w);
    if (v->page == TR_SCREEN_OVERVIEW)
        add_overview(&b, w);
    else if (v->page == TR_SCREEN_CURVES)
        add_curves(&b, w);
    else if (v->page == TR_SCREEN_RANKS)
        add_ranks(&b, w, (int)tr_min64(v->scroll, tr_max64(0, w->ranks.n - 1)));
    else if (v->page == TR_SCREEN_EVENTS) {
        struct screen_block memory = part_of(&b, b.columns, (b.rows - b.n) / 2);
        add_memory(&memory, w);
        add_below(&b, &memory);
        add_events(&b, w, v->scroll);
    } else if (v->page == TR_SCREEN_LOG) {
        int n = b.n;
        add_log(&b, w, v->scroll);
        if (b.n == n)
            tr_block_title(&b, "no logs: a launcher writes them");
    } else if (v->page == TR_SCREEN_SAMPLES)
        add_samples(&b, w, v->scroll);
    else if (v->page == TR_SCREEN_DATA)
        tr_screen_data(&b, w, v->scroll);
    else if (v->page == TR_SCREEN_MACHINE)
        tr_screen_machine(&b, w, v->scroll);
    else if (v->page == TR_SCREEN_LAYERS)
        tr_screen_layers(&b, w, v->scroll);
    else
        add_options(&b, w, v->scroll);
    while (b.n < b.rows)
        tr_block_add(&b, "");
    b.rows++;
    add_foot(&b, v);
    if (tr_str_ok(&b.text))
        tr_str_show(out, b.text.p, b.text.n - 1); /* without the last line end */
    tr_str_release(&b.text);
}
