/* trainers.h - trainers whose results are published: how each works, and how a published source names it. */
#ifndef FORECAST_TRAINERS_H
#define FORECAST_TRAINERS_H

#include "plan/forecast.h"

struct tr_trainer {
    const char *name, *words;   /* words: any of them in the name of a source means this trainer; separated by | */
    const struct tr_impl *impl; /* how it works */
    bool has_sp;                /* with tensor ranks it uses sequence parallelism, whether or not the source says so */
    bool interleaves;           /* its stages hold several chunks where that is faster and the source gives no number */
};
extern const struct tr_trainer tr_trainers[];
extern const size_t tr_n_trainers;
const struct tr_trainer *tr_trainer_find(const char *name);      /* NULL: none of that name */
const struct tr_trainer *tr_trainer_of_source(const char *text); /* by its words; never NULL */

#endif
