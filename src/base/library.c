/* library.c - shared libraries that are looked for at run time. */
#include "base/file.h"
#include "base/misc.h"
#include "base/str.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void *open_matching(const char *pattern)
{
    glob_t found = { 0 };
    void *lib = NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !lib; i++)
            lib = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    globfree(&found);
    return lib;
}

/* Packages like nvidia-cudnn put their libraries into site-packages/nvidia/cudnn/lib. */
static void *open_of_pip(const char *prefix, const char *name)
{
    char pattern[TR_PATH_MAX];
    if (!prefix || !*prefix ||
        tr_format(pattern, sizeof pattern, "%s/lib/python3*/*-packages/nvidia/*/lib/%s", prefix, name) != TR_OK)
        return NULL;
    return open_matching(pattern);
}

/* The prefix of the first python3 of PATH: /venv of /venv/bin/python3. */
static bool python_prefix(char out[TR_PATH_MAX])
{
    const char *path = getenv("PATH");
    for (const char *end; path && *path; path = *end ? end + 1 : end) {
        end = strchrnul(path, ':');
        if (tr_format(out, TR_PATH_MAX, "%.*s/python3", (int)(end - path), path) != TR_OK || access(out, X_OK) != 0)
            continue;
        (void)snprintf(out + (end - path), TR_PATH_MAX - (size_t)(end - path), "/..");
        return true;
    }
    return false;
}

void *tr_library_nvidia(const char *const *names)
{
    char pattern[TR_PATH_MAX], prefix[TR_PATH_MAX], self[TR_PATH_MAX];
    if (!python_prefix(prefix))
        prefix[0] = 0;
    tr_self_dir(self);
    const char *const prefixes[] = { getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), prefix, "/usr/local" };
    void *lib = NULL;
    for (; *names && !lib; names++) {
        lib = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!lib && tr_format(pattern, sizeof pattern, "/usr/local/cuda/lib64/%s", *names) == TR_OK)
            lib = open_matching(pattern);
        /* our wheel: site-packages/trireme/bin/trireme */
        if (!lib && tr_format(pattern, sizeof pattern, "%s/../../nvidia/*/lib/%s", self, *names) == TR_OK)
            lib = open_matching(pattern);
        for (size_t i = 0; i < TR_COUNT_OF(prefixes) && !lib; i++)
            lib = open_of_pip(prefixes[i], *names);
    }
    return lib;
}
