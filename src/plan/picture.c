/* picture.c - the predicted step as an SVG and as a Chrome trace; memory as bars.
 *
 * Both timelines come from one list of spans. They are made by playing the pipeline schedule with the slots of the
 * forecast, so the picture ends at the predicted step time. Long steps show their first micro-batches only, because the
 * middle repeats.
 */
#include "plan/plan.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum span_kind { SPAN_FORWARD, SPAN_BACKWARD, SPAN_INPUT, SPAN_WEIGHT, SPAN_TP, SPAN_SEND, SPAN_DP, SPAN_UPDATE };
static const struct {
    const char *name, *color;
    bool is_traffic;
} kinds[] = {
    { "forward", "#4c78a8", false },          { "backward", "#59a14f", false },
    { "backward: input", "#59a14f", false },  { "backward: weight", "#a0cb93", false },
    { "tp and cp traffic", "#e15759", true }, { "pp messages", "#b07aa1", true },
    { "dp traffic", "#f28e2b", true },        { "update", "#9c755f", false },
};

struct picture_span {
    double begin, end;
    int rank, micro, chunk;
    enum span_kind kind;
};

struct timeline {
    struct picture_span *span;
    int n, n_ranks, n_micro;
    size_t n_cap;
    double all_micro, end;
};

static enum tr_status add_span(struct timeline *t, struct picture_span s)
{
    if (s.end <= s.begin)
        return TR_OK;
    TR_PASS(TR_ROOM(t->span, (size_t)t->n + 1, &t->n_cap, "a timeline"));
    t->span[t->n++] = s;
    t->end = fmax(t->end, s.end);
    return TR_OK;
}

/* The share of a slot that is exposed traffic between its tensor and context ranks. */
static double traffic_share(const struct tr_forecast_query *a, const struct tr_forecast *f)
{
    double own = f->exposed_s[TR_TIME_TP] + f->exposed_s[TR_TIME_CP] + f->exposed_s[TR_TIME_EP] +
                 (a->zero >= 3 ? f->exposed_s[TR_TIME_DP] : 0);
    return own > 0 ? own / (own + f->compute_s) : 0;
}

static enum tr_status add_turns(const struct tr_forecast_query *a, const struct tr_forecast *f, const struct tr_pipe *o,
                                const double *end, struct timeline *t)
{
    double share = traffic_share(a, f);
    for (int r = 0; r < o->n_ranks; r++)
        for (int i = o->first[r]; i < o->first[r + 1]; i++) {
            const struct tr_pipe_slot *slot = &o->slot[i];
            double length = a->slots[slot->stage][slot->kind];
            struct picture_span s = { end[i] - length,           end[i], r, slot->micro, slot->stage / o->n_ranks,
                                      (enum span_kind)slot->kind };
            TR_PASS(add_span(t, s));
            s.kind = SPAN_TP;
            s.begin = s.end - share * length;
            TR_PASS(add_span(t, s));
            s = (struct picture_span){ end[i], end[i] + f->message_s, r, slot->micro, 0, SPAN_SEND };
            if (o->n_ranks > 1 && tr_pipe_slot_target(o, slot) >= 0)
                TR_PASS(add_span(t, s));
        }
    return TR_OK;
}

static enum tr_status open_timeline(struct tr_forecast_query *a, int most_turns, struct tr_forecast *f,
                                    struct timeline *t)
{
    enum tr_status st = TR_OK;
    struct tr_pipe *o = NULL;
    struct tr_pipe_times times;
    double *end = NULL, (*slots)[4] = calloc((size_t)a->pp * (size_t)a->chunks, sizeof *slots);
    *t = (struct timeline){ .n_ranks = a->pp };
    if (!slots)
        TR_TRY(tr_fail(TR_NOMEM, "timeline: out of memory"));
    a->slots = slots;
    TR_TRY(tr_forecast(a, f));
    t->all_micro = f->n_micro;
    int fit = most_turns / (2 * a->pp * a->chunks), least = 2 * a->pp;
    t->n_micro = (int)fmin(f->n_micro, fit > least ? fit : least);
    if (a->chunks > 1) /* whole groups of pp micro-batches, as the schedule has them */
        t->n_micro = (t->n_micro + a->pp - 1) / a->pp * a->pp;
    TR_TRY(tr_pipe_open(a->schedule     ? a->schedule
                        : a->chunks > 1 ? "interleaved"
                                        : "1f1b",
                        a->pp, a->chunks, t->n_micro, &o));
    TR_TRY(TR_ALLOC(end, (size_t)o->first[o->n_ranks], "a timeline"));
    struct tr_pipe_costs costs = { .slot = (const double(*)[4])slots, .message = f->message_s };
    TR_TRY(tr_pipe_play_costs(o, &costs, &times, NULL, end));
    TR_TRY(add_turns(a, f, o, end, t));
    double dp = a->zero < 3 ? f->exposed_s[TR_TIME_DP] : 0, at = times.length;
    for (int r = 0; r < a->pp; r++) {
        TR_TRY(add_span(t, (struct picture_span){ at, at + dp, r, -1, 0, SPAN_DP }));
        TR_TRY(add_span(t, (struct picture_span){ at + dp, at + dp + f->optimizer_s, r, -1, 0, SPAN_UPDATE }));
    }
out:
    tr_pipe_close(o);
    a->slots = NULL;
    free(slots);
    free(end);
    return st;
}

