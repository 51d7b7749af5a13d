/* uring.c - io_uring by its system calls: a ring of 32 pieces of 1 MiB each. A piece that comes back short or asks to
 * be tried again is finished by pread or pwrite. Rejected: liburing, for three calls. */
#include "device/uring.h"
#include <errno.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { N_ENTRIES = 32, PIECE = 1 << 20 };

struct tr_uring {
    int fd, file;
    char *ring; /* submission and completion queue, in one mapping */
    size_t ring_bytes, sqes_bytes;
    struct io_uring_sqe *sqes;
    struct io_uring_params p;
    bool is_registered;
};

static _Atomic unsigned *word(const struct tr_uring *u, unsigned offset)
{
    return (_Atomic unsigned *)(void *)(u->ring + offset);
}

void tr_uring_close(struct tr_uring *u)
{
    if (!u)
        return;
    if (u->sqes)
        munmap(u->sqes, u->sqes_bytes);
    if (u->ring)
        munmap(u->ring, u->ring_bytes);
    if (u->fd >= 0)
        close(u->fd);
    free(u);
}

static void *map(const struct tr_uring *u, size_t bytes, off_t at)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, at);
    return p == MAP_FAILED ? NULL : p;
}

struct tr_uring *tr_uring_open(int fd, void *buffers, size_t n_bytes)
{
    struct tr_uring *u = calloc(1, sizeof *u);
    struct iovec v = { buffers, n_bytes };
    if (!u)
        return NULL;
    u->file = fd;
    u->fd = (int)syscall(SYS_io_uring_setup, N_ENTRIES, &u->p);
    if (u->fd >= 0 && u->p.features & IORING_FEAT_SINGLE_MMAP) {
        size_t sq = u->p.sq_off.array + u->p.sq_entries * sizeof(unsigned);
        size_t cq = u->p.cq_off.cqes + u->p.cq_entries * sizeof(struct io_uring_cqe);
        u->ring_bytes = sq > cq ? sq : cq;
        u->sqes_bytes = u->p.sq_entries * sizeof *u->sqes;
        u->ring = map(u, u->ring_bytes, IORING_OFF_SQ_RING);
        u->sqes = map(u, u->sqes_bytes, IORING_OFF_SQES);
    }
    if (!u->ring || !u->sqes) {
        tr_uring_close(u);
        return NULL;
    }
    u->is_registered = syscall(SYS_io_uring_register, u->fd, IORING_REGISTER_BUFFERS, &v, 1) == 0;
    return u;
}

/* The pieces of one move. */
struct ring_pieces {
    bool is_write;
    size_t at, bytes;
    char *memory;
};

static size_t piece_bytes(const struct ring_pieces *x, size_t k)
{
    size_t left = x->bytes - k * PIECE;
    return left < PIECE ? left : PIECE;
}

static void submit(struct tr_uring *u, const struct ring_pieces *x, size_t k)
{
    unsigned tail = atomic_load_explicit(word(u, u->p.sq_off.tail), memory_order_relaxed);
    unsigned i = tail & *word(u, u->p.sq_off.ring_mask);
    static const uint8_t ops[2][2] = { { IORING_OP_READ, IORING_OP_WRITE },
                                       { IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED } };
    u->sqes[i] = (struct io_uring_sqe){ .opcode = ops[u->is_registered][x->is_write],
                                        .fd = u->file,
                                        .off = x->at + k * PIECE,
                                        .addr = (uint64_t)(uintptr_t)(x->memory + k * PIECE),
                                        .len = (uint32_t)piece_bytes(x, k),
                                        .user_data = k };
    ((unsigned *)(void *)(u->ring + u->p.sq_off.array))[i] = i;
    atomic_store_explicit(word(u, u->p.sq_off.tail), tail + 1, memory_order_release);
}

/* The rest of a piece of which `done` bytes are moved. */
static int finish(const struct tr_uring *u, const struct ring_pieces *x, size_t k, size_t done)
{
    while (done < piece_bytes(x, k)) {
        char *memory = x->memory + k * PIECE + done;
        size_t n = piece_bytes(x, k) - done;
        off_t at = (off_t)(x->at + k * PIECE + done);
        ssize_t got = x->is_write ? pwrite(u->file, memory, n, at) : pread(u->file, memory, n, at);
        if (got == 0)
            return EIO;
        if (got < 0 && errno != EINTR)
            return errno;
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

/* Takes what is complete; returns how many pieces, and in *error the first errno. */
static size_t reap(struct tr_uring *u, const struct ring_pieces *x, int *error)
{
    unsigned head = atomic_load_explicit(word(u, u->p.cq_off.head), memory_order_relaxed);
    unsigned tail = atomic_load_explicit(word(u, u->p.cq_off.tail), memory_order_acquire);
    size_t n = tail - head;
    for (; head != tail; head++) {
        const struct io_uring_cqe *c = (const struct io_uring_cqe *)(void *)(u->ring + u->p.cq_off.cqes) +
                                       (head & *word(u, u->p.cq_off.ring_mask));
        bool is_again = c->res >= 0 || c->res == -EAGAIN || c->res == -EINTR;
        int failed = is_again ? finish(u, x, c->user_data, c->res > 0 ? (size_t)c->res : 0) : -c->res;
        *error = *error ? *error : failed;
    }
    atomic_store_explicit(word(u, u->p.cq_off.head), head, memory_order_release);
    return n;
}

int tr_uring_move(struct tr_uring *u, bool is_write, size_t at, char *memory, size_t bytes)
{
    struct ring_pieces x = { is_write, at, bytes, memory };
    size_t n = (bytes + PIECE - 1) / PIECE, next = 0, n_under_way = 0, n_new = 0;
    int error = 0;
    while (n_under_way > 0 || (next < n && !error)) {
        for (; next < n && n_under_way < N_ENTRIES && !error; next++, n_under_way++, n_new++)
            submit(u, &x, next);
        int took = (int)syscall(SYS_io_uring_enter, u->fd, (unsigned)n_new, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (took < 0 && errno != EINTR && errno != EAGAIN && errno != EBUSY)
            return errno; /* nothing more is known of what was submitted; the caller gives up the file */
        n_new -= took > 0 ? (size_t)took : 0;
        n_under_way -= reap(u, &x, &error);
    }
    return error;
}
