/* events.c - the events.jsonl writer and the handle.
 *
 * Invariant: one event = one line = one write() to an O_APPEND file, so lines of several processes never mix and a
 * crash tears at most the last one; a torn line is closed by a newline before the next. Loss, gradient norm and
 * learning rate carry 17 digits: the log holds their exact bits. Rejected: stdio (its buffer would die with the
 * process).
 */
#include "observe/observe_impl.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXACT = 17, ROUGH = 9 };

/* Removes the part of a line at the end of the log, which a full disk or a kill has left; false: it is still there. */
static bool cut_torn_line(int fd)
{
    char tail[4096];
    struct stat info;
    if (fstat(fd, &info) != 0)
        return false;
    for (off_t end = info.st_size; end > 0;) {
        size_t n = (size_t)tr_min64((int64_t)sizeof tail, end);
        if (pread(fd, tail, n, end - (off_t)n) != (ssize_t)n)
            return false;
        for (size_t i = n; i > 0; i--)
            if (tail[i - 1] == '\n')
                return ftruncate(fd, end - (off_t)(n - i)) == 0;
        end -= (off_t)n;
    }
    return ftruncate(fd, 0) == 0;
}

static enum tr_status open_events(const char *path, int *out_fd, bool *is_torn)
{
    char dir[TR_PATH_MAX], last = '\n';
    const char *name;
    int fd = -1;
    struct stat info;
    enum tr_status st = tr_path_split(path, dir, &name);
    if (st == TR_OK)
        st = tr_out_open(dir, name, TR_OUT_APPEND, &fd);
    if (st != TR_OK)
        return st;
    if (fstat(fd, &info) != 0 || (info.st_size > 0 && pread(fd, &last, 1, info.st_size - 1) != 1)) {
        close(fd);
        return tr_fail(TR_IO, "%s: not a readable regular file", path);
    }
    *out_fd = fd;
    *is_torn = last != '\n' && !cut_torn_line(fd);
    return TR_OK;
}

enum tr_status tr_observe_open(const struct tr_observe_options *opt, struct tr_observe **out)
{
    struct tr_observe *o = NULL;
    TR_PASS(TR_ALLOC(o, 1, "the event log"));
    o->opt = *opt;
    o->events_fd = -1;
    snprintf(o->run, sizeof o->run, "%s", opt->run != NULL ? opt->run : "");
    if (opt->events_path != NULL) {
        enum tr_status st = open_events(opt->events_path, &o->events_fd, &o->is_torn);
        if (st != TR_OK) {
            free(o);
            return st;
        }
        st = tr_track_open(&opt->track, opt->events_path, o->run, opt->total_steps, &o->track);
        if (st != TR_OK) {
            tr_observe_close(o);
            return st;
        }
    }
    o->opt.events_path = NULL; /* the caller's strings are not kept */
    o->opt.run = NULL;
    o->opt.track = (struct tr_track_options){ 0 };
    *out = o;
    return TR_OK;
}

void tr_observe_close(struct tr_observe *o)
{
    if (o == NULL)
        return;
    if (!tr_track_close(o->track, &o->mail))
        tr_view_say(o, "trackers: a disk does not answer; they may lack the last events, which are in " TR_NAME_EVENTS);
    if (o->track && o->mail.text[0])
        tr_view_say(o, o->mail.text);
    if (o->events_fd >= 0)
        close(o->events_fd);
    free(o);
}

struct tr_observe_lost tr_observe_lost(const struct tr_observe *o)
{
    return o->lost;
}

/* The first byte of the buffer is kept free for the newline that closes a torn line, the last bytes for the end of this
 * line. */
static struct line begin(struct tr_observe *o, const char *event)
{
    struct line s = { o->buffer + 1, 0, sizeof o->buffer - 4, false };
    tr_line_addf(&s, "{\"event\":\"%s\",\"time\":%.6f,\"run\":", event, tr_clock_wall());
    tr_line_json(&s, o->run);
    tr_line_addf(&s, ",\"schema\":%d", TR_EVENT_SCHEMA);
    return s;
}

