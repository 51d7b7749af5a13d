/* mesh.h - room header of mesh: the grid of ranks and its groups. Ranks are points on the axes pp, dp, shard, cp, tp.
 * The last axis varies fastest, so tp peers have the nearest links. Groups are slices of the grid; an axis of size 1
 * has the self communicator. */
#ifndef TR_MESH_MESH_H
#define TR_MESH_MESH_H

#include "comm/comm.h"

enum tr_axis { TR_AXIS_PP, TR_AXIS_DP, TR_AXIS_SHARD, TR_AXIS_CP, TR_AXIS_TP, TR_AXES };
const char *tr_axis_name(enum tr_axis a);

/* A set of axes, one bit each, and the named sets. */
typedef uint16_t tr_axes;
#define TR_ON(axis)    ((tr_axes)(1u << (axis)))
#define TR_ON_DATA     ((tr_axes)(TR_ON(TR_AXIS_DP) | TR_ON(TR_AXIS_SHARD))) /* ranks that read different rows */
#define TR_ON_TOKENS   ((tr_axes)(TR_ON_DATA | TR_ON(TR_AXIS_CP)))           /* ranks that see different tokens */
#define TR_ON_REPLICAS ((tr_axes)(TR_ON(TR_AXIS_DP) | TR_ON(TR_AXIS_CP)))    /* of them, ranks with the same shard */

/* Which ranks a group holds: those that share every coordinate except the ones on `axes`. is_ends: only the first and
 * the last stage of the pipeline axis, which hold tied embeddings. No set of axes can express that. */
struct tr_group_key {
    tr_axes axes;
    bool is_ends;
};

enum { TR_MAX_GROUPS = 24 };
struct tr_mesh {
    int rank, world;
    int size[TR_AXES], coord[TR_AXES];
    struct tr_comm *all;
    struct {
        struct tr_group_key key;
        struct tr_comm *comm; /* NULL: this rank is not in it */
    } group[TR_MAX_GROUPS];
    int n_groups;
};

/* Reads the rank of this process from the environment: RANK, WORLD_SIZE, LOCAL_WORLD_SIZE (trireme launch, torchrun;
 * cli translates those of mpirun and srun). Without them the process is one rank alone. */
enum tr_status tr_mesh_env(struct tr_comm_env *out);

/* Coordinates of a rank: the last axis varies fastest. */
void tr_mesh_coords(int rank, const int size[TR_AXES], int coord[TR_AXES]);

/* The product of the sizes must be env->size; TR_USAGE names both. */
enum tr_status tr_mesh_fits(const struct tr_comm_env *env, const int size[TR_AXES]);
/* Collective: every rank calls it. */
enum tr_status tr_mesh_open(const char *engine, const struct tr_comm_env *env, const int size[TR_AXES],
                            struct tr_mesh **out);
/* The mesh of a process that runs alone: every axis has size 1 and the self communicator. */
enum tr_status tr_mesh_open_alone(struct tr_mesh **out);
void tr_mesh_close(struct tr_mesh *m);
/* *out is `given`. If `given` is NULL, *out is the mesh of a process that runs alone; *own is that mesh, and the caller
 * closes it. */
enum tr_status tr_mesh_given(struct tr_mesh *given, struct tr_mesh **own, struct tr_mesh **out);
bool tr_mesh_is_alone(const struct tr_mesh *m);
bool tr_mesh_is_first(const struct tr_mesh *m); /* rank 0, which reports for all ranks */
/* Does rank `other` have this rank's coordinates on these axes? */
bool tr_mesh_shares(const struct tr_mesh *m, int other, tr_axes axes);

/* Opens the groups of these keys. Collective: every rank declares the same keys in the same order, before step 0,
 * because opening a group needs all ranks. tr_mesh_open declares every axis, the sets above and the ends. */
enum tr_status tr_mesh_declare(struct tr_mesh *m, const struct tr_group_key *key, int n);
/* A declared group; a query for any other group is a bug. NULL: this rank is not in it (the ends). */
struct tr_comm *tr_mesh_group(const struct tr_mesh *m, tr_axes axes);
struct tr_comm *tr_mesh_ends(const struct tr_mesh *m);
static inline struct tr_comm *tr_mesh_axis(const struct tr_mesh *m, int axis)
{
    return tr_mesh_group(m, TR_ON(axis));
}

/* Every communicator reports to `tracer`; NULL ends it. */
void tr_mesh_trace(struct tr_mesh *m, struct tr_comm_tracer *tracer);
/* How long this rank's arithmetic waited for communication since the last call. *stages (may be NULL) is the part that
 * waited for the pipeline. */
int64_t tr_mesh_waited_us(struct tr_mesh *m, int64_t *stages);

/* Compares n named numbers over all ranks. TR_USAGE names the first one on which ranks disagree (reliability E1). */
enum tr_status tr_mesh_agree(struct tr_mesh *m, const char *const *names, const int64_t *values, int n);

#endif
