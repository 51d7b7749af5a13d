/* shm_join.c - how the ranks of one host join: rank 0 listens, the others send their rank, all receive the segment.
 *
 * Rank 0 listens on an abstract Unix socket. Its name holds a secret of this generation, which the launcher gives its
 * ranks, so that no other user can take the next name when a rank has died; a name that somebody has taken all the same
 * is passed over by all ranks, which know each other by the user that the kernel names. Connections that say nothing
 * are kept beside the others, each for a second, and the oldest gives way. The socket and the memfd vanish with the
 * processes, so neither kill -9 at any instant nor an older generation leaves anything that could be mistaken. A rank
 * that dies before all have joined closes its connection, and rank 0 reports it to all at once. Rejected: shm_open (a
 * name stays behind if all are killed before the unlink, and containers give /dev/shm 64 MB); a file that holds the
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

#define MAGIC    UINT64_C(0x31306d6873725421) /* "!Trshm01" */
#define HEAP_PER ((size_t)64 << 20)           /* virtual memory for each rank; pages are faulted in on first touch */

enum {
    RETRY_US = 2000,
    GRACE_US = 1000 * 1000,
    HELLO_US = 1000 * 1000, /* from a connection to its first word */
    BIG_PAGE = 2 << 20,
    N_PLACES = 8,    /* names of a generation, tried in turn */
    N_SILENT = 64,   /* connections that have said nothing yet */
    N_ACCEPTED = 16, /* between two looks at those that are known */
};

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

struct shm_silent {
    int fd; /* -1: free */
    int32_t pid;
    int64_t until_us;
};

socklen_t tr_shm_place(const struct tr_comm_env *env, int k, struct sockaddr_un *a)
{
    unsigned char mac[TR_SHA256_BYTES];
    char text[96];
    const char *secret = env->secret ? env->secret : "";
    int n = snprintf(text, sizeof text, "%u %" PRId64 " %d ", (unsigned)geteuid(), env->generation, k);
    const struct tr_bytes parts[] = { { text, (size_t)n }, { env->job, strlen(env->job) } };
    tr_hmac_sha256(secret, strlen(secret), parts, TR_COUNT_OF(parts), mac);
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "trireme-%u-", (unsigned)geteuid());
    for (int i = 0; i < 16; i++)
        n += snprintf(a->sun_path + 1 + n, 3, "%02x", mac[i]);
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
        return tr_fail(TR_USAGE, /* the limit is the same at the next start */
                       "does not fit: the segment that ranks share takes %zu bytes of address space: %s; raise ulimit "
                       "-v",
                       total, strerror(errno));
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
    TR_PASS(map_segment(*memory, total, out));
    fill_header(*out, env, ranks, total);
    return TR_OK;
}

static bool is_hello(int fd, struct shm_hello *he)
{
    return recv(fd, he, sizeof *he, MSG_DONTWAIT) == (ssize_t)sizeof *he && he->magic == MAGIC;
}

/* Accepts connections of this user's processes; the others are closed. Where all seats are taken, the oldest silent
 * connection gives its seat away. */
static void accept_silent(int listener, struct shm_silent *silent)
{
    for (int i = 0; i < N_ACCEPTED; i++) {
        int32_t pid;
        struct shm_silent *seat = &silent[0];
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return;
        if (!is_ours(fd, &pid)) {
            close(fd);
            continue;
        }
        for (int k = 0; k < N_SILENT && seat->fd >= 0; k++)
            if (silent[k].fd < 0 || silent[k].until_us < seat->until_us)
                seat = &silent[k];
        if (seat->fd >= 0)
            close(seat->fd);
        *seat = (struct shm_silent){ fd, pid, tr_clock_us() + HELLO_US };
    }
}

