#!/usr/bin/env bash
# Noise on embeddings, losses weighed by probability (DFT), smoothed targets and z-loss: every layout has the noise of one rank, evaluation has none, and a resume draws what an undisturbed run drew.
. "$(dirname "$0")/common.sh"
tiny_model model
tiny_text text.jsonl
options=(--model model --data text.jsonl --eval_data text.jsonl --sequence_length 64 --train_batch_size 4 --max_steps 4 --eval_steps 2 --save_steps 2
    --learning_rate 1e-2 --quiet --threads 1 --data_proof none)
losses() { # RUN...: the losses of steps, and of evaluations
    python3 - "$@" <<'PY'
import json, sys
for run in sys.argv[1:]:
    events = [e for e in map(json.loads, open(run + "/events.jsonl")) if e["event"] in ("step", "eval")]
    print(*[f"{e['event']} {e['loss']:.6f}" for e in sorted(events, key=lambda e: e["event"])])
PY
}
near() { # WANT GOT: the same numbers within the bound of test_layouts.sh
    python3 - "$(losses "$1")" "$(losses "$2")" <<'PY' || fail "$2 differs from $1"
import sys
a, b = (text.split() for text in sys.argv[1:])
worst = max(abs(float(x) - float(y)) / float(x) for x, y in zip(a[1::2], b[1::2]))
assert len(a) == len(b) and worst < 2e-5, (worst, a, b)
PY
}
"$TRIREME" train "${options[@]}" --output plain >run.log
"$TRIREME" train "${options[@]}" --neftune_noise_alpha 20 --use_dft_loss --output noisy >run.log
"$TRIREME" train "${options[@]}" --use_dft_loss --output weighed >run.log
[ "$(losses weighed)" != "$(losses noisy)" ] || fail "noise changes nothing"
[ "$(losses plain)" != "$(losses weighed)" ] || fail "weights change nothing"
layout() { # NAME RANKS OPTIONS...
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train "${options[@]}" --neftune_noise_alpha 20 --use_dft_loss "$@" --output "$name" >run.log 2>&1 || {
        cat run.log >&2
        fail "$name: exit $?"
    }
    near noisy "$name"
}
layout accumulation 1 --per_device_train_batch_size 1 --recompute block
layout zero3 2 --zero 3 --per_device_train_batch_size 1
layout tp2 2 --tp 2 --sp
layout cp2 2 --cp 2
layout pp2 2 --pp 2 --per_device_train_batch_size 2
# Weights that do not move: training has noise and the weighed loss, evaluation has neither.
for alpha in 0 20; do
    "$TRIREME" train "${options[@]}" --learning_rate 1e-30 --weight_decay 0 --neftune_noise_alpha $alpha $([ $alpha = 0 ] || echo --use_dft_loss) --output still-$alpha >run.log
done
python3 - "$(losses still-0)" "$(losses still-20)" <<'PY' || fail "noise in evaluation, or none in training"
import sys
a, b = (text.split() for text in sys.argv[1:])
pairs = list(zip(a[::2], a[1::2], b[1::2]))
assert all((x == y) == (kind == "eval") for kind, x, y in pairs) and len(pairs) == 6, pairs
PY
TR_FAIL=train.before_step:kill:3 bash -c '"$@"' - "$TRIREME" train "${options[@]}" --neftune_noise_alpha 20 --use_dft_loss --output cut >run.log 2>&1 && fail "not killed"
"$TRIREME" train "${options[@]}" --neftune_noise_alpha 20 --use_dft_loss --output cut --resume auto >run.log
same noisy/model.safetensors cut/model.safetensors
expect 2 "$TRIREME" train "${options[@]}" --neftune_noise_alpha 5 --use_dft_loss --output noisy --resume auto
grep -q 'neftune_noise_alpha was' stderr || fail "another noise on resume: $(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --task dpo --use_dft_loss --output no
grep -q 'use_dft_loss is of the loss of tokens' stderr || fail "$(cat stderr)"

# Smoothed targets and z-loss: the same on every layout, a vocabulary that is split included; evaluation has neither.
smooth=(--label_smoothing_factor 0.1 --z_loss 0.01)
"$TRIREME" train "${options[@]}" "${smooth[@]}" --output smooth >run.log
python3 - "$(losses plain)" "$(losses smooth)" <<'PY' || fail "smoothing changes nothing, or is part of evaluation"
import sys
a, b = (text.split() for text in sys.argv[1:])
steps = [(float(x), float(y)) for kind, x, y in zip(a[::2], a[1::2], b[1::2]) if kind == "step"]
assert len(steps) == 4 and steps[0][1] - steps[0][0] > 0.1, steps  # 0.01 * log(264)^2 is 0.3
PY
for run in accumulation zero3 tp2 cp2 pp2; do
    case $run in
    accumulation) how=(1 --per_device_train_batch_size 1 --recompute block) ;;
    zero3) how=(2 --zero 3 --per_device_train_batch_size 1) ;;
    tp2) how=(2 --tp 2 --sp) ;;
    cp2) how=(2 --cp 2) ;;
    pp2) how=(2 --pp 2 --per_device_train_batch_size 2) ;;
    esac
    timeout 120 "$TRIREME" launch --nproc-per-node "${how[0]}" train "${options[@]}" "${smooth[@]}" "${how[@]:1}" --output "smooth-$run" >run.log 2>&1 ||
        fail "smooth-$run: $(cat run.log)"
    near smooth "smooth-$run"
done
"$TRIREME" train "${options[@]}" --learning_rate 1e-30 --weight_decay 0 "${smooth[@]}" --output still-smooth >run.log
python3 - "$(losses still-0)" "$(losses still-smooth)" <<'PY' || fail "smoothing in evaluation, or none in training"
import sys
a, b = (text.split() for text in sys.argv[1:])
assert all((x == y) == (kind == "eval") for kind, x, y in zip(a[::2], a[1::2], b[1::2])), (a, b)
PY
expect 2 "$TRIREME" train "${options[@]}" --label_smoothing_factor 0.2 --z_loss 0.01 --output smooth --resume auto
grep -q 'label_smoothing_factor was' stderr || fail "another smoothing on resume: $(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --task dpo --label_smoothing_factor 0.1 --output no
grep -q 'label_smoothing_factor is of the loss of tokens' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --use_dft_loss --z_loss 0.1 --output no
grep -q 'leave out z_loss' stderr || fail "$(cat stderr)"
