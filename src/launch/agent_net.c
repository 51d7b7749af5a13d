/* agent_net.c - the control plane on the wire: authenticated frames over TCP.
 *
 * A connection begins with three hellos of 64 bytes: nonce, nonce and proof, proof. A proof is an HMAC under the job's
 * key over both nonces and a direction, so nothing can be replayed or reflected. Every frame then carries its length,
 * kind, generation and sequence number and ends in an HMAC under a key of that connection and direction. Invariant: no
 * byte behind a fixed header is used before its length is within bounds and its MAC is right; a peer that is not
 * authenticated within HELLO_US is dropped, and the number of such peers is limited (H1-H3). Rejected: TLS (a library,
 * certificates); a text protocol.
 */
#include "launch/agent_net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNS_MAX = 160,
    STRANGERS_MAX = 48, /* connections that are not authenticated yet, in all */
    SOURCE_MAX = 16,    /* the same, from one address */
    HELLO_BYTES = 64,
    NONCE_BYTES = 16,
    MAC_BYTES = TR_SHA256_BYTES,
    HELLO_US = 2 * 1000 * 1000,
    CONNECT_US = 2 * 1000 * 1000,
    OUT_MAX_BYTES = 4 << 20,
    READS = 64
};

struct net_hello {
    char magic[8];
    unsigned char nonce[NONCE_BYTES], proof[MAC_BYTES];
    uint16_t version, order; /* order of bytes: 0x0102 */
    uint32_t zero;
};
_Static_assert(sizeof(struct net_hello) == HELLO_BYTES, "a hello has one size");

struct net_head {
    uint32_t n_bytes;
    uint16_t kind, zero;
    int64_t generation;
    uint64_t seq;
};
_Static_assert(sizeof(struct net_head) == 24, "a head has one size");

enum stage { CONNECTING, HELLO, PROOF, READY };

struct conn {
    int fd; /* -1: free */
    bool is_ours;
    enum stage stage;
    int64_t deadline_us;
    unsigned char source[16];
    unsigned char nonce[2][NONCE_BYTES]; /* client, server */
    unsigned char key_in[MAC_BYTES], key_out[MAC_BYTES];
    uint64_t seq_in, seq_out;
    struct tr_str out;
    size_t n_in;
    unsigned char in[sizeof(struct net_head) + NET_FRAME_MAX + MAC_BYTES];
};

struct net {
    int listener, epoll;
    unsigned char key[MAC_BYTES];
    char addr[ADDR_BYTES];
    int64_t n_refused, reported_us;
    struct net_events on;
    struct conn conns[CONNS_MAX];
};

static const char magic[8] = "TRIREME";

/* ---- addresses ---- */

/* host:port or [host]:port; the host may be a name. */
static enum tr_status resolve(const char *text, bool is_listener, struct sockaddr_storage *out, socklen_t *n_out)
{
    char host[ADDR_BYTES], esc[ADDR_BYTES * 4];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = is_listener ? AI_PASSIVE : 0 }, *result = NULL;
    const char *colon = strrchr(text, ':');
    int64_t port = 0;
    if (!colon || colon == text || tr_parse_int(colon + 1, 0, 65535, &port) != TR_OK)
        return tr_fail(TR_USAGE, "address \"%s\" has no port; write HOST:PORT", tr_escape(text, esc, sizeof esc));
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    size_t n = strlen(host);
    if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
        memmove(host, host + 1, n - 2);
        host[n - 2] = 0;
    }
    int err = getaddrinfo(host, colon + 1, &hints, &result);
    if (err != 0 || !result)
        return tr_fail(TR_USAGE, "address %s: %s", tr_escape(text, esc, sizeof esc), gai_strerror(err));
    memcpy(out, result->ai_addr, result->ai_addrlen);
    *n_out = result->ai_addrlen;
    freeaddrinfo(result);
    return TR_OK;
}

static void address_text(const struct sockaddr_storage *a, char out[ADDR_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is6 = a->ss_family == AF_INET6;
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    inet_ntop(a->ss_family, is6 ? (const void *)&v6->sin6_addr : (const void *)&v4->sin_addr, host, sizeof host);
    snprintf(out, ADDR_BYTES, is6 ? "[%s]:%d" : "%s:%d", host, ntohs(is6 ? v6->sin6_port : v4->sin_port));
}

static bool is_any(const struct sockaddr_storage *a)
{
    static const unsigned char zero[16];
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    return a->ss_family == AF_INET6 ? memcmp(&v6->sin6_addr, zero, 16) == 0 : v4->sin_addr.s_addr == INADDR_ANY;
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)a)->sin_port = htons(port);
}

