/* module.c - where modules are looked for, and how they are opened.
 *
 * In this order: the directory that TRIREME_MODULES names, beside the program (a build tree, a copied binary), the
 * library directory of its installation, relative to the program because an installation may be moved. Functions of a
 * module are bound when they are first called: a program that links only some rooms (a test) can open a module that
 * uses more. tests/cli/test_modules.sh binds all of them at once.
 */
#include "base/module.h"
#include "base/str.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool tr_module_find(struct tr_module *m, char path[TR_PATH_MAX])
{
    char self[TR_PATH_MAX], installed[TR_PATH_MAX + 64];
    const char *own = getenv("TRIREME_MODULES");
    bool has_own = own && *own;
    tr_self_dir(self);
    (void)snprintf(installed, sizeof installed, "%s/" TR_MODULE_PATH, self);
    const char *const dirs[] = { has_own ? own : self, self, installed };
    for (size_t i = 0; i < TR_COUNT_OF(dirs); i++)
        if (tr_format(path, TR_PATH_MAX, "%s/libtrireme_%s.so", dirs[i], m->name) == TR_OK && access(path, R_OK) == 0)
            return true;
    (void)snprintf(m->why, sizeof m->why, "libtrireme_%s.so is %s%s%sneither beside the program nor in %s; %s", m->name,
                   has_own ? "not in " : "", has_own ? own : "", has_own ? ", and " : "", installed, m->get);
    return false;
}

/* An older or newer module may lack anything, so its stamp is read before anything else of it. */
static void open_module(struct tr_module *m)
{
    char path[TR_PATH_MAX];
    if (!tr_module_find(m, path))
        return;
    void *so = dlopen(path, RTLD_LAZY | (m->is_global ? RTLD_GLOBAL : RTLD_LOCAL));
    const char *(*stamp_of)(void) = NULL;
    if (so)
        *(void **)&stamp_of = dlsym(so, TR_MODULE_STAMP_SYMBOL);
    const char *stamp = stamp_of ? stamp_of() : NULL, *error = so ? NULL : dlerror();
    if (so && stamp && strcmp(stamp, tr_module_stamp()) == 0)
        m->handle = so;
    else if (so)
        (void)snprintf(m->why, sizeof m->why,
                       "%s comes from another build (%.64s; this program is %s); install both from one release, or "
                       "build both again",
                       path, stamp ? stamp : "it has no stamp", tr_module_stamp());
    else
        (void)snprintf(m->why, sizeof m->why, "%s: %s", path, error ? error : "no reason given");
}

const void *tr_module_symbol(struct tr_module *m, const char *symbol)
{
    const void *at = NULL;
    (void)pthread_mutex_lock(&lock);
    if (!m->was_tried)
        open_module(m);
    m->was_tried = true;
    if (m->handle && (at = dlsym(m->handle, symbol)) == NULL)
        (void)snprintf(m->why, sizeof m->why, "libtrireme_%s.so has no %s; build it again", m->name, symbol);
    (void)pthread_mutex_unlock(&lock);
    return at;
}
