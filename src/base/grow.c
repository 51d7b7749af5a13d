/* grow.c - arrays of zeroes, arrays that grow as elements are added, blocks that are kept until all of them are
 * released, and orders and look-ups of arrays by text. */
#include "base/misc.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 };

enum tr_status tr_alloc(void *array, size_t size, size_t n, const char *fmt, ...)
{
    size_t bytes;
    void *p = tr_mul_size(n, size, &bytes) ? calloc(n ? n : 1, size) : NULL;
    va_list args;
    va_start(args, fmt);
    enum tr_status st = p ? TR_OK : tr_fail_memory(fmt, args);
    va_end(args);
    if (p)
        memcpy(array, &p, sizeof p); /* a pointer to any type: void ** would not be one to it */
    return st;
}

bool tr_grow(void *array, size_t size, size_t n, size_t *n_cap)
{
    size_t cap, bytes;
    void *p;
    if (n <= *n_cap)
        return true;
    if (!tr_mul_size(*n_cap, 2, &cap))
        return false;
    cap = cap < FIRST ? FIRST : cap;
    cap = cap < n ? n : cap;
    memcpy(&p, array, sizeof p);
    p = tr_mul_size(cap, size, &bytes) ? realloc(p, bytes) : NULL;
    if (!p)
        return false;
    memcpy(array, &p, sizeof p);
    *n_cap = cap;
    return true;
}

enum tr_status tr_room(void *array, size_t size, size_t n, size_t *n_cap, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    enum tr_status st = tr_grow(array, size, n, n_cap) ? TR_OK : tr_fail_memory(fmt, args);
    va_end(args);
    return st;
}

struct tr_owned {
    struct tr_owned *next;
};

void *tr_keep(struct tr_owned **kept, const void *bytes, size_t n)
{
    size_t n_head = tr_round_up(sizeof(struct tr_owned), 16);
    struct tr_owned *k = n <= SIZE_MAX - n_head ? calloc(1, n_head + n) : NULL;
    if (!k)
        return NULL;
    k->next = *kept;
    *kept = k;
    void *p = (char *)k + n_head;
    if (bytes && n)
        memcpy(p, bytes, n);
    return p;
}

void tr_owned_release(struct tr_owned **kept)
{
    for (struct tr_owned *k = *kept, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    *kept = NULL;
}

int tr_by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int tr_by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

const void *tr_row_find(const void *rows, size_t n, size_t size, const char *text)
{
    for (size_t i = 0; i < n; i++) {
        const char *row = (const char *)rows + i * size;
        if (tr_by_text(row, &text) == 0)
            return row;
    }
    return NULL;
}
