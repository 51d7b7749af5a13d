/* setup_impl.h - private to build: the parts of a setup. */
#ifndef TR_BUILD_SETUP_IMPL_H
#define TR_BUILD_SETUP_IMPL_H

#include "build/build.h"

/* text.c: opens the models of s->text. config: of the model, where no directory has it; else NULL. */
enum tr_status tr_setup_text(struct tr_setup *s, const cJSON *config);

#endif
