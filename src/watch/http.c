/* http.c - the page's server: one thread, a fixed table of paths, GET only, nothing without the token.
 *
 * It runs in the process of `watch`, so that clients cost the training nothing. What they cost this process is bounded:
 * 64 connections, 16 of them streams, 16 KiB of headers each, 5 s to send a request and 60 s to take an answer. A
 * stream carries no data, only that there is some: a slow client misses nothing but the news of the moment, and nothing
 * queues up for it. libmicrohttpd is opened at run time, so that the program starts where it is not installed.
 */
#include "base/listen.h"
#include "watch/http_impl.h"

#ifndef TR_HAS_MICROHTTPD

enum tr_status tr_watch_serve(struct tr_watch_run *const *runs, size_t n_runs, const struct tr_http_options *opt)
{
    (void)runs;
    (void)n_runs;
    return tr_fail(TR_USAGE,
                   "http %s: this trireme was built without libmicrohttpd; build it again where libmicrohttpd-dev is "
                   "installed, or write the page to a file with --html",
                   opt->address);
}

#else

#include <microhttpd.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 64,
    STREAMS_MAX = 16,
    HEADER_BYTES = 16 << 10,
    IDLE_S = 15, /* of a connection that moves no byte */
    REQUEST_US = 5 * 1000 * 1000,
    ANSWER_US = 60 * 1000 * 1000,
    TICK_US = 1000 * 1000,    /* between two pieces of news, while the run moves */
    ALIVE_US = 2 * TICK_US,   /* a run that is alive: its ranks move although it writes nothing */
    SILENCE_US = 10 * TICK_US /* so that dead connections are found */
};

/* ---- the library ---- */

static struct {
    struct MHD_Daemon *(*start_daemon)(unsigned int, uint16_t, MHD_AcceptPolicyCallback, void *,
                                       MHD_AccessHandlerCallback, void *, ...);
    void (*stop_daemon)(struct MHD_Daemon *);
    enum MHD_Result (*run_wait)(struct MHD_Daemon *, int32_t);
    struct MHD_Response *(*create_response_from_buffer)(size_t, void *, enum MHD_ResponseMemoryMode);
    struct MHD_Response *(*create_response_from_callback)(uint64_t, size_t, MHD_ContentReaderCallback, void *,
                                                          MHD_ContentReaderFreeCallback);
    enum MHD_Result (*add_response_header)(struct MHD_Response *, const char *, const char *);
    enum MHD_Result (*queue_response)(struct MHD_Connection *, unsigned int, struct MHD_Response *);
    void (*destroy_response)(struct MHD_Response *);
    const char *(*lookup_connection_value)(struct MHD_Connection *, enum MHD_ValueKind, const char *);
    int (*get_connection_values)(struct MHD_Connection *, enum MHD_ValueKind, MHD_KeyValueIterator, void *);
    void (*suspend_connection)(struct MHD_Connection *);
    void (*resume_connection)(struct MHD_Connection *);
    const union MHD_ConnectionInfo *(*get_connection_info)(struct MHD_Connection *, enum MHD_ConnectionInfoType, ...);
} mhd;

static enum tr_status load_library(void)
{
    static const struct tr_symbol symbols[] = {
        { "MHD_start_daemon", &mhd.start_daemon },
        { "MHD_stop_daemon", &mhd.stop_daemon },
        { "MHD_run_wait", &mhd.run_wait },
        { "MHD_create_response_from_buffer", &mhd.create_response_from_buffer },
        { "MHD_create_response_from_callback", &mhd.create_response_from_callback },
        { "MHD_add_response_header", &mhd.add_response_header },
        { "MHD_queue_response", &mhd.queue_response },
        { "MHD_destroy_response", &mhd.destroy_response },
        { "MHD_lookup_connection_value", &mhd.lookup_connection_value },
        { "MHD_get_connection_values", &mhd.get_connection_values },
        { "MHD_suspend_connection", &mhd.suspend_connection },
        { "MHD_resume_connection", &mhd.resume_connection },
        { "MHD_get_connection_info", &mhd.get_connection_info },
    };
    char why[256];
    if (tr_library_find("libmicrohttpd.so.12", symbols, TR_COUNT_OF(symbols), why, sizeof why))
        return TR_OK;
    return tr_fail(TR_USAGE, "http: %s; install libmicrohttpd12, or write the page to a file with --html", why);
}