/* ---- SVG ---- */

enum { WIDTH = 1280, LEFT = 70, TOP = 74, ROW = 36, LANE = 22, THIN = 7, MOST_ROWS = 64 };

static void svg_open(int height, struct tr_str *out)
{
    tr_str_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
                "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
                WIDTH, height, WIDTH, height);
}

static void svg_text(double x, double y, const char *anchor, const char *fill, int size, const char *text,
                     struct tr_str *out)
{
    tr_str_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\" font-size=\"%d\">", x, y, anchor, fill,
                size);
    for (const char *p = text; *p; p++)
        tr_str_addf(out, *p == '&' ? "&amp;" : *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : "%c", *p);
    tr_str_addf(out, "</text>\n");
}

static void svg_legend(double x, double y, const char *name, const char *color, struct tr_str *out)
{
    tr_str_addf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>\n", x, y - 10,
                color);
    svg_text(x + 17, y, "start", "#333333", 12, name, out);
}

/* The distance of ticks: 1, 2 or 5 times a power of ten, about eight ticks in a length. */
static double tick_of(double length)
{
    double raw = length / 8, ten = pow(10, floor(log10(raw))), k = raw / ten;
    return ten * (k <= 1 ? 1 : k <= 2 ? 2 : k <= 5 ? 5 : 10);
}

static void svg_axis(const struct timeline *t, double scale, int bottom, struct tr_str *out)
{
    char text[32];
    double step = tick_of(t->end);
    for (double at = 0; at <= t->end; at += step) {
        double x = LEFT + at * scale;
        tr_str_addf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#e4e4e4\"/>\n", x, TOP - 6, x,
                    bottom);
        (void)tr_format(text, sizeof text, t->end < 0.1 ? "%.3g ms" : "%.3g s", t->end < 0.1 ? at * 1e3 : at);
        svg_text(x, bottom + 16, "middle", "#666666", 11, text, out);
    }
}

static void svg_span(const struct picture_span *s, double scale, struct tr_str *out)
{
    bool is_thin = kinds[s->kind].is_traffic;
    double x = LEFT + s->begin * scale, w = (s->end - s->begin) * scale;
    double y = TOP + s->rank * ROW + (is_thin ? LANE + 1 : 0);
    tr_str_addf(out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" fill-opacity=\"%.2f\"", x, y,
                fmax(w - 0.4, 0.3), is_thin ? THIN : LANE, kinds[s->kind].color,
                1 - 0.13 * (s->chunk > 4 ? 4 : s->chunk));
    tr_str_addf(out, "><title>%s%s %d: %.4g s</title></rect>\n", kinds[s->kind].name,
                s->micro < 0 ? "" : ", micro-batch", s->micro < 0 ? 0 : s->micro, s->end - s->begin);
    if (!is_thin && s->micro >= 0 && w > 13)
        tr_str_addf(out,
                    "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#ffffff\" font-size=\"10\">%d</text>\n",
                    x + w / 2, y + 15, s->micro);
}

