/* view.c - the terminal view of a run: a progress line that redraws itself on a terminal, plain lines in a pipe.
 *
 * Everything shown comes from event structs; the ETA from their token counts and speeds, so that no second clock can
 * disagree with the log. A field that does not fit the width is left out, the least useful first.
 */
#include "base/show.h"
#include "observe/observe_impl.h"

#include <math.h>

enum { WAIT_MS = 1000, REDRAW_US = 100000, BAR_MAX = 30, BAR_MIN = 5 };

static void clear_bar(struct tr_observe *o)
{
    if (o->is_bar_drawn && tr_term_write(o, "\r\x1b[K", 4, WAIT_MS))
        o->is_bar_drawn = false;
}

void tr_view_say(struct tr_observe *o, const char *text)
{
    char buf[512];
    bool is_shown = true;
    clear_bar(o);
    for (size_t n = strlen(text), used = 0; n > 0 && is_shown; text += used, n -= used) {
        size_t n_buf = tr_show(text, n, buf, sizeof buf, &used); /* names and values of files are among it */
        is_shown = tr_term_write(o, buf, n_buf, WAIT_MS);
    }
    if (is_shown)
        tr_term_write(o, "\n", 1, WAIT_MS);
}

static const char *print_seconds(double s, char *buf, size_t n_buf)
{
    long long t = s > 0 && s < 1e12 ? llround(s) : 0;
    if (t >= 86400)
        snprintf(buf, n_buf, "%lldd%02lldh", t / 86400, t / 3600 % 24);
    else if (t >= 3600)
        snprintf(buf, n_buf, "%lldh%02lldm", t / 3600, t / 60 % 60);
    else if (t >= 60)
        snprintf(buf, n_buf, "%lldm%02llds", t / 60, t % 60);
    else
        snprintf(buf, n_buf, "%llds", t);
    return buf;
}

struct field {
    char text[40];
    int worth; /* when the line is too long, the field with the smallest is left out first; 0 = absent */
};
enum { N_FIELDS = 6 };

static void make_fields(const struct tr_observe *o, const struct tr_event_step *e, struct field f[N_FIELDS])
{
    char buf[32];
    memset(f, 0, N_FIELDS * sizeof *f);
    snprintf(f[0].text, sizeof f[0].text, "loss %.4f", e->loss);
    f[0].worth = 6;
    snprintf(f[1].text, sizeof f[1].text, "gnorm %.3g", e->grad_norm);
    f[1].worth = 2;
    snprintf(f[2].text, sizeof f[2].text, "lr %.3g", e->lr);
    f[2].worth = 1;
    snprintf(f[3].text, sizeof f[3].text, "%s tok/s", tr_human_count(e->tokens_per_s, buf, sizeof buf));
    f[3].worth = 4;
    if (e->mfu >= 0) {
        snprintf(f[4].text, sizeof f[4].text, "mfu %.1f%%", 100 * e->mfu);
        f[4].worth = 3;
    }
    if (o->opt.total_steps > e->step && o->step_s > 0) {
        double left = o->step_s * (double)(o->opt.total_steps - e->step);
        snprintf(f[5].text, sizeof f[5].text, "eta %s", print_seconds(left, buf, sizeof buf));
        f[5].worth = 5;
    }
}

static size_t width_of(const struct field f[N_FIELDS], size_t n_gap)
{
    size_t n = 0;
    for (size_t i = 0; i < N_FIELDS; i++)
        n += f[i].worth != 0 ? n_gap + strlen(f[i].text) : 0;
    return n;
}

static void drop_fields(struct field f[N_FIELDS], size_t n_gap, size_t n_room)
{
    while (width_of(f, n_gap) > n_room) {
        struct field *least = NULL;
        for (size_t i = 0; i < N_FIELDS; i++)
            if (f[i].worth != 0 && (least == NULL || f[i].worth < least->worth))
                least = &f[i];
        if (least == NULL)
            return;
        least->worth = 0;
    }
}

static void add_bar(const struct tr_observe *o, struct line *s, int64_t step, size_t n_bar)
{
    const struct tr_term *t = &o->opt.term;
    double share = (double)tr_min64(step, o->opt.total_steps) / (double)o->opt.total_steps;
    size_t n_full = (size_t)(share * (double)n_bar);
    tr_line_addf(s, " %s", t->has_color ? "\x1b[36m" : "");
    for (size_t i = 0; i < n_bar; i++)
        tr_line_addf(s, "%s", i < n_full ? (t->has_unicode ? "\u2501" : "=") : (t->has_unicode ? "\u2500" : "."));
    tr_line_addf(s, "%s %3.0f%%", t->has_color ? "\x1b[0m" : "", floor(100 * share));
}

