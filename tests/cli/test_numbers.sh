#!/usr/bin/env bash
# Numbers that are not finite (D1) and spikes (D2): all ranks decide alike in the same step, the layer or tensor, the rank and the
# sample are named, a replay tells hardware from data, and skips have a budget that survives a resume.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 8 --per_device_train_batch_size 2
    --max_steps 6 --learning_rate 1e-2 --threads 1 --data_proof none --quiet)
faults() { grep '"event":"fault"' "$1/events.jsonl" | grep -v '"goes on"' || true; } # without who was slow: the machine's
# told DIR RANK WORDS...: the run's one fault event names the rank and holds the words.
told() {
    local dir=$1 rank=$2 word
    shift 2
    [ "$(faults "$dir" | wc -l)" = 1 ] || fail "$dir: $(faults "$dir" | wc -l) faults, want 1: $(faults "$dir")"
    for word in "\"rank\":$rank," "$@"; do
        grep -q -- "$word" <<<"$(faults "$dir")" || fail "$dir: no \"$word\" in $(faults "$dir")"
    done
}

expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output clean
[ -z "$(faults clean)" ] || fail "false alarm: $(faults clean)"

# Lost once, on one rank: the replay is whole and counts, so that the result has the bits of a clean run. A rank runs four
# segments forward, four back for each of two micro-batches: hit 20 is step 3, micro-batch 0, the second layer; the replay is
# step 3 again.
for zero in 0 2 3; do
    expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero $zero --output clean-$zero
    TR_FAIL=exec.lose_output:error:19:1 expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --zero $zero --output lost-$zero
    told lost-$zero 1 'step 3 of samples 16..23' 'loss differs on rank 1, micro-batch 0' 'hardware is suspected'
    same clean-$zero/model.safetensors lost-$zero/model.safetensors
done

# Lost in the replay too: not the hardware. The step is skipped on all ranks; layer, rank and sample are named. Rank 1 has
# rows 4 to 7 of each step, two a micro-batch; the last token of the micro-batch is lost.
twice=exec.lose_output:error:19:1,exec.lose_output:error:26:1
TR_FAIL=$twice expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output skipped --replica_check_steps 1
told skipped 1 'step 3 of' 'output of layer 1 on rank 1, micro-batch 0, sample 21' 'data or model' 'skip 1 of at most 3' '"action":"skipped"'
[ "$(grep -c '"event":"step"' skipped/events.jsonl)" = 6 ] || fail "a skipped step is a step"
twice=exec.lose_gradient:error:18:1,exec.lose_gradient:error:25:1
TR_FAIL=$twice expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output gradient
told gradient 1 'step 3 of' 'gradient of model\.[a-z0-9_.]*weight on rank 1, micro-batch 0' 'data or model'
# A pipeline hands what is lost on to the next stage, and tensor ranks share it: the first to have it is named.
twice=exec.lose_output:error:9:0,exec.lose_output:error:16:0
TR_FAIL=$twice expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --pp 2 --output piped
told piped 0 'output of embed on rank 0' 'data or model'

# --nonfinite stop, and a budget that is used up: 78, the weights as they were, the cause as the last word.
twice=exec.lose_output:error:19:1,exec.lose_output:error:26:1
TR_FAIL=$twice expect 78 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output stopped --nonfinite stop
grep -q 'step 3, .*output of layer 1 on rank 1' stderr || fail "not said: $(cat stderr)"
TR_FAIL=$twice expect 78 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output spent --nonfinite_budget 0
# Skips of before a resume count, and a run that was cut has the bits of one that was not.
two=exec.lose_output:error:10,exec.lose_output:error:17,exec.lose_output:error:24,exec.lose_output:error:31
one=(--per_device_train_batch_size 4 --save_steps 1)
TR_FAIL=$two expect 0 "$TRIREME" train "${options[@]}" "${one[@]}" --output whole
[ "$(faults whole | grep -c 'skip 2 of at most 3')" = 1 ] || fail "want two skips: $(faults whole)"
TR_FAIL=$two expect 78 "$TRIREME" train "${options[@]}" "${one[@]}" --output cut --nonfinite_budget 1
TR_FAIL=exec.lose_output:error:2,exec.lose_output:error:9 expect 78 "$TRIREME" train "${options[@]}" "${one[@]}" --output cut \
    --nonfinite_budget 1 --resume
grep -q 'stopped after 1 skips' stderr || fail "the skip before the resume does not count: $(cat stderr)"
TR_FAIL=exec.lose_output:error:2,exec.lose_output:error:9 expect 0 "$TRIREME" train "${options[@]}" "${one[@]}" --output cut --resume
same whole/model.safetensors cut/model.safetensors

# Lost in the weights: named as such, and no replay helps.
TR_FAIL=exec.lose_weight:error:20:1 expect 78 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --output weights --nonfinite_budget 1
grep -q 'first in the weights of model[a-z0-9_.]* on rank 1.*stopped after 1 skips' stderr || fail "not said: $(cat stderr)"

# A spike: one odd batch among uniform ones is computed twice and reported, and the run goes on as it would have.
python3 - <<'PY'
import json
with open("even.jsonl", "w") as f:
    for i in range(240):
        f.write(json.dumps({"text": "oars oars oars oars oars oars!" if i != 201 else "".join(chr(33 + (j * 37 + 11) % 90) for j in range(30))}) + "\n")
PY
even=(--model model --data even.jsonl --packing none --data_seed 3 --sequence_length 32 --per_device_train_batch_size 4 --max_steps 60
    --learning_rate 2e-3 --threads 1 --data_proof none --quiet --save_steps 0)
expect 0 "$TRIREME" train "${even[@]}" --output spike
expect 0 "$TRIREME" train "${even[@]}" --output plain --spike_zscore 0
same spike/model.safetensors plain/model.safetensors
[ -z "$(faults plain)" ] || fail "off is off: $(faults plain)"
grep -q 'deviations above the last .*same bits: data or model' <<<"$(faults spike)" || fail "no spike seen: $(faults spike)"