static void timeline_svg(const struct tr_forecast_query *a, const struct tr_forecast *f, const struct timeline *t,
                         struct tr_str *out)
{
    int rows = t->n_ranks < MOST_ROWS ? t->n_ranks : MOST_ROWS, bottom = TOP + rows * ROW;
    double scale = (WIDTH - LEFT - 24) / t->end;
    struct tr_str title = { 0 };
    char text[160];
    svg_open(bottom + 30, out);
    tr_layout_words(a, &title);
    svg_text(LEFT, 22, "start", "#111111", 15, title.p ? title.p : "", out);
    (void)tr_format(text, sizeof text, "%.0f x %s: %.4g s a step, bubble %.1f %%; %s%d of %.0f micro-batches", f->chips,
                    a->machine->name, f->step_s, 100 * f->bubble_s / f->step_s,
                    t->n_micro < t->all_micro ? "shown: the first " : "", t->n_micro, t->all_micro);
    svg_text(LEFT, 40, "start", "#555555", 12, text, out);
    bool is_used[TR_COUNT_OF(kinds)] = { false };
    for (int i = 0; i < t->n; i++)
        is_used[t->span[i].kind] = true;
    double x = LEFT;
    for (size_t k = 0; k < TR_COUNT_OF(kinds); k++)
        if (is_used[k]) {
            svg_legend(x, 60, kinds[k].name, kinds[k].color, out);
            x += 34 + 6.6 * (double)strlen(kinds[k].name);
        }
    svg_axis(t, scale, bottom, out);
    for (int r = 0; r < rows; r++) {
        (void)tr_format(text, sizeof text, a->pp > 1 ? "stage %d" : "each rank", r);
        svg_text(LEFT - 8, TOP + r * ROW + 15, "end", "#333333", 12, text, out);
    }
    for (int i = 0; i < t->n; i++)
        if (t->span[i].rank < rows)
            svg_span(&t->span[i], scale, out);
    tr_str_addf(out, "</svg>\n");
    tr_str_release(&title);
}

/* ---- trace ---- */

static void timeline_trace(const struct timeline *t, struct tr_str *out)
{
    tr_str_addf(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    for (int r = 0; r < t->n_ranks; r++)
        tr_str_addf(out,
                    "%s{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"stage %d\"}}",
                    r ? ",\n" : "", r, r);
    for (int r = 0; r < t->n_ranks; r++)
        tr_str_addf(out,
                    ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": 0, \"args\": {\"name\": "
                    "\"compute\"}},\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": 1, \"args\": "
                    "{\"name\": \"traffic\"}}",
                    r, r);
    for (int i = 0; i < t->n; i++) {
        const struct picture_span *s = &t->span[i];
        tr_str_addf(out, ",\n{\"ph\": \"X\", \"name\": \"%s", kinds[s->kind].name);
        if (s->micro >= 0)
            tr_str_addf(out, " %d", s->micro);
        tr_str_addf(out, "\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"chunk\": %d}}",
                    s->rank, kinds[s->kind].is_traffic, s->begin * 1e6, (s->end - s->begin) * 1e6, s->chunk);
    }
    tr_str_addf(out, "\n]}\n");
}

enum tr_status tr_timeline_each(const struct tr_forecast_query *query, int most_slots, double *step_s,
                                void (*each)(void *context, const struct tr_timeline_span *span), void *context)
{
    struct tr_forecast_query a = *query;
    struct tr_forecast f;
    struct timeline t = { 0 };
    enum tr_status st = open_timeline(&a, most_slots, &f, &t);
    for (int i = 0; st == TR_OK && i < t.n; i++) {
        const struct picture_span *s = &t.span[i];
        struct tr_timeline_span out = { s->rank,  s->micro,         kinds[s->kind].is_traffic, kinds[s->kind].name,
                                        s->begin, s->end - s->begin };
        each(context, &out);
    }
    if (st == TR_OK)
        *step_s = f.step_s;
    free(t.span);
    return st;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + n - k, end) == 0;
}

enum tr_status tr_timeline_write(const char *path, const struct tr_forecast_query *query)
{
    enum tr_status st = TR_OK;
    struct tr_forecast_query a = *query;
    struct tr_forecast f;
    struct timeline t = { 0 };
    struct tr_str out = { 0 };
    bool is_trace = ends_in(path, ".json");
    if (!is_trace && !ends_in(path, ".svg"))
        return tr_fail(TR_USAGE, "timeline %s: the name ends in .svg for a picture or .json for a trace", path);
    TR_TRY(open_timeline(&a, is_trace ? 40000 : 2400, &f, &t));
    if (is_trace)
        timeline_trace(&t, &out);
    else
        timeline_svg(&a, &f, &t, &out);
    TR_TRY(tr_str_check(&out, "a timeline"));
    TR_TRY(tr_file_write_atomic(path, out.p, out.n));
out:
    free(t.span);
    tr_str_release(&out);
    return st;
}

/* ---- memory ---- */

static const struct {
    char letter;
    const char *color;
} arenas[] = { { 'p', "#4c78a8" }, { 'g', "#f28e2b" }, { 'o', "#59a14f" }, { 'a', "#e15759" },
               { 'w', "#b07aa1" }, { 'c', "#76b7b2" }, { 'd', "#9c755f" }, { 's', "#bab0ac" },
               { 't', "#edc948" }, { 'h', "#ff9da7" }, { 'f', "#d7b5a6" } };
