#!/usr/bin/env bash
# Groups of parameters (--optim_groups): a learning rate and a weight decay of their own, on any layout, without a change for
# all others.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
run() { # run RANKS OUTPUT ARGUMENTS...
    local ranks=$1 output=$2
    shift 2
    timeout 120 "$TRIREME" launch --nproc-per-node "$ranks" train --model model --data train.jsonl --sequence_length 32 \
        --per_device_train_batch_size 2 --train_batch_size 8 --max_steps 4 --lr_scheduler_type cosine --threads 1 --quiet \
        --reproducible layout --output "$output" "$@" >run.log 2>&1 || {
        cat run.log
        fail "$*"
    }
}
alike() { "$TRIREME" ckpt diff "$1" "$2" | grep -q "all tensors are the same" || fail "$1 and $2 are not the same"; }

run 1 plain --learning_rate 1e-2 --weight_decay 0.1
echo '[{"pattern": "*", "lr_factor": 1}]' >same.json
run 1 same --learning_rate 1e-2 --weight_decay 0.1 --optim_groups same.json
alike plain same

# Half of twice the rate, and a decay of its own: the bits of the plain run.
echo '[{"pattern": "*norm*", "lr_factor": 0.5}, {"pattern": "*", "lr_factor": 0.5, "weight_decay": 0.1}]' >half.json
for layout in "1 half" "2 half --dp 2 --zero 1" "2 half --dp 2 --zero 3" "2 half --pp 2"; do
    rm -rf half
    # shellcheck disable=SC2086
    run $layout --learning_rate 2e-2 --weight_decay 0.3 --optim_groups half.json
    alike plain half
done

# A rate of 0 leaves a group as it was; it is no part of a bucket of its own, and its state is still there.
echo '[{"pattern": "*norm*", "lr_factor": 0}]' >still.json
run 1 still --learning_rate 1e-2 --optim_groups still.json
[ "$("$TRIREME" ckpt diff model still | grep -c norm)" = 0 ] || fail "norms have moved"
{ "$TRIREME" ckpt diff model still || true; } | grep -q mlp || fail "nothing has moved"

# The content of the file is an input of the run: a resume sees a change of it, and blanks are none.
resume() {
    "$TRIREME" train --model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 --train_batch_size 8 \
        --max_steps 4 --lr_scheduler_type cosine --threads 1 --quiet --reproducible layout --learning_rate 1e-2 --output still \
        --optim_groups still.json --resume "$@"
}
echo '[{"pattern": "*norm*",   "lr_factor": 0.0}]' >still.json
expect 0 resume
echo '[{"pattern": "*norm*", "lr_factor": 0.25, "weight_decay": 0.5}]' >still.json
expect 2 resume
grep -qF 'optim_groups was [{"pattern":"*norm*","lr_factor":0}], is [{"pattern":"*norm*","lr_factor":0.25,"weight_decay":0.5}]' stderr ||
    fail "a change of the groups: $(cat stderr)"
expect 0 resume --allow_change optim_groups

plan() { "$TRIREME" plan --model model --data train.jsonl --optim_groups "$1"; }
echo '[{"pattern": "*nrm*"}]' >bad.json
expect 2 plan bad.json
grep -q 'bad.json \*nrm\* matches no parameter' stderr || fail "a pattern that matches nothing: $(cat stderr)"
echo '[{"pattern": "*norm*", "rate": 2}]' >bad.json
expect 2 plan bad.json
grep -q 'bad.json: key rate is unknown; a group has pattern, lr_factor and weight_decay' stderr || fail "an unknown key: $(cat stderr)"
echo '[{"pattern": "*norm*", "lr_factor": -2}]' >bad.json
expect 2 plan bad.json
grep -q 'must not be negative' stderr || fail "a negative rate: $(cat stderr)"

# Moments of 8 bits: matrices are updated by one optimizer and the rest by another, with the same bits on every layout. Their codes are
# compared and moved as other states are.
cat >wide.json <<'END'
{"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
END
"$TRIREME" init --config wide.json --tokenizer bytes --output wide --quiet
run8() { run "$1" "$2" --model wide --optim adamw_8bit --save_steps 2 --learning_rate 1e-2 "${@:3}"; }
run8 1 eight
run8 2 eight-sharded --dp 2 --zero 3
alike eight eight-sharded
"$TRIREME" ckpt reshard eight-sharded/checkpoint-2 --output whole --quiet
alike eight/checkpoint-2 whole/checkpoint-2
"$TRIREME" ckpt show whole/checkpoint-2 >/dev/null
run8 1 lion --optim lion_8bit
run8 2 lion-sharded --optim lion_8bit --dp 2 --zero 2
alike lion lion-sharded

# Muon: whole matrices, whichever rank holds their parts. With tensor parallel sums of products are in another order.
echo '[{"pattern": "*o_proj*", "lr_factor": 0.5, "weight_decay": 0.3}]' >o.json
runm() { run8 "$@" --optim muon --optim_groups o.json --weight_decay 0.1; }
runm 1 muon
runm 2 muon-3 --dp 2 --zero 3
alike muon muon-3
runm 2 muon-1 --dp 2 --zero 1 --resume_from_checkpoint muon-3/checkpoint-2
alike muon muon-1
# An element moves by 2e-3 in a step (0.2 of the rate, in the mean).
runm 1 muon-step --max_steps 1
runm 2 muon-tp --max_steps 1 --tp 2
"$TRIREME" ckpt diff muon-step muon-tp >tp.diff || true
awk '/at most by/ { n++; if ($NF > 1e-3) far++ } END { exit n == 0 || far }' tp.diff || fail "muon with tp 2: $(cat tp.diff)"

# Adafactor: averages of rows and columns that all ranks add up. Tensor parallel differs by rounding.
runa() { run8 "$@" --optim adafactor --optim_groups o.json --weight_decay 0.1 --adafactor_scale_parameter; }
runa 1 ada
runa 2 ada-3 --dp 2 --zero 3
alike ada ada-3
runa 2 ada-pp --pp 2 --resume_from_checkpoint ada-3/checkpoint-2 --adafactor_scale_parameter
alike ada ada-pp
"$TRIREME" ckpt reshard ada/checkpoint-4 --output one --quiet >run.log
"$TRIREME" ckpt reshard ada-3/checkpoint-4 --output three --quiet >run.log
alike one/checkpoint-4 three/checkpoint-4
runa 2 ada-tp --tp 2
runa 1 ada-back --resume_from_checkpoint ada-tp/checkpoint-2
for other in ada-tp ada-back; do
    "$TRIREME" ckpt diff ada $other >tp.diff || true
    awk '/at most by/ { n++; if ($NF > 1e-6) far++ } END { exit n == 0 || far }' tp.diff || fail "adafactor, $other: $(cat tp.diff)"
done
