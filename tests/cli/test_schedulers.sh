#!/usr/bin/env bash
# The examples for schedulers: manifests parse, name what they use, and hold commands that our launcher accepts; the Slurm script
# is sound shell, passes a signal on, and requeues on 75 and 143 only (with stand-ins for Slurm's commands).
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
examples=$source_dir/examples
python3 -c 'import yaml' 2>/dev/null || { echo "skipped: no python3-yaml"; exit 77; }
python3 - "$examples"/kubernetes/*.yaml >commands <<'PY'
import sys, yaml

def need(node, path, kind):
    for key in path.split("."):
        assert isinstance(node, (dict, list)), f"{path}: nothing below {key}"
        node = node[int(key)] if isinstance(node, list) else node.get(key)
        assert node is not None, f"{path} is missing"
    assert isinstance(node, kind), f"{path} is a {type(node).__name__}"
    return node

def job(spec):
    assert need(spec, "completionMode", str) == "Indexed"
    assert need(spec, "completions", int) == need(spec, "parallelism", int)
    codes = [c for r in need(spec, "podFailurePolicy.rules", list) if r["action"] == "FailJob" for c in r["onExitCodes"]["values"]]
    assert codes == [2, 78], codes
    pod = need(spec, "template.spec", dict)
    assert need(pod, "restartPolicy", str) == "Never" and need(pod, "terminationGracePeriodSeconds", int) >= 60
    volumes = {v["name"] for v in need(pod, "volumes", list)}
    for c in need(pod, "containers", list):
        assert {m["name"] for m in c["volumeMounts"]} <= volumes, "a volume is mounted that is not there"
        names = {e["name"] for e in c["env"]} | {"JOB_COMPLETION_INDEX"}
        assert need(c, "command", list) == ["/bin/sh", "-c"] and len(need(c, "args", list)) == 1
        text = c["args"][0]
        assert f"--nnodes {spec['completions']}" in text or f":{spec['completions']}" in text, "nnodes and completions differ"
        for n in names:
            text = text.replace(f"${n}", "1" if n == "JOB_COMPLETION_INDEX" else "127.0.0.1")
        assert "$" not in text, text
        print(text.removeprefix("exec trireme "))

for path in sys.argv[1:]:
    for doc in yaml.safe_load_all(open(path)):
        need(doc, "apiVersion", str), need(doc, "metadata.name", str)
        if doc["kind"] == "Job":
            job(doc["spec"])
        elif doc["kind"] == "JobSet":
            for r in need(doc, "spec.replicatedJobs", list):
                job(need(r, "template.spec", dict))
        else:
            assert doc["kind"] == "Service" and need(doc, "spec.clusterIP", str) == "None"
PY
[ "$(wc -l <commands)" = 2 ] || fail "two manifests, $(wc -l <commands) commands"
while read -r line; do # accepted up to the model, which is not here
    read -ra words < <(echo "$line" | tr -d '"')
    expect 2 timeout 20 "$TRIREME" "${words[@]/--output*/--nothing}" </dev/null
    grep -q 'nothing' stderr || fail "the launcher refuses something else: $(cat stderr)"
done <commands

# Slurm's commands, played: srun runs our step, scontrol and scancel write down what they are asked.
bash -n "$examples/slurm/train.sbatch"
mkdir bin
cat >bin/srun <<'SH'
#!/bin/bash
shift
exec env SLURM_NNODES=1 SLURM_NODEID=0 "$@"
SH
cat >bin/scontrol <<'SH'
#!/bin/bash
case "$1 $2" in
"show hostnames") echo here ;;
"show node") echo "   NodeAddr=127.0.0.1 NodeHostName=here" ;;
*) echo "scontrol $*" >>asked ;;
esac
SH
cat >bin/scancel <<'SH'
#!/bin/bash
echo "scancel $*" >>asked
kill -TERM "$(cat agent)"
SH
cat >bin/trireme <<SH
#!/bin/bash
echo \$\$ >agent
exec "$TRIREME" "\$@"
SH
chmod +x bin/*
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 2 --save_steps 5 --save_total_limit 2 --quiet)
export SLURM_JOB_ID=$$ SLURM_JOB_NODELIST=here PATH="$PWD/bin:$PATH"
TR_PROGRAM=trireme expect 0 bash "$examples/slurm/train.sbatch" "${options[@]}" --max_steps 6 --output done
[ ! -e asked ] || fail "a job that is done asked for $(cat asked)"
TR_PROGRAM=trireme bash "$examples/slurm/train.sbatch" "${options[@]}" --max_steps 1000000 --output preempted >run.log 2>&1 &
pid=$!
for _ in $(seq 400); do
    ! grep -qs '"event":"step"' preempted/events.jsonl || break
    sleep 0.05
done
kill -USR1 $pid
rc=0
wait $pid || rc=$?
[ $rc = 75 ] || fail "preempted: exit $rc, want 75: $(cat run.log)"
grep -q "scontrol requeue $$" asked || fail "it does not ask to be requeued: $(cat asked run.log)"
[ -n "$(ls -d preempted/checkpoint-*)" ] || fail "nothing was saved: $(cat run.log)"
TR_PROGRAM=trireme expect 2 bash "$examples/slurm/train.sbatch" "${options[@]}" --max_stepz 6 --output bad
[ "$(grep -c requeue asked)" = 1 ] || fail "bad input was requeued"
