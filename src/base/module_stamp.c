/* module_stamp.c - the stamp of this build, compiled into the program and into every module. tools/stamp.cmake writes
 * the hash. */
#include "base/module.h"

#include <module_stamp.h>

/* A function, because two variables of one name are a mistake to AddressSanitizer. */
TR_EXPORT const char *tr_module_stamp(void)
{
    return TR_VERSION " " TR_MODULE_HASH;
}