static void draw_bar(struct tr_observe *o, const struct tr_event_step *e)
{
    struct line s = { o->text, 0, sizeof o->text, false };
    struct field f[N_FIELDS];
    enum { GAP = 2, PERCENT = 6, NARROW = 60 };      /* NARROW: fewer columns show numbers instead of the bar */
    size_t n_room = (size_t)o->opt.term.columns - 1; /* the last column would wrap on some terminals */
    tr_line_addf(&s, "\r%" PRId64, e->step);
    if (o->opt.total_steps > 0)
        tr_line_addf(&s, "/%" PRId64, o->opt.total_steps);
    n_room -= s.n - 1 < n_room ? s.n - 1 : n_room;
    size_t n_bar = o->opt.total_steps > 0 && o->opt.term.columns >= NARROW ? PERCENT + BAR_MIN : 0;
    make_fields(o, e, f);
    drop_fields(f, GAP, n_room > n_bar ? n_room - n_bar : 0);
    n_room -= width_of(f, GAP);
    if (o->opt.total_steps > 0 && n_room >= PERCENT + BAR_MIN)
        add_bar(o, &s, e->step, n_room - PERCENT < BAR_MAX ? n_room - PERCENT : BAR_MAX);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (f[i].worth != 0)
            tr_line_addf(&s, "%*s%s", GAP, "", f[i].text);
    tr_line_addf(&s, "\x1b[K");
    if (tr_term_write(o, s.p, s.n, 0))
        o->is_bar_drawn = true;
}

static void print_plain(struct tr_observe *o, const struct tr_event_step *e)
{
    struct line s = { o->text, 0, sizeof o->text, false };
    struct field f[N_FIELDS];
    make_fields(o, e, f);
    tr_line_addf(&s, "step %" PRId64, e->step);
    if (o->opt.total_steps > 0)
        tr_line_addf(&s, "/%" PRId64, o->opt.total_steps);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (f[i].worth != 0)
            tr_line_addf(&s, "  %s", f[i].text);
    tr_line_addf(&s, "\n");
    tr_term_write(o, s.p, s.n, WAIT_MS);
}

void tr_view_step(struct tr_observe *o, const struct tr_event_step *e)
{
    enum { MEMORY = 20 }; /* steps over which the ETA averages, roughly */
    bool is_first = !o->has_step, is_final = e->step == o->opt.total_steps;
    double step_s = e->tokens_per_s > 0 ? (double)e->tokens / e->tokens_per_s : 0;
    o->step_s = o->step_s > 0 ? o->step_s + (step_s - o->step_s) / MEMORY : step_s;
    o->last = *e;
    o->last.samples = NULL;
    o->last.n_samples = 0;
    o->has_step = true;
    o->is_last_printed = false;
    tr_history_add(&o->history, e->step, e->loss);
    if (o->opt.quiet || o->opt.term.fd < 0)
        return;
    if (o->opt.term.is_live) {
        int64_t now = tr_clock_us();
        if (is_first || is_final || now - o->last_draw_us >= REDRAW_US) {
            draw_bar(o, e);
            o->last_draw_us = now;
        }
    } else if (is_final || (o->opt.logging_steps > 0 && (is_first || e->step % o->opt.logging_steps == 0))) {
        print_plain(o, e);
        o->is_last_printed = true;
    }
}

static void draw_curve(struct tr_observe *o)
{
    enum { ROWS = 10 };
    double y[N_BINS];
    struct tr_str curve = { 0 };
    size_t n = tr_history_get(&o->history, y);
    if (n < 2)
        return;
    tr_curve_draw(y, n, o->history.first_step, o->history.last_step, o->opt.term.columns, ROWS, o->opt.term.has_unicode,
                  &curve);
    if (curve.p != NULL)
        tr_term_write(o, curve.p, curve.n, WAIT_MS);
    tr_str_release(&curve);
}

void tr_view_end(struct tr_observe *o, const struct tr_event_end *e)
{
    char text[256], tokens[32], time[32];
    if (!o->opt.quiet && o->has_step && !o->is_last_printed) {
        clear_bar(o);
        print_plain(o, &o->last);
    }
    if (!o->opt.quiet)
        draw_curve(o);
    snprintf(text, sizeof text, "%.64s: %" PRId64 " steps, %s tokens, %s, %.2f %% of it waiting for data", e->status,
             e->steps, tr_human_count((double)e->tokens, tokens, sizeof tokens),
             print_seconds(e->seconds, time, sizeof time), 100 * e->data_wait);
    tr_view_say(o, text);
    if (e->comm_wait >= 0) {
        snprintf(text, sizeof text, "ranks waited for each other %.2f %% of the steps' time", 100 * e->comm_wait);
        tr_view_say(o, text);
    }
    if (e->has_bubble) {
        snprintf(text, sizeof text,
                 "pipeline: ranks waited for other stages %.1f %% of the time, by the formula %.1f %%", 100 * e->bubble,
                 100 * e->bubble_formula);
        tr_view_say(o, text);
    }
    if (o->lost.n_events > 0) {
        snprintf(text, sizeof text, "%" PRIu64 " event lines could not be written", o->lost.n_events);
        tr_view_say(o, text);
    }
}