/* ---- who is connected ---- */

struct client { /* a connection */
    int fd;     /* -1: the slot is free */
    int64_t until_us;
};
struct stream {                        /* an answer that does not end */
    struct MHD_Connection *connection; /* NULL: the slot is free */
    bool is_suspended;
    char text[1024]; /* what has to be sent */
    size_t n, at;
};
struct server {
    struct tr_watch_run *const *runs;
    size_t n_runs;
    char token[HTTP_TOKEN + 1], cookie[32];
    struct client client[CONNECTIONS_MAX];
    struct stream stream[STREAMS_MAX];
    uint64_t n_ticks;
};

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct client *gone = *context;
        if (gone)
            gone->fd = -1;
        return;
    }
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (int i = 0; info && i < CONNECTIONS_MAX; i++)
        if (s->client[i].fd < 0) {
            s->client[i] = (struct client){ info->connect_fd, tr_clock_us() + REQUEST_US };
            *context = &s->client[i];
            return;
        }
}

static struct client *client_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = mhd.get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void give_time(struct MHD_Connection *c, int64_t us)
{
    struct client *client = client_of(c);
    if (client)
        client->until_us = us == INT64_MAX ? us : tr_clock_us() + us;
}

/* The library closes a socket at which both ways have ended. */
static void end_slow_clients(struct server *s)
{
    int64_t now = tr_clock_us();
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (s->client[i].fd >= 0 && now > s->client[i].until_us)
            (void)shutdown(s->client[i].fd, SHUT_RDWR);
}

/* ---- answers ---- */

static const char *const headers[][2] = {
    { "Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                                 "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
    { "X-Content-Type-Options", "nosniff" },
    { "X-Frame-Options", "DENY" },
    { "Referrer-Policy", "no-referrer" },
    { "Cross-Origin-Resource-Policy", "same-origin" },
    { "Cache-Control", "no-store" },
};

static enum MHD_Result send_response(struct MHD_Connection *c, unsigned status, const char *type,
                                     struct MHD_Response *r)
{
    if (!r)
        return MHD_NO;
    for (size_t i = 0; i < TR_COUNT_OF(headers); i++)
        (void)mhd.add_response_header(r, headers[i][0], headers[i][1]);
    (void)mhd.add_response_header(r, "Content-Type", type);
    (void)mhd.add_response_header(r, "Connection", "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)mhd.add_response_header(r, "Allow", "GET");
    enum MHD_Result done = mhd.queue_response(c, status, r);
    mhd.destroy_response(r);
    return done;
}

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned status, const char *type, const char *text,
                                 size_t n)
{
    union {
        const char *in;
        void *out;
    } p = { .in = text }; /* the library copies it and takes no const */
    return send_response(c, status, type, mhd.create_response_from_buffer(n, p.out, MHD_RESPMEM_MUST_COPY));
}

static enum MHD_Result send_line(struct MHD_Connection *c, unsigned status, const char *line)
{
    return send_text(c, status, "text/plain; charset=utf-8", line, strlen(line));
}

/* ---- news ---- */

static void write_tick(struct server *s, struct stream *to)
{
    size_t n = (size_t)snprintf(to->text, sizeof to->text, "id: %" PRIu64 "\nevent: tick\ndata: [", s->n_ticks);
    for (size_t i = 0; i < s->n_runs; i++)
        n += (size_t)snprintf(to->text + n, sizeof to->text - n, "%s%" PRIu64, i ? "," : "", s->runs[i]->version);
    n += (size_t)snprintf(to->text + n, sizeof to->text - n, "]\n\n");
    to->n = n;
    to->at = 0;
}

static ssize_t read_stream(void *cls, uint64_t at, char *buf, size_t cap)
{
    struct stream *t = cls;
    (void)at;
    size_t n = t->n - t->at < cap ? t->n - t->at : cap;
    if (n == 0 && !t->is_suspended) {
        t->is_suspended = true;
        mhd.suspend_connection(t->connection);
    }
    memcpy(buf, t->text + t->at, n);
    t->at += n;
    return (ssize_t)n;
}

static void end_stream(void *cls)
{
    ((struct stream *)cls)->connection = NULL;
}

static enum MHD_Result open_stream(struct server *s, struct MHD_Connection *c)
{
    int i = 0;
    while (i < STREAMS_MAX && s->stream[i].connection)
        i++;
    if (i == STREAMS_MAX)
        return send_line(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many pages are open\n");
    s->stream[i] = (struct stream){ .connection = c };
    write_tick(s, &s->stream[i]);
    give_time(c, INT64_MAX);
    struct MHD_Response *r =
        mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_stream, &s->stream[i], end_stream);
    if (!r)
        s->stream[i].connection = NULL;
    return send_response(c, MHD_HTTP_OK, "text/event-stream", r);
}

/* A stream that has not taken the last news yet gets none. */
static void tick(struct server *s)
{
    s->n_ticks++;
    for (int i = 0; i < STREAMS_MAX; i++) {
        struct stream *t = &s->stream[i];
        if (!t->connection || !t->is_suspended)
            continue;
        write_tick(s, t);
        t->is_suspended = false;
        mhd.resume_connection(t->connection);
    }
}

/* Streams whose client has gone: the library does not look at a connection that is suspended. */
static void end_left_streams(struct server *s)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        struct stream *t = &s->stream[i];
        const struct client *client = t->connection && t->is_suspended ? client_of(t->connection) : NULL;
        char byte;
        if (!client || recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0)
            continue;
        (void)shutdown(client->fd, SHUT_RDWR);
        write_tick(s, t); /* a write that fails ends the connection */
        t->is_suspended = false;
        mhd.resume_connection(t->connection);
    }
}

