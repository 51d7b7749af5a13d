# common.sh - what the tests of the binary share: a directory of their own, a small model, small text, and three ways to
# complain. $TRIREME is the binary under test; ctest sets it.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TRIREME=$(realpath "${TRIREME:?set it to the binary under test}")
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) # hundreds of fsyncs, and no test here is about a real disk
trap 'rm -rf "$work"' EXIT
cd "$work"
unset TR_FAIL
for name in $(compgen -e TRIREME_ || true); do unset "$name"; done

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# expect CODE COMMAND...: runs it with output in ./stdout and ./stderr.
expect() {
    local want=$1 got=0
    shift
    "$@" >stdout 2>stderr || got=$?
    [ "$got" = "$want" ] || {
        cat stdout stderr >&2
        fail "exit $got, want $want: $*"
    }
}

# same FILE FILE: byte for byte.
same() { cmp "$1" "$2" || fail "$1 and $2 differ"; }

# A byte-level Llama with every usual part: grouped heads, tied head, two layers. Trains a step in milliseconds.
tiny_model() {
    cat >tiny.json <<'JSON'
{ "model_type": "llama", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "max_position_embeddings": 128, "rope_theta": 10000.0, "initializer_range": 0.02, "tie_word_embeddings": true,
  "bos_token_id": 256, "eos_token_id": 256 }
JSON
    "$TRIREME" init --config tiny.json --tokenizer bytes --seed 7 --out "$1" --quiet
}

tiny_text() { # NAME.jsonl, 40 records
    local i
    for i in $(seq 40); do
        echo "{\"text\": \"Line $i: three banks of oars, one hundred and seventy rowers, one stroke. $((i * i * 7919)).\"}"
    done >"$1"
}

# The part of events.jsonl that is a function of the run: no times, no rates.
step_lines() {
    python3 - "$1" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    e = json.loads(line)
    if e["event"] in ("step", "eval"):
        print(*[f"{k}={json.dumps(e[k])}" for k in ("event", "step", "loss", "grad_norm", "lr", "tokens", "samples") if k in e])
PY
}
