/* watch.h - room header of watch: a run as a person looks at it, on a terminal, in a browser, in one file.
 *
 * Everything is read from files under the output directories, by a process of its own: a run cannot be slowed, stopped
 * or changed by who looks at it, runs of other users and dead ones can be looked at too. Nothing in those files is
 * trusted: sizes are bounded before they are read, and what is kept in memory is bounded whatever they hold.
 */
#ifndef TR_WATCH_WATCH_H
#define TR_WATCH_WATCH_H

#include "observe/observe.h"
#include "watch/ranks.h"
#include "watch/series.h"

enum { TR_WATCH_RUNS = 8 }; /* at most, in one page */

struct tr_watch_run; /* one output directory, and what was read of it so far */
enum tr_status tr_watch_open(const char *dir, struct tr_watch_run **out); /* TR_USAGE: it is no run */
void tr_watch_close(struct tr_watch_run *w);                              /* NULL is fine */
/* Reads what the run has written since. True: something has changed. */
bool tr_watch_refresh(struct tr_watch_run *w);
const char *tr_watch_state(const struct tr_watch_run *w); /* "runs", "paused", "done", "stopped", "failed", "dead" */
bool tr_watch_is_live(const struct tr_watch_run *w);      /* it runs or is paused */
const struct tr_ranks *tr_watch_ranks(const struct tr_watch_run *w); /* n 0: there are no pages */
/* The last event of a name that is kept once (config, layout, data, start, end, system, experts), as its line; NULL:
 * none came.
 */
const char *tr_watch_last(const struct tr_watch_run *w, const char *event);
/* Other events (checkpoints, faults, notes, every start), oldest first; i < tr_watch_n_notes. */
size_t tr_watch_n_notes(const struct tr_watch_run *w);
const char *tr_watch_note(const struct tr_watch_run *w, size_t i);
int64_t tr_watch_note_after(const struct tr_watch_run *w, size_t i); /* the step before it in the log, or 0 */
/* Texts that the model has generated, oldest first; i < tr_watch_n_samples. */
size_t tr_watch_n_samples(const struct tr_watch_run *w);
const char *tr_watch_sample(const struct tr_watch_run *w, size_t i);

/* ---- the terminal ---- */

enum tr_screen_page {
    TR_SCREEN_OVERVIEW,
    TR_SCREEN_CURVES,
    TR_SCREEN_RANKS,
    TR_SCREEN_EVENTS,
    TR_SCREEN_LOG,
    TR_SCREEN_OPTIONS,
    TR_SCREEN_SAMPLES,
    TR_SCREEN_DATA,
    TR_SCREEN_MACHINE,
    TR_SCREEN_LAYERS,
    TR_SCREEN_PAGES
};
struct tr_screen {
    int columns, rows;
    enum tr_screen_page page;
    int scroll; /* lines, in a page that is longer than the screen */
    bool has_unicode, has_color;
};
/* Lines of the screen, `rows` of them at most, with '\n' between them. Everything that comes from a file is escaped. */
void tr_screen_draw(const struct tr_watch_run *w, const struct tr_screen *v, struct tr_str *out);

/* ---- the page ---- */

/* What the page asks for, as a path ("/api/series?run=0&n=500"). TR_USAGE: there is no such thing. */
enum tr_status tr_watch_query(struct tr_watch_run *const *runs, size_t n_runs, const char *path, struct tr_str *out);

struct tr_asset {
    const char *name, *type;
    const char *text; /* closed by a zero */
    size_t n;
};
extern const struct tr_asset tr_assets[]; /* index.html first */
extern const size_t tr_n_assets;

/* The page with its scripts, its style and all data in one file, which needs no server. */
enum tr_status tr_watch_html(struct tr_watch_run *const *runs, size_t n_runs, struct tr_str *out);

struct tr_http_options {
    const char *address; /* [ADDR:]PORT, or "auto": loopback, the first free port from 8765 on */
    bool any_interface;  /* 0.0.0.0 and :: are allowed */
    /* Called once, when the server listens; url has the token. */
    void (*tell)(void *ctx, const char *url);
    void *ctx;
};
/* Serves the page until SIGINT or SIGTERM. TR_USAGE: this build or this host has no libmicrohttpd, or the address
 * cannot be bound. */
enum tr_status tr_watch_serve(struct tr_watch_run *const *runs, size_t n_runs, const struct tr_http_options *opt);

#endif
