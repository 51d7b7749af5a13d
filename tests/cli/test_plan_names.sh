#!/usr/bin/env bash
# plan without a model: a size or a well-known name is enough; tables of models and strategies; a directory of that name wins.
. "$(dirname "$0")/common.sh"

expect 1 "$TRIREME" plan --model 7B --machine A100 --bf16 --sequence_length 1024 --per_device_train_batch_size 1
grep -q '^model 7B: a shape like Llama.s with 7.0 B parameters: 32 layers' stdout || fail "the derived shape is not said: $(head -1 stdout)"
expect 0 "$TRIREME" plan --model Qwen/Qwen2.5-7B-Instruct --bf16 --zero 3 --dp 8 --sequence_length 1024 --per_device_train_batch_size 1 --machine H100 --json
python3 - <<'END' || fail "plan --json does not say which model a name is"
import json
p = json.load(open("stdout"))
assert p["parameters"] == 7615616512 and p["model"]["name"] == "qwen2.5-7b" and p["model"]["source"] == "Qwen/Qwen2.5-7B", p["model"]
assert p["model"]["config"]["num_hidden_layers"] == 28 and len(p["model"]["date"]) == 10 and p["forecast"]["chips"] == 8
END
# An adapter on a base in few bits: the base takes about half a byte a parameter.
expect 0 "$TRIREME" plan --model llama-3.1-70b --load_in_4bit --finetuning_type lora --lora_r 16 --bf16 --machine H100 \
    --sequence_length 1024 --per_device_train_batch_size 1 --json
python3 - <<'END' || fail "a base in four bits is not planned"
import json
p = json.load(open("stdout"))
params = next(a["bytes"] for a in p["ranks"][0]["arenas"] if a["name"] == "params")
assert 35e9 < params < 45e9 and 2.0e8 < p["parameters_trained"] < 2.2e8, (params, p["parameters_trained"])
END
expect 0 "$TRIREME" plan --model list
grep -q '^llama-3.1-405b .* meta-llama/Llama-3.1-405B' stdout || fail "plan --model list shows no names"
expect 0 "$TRIREME" plan --model list --json
python3 - "$source_dir/share/models" <<'END' || fail "plan --model list --json is not the files of share/models"
import glob, json, sys
names = [name for f in sorted(glob.glob(sys.argv[1] + "/*.json")) for name in json.load(open(f))]
assert [m["name"] for m in json.load(open("stdout"))["models"]] == names and len(set(names)) == len(names)
END

table=("$TRIREME" plan --table --machine A100-80GB --gpus 8 --bf16 --sequence_length 2048)
expect 0 "${table[@]}" --model 350M,7B,llama-3.1-70b
[ "$(grep -c '^\(350M\|7B\|llama-3.1-70b\) ' stdout)" = 3 ] && grep -q 'zero 3 .* best' stdout || fail "no table: $(cat stdout)"
expect 0 "${table[@]}" --model 350M,7B,llama-3.1-70b --json
python3 - <<'END' || fail "the table of plan --table --json"
import json
t = json.load(open("stdout"))
assert t["gpus"] == 8 and t["rows"] == 64 and [m["model"] for m in t["models"]] == ["350M", "7B", "llama-3.1-70b"]
small, seven, large = ({s["strategy"]: s for s in m["strategies"]} for m in t["models"])
assert list(small) == ["dp", "zero 1", "zero 2", "zero 3", "tp", "pp", "best"]
assert all(s["fits"] for s in small.values()) and not seven["dp"]["fits"] and seven["zero 3"]["fits"]
assert seven["dp"]["least_bytes"] > 80 * 2**30 and not any(s["fits"] for s in large.values())
assert "--zero 3" in seven["zero 3"]["options"] and "--tp 8" in seven["tp"]["options"] and "--pp 8" in seven["pp"]["options"]
for m in (small, seven):
    fits = [s["forecast"]["tokens_per_s"] for s in m.values() if s["fits"]]
    assert m["best"]["forecast"]["tokens_per_s"] == max(fits), "another strategy is faster than the best"