static void lose(struct tr_observe *o, const char *why)
{
    o->lost.n_events++;
    if (o->was_reported)
        return;
    o->was_reported = true;
    char text[256];
    snprintf(text, sizeof text, TR_NAME_EVENTS ": %s; training goes on, lost lines are counted", why);
    tr_view_say(o, text);
}

/* --json: the same line to stdout. A reader that does not take it within a second gets no further lines. */
static void pass_on(struct tr_observe *o, const char *p, size_t n)
{
    struct pollfd ready = { .fd = STDOUT_FILENO, .events = POLLOUT };
    while (o->opt.json && n > 0) {
        ssize_t n_written = poll(&ready, 1, 1000) > 0 ? tr_guarded_write(STDOUT_FILENO, p, n < 4096 ? n : 4096) : -1;
        o->opt.json = n_written > 0;
        p += n_written > 0 ? n_written : 0;
        n -= n_written > 0 ? (size_t)n_written : 0;
    }
}

static void finish(struct tr_observe *o, struct line *s)
{
    if (o->events_fd < 0)
        return;
    if (s->is_cut) {
        lose(o, "a line is longer than its buffer");
        return;
    }
    memcpy(s->p + s->n, "}\n", 2);
    pass_on(o, s->p, s->n + 2);
    o->buffer[0] = '\n';
    const char *from = o->is_torn ? o->buffer : o->buffer + 1;
    size_t n_left = (size_t)(s->p + s->n + 2 - from);
    size_t n_written = 0;
    while (n_left > 0) { /* a short write is tried again, to learn the cause from errno */
        ssize_t n = tr_guarded_write(o->events_fd, from, n_left);
        if (n <= 0) {
            lose(o, n < 0 ? strerror(errno) : "nothing was written");
            o->is_torn = (o->is_torn || n_written > 0) && !cut_torn_line(o->events_fd);
            return;
        }
        from += n;
        n_left -= (size_t)n;
        n_written += (size_t)n;
    }
    o->is_torn = false;
}

void tr_observe_plan(struct tr_observe *o, const struct tr_event_plan *e)
{
    struct line s = begin(o, "plan");
    tr_line_addf(&s, ",\"rank\":%d,\"total_bytes\":%" PRIu64 ",\"reserved_bytes\":%" PRIu64 ",\"arenas\":[", e->rank,
                 e->total_bytes, e->reserved_bytes);
    for (size_t i = 0; i < e->n_arenas; i++) {
        tr_line_addf(&s, "%s{\"name\":", i != 0 ? "," : "");
        tr_line_json(&s, e->arenas[i].name);
        tr_line_addf(&s, ",\"bytes\":%" PRIu64 "}", e->arenas[i].bytes);
    }
    tr_line_addf(&s, "]");
    finish(o, &s);

    char total[32], part[32];
    struct line view = { o->text, 0, sizeof o->text, false };
    tr_line_addf(&view, "memory: rank %d holds %s", e->rank, tr_human_bytes(e->total_bytes, total, sizeof total));
    const char *sep = ": ";
    for (size_t i = 0; i < e->n_arenas; i++) {
        if (e->arenas[i].bytes == 0)
            continue;
        tr_line_addf(&view, "%s%.32s %s", sep, e->arenas[i].name,
                     tr_human_bytes(e->arenas[i].bytes, part, sizeof part));
        sep = ", ";
    }
    if (!o->opt.quiet)
        tr_view_say(o, o->text);
}

/* One sample is written as its id, a range of samples as [first,last]. Ranges that do not fit the line are counted. */
static void add_samples(struct line *s, const struct tr_event_range *samples, size_t n_samples)
{
    enum { ROOM = 128 }; /* the longest range and the closing part */
    size_t i = 0;
    tr_line_addf(s, ",\"samples\":[");
    for (; i < n_samples && s->n + ROOM < s->n_cap; i++) {
        const char *comma = i != 0 ? "," : "";
        if (samples[i].first == samples[i].last)
            tr_line_addf(s, "%s%" PRId64, comma, samples[i].first);
        else
            tr_line_addf(s, "%s[%" PRId64 ",%" PRId64 "]", comma, samples[i].first, samples[i].last);
    }
    tr_line_addf(s, "]");
    if (i < n_samples)
        tr_line_addf(s, ",\"samples_left_out\":%zu", n_samples - i);
}

