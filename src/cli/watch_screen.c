/* watch_screen.c - watch on a whole terminal: the alternate screen, keys, a new size, and the terminal as it was
 * whatever ends the process. Plain escape sequences that every terminal of the last decades obeys; no library. */
#include "cli/cli.h"
#include "watch/watch.h"

#include <assert.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { LOOK_MS = 500 };

/* Alternate screen, no cursor, no wrapping at the right edge; and back. */
static const char enter[] = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", leave[] = "\x1b[?7h\x1b[?25h\x1b[?1049l";

static struct {
    struct termios before;
    bool has_keys; /* stdin is a terminal whose state was changed */
    volatile sig_atomic_t is_entered, is_stopping, is_suspended, has_resized;
} term;

/* Also called by signal handlers: write and tcsetattr may be. */
static void restore(void)
{
    if (!term.is_entered)
        return;
    term.is_entered = 0;
    ssize_t unused = write(STDOUT_FILENO, leave, sizeof leave - 1);
    (void)unused;
    if (term.has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &term.before);
}

static void set_up(void)
{
    struct termios raw = term.before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* a key at a time; Ctrl-C stays a signal */
    if (term.has_keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    term.is_entered = 1;
    (void)tr_write_all(STDOUT_FILENO, "terminal", enter, sizeof enter - 1);
}

static void on_signal(int sig)
{
    if (sig == SIGWINCH)
        term.has_resized = 1;
    else if (sig == SIGTSTP)
        term.is_suspended = 1;
    else
        term.is_stopping = 1;
}

static void on_crash(int sig)
{
    restore();
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

static const struct {
    int sig;
    void (*handler)(int);
} signals[] = { { SIGWINCH, on_signal }, { SIGTSTP, on_signal }, { SIGINT, on_signal },  { SIGTERM, on_signal },
                { SIGHUP, on_signal },   { SIGUSR1, on_signal }, { SIGQUIT, on_signal }, { SIGSEGV, on_crash },
                { SIGBUS, on_crash },    { SIGABRT, on_crash },  { SIGFPE, on_crash },   { SIGILL, on_crash } };

static_assert(TR_SCREEN_PAGES == 10, "a digit for each page");

static void measure(struct tr_screen *v)
{
    struct winsize size = { 0 };
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    v->columns = is_known ? size.ws_col : 80;
    v->rows = is_known ? size.ws_row : 24;
}

static void draw(const struct tr_watch_run *w, const struct tr_screen *v)
{
    struct tr_str lines = { 0 }, out = { 0 };
    tr_screen_draw(w, v, &lines);
    tr_str_addf(&out, "\x1b[H");
    for (const char *p = tr_str_ok(&lines) && lines.n ? lines.p : ""; *p;) {
        size_t n = strcspn(p, "\n");
        tr_str_addf(&out, "\x1b[K"); /* before the text: behind a full line it would take its last character */
        tr_str_add(&out, p, n);
        tr_str_addf(&out, "%s", p[n] ? "\r\n" : "");
        p += n + (p[n] == '\n');
    }
    if (tr_str_ok(&out) && tr_write_all(STDOUT_FILENO, "terminal", out.p, out.n) != TR_OK)
        term.is_stopping = 1; /* the terminal has gone */
    tr_str_release(&lines);
    tr_str_release(&out);
}

/* One key or sequence at p; returns how many bytes it was. */
static size_t take_key(const char *p, size_t n, struct tr_screen *v, size_t *run, size_t n_runs)
{
    bool is_arrow = n >= 3 && p[0] == '\x1b' && (p[1] == '[' || p[1] == 'O');
    int by = is_arrow ? (p[2] == 'A'   ? -1
                         : p[2] == 'B' ? 1
                         : p[2] == '5' ? -10
                         : p[2] == '6' ? 10
                                       : 0)
                      : (*p == 'k'   ? -1
                         : *p == 'j' ? 1
                                     : 0);
    /* logs and events are seen from their end: up goes back in time */
    bool is_tail = v->page == TR_SCREEN_LOG || v->page == TR_SCREEN_EVENTS;
    v->scroll = (int)tr_max64(0, v->scroll + (is_tail ? -by : by));
    if (*p == 'q' || *p == 'Q')
        term.is_stopping = 1;
    if (*p == 'r')
        *run = (*run + 1) % n_runs;
    if (*p >= '0' && *p <= '9' && !is_arrow) { /* 0 is the tenth */
        v->page = (enum tr_screen_page)((*p - '0' + 9) % 10);
        v->scroll = 0;
    }
    if (*p == '\t')
        v->page = (enum tr_screen_page)((v->page + 1) % TR_SCREEN_PAGES);
    return is_arrow ? n : 1;
}

/* Waits for a key, a signal or the next look. */
static void wait_for_keys(struct tr_screen *v, size_t *run, size_t n_runs)
{
    struct pollfd in = { .fd = term.has_keys ? STDIN_FILENO : -1, .events = POLLIN };
    char keys[64];
    if (poll(&in, 1, LOOK_MS) <= 0)
        return;
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    if (n <= 0)
        term.has_keys = false; /* nobody is there to press any */
    for (size_t i = 0; n > 0 && i < (size_t)n;)
        i += take_key(keys + i, (size_t)n - i, v, run, n_runs);
}

enum tr_status watch_screen(struct tr_watch_run *const *runs, size_t n_runs)
{
    struct tr_term t = tr_term_detect(STDOUT_FILENO);
    struct tr_screen v = { .has_unicode = t.has_unicode, .has_color = t.has_color };
    struct sigaction old[TR_COUNT_OF(signals)];
    size_t run = 0;
    term.has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &term.before) == 0;
    term.is_stopping = term.is_suspended = 0;
    for (size_t i = 0; i < TR_COUNT_OF(signals); i++) {
        struct sigaction act = { .sa_handler = signals[i].handler };
        (void)sigaction(signals[i].sig, &act, &old[i]);
    }
    set_up();
    measure(&v);
    while (!term.is_stopping) {
        (void)tr_watch_refresh(runs[run]);
        draw(runs[run], &v);
        wait_for_keys(&v, &run, n_runs);
        if (term.has_resized) {
            term.has_resized = 0;
            measure(&v);
        }
        if (term.is_suspended) { /* Ctrl-Z: the shell gets its terminal back, and we ours with fg */
            term.is_suspended = 0;
            restore();
            (void)raise(SIGSTOP);
            set_up();
            measure(&v);
        }
    }
    restore();
    for (size_t i = 0; i < TR_COUNT_OF(signals); i++)
        (void)sigaction(signals[i].sig, &old[i], NULL);
    return TR_OK;
}
