/* logs.c - where the output of ranks goes: the terminal, a log file per rank, and the last lines, kept for a report.
 *
 * Invariant: the launcher never waits for a reader. A terminal that does not read fills its sink; then the taps of that
 * sink are not read any more, and the rank blocks in its own write, as it would without a launcher. Log files get all
 * text. Rejected: inheriting the terminal (the last lines of a dead rank would be lost), a thread per stream.
 */
#include "launch/launch_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

enum { SINK_BYTES = 64 << 10, READ_BYTES = 16 << 10, HELD_LOG_BYTES = 1 << 20, LAST_READS = 256 };

void tr_sink_flush(struct text_sink *s)
{
    while (s->held.n && !s->is_dead) {
        struct pollfd p = { .fd = s->fd, .events = POLLOUT };
        if (poll(&p, 1, 0) <= 0)
            return;
        size_t n =
            s->held.n < PIPE_BUF ? s->held.n : PIPE_BUF; /* a pipe that is ready takes this much without blocking */
        ssize_t put = write(s->fd, s->held.p, n);
        if (put < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (put < 0) {
            s->is_dead = true;
            s->has_lost = errno != EPIPE && errno != EIO; /* a reader that has gone has read what it wanted */
            tr_str_clear(&s->held);
            return;
        }
        s->held.n -= (size_t)put;
        memmove(s->held.p, s->held.p + put, s->held.n + 1);
    }
}

void tr_sink_drain(struct text_sink *s, int64_t max_us)
{
    int64_t moved_us = tr_clock_us();
    while (s->held.n && !s->is_dead && tr_clock_us() - moved_us < max_us) {
        size_t n = s->held.n;
        struct pollfd p = { .fd = s->fd, .events = POLLOUT };
        poll(&p, 1, 50);
        tr_sink_flush(s);
        if (s->held.n != n)
            moved_us = tr_clock_us();
    }
}

static void sink_add(struct text_sink *s, const char *text, size_t n)
{
    if (s->is_dead)
        return;
    tr_str_add(&s->held, text, n);
    if (!tr_str_ok(&s->held)) /* no memory: only this text is lost */
        tr_str_clear(&s->held);
}

void tr_report(struct launch_job *j, const char *fmt, ...)
{
    char text[2048], shown[2048];
    va_list ap;
    va_start(ap, fmt);
    if (vsnprintf(text, sizeof text, fmt, ap) < 0)
        text[0] = 0;
    va_end(ap);
    tr_escape(text, shown, sizeof shown);
    sink_add(&j->err, "trireme: ", 9);
    sink_add(&j->err, shown, strlen(shown));
    sink_add(&j->err, "\n", 1);
    tr_sink_flush(&j->err);
}

static void log_lost(struct launch_job *j, struct rank *r, const char *why)
{
    r->log.is_lost = true;
    tr_str_release(&r->log.held);
    tr_report(j, "rank %d: its output is not logged any more: %s", r->rank, why);
}

/* Not before the run itself has made its output directory: a run that is refused must write nothing. */
static bool may_open(struct launch_job *j)
{
    if (!j->has_log_dir && tr_dir_exists(j->l->output))
        j->has_log_dir = true;
    return j->has_log_dir;
}

static void log_open(struct launch_job *j, struct rank *r)
{
    char name[48];
    snprintf(name, sizeof name, "%s" TR_NAME_OF_RANK ".log", j->log_beneath, r->rank);
    enum tr_status st = tr_mkdirs(j->log_root);
    if (st == TR_OK && j->log_beneath[0])
        st = tr_out_mkdir(j->log_root, TR_NAME_LOGS);
    if (st == TR_OK)
        st = tr_out_open(j->log_root, name, TR_OUT_APPEND, &r->log.fd);
    if (st != TR_OK)
        log_lost(j, r, tr_error_text());
}

static void log_put(struct launch_job *j, struct rank *r, const char *text, size_t n)
{
    struct rank_log *log = &r->log;
    if (!j->log_dir[0] || log->is_lost)
        return;
    if (log->held.n + n <= HELD_LOG_BYTES) {
        tr_str_add(&log->held, text, n);
        if (!tr_str_ok(&log->held)) {
            log_lost(j, r, "out of memory");
            return;
        }
    }
    if (log->fd < 0 && may_open(j))
        log_open(j, r);
    if (log->fd < 0 || log->is_lost)
        return;
    if (tr_write_all(log->fd, "the log", log->held.p, log->held.n) != TR_OK)
        log_lost(j, r, tr_error_text());
    tr_str_clear(&log->held);
}

/* One rank is shown unchanged; without log files the stderr of the others is shown too, with a prefix. */
void tr_logs_place(struct launch_job *j, struct rank *r, int rank)
{
    bool is_shown = rank == j->l->log_rank;
    if (r->rank != rank && r->log.fd >= 0) { /* a node has left or joined, and the ranks have new numbers */
        close(r->log.fd);
        r->log.fd = -1;
    }
    r->rank = rank;
    r->out.sink = is_shown ? &j->out : NULL;
    r->err.sink = is_shown || !j->log_dir[0] ? &j->err : NULL;
    r->err.is_prefixed = !is_shown;
}

void tr_logs_begin(struct launch_job *j, struct rank *r)
{
    char text[160];
    int n = snprintf(text, sizeof text, "== rank %d of %d, pid %d, job %s, generation %d\n", r->rank, j->n_world,
                     (int)r->pid, j->id, j->generation);
    log_put(j, r, text, (size_t)n);
    r->n_tail = 0;
}

void tr_logs_retry(struct launch_job *j)
{
    if (!j->log_dir[0] || j->has_log_dir || !may_open(j))
        return;
    for (int i = 0; i < j->l->n_ranks; i++)
        log_put(j, &j->ranks[i], "", 0);
}

void tr_logs_close(struct launch_job *j, bool may_make_dir)
{
    for (int i = 0; i < j->l->n_ranks; i++) {
        struct rank *r = &j->ranks[i];
        j->has_log_dir |= may_make_dir;
        if (r->log.held.n && j->has_log_dir)
            log_put(j, r, "", 0);
        if (r->log.fd >= 0)
            close(r->log.fd);
        tr_str_release(&r->log.held);
    }
}

/* Text of a rank to a terminal. A rank leaves out what a terminal would obey only when it knows that it writes to one;
 * and it may run another program. With `has_bars` the two words with which progress lines are drawn stay. */
static void sink_show(struct text_sink *s, const char *text, size_t n)
{
    static const char *const words[] = { "\r", "\x1b[K" };
    struct tr_str shown = { 0 };
    while (n > 0) {
        size_t n_word = 0, n_text = 0;
        for (; n_text < n && !n_word; n_text += !n_word)
            for (size_t i = 0; s->has_bars && i < TR_COUNT_OF(words); i++)
                if (n - n_text >= strlen(words[i]) && memcmp(text + n_text, words[i], strlen(words[i])) == 0)
                    n_word = strlen(words[i]);
        tr_str_show(&shown, text, n_text);
        tr_str_add(&shown, text + n_text, n_word);
        text += n_text + n_word;
        n -= n_text + n_word;
    }
    if (tr_str_ok(&shown))
        sink_add(s, shown.p, shown.n);
    tr_str_release(&shown);
}

static void sink_put(struct text_sink *s, const char *text, size_t n)
{
    (s->is_term ? sink_show : sink_add)(s, text, n);
}

/* A piece of a stream: its last character may be cut. n 0: the end of it. */
static void sink_put_piece(struct tap *t, const char *text, size_t n)
{
    char both[TR_SHOW_CUT + READ_BYTES];
    size_t n_both = t->n_cut + n;
    if (!t->sink->is_term) {
        sink_add(t->sink, text, n);
        return;
    }
    memcpy(both, t->cut, t->n_cut);
    memcpy(both + t->n_cut, text, n);
    size_t n_whole = n ? tr_show_whole(both, n_both) : n_both;
    sink_show(t->sink, both, n_whole);
    t->n_cut = n_both - n_whole;
    memcpy(t->cut, both + n_whole, t->n_cut);
}

static void show_line(struct rank *r, struct tap *t)
{
    char prefix[32];
    int n = snprintf(prefix, sizeof prefix, "[rank %d] ", r->rank);
    sink_add(t->sink, prefix, (size_t)n);
    sink_put(t->sink, t->line, t->n_line);
    sink_add(t->sink, "\n", 1);
    t->n_line = 0;
}

static void show(struct rank *r, struct tap *t, const char *text, size_t n)
{
    if (!t->sink)
        return;
    if (!t->is_prefixed) {
        sink_put_piece(t, text, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n')
            t->line[t->n_line++] = text[i];
        if (text[i] == '\n' || t->n_line == sizeof t->line)
            show_line(r, t);
    }
}

/* What is left of a stream that has ended. */
static void show_end(struct rank *r, struct tap *t)
{
    if (t->n_line)
        show_line(r, t);
    if (t->n_cut)
        sink_put_piece(t, "", 0);
}

static void keep_tail(struct rank *r, const char *text, size_t n)
{
    if (n > TAIL_BYTES) {
        text += n - TAIL_BYTES;
        n = TAIL_BYTES;
    }
    if (r->n_tail + n >= sizeof r->tail) {
        size_t keep = r->n_tail < TAIL_BYTES ? r->n_tail : TAIL_BYTES - 1;
        memmove(r->tail, r->tail + r->n_tail - keep, keep);
        r->n_tail = keep;
    }
    memcpy(r->tail + r->n_tail, text, n);
    r->n_tail += n;
    r->tail[r->n_tail] = 0;
}

const char *tr_tail(const struct rank *r)
{
    enum { LINES = 12 };
    if (r->n_tail == 0)
        return "";
    size_t at = r->n_tail - 1; /* the newline at the end closes a line and does not begin one */
    for (int n = 0; at > 0; at--)
        if (r->tail[at - 1] == '\n' && ++n == LINES)
            break;
    return r->tail + at;
}

bool tr_tap_is_open(const struct tap *t)
{
    return t->fd >= 0 && (!t->sink || t->sink->is_dead || t->sink->held.n < SINK_BYTES);
}

/* Removes progress lines, which are for a terminal: from a carriage return to "erase to the end of the line". */
static size_t without_bars(struct tap *t, const char *text, size_t n, char *out)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        t->is_in_bar = t->is_in_bar || text[i] == '\r';
        if (!t->is_in_bar)
            out[kept++] = text[i];
        t->is_in_bar = t->is_in_bar && text[i] != '\n' && !(text[i] == 'K' && t->last == '[');
        t->last = text[i];
    }
    return kept;
}

/* Reads once; false: nothing is there now, or it is the end. */
static bool read_some(struct launch_job *j, struct rank *r, struct tap *t)
{
    char text[READ_BYTES], lines[READ_BYTES];
    ssize_t n = read(t->fd, text, sizeof text);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        close(t->fd);
        t->fd = -1;
        show_end(r, t);
        return false;
    }
    size_t n_lines = without_bars(t, text, (size_t)n, lines);
    log_put(j, r, lines, n_lines);
    if (t->is_err)
        keep_tail(r, lines, n_lines);
    show(r, t, text, (size_t)n);
    return true;
}

void tr_tap_read(struct launch_job *j, struct rank *r, struct tap *t)
{
    if (t->fd >= 0)
        read_some(j, r, t);
}

/* With a bound: a process that has left the rank's group may hold the other end and write for ever. */
void tr_tap_finish(struct launch_job *j, struct rank *r, struct tap *t)
{
    for (int i = 0; i < LAST_READS && t->fd >= 0; i++)
        if (!read_some(j, r, t))
            break;
    if (t->fd < 0)
        return;
    close(t->fd);
    t->fd = -1;
    show_end(r, t);
}
