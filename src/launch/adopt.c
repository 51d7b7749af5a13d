/* adopt.c - translates the environment of other launchers into the variables of ours, once.
 *
 * mpirun of MPICH and of Open MPI and srun each have their own names for a rank, the size of the world and the ranks of
 * this host. All of Trireme reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (torchrun's names) and TR_JOB; where
 * they are set already, they win.
 */
#include "launch/launch.h"
#include <stdlib.h>
#include <unistd.h>

struct dialect {
    const char *rank, *size, *local_rank, *local_size;
    const char *must; /* must be set too, else the others mean something else */
    const char *job[2];
};

static const struct dialect dialects[] = {
    { "OMPI_COMM_WORLD_RANK",
      "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE",
      "OMPI_COMM_WORLD_RANK",
      { "PMIX_NAMESPACE", NULL } },
    { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS", { NULL, NULL } },
    /* srun, with --mpi=pmi2 too: only its own variables say which ranks share a host. In a step of mpirun they count
     * hosts, so this row is behind it. A batch script has SLURM_PROCID 0 too, but is not a step of srun. Tasks per node
     * are written "2(x3),1": the first number counts. */
    { "SLURM_PROCID",
      "SLURM_STEP_NUM_TASKS",
      "SLURM_LOCALID",
      "SLURM_STEP_TASKS_PER_NODE",
      "SLURM_STEP_ID",
      { "SLURM_JOB_ID", "SLURM_STEP_ID" } },
    { "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "PMI_FD", { NULL, NULL } },
};

/* Reads the number at the start of a variable; false: there is none. */
static bool read_number(const char *name, char out[16])
{
    const char *text = getenv(name);
    size_t n = text ? strspn(text, "0123456789") : 0;
    if (n == 0 || n > 9)
        return false;
    snprintf(out, 16, "%.*s", (int)n, text);
    return true;
}

static void name_job(const struct dialect *d, char *buf, size_t n_buf)
{
    const char *a = d->job[0] ? getenv(d->job[0]) : NULL, *b = d->job[1] ? getenv(d->job[1]) : NULL;
    if (a)
        snprintf(buf, n_buf, "%s.%s", a, b ? b : "");
    else /* one parent starts all ranks of a host, and only shm, which is for one host, uses the name */
        snprintf(buf, n_buf, "mpirun-%d", (int)getppid());
}

void tr_launch_adopt(void)
{
    char rank[16], size[16], local[16], job[256];
    if (getenv("RANK") || getenv("WORLD_SIZE"))
        return;
    for (size_t i = 0; i < TR_COUNT_OF(dialects); i++) {
        const struct dialect *d = &dialects[i];
        if (!getenv(d->must) || !read_number(d->rank, rank) || !read_number(d->size, size))
            continue;
        setenv("RANK", rank, 1);
        setenv("WORLD_SIZE", size, 1);
        if (read_number(d->local_rank, local))
            setenv("LOCAL_RANK", local, 1);
        if (read_number(d->local_size, local))
            setenv("LOCAL_WORLD_SIZE", local, 1);
        name_job(d, job, sizeof job);
        setenv("TR_JOB", job, 0);
        return;
    }
}
