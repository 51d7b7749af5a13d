/* shm_join.c - how the ranks of one host join: rank 0 listens, the others send their rank, all receive the segment.
 *
 * Rank 0 listens on an abstract Unix socket named after user, job and generation. The socket and the memfd vanish with
 * the processes, so neither kill -9 at any instant nor an older generation leaves anything that could be mistaken. A
 * rank that dies before all have joined closes its connection, and rank 0 reports it to all at once. Rejected: shm_open
 * (a name stays behind if all are killed before the unlink, and containers give /dev/shm 64 MB); a file that holds the
 * address (the same leftovers).
 */
#include "comm/shm_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/banned.h"

#define MAGIC    UINT64_C(0x31306d6873725421) /* "!Trshm01" */
#define HEAP_PER ((size_t)64 << 20)           /* virtual memory for each rank; pages are faulted in on first touch */

enum { RETRY_US = 2000, GRACE_US = 1000 * 1000, BIG_PAGE = 2 << 20 };

struct shm_hello {
    uint64_t magic;
    int32_t rank, size;
    int64_t generation;
    uint64_t arena_bytes;
};

struct shm_admission {
    uint64_t magic;
    int32_t status, unused; /* TR_OK: the descriptor of the segment comes with it */
    uint64_t total_bytes;
    char text[TR_FRONT_TEXT_MAX];
};

struct shm_applicant {
    int fd; /* -1: it has not connected yet, or is rank 0 itself */
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

/* Reads the pid of the other end from the kernel; false: it is another user's process. */
static bool is_ours(int fd, int32_t *pid)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0 || peer.uid != geteuid())
        return false;
    *pid = peer.pid;
    return true;
}

static void send_admission(int fd, const struct shm_admission *hi, int memory)
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
    (void)!sendmsg(fd, &m, MSG_NOSIGNAL); /* a rank that has left is missing in the first barrier, which names it */
}

static enum tr_status receive_admission(int fd, struct shm_admission *hi, int *memory)
{
    struct iovec iov = { .iov_base = hi, .iov_len = sizeof *hi };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *memory))
        memcpy(memory, CMSG_DATA(c), sizeof *memory);
    if (n != (ssize_t)sizeof *hi || hi->magic != MAGIC)
        return tr_fail(TR_PEER, "rank 0 left before all ranks had joined; see its own error");
    if (hi->status != TR_OK) {
        hi->text[sizeof hi->text - 1] = 0;
        return tr_fail((unsigned)hi->status < TR_STATUS_COUNT ? (enum tr_status)hi->status : TR_PEER, "%s", hi->text);
    }
    return *memory >= 0
               ? TR_OK
               : tr_fail(TR_PEER, "rank 0 sent no shared segment; is the limit of open files reached (ulimit -n)?");
}

