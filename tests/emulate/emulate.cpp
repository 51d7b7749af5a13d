/* emulate.cpp - the threads of a block in turns (cuda_runtime.h). */
#include "cuda_runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

enum { STACK = 64 << 10, WARP = 32, MAX_THREADS = 1024, N_BARRIERS = 16 };

struct emulated emulated;
int emulated_shared_of_gpu = EMULATED_SHARED;
alignas(128) __shared__ char memory[EMULATED_SHARED];
alignas(128) __shared__ float shared[EMULATED_SHARED / sizeof(float)];
/* Where kernels declare these two in a function, the compiler calls what would initialise them, by these names. */
extern "C" void _ZTH6memory(void)
{
}
extern "C" void _ZTH6shared(void)
{
}

/* ---- a change of stacks ---- */

#ifdef __x86_64__
extern "C" void emulate_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emulate_switch\n"
        "emulate_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "ret\n");
typedef void *place;
static void prepare(place *p, char *stack, void (*entry)())
{
    uintptr_t *top = (uintptr_t *)(stack + STACK) - 2;
    *top = (uintptr_t)entry;
    memset(top - 6, 0, 6 * sizeof *top);
    *p = top - 6;
}
static void change(place *from, place *to)
{
    emulate_switch(from, *to);
}
#else
typedef ucontext_t place;
static void prepare(place *p, char *stack, void (*entry)())
{
    getcontext(p);
    p->uc_stack.ss_sp = stack;
    p->uc_stack.ss_size = STACK;
    p->uc_link = NULL;
    makecontext(p, entry, 0);
}
static void change(place *from, place *to)
{
    swapcontext(from, to);
}
#endif

/* ---- a block ---- */

struct copy {
    uint32_t to, n;
    const void *from;
    bool is_in;
};
struct thread {
    place at;
    dim3 id;
    bool is_done;
    std::vector<copy> copies;
};
struct meeting {
    int arrived, counted, result[2];
    unsigned generation;
};
struct warp {
    meeting m;
    void *mine[WARP];
    void (*together)(void *const lanes[WARP]);
};

static thread threads[MAX_THREADS];
static char *stacks;
static meeting barriers[N_BARRIERS];
static warp warps[MAX_THREADS / WARP];
static int n_threads, turn, n_left, direction;
static size_t shared_bytes;
static long idle; /* turns in which nothing happened */
static place scheduler;
static const std::function<void()> *body;

static void fail(const char *what)
{
    fprintf(stderr, "emulate: block %u, thread %u: %s\n", emulated.block.x, emulated.thread.x, what);
    abort();
}

/* The turn of the next thread that is not at its end. */
static void yield()
{
    thread *from = &threads[turn];
    if (idle++ > 4L * n_threads)
        fail("threads wait at different places");
    do
        turn = (turn + direction + n_threads) % n_threads;
    while (threads[turn].is_done);
    emulated.thread = threads[turn].id;
    change(&from->at, &threads[turn].at);
}

static void run_thread()
{
    (*body)();
    threads[turn].is_done = true;
    idle = 0;
    if (--n_left > 0)
        yield();
    else
        change(&threads[turn].at, &scheduler);
}

void emulate_launch(dim3 grid, dim3 block, size_t bytes, const std::function<void()> &of_thread)
{
    n_threads = (int)(block.x * block.y * block.z);
    if (n_threads > MAX_THREADS || bytes > (size_t)emulated_shared_of_gpu)
        fail("the launch asks for too much");
    if (!stacks)
        stacks = new char[(size_t)MAX_THREADS * STACK];
    body = &of_thread;
    shared_bytes = bytes;
    emulated.block_size = block;
    emulated.grid = grid;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            emulated.block = dim3(x, y);
            memset(memory, 0xff, bytes);
            memset(shared, 0xff, bytes);
            memset(barriers, 0, sizeof barriers);
            memset(warps, 0, sizeof warps);
            for (int i = 0; i < n_threads; i++) {
                unsigned u = (unsigned)i;
                threads[i].id = dim3(u % block.x, u / block.x % block.y, u / block.x / block.y);
                threads[i].is_done = false;
                threads[i].copies.clear();
                prepare(&threads[i].at, stacks + (size_t)i * STACK, run_thread);
            }
            direction = x % 2 ? -1 : 1; /* what depends on an order shows in one of two */
            turn = x % 2 ? n_threads - 1 : 0;
            n_left = n_threads;
            idle = 0;
            emulated.thread = threads[turn].id;
            change(&scheduler, &threads[turn].at);
        }
}

/* ---- where threads meet ---- */

/* True for the last of n to come. */
static bool arrive(meeting *m, int n, bool counts)
{
    idle = 0;
    m->counted += counts;
    if (++m->arrived < n)
        return false;
    m->result[m->generation % 2] = m->counted;
    m->arrived = m->counted = 0;
    return true;
}

int emulate_barrier(int barrier, int n, bool counts)
{
    meeting *m = &barriers[barrier];
    unsigned generation = m->generation;
    if (arrive(m, n, counts))
        m->generation++;
    while (m->generation == generation)
        yield();
    return m->result[generation % 2];
}

void emulate_warp(void *mine, void (*together)(void *const lanes[WARP]))
{
    int linear = turn, lane = linear % WARP;
    warp *w = &warps[linear / WARP];
    unsigned generation = w->m.generation;
    if (w->m.arrived > 0 && w->together != together)
        fail("lanes of a warp do different things together");
    w->together = together;
    w->mine[lane] = mine;
    if (arrive(&w->m, WARP, false)) {
        together(w->mine);
        w->m.generation++;
    }
    while (w->m.generation == generation)
        yield();
}

char *emulate_shared(uint32_t at, uint32_t n)
{
    if ((size_t)at + n > shared_bytes || at % n != 0)
        fail("an access outside of shared memory, or not aligned");
    return memory + at;
}

void emulate_copy(uint32_t to, const void *from, uint32_t n, bool is_in)
{
    (void)emulate_shared(to, n);
    if ((uintptr_t)from % n != 0)
        fail("a copy from an address that is not aligned");
    threads[turn].copies.push_back(copy{ to, n, from, is_in });
}

void emulate_copies_end(void)
{
    for (const copy &c : threads[turn].copies)
        if (c.is_in)
            memcpy(memory + c.to, c.from, c.n);
        else
            memset(memory + c.to, 0, c.n);
    threads[turn].copies.clear();
}
