/* shm_join.c - how the ranks of one host meet: rank 0 listens, the others say who they are, all get the segment.
 *
 * The meeting place is an abstract Unix socket named after user, job and generation; it and the memfd vanish with the
 * processes, so neither kill -9 at any instant nor an older generation leaves anything that could be mistaken. A rank
 * that dies before all have come closes its connection, and everybody hears of it at once. Rejected: shm_open (a name
 * stays behind if all are killed before the unlink, and containers give /dev/shm 64 MB); a file that carries the
 * address (the same leftovers).
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/banned.h"

#define MAGIC    UINT64_C(0x31306d6873725421) /* "!Trshm01" */
#define HEAP_PER ((size_t)64 << 20)           /* a rank, of addresses: pages come when touched */

enum { RETRY_US = 2000, GRACE_US = 1000 * 1000, BIG_PAGE = 2 << 20 };

struct shm_hello {
    uint64_t magic;
    int32_t rank, size;
    int64_t generation;
    uint64_t arena_bytes;
};

struct shm_welcome {
    uint64_t magic;
    int32_t status, unused; /* TR_OK: the segment comes with it */
    uint64_t total_bytes;
    char text[TR_FRONT_TEXT_MAX];
};

struct shm_guest {
    int fd; /* -1: not here yet, or rank 0 itself */
    int32_t pid;
    uint64_t arena_bytes;
};

static socklen_t place_of(const struct tr_comm_env *env, struct sockaddr_un *a)
{
    char hex[33];
    tr_hash_hex(tr_hash(env->job, strlen(env->job)), hex);
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "trireme-%u-%s-%" PRId64, (unsigned)geteuid(), hex,
                     env->generation);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The kernel's word on who is at the other end; false: another user's process. */
static bool is_ours(int fd, int32_t *pid)
{
    struct ucred who;
    socklen_t n = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0 || who.uid != geteuid())
        return false;
    *pid = who.pid;
    return true;
}

static void send_welcome(int fd, const struct shm_welcome *hi, int memory)
{
    struct iovec iov = { .iov_base = (void *)(uintptr_t)hi, .iov_len = sizeof *hi };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (memory >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof memory);
        memcpy(CMSG_DATA(c), &memory, sizeof memory);
    }
    (void)!sendmsg(fd, &m, MSG_NOSIGNAL); /* one that left is found missing by the first barrier */
}

static enum tr_status receive_welcome(int fd, struct shm_welcome *hi, int *memory)
{
    struct iovec iov = { .iov_base = hi, .iov_len = sizeof *hi };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *memory))
        memcpy(memory, CMSG_DATA(c), sizeof *memory);
    if (n != (ssize_t)sizeof *hi || hi->magic != MAGIC)
        return tr_fail(TR_PEER, "rank 0 left before all ranks had joined");
    if (hi->status != TR_OK) {
        hi->text[sizeof hi->text - 1] = 0;
        return tr_fail((unsigned)hi->status < TR_STATUS_COUNT ? (enum tr_status)hi->status : TR_PEER, "%s", hi->text);
    }
    return *memory >= 0 ? TR_OK : tr_fail(TR_PEER, "rank 0 sent no memory; is the limit of open files reached?");
}

