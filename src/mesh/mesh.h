/* mesh.h - room header of mesh: who the peers are. Ranks are points on the axes pp, dp, shard, cp, tp; the last axis
 * varies fastest, so tp sits on the nearest links. Groups are slices of the grid; an axis of size 1 has the self
 * communicator. */
#ifndef TR_MESH_MESH_H
#define TR_MESH_MESH_H

#include "comm/comm.h"

enum tr_axis { TR_AXIS_PP, TR_AXIS_DP, TR_AXIS_SHARD, TR_AXIS_CP, TR_AXIS_TP, TR_AXES };
const char *tr_axis_name(enum tr_axis a);

struct tr_mesh {
    int rank, world;
    int size[TR_AXES], coord[TR_AXES];
    struct tr_comm *all, *axis[TR_AXES];
    struct tr_comm *data;     /* dp x shard: the ranks that read different rows */
    struct tr_comm *tokens;   /* dp x shard x cp: the ranks that see different tokens */
    struct tr_comm *replicas; /* dp x cp: of them, those that hold the same shard */
    struct tr_comm *ends;     /* the first and the last pipeline stage; NULL in between */
};

/* What the environment says of this process: RANK, WORLD_SIZE, LOCAL_WORLD_SIZE (trireme launch, torchrun; cli puts
 * those of mpirun and srun in their place), else one rank alone. */
enum tr_status tr_mesh_env(struct tr_comm_env *out);

/* Coordinates of a rank: the last axis varies fastest. */
void tr_mesh_coords(int rank, const int size[TR_AXES], int coord[TR_AXES]);

/* Sizes must multiply to env->size; TR_USAGE names both. */
enum tr_status tr_mesh_fits(const struct tr_comm_env *env, const int size[TR_AXES]);
/* Collective: every rank calls it. */
enum tr_status tr_mesh_open(const char *engine, const struct tr_comm_env *env, const int size[TR_AXES],
                            struct tr_mesh **out);
void tr_mesh_close(struct tr_mesh *m);

/* Every communicator reports to it; NULL: to nobody. */
void tr_mesh_trace(struct tr_mesh *m, struct tr_comm_tracer *tracer);
/* How long communication held up this rank's arithmetic since the last call; *stages (may be NULL): of it, that of the
 * pipeline. */
int64_t tr_mesh_waited_us(struct tr_mesh *m, int64_t *stages);

/* The first of `n` named numbers on which ranks disagree is an error that names it (reliability E1). */
enum tr_status tr_mesh_agree(struct tr_mesh *m, const char *const *names, const int64_t *values, int n);

#endif
