/* listen.c - where the server listens, whom it takes for this host, and its token (http_impl.h). */
#include "watch/http_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_PORT = 8765, PORTS_TRIED = 20, BACKLOG = 16 };

/* "127.0.0.1:80", "80", "[::1]:80", "localhost" into its two parts. */
static enum tr_status split_address(const char *text, char host[64], int *port)
{
    const char *colon = strrchr(text, ':'), *end;
    int64_t n = FIRST_PORT;
    bool is_port = text[0] != '\0' && strspn(text, "0123456789") == strlen(text), is_v6 = text[0] == '[';
    const char *number = is_port ? text : colon && (!is_v6 || colon[-1] == ']') ? colon + 1 : NULL;
    if (number && tr_parse_int(number, 0, 65535, &n) != TR_OK)
        return tr_fail(TR_USAGE, "http %s: write [ADDRESS:]PORT, a port from 0 to 65535", text);
    end = is_port ? text : number ? number - 1 : text + strlen(text);
    if (is_v6 && (end == text || end[-1] != ']'))
        return tr_fail(TR_USAGE, "http %s: write [ADDRESS]:PORT for an address of IPv6", text);
    size_t n_host = (size_t)(end - text) - (is_v6 ? 2 : 0);
    if (n_host >= 64)
        return tr_fail(TR_USAGE, "http %s: the address is too long", text);
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

enum tr_status tr_listen(const char *address, bool any_interface, struct listener *out)
{
    enum tr_status st = TR_OK;
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *a = NULL;
    bool is_auto = strcmp(address, "auto") == 0;
    char host[64], service[8];
    int port = 0, fd = -1;
    TR_TRY(split_address(is_auto ? "127.0.0.1" : address, host, &port));
    for (int i = 0; fd < 0 && i < (is_auto ? PORTS_TRIED : 1); i++) {
        if (a)
            freeaddrinfo(a);
        a = NULL;
        (void)snprintf(service, sizeof service, "%d", port + i);
        if (getaddrinfo(host, service, &hints, &a) != 0)
            TR_TRY(tr_fail(TR_USAGE, "http %s: %s is no numeric address; write 127.0.0.1:8765 or [::1]:8765", address,
                           host));
        if (means_all(a->ai_addr) && !any_interface)
            TR_TRY(tr_fail(TR_USAGE,
                           "http %s: %s means every interface of this host; name one, or allow it with --any_interface",
                           address, host));
        fd = listen_at(a, &out->port);
    }
    if (fd < 0)
        TR_TRY(tr_fail(TR_USAGE, "http %s: cannot listen at %s port %s: %s", address, host, service, strerror(errno)));
    out->fd = fd;
    (void)snprintf(out->host, sizeof out->host, a->ai_family == AF_INET6 ? "[%.60s]" : "%.60s", host);
out:
    if (a)
        freeaddrinfo(a);
    return st;
}

bool tr_host_is_ours(const char *host)
{
    char name[256], here[65] = "";
    unsigned char unused[16];
    bool is_v6 = host != NULL && host[0] == '[';
    size_t n = host == NULL ? 0 : is_v6 ? strcspn(host, "]") : strcspn(host, ":");
    if (n == 0 || n >= sizeof name || (is_v6 && host[n] != ']'))
        return false;
    memcpy(name, host + is_v6, n - is_v6);
    name[n - is_v6] = '\0';
    const char *rest = host + n + is_v6; /* nothing, or a port: a tunnel may have any */
    if (*rest != '\0' && (*rest != ':' || strspn(rest + 1, "0123456789") != strlen(rest + 1)))
        return false;
    (void)gethostname(here, sizeof here - 1);
    return inet_pton(is_v6 ? AF_INET6 : AF_INET, name, unused) == 1 ||
           (!is_v6 && (strcmp(name, "localhost") == 0 || (here[0] && strcmp(name, here) == 0)));
}

enum tr_status tr_token_make(char out[HTTP_TOKEN + 1])
{
    unsigned char bits[HTTP_TOKEN / 2];
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return tr_fail(TR_IO, "no random numbers for a token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bits[i]);
    return TR_OK;
}

bool tr_token_is(const char *token, const char *given)
{
    return given != NULL && strlen(given) == HTTP_TOKEN && tr_same_bytes(token, given, HTTP_TOKEN);
}