/* `total` bytes on a huge page's border, so that the kernel can use them. */
static enum tr_status map_segment(int memory, size_t total, struct shm_header **out)
{
    char *room = mmap(NULL, total + BIG_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return tr_fail(TR_NOMEM, "no %zu bytes of addresses for the shared segment: %s", total, strerror(errno));
    size_t skip = (BIG_PAGE - (uintptr_t)room % BIG_PAGE) % BIG_PAGE;
    void *p = mmap(room + skip, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory, 0);
    int err = errno;
    if (skip)
        munmap(room, skip);
    munmap(room + skip + total, BIG_PAGE - skip);
    if (p == MAP_FAILED) {
        munmap(room + skip, total);
        return tr_fail(TR_NOMEM, "shared segment of %zu bytes: %s", total, strerror(err));
    }
    *out = p;
    return TR_OK;
}

static void fill_header(struct shm_header *h, const struct tr_comm_env *env, const struct shm_guest *guests,
                        size_t total)
{
    size_t heap = tr_round_up(sizeof *h + (size_t)env->size * sizeof h->slots[0], BIG_PAGE);
    size_t arena = heap + HEAP_PER * (size_t)(env->size + 1);
    h->magic = MAGIC;
    h->total_bytes = total;
    h->generation = env->generation;
    h->size = env->size;
    h->pid = getpid();
    h->base = h;
    h->heap_end = arena;
    for (int r = 0; r < env->size; r++) {
        h->n_local += guests[r].pid == h->pid;
        h->slots[r].pid = guests[r].pid;
        h->slots[r].arena_at = arena;
        h->slots[r].arena_bytes = guests[r].arena_bytes;
        arena += tr_round_up(guests[r].arena_bytes, BIG_PAGE);
    }
    /* The world's channel is the first thing on the heap; its pairs' table behind it. */
    size_t n = (size_t)env->size, seats = n * sizeof(struct shm_seat);
    h->groups[0].n = env->size;
    h->groups[0].seats_at = heap;
    h->groups[0].pairs_at = heap + seats;
    atomic_store(&h->groups[0].n_open, env->size);
    atomic_store(&h->heap_next, tr_round_up(heap + seats + n * n * sizeof(uint64_t), 4096));
}

static enum tr_status make_segment(const struct tr_comm_env *env, const struct shm_guest *guests, int *memory,
                                   struct shm_header **out)
{
    size_t n = (size_t)env->size;
    size_t total = tr_round_up(sizeof(struct shm_header) + n * sizeof(struct shm_slot), BIG_PAGE) + HEAP_PER * (n + 1);
    for (size_t r = 0; r < n; r++)
        if (guests[r].arena_bytes > SIZE_MAX / 4 ||
            !tr_add_size(total, tr_round_up(guests[r].arena_bytes, BIG_PAGE), &total) || total > INT64_MAX / 2)
            return tr_fail(TR_USAGE, "the arenas of %zu ranks do not fit in any memory", n);
    *memory = memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*memory < 0 || ftruncate(*memory, (off_t)total) != 0)
        return tr_fail(TR_NOMEM, "shared segment of %zu bytes: %s%s", total, strerror(errno),
                       errno == EFBIG ? "; raise the limit of file sizes (ulimit -f)" : "");
    (void)fcntl(*memory, F_ADD_SEALS, F_SEAL_SHRINK); /* nobody can cut it under the others */
    enum tr_status st = map_segment(*memory, total, out);
    if (st == TR_OK)
        fill_header(*out, env, guests, total);
    return st;
}

/* The next connection's hello; -1: it is none of ours, and closed. */
static int hear(int listener, struct shm_hello *he, int32_t *pid)
{
    struct timeval second = { .tv_sec = 1 };
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    if (is_ours(fd, pid) && recv(fd, he, sizeof *he, 0) == (ssize_t)sizeof *he && he->magic == MAGIC)
        return fd;
    close(fd);
    return -1;
}

static struct shm_welcome refusal(enum tr_status st)
{
    struct shm_welcome no = { .magic = MAGIC, .status = (int32_t)st };
    (void)snprintf(no.text, sizeof no.text, "%s", tr_error_text());
    return no;
}

/* Seats the guest, or refuses it, which ends the round for all. */
static enum tr_status admit(int fd, const struct shm_hello *he, int32_t pid, const struct tr_comm_env *env,
                            struct shm_guest *guests)
{
    enum tr_status st = TR_OK;
    if (he->size != env->size || he->generation != env->generation || he->rank < 0 || he->rank >= env->size)
        st = tr_fail(TR_USAGE,
                     "pid %d came as rank %d of %d (generation %" PRId64 "), rank 0 (pid %d) was started for %d ranks "
                     "(generation %" PRId64 ")",
                     pid, he->rank, he->size, he->generation, getpid(), env->size, env->generation);
    else if (he->rank == 0 || guests[he->rank].fd >= 0)
        st = tr_fail(TR_USAGE, "rank %d was started twice: pid %d and pid %d", he->rank, guests[he->rank].pid, pid);
    if (st == TR_OK) {
        guests[he->rank] = (struct shm_guest){ .fd = fd, .pid = pid, .arena_bytes = he->arena_bytes };
        return TR_OK;
    }
    struct shm_welcome no = refusal(st);
    send_welcome(fd, &no, -1);
    close(fd);
    return st;
}

