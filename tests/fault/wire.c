/* wire.c - a cable between two network namespaces with faults drawn from a seed (T6). Built by t6_wire.sh.
 *
 * usage: wire NS_A NS_B SEED SPEC[;SPEC...]; SPEC is a list of name=number: loss, dup, reorder, reset (per 10,000
 * packets), delay, jitter (ms), kbps (of each way), from, until (ms: all these hold then), cut, cut_ms (ms: when, how
 * long), way (1: only A to B is cut, 2: only B to A, 3: both), for (ms: then comes the next SPEC; after the last the
 * wire is good). It makes tun0 in both namespaces, says "ready" and the number of each SPEC that begins, and forwards
 * until killed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { LOSS, DUP, REORDER, RESET, DELAY, JITTER, KBPS, FROM, UNTIL, CUT, CUT_MS, WAY, FOR, N_NUMBERS };
enum { SPECS_MAX = 64, HELD = 512, MTU = 2048 };

static const char *const names[N_NUMBERS] = { "loss", "dup",   "reorder", "reset",  "delay", "jitter", "kbps",
                                              "from", "until", "cut",     "cut_ms", "way",   "for" };
static long specs[SPECS_MAX][N_NUMBERS], *spec = specs[0];
static int n_specs;
static int64_t free_us[2]; /* when a slow wire is done with what it has */
static uint64_t state;
static int fds[2];

static struct held {
    int64_t due_us;
    int to;
    size_t n;
    unsigned char p[MTU];
} held[HELD];

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint64_t roll(void)
{
    uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int chance(int what)
{
    return (long)(roll() % 10000) < spec[what];
}

static int open_tun(const char *ns)
{
    char path[256];
    struct ifreq r = { .ifr_flags = IFF_TUN | IFF_NO_PI };
    snprintf(path, sizeof path, "/var/run/netns/%s", ns);
    int ns_fd = open(path, O_RDONLY), fd;
    if (ns_fd < 0 || setns(ns_fd, CLONE_NEWNET) != 0)
        return -1;
    close(ns_fd);
    strncpy(r.ifr_name, "tun0", sizeof r.ifr_name - 1);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    return fd >= 0 && ioctl(fd, TUNSETIFF, &r) == 0 ? fd : -1;
}

static uint32_t add16(const unsigned char *p, size_t n, uint32_t sum)
{
    for (size_t i = 0; i + 1 < n; i += 2)
        sum += (uint32_t)p[i] << 8 | p[i + 1];
    return n % 2 ? sum + ((uint32_t)p[n - 1] << 8) : sum;
}

static void put_sum(unsigned char *at, uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    at[0] = (unsigned char)(~sum >> 8);
    at[1] = (unsigned char)~sum;
}

/* A TCP segment becomes a reset of its connection, in its window. */
static size_t make_reset(unsigned char *p, size_t n)
{
    size_t ip = (size_t)(p[0] & 15) * 4;
    if (n < ip + 20 || p[0] >> 4 != 4 || p[9] != 6)
        return n;
    n = ip + 20;
    p[2] = (unsigned char)(n >> 8);
    p[3] = (unsigned char)n;
    p[10] = p[11] = 0;
    put_sum(p + 10, add16(p, ip, 0));
    unsigned char *tcp = p + ip;
    tcp[12] = 5 << 4;
    tcp[13] = 0x14;
    tcp[16] = tcp[17] = tcp[18] = tcp[19] = 0;
    put_sum(tcp + 16, add16(tcp, 20, add16(p + 12, 8, 6 + 20)));
    return n;
}

static void hold(int to, const unsigned char *p, size_t n, int64_t due_us)
{
    for (int i = 0; i < HELD; i++)
        if (!held[i].n) {
            held[i].due_us = due_us;
            held[i].to = to;
            held[i].n = n;
            memcpy(held[i].p, p, n);
            return;
        }
}

static void read_specs(const char *w)
{
    for (n_specs = 1; *w; w += strcspn(w, ",;")) {
        if (*w == ';' && n_specs < SPECS_MAX - 1)
            n_specs++;
        w += *w == ',' || *w == ';';
        for (int i = 0; i < N_NUMBERS; i++)
            if (strncmp(w, names[i], strlen(names[i])) == 0 && w[strlen(names[i])] == '=')
                specs[n_specs - 1][i] = strtol(w + strlen(names[i]) + 1, NULL, 10);
    }
}

static void carry(int from, unsigned char *p, size_t n, int64_t at_us)
{
    int64_t ms = at_us / 1000, now = now_us();
    int bad = ms >= spec[FROM] && (!spec[UNTIL] || ms < spec[UNTIL]);
    if (spec[CUT_MS] && ms >= spec[CUT] && ms < spec[CUT] + spec[CUT_MS] && spec[WAY] & (from ? 2 : 1))
        return;
    if (bad && chance(LOSS))
        return;
    if (bad && chance(RESET))
        n = make_reset(p, n);
    int64_t due = now;
    if (bad)
        due += spec[DELAY] * 1000 + (spec[JITTER] ? (int64_t)(roll() % (uint64_t)(spec[JITTER] * 1000)) : 0);
    if (bad && chance(REORDER))
        due += 20000;
    if (bad && spec[KBPS]) {
        free_us[from] = (free_us[from] > now ? free_us[from] : now) + (int64_t)n * 8000 / spec[KBPS];
        due += free_us[from] - now;
    }
    hold(!from, p, n, due);
    if (bad && chance(DUP))
        hold(!from, p, n, due + 1000);
}

int main(int argc, char **argv)
{
    static unsigned char p[MTU];
    if (argc != 5)
        return 2;
    state = strtoull(argv[3], NULL, 10);
    read_specs(argv[4]);
    for (int i = 0; i < 2; i++)
        if ((fds[i] = open_tun(argv[1 + i])) < 0) {
            perror("tun");
            return 1;
        }
    puts("ready");
    fflush(stdout);
    int64_t start = now_us();
    for (;;) {
        struct pollfd q[2] = { { .fd = fds[0], .events = POLLIN }, { .fd = fds[1], .events = POLLIN } };
        poll(q, 2, 1);
        if (spec < specs[n_specs] && spec[FOR] && now_us() - start >= spec[FOR] * 1000) {
            start += spec[FOR] * 1000;
            spec += N_NUMBERS;
            printf("%d\n", (int)((spec - specs[0]) / N_NUMBERS));
            fflush(stdout);
        }
        for (int i = 0; i < 2; i++)
            for (ssize_t n; (n = read(fds[i], p, sizeof p)) > 0;)
                carry(i, p, (size_t)n, now_us() - start);
        for (int64_t now = now_us();;) { /* in the order they are due */
            struct held *next = NULL;
            for (int i = 0; i < HELD; i++)
                if (held[i].n && held[i].due_us <= now && (!next || held[i].due_us < next->due_us))
                    next = &held[i];
            if (!next)
                break;
            (void)!write(fds[next->to], next->p, next->n);
            next->n = 0;
        }
    }
}