/* ---- requests ---- */

static bool has_token(const struct server *s, struct MHD_Connection *c)
{
    const char *header = mhd.lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    const char *cookie = mhd.lookup_connection_value(c, MHD_COOKIE_KIND, s->cookie);
    bool is_bearer = header != NULL && strncmp(header, "Bearer ", 7) == 0;
    return tr_token_is(s->token, cookie) || (is_bearer && tr_token_is(s->token, header + 7));
}

/* The first visit: the token moves from the address, which is seen and kept, into a cookie. */
static enum MHD_Result welcome(const struct server *s, struct MHD_Connection *c)
{
    char cookie[sizeof s->token + 128];
    struct MHD_Response *r = mhd.create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    (void)snprintf(cookie, sizeof cookie, "%s=%s; HttpOnly; SameSite=Strict; Path=/", s->cookie, s->token);
    if (r) {
        (void)mhd.add_response_header(r, "Set-Cookie", cookie);
        (void)mhd.add_response_header(r, "Location", "/");
    }
    return send_response(c, MHD_HTTP_SEE_OTHER, "text/plain", r);
}

struct path {
    char text[512];
    size_t n;
};

static enum MHD_Result add_argument(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct path *p = cls;
    (void)kind;
    int n = snprintf(p->text + p->n, sizeof p->text - p->n, "%c%s=%s", strchr(p->text, '?') ? '&' : '?', key,
                     value ? value : "");
    p->n += (size_t)n;
    return n >= 0 && p->n < sizeof p->text ? MHD_YES : MHD_NO;
}

