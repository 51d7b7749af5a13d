/* listen.h - a socket that listens where a user says, on one interface unless every one is allowed. */
#ifndef TR_BASE_LISTEN_H
#define TR_BASE_LISTEN_H

#include "base/status.h"

struct tr_listener {
    int fd, port;
    char host[64]; /* as it stands in a URL: "127.0.0.1", "[::1]" */
};
/* A socket that listens on [ADDR:]PORT, on loopback where there is no ADDR; "auto": at the first free port from 8765
 * on; port 0: any. what: the option, for messages. */
enum tr_status tr_listen(const char *what, const char *address, bool any_interface, struct tr_listener *out);

#endif
