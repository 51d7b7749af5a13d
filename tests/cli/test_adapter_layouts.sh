#!/usr/bin/env bash
# Adapters at rates at which a run amplifies rounding (LoRA+ at 1e-2, where B and magnitudes move by 0.16 a step): any layout trains
# the adapter of one rank, as near as rounding allows.
#
# How near that is follows from the run itself: one rank trains again from a base of which the last bit of every weight was drawn
# anew, three times. Each of two runs may be 4 times that far from exact arithmetic (GROWTH of tests/train/golden_bounds.h), so they
# may be 8 times as far apart, at each step, from the first, which is exact to 1e-7, on. The other side is here too: a rate that
# is 1 % off does not pass.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
cat >steep.json <<'JSON'
{ "model_type": "llama", "vocab_size": 264, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "max_position_embeddings": 128, "rope_theta": 10000.0, "initializer_range": 0.1, "tie_word_embeddings": true,
  "bos_token_id": 256, "eos_token_id": 256 }
JSON
"$TRIREME" init --config steep.json --tokenizer bytes --seed 388 --out model --quiet
for i in 1 2 3; do
    cp -r model "drawn$i"
    python3 - "drawn$i/model.safetensors" "$i" <<'PY'
import json, random, struct, sys
data, rng = bytearray(open(sys.argv[1], "rb").read()), random.Random(int(sys.argv[2]))
n = struct.unpack("<Q", data[:8])[0]
assert all(t["dtype"] == "F32" for k, t in json.loads(data[8:8 + n]).items() if k != "__metadata__")
for i in range(8 + n, len(data), 4):
    data[i] ^= rng.getrandbits(1)
open(sys.argv[1], "wb").write(data)
PY
done
options=(--data train.jsonl --sequence_length 32 --train_batch_size 8 --max_steps 10 --weight_decay 0.1 --threads 1 --quiet)

compare() { # NAME: is it as near to `one` as rounding allows?
    python3 - "$1" <<'PY'
import json, sys
def steps(d):
    events = map(json.loads, open(d + "/events.jsonl"))
    return [(e["loss"], e["grad_norm"]) for e in events if e["event"] == "step"]
one = steps("one")
apart = lambda run: [max(abs(a - b) / a for a, b in zip(x, y)) for x, y in zip(one, run)]
drawn, run = [apart(steps(f"by{i}")) for i in (1, 2, 3)], apart(steps(sys.argv[1]))
assert len(run) == 10 and all(len(d) == 10 for d in drawn)
spread, worst = 2.0 ** -24, 0
for step in range(10):
    spread = max(spread, *(d[step] for d in drawn))
    worst = max(worst, run[step] / (8 * spread))
print(f"{sys.argv[1]}: {max(run):.1e} from one rank, {worst:.2f} of what rounding allows; a drawn last bit: {spread:.1e}")
sys.exit(not worst <= 1)
PY
}
train() { # MODEL NAME RANKS OPTIONS...
    local launch=()
    [ "$3" = 1 ] || launch=(launch --nproc-per-node "$3")
    timeout 120 "$TRIREME" "${launch[@]}" train "${options[@]}" "${adapter[@]}" --model "$1" --output "$2" "${@:4}" >run.log 2>&1 || { cat run.log >&2; fail "$*"; }
}
begin() { # OPTIONS...: one rank, and from the drawn bases
    adapter=("$@")
    rm -rf one by? layout off
    train model one 1
    for i in 1 2 3; do train "drawn$i" "by$i" 1; done
}
layout() { # RANKS OPTIONS...
    rm -rf layout
    train model layout "$@"
    compare layout || fail "${adapter[*]}: $*"
}

begin --learning_rate 1e-2 --lora_r 2 --lora_alpha 4 --use_dora --loraplus_lr_ratio 16
layout 2 --tp 2
layout 2 --tp 2 --sp
layout 2 --zero 3 --per_device_train_batch_size 4
layout 2 --pp 2 --per_device_train_batch_size 2
layout 2 --cp 2
train model off 1 --loraplus_lr_ratio 16.16
! compare off || fail "a rate that is 1 % off passes for rounding"

begin --learning_rate 1e-2 --lora_r 2 --lora_alpha 32 --loraplus_lr_ratio 16 --lora_dropout 0.1 --lora_target_modules q_proj,v_proj
layout 2 --tp 2 --sp
layout 2 --zero 1 --per_device_train_batch_size 4
layout 2 --cp 2

begin --learning_rate 1e-3 --lora_r 4 --lora_alpha 8 --init_lora_weights pissa --lora_modules_to_save model.norm
layout 2 --tp 2
layout 2 --zero 2 --per_device_train_batch_size 4
echo "adapters at large rates are as near to one rank's as rounding allows"
