/* The control plane on the wire: who has the key is heard, nobody else is, and nothing is believed before its MAC
 * (H1-H3). */
#include "launch/agent_net.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

struct side {
    struct net *net;
    int n_up, n_down, n_frames, n_refused, link;
    int kind;
    int64_t generation;
    size_t n_bytes;
    unsigned char bytes[NET_FRAME_MAX];
};

static void on_up(void *ctx, int link)
{
    struct side *s = ctx;
    s->n_up++;
    s->link = link;
}

static void on_down(void *ctx, int link)
{
    struct side *s = ctx;
    (void)link;
    s->n_down++;
}

static void on_frame(void *ctx, int link, int kind, int64_t generation, const void *p, size_t n)
{
    struct side *s = ctx;
    s->n_frames++;
    s->link = link;
    s->kind = kind;
    s->generation = generation;
    s->n_bytes = n;
    memcpy(s->bytes, p, n);
}

static void on_refused(void *ctx, const char *who, const char *why, int64_t n)
{
    struct side *s = ctx;
    assert_non_null(who);
    assert_non_null(why);
    s->n_refused = (int)n;
}

static void open_side(struct side *s, unsigned char key_byte)
{
    unsigned char key[TR_SHA256_BYTES];
    memset(s, 0, sizeof *s);
    memset(key, key_byte, sizeof key);
    const struct net_events on = { s, on_up, on_down, on_frame, on_refused };
    assert_int_equal(tr_net_open("127.0.0.1:0", false, key, &on, &s->net), TR_OK);
}

static void serve_ms(struct side *a, struct side *b, int ms)
{
    for (int i = 0; i < ms; i++) {
        tr_net_serve(a->net);
        if (b)
            tr_net_serve(b->net);
        usleep(1000);
    }
}

static int stranger(const struct side *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    a.sin_port = htons((uint16_t)strtol(strrchr(tr_net_addr(s->net), ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void who_has_the_key_is_heard(void **state)
{
    (void)state;
    static struct side a, b;
    unsigned char big[NET_FRAME_MAX];
    open_side(&a, 1);
    open_side(&b, 1);
    tr_net_connect(b.net, tr_net_addr(a.net));
    serve_ms(&a, &b, 50);
    assert_int_equal(b.n_up, 1);
    memset(big, 7, sizeof big);
    tr_net_send(b.net, b.link, NET_KVS, 5, big, sizeof big);
    serve_ms(&a, &b, 50);
    assert_int_equal(a.n_frames, 1);
    assert_int_equal(a.kind, NET_KVS);
    assert_int_equal(a.generation, 5);
    assert_int_equal(a.n_bytes, sizeof big);
    assert_memory_equal(a.bytes, big, sizeof big);
    tr_net_send(a.net, a.link, NET_RELEASE, 5, "", 0); /* and back */
    serve_ms(&a, &b, 50);
    assert_int_equal(b.n_frames, 1);
    tr_net_close_link(a.net, a.link);
    serve_ms(&a, &b, 50);
    assert_int_equal(b.n_down, 1);
    tr_net_close(a.net);
    tr_net_close(b.net);
}

static void another_key_is_refused_by_both(void **state)
{
    (void)state;
    static struct side a, b;
    open_side(&a, 1);
    open_side(&b, 2);
    tr_net_connect(b.net, tr_net_addr(a.net));
    serve_ms(&a, &b, 100);
    assert_int_equal(b.n_up, 0);
    assert_int_equal(b.n_down, 1);
    assert_int_equal(b.n_refused, 1); /* the client sees first that the server has no proof */
    assert_int_equal(a.n_frames, 0);
    tr_net_close(a.net);
    tr_net_close(b.net);
}

static void noise_is_closed_and_nothing_is_heard(void **state)
{
    (void)state;
    static struct side a;
    unsigned char noise[256];
    uint64_t x = 88172645463325252u;
    open_side(&a, 1);
    for (int i = 0; i < 200; i++) {
        int fd = stranger(&a);
        for (size_t k = 0; k < sizeof noise; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            noise[k] = (unsigned char)x;
        }
        if (i % 3 == 0)
            memcpy(noise, "TRIREME", 8);
        if (i % 6 == 0) /* a good hello, then frames without a proof */
            memcpy(noise + 56, (const unsigned char[]){ 1, 0, 2, 1, 0, 0, 0, 0 }, 8);
        (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        serve_ms(&a, NULL, 3);
        close(fd);
        serve_ms(&a, NULL, 1);
    }
    assert_int_equal(a.n_frames, 0);
    assert_true(a.n_refused > 0);
    tr_net_close(a.net);
}

/* No more than 16 of one address wait unproven, and none longer than two seconds. */
static void crowds_are_bounded_in_number_and_time(void **state)
{
    (void)state;
    static struct side a;
    int fds[40], n_open = 0;
    char byte;
    open_side(&a, 1);
    for (int i = 0; i < 40; i++) {
        fds[i] = stranger(&a);
        serve_ms(&a, NULL, 1);
    }
    for (int i = 0; i < 40; i++)
        n_open += recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0; /* 0: it was closed */
    assert_int_equal(n_open, 16);
    serve_ms(&a, NULL, 2300);
    for (int i = 0; i < 40; i++)
        assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), 0);
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    tr_net_close(a.net);
}

/* One that holds as many connections as it may, and opens another for each that is closed, delays no node. */
static void idle_connections_keep_no_node_out(void **state)
{
    (void)state;
    static struct side a, b;
    int fds[64];
    open_side(&a, 1);
    open_side(&b, 1);
    for (int i = 0; i < 32; i++) {
        fds[i] = stranger(&a);
        serve_ms(&a, NULL, 1);
    }
    tr_net_connect(b.net, tr_net_addr(a.net));
    for (int i = 32; i < 64; i++) {
        fds[i] = stranger(&a);
        serve_ms(&a, &b, 1);
    }
    assert_int_equal(b.n_up, 1);
    for (int i = 0; i < 64; i++)
        close(fds[i]);
    tr_net_close(a.net);
    tr_net_close(b.net);
}

static void every_interface_needs_a_word(void **state)
{
    (void)state;
    static struct side a;
    unsigned char key[TR_SHA256_BYTES] = { 0 };
    const struct net_events on = { &a, on_up, on_down, on_frame, on_refused };
    assert_int_equal(tr_net_open("0.0.0.0:0", false, key, &on, &a.net), TR_USAGE);
    assert_non_null(strstr(tr_error_text(), "--any-interface"));
    assert_int_equal(tr_net_open("nonsense", false, key, &on, &a.net), TR_USAGE);
    assert_int_equal(tr_net_open("0.0.0.0:0", true, key, &on, &a.net), TR_OK);
    tr_net_close(a.net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_the_key_is_heard),
        cmocka_unit_test(another_key_is_refused_by_both),
        cmocka_unit_test(noise_is_closed_and_nothing_is_heard),
        cmocka_unit_test(crowds_are_bounded_in_number_and_time),
        cmocka_unit_test(idle_connections_keep_no_node_out),
        cmocka_unit_test(every_interface_needs_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
