/* cmd_watch.c - watch: runs as text, on a whole terminal, as a page in a browser, or as one file. */
#include "cli/cli.h"
#include "watch/watch.h"
#include <unistd.h>

/* ---- as text ---- */

static void add_text(const struct tr_ranks *w, struct tr_str *out)
{
    char where[64], host[128], site[2 * TR_PHASE_SITE];
    tr_str_addf(out, "%5s %8s %10s  %-7s %9s %6s  %s\n", "rank", "pid", "step", "state", "seconds", "score", "action");
    for (int r = 0; r < w->n; r++) {
        const struct tr_rank_row *p = &w->row[r];
        double s = tr_rank_seconds(w, r);
        tr_str_addf(out, "%5d %8d %10" PRId64 "  %-7s ", r, p->pid, p->step, tr_rank_state(w, r));
        if (s < 0)
            tr_str_addf(out, "%9s", "");
        else
            tr_str_addf(out, "%9.2f", s);
        tr_str_addf(out, " %6.2f  %s", tr_rank_score(w, r), tr_phase_text(p->kind, p->place, where, sizeof where));
        if (p->is_waiting)
            tr_str_addf(out, ", collective %" PRIu64 " %s", p->n_collectives, tr_escape(p->site, site, sizeof site));
        if (!w->is_here)
            tr_str_addf(out, " on %s", tr_escape(p->host, host, sizeof host));
        tr_str_addf(out, "\n");
    }
    if (w->holder >= 0)
        tr_str_addf(out, "rank %d holds the others: %s\n", w->holder,
                    tr_phase_text(w->row[w->holder].kind, w->row[w->holder].place, where, sizeof where));
}

static void add_json(const char *run, const struct tr_ranks *w, struct tr_str *out)
{
    struct tr_phase_page page;
    tr_str_member(out, "{\"run\": ", run);
    tr_str_addf(out, ", \"holder\": %d, \"ranks\": [", w->holder);
    for (int r = 0; r < w->n; r++) {
        double s = tr_rank_seconds(w, r);
        tr_str_addf(out, "%s{\"state\": \"%s\", \"score\": %.3f, \"seconds\": ", r ? ", " : "", tr_rank_state(w, r),
                    tr_rank_score(w, r));
        if (s < 0)
            tr_str_addf(out, "null");
        else
            tr_str_addf(out, "%.3f", s);
        tr_str_addf(out, ", \"at\": ");
        if (!tr_phase_read(run, r, &page)) /* gone since the table was read */
            page = (struct tr_phase_page){ .rank = r, .place = TR_PLACE_NONE, .is_ended = 1 };
        tr_phase_json(&page, out);
        tr_str_addf(out, "}");
    }
    tr_str_addf(out, "]}\n");
}

static enum tr_status show_ranks(const struct tr_config *cfg, const char *run)
{
    struct tr_ranks w;
    struct tr_str out = { 0 };
    TR_PASS(tr_ranks_open(run, &w));
    tr_ranks_read(run, &w);
    if (cfg->json)
        add_json(run, &w, &out);
    else
        add_text(&w, &out);
    if (tr_str_ok(&out))
        cli_print(out.p);
    tr_str_release(&out);
    tr_ranks_release(&w);
    return TR_OK;
}

/* ---- as a page, or on the whole terminal ---- */

static void tell_url(void *ctx, const char *url)
{
    const struct tr_config *cfg = ctx;
    if (cfg->json)
        cli_printf("{\"url\": \"%s\"}\n", url);
    else
        cli_printf("%s\n", url);
}

static enum tr_status write_html(const struct tr_config *cfg, struct tr_watch_run *const *runs, size_t n_runs)
{
    struct tr_str page = { 0 };
    enum tr_status st = tr_watch_html(runs, n_runs, &page);
    if (st == TR_OK)
        st = tr_file_write_atomic(cfg->html, page.p, page.n);
    if (st == TR_OK)
        cli_show_path(cfg, cfg->html);
    tr_str_release(&page);
    return st;
}

static enum tr_status show_runs(const struct tr_config *cfg, const char *const *dirs, size_t n_dirs)
{
    enum tr_status st = TR_OK;
    struct tr_watch_run *runs[TR_WATCH_RUNS] = { NULL };
    union {
        const struct tr_config *in;
        void *out;
    } ctx = { .in = cfg };
    struct tr_http_options http = { cfg->http, cfg->any_interface, tell_url, ctx.out };
    if (n_dirs > TR_WATCH_RUNS)
        return tr_fail(TR_USAGE, "watch: %zu runs; at most %d at a time", n_dirs, TR_WATCH_RUNS);
    for (size_t i = 0; i < n_dirs; i++)
        TR_TRY(tr_watch_open(dirs[i], &runs[i]));
    if (cfg->html)
        TR_TRY(write_html(cfg, runs, n_dirs));
    if (cfg->http)
        TR_TRY(tr_watch_serve(runs, n_dirs, &http));
    else if (!cfg->html)
        TR_TRY(watch_screen(runs, n_dirs));
out:
    for (size_t i = 0; i < TR_WATCH_RUNS; i++)
        tr_watch_close(runs[i]);
    return st;
}

enum tr_status cmd_watch(const struct tr_config *cfg)
{
    const char *const *dirs = cfg->args.n > 0 ? cfg->args.item : &cfg->output;
    size_t n_dirs = cfg->args.n > 0 ? cfg->args.n : cfg->output != NULL;
    bool is_whole = cfg->http || cfg->html ||
                    (!cfg->json && !cfg->plain && isatty(STDOUT_FILENO) && tr_term_detect(STDOUT_FILENO).is_live);
    if (n_dirs == 0 || (n_dirs > 1 && !is_whole))
        return tr_verb_misused(TR_VERB_WATCH);
    return is_whole ? show_runs(cfg, dirs, n_dirs) : show_ranks(cfg, dirs[0]);
}
