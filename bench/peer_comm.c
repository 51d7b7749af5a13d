/* peer_comm.c - the points of `trireme bench comm` on an MPI library; built and run by peer_comm.py.
 *
 * usage: mpirun -n N peer_comm name [bytes_max [seconds a point]]
 */
#define _GNU_SOURCE
#include <mpi.h>
#include "cli/comm_points.h"

static double max_of(void *ctx, double x)
{
    (void)ctx;
    MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return x;
}

static void run(void *ctx, enum points_kind kind, float *in, float *out, size_t count)
{
    int size = *(int *)ctx, whole = (int)count, part = whole / size;
    if (kind == POINT_ALL_REDUCE)
        MPI_Allreduce(MPI_IN_PLACE, out, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (kind == POINT_ALL_GATHER)
        MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    else if (kind == POINT_ALL_GATHER_IN_PLACE)
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    struct points p = { argc > 1 ? argv[1] : "mpi", rank, size, max_of, run, &size, NULL, NULL, points_json };
    p.in = aligned_alloc(2 << 20, POINT_BYTES_MAX);
    p.out = aligned_alloc(2 << 20, POINT_BYTES_MAX);
    if (!p.in || !p.out)
        return 1;
    points_all(&p, argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) : POINT_BYTES_MAX,
               argc > 3 ? strtod(argv[3], NULL) : 0.3);
    MPI_Finalize();
    return 0;
}
