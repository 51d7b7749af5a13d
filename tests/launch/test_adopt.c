/* What mpirun and srun tell a rank becomes what launch would have told it. */
#include "launch/launch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static int forget_all(void **state)
{
    (void)state;
    clearenv();
    return 0;
}

static void has(const char *name, const char *value)
{
    const char *got = getenv(name);
    assert_string_equal(got ? got : "(unset)", value);
}

static void open_mpi_tells_rank_size_and_host(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
    setenv("PMIX_NAMESPACE", "1234", 1);
    tr_launch_adopt();
    has("RANK", "3");
    has("WORLD_SIZE", "4");
    has("LOCAL_RANK", "1");
    has("LOCAL_WORLD_SIZE", "2");
    has("TR_JOB", "1234.");
}

static void mpich_tells_rank_size_and_host(void **state)
{
    (void)state;
    char job[32];
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_FD", "5", 1);
    setenv("MPI_LOCALNRANKS", "2", 1);
    snprintf(job, sizeof job, "mpirun-%d", (int)getppid());
    tr_launch_adopt();
    has("RANK", "0");
    has("WORLD_SIZE", "2");
    has("LOCAL_WORLD_SIZE", "2");
    has("TR_JOB", job);
}

static void a_step_of_srun_is_a_rank_and_a_batch_script_is_not(void **state)
{
    (void)state;
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "6", 1);
    setenv("SLURM_JOB_ID", "77", 1);
    tr_launch_adopt();
    assert_null(getenv("RANK"));
    setenv("SLURM_PROCID", "4", 1);
    setenv("SLURM_STEP_NUM_TASKS", "6", 1);
    setenv("SLURM_LOCALID", "1", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "3(x2)", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    tr_launch_adopt();
    has("RANK", "4");
    has("WORLD_SIZE", "6");
    has("LOCAL_RANK", "1");
    has("LOCAL_WORLD_SIZE", "3");
    has("TR_JOB", "77.0");
}

/* What Slurm 22.05 sets for --mpi=pmi2: nothing there says which ranks share a host. */
static void srun_with_pmi2_tells_the_ranks_of_a_host(void **state)
{
    (void)state;
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_FD", "11", 1);
    setenv("PMI_JOBID", "77.0", 1);
    setenv("SLURM_PROCID", "1", 1);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    setenv("SLURM_LOCALID", "0", 1);
    setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)", 1);
    tr_launch_adopt();
    has("RANK", "1");
    has("WORLD_SIZE", "2");
    has("LOCAL_RANK", "0");
    has("LOCAL_WORLD_SIZE", "1");
    has("TR_JOB", "77.0");
}

static void mpirun_in_a_step_of_srun_counts_its_own_ranks(void **state)
{
    (void)state;
    setenv("PMI_RANK", "5", 1);
    setenv("PMI_SIZE", "8", 1);
    setenv("PMI_FD", "5", 1);
    setenv("MPI_LOCALRANKID", "1", 1);
    setenv("MPI_LOCALNRANKS", "4", 1);
    setenv("SLURM_PROCID", "1", 1); /* the second host's proxy */
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    tr_launch_adopt();
    has("RANK", "5");
    has("WORLD_SIZE", "8");
    has("LOCAL_WORLD_SIZE", "4");
}

static void torchrun_wins_and_nonsense_is_left_alone(void **state)
{
    (void)state;
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "two", 1);
    setenv("PMI_FD", "5", 1);
    tr_launch_adopt();
    assert_null(getenv("RANK"));
    setenv("PMI_SIZE", "2", 1);
    setenv("RANK", "7", 1);
    setenv("WORLD_SIZE", "8", 1);
    tr_launch_adopt();
    has("RANK", "7");
    has("WORLD_SIZE", "8");
    assert_null(getenv("TR_JOB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(open_mpi_tells_rank_size_and_host, forget_all),
        cmocka_unit_test_setup(mpich_tells_rank_size_and_host, forget_all),
        cmocka_unit_test_setup(a_step_of_srun_is_a_rank_and_a_batch_script_is_not, forget_all),
        cmocka_unit_test_setup(srun_with_pmi2_tells_the_ranks_of_a_host, forget_all),
        cmocka_unit_test_setup(mpirun_in_a_step_of_srun_counts_its_own_ranks, forget_all),
        cmocka_unit_test_setup(torchrun_wins_and_nonsense_is_left_alone, forget_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
