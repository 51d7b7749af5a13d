#!/usr/bin/env bash
# Two hosts: network namespaces with addresses and host names of their own and a cable between them, two ranks in each,
# MPI over TCP. The run has the bits of the same four ranks on one host, and its bytes went through the cable.
. "$(dirname "$0")/../cli/common.sh"
unset RANK WORLD_SIZE
skip() {
    echo "skipped: $*"
    exit 77
}
id=$$
a=tr-a-$id b=tr-b-$id
net=10.$((id % 200 + 20)).77
modules=$(dirname "$TRIREME")
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "no ip (iproute2)"
cleanup() {
    local ns pid
    for ns in $a $b; do
        for pid in $(ip netns pids $ns 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del $ns 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
ip netns add $a 2>stderr || skip "network namespaces are not allowed: $(cat stderr)"
ip netns add $b
ip link add eth0 netns $a type veth peer name eth0 netns $b 2>stderr || skip "no veth: $(cat stderr)"
for end in a b; do
    ns=tr-$end-$id
    ip -n $ns addr add $net.$([ $end = a ] && echo 1 || echo 2)/24 dev eth0
    ip -n $ns link set eth0 up
    ip -n $ns link set lo up
done
for ns in $a $b; do # the kernel takes its time to call a link up
    for _ in $(seq 50); do
        [ "$(ip netns exec $ns cat /sys/class/net/eth0/operstate)" != up ] || break
        sleep 0.1
    done
done
ip netns exec $a timeout 5 bash -c "exec 3<>/dev/tcp/$net.2/1" 2>stderr || true # a host that answers refuses this port
grep -q refused stderr || skip "the two namespaces do not reach each other: $(cat stderr)"

# What mpirun uses for ssh: a shell "on" the host that has this address, under its own host name.
cat >reach <<SH
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done # options of ssh
host=\$1
shift
case \$host in
$net.1) ns=$a ;;
$net.2) ns=$b ;;
*) echo "reach: no host \$host" >&2; exit 1 ;;
esac
exec ip netns exec \$ns unshare --uts bash -c "hostname \$ns; \$*"
SH
chmod +x reach
received() { ip netns exec $b cat /sys/class/net/eth0/statistics/rx_bytes; }
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 6 --learning_rate 1e-2
    --save_steps 3 --zero 2 --hybrid_shard 2 --threads 1 --quiet)
expect 0 "$TRIREME" launch --nproc-per-node 4 train "${options[@]}" --output one-host

n_run=0
run() { # NAME COMMAND...: the job of four ranks, from host a
    local name=$1 before
    shift
    before=$(received)
    expect 0 timeout -k 2 100 ip netns exec $a "$@" "$TRIREME" train "${options[@]}" --output "$name"
    same one-host/model.safetensors "$name/model.safetensors"
    # Each step sums every gradient over the hosts at least once: 4 bytes a parameter.
    local bytes=$(($(received) - before)) least=$((6 * $(stat -c %s model/model.safetensors) / 2))
    [ $bytes -gt $least ] || fail "$name: only $bytes bytes went through the cable, at least $least should"
    echo "$name: two hosts, the bits of one; $bytes bytes through the cable"
    n_run=$((n_run + 1))
}
if [ -e "$modules/libtrireme_mpich.so" ] && command -v mpirun.mpich >/dev/null; then
    # UCX would see through the namespaces and use shared memory.
    UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 run mpich mpirun.mpich -launcher ssh -launcher-exec "$work/reach" \
        -hosts $net.1,$net.2 -ppn 2 -n 4
fi
if [ -e "$modules/libtrireme_openmpi.so" ] && command -v mpirun.openmpi >/dev/null; then
    OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self run openmpi mpirun.openmpi --allow-run-as-root --oversubscribe \
        --mca plm_rsh_agent "$work/reach" --mca oob_tcp_if_include $net.0/24 --mca btl_tcp_if_include $net.0/24 \
        -H $net.1:2,$net.2:2 -n 4
fi
[ $n_run -gt 0 ] || skip "neither MPICH nor Open MPI is installed"
