/* token.c - whom the server takes for this host, and its token (http_impl.h). */
#include "watch/http_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

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
        return tr_fail(TR_IO, "the system gave no random numbers for the access token of the page: %s",
                       strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bits[i]);
    return TR_OK;
}

bool tr_token_is(const char *token, const char *given)
{
    return given != NULL && strlen(given) == HTTP_TOKEN && tr_same_bytes(token, given, HTTP_TOKEN);
}