/* The round failed: those who come now are told why, rather than left to find nobody. */
static void turn_away(const struct tr_comm_env *env, int listener, const struct shm_welcome *no, int n_told)
{
    int64_t until = tr_clock_us() + GRACE_US;
    while (n_told < env->size - 1 && tr_clock_us() < until) {
        struct pollfd p = { .fd = listener, .events = POLLIN };
        struct shm_hello he;
        int32_t pid;
        int fd = poll(&p, 1, 100) > 0 ? hear(listener, &he, &pid) : -1;
        if (fd < 0)
            continue;
        send_welcome(fd, no, -1);
        close(fd);
        n_told++;
    }
}

static enum tr_status not_here(const struct tr_comm_env *env, const struct shm_guest *guests)
{
    struct tr_str list = { 0 };
    for (int r = 1; r < env->size; r++)
        if (guests[r].fd < 0)
            tr_str_addf(&list, "%s%d", list.n ? ", " : "", r);
    enum tr_status st = tr_fail(TR_TIMEOUT, "rank %s of job %s did not join within %.1f s",
                                tr_str_ok(&list) ? list.p : "?", env->job, (double)env->timeout_us * 1e-6);
    tr_str_release(&list);
    return st;
}

/* Until all are here, or one is missed. `fds` has room for size entries; entry 0 is the listener. */
static enum tr_status receive_guests(const struct tr_comm_env *env, struct shm_guest *guests, struct pollfd *fds)
{
    int64_t until = tr_clock_us() + env->timeout_us;
    for (int n_here = 1; n_here < env->size;) {
        for (int r = 1; r < env->size; r++)
            fds[r] = (struct pollfd){ .fd = guests[r].fd, .events = POLLIN };
        int64_t left_us = until - tr_clock_us();
        if (left_us <= 0)
            return not_here(env, guests);
        if (poll(fds, (nfds_t)env->size, (int)tr_min64(left_us / 1000 + 1, 1000)) <= 0)
            continue;
        for (int r = 1; r < env->size; r++)
            if (fds[r].revents) /* they have nothing to say until we answer: this one is gone */
                return tr_fail(TR_PEER, "rank %d (pid %d) left before all ranks had joined", r, guests[r].pid);
        struct shm_hello he;
        int32_t pid;
        int fd = fds[0].revents ? hear(fds[0].fd, &he, &pid) : -1;
        enum tr_status st = fd >= 0 ? admit(fd, &he, pid, env, guests) : TR_OK;
        if (st != TR_OK)
            return st;
        n_here += fd >= 0;
    }
    return TR_OK;
}

static enum tr_status listen_at(const struct tr_comm_env *env, int *out)
{
    struct sockaddr_un a;
    socklen_t n = place_of(env, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, env->size) == 0) {
        *out = fd;
        return TR_OK;
    }
    int err = errno;
    if (fd >= 0)
        close(fd);
    if (err == EADDRINUSE)
        return tr_fail(TR_USAGE, "job %s generation %" PRId64 " has a rank 0 already; give this job another name",
                       env->job, env->generation);
    return tr_fail(TR_IO, "job %s: cannot listen: %s", env->job, strerror(err));
}

