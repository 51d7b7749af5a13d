/* banned.h - unsafe calls do not compile. The headers that declare them come first, so include order does not matter.
 */
#ifndef TR_BASE_BANNED_H
#define TR_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#undef alloca
#pragma GCC poison strcpy strcat sprintf vsprintf gets atoi atol atof strtok alloca
#endif

#endif