static enum MHD_Result send_data(const struct server *s, struct MHD_Connection *c, const char *url)
{
    struct path path = { .n = 0 };
    struct tr_str out = { 0 };
    int n = snprintf(path.text, sizeof path.text, "%s", url);
    path.n = (size_t)n;
    if (n < 0 || path.n >= sizeof path.text)
        return send_line(c, MHD_HTTP_NOT_FOUND, "there is nothing of this name here\n");
    (void)mhd.get_connection_values(c, MHD_GET_ARGUMENT_KIND, add_argument, &path);
    enum tr_status st = path.n < sizeof path.text ? tr_watch_query(s->runs, s->n_runs, path.text, &out)
                                                  : tr_fail(TR_USAGE, "the path is too long");
    enum MHD_Result done = st == TR_OK      ? send_text(c, MHD_HTTP_OK, "application/json", out.p, out.n)
                           : st == TR_USAGE ? send_line(c, MHD_HTTP_NOT_FOUND, "there is nothing of this name here\n")
                                            : send_line(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n");
    tr_error_clear();
    tr_str_release(&out);
    return done;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *body, size_t *n_body, void **context)
{
    struct server *s = cls;
    (void)version;
    (void)body;
    (void)n_body;
    (void)context;
    give_time(c, ANSWER_US);
    if (strcmp(method, "GET") != 0)
        return send_line(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
    if (!tr_host_is_ours(mhd.lookup_connection_value(c, MHD_HEADER_KIND, "Host")))
        return send_line(c, MHD_HTTP_FORBIDDEN,
                         "this server answers to a numeric address, localhost or its host's name\n");
    if (strcmp(url, "/") == 0 && tr_token_is(s->token, mhd.lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token")))
        return welcome(s, c);
    if (!has_token(s, c))
        return send_line(c, MHD_HTTP_FORBIDDEN, "open the address with the token that trireme watch has printed\n");
    if (strcmp(url, "/events") == 0)
        return open_stream(s, c);
    for (size_t i = 0; i < tr_n_assets; i++)
        if (url[0] == '/' && strcmp(url[1] ? url + 1 : "index.html", tr_assets[i].name) == 0)
            return send_text(c, MHD_HTTP_OK, tr_assets[i].type, tr_assets[i].text, tr_assets[i].n);
    return send_data(s, c, url);
}

/* ---- the loop ---- */

static volatile sig_atomic_t is_stopping;

static void on_signal(int sig)
{
    (void)sig;
    is_stopping = 1;
}

static void serve(struct server *s, struct MHD_Daemon *d)
{
    int64_t last_us = tr_clock_us(), read_us = last_us;
    bool has_news = false;
    while (!is_stopping) {
        (void)mhd.run_wait(d, 200);
        int64_t now = tr_clock_us();
        end_slow_clients(s);
        end_left_streams(s);
        if (now - read_us >= TICK_US / 2) {
            bool is_alive = false;
            for (size_t i = 0; i < s->n_runs; i++) {
                has_news |= tr_watch_refresh(s->runs[i]);
                is_alive |= tr_watch_is_live(s->runs[i]);
            }
            read_us = now;
            if (now - last_us >= (has_news ? TICK_US : is_alive ? ALIVE_US : SILENCE_US)) {
                tick(s);
                last_us = now;
                has_news = false;
            }
        }
    }
    for (int i = 0; i < STREAMS_MAX; i++)
        if (s->stream[i].connection && s->stream[i].is_suspended) {
            s->stream[i].is_suspended = false;
            mhd.resume_connection(s->stream[i].connection);
        }
}

static enum tr_status start(struct server *s, int fd, struct MHD_Daemon **out)
{
    *out = mhd.start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, s,
                            MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)HEADER_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    return *out ? TR_OK : tr_fail(TR_IO, "http: libmicrohttpd does not start");
}

enum tr_status tr_watch_serve(struct tr_watch_run *const *runs, size_t n_runs, const struct tr_http_options *opt)
{
    enum tr_status st = TR_OK;
    struct server s = { .runs = runs, .n_runs = n_runs };
    struct tr_listener at = { .fd = -1 };
    struct MHD_Daemon *d = NULL;
    struct sigaction stop = { .sa_handler = on_signal }, old[4];
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };
    char url[256];
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        s.client[i].fd = -1;
    TR_TRY(load_library());
    TR_TRY(tr_token_make(s.token));
    TR_TRY(tr_listen("http", opt->address, opt->any_interface, &at));
    (void)snprintf(s.cookie, sizeof s.cookie, "trireme_%d", at.port);
    (void)snprintf(url, sizeof url, "http://%s:%d/?token=%s", at.host, at.port, s.token);
    TR_TRY(start(&s, at.fd, &d));
    is_stopping = 0;
    for (size_t i = 0; i < TR_COUNT_OF(signals); i++)
        (void)sigaction(signals[i], &stop, &old[i]);
    opt->tell(opt->ctx, url);
    serve(&s, d);
    for (size_t i = 0; i < TR_COUNT_OF(signals); i++)
        (void)sigaction(signals[i], &old[i], NULL);
    mhd.stop_daemon(d); /* closes the socket */
    at.fd = -1;
out:
    if (at.fd >= 0)
        close(at.fd);
    return st;
}

#endif