/* What the trackers have to tell: the log has one writer, this thread. */
static void take_mail(struct tr_observe *o)
{
    if (!tr_track_take(o->track, &o->mail))
        return;
    if (o->mail.system[0])
        tr_observe_note(o, "system", o->mail.system, NULL);
    if (o->mail.text[0])
        tr_view_say(o, o->mail.text);
}

int tr_pairs_numbers(const struct tr_event_pairs *p, struct tr_named_number out[TR_PAIRS_NUMBERS])
{
    int n = 0;
    out[n++] = (struct tr_named_number){ "rewards_chosen", p->rewards_chosen };
    out[n++] = (struct tr_named_number){ "rewards_rejected", p->rewards_rejected };
    if (!p->has_labels)
        out[n++] = (struct tr_named_number){ "rewards_accuracy", p->rewards_accuracy };
    out[n++] = (struct tr_named_number){ "rewards_margin", p->rewards_chosen - p->rewards_rejected };
    out[n++] = (struct tr_named_number){ "logps_chosen", p->logps_chosen };
    out[n++] = (struct tr_named_number){ "logps_rejected", p->logps_rejected };
    if (p->has_labels)
        out[n++] = (struct tr_named_number){ "kl", p->kl };
    return n;
}

int tr_pairs_text(const struct tr_event_pairs *p, double loss, char *out, size_t n_out)
{
    double margin = p->rewards_chosen - p->rewards_rejected;
    return p->has_labels ? snprintf(out, n_out, "loss %.4f rewards: margin %.4g kl %.4g over %" PRId64 " answers", loss,
                                    margin, p->kl, p->n)
                         : snprintf(out, n_out, "loss %.4f rewards: accuracy %.3f margin %.4g over %" PRId64 " pairs",
                                    loss, p->rewards_accuracy, margin, p->n);
}

static void add_pairs(struct line *s, const struct tr_event_pairs *p)
{
    struct tr_named_number x[TR_PAIRS_NUMBERS];
    if (!p->has)
        return;
    if (p->has_labels)
        tr_line_addf(s, ",\"answers\":%" PRId64 ",\"desirable\":%" PRId64, p->n, p->n_chosen);
    else
        tr_line_addf(s, ",\"pairs\":%" PRId64, p->n);
    for (int i = 0, n = tr_pairs_numbers(p, x); i < n; i++)
        tr_line_real(s, x[i].name, x[i].value, EXACT);
}

void tr_observe_step(struct tr_observe *o, const struct tr_event_step *e)
{
    take_mail(o);
    struct line s = begin(o, "step");
    tr_line_addf(&s, ",\"step\":%" PRId64, e->step);
    tr_line_real(&s, "loss", e->loss, EXACT);
    tr_line_real(&s, "grad_norm", e->grad_norm, EXACT);
    tr_line_real(&s, "lr", e->lr, EXACT);
    if (e->loss_scale > 0)
        tr_line_real(&s, "loss_scale", e->loss_scale, EXACT);
    tr_line_addf(&s, ",\"tokens\":%" PRId64, e->tokens);
    tr_line_real(&s, "tokens_per_s", e->tokens_per_s, ROUGH);
    if (e->mfu >= 0)
        tr_line_real(&s, "mfu", e->mfu, ROUGH);
    else
        tr_line_addf(&s, ",\"mfu\":null");
    tr_line_real(&s, "data_wait_s", e->data_wait_s, ROUGH);
    tr_line_real(&s, "comm_exposed_s", e->comm_exposed_s, ROUGH);
    add_pairs(&s, &e->pairs);
    add_samples(&s, e->samples, e->n_samples);
    finish(o, &s);
    tr_view_step(o, e);
}

