/* http_impl.h - what the server's files share: the doors that do not depend on the
 * library. */
#ifndef TR_WATCH_HTTP_IMPL_H
#define TR_WATCH_HTTP_IMPL_H

#include "watch/watch_impl.h"

enum { HTTP_TOKEN = 64 }; /* hex digits */

/* A Host header that a page of another name cannot have sent: a numeric address, localhost, or the name of this host.
 * A name that was bound to another address after the page was loaded (DNS rebinding) is none of them. */
bool tr_host_is_ours(const char *host);

enum tr_status tr_token_make(char out[HTTP_TOKEN + 1]);
bool tr_token_is(const char *token, const char *given); /* NULL: it was not given */

#endif
