/* module.h - parts of the program in files of their own: libtrireme_NAME.so.
 *
 * A module is code that needs a library which the program must start without (MPI, CUDA). It is opened when it is first
 * asked for, and stays. It uses the functions of the program, and the program reaches it through tables that it names.
 * Both hold a stamp of the sources that they share; a module with another stamp is refused, because its structs may
 * have other layouts.
 */
#ifndef TR_BASE_MODULE_H
#define TR_BASE_MODULE_H

#include "base/file.h"

struct tr_module {
    const char *name;
    const char *get; /* how a user gets it: "install the package ..." */
    bool is_global;  /* libraries that it loads look for symbols in it and in what it is linked with */
    /* private to module.c */
    bool was_tried;
    void *handle;
    char why[TR_PATH_MAX + 1024];
};

/* The address of a table of the module. NULL: m->why says where the module was looked for and how to get it, or what
 * does not fit. From any thread. */
const void *tr_module_symbol(struct tr_module *m, const char *symbol);
/* Whether there is a file of this module, and its path; m->why is as above. Opens nothing. */
bool tr_module_find(struct tr_module *m, char path[TR_PATH_MAX]);

#define TR_MODULE_STAMP_SYMBOL "tr_module_stamp"
const char *tr_module_stamp(void); /* module_stamp.c: the release and a hash of shared sources */

#endif
