/* term.c - the terminal: what it can do, and writes that never block for long and never end the process.
 *
 * A reader that stopped (a paused terminal, a full pipe) costs one bounded wait, then lines are dropped until there is
 * room again; a reader that went away ends the view. Rejected: ignoring SIGPIPE for the whole process (not a library's
 * decision) and O_NONBLOCK (the flag is shared with every process that has this terminal open).
 */
#include "observe/observe_impl.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS_MIN = 40, COLUMNS_MAX = 500, COLUMNS_DEFAULT = 80 };

static int columns_of(int fd)
{
    int64_t n = 0;
    struct winsize size = { 0 };
    const char *text = getenv("TR_LIVE_COLUMNS");
    text = text != NULL ? text : getenv("COLUMNS");
    if (text == NULL || tr_parse_int(text, 1, 100000, &n) != TR_OK)
        n = ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS_DEFAULT;
    return (int)tr_min64(tr_max64(n, COLUMNS_MIN), COLUMNS_MAX);
}

static bool is_utf8_locale(void)
{
    const char *names[] = { "LC_ALL", "LC_CTYPE", "LANG" }; /* the first that is set decides */
    for (size_t i = 0; i < TR_COUNT_OF(names); i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && text[0] != '\0')
            return strstr(text, "UTF-8") != NULL || strstr(text, "utf8") != NULL || strstr(text, "UTF8") != NULL;
    }
    return false;
}

struct tr_term tr_term_detect(int fd)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    struct tr_term t = { .fd = fd, .columns = COLUMNS_DEFAULT, .has_unicode = is_utf8_locale() };
    if (fd < 0)
        return t;
    t.columns = columns_of(fd);
    bool is_passed_on = getenv("TR_LIVE_COLUMNS") != NULL; /* our launcher copies the bytes to a terminal */
    t.is_live = (isatty(fd) == 1 || is_passed_on) && term != NULL && strcmp(term, "dumb") != 0;
    t.has_color = t.is_live && (no_color == NULL || no_color[0] == '\0');
    return t;
}

/* write() whose SIGPIPE or SIGXFSZ stays inside: both become errno. */
ssize_t tr_guarded_write(int fd, const void *p, size_t n)
{
    sigset_t mine, before, pending;
    sigemptyset(&mine);
    sigaddset(&mine, SIGPIPE);
    sigaddset(&mine, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &mine, &before);
    sigpending(&pending);
    ssize_t n_written;
    do
        n_written = write(fd, p, n);
    while (n_written < 0 && errno == EINTR);
    int why = errno;
    int signal = n_written >= 0 ? 0 : why == EPIPE ? SIGPIPE : why == EFBIG ? SIGXFSZ : 0;
    if (signal != 0 && !sigismember(&pending, signal)) { /* a signal that was pending before is not ours to take */
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, signal);
        while (sigtimedwait(&one, NULL, &(struct timespec){ 0, 0 }) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = why;
    return n_written;
}

bool tr_term_write(struct tr_observe *o, const char *text, size_t n, int wait_ms)
{
    enum { PIECE = 4096 }; /* PIPE_BUF: a pipe that polls writable takes this much without blocking */
    int fd = o->opt.term.fd;
    while (n > 0 && fd >= 0 && !o->is_view_closed) {
        struct pollfd p = { fd, POLLOUT, 0 };
        int is_ready = poll(&p, 1, o->is_view_blocked ? 0 : wait_ms);
        if (is_ready < 0 && errno == EINTR)
            continue;
        o->is_view_blocked = is_ready <= 0 && wait_ms > 0;
        if (is_ready <= 0)
            break;
        ssize_t n_written = tr_guarded_write(fd, text, n < PIECE ? n : PIECE);
        if (n_written < 0 && errno != EAGAIN)
            o->is_view_closed = true;
        if (n_written <= 0)
            break;
        text += n_written;
        n -= (size_t)n_written;
    }
    if (n > 0 && fd >= 0)
        o->lost.n_view++;
    return n == 0;
}
