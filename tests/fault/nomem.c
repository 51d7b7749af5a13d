/* nomem.c - stands before libc in a process: allocation number TR_NOMEM_AT after the start of main fails, all others
 * work (I2). Built by i2_memory.sh. What libraries take before main is not counted: not ours to survive. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

typedef int main_fn(int argc, char **argv, char **env);
static atomic_long n_left; /* 0: none fails any more */
static main_fn *real_main;

static int own_main(int argc, char **argv, char **env)
{
    const char *text = getenv("TR_NOMEM_AT");
    n_left = text ? strtol(text, NULL, 10) : 0;
    return real_main(argc, argv, env);
}

int __libc_start_main(main_fn *fn, int argc, char **argv, main_fn *init, void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end)
{
    int (*next)(main_fn *, int, char **, main_fn *, void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = fn;
    return next(own_main, argc, argv, init, fini, rtld_fini, stack_end);
}

static int fails(void)
{
    if (atomic_load(&n_left) <= 0 || atomic_fetch_sub(&n_left, 1) != 1)
        return 0;
    (void)!write(2, "[no memory]\n", 12);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __libc_memalign(align, n);
}
int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = fails() ? NULL : __libc_memalign(align, n);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}
char *strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = malloc(n);
    return p ? memcpy(p, s, n) : NULL;
}