/* Sends the refusal to a connection that says hello within a moment, and closes it; false: it is no rank. */
static bool refuse(int fd, const struct shm_admission *no, int64_t until_us)
{
    int32_t pid;
    struct shm_hello he;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int ms = (int)tr_max64(0, tr_min64(100, (until_us - tr_clock_us()) / 1000));
    bool is_rank = fd >= 0 && is_ours(fd, &pid) && poll(&p, 1, ms) > 0 && is_hello(fd, &he);
    if (is_rank)
        send_admission(fd, no, -1);
    if (fd >= 0)
        close(fd);
    return is_rank;
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
static void turn_away(const struct tr_comm_env *env, int listener, struct shm_silent *silent,
                      const struct shm_admission *no, int n_refused)
{
    int64_t until = tr_clock_us() + GRACE_US;
    for (int k = 0; k < N_SILENT; k++)
        if (silent[k].fd >= 0) {
            n_refused += refuse(silent[k].fd, no, until);
            silent[k].fd = -1;
        }
    while (n_refused < env->size - 1 && tr_clock_us() < until) {
        struct pollfd p = { .fd = listener, .events = POLLIN };
        if (poll(&p, 1, 100) > 0)
            n_refused += refuse(accept4(listener, NULL, NULL, SOCK_CLOEXEC), no, until);
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

/* Reads what silent connections have said by now. */
static enum tr_status hear(const struct tr_comm_env *env, struct shm_silent *silent, const struct pollfd *fds,
                           struct shm_applicant *ranks, int *n_joined)
{
    int64_t now = tr_clock_us();
    for (int k = 0; k < N_SILENT; k++) {
        struct shm_silent *c = &silent[k];
        struct shm_hello he;
        bool has_said = c->fd >= 0 && fds[k].fd == c->fd && fds[k].revents;
        if (c->fd < 0 || (!has_said && now < c->until_us))
            continue;
        int fd = c->fd;
        c->fd = -1;
        if (!has_said || !is_hello(fd, &he)) {
            close(fd);
            continue;
        }
        TR_PASS(admit(fd, &he, c->pid, env, ranks));
        ++*n_joined;
    }
    return TR_OK;
}

/* Waits until all ranks have connected, or one is missing. `fds` has room for size and N_SILENT entries; entry 0 is the
 * listener. */
static enum tr_status receive_applicants(const struct tr_comm_env *env, struct shm_applicant *ranks,
                                         struct shm_silent *silent, struct pollfd *fds)
{
    int64_t until = tr_clock_us() + env->timeout_us;
    for (int n_joined = 1; n_joined < env->size;) {
        for (int r = 1; r < env->size; r++)
            fds[r] = (struct pollfd){ .fd = ranks[r].fd, .events = POLLIN };
        for (int k = 0; k < N_SILENT; k++)
            fds[env->size + k] = (struct pollfd){ .fd = silent[k].fd, .events = POLLIN };
        int64_t left_us = until - tr_clock_us();
        if (left_us <= 0)
            return raise_missing(env, ranks);
        if (poll(fds, (nfds_t)(env->size + N_SILENT), (int)tr_min64(left_us / 1000 + 1, 1000)) < 0)
            continue;
        for (int r = 1; r < env->size; r++)
            if (fds[r].revents) /* ranks send nothing until rank 0 replies: this one is gone */
                return tr_fail(TR_PEER, "rank %d (pid %d) left before all ranks had joined", r, ranks[r].pid);
        TR_PASS(hear(env, silent, fds + env->size, ranks, &n_joined));
        if (fds[0].revents)
            accept_silent(fds[0].fd, silent);
    }
    return TR_OK;
}

/* Connects to place k without waiting; -1 with errno: EAGAIN where too many others wait there. */
static int connect_to(const struct tr_comm_env *env, int k)
{
    struct sockaddr_un a;
    socklen_t n = tr_shm_place(env, k, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, n) != 0) {
        int err = errno;
        close(fd);
        errno = err;
        return -1;
    }
    return fd;
}

/* Does a process of this user hold a place that is taken? One that does not listen within a moment is no rank 0. */
static bool is_held_by_us(const struct tr_comm_env *env, int k)
{
    bool is = false;
    int32_t pid;
    for (int i = 0; i < 50 && !is; i++, usleep(RETRY_US)) {
        int fd = connect_to(env, k);
        if (fd < 0)
            continue;
        is = is_ours(fd, &pid);
        close(fd);
        if (!is)
            return false;
    }
    return is;
}

/* At the first name that is free. */
static enum tr_status listen_at(const struct tr_comm_env *env, int *out)
{
    for (int k = 0; k < N_PLACES; k++) {
        struct sockaddr_un a;
        socklen_t n = tr_shm_place(env, k, &a);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, env->size + N_SILENT) == 0) {
            *out = fd;
            return TR_OK;
        }
        int err = errno;
        if (fd >= 0)
            close(fd);
        if (err != EADDRINUSE)
            return tr_fail(TR_IO, "job %s: cannot listen: %s", env->job, strerror(err));
        if (is_held_by_us(env, k))
            return tr_fail(TR_USAGE,
                           "job %s, generation %" PRId64 ", has a rank 0 already; give this job another name (TR_JOB)",
                           env->job, env->generation);
        if (env->notes)
            tr_str_addf(env->notes, "another user holds the meeting place @%s of this job; its ranks meet at another\n",
                        a.sun_path + 1);
    }
    return tr_fail(TR_IO,
                   "job %s: other users hold all %d of its meeting places; start it with trireme launch, which names "
                   "them so that no other user can tell",
                   env->job, N_PLACES);
}

static enum tr_status host_ranks(const struct tr_comm_env *env, struct shm_header **seg)
{
    enum tr_status st = TR_OK;
    int memory = -1;
    size_t n = (size_t)env->size;
    struct shm_applicant *ranks = calloc(n, sizeof *ranks);
    struct pollfd *fds = calloc(n + N_SILENT, sizeof *fds);
    struct shm_silent silent[N_SILENT];
    for (int k = 0; k < N_SILENT; k++)
        silent[k] = (struct shm_silent){ .fd = -1 };
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
    TR_TRY(receive_applicants(env, ranks, silent, fds));
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
            turn_away(env, fds[0].fd, silent, &hi, n_refused);
    }
    for (int k = 0; k < N_SILENT; k++)
        if (silent[k].fd >= 0)
            close(silent[k].fd);
    if (memory >= 0)
        close(memory);
    if (fds && fds[0].fd >= 0)
        close(fds[0].fd);
    free(fds);
    free(ranks);
    return st;
}

/* Looks at all names in turn until one of them is held by a process of this user. */
static enum tr_status reach_rank_0(const struct tr_comm_env *env, int *out)
{
    int64_t until = tr_clock_us() + env->timeout_us;
    for (;;) {
        for (int k = 0; k < N_PLACES; k++) {
            int32_t pid;
            int fd = connect_to(env, k);
            if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
                return tr_fail(TR_IO, "no socket: %s", strerror(errno));
            if (fd < 0)
                continue;
            if (is_ours(fd, &pid) && fcntl(fd, F_SETFL, 0) == 0) {
                *out = fd;
                return TR_OK;
            }
            close(fd);
        }
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
