/* library.c - shared libraries that are looked for at run time. */
#include "base/misc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool tr_library_find(const char *file, const struct tr_symbol *symbols, size_t n, char *why, size_t n_why)
{
    void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    size_t i = 0;
    if (!lib) {
        (void)snprintf(why, n_why, "%s", dlerror());
        return false;
    }
    for (; i < n; i++) { /* dlsym gives the address of an object; POSIX lets it be that of a function */
        void *at = dlsym(lib, symbols[i].name);
        if (!at)
            break;
        memcpy(symbols[i].function, &at, sizeof at);
    }
    if (i < n)
        (void)snprintf(why, n_why, "%s: it has no %s", file, symbols[i].name);
    return i == n;
}
