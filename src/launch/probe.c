/* probe.c - what the agent answers a scheduler over HTTP (--metrics-port): GET of four paths, one request a connection.
 *
 *   /healthz   200 while the agent lives
 *   /readyz    200 from the first step of this generation on, else 503
 *   /livez     503 from the moment that a rank was found to hang until the next generation, else 200
 *   /metrics   generation, ranks, steps in Prometheus' text format
 *
 * It is served by the agent's one thread between two looks at the ranks, so it costs no thread and never waits: a
 * client has REQUEST_US to send its request, an answer fits the socket's buffer, and CLIENTS_MAX may be open. Nothing
 * secret is said, and nothing can be changed. Rejected: the server of `watch` (a library, for a page and streams), and
 * a probe on step time (a slow step is no reason to end a pod).
 */
#include "base/listen.h"
#include "launch/launch_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/banned.h"

enum { CLIENTS_MAX = 16, REQUEST_BYTES = 2048, REQUEST_US = 5 * 1000 * 1000 };

struct probe_client {
    int fd; /* -1: free */
    int64_t since_us;
    size_t n;
    char request[REQUEST_BYTES];
};

struct probe {
    struct tr_listener at;
    int epoll_fd;
    struct probe_client clients[CLIENTS_MAX];
};

/* ---- answers ---- */

static int64_t last_step(struct launch_job *j)
{
    int64_t step = -1;
    for (int i = 0; i < j->l->n_ranks; i++)
        step = tr_max64(step, tr_hang_step(j, &j->ranks[i]));
    return step;
}

static int answer_health(struct launch_job *j, struct tr_str *out)
{
    tr_str_addf(out, "the agent of %s lives\n", j->host);
    return 200;
}

static int answer_ready(struct launch_job *j, struct tr_str *out)
{
    int64_t step = last_step(j);
    tr_str_addf(out, step > 0 ? "in step %" PRId64 "\n" : "no step yet\n", step);
    return step > 0 ? 200 : 503;
}

static int answer_live(struct launch_job *j, struct tr_str *out)
{
    const char *hang = tr_hang_text(j);
    if (hang && j->root)
        tr_str_addf(out, "rank %d %s\n", j->root->rank, hang);
    else
        tr_str_addf(out, "no rank hangs\n");
    return hang ? 503 : 200;
}

static void add_metric(struct tr_str *out, const char *name, const char *help, int64_t value)
{
    tr_str_addf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %" PRId64 "\n", name, help, name, name, value);
}

static int answer_metrics(struct launch_job *j, struct tr_str *out)
{
    add_metric(out, "trireme_agent_generation", "how often this node has started its ranks, from 0", j->generation);
    add_metric(out, "trireme_agent_ranks", "ranks of this node", j->l->n_ranks);
    add_metric(out, "trireme_agent_ranks_running", "of them, those that run now", j->n_running);
    add_metric(out, "trireme_agent_world_ranks", "ranks of all nodes", j->n_world);
    add_metric(out, "trireme_agent_hangs", "1: a rank of this generation was found to hang", tr_hang_text(j) ? 1 : 0);
    add_metric(out, "trireme_agent_stopping", "1: it was asked to stop", j->n_signals > 0 ? 1 : 0);
    tr_str_addf(out,
                "# HELP trireme_agent_rank_step the step that a rank is in\n# TYPE trireme_agent_rank_step gauge\n");
    for (int i = 0; i < j->l->n_ranks; i++) {
        int64_t step = tr_hang_step(j, &j->ranks[i]);
        if (step >= 0)
            tr_str_addf(out, "trireme_agent_rank_step{rank=\"%d\"} %" PRId64 "\n", j->ranks[i].rank, step);
    }
    return 200;
}

static const struct page {
    const char *path, *type;
    int (*answer)(struct launch_job *j, struct tr_str *out); /* returns the status */
} pages[] = {
    { "/healthz", "text/plain", answer_health },
    { "/readyz", "text/plain", answer_ready },
    { "/livez", "text/plain", answer_live },
    { "/metrics", "text/plain; version=0.0.4", answer_metrics },
};

static const char *reason_of(int status)
{
    return status == 200 ? "OK" : status == 503 ? "Service Unavailable" : status == 404 ? "Not Found" : "Bad Request";
}

