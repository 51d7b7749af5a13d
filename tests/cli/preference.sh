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
