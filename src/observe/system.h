/* system.h - private to observe: one sample of the machine. */
#ifndef TR_OBSERVE_SYSTEM_H
#define TR_OBSERVE_SYSTEM_H

#include "base/base.h"
#include "base/nvml.h"
#include "base/usage.h"

/* Members of a JSON object. output: whose disk is looked at. */
void tr_system_fields(const struct tr_usage *before, const struct tr_usage *now, const struct tr_nvml *nvml,
                      const char *output, struct tr_str *out);

#endif
