/* agent_net.h - private to launch: authenticated links between agents. */
#ifndef TR_LAUNCH_AGENT_NET_H
#define TR_LAUNCH_AGENT_NET_H

#include "launch/agent.h"

enum { NET_VERSION = 1, NET_FRAME_MAX = 16 << 10 };
enum net_kind { NET_MSG, NET_KVS, NET_BARRIER, NET_RELEASE, NET_KINDS };

struct net_events {
    void *ctx;
    void (*up)(void *ctx, int link);   /* of tr_net_connect */
    void (*down)(void *ctx, int link); /* -1: tr_net_connect failed */
    void (*frame)(void *ctx, int link, int kind, int64_t generation, const void *p, size_t n);
    void (*refused)(void *ctx, const char *peer, const char *why, int64_t n_refused);
};

struct net;
enum tr_status tr_net_open(const char *addr, bool may_be_any, const unsigned char key[TR_SHA256_BYTES],
                           const struct net_events *on, struct net **out);
void tr_net_close(struct net *n); /* n may be NULL */
int tr_net_fd(const struct net *n);
const char *tr_net_addr(const struct net *n); /* where it listens */
void tr_net_serve(struct net *n);             /* does all work that is due, without waiting */
void tr_net_connect(struct net *n, const char *addr);
void tr_net_send(struct net *n, int link, int kind, int64_t generation, const void *p, size_t n_bytes);
void tr_net_close_link(struct net *n, int link);
void tr_net_drain(struct net *n, int64_t max_us); /* until all messages have left, or max_us have passed */
enum tr_status tr_net_local(const char *to, char out[ADDR_BYTES], bool *is_ours);

#endif