void tr_observe_eval(struct tr_observe *o, const struct tr_event_eval *e)
{
    struct line s = begin(o, "eval");
    tr_line_addf(&s, ",\"step\":%" PRId64, e->step);
    if (e->set) /* letters, digits, - and _ */
        tr_line_addf(&s, ",\"set\":\"%s\",\"best_of\":%s", e->set, e->is_other ? "false" : "true");
    if (!e->has_no_loss)
        tr_line_real(&s, "loss", e->loss, EXACT);
    if (!e->pairs.has && !e->has_no_loss) {
        tr_line_real(&s, "perplexity", e->perplexity, EXACT);
        tr_line_addf(&s, ",\"tokens\":%" PRId64, e->tokens);
    }
    add_pairs(&s, &e->pairs);
    if (e->choices.n > 0) {
        tr_line_addf(&s, ",\"choices\":%" PRId64, e->choices.n);
        tr_line_real(&s, "acc", e->choices.acc, EXACT);
        tr_line_real(&s, "acc_norm", e->choices.acc_norm, EXACT);
        tr_line_real(&s, "acc_bytes", e->choices.acc_bytes, EXACT);
    }
    finish(o, &s);

    char text[320], what[80], of_pairs[160];
    int n_text = 0;
    (void)snprintf(what, sizeof what, "eval%s%.60s at step %" PRId64, e->set ? " of " : "", e->set ? e->set : "",
                   e->step);
    if (e->has_no_loss) {
        n_text = snprintf(text, sizeof text, "%s:", what);
    } else if (e->pairs.has) {
        (void)tr_pairs_text(&e->pairs, e->loss, of_pairs, sizeof of_pairs);
        n_text = snprintf(text, sizeof text, "%s: %s", what, of_pairs);
    } else {
        n_text = snprintf(text, sizeof text, "%s: loss %.4f perplexity %.4g over %" PRId64 " tokens", what, e->loss,
                          e->perplexity, e->tokens);
    }
    if (e->choices.n > 0 && n_text >= 0 && (size_t)n_text < sizeof text)
        snprintf(text + n_text, sizeof text - (size_t)n_text, " accuracy %.4f by length %.4f over %" PRId64 " items",
                 e->choices.acc, e->choices.acc_norm, e->choices.n);
    if (!o->opt.quiet)
        tr_view_say(o, text);
}

void tr_observe_sample(struct tr_observe *o, const struct tr_event_sample *e)
{
    enum { SHOWN = 60 };
    char prompt[4 * SHOWN + 1], text[4 * SHOWN + 1], line[9 * SHOWN + 64];
    struct line s = begin(o, "sample");
    tr_line_addf(&s, ",\"step\":%" PRId64 ",\"prompt\":", e->step);
    tr_line_json(&s, e->prompt);
    tr_line_addf(&s, ",\"text\":");
    tr_line_json(&s, e->text);
    tr_line_addf(&s, ",\"index\":%zu,\"n\":%zu", e->index, e->n);
    finish(o, &s);
    size_t n_prompt = strlen(e->prompt);
    const char *end = e->prompt + (n_prompt > SHOWN ? n_prompt - SHOWN : 0); /* what is next to the text */
    snprintf(line, sizeof line, "sample at step %" PRId64 ": %s |%s", e->step, tr_escape(end, prompt, sizeof prompt),
             tr_escape(e->text, text, sizeof text));
    if (!o->opt.quiet)
        tr_view_say(o, line);
}

void tr_observe_checkpoint(struct tr_observe *o, const struct tr_event_checkpoint *e)
{
    struct line s = begin(o, "checkpoint");
    tr_line_addf(&s, ",\"step\":%" PRId64 ",\"path\":", e->step);
    tr_line_json(&s, e->path);
    tr_line_real(&s, "stall_s", e->stall_s, ROUGH);
    tr_line_real(&s, "write_s", e->write_s, ROUGH);
    tr_line_addf(&s, ",\"bytes\":%" PRIu64 ",\"verified\":%s", e->bytes, e->verified ? "true" : "false");
    finish(o, &s);

    char text[512], path[320], size[32];
    snprintf(text, sizeof text, "saved %s: %s in %.2f s, stalled %.3f s%s", tr_escape(e->path, path, sizeof path),
             tr_human_bytes(e->bytes, size, sizeof size), e->write_s, e->stall_s, e->verified ? ", verified" : "");
    if (!o->opt.quiet)
        tr_view_say(o, text);
}

