/* listen.c - sockets that listen for people and probes (listen.h). */
#include "base/listen.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_PORT = 8765, PORTS_TRIED = 20, BACKLOG = 16 };

/* "127.0.0.1:80", "80", "[::1]:80", "localhost" into its two parts. */
static enum tr_status split_address(const char *what, const char *text, char host[64], int *port)
{
    const char *colon = strrchr(text, ':'), *end;
    int64_t n = FIRST_PORT;
    bool is_port = text[0] != '\0' && strspn(text, "0123456789") == strlen(text), is_v6 = text[0] == '[';
    const char *number = is_port ? text : colon && (!is_v6 || colon[-1] == ']') ? colon + 1 : NULL;
    if (number && tr_parse_int(number, 0, 65535, &n) != TR_OK)
        return tr_fail(TR_USAGE, "%s %s: write [ADDRESS:]PORT, a port from 0 to 65535", what, text);
    end = is_port ? text : number ? number - 1 : text + strlen(text);
    if (is_v6 && (end == text || end[-1] != ']'))
        return tr_fail(TR_USAGE, "%s %s: write [ADDRESS]:PORT for an address of IPv6", what, text);
    size_t n_host = (size_t)(end - text) - (is_v6 ? 2 : 0);
    if (n_host >= 64)
        return tr_fail(TR_USAGE, "%s %s: the address is too long", what, text);
    memcpy(host, text + is_v6, n_host);
    host[n_host] = '\0';
    if (n_host == 0 || strcmp(host, "localhost") == 0)
        (void)snprintf(host, 64, "127.0.0.1");
    *port = (int)n;
    return TR_OK;
}

static bool means_all(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, &in6addr_any, sizeof in6addr_any) == 0;
}

/* One try; -1 and errno: not here. */
static int listen_at(const struct addrinfo *a, int *port)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &n) == 0) {
        *port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                              : ((struct sockaddr_in6 *)&at)->sin6_port);
        return fd;
    }
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

enum tr_status tr_listen(const char *what, const char *address, bool any_interface, struct tr_listener *out)
{
    enum tr_status st = TR_OK;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *a = NULL;
    bool is_auto = strcmp(address, "auto") == 0;
    char host[64], service[8];
    int port = 0, fd = -1;
    TR_TRY(split_address(what, is_auto ? "127.0.0.1" : address, host, &port));
    for (int i = 0; fd < 0 && i < (is_auto ? PORTS_TRIED : 1); i++) {
        if (a)
            freeaddrinfo(a);
        a = NULL;
        (void)snprintf(service, sizeof service, "%d", port + i);
        if (getaddrinfo(host, service, &hints, &a) != 0)
            TR_TRY(tr_fail(TR_USAGE, "%s %s: %s is no numeric address; write 127.0.0.1:8765 or [::1]:8765", what,
                           address, host));
        if (means_all(a->ai_addr) && !any_interface)
            TR_TRY(tr_fail(TR_USAGE,
                           "%s %s: %s means every interface of this host; name one, or allow it with --any_interface",
                           what, address, host));
        fd = listen_at(a, &out->port);
    }
    if (fd < 0)
        TR_TRY(
            tr_fail(TR_USAGE, "%s %s: cannot listen at %s port %s: %s", what, address, host, service, strerror(errno)));
    out->fd = fd;
    (void)snprintf(out->host, sizeof out->host, a->ai_family == AF_INET6 ? "[%.60s]" : "%.60s", host);
out:
    if (a)
        freeaddrinfo(a);
    return st;
}
