# preference.sh - a model, pairs and a run of preference training that tests/golden/make_trl_dpo.py and the tests share.
# $TRIREME is the binary.
preference_model() { # DIR
    cat >preference.json <<'JSON'
{ "model_type": "llama", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "max_position_embeddings": 128, "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": true,
  "bos_token_id": 256, "eos_token_id": 256 }
JSON
    "$TRIREME" init --config preference.json --tokenizer bytes --seed 7 --out "$1" --quiet
}

preference_data() { # FILE: 40 pairs of texts; the number in front of a prompt is its line
    python3 - >"$1" <<'PY'
import json
for i in range(40):
    a, b = i * 7 % 23, i * 11 % 19
    print(json.dumps({"prompt": f"{i}. {a}+{b}=", "chosen": f" {a + b}, sure", "rejected": f" {a + b + 1 + i % 5} I think"}))
PY
}

preference_run() { # MODEL DATA OUTPUT OPTIONS...
    local model=$1 data=$2 output=$3
    shift 3
    "$TRIREME" train --model "$model" --data "$data" --output "$output" --task dpo --packing none --sequence_length 128 \
        --per_device_train_batch_size 4 --max_steps 50 --learning_rate 1e-3 --weight_decay 0 --max_grad_norm 1 --quiet "$@"
}

preference_answers() { # FILE: 12 answers with labels
    python3 - >"$1" <<'PY'
import json
for i in range(12):
    a, b = i * 7 % 23, i * 11 % 19
    answer = f" {a + b}, sure" if i % 3 else f" {a + b + 1 + i % 5} I think"
    print(json.dumps({"prompt": f"{i}. {a}+{b}=", "completion": answer, "label": i % 3 != 0}))
PY
}

# Runs of preference.sh's model on answers with labels: a step is the whole file.
kto_run() { # MODEL DATA OUTPUT OPTIONS...
    local model=$1 data=$2 output=$3
    shift 3
    "$TRIREME" train --model "$model" --data "$data" --output "$output" --task kto --packing none --sequence_length 128 \
        --per_device_train_batch_size 12 --max_steps 50 --learning_rate 1e-3 --weight_decay 0 --max_grad_norm 1 \
        --undesirable_weight 1.5 --quiet "$@"
}

# compare WANT GOT TOLERANCE: all numbers of steps and evaluations. WANT: a run, or the file of TRL's.
compare() {
    python3 - "$@" <<'PY'
import json, sys
def numbers(path):
    if path.endswith(".json"):
        return json.load(open(path))
    return [e for e in map(json.loads, open(path + "/events.jsonl")) if e["event"] in ("step", "eval")]
want, got, limit = numbers(sys.argv[1]), numbers(sys.argv[2]), float(sys.argv[3])
names = ["loss", "grad_norm", "rewards_chosen", "rewards_rejected", "rewards_accuracy", "logps_chosen", "logps_rejected",
         "kl"]
assert len(want) == len(got) and len(got) > 0, (len(want), len(got))
worst = 0
for i, (a, b) in enumerate(zip(want, got)):
    for k in names:
        if k not in a or (k == "rewards_accuracy" and i == 0 and limit > 0): # equal rewards: rounding decides
            continue
        worst = max(worst, abs(a[k] - b[k]) / max(abs(a[k]), 1e-2))
assert worst <= limit, f"{sys.argv[2]} differs from {sys.argv[1]} by {worst:.2e}"
print(f"{sys.argv[2]}: within {worst:.1e}")
PY
}
