/* mpi_glue.c - tr_mpi_api over <mpi.h>. Built as a module once for each MPI library; see mpi_api.h. */
#include "comm/mpi_api.h"
#include <mpi.h>
#include <stdio.h>
#include <string.h>

extern const struct tr_mpi_api tr_mpi_api;

_Static_assert(sizeof(MPI_Comm) <= sizeof(tr_mpi_comm) && sizeof(MPI_Request) <= sizeof(tr_mpi_request), "handles fit");

static MPI_Comm comm_of(tr_mpi_comm c)
{
    MPI_Comm out;
    memcpy(&out, &c, sizeof out);
    return out;
}

static MPI_Datatype type_of(int elem)
{
    return elem == 8 ? MPI_UINT64_T : elem == 4 ? MPI_UINT32_T : elem == 2 ? MPI_UINT16_T : MPI_BYTE;
}

static int keep_comm(int err, const MPI_Comm *c, tr_mpi_comm *out)
{
    *out = 0;
    if (err == MPI_SUCCESS)
        memcpy(out, c, sizeof *c);
    return err;
}

/* r is a pointer because the call that returns err writes the handle. */
static int keep(int err, const MPI_Request *r, tr_mpi_request *out)
{
    *out = 0;
    if (err == MPI_SUCCESS)
        memcpy(out, r, sizeof *r);
    return err;
}

static int init(int *rank, int *size, tr_mpi_comm *data, tr_mpi_comm *control)
{
    int level = MPI_THREAD_SINGLE, err = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    MPI_Comm c;
    if (err != MPI_SUCCESS || level < MPI_THREAD_SERIALIZED)
        return err != MPI_SUCCESS ? err : MPI_ERR_OTHER;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
    c = MPI_COMM_WORLD;
    (void)keep_comm(MPI_SUCCESS, &c, data);
    err = MPI_Comm_dup(MPI_COMM_WORLD, &c);
    return keep_comm(err, &c, control);
}

static int finalize(void)
{
    return MPI_Finalize();
}

static int split(tr_mpi_comm comm, int color, int key, tr_mpi_comm *out)
{
    MPI_Comm c = MPI_COMM_NULL;
    int err = MPI_Comm_split(comm_of(comm), color < 0 ? MPI_UNDEFINED : color, key, &c);
    return keep_comm(err, &c, out);
}

static int allgather(const void *in, void *out, int bytes, tr_mpi_comm comm, tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    return keep(MPI_Iallgather(in, bytes, MPI_BYTE, out, bytes, MPI_BYTE, comm_of(comm), &r), &r, req);
}

static int allgatherv(const void *in, int n, void *out, const int *n_out, const int *at_out, int elem, tr_mpi_comm comm,
                      tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    MPI_Datatype t = type_of(elem);
    return keep(MPI_Iallgatherv(in ? in : MPI_IN_PLACE, n, t, out, n_out, at_out, t, comm_of(comm), &r), &r, req);
}

static int alltoallv(const void *in, const int *n_in, const int *at_in, void *out, const int *n_out, const int *at_out,
                     int elem, tr_mpi_comm comm, tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    MPI_Datatype t = type_of(elem);
    return keep(MPI_Ialltoallv(in, n_in, at_in, t, out, n_out, at_out, t, comm_of(comm), &r), &r, req);
}

static int bcast(void *buf, int n, int elem, int root, tr_mpi_comm comm, tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    return keep(MPI_Ibcast(buf, n, type_of(elem), root, comm_of(comm), &r), &r, req);
}

static int send(const void *buf, int n, int elem, int to, int tag, tr_mpi_comm comm, tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    return keep(MPI_Isend(buf, n, type_of(elem), to, tag, comm_of(comm), &r), &r, req);
}

static int recv(void *buf, int n, int elem, int from, int tag, tr_mpi_comm comm, tr_mpi_request *req)
{
    MPI_Request r = MPI_REQUEST_NULL;
    int source = from == TR_MPI_ANY ? MPI_ANY_SOURCE : from;
    return keep(MPI_Irecv(buf, n, type_of(elem), source, tag, comm_of(comm), &r), &r, req);
}

static int test(tr_mpi_request *req, int *is_done)
{
    MPI_Request r;
    memcpy(&r, req, sizeof r);
    int err = MPI_Test(&r, is_done, MPI_STATUS_IGNORE);
    memcpy(req, &r, sizeof r);
    return err;
}

static int cancel(tr_mpi_request *req)
{
    MPI_Request r;
    memcpy(&r, req, sizeof r);
    return MPI_Cancel(&r);
}

static void error(int code, char *buf, size_t n_buf)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        (void)snprintf(text, sizeof text, "error %d", code);
    (void)snprintf(buf, n_buf, "%s", text);
}

const struct tr_mpi_api tr_mpi_api = { TR_MPI_NAME, init, finalize, split, allgather, allgatherv, alltoallv,
                                       bcast,       send, recv,     test,  cancel,    error };