static enum tr_status host_all(const struct tr_comm_env *env, struct shm_header **seg)
{
    enum tr_status st = TR_OK;
    int memory = -1;
    size_t n = (size_t)env->size;
    struct shm_guest *guests = calloc(n, sizeof *guests);
    struct pollfd *fds = calloc(n, sizeof *fds);
    if (!guests || !fds) {
        st = tr_fail(TR_NOMEM, "no memory for %zu ranks", n);
        goto out;
    }
    fds[0] = (struct pollfd){ .fd = -1, .events = POLLIN };
    for (size_t r = 0; r < n; r++)
        guests[r] = (struct shm_guest){ .fd = -1, .pid = getpid(), .arena_bytes = env->arena_bytes };
    TR_TRY(tr_failpoint("join.before_listen"));
    TR_TRY(listen_at(env, &fds[0].fd));
    TR_TRY(tr_failpoint("join.after_listen"));
    TR_TRY(receive_guests(env, guests, fds));
    TR_TRY(tr_failpoint("join.all_here"));
    TR_TRY(make_segment(env, guests, &memory, seg));
    TR_TRY(tr_failpoint("join.has_segment"));
out:
    if (guests && fds) {
        struct shm_welcome hi = st == TR_OK ? (struct shm_welcome){ .magic = MAGIC } : refusal(st);
        int n_told = st == TR_USAGE; /* the one that did not fit */
        hi.total_bytes = st == TR_OK ? (*seg)->total_bytes : 0;
        for (size_t r = 1; r < n; r++)
            if (guests[r].fd >= 0) {
                send_welcome(guests[r].fd, &hi, memory);
                close(guests[r].fd);
                n_told++;
            }
        if (st != TR_OK && st != TR_TIMEOUT && fds[0].fd >= 0) /* who is later than the bound finds out by himself */
            turn_away(env, fds[0].fd, &hi, n_told);
    }
    if (memory >= 0)
        close(memory);
    if (fds && fds[0].fd >= 0)
        close(fds[0].fd);
    free(fds);
    free(guests);
    return st;
}

static enum tr_status reach_rank_0(const struct tr_comm_env *env, int *out)
{
    struct sockaddr_un a;
    socklen_t n = place_of(env, &a);
    int64_t until = tr_clock_us() + env->timeout_us;
    for (;;) {
        int32_t pid;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
            return tr_fail(TR_IO, "no socket: %s", strerror(errno));
        *out = fd;
        if (connect(fd, (struct sockaddr *)&a, n) == 0)
            return is_ours(fd, &pid) ? TR_OK : tr_fail(TR_IO, "another user holds the name of job %s", env->job);
        close(fd);
        *out = -1;
        if (tr_clock_us() > until)
            return tr_fail(TR_TIMEOUT, "rank 0 of job %s did not start within %.1f s", env->job,
                           (double)env->timeout_us * 1e-6);
        usleep(RETRY_US);
    }
}

static enum tr_status join_rank_0(const struct tr_comm_env *env, struct shm_header **seg, bool *is_local)
{
    enum tr_status st = TR_OK;
    int fd = -1, memory = -1;
    struct shm_welcome hi = { 0 };
    struct shm_hello me = { .magic = MAGIC,
                            .rank = env->rank,
                            .size = env->size,
                            .generation = env->generation,
                            .arena_bytes = env->arena_bytes };
    TR_TRY(reach_rank_0(env, &fd));
    TR_TRY(tr_failpoint("join.before_hello"));
    (void)!send(fd, &me, sizeof me, MSG_NOSIGNAL); /* if rank 0 left, the next call says so */
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int64_t until = tr_clock_us() + env->timeout_us + GRACE_US; /* rank 0 runs out of patience first, and says why */
    while (poll(&p, 1, 100) <= 0)
        if (tr_clock_us() > until) {
            st = tr_fail(TR_TIMEOUT, "rank 0 of job %s did not answer", env->job);
            goto out;
        }
    TR_TRY(tr_failpoint("join.after_hello"));
    TR_TRY(receive_welcome(fd, &hi, &memory));
    TR_TRY(tr_failpoint("join.welcomed"));
    TR_TRY(map_segment(memory, hi.total_bytes, seg));
    if ((*seg)->pid == getpid()) { /* a thread beside rank 0 */
        struct shm_header *shared = (*seg)->base;
        munmap(*seg, hi.total_bytes);
        *seg = shared;
        *is_local = true;
    }
out:
    if (memory >= 0)
        close(memory);
    if (fd >= 0)
        close(fd);
    return st;
}

enum tr_status tr_shm_join(const struct tr_comm_env *env, struct shm_header **seg, bool *is_local)
{
    *is_local = env->rank == 0;
    return env->rank == 0 ? host_all(env, seg) : join_rank_0(env, seg, is_local);
}

void tr_shm_unmap(struct shm_header *h, bool is_local)
{
    if (!is_local || atomic_fetch_sub(&h->n_local, 1) == 1)
        munmap(h, h->total_bytes);
}