END
expect 2 "${table[@]}" --model 350M,,7B
expect 2 "${table[@]}" --model 350M,8Q
grep -q 'model 8Q: no such directory' stderr || fail "a name that is none"
expect 2 "$TRIREME" train --model 7B --data x.jsonl --output out
grep -q 'model 7B: no such directory' stderr || fail "train takes a model that has no weights"
# What does not fit comes with what would: a layout near it, of an adapter with an adapter's bytes; else a change of what is kept and of what learns.
expect 1 "$TRIREME" plan --model 70B --machine H100 --lora_r 16 --load_in_4bit --bf16
remedy=$(sed -nE 's/^ .* s a step, .* GiB: ( --.*)/\1/p' stdout | head -n 1)
[ -n "$remedy" ] || fail "no layout near an adapter's that fits: $(tail -n 3 stdout)"
# shellcheck disable=SC2086
expect 0 "$TRIREME" plan --model 70B --machine H100 --lora_r 16 --load_in_4bit --bf16 $remedy
expect 1 "$TRIREME" plan --model 8B --machine RTX4090 --bf16 --gpus 2
grep -q 'gpus has no effect with a layout that is given: add --search' stderr || fail "an option that does nothing is not named"
grep -qE '^  --finetuning_type lora .*--recompute block' stdout || fail "an adapter is no remedy: $(tail -n 5 stdout)"
mapfile -t remedies < <(sed -nE 's/^  (--.*): .* of the device.*/\1/p' stdout)
for remedy in "${remedies[@]}"; do
    # shellcheck disable=SC2086
    expect 0 "$TRIREME" plan --model 8B --machine RTX4090 --bf16 $remedy
done
# Every change of the layout that is said to fit does when it is compiled: with adapters, whose states count, and on several chips.
for case in "--model llama-3.1-70b --machine RTX3090 --lora_r 16 --load_in_4bit --sequence_length 512 --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --tp 2 --sp --recompute block" \
    "--model llama-3.1-8b --machine RTX3090 --lora_r 256 --load_in_4bit --sequence_length 2048 --per_device_train_batch_size 8 --recompute op" \
    "--model llama-3.1-8b --machine H100 --dp 8 --sequence_length 4096 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --zero 1"; do
    # shellcheck disable=SC2086
    expect 1 "$TRIREME" plan --bf16 $case
    mapfile -t remedies < <(sed -nE 's/^ .* s a step, .* GiB: ( --.*)/\1/p' stdout)
    for remedy in "${remedies[@]}"; do
        given=" $case"
        for word in $remedy; do # an option that the change names replaces the one that was given
            [[ $word != --* ]] || given=$(sed -E "s/ $word( [^- ][^ ]*)?( |\$)/ /" <<<"$given")
        done
        # shellcheck disable=SC2086
        expect 0 "$TRIREME" plan --bf16 $given $remedy
    done
done
# A search that finds nothing says the compiled bytes of the smallest layout: those of a plan of it.
case="--model llama-3.1-70b --machine RTX3090 --lora_r 16 --load_in_4bit --bf16 --sequence_length 512"
# shellcheck disable=SC2086
expect 2 "$TRIREME" plan $case --search --gpus 2 --train_batch_size 4
needs=$(sed -nE 's/.*smallest \(tp 2 sp, .*1 row x 4, recompute block\) needs ([0-9.]+) GiB.*/\1/p' stderr)
# shellcheck disable=SC2086
expect 1 "$TRIREME" plan $case --tp 2 --sp --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --recompute block
holds=$(sed -nE 's/^does not fit: ([0-9.]+) GiB with libraries.*/\1/p' stdout)
[ "$(printf '%.1f' "$needs")" = "$holds" ] || fail "the search says $needs GiB, the plan $holds"
# A directory of that name wins; a size is enough for random weights.
cp -r "$source_dir/tests/golden/llama_mha" 7B
expect 0 "$TRIREME" plan --model 7B --sequence_length 16 --json
python3 -c 'import json; p = json.load(open("stdout")); assert p["parameters"] < 1e6 and "model" not in p' || fail "a directory called 7B"
expect 0 "$TRIREME" init --config 10M --out made --quiet
expect 0 "$TRIREME" plan --model made --sequence_length 16 --json
python3 -c 'import json; assert 9.9e6 < json.load(open("stdout"))["parameters"] < 10.1e6' || fail "init from a size"
