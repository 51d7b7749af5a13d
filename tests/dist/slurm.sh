#!/usr/bin/env bash
# The distribution's Slurm, two nodes on this host. `srun` with one agent a node finds everything in Slurm's environment; and
# examples/slurm/train.sbatch is preempted by a signal, then requeued by force, goes on each time, and ends with the bits of a run that
# nobody disturbed.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "slurmd needs root"
for c in slurmctld slurmd munged sbatch; do command -v $c >/dev/null || skip "no $c (apt install slurmctld slurmd slurm-client munge)"; done
[ -e "$(dirname "$TRIREME")/libtrireme_mpich.so" ] || skip "no MPICH"
host=$(hostname -s)
cleanup() {
    for f in ctld.pid n1.pid n2.pid munge.pid; do [ ! -e "$work/$f" ] || kill -9 "$(cat "$work/$f")" 2>/dev/null || true; done
    for p in $(pgrep -f "$work" || true); do kill -9 "$p" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
chmod 755 "$work"
mkdir spool-n1 spool-n2 state
head -c 1024 /dev/urandom >munge.key
chmod 400 munge.key
munged --force --socket="$work/munge.socket" --key-file="$work/munge.key" --pid-file="$work/munge.pid" --log-file="$work/munge.log" \
    --seed-file="$work/munge.seed" || skip "munged does not start"
port=$((30000 + $$ % 10000))
cat >slurm.conf <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=10
SlurmctldPidFile=$work/ctld.pid
SlurmctldLogFile=$work/ctld.log
SlurmdPidFile=$work/%n.pid
SlurmdLogFile=$work/%n.log
SlurmdSpoolDir=$work/spool-%n
StateSaveLocation=$work/state
MpiDefault=none
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$work/slurm.conf
slurmctld -i -f slurm.conf
slurmd -N n1 -f slurm.conf
slurmd -N n2 -f slurm.conf
for _ in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.2
done
[ "$(sinfo -h -t idle -o %D)" = 2 ] || skip "slurm does not come up: $(tail -3 ctld.log n1.log)"

tiny_text train.jsonl
tiny_model model
options=(--model "$work/model" --data "$work/train.jsonl" --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 1
    --max_steps 40 --save_steps 5 --learning_rate 1e-2 --threads 1 --quiet)
export TR_PROGRAM=$TRIREME TR_RDZV_HOST=127.0.0.1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output "$work/clean"

expect 0 timeout -k 1 60 srun -N 2 --ntasks-per-node 1 --export=ALL "$TRIREME" launch --rdzv "127.0.0.1:$((port + 3))" train \
    "${options[@]}" --max_steps 6 --output "$work/srun" # the names of these nodes are not in any DNS, hence --rdzv
grep -qs '"event":"end"' srun/events.jsonl || fail "no end: $(cat stdout stderr)"
grep -qh 'Slurm: 2 nodes, this is 1' stderr stdout || fail "the environment of Slurm was not used: $(cat stdout stderr)"

# Ranks that srun starts by itself, which find each other by Slurm's PMI2.
if srun --mpi=list 2>&1 | grep -q pmi2; then
    expect 0 timeout -k 1 60 srun --mpi=pmi2 -N 2 -n 2 --export=ALL "$TRIREME" train "${options[@]}" --output "$work/pmi2"
    same clean/model.safetensors pmi2/model.safetensors
fi

# wait_for STATE STEP: the job is in that state, and its log has that step.
state_of() { scontrol -o show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
wait_for() {
    for _ in $(seq 600); do
        state=$(state_of)
        # A requeued job waits for two minutes by default.
        [ "$state" != PENDING ] || scontrol update JobId="$job" StartTime=now 2>/dev/null || true
        [ "$state" = "$1" ] && grep -Eqs "\"event\":\"step\".*\"step\":$2[,}]" out/events.jsonl && return
        sleep 0.1
    done
    fail "the job is $state, not $1 at step $2: $(cat job.log; tail -n 3 out/events.jsonl)"
}
TR_FAIL=train.after_step:delay1500:8 sbatch --parsable --chdir="$work" --output="$work/job.log" --open-mode=append \
    "$source_dir/examples/slurm/train.sbatch" "${options[@]}" --output "$work/out" >job
job=$(cat job)
wait_for RUNNING 7
scancel --signal=USR1 --batch "$job" # what Slurm sends when time is nearly up
wait_for RUNNING 14
scontrol requeue "$job" # SIGTERM to every step, and SIGKILL after KillWait
wait_for COMPLETED 40
grep -q 'trireme ended with 75' job.log || fail "it was not preempted: $(cat job.log)"
scontrol -o show job "$job" | grep -q 'Restarts=2' || fail "it was not requeued twice: $(scontrol show job "$job")"
same clean/model.safetensors out/model.safetensors
echo "two nodes under slurm: by srun; saved at the signal, requeued twice, and the bits of one node"
