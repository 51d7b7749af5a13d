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

# eval_of_pairs TASK OUTPUT DATA: eval says of the model that was written what the run said of its last evaluation, to the bit; on two
# ranks to rounding. Reads the reference from model; without one it is refused.
eval_of_pairs() {
    local asks=(eval --model "$2" --data "$3" --task "$1" --sequence_length 128 --json)
    "$TRIREME" "${asks[@]}" --ref_model model >one.json
    rm -rf "$2/.cache"
    "$TRIREME" launch --nproc-per-node 2 "${asks[@]}" --ref_model model --tp 2 >two.json
    python3 - "$2" <<'PY' || fail "eval of $1"
import json, sys
last = [e for e in map(json.loads, open(sys.argv[1] + "/events.jsonl")) if e["event"] == "eval"][-1]
one, two = (json.loads(open(name).readlines()[-1]) for name in ("one.json", "two.json"))
names = [k for k in one if k in last]
assert len(names) >= 8 and all(one[k] == last[k] for k in names), (one, last)
assert all(abs(two[k] - one[k]) <= 4e-5 * max(abs(one[k]), 1e-2) for k in names), (one, two)
PY
    expect 2 "$TRIREME" "${asks[@]}"
    grep -q 'give --ref_model DIR' stderr || fail "$(cat stderr)"
}