static_assert(TR_COUNT_OF(arenas) == TR_A_COUNT, "one row per arena");

/* With room_bytes, the memory of a chip, only the arenas in that memory are shown. */
static double shown_bytes(const struct tr_compiled *c, int arena, double room_bytes)
{
    bool is_elsewhere =
        room_bytes > 0 && c->opt.has_own_memory && tr_arena_row((enum tr_arena_id)arena)->space != TR_SPACE_DEVICE;
    return is_elsewhere || arena == TR_A_DISK ? 0 : (double)c->memory.bytes[arena];
}

static double shown_total(const struct tr_compiled *c, double room_bytes)
{
    return (double)(room_bytes > 0 ? tr_compiled_bytes_in(c, TR_SPACE_DEVICE) : tr_compiled_bytes(c));
}

void tr_memory_bar(const struct tr_compiled *c, double room_bytes, struct tr_str *out)
{
    enum { COLUMNS = 64 };
    double total = shown_total(c, room_bytes), all = fmax(room_bytes, total), at = 0;
    int drawn = 0;
    tr_str_addf(out, "\n  |");
    for (int i = 0; i < TR_A_COUNT; i++)
        for (at += shown_bytes(c, i, room_bytes); drawn < (int)lround(COLUMNS * at / all); drawn++)
            tr_str_add(out, &arenas[i].letter, 1);
    for (; drawn < COLUMNS; drawn++)
        tr_str_addf(out, ".");
    if (room_bytes > 0)
        tr_str_addf(out, "| %.0f %% of %.1f GiB\n", 100 * total / room_bytes, room_bytes / 1073741824.0);
    else
        tr_str_addf(out, "|\n");
    for (int i = 0; i < TR_A_COUNT; i++)
        if (shown_bytes(c, i, room_bytes) > 0)
            tr_str_addf(out, "  %c %s", arenas[i].letter, tr_arena_row((enum tr_arena_id)i)->name);
    tr_str_addf(out, room_bytes > 0 ? "  . free\n" : "\n");
}

void tr_memory_svg(const struct tr_compiled *const *c, int n, double room_bytes, struct tr_str *out)
{
    enum { HIGH = 360, HEAD = 80 };
    double all = room_bytes, x = LEFT;
    char text[64];
    for (int k = 0; k < n; k++)
        all = fmax(all, shown_total(c[k], room_bytes));
    double scale = HIGH / (1.05 * all), wide = fmin(90, (WIDTH - LEFT - 20.0) / n);
    svg_open(HEAD + HIGH + 40, out);
    svg_text(LEFT, 24, "start", "#111111", 15, "memory of each pipeline rank", out);
    for (int i = 0; i < TR_A_COUNT; i++) {
        svg_legend(x, 50, tr_arena_row((enum tr_arena_id)i)->name, arenas[i].color, out);
        x += 40 + 7 * (double)strlen(tr_arena_row((enum tr_arena_id)i)->name);
    }
    for (int k = 0; k < n; k++) {
        double y = HEAD + HIGH, left = LEFT + k * wide;
        for (int i = 0; i < TR_A_COUNT; i++) {
            double high = scale * shown_bytes(c[k], i, room_bytes);
            y -= high;
            if (high > 0)
                tr_str_addf(out,
                            "<rect x=\"%.1f\" y=\"%.2f\" width=\"%.1f\" height=\"%.2f\" fill=\"%s\"><title>%s %.2f "
                            "GiB</title></rect>\n",
                            left, y, 0.8 * wide, high, arenas[i].color, tr_arena_row((enum tr_arena_id)i)->name,
                            (double)c[k]->memory.bytes[i] / 1073741824.0);
        }
        (void)tr_format(text, sizeof text, "%.1f GiB", shown_total(c[k], room_bytes) / 1073741824.0);
        if (wide > 40)
            svg_text(left + 0.4 * wide, y - 6, "middle", "#333333", 12, text, out);
        (void)tr_format(text, sizeof text, wide > 50 ? "stage %d" : "%d", k);
        svg_text(left + 0.4 * wide, HEAD + HIGH + 18, "middle", "#333333", 12, text, out);
    }
    if (room_bytes > 0) {
        double y = HEAD + HIGH - scale * room_bytes;
        tr_str_addf(out,
                    "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#b00020\" stroke-dasharray=\"6 4\"/>\n",
                    LEFT, y, WIDTH - 20, y);
        (void)tr_format(text, sizeof text, "%.0f GiB of the chip", room_bytes / 1073741824.0);
        svg_text(WIDTH - 20, y - 6, "end", "#b00020", 12, text, out);
    }
    tr_str_addf(out, "</svg>\n");
}