static void source_of(const struct sockaddr_storage *a, unsigned char out[16])
{
    memset(out, 0, 16);
    if (a->ss_family == AF_INET6)
        memcpy(out, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
    else
        memcpy(out, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
}

/* ---- connections ---- */

static void hang_up(struct conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    tr_str_release(&c->out);
}

static void watch(struct net *n, struct conn *c, bool is_new)
{
    bool wants_out = c->stage == CONNECTING || c->out.n > 0;
    struct epoll_event e = { .events = EPOLLIN | (wants_out ? EPOLLOUT : 0), .data.u32 = (uint32_t)(c - n->conns) };
    (void)epoll_ctl(n->epoll, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, c->fd, &e);
}

/* Drops a connection and reports it to the agent, if the agent knows of it. */
static void lose(struct net *n, struct conn *c)
{
    bool was_known = c->stage == READY, was_ours = c->is_ours;
    int link = (int)(c - n->conns);
    hang_up(c);
    if (was_known)
        n->on.down(n->on.ctx, link);
    else if (was_ours)
        n->on.down(n->on.ctx, -1);
}

/* Drops a connection that broke a rule, without a reply; reported once a second at most. */
static void refuse(struct net *n, struct conn *c, const char *why)
{
    char text[ADDR_BYTES] = "?";
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    int64_t now_us = tr_clock_us();
    n->n_refused++;
    if (now_us - n->reported_us > 1000 * 1000 && getpeername(c->fd, (struct sockaddr *)&a, &len) == 0) {
        address_text(&a, text);
        n->reported_us = now_us;
        n->on.refused(n->on.ctx, text, why, n->n_refused);
    }
    lose(n, c);
}

static struct conn *take(struct net *n, int fd, bool is_ours, enum stage stage, int64_t deadline_us)
{
    for (int i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &n->conns[i];
        if (c->fd >= 0)
            continue;
        *c = (struct conn){ .fd = fd, .is_ours = is_ours, .stage = stage, .deadline_us = deadline_us };
        int one = 1;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return c;
    }
    return NULL;
}

static void flush(struct net *n, struct conn *c)
{
    while (c->out.n > 0) {
        ssize_t k = send(c->fd, c->out.p, c->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (k <= 0) {
            lose(n, c);
            return;
        }
        memmove(c->out.p, c->out.p + k, c->out.n - (size_t)k);
        c->out.n -= (size_t)k;
    }
    watch(n, c, false);
}

static void put(struct net *n, struct conn *c, const void *p, size_t n_bytes)
{
    tr_str_add(&c->out, p, n_bytes);
    if (!tr_str_ok(&c->out) || c->out.n > OUT_MAX_BYTES) /* the peer does not read */
        lose(n, c);
}

/* ---- hellos ---- */

static void prove(const struct net *n, const struct conn *c, const char *word, unsigned char out[MAC_BYTES])
{
    const struct tr_bytes parts[] = { { word, strlen(word) + 1 }, { c->nonce, sizeof c->nonce } };
    tr_hmac_sha256(n->key, sizeof n->key, parts, TR_COUNT_OF(parts), out);
}

static void send_hello(struct net *n, struct conn *c, const unsigned char *nonce, const char *word)
{
    struct net_hello h = { .version = NET_VERSION, .order = 0x0102 };
    memcpy(h.magic, magic, sizeof magic);
    if (nonce)
        memcpy(h.nonce, nonce, NONCE_BYTES);
    if (word)
        prove(n, c, word, h.proof);
    put(n, c, &h, sizeof h);
}

static bool is_proven(const struct net *n, const struct conn *c, const struct net_hello *h, const char *word)
{
    unsigned char want[MAC_BYTES];
    prove(n, c, word, want);
    return tr_same_bytes(want, h->proof, sizeof want);
}

static void become_ready(struct net *n, struct conn *c)
{
    prove(n, c, c->is_ours ? "frames of the server" : "frames of the client", c->key_in);
    prove(n, c, c->is_ours ? "frames of the client" : "frames of the server", c->key_out);
    c->stage = READY;
    if (c->is_ours)
        n->on.up(n->on.ctx, (int)(c - n->conns));
}

static void take_hello(struct net *n, struct conn *c)
{
    struct net_hello h;
    memcpy(&h, c->in, sizeof h);
    c->n_in -= sizeof h;
    memmove(c->in, c->in + sizeof h, c->n_in);
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.order != 0x0102 || h.zero != 0 || h.version != NET_VERSION) {
        refuse(n, c,
               h.version != NET_VERSION && memcmp(h.magic, magic, sizeof magic) == 0
                   ? "another version of the protocol"
                   : "the first bytes are not the hello of an agent");
    } else if (c->is_ours) {
        memcpy(c->nonce[1], h.nonce, NONCE_BYTES);
        if (!is_proven(n, c, &h, "server")) {
            refuse(n, c, "wrong key");
            return;
        }
        send_hello(n, c, NULL, "client");
        if (c->fd >= 0)
            become_ready(n, c);
    } else if (c->stage == HELLO) {
        memcpy(c->nonce[0], h.nonce, NONCE_BYTES);
        if (getrandom(c->nonce[1], NONCE_BYTES, 0) != NONCE_BYTES) {
            lose(n, c);
            return;
        }
        c->stage = PROOF;
        send_hello(n, c, c->nonce[1], "server");
    } else if (is_proven(n, c, &h, "client")) {
        become_ready(n, c);
    } else {
        refuse(n, c, "wrong key");
    }
}

/* ---- frames ---- */

static void sign(const unsigned char key[MAC_BYTES], const struct net_head *h, const void *p,
                 unsigned char out[MAC_BYTES])
{
    const struct tr_bytes parts[] = { { h, sizeof *h }, { p, h->n_bytes } };
    tr_hmac_sha256(key, MAC_BYTES, parts, TR_COUNT_OF(parts), out);
}

void tr_net_send(struct net *n, int link, int kind, int64_t generation, const void *p, size_t n_bytes)
{
    struct conn *c = link >= 0 && link < CONNS_MAX ? &n->conns[link] : NULL;
    unsigned char mac[MAC_BYTES];
    TR_BUG_ON(n_bytes > NET_FRAME_MAX);
    if (!c || c->fd < 0 || c->stage != READY)
        return;
    struct net_head h = { (uint32_t)n_bytes, (uint16_t)kind, 0, generation, c->seq_out++ };
    sign(c->key_out, &h, p, mac);
    tr_str_add(&c->out, (const char *)&h, sizeof h);
    tr_str_add(&c->out, p, n_bytes);
    put(n, c, mac, sizeof mac);
    if (c->fd >= 0)
        flush(n, c);
}

/* true: one frame was taken from the buffer, or the connection is gone. */
static bool take_frame(struct net *n, struct conn *c)
{
    struct net_head h;
    unsigned char mac[MAC_BYTES];
    if (c->n_in < sizeof h)
        return false;
    memcpy(&h, c->in, sizeof h);
    if (h.n_bytes > NET_FRAME_MAX || h.zero != 0 || h.kind >= NET_KINDS || h.seq != c->seq_in ||
        (h.kind == NET_MSG && h.n_bytes != sizeof(struct msg))) {
        refuse(n, c, "a frame with a header out of bounds");
        return true;
    }
    size_t whole = sizeof h + h.n_bytes + MAC_BYTES;
    if (c->n_in < whole)
        return false;
    sign(c->key_in, &h, c->in + sizeof h, mac);
    if (!tr_same_bytes(mac, c->in + sizeof h + h.n_bytes, sizeof mac)) {
        refuse(n, c, "a frame with a wrong MAC");
        return true;
    }
    c->seq_in++;
    n->on.frame(n->on.ctx, (int)(c - n->conns), h.kind, h.generation, c->in + sizeof h, h.n_bytes);
    if (c->fd < 0)
        return true;
    c->n_in -= whole;
    memmove(c->in, c->in + whole, c->n_in);
    return true;
}

static void receive(struct net *n, struct conn *c)
{
    int fd = c->fd;
    for (int i = 0; i < READS && c->fd == fd; i++) {
        ssize_t k = recv(c->fd, c->in + c->n_in, sizeof c->in - c->n_in, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (k <= 0) {
            lose(n, c);
            return;
        }
        c->n_in += (size_t)k;
        while (c->fd == fd && c->stage != READY && c->n_in >= HELLO_BYTES)
            take_hello(n, c);
        while (c->fd == fd && c->stage == READY && take_frame(n, c))
            ;
        if (c->fd == fd && c->out.n)
            flush(n, c);
    }
}

/* ---- opening ---- */

static int strangers(const struct net *n, const unsigned char source[16])
{
    int k = 0;
    for (int i = 0; i < CONNS_MAX; i++) {
        const struct conn *c = &n->conns[i];
        k += c->fd >= 0 && !c->is_ours && c->stage != READY && (!source || memcmp(c->source, source, 16) == 0);
    }
    return k;
}

/* Closes the oldest stranger (of one address) that has said nothing: who holds connections idle must not keep others
 * out. A node says its hello at once. */
static void evict(struct net *n, const unsigned char source[16])
{
    struct conn *oldest = NULL;
    for (int i = 0; i < CONNS_MAX; i++) {
        struct conn *c = &n->conns[i];
        bool is_silent = c->fd >= 0 && !c->is_ours && c->stage == HELLO && c->n_in == 0;
        if (is_silent && (!source || memcmp(c->source, source, 16) == 0) &&
            (!oldest || c->deadline_us < oldest->deadline_us))
            oldest = c;
    }
    if (!oldest)
        return;
    n->n_refused++;
    hang_up(oldest);
}

static void let_in(struct net *n)
{
    struct sockaddr_storage a;
    for (int i = 0; i < READS; i++) {
        socklen_t len = sizeof a;
        unsigned char source[16];
        int fd = accept4(n->listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        source_of(&a, source);
        if (strangers(n, source) >= SOURCE_MAX)
            evict(n, source);
        else if (strangers(n, NULL) >= STRANGERS_MAX)
            evict(n, NULL);
        struct conn *c = strangers(n, NULL) < STRANGERS_MAX && strangers(n, source) < SOURCE_MAX
                             ? take(n, fd, false, HELLO, tr_clock_us() + HELLO_US)
                             : NULL;
        if (!c) {
            n->n_refused++;
            close(fd);
            continue;
        }
        memcpy(c->source, source, sizeof source);
        watch(n, c, true);
    }
}

void tr_net_connect(struct net *n, const char *addr)
{
    struct sockaddr_storage a;
    socklen_t len = 0;
    struct conn *c = NULL;
    int fd = resolve(addr, false, &a, &len) == TR_OK
                 ? socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
                 : -1;
    if (fd >= 0 && (connect(fd, (struct sockaddr *)&a, len) == 0 || errno == EINPROGRESS))
        c = take(n, fd, true, CONNECTING, tr_clock_us() + CONNECT_US + HELLO_US);
    if (!c) {
        if (fd >= 0)
            close(fd);
        n->on.down(n->on.ctx, -1);
        return;
    }
    watch(n, c, true);
}

static void connected(struct net *n, struct conn *c)
{
    int err = 0;
    socklen_t len = sizeof err;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0 ||
        getrandom(c->nonce[0], NONCE_BYTES, 0) != NONCE_BYTES) {
        lose(n, c);
        return;
    }
    c->stage = HELLO;
    send_hello(n, c, c->nonce[0], NULL);
    if (c->fd >= 0)
        flush(n, c);
}

void tr_net_close_link(struct net *n, int link)
{
    if (link < 0 || link >= CONNS_MAX || n->conns[link].fd < 0)
        return;
    flush(n, &n->conns[link]); /* the last messages */
    hang_up(&n->conns[link]);
}

void tr_net_serve(struct net *n)
{
    struct epoll_event events[64];
    int k = epoll_wait(n->epoll, events, (int)TR_COUNT_OF(events), 0);
    for (int i = 0; i < k; i++) {
        if (events[i].data.u32 == CONNS_MAX) {
            let_in(n);
            continue;
        }
        struct conn *c = &n->conns[events[i].data.u32];
        int fd = c->fd;
        if (fd >= 0 && c->stage == CONNECTING && events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            connected(n, c);
        else if (fd >= 0 && events[i].events & EPOLLOUT)
            flush(n, c);
        if (fd >= 0 && c->fd == fd && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            receive(n, c);
    }
    int64_t now_us = tr_clock_us();
    for (int i = 0; i < CONNS_MAX; i++)
        if (n->conns[i].fd >= 0 && n->conns[i].stage != READY && now_us > n->conns[i].deadline_us)
            refuse(n, &n->conns[i], "no hello in time");
}

int tr_net_fd(const struct net *n)
{
    return n->epoll;
}

const char *tr_net_addr(const struct net *n)
{
    return n->addr;
}

void tr_net_drain(struct net *n, int64_t max_us)
{
    for (int64_t until = tr_clock_us() + max_us; tr_clock_us() < until;) {
        bool is_empty = true;
        for (int i = 0; i < CONNS_MAX; i++)
            if (n->conns[i].fd >= 0 && n->conns[i].out.n > 0) {
                flush(n, &n->conns[i]);
                is_empty = is_empty && n->conns[i].fd < 0;
            }
        if (is_empty)
            return;
        usleep(2000);
    }
}

enum tr_status tr_net_open(const char *addr, bool may_be_any, const unsigned char key[MAC_BYTES],
                           const struct net_events *on, struct net **out)
{
    enum tr_status st = TR_OK;
    struct sockaddr_storage a;
    socklen_t len = 0;
    int one = 1;
    struct net *n = calloc(1, sizeof *n);
    if (!n)
        return tr_fail(TR_NOMEM, "no memory for the control plane");
    n->listener = n->epoll = -1;
    n->on = *on;
    memcpy(n->key, key, sizeof n->key);
    for (int i = 0; i < CONNS_MAX; i++)
        n->conns[i].fd = -1;
    TR_TRY(resolve(addr, true, &a, &len));
    if (is_any(&a) && !may_be_any)
        TR_TRY(tr_fail(TR_USAGE, "%s means every interface of this host; name one, or allow it with --any-interface",
                       addr));
    n->epoll = epoll_create1(EPOLL_CLOEXEC);
    n->listener = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->epoll < 0 || n->listener < 0)
        TR_TRY(tr_fail(TR_IO, "no socket: %s", strerror(errno)));
    (void)setsockopt(n->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(n->listener, (struct sockaddr *)&a, len) != 0 && errno == EADDRINUSE) {
        set_port(&a, 0); /* bound, then published: any port does (B13) */
        if (bind(n->listener, (struct sockaddr *)&a, len) != 0)
            TR_TRY(tr_fail(TR_USAGE, "cannot listen at %s: %s", addr, strerror(errno)));
    }
    if (listen(n->listener, 128) != 0)
        TR_TRY(tr_fail(TR_USAGE, "cannot listen at %s: %s", addr, strerror(errno)));
    len = sizeof a;
    if (getsockname(n->listener, (struct sockaddr *)&a, &len) != 0)
        TR_TRY(tr_fail(TR_IO, "getsockname: %s", strerror(errno)));
    address_text(&a, n->addr);
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = CONNS_MAX };
    if (epoll_ctl(n->epoll, EPOLL_CTL_ADD, n->listener, &e) != 0)
        TR_TRY(tr_fail(TR_IO, "epoll: %s", strerror(errno)));
    *out = n;
    return TR_OK;
out:
    tr_net_close(n);
    return st;
}

void tr_net_close(struct net *n)
{
    if (!n)
        return;
    for (int i = 0; i < CONNS_MAX; i++)
        hang_up(&n->conns[i]);
    if (n->listener >= 0)
        close(n->listener);
    if (n->epoll >= 0)
        close(n->epoll);
    free(n);
}

/* The address of this host from which a packet to `to` would leave; with the port of `to` when that address is ours. */
enum tr_status tr_net_local(const char *to, char out[ADDR_BYTES], bool *is_ours)
{
    struct sockaddr_storage a, mine;
    socklen_t len = 0, n = sizeof mine;
    unsigned char x[16], y[16];
    enum tr_status st = resolve(to, false, &a, &len);
    if (st != TR_OK)
        return st;
    int fd = socket(a.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, len) != 0 || getsockname(fd, (struct sockaddr *)&mine, &n) != 0)
        st = tr_fail(TR_USAGE, "no route to %s: %s; give --local-addr to choose an interface", to, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (st != TR_OK)
        return st;
    source_of(&a, x);
    source_of(&mine, y);
    *is_ours = memcmp(x, y, sizeof x) == 0;
    set_port(&mine, 0);
    address_text(*is_ours ? &a : &mine, out);
    return TR_OK;
}
