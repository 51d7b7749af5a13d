/* room.h - does a run fit this host? Asked before step 0, and answered with the numbers and with what to change. */
#ifndef TR_TRAIN_ROOM_H
#define TR_TRAIN_ROOM_H

#include "build/build.h"

/* Memory of this process alone: what is compiled against the host, its cgroups and the limits of the process. TR_USAGE
 * has what is needed, what there is, and what sets that limit; with a setup that trains also options that fit. s NULL:
 * no setup, `advice` says what to change. */
enum tr_status tr_room_check(const struct tr_compiled *c, const struct tr_setup *s, const char *advice);
/* The same of all ranks of every host together. Collective: all ranks get the same answer. */
enum tr_status tr_room_check_hosts(struct tr_mesh *mesh, const struct tr_setup *s);

#endif
