#!/usr/bin/env bash
# examples/slurm/train.sbatch under the distribution's Slurm, two nodes on this host: it runs to its end, and after a preemption is
# requeued, goes on, and ends with the bits of a run that nobody disturbed.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
skip() { echo "skipped: $*"; exit 77; }
[ -n "${TR_SLURM:-}" ] || skip "it starts daemons; TR_SLURM=1 runs it"
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
TR_FAIL=train.after_step:delay1500:8 sbatch --parsable --chdir="$work" --output="$work/job.log" "$source_dir/examples/slurm/train.sbatch" \
    "${options[@]}" --output "$work/out" >job
job=$(cat job)
for _ in $(seq 300); do
    ! grep -qs '"event":"step"' out/events.jsonl || break
    sleep 0.1
done
grep -qs '"event":"step"' out/events.jsonl || fail "no step: $(cat job.log; squeue)"
scancel --signal=USR1 --batch "$job" # what Slurm sends when time is nearly up
for _ in $(seq 900); do
    state=$(scontrol -o show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p')
    [ "$state" != COMPLETED ] || break
    # A requeued job waits for two minutes by default.
    [ "$state" != PENDING ] || scontrol update JobId="$job" StartTime=now 2>/dev/null || true
    sleep 0.2
done
[ "$state" = COMPLETED ] || fail "the job is $state: $(cat job.log)"
grep -q 'trireme ended with 75' job.log || fail "it was not preempted: $(cat job.log)"
scontrol -o show job "$job" | grep -q 'Restarts=1' || fail "it was not requeued: $(scontrol show job "$job")"
same clean/model.safetensors out/model.safetensors
echo "two nodes under slurm: saved at the signal, requeued, and the bits of one node"
