/* http_impl.h - what the server's files share: the address it listens on, and the doors that do not depend on the
 * library. */
#ifndef TR_WATCH_HTTP_IMPL_H
#define TR_WATCH_HTTP_IMPL_H

#include "watch/watch_impl.h"

enum { HTTP_TOKEN = 64 }; /* hex digits */

struct listener {
    int fd, port;
    char host[64]; /* as it stands in a URL: "127.0.0.1", "[::1]" */
};
/* A socket that listens on [ADDR:]PORT; "auto": on loopback, at the first free port from 8765 on; port 0: any. */
enum tr_status tr_listen(const char *address, bool any_interface, struct listener *out);

/* A Host header that a page of another name cannot have sent: a numeric address, localhost, or the name of this host.
 * A name that was bound to another address after the page was loaded (DNS rebinding) is none of them. */
bool tr_host_is_ours(const char *host);

enum tr_status tr_token_make(char out[HTTP_TOKEN + 1]);
bool tr_token_is(const char *token, const char *given); /* NULL: it was not given */

#endif