void tr_observe_fault(struct tr_observe *o, const struct tr_event_fault *e)
{
    struct line s = begin(o, "fault");
    tr_line_addf(&s, ",\"rank\":%d,\"host\":", e->rank);
    tr_line_json(&s, e->host);
    tr_line_addf(&s, ",\"phase\":");
    tr_line_json(&s, e->phase);
    tr_line_addf(&s, ",\"action\":");
    tr_line_json(&s, e->action);
    tr_line_addf(&s, ",\"cause\":");
    tr_line_json(&s, e->cause);
    finish(o, &s);

    char cause[1024];
    struct line view = { o->text, 0, sizeof o->text, false };
    if (e->rank >= 0)
        tr_line_addf(&view, "fault: rank %d%s%.64s in %.64s: ", e->rank, e->host[0] ? " on " : "", e->host, e->phase);
    else /* no rank alone has it */
        tr_line_addf(&view, "fault: in %.64s: ", e->phase);
    tr_line_addf(&view, "%s; %.64s", tr_escape(e->cause, cause, sizeof cause), e->action);
    tr_view_say(o, o->text);
}

void tr_observe_end(struct tr_observe *o, const struct tr_event_end *e)
{
    take_mail(o);
    struct line s = begin(o, "end");
    tr_line_addf(&s, ",\"status\":");
    tr_line_json(&s, e->status);
    tr_line_addf(&s, ",\"steps\":%" PRId64 ",\"tokens\":%" PRId64, e->steps, e->tokens);
    tr_line_real(&s, "seconds", e->seconds, ROUGH);
    tr_line_real(&s, "data_wait", e->data_wait, ROUGH);
    if (e->comm_wait >= 0)
        tr_line_real(&s, "comm_wait", e->comm_wait, ROUGH);
    if (e->has_bubble) {
        tr_line_real(&s, "bubble", e->bubble, ROUGH);
        tr_line_real(&s, "bubble_formula", e->bubble_formula, ROUGH);
    }
    finish(o, &s);
    tr_view_end(o, e);
}

void tr_observe_note(struct tr_observe *o, const char *event, const char *fields, const char *text)
{
    struct line s = begin(o, event);
    tr_line_addf(&s, ",%s", fields);
    finish(o, &s);
    if (text && !o->opt.quiet)
        tr_view_say(o, text);
}

/* Bytes of a norm in its line: quoted name, number, colon and comma. Escapes of a name at most double it. */
static size_t norm_bytes(const char *name)
{
    return 2 * strlen(name) + 32;
}

void tr_observe_norms(struct tr_observe *o, int64_t step, const char *const *names, const double *norms, size_t n)
{
    enum { ROOM = sizeof o->buffer - 1024 }; /* for the head of the line */
    size_t parts = 1, used = 0;
    for (size_t i = 0; i < n; used += norm_bytes(names[i]), i++)
        if (used + norm_bytes(names[i]) > ROOM) {
            parts++;
            used = 0;
        }
    for (size_t i = 0, part = 0; part < parts; part++) {
        struct line s = begin(o, "grad_norms");
        tr_line_addf(&s, ",\"step\":%" PRId64 ",\"part\":%zu,\"parts\":%zu,\"norms\":{", step, part, parts);
        used = 0;
        for (const char *comma = ""; i < n && used + norm_bytes(names[i]) <= ROOM; comma = ",", i++) {
            used += norm_bytes(names[i]);
            tr_line_addf(&s, "%s", comma);
            tr_line_json(&s, names[i]);
            if (isfinite(norms[i]))
                tr_line_addf(&s, ":%.17g", norms[i]);
            else
                tr_line_addf(&s, ":null");
        }
        tr_line_addf(&s, "}");
        finish(o, &s);
    }
}

void tr_observe_message(struct tr_observe *o, const char *text)
{
    tr_view_say(o, text);
}
