/* grow.c - arrays that grow as elements are added. */
#include "base/misc.h"
#include <stdlib.h>
#include <string.h>

enum { FIRST = 16 };

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
    memcpy(&p, array, sizeof p); /* a pointer to any type: void ** would not be one to it */
    p = tr_mul_size(cap, size, &bytes) ? realloc(p, bytes) : NULL;
    if (!p)
        return false;
    memcpy(array, &p, sizeof p);
    *n_cap = cap;
    return true;
}