/* The page of "GET PATH[?QUERY] HTTP/1.x"; NULL: *status says why there is none. */
static const struct page *page_of(const char *request, int *status)
{
    bool is_get = strncmp(request, "GET ", 4) == 0, is_head = strncmp(request, "HEAD ", 5) == 0;
    *status = 400;
    if (!is_get && !is_head)
        return NULL;
    const char *path = request + (is_get ? 4 : 5);
    size_t n = strcspn(path, " ?\r\n");
    *status = 404;
    for (size_t i = 0; i < TR_COUNT_OF(pages); i++)
        if (strlen(pages[i].path) == n && strncmp(path, pages[i].path, n) == 0)
            return &pages[i];
    return NULL;
}

static void answer(struct launch_job *j, const struct probe_client *c)
{
    struct tr_str body = { 0 }, all = { 0 };
    int status = 400;
    const struct page *page = page_of(c->request, &status);
    if (page)
        status = page->answer(j, &body);
    else
        tr_str_addf(&body, "GET /healthz, /readyz, /livez or /metrics\n");
    if (tr_str_ok(&body)) {
        tr_str_addf(&all, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                    status, reason_of(status), page ? page->type : "text/plain", body.n);
        if (strncmp(c->request, "HEAD ", 5) != 0)
            tr_str_add(&all, body.p, body.n);
    }
    if (tr_str_ok(&all) && all.n > 0) /* a client that does not take it at once gets less */
        (void)!send(c->fd, all.p, all.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    tr_str_release(&body);
    tr_str_release(&all);
}

/* ---- connections ---- */

static void hang_up(struct probe_client *c)
{
    (void)shutdown(c->fd, SHUT_WR);
    close(c->fd); /* which takes it out of the epoll set */
    c->fd = -1;
}

static void let_in(struct probe *p, int64_t now)
{
    for (;;) {
        int fd = accept4(p->at.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct probe_client *c = p->clients;
        while (c < p->clients + CLIENTS_MAX && c->fd >= 0)
            c++;
        struct epoll_event e = { .events = EPOLLIN };
        if (c == p->clients + CLIENTS_MAX || epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
            close(fd);
            continue;
        }
        c->fd = fd;
        c->since_us = now;
        c->n = 0;
    }
}

static void serve_client(struct launch_job *j, struct probe_client *c, int64_t now)
{
    ssize_t n = recv(c->fd, c->request + c->n, sizeof c->request - 1 - c->n, MSG_DONTWAIT);
    bool is_over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    c->n += n > 0 ? (size_t)n : 0;
    c->request[c->n] = 0;
    if (strstr(c->request, "\r\n\r\n") || strstr(c->request, "\n\n")) {
        answer(j, c);
        is_over = true;
    }
    if (is_over || c->n == sizeof c->request - 1 || now - c->since_us > REQUEST_US)
        hang_up(c);
}

int tr_probe_fd(const struct launch_job *j)
{
    return j->probe ? j->probe->epoll_fd : -1;
}

static void serve_clients(struct launch_job *j, int64_t now)
{
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (j->probe->clients[i].fd >= 0)
            serve_client(j, &j->probe->clients[i], now);
}

void tr_probe_serve(struct launch_job *j)
{
    if (!j->probe)
        return;
    int64_t now = tr_clock_us();
    serve_clients(j, now); /* those that have left make room */
    let_in(j->probe, now);
    serve_clients(j, now);
}

enum tr_status tr_probe_open(struct launch_job *j)
{
    struct epoll_event e = { .events = EPOLLIN };
    if (!j->l->metrics_port)
        return TR_OK;
    struct probe *p = calloc(1, sizeof *p);
    if (!p)
        return tr_fail(TR_NOMEM, "no memory for probes");
    j->probe = p;
    p->at.fd = p->epoll_fd = -1;
    for (int i = 0; i < CLIENTS_MAX; i++)
        p->clients[i].fd = -1;
    TR_PASS(tr_listen("--metrics-port", j->l->metrics_port, j->l->any_interface, &p->at));
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->epoll_fd < 0 || epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->at.fd, &e) != 0)
        return tr_fail(TR_IO, "no epoll descriptor for probes: %s", strerror(errno));
    tr_report(j, "probes at http://%s:%d/livez", p->at.host, p->at.port);
    return TR_OK;
}

void tr_probe_close(struct launch_job *j)
{
    struct probe *p = j->probe;
    if (!p)
        return;
    for (int i = 0; i < CLIENTS_MAX; i++)
        if (p->clients[i].fd >= 0)
            hang_up(&p->clients[i]);
    if (p->epoll_fd >= 0)
        close(p->epoll_fd);
    if (p->at.fd >= 0)
        close(p->at.fd);
    free(p);
    j->probe = NULL;
}