/* Maps `total` bytes at a multiple of the huge page size, so that the kernel can use huge pages. */
static enum tr_status map_segment(int memory, size_t total, struct shm_header **out)
{
    char *room = mmap(NULL, total + BIG_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return tr_fail(TR_NOMEM, "no %zu bytes of virtual memory for the shared segment: %s; raise ulimit -v", total,
                       strerror(errno));
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

static void fill_header(struct shm_header *h, const struct tr_comm_env *env, const struct shm_applicant *ranks,
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
        h->n_local += ranks[r].pid == h->pid;
        h->slots[r].pid = ranks[r].pid;
        h->slots[r].arena_at = arena;
        h->slots[r].arena_bytes = ranks[r].arena_bytes;
        arena += tr_round_up(ranks[r].arena_bytes, BIG_PAGE);
    }
    /* The seats of the world are the first thing on the heap; the table of its pairs follows. */
    size_t n = (size_t)env->size, seats = n * sizeof(struct shm_seat);
    h->groups[0].n = env->size;
    h->groups[0].seats_at = heap;
    h->groups[0].pairs_at = heap + seats;
    atomic_store(&h->groups[0].n_open, env->size);
    atomic_store(&h->heap_next, tr_round_up(heap + seats + n * n * sizeof(uint64_t), 4096));
}

static enum tr_status make_segment(const struct tr_comm_env *env, const struct shm_applicant *ranks, int *memory,
                                   struct shm_header **out)
{
    size_t n = (size_t)env->size;
    size_t total = tr_round_up(sizeof(struct shm_header) + n * sizeof(struct shm_slot), BIG_PAGE) + HEAP_PER * (n + 1);
    for (size_t r = 0; r < n; r++)
        if (ranks[r].arena_bytes > SIZE_MAX / 4 ||
            !tr_add_size(total, tr_round_up(ranks[r].arena_bytes, BIG_PAGE), &total) || total > INT64_MAX / 2)
            return tr_fail(TR_USAGE, "the arenas of %zu ranks together are larger than any memory", n);
    *memory = memfd_create("trireme", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*memory < 0 || ftruncate(*memory, (off_t)total) != 0)
        return tr_fail(TR_NOMEM, "shared segment of %zu bytes: %s%s", total, strerror(errno),
                       errno == EFBIG ? "; raise the limit of file sizes (ulimit -f)" : "");
    (void)fcntl(*memory, F_ADD_SEALS, F_SEAL_SHRINK); /* no process can shrink it while others use it */
    enum tr_status st = map_segment(*memory, total, out);
    if (st == TR_OK)
        fill_header(*out, env, ranks, total);
    return st;
}

/* Accepts the next connection and reads its hello; -1: it is no rank of ours, and is closed. */
static int accept_hello(int listener, struct shm_hello *he, int32_t *pid)
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

static struct shm_admission refusal(enum tr_status st)
{
    struct shm_admission no = { .magic = MAGIC, .status = (int32_t)st };
    (void)snprintf(no.text, sizeof no.text, "%s", tr_error_text());
    return no;
}

/* Admits the rank, or refuses it, which ends the start for all ranks. */
static enum tr_status admit(int fd, const struct shm_hello *he, int32_t pid, const struct tr_comm_env *env,
                            struct shm_applicant *ranks)
{
    enum tr_status st = TR_OK;
    if (he->size != env->size || he->generation != env->generation || he->rank < 0 || he->rank >= env->size)
        st = tr_fail(TR_USAGE,
                     "pid %d joined as rank %d of %d (generation %" PRId64
                     "), but rank 0 (pid %d) was started for %d ranks "
                     "(generation %" PRId64 ")",
                     pid, he->rank, he->size, he->generation, getpid(), env->size, env->generation);
    else if (he->rank == 0 || ranks[he->rank].fd >= 0)
        st = tr_fail(TR_USAGE, "rank %d was started twice, as pid %d and pid %d; start each rank once", he->rank,
                     ranks[he->rank].pid, pid);
    if (st == TR_OK) {
        ranks[he->rank] = (struct shm_applicant){ .fd = fd, .pid = pid, .arena_bytes = he->arena_bytes };
        return TR_OK;
    }
    struct shm_admission no = refusal(st);
    send_admission(fd, &no, -1);
    close(fd);
    return st;
}

/* The start has failed: ranks that connect now are sent the cause, else they would find no rank 0. */
static void turn_away(const struct tr_comm_env *env, int listener, const struct shm_admission *no, int n_refused)
{
    int64_t until = tr_clock_us() + GRACE_US;
    while (n_refused < env->size - 1 && tr_clock_us() < until) {
        struct pollfd p = { .fd = listener, .events = POLLIN };
        struct shm_hello he;
        int32_t pid;
        int fd = poll(&p, 1, 100) > 0 ? accept_hello(listener, &he, &pid) : -1;
        if (fd < 0)
            continue;
        send_admission(fd, no, -1);
        close(fd);
        n_refused++;
    }
}

static enum tr_status raise_missing(const struct tr_comm_env *env, const struct shm_applicant *ranks)
{
    struct tr_str list = { 0 };
    for (int r = 1; r < env->size; r++)
        if (ranks[r].fd < 0)
            tr_str_addf(&list, "%s%d", list.n ? ", " : "", r);
    enum tr_status st = tr_fail(TR_TIMEOUT, "rank %s of job %s did not join within %.1f s",
                                tr_str_ok(&list) ? list.p : "?", env->job, (double)env->timeout_us * 1e-6);
    tr_str_release(&list);
    return st;
}

/* Waits until all ranks have connected, or one is missing. `fds` has room for size entries; entry 0 is the listener. */
static enum tr_status receive_applicants(const struct tr_comm_env *env, struct shm_applicant *ranks, struct pollfd *fds)
{
    int64_t until = tr_clock_us() + env->timeout_us;
    for (int n_joined = 1; n_joined < env->size;) {
        for (int r = 1; r < env->size; r++)
            fds[r] = (struct pollfd){ .fd = ranks[r].fd, .events = POLLIN };
        int64_t left_us = until - tr_clock_us();
        if (left_us <= 0)
            return raise_missing(env, ranks);
        if (poll(fds, (nfds_t)env->size, (int)tr_min64(left_us / 1000 + 1, 1000)) <= 0)
            continue;
        for (int r = 1; r < env->size; r++)
            if (fds[r].revents) /* ranks send nothing until rank 0 replies: this one is gone */
                return tr_fail(TR_PEER, "rank %d (pid %d) left before all ranks had joined", r, ranks[r].pid);
        struct shm_hello he;
        int32_t pid;
        int fd = fds[0].revents ? accept_hello(fds[0].fd, &he, &pid) : -1;
        enum tr_status st = fd >= 0 ? admit(fd, &he, pid, env, ranks) : TR_OK;
        if (st != TR_OK)
            return st;
        n_joined += fd >= 0;
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
        return tr_fail(TR_USAGE,
                       "job %s, generation %" PRId64 ", has a rank 0 already; give this job another name (TR_JOB)",
                       env->job, env->generation);
    return tr_fail(TR_IO, "job %s: cannot listen: %s", env->job, strerror(err));
}

static enum tr_status host_ranks(const struct tr_comm_env *env, struct shm_header **seg)
{
    enum tr_status st = TR_OK;
    int memory = -1;
    size_t n = (size_t)env->size;
    struct shm_applicant *ranks = calloc(n, sizeof *ranks);
    struct pollfd *fds = calloc(n, sizeof *fds);
    if (!ranks || !fds) {
        st = tr_fail(TR_NOMEM, "no memory for %zu ranks", n);
        goto out;
    }
    fds[0] = (struct pollfd){ .fd = -1, .events = POLLIN };
    for (size_t r = 0; r < n; r++)
        ranks[r] = (struct shm_applicant){ .fd = -1, .pid = getpid(), .arena_bytes = env->arena_bytes };
    TR_TRY(tr_failpoint("join.before_listen"));
    TR_TRY(listen_at(env, &fds[0].fd));
    TR_TRY(tr_failpoint("join.after_listen"));
    TR_TRY(receive_applicants(env, ranks, fds));
    TR_TRY(tr_failpoint("join.all_here"));
    TR_TRY(make_segment(env, ranks, &memory, seg));
    TR_TRY(tr_failpoint("join.has_segment"));
out:
    if (ranks && fds) {
        struct shm_admission hi = st == TR_OK ? (struct shm_admission){ .magic = MAGIC } : refusal(st);
        int n_refused = st == TR_USAGE; /* the rank that was refused */
        hi.total_bytes = st == TR_OK ? (*seg)->total_bytes : 0;
        for (size_t r = 1; r < n; r++)
            if (ranks[r].fd >= 0) {
                send_admission(ranks[r].fd, &hi, memory);
                close(ranks[r].fd);
                n_refused++;
            }
        if (st != TR_OK && st != TR_TIMEOUT &&
            fds[0].fd >= 0) /* after a timeout, later ranks run into their own timeout */
            turn_away(env, fds[0].fd, &hi, n_refused);
    }
    if (memory >= 0)
        close(memory);
    if (fds && fds[0].fd >= 0)
        close(fds[0].fd);
    free(fds);
    free(ranks);
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
            return is_ours(fd, &pid)
                       ? TR_OK
                       : tr_fail(TR_IO,
                                 "another user has taken the name of job %s; give this job another name (TR_JOB)",
                                 env->job);
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
    struct shm_admission hi = { 0 };
    struct shm_hello me = { .magic = MAGIC,
                            .rank = env->rank,
                            .size = env->size,
                            .generation = env->generation,
                            .arena_bytes = env->arena_bytes };
    TR_TRY(reach_rank_0(env, &fd));
    TR_TRY(tr_failpoint("join.before_hello"));
    (void)!send(fd, &me, sizeof me, MSG_NOSIGNAL); /* if rank 0 has left, the next call fails */
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int64_t until = tr_clock_us() + env->timeout_us + GRACE_US; /* rank 0 times out first, and sends the cause */
    while (poll(&p, 1, 100) <= 0)
        if (tr_clock_us() > until) {
            st = tr_fail(TR_TIMEOUT, "rank 0 of job %s did not reply to the join request", env->job);
            goto out;
        }
    TR_TRY(tr_failpoint("join.after_hello"));
    TR_TRY(receive_admission(fd, &hi, &memory));
    TR_TRY(tr_failpoint("join.welcomed"));
    TR_TRY(map_segment(memory, hi.total_bytes, seg));
    if ((*seg)->pid == getpid()) { /* this rank is a thread of the process of rank 0 */
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
    return env->rank == 0 ? host_ranks(env, seg) : join_rank_0(env, seg, is_local);
}

void tr_shm_unmap(struct shm_header *h, bool is_local)
{
    if (!is_local || atomic_fetch_sub(&h->n_local, 1) == 1)
        munmap(h, h->total_bytes);
}
