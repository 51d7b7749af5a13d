/* engines.c - the list of engines. To add one, add its row here: docs/guide/add-an-engine.md. A test that brings an
 * engine of its own defines this list itself, and the linker then leaves this file out.
 */
#include "comm/comm_impl.h"

const struct tr_comm_ops *const tr_comm_engines[] = { &tr_comm_self, &tr_comm_shm, &tr_comm_mpi, &tr_comm_phantom,
                                                      NULL };
