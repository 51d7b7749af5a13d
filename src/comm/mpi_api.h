/* mpi_api.h - what the mpi engine needs of an MPI library, with types that are the same for all libraries.
 *
 * MPICH and Open MPI have different binary interfaces, and trireme must start without either. So mpi_glue.c, which is
 * this table over <mpi.h> and nothing else, is built once for each library that the build finds, as a module beside the
 * program. The engine itself is compiled once and loads the module that fits the launcher. Rejected: linking one MPI
 * (the other's mpirun would start ranks that do not find each other), and declaring MPI's functions ourselves (handles
 * differ).
 */
#ifndef TR_COMM_MPI_API_H
#define TR_COMM_MPI_API_H

#include <stddef.h>
#include <stdint.h>

enum { TR_MPI_ANY = -1 };
#define TR_MPI_API_SYMBOL "tr_mpi_api"

typedef uint64_t tr_mpi_comm;    /* an MPI_Comm */
typedef uint64_t tr_mpi_request; /* an MPI_Request */

/* Functions return 0, or MPI's error code. `elem` is 1, 2, 4 or 8 bytes; counts and offsets are in elements. Arrays
 * must live until the request is complete. */
struct tr_mpi_api {
    const char *name;
    int (*init)(int *rank, int *size, tr_mpi_comm *data, tr_mpi_comm *control); /* blocks: all ranks call it */
    int (*finalize)(void);                                                      /* blocks */
    int (*split)(tr_mpi_comm comm, int color, int key, tr_mpi_comm *out);       /* blocks; color < 0: none */
    int (*allgather)(const void *in, void *out, int bytes, tr_mpi_comm comm, tr_mpi_request *req);
    int (*allgatherv)(const void *in, int n, void *out, const int *n_out, const int *at_out, int elem, tr_mpi_comm comm,
                      tr_mpi_request *req); /* in NULL: the input is in its place in out */
    int (*alltoallv)(const void *in, const int *n_in, const int *at_in, void *out, const int *n_out, const int *at_out,
                     int elem, tr_mpi_comm comm, tr_mpi_request *req);
    int (*bcast)(void *buf, int n, int elem, int root, tr_mpi_comm comm, tr_mpi_request *req);
    int (*send)(const void *buf, int n, int elem, int to, int tag, tr_mpi_comm comm, tr_mpi_request *req);
    int (*recv)(void *buf, int n, int elem, int from, int tag, tr_mpi_comm comm, tr_mpi_request *req);
    int (*test)(tr_mpi_request *req, int *is_done);
    int (*cancel)(tr_mpi_request *req); /* of a receive; test completes it */
    void (*error)(int code, char *buf, size_t n_buf);
};

#endif
