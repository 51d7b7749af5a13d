#!/usr/bin/env bash
# Training over MPI: started by trireme launch (MPICH, our PMI service), by mpirun of MPICH and of Open MPI, the weights have
# the bits of the same ranks over shared memory. Without any of them there is nothing to test.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
modules=$(dirname "$TRIREME")
mpich=$([ -e "$modules/libtrireme_mpich.so" ] && command -v mpirun.mpich || true)
openmpi=$([ -e "$modules/libtrireme_openmpi.so" ] && command -v mpirun.openmpi || true)
[ -n "$mpich$openmpi" ] || {
    echo "skipped: neither MPICH nor Open MPI is installed"
    exit 77
}
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # what MPI libraries keep until the end is theirs
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 6 --learning_rate 1e-2
    --save_steps 3 --zero 2 --threads 1 --quiet)
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output shm

if [ -n "$mpich" ]; then
    expect 0 timeout -k 1 60 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --comm mpi --output launched
    same shm/model.safetensors launched/model.safetensors
    expect 0 timeout -k 1 60 "$mpich" -n 2 "$TRIREME" train "${options[@]}" --comm mpi --output mpich
    same shm/model.safetensors mpich/model.safetensors
    expect 0 timeout -k 1 60 "$mpich" -n 2 "$TRIREME" train "${options[@]}" --output mpich-auto # one host: shm
    same shm/model.safetensors mpich-auto/model.safetensors

    # A rank killed in the middle of a step: the others name it, the job says "retry me", nobody hangs.
    start=$SECONDS
    TR_FAIL=comm.in_reduce:kill:5:1 expect 70 timeout -k 1 30 "$TRIREME" launch --nproc-per-node 3 train "${options[@]}" \
        --train_batch_size 12 --comm mpi --output killed
    [ $((SECONDS - start)) -lt 10 ] || fail "ended after $((SECONDS - start)) s"
    grep -q 'rank 1 .*SIGKILL' stderr || fail "the launcher does not name rank 1: $(cat stderr)"
    grep -q 'rank 1 (pid [0-9]*, .*) died' killed/logs/rank-0000.log || fail "rank 0 does not: $(cat killed/logs/rank-0000.log)"

    # Healed: the next generation's ranks meet through a fresh table.
    TR_FAIL=train.before_step:kill:5:1 expect 0 timeout -k 1 60 "$TRIREME" launch --nproc-per-node 2 --max-restarts 3 train \
        "${options[@]}" --comm mpi --output healed
    same shm/model.safetensors healed/model.safetensors
fi
if [ -n "$openmpi" ]; then
    expect 0 timeout -k 1 60 "$openmpi" --allow-run-as-root --oversubscribe -n 2 "$TRIREME" train "${options[@]}" --comm mpi \
        --output openmpi
    same shm/model.safetensors openmpi/model.safetensors
fi
expect 2 "$TRIREME" train "${options[@]}" --comm mpi --output none --dp 2
