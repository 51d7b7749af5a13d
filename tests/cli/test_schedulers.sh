#!/usr/bin/env bash
# The examples for schedulers: manifests parse, name what they use, and hold commands that our launcher accepts; the Slurm script
# is sound shell, passes a signal on, and requeues on 75 and 143 only (with stand-ins for Slurm's commands).
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
examples=$source_dir/examples
python3 -c 'import yaml' 2>/dev/null || { echo "skipped: no python3-yaml"; exit 77; }
cat >keys.py <<'PY'
import sys, yaml

def only(node, where, **kinds):
    """A mapping with these keys: a type is needed, a tuple (type,) may be there."""
    assert isinstance(node, dict), f"{where} is no mapping"
    for key in node:
        assert key in kinds, f"{where}.{key} is no key of it"
    for key, kind in kinds.items():
        if key not in node:
            assert isinstance(kind, tuple), f"{where}.{key} is missing"
        else:
            kind = kind[0] if isinstance(kind, tuple) else kind
            assert isinstance(node[key], kind), f"{where}.{key} is a {type(node[key]).__name__}"
    return node

def pod(spec, where):
    """An unprivileged pod with a read-only root, whose volumes its user may write."""
    only(spec, where, restartPolicy=str, terminationGracePeriodSeconds=int, securityContext=dict, containers=list, volumes=list, subdomain=(str,))
    assert spec["restartPolicy"] == "Never" and spec["terminationGracePeriodSeconds"] >= 60 and spec["securityContext"] == {"fsGroup": 10001}
    for v in spec["volumes"]:
        only(v, where + ".volumes", name=str, persistentVolumeClaim=(dict,), emptyDir=(dict,))
    for c in spec["containers"]:
        only(c, where + ".containers", name=str, image=str, command=list, args=list, env=list, volumeMounts=list, securityContext=dict, ports=(list,),
             startupProbe=(dict,), readinessProbe=(dict,), livenessProbe=(dict,))
        assert c["command"] == ["/bin/sh", "-c"] and len(c["args"]) == 1
        assert c["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True}, c["securityContext"]
        for m in c["volumeMounts"]:
            only(m, where + ".volumeMounts", name=str, mountPath=str)
        assert {m["name"] for m in c["volumeMounts"]} == {v["name"] for v in spec["volumes"]}, "mounts and volumes differ"
    return spec["containers"][0]

def rules(policy, container, where):
    """Exit codes of a Job: 2 and 78 end it, 75 does not count."""
    codes = {"FailJob": [], "Ignore": []}
    for r in only(policy, where, rules=list)["rules"]:
        only(r, where + ".rules", action=str, onExitCodes=(dict,), onPodConditions=(list,))
        for c in r.get("onPodConditions", []):
            only(c, where + ".onPodConditions", type=str, status=str)
        if "onExitCodes" in r:
            only(r["onExitCodes"], where + ".onExitCodes", containerName=str, operator=str, values=list)
            assert (r["onExitCodes"]["containerName"], r["onExitCodes"]["operator"]) == (container, "In")
            codes[r["action"]] += r["onExitCodes"]["values"]
    assert codes == {"FailJob": [2, 78], "Ignore": [75]}, codes
PY
python3 - "$examples"/kubernetes/job*.yaml >commands <<'PY'
import sys, yaml
sys.path.insert(0, ".")
from keys import *

def job(spec, where):
    only(spec, where, completionMode=str, completions=int, parallelism=int, backoffLimit=int, podFailurePolicy=dict, template=dict)
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    c = pod(only(spec["template"], where + ".template", spec=dict)["spec"], where + ".template.spec")
    rules(spec["podFailurePolicy"], c["name"], where + ".podFailurePolicy")
    for probe, path in ("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez"):
        only(c[probe], probe, httpGet=dict, periodSeconds=int, failureThreshold=(int,))
        assert c[probe]["httpGet"] == {"path": path, "port": 9090} and {"containerPort": 9090} in c["ports"], c[probe]
    assert '--metrics-port "$POD_IP:9090"' in c["args"][0], "probes ask where nobody listens"
    assert c["livenessProbe"]["periodSeconds"] * c["livenessProbe"]["failureThreshold"] >= 60, "the agent ends a hang by itself first"
    text = c["args"][0]
    assert f"--nnodes {spec['completions']}" in text or f":{spec['completions']}" in text, "nnodes and completions differ"
    for n in {e["name"] for e in c["env"]} | {"JOB_COMPLETION_INDEX"}:
        text = text.replace(f"${n}", "1" if n == "JOB_COMPLETION_INDEX" else "127.0.0.1")
    assert "$" not in text, text
    print(text.removeprefix("exec trireme "))

for path in sys.argv[1:]:
    for doc in yaml.safe_load_all(open(path)):
        only(doc, path, apiVersion=str, kind=str, metadata=dict, spec=dict)
        spec = doc["spec"]
        kind = doc["apiVersion"], doc["kind"]
        if kind == ("batch/v1", "Job"):
            job(spec, "Job.spec")
        elif kind == ("jobset.x-k8s.io/v1alpha2", "JobSet"):
            only(spec, "JobSet.spec", failurePolicy=dict, replicatedJobs=list)
            for r in only(spec["failurePolicy"], "failurePolicy", maxRestarts=int, rules=list)["rules"]:
                only(r, "failurePolicy.rules", name=str, action=str, onJobFailureReasons=list)
                assert r["action"] == "FailJobSet" and r["onJobFailureReasons"] == ["PodFailurePolicy"], r
            for r in spec["replicatedJobs"]:
                only(r, "replicatedJobs", name=str, replicas=int, template=dict)
                job(only(r["template"], "replicatedJobs.template", spec=dict)["spec"], "JobSet.spec.replicatedJobs")
        else:
            assert kind == ("v1", "Service"), kind
            only(spec, "Service.spec", clusterIP=str, publishNotReadyAddresses=bool, selector=dict)
            assert spec["clusterIP"] == "None", "the service is not headless"
PY
[ "$(wc -l <commands)" = 2 ] || fail "two manifests, $(wc -l <commands) commands"
while read -r line; do # accepted up to the model, which is not here
    read -ra words < <(echo "$line" | tr -d '"')
    expect 2 timeout 20 "$TRIREME" "${words[@]/--output*/--nothing}" </dev/null
    grep -q 'nothing' stderr || fail "the launcher refuses something else: $(cat stderr)"
done <commands

# The others: keys that their own definitions have, and no others; and the line that they run, under the variables that they set.
python3 - "$examples" >others <<'PY'
import sys, yaml
sys.path.insert(0, ".")
from keys import *
root = sys.argv[1]

def line(variables, text):
    print(";".join(f"{k}={v}" for k, v in variables.items()) + "\t" + text.replace("$POD_IP", "127.0.0.1").replace('"', "").removeprefix("exec ").strip())

runtime, train = yaml.safe_load_all(open(f"{root}/kubernetes/kubeflow.yaml"))
for doc, kind in (runtime, "ClusterTrainingRuntime"), (train, "TrainJob"):
    only(doc, kind, apiVersion=str, kind=str, metadata=dict, spec=dict)
    assert doc["apiVersion"] == "trainer.kubeflow.org/v1alpha1" and doc["kind"] == kind
only(runtime["spec"], "spec", mlPolicy=dict, template=dict)
only(runtime["spec"]["mlPolicy"], "mlPolicy", numNodes=int, torch=dict)
step = only(runtime["spec"]["template"]["spec"]["replicatedJobs"][0], "replicatedJobs", name=str, template=dict)
assert step["name"] == "node" and step["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
job = only(step["template"]["spec"], "kubeflow.spec", podFailurePolicy=dict, template=dict)
container = pod(only(job["template"], "kubeflow.template", spec=dict)["spec"], "kubeflow")
rules(job["podFailurePolicy"], "node", "kubeflow.podFailurePolicy")
assert container["name"] == "node"
only(train["spec"], "TrainJob.spec", runtimeRef=dict, trainer=dict)
only(train["spec"]["trainer"], "trainer", numNodes=int, resourcesPerNode=dict)
assert train["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
line({"PET_NNODES": 2, "PET_NODE_RANK": 1, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": 29500, "PET_NPROC_PER_NODE": "auto"}, container["args"][0])

v = yaml.safe_load(open(f"{root}/kubernetes/volcano.yaml"))
only(v, "volcano", apiVersion=str, kind=str, metadata=dict, spec=dict)
assert (v["apiVersion"], v["kind"]) == ("batch.volcano.sh/v1alpha1", "Job")
only(v["spec"], "volcano.spec", minAvailable=int, schedulerName=str, maxRetry=int, plugins=dict, policies=list, tasks=list)
assert v["spec"]["minAvailable"] == sum(t["replicas"] for t in v["spec"]["tasks"])
for p in v["spec"]["policies"]:
    only(p, "policies", event=(str,), exitCode=(int,), action=str)
    assert ("event" in p) != ("exitCode" in p) and p["action"] in ("RestartJob", "AbortJob")
assert {p["exitCode"] for p in v["spec"]["policies"] if p["action"] == "AbortJob"} == {2, 78}
for t in v["spec"]["tasks"]:
    only(t, "tasks", name=str, replicas=int, template=dict)
    container = pod(t["template"]["spec"], "volcano")
line({"VC_TASK_INDEX": 0, "RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}, container["args"][0])

s = only(yaml.safe_load(open(f"{root}/skypilot/train.yaml")), "skypilot", name=str, num_nodes=int, resources=dict, file_mounts=dict, setup=str, run=str)
only(s["resources"], "resources", accelerators=str, use_spot=bool, job_recovery=dict)
only(s["resources"]["job_recovery"], "job_recovery", strategy=str, max_restarts_on_errors=int, recover_on_exit_codes=list)
assert s["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
line({"SKYPILOT_NODE_RANK": 1, "SKYPILOT_NUM_NODES": 2, "SKYPILOT_NODE_IPS": "127.0.0.1", "SKYPILOT_NUM_GPUS_PER_NODE": 8}, s["run"])

d = only(yaml.safe_load(open(f"{root}/dstack/train.dstack.yml")), "dstack", type=str, name=str, nodes=int, image=str, commands=list, volumes=list,
         resources=dict, retry=dict)
only(d["retry"], "retry", on_events=list, duration=str)
assert d["type"] == "task" and set(d["retry"]["on_events"]) == {"no-capacity", "error", "interruption"}
line({"DSTACK_NODE_RANK": 1, "DSTACK_NODES_NUM": 2, "DSTACK_MASTER_NODE_IP": "127.0.0.1", "DSTACK_GPUS_PER_NODE": 8}, d["commands"][0])
PY
[ "$(wc -l <others)" = 4 ] || fail "four systems, $(wc -l <others) lines"
while IFS=$'\t' read -r variables line; do # accepted up to an option that is not there
    IFS=';' read -ra env <<<"$variables"
    read -ra words <<<"${line#trireme }"
    expect 2 timeout 20 env "${env[@]}" "$TRIREME" "${words[@]/--output*/--nothing}" </dev/null
    grep -q 'nothing' stderr || fail "$variables: the launcher refuses something else: $(cat stderr)"
done <others

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
