#!/usr/bin/env bash
# init, plan, train, eval, generate, data, ckpt, config on a tiny model: each does what its help says.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
head -n 10 train.jsonl >valid.jsonl

expect 0 "$TRIREME" --version
expect 0 "$TRIREME" -h
expect 0 "$TRIREME" help ckpt
grep -q '^usage: trireme ckpt list|newest OUTPUT' stdout || fail "help ckpt: $(cat stdout)"
tiny_model model
for f in config.json model.safetensors tokenizer.json tokenizer_config.json; do [ -s "model/$f" ] || fail "init wrote no $f"; done
tiny_model again
same model/model.safetensors again/model.safetensors

run=(--model model --sequence_length 32 --per_device_train_batch_size 4 --max_steps 30 --learning_rate 1e-2)
expect 0 "$TRIREME" plan "${run[@]}"
grep -q 'total' stdout || fail "plan shows no total"
grep -q '  t staging$' stdout || fail "the bar of plan has a letter that is not explained: $(cat stdout)"
for what in program schedule memory; do
    expect 0 "$TRIREME" plan "${run[@]}" --show $what
    [ "$(wc -l <stdout)" -gt 10 ] || fail "plan --show $what is empty"
done
[ ! -e out ] || fail "plan wrote something"

expect 0 "$TRIREME" train "${run[@]}" --data train.jsonl --eval_data valid.jsonl --eval_steps 10 --save_steps 10 --output out
for f in config.json model.safetensors tokenizer.json events.jsonl latest checkpoint-10 checkpoint-20 checkpoint-30; do
    [ -e "out/$f" ] || fail "train wrote no $f"
done
[ ! -e model/events.jsonl ] || fail "train wrote into the model it read"

# The event stream is what the documents say it is, and training trained.
python3 - <<'PY' || exit 1
import json
events = [json.loads(l) for l in open("out/events.jsonl")]
assert all(e["schema"] == 1 and e["run"] and e["time"] > 0 for e in events)
kinds = [e["event"] for e in events]
assert kinds[:2] == ["data", "plan"] and kinds[-1] == "end" and events[-1]["status"] == "done", kinds
steps = [e for e in events if e["event"] == "step"]
assert [e["step"] for e in steps] == list(range(1, 31)) and all(0 <= e["mfu"] <= 1 for e in steps)
for key in "loss grad_norm lr tokens tokens_per_s mfu data_wait_s comm_exposed_s samples".split():
    assert key in steps[0], key
evals = [e for e in events if e["event"] == "eval"]
assert [e["step"] for e in evals] == [10, 20, 30]
assert evals[-1]["loss"] < steps[0]["loss"] - 1, (steps[0]["loss"], evals[-1]["loss"])
saves = [e for e in events if e["event"] == "checkpoint"]
assert [e["step"] for e in saves] == [10, 20, 30] and all(e["verified"] for e in saves)
state = json.load(open("out/checkpoint-30/trainer_state.json"))
assert state["global_step"] == 30 and any("eval_loss" in h for h in state["log_history"])
PY

# What was saved is what was trained: the same loss from the final directory, from the checkpoint, and in the log.
for dir in out out/checkpoint-30; do
    expect 0 "$TRIREME" eval --model $dir --data valid.jsonl --sequence_length 32 --json
    python3 - "$(tail -n 1 stdout)" <<'PY' || fail "eval of $dir: $(cat stdout)"
import json, math, sys
got = json.loads(sys.argv[1])
logged = [e for e in map(json.loads, open("out/events.jsonl")) if e["event"] == "eval"][-1]
assert got["loss"] == logged["loss"] and got["tokens"] == logged["tokens"], (got, logged)
assert abs(math.log(got["perplexity"]) - got["loss"]) < 1e-9
PY
done
same out/model.safetensors out/checkpoint-30/model.safetensors

expect 0 "$TRIREME" generate --model out --prompt "Line 1: " --max_new_tokens 12 --temperature 0.8 --seed 3
cp stdout first
expect 0 "$TRIREME" generate --model out --prompt "Line 1: " --max_new_tokens 12 --temperature 0.8 --seed 3
same stdout first
grep -q '^Line 1: ' first || fail "generate does not begin with the prompt"

expect 0 "$TRIREME" generate --model out --prompt "Line 1: " --max_new_tokens 12 --json
python3 -c 'import json; d = json.load(open("stdout")); assert bytes(i for i in d["ids"] if i < 256).decode("utf-8", "replace") == d["text"], d'

# Ids that pad the vocabulary have no text: an untrained model picks them as often as any other.
expect 0 "$TRIREME" generate --model model --prompt "x" --max_new_tokens 100 --temperature 1 --seed 1

expect 0 "$TRIREME" data check --model model --data train.jsonl --sequence_length 32 --json
python3 -c 'import json; d = json.load(open("stdout")); assert d["documents"] == 40 and d["skipped"] == 0, d' || exit 1
for n in 10 20 30; do expect 0 "$TRIREME" ckpt verify out/checkpoint-$n; done

# --json: JSON and nothing else on stdout, the last line one object; of a training the lines of its event log.
json_of() { # WORDS COMMAND...
    expect 0 "$TRIREME" "${@:2}" --json
    python3 -c 'import json, sys; assert sys.argv[1] in str([json.loads(l) for l in open("stdout")][-1])' "$1" ||
        fail "${*:2}: $(cat stdout)"
}
json_of "'path': 'twin'" init --config tiny.json --tokenizer bytes --out twin
json_of "'status': 'done'" train "${run[@]}" --data train.jsonl --max_steps 2 --output told
same stdout told/events.jsonl
json_of "'path': 'out/checkpoint-30'" ckpt newest out
json_of "'verified': True" ckpt verify out/checkpoint-30
json_of "'differ': 0" ckpt diff out/checkpoint-30 out/checkpoint-30
json_of "'step': 10" ckpt list out
json_of "'path': 'alone'" ckpt export out/checkpoint-30 --output alone
json_of "'removed': 0" ckpt prune told --save_total_limit 2
json_of "'samples': [0, 3]" data show "${run[@]:0:4}" --data train.jsonl --output out --step 1
for verb in train init plan eval generate chat data ckpt check bench watch config; do
    expect 0 "$TRIREME" $verb --help
    grep -q "^usage: trireme $verb " stdout || fail "$verb --help has no usage"
done
expect 0 "$TRIREME" ckpt newest out
grep -qx 'out/checkpoint-30' stdout || fail "newest is $(cat stdout)"
printf 'x' | dd of=out/checkpoint-30/model.safetensors bs=1 seek=5000 conv=notrunc status=none
if "$TRIREME" ckpt verify out/checkpoint-30 >stdout 2>stderr; then fail "a changed byte went unnoticed"; fi
expect 0 "$TRIREME" ckpt newest out
grep -qx 'out/checkpoint-20' stdout || fail "newest after damage is $(cat stdout)"
expect 0 "$TRIREME" config show --learning_rate 1e-3
grep -q 'command line' stdout || fail "config show names no origin"
