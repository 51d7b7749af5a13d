/* compiler.h - the only place for compiler extensions. */
#ifndef TR_BASE_COMPILER_H
#define TR_BASE_COMPILER_H

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TR_NORETURN          __attribute__((noreturn))
#define TR_UNUSED            __attribute__((unused)) /* a parameter that a table's type has and a row may not need */
#define TR_TARGET(isa)       __attribute__((target(isa)))
#define TR_EXPORT            __attribute__((visibility("default"))) /* a table of a module */
#define TR_LIKELY(x)         __builtin_expect(!!(x), 1)
#define TR_UNLIKELY(x)       __builtin_expect(!!(x), 0)

/* Tells the core that this is a spin loop. */
static inline void tr_cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* TR_TARGET_BEGIN("avx2,fma"): functions from there to TR_TARGET_END are compiled for these instructions. */
#define TR_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TR_UNROLL            _Pragma("clang loop unroll(full)")
#define TR_TARGET_BEGIN(isa) TR_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define TR_TARGET_END        _Pragma("clang attribute pop")
#else
#define TR_UNROLL            _Pragma("GCC unroll 16")
#define TR_TARGET_BEGIN(isa) _Pragma("GCC push_options") TR_PRAGMA(GCC target(isa))
#define TR_TARGET_END        _Pragma("GCC pop_options")
#endif
#define TR_FORCE_INLINE static inline __attribute__((always_inline))

#define TR_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static inline int64_t tr_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t tr_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline size_t tr_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* a * b into *out; false on overflow. Every size that comes from a file goes through these two. */
static inline bool tr_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool tr_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return false;
    *out = a + b;
    return true;
}

#endif
