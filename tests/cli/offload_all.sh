#!/usr/bin/env bash
# offload_all.sh - by hand, some minutes: 24 configurations, each without offload, with optimizer state on the host and in a file; the weights and the
# optimizer state are the same, bit for bit. Then a run is killed at every read and write of its file, and goes on to the same bits.
#     TRIREME=build/release/trireme tests/cli/offload_all.sh [DIR of the files]
. "$(dirname "$0")/common.sh"
disk=$(mktemp -d -p "${1:-/tmp}")
trap 'rm -rf "$work" "$disk"' EXIT
tiny_text train.jsonl
cat >wide.json <<'END'
{"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
 "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
END
"$TRIREME" init --config wide.json --tokenizer bytes --output model --quiet
run() { # run RANKS OUTPUT ARGUMENTS...
    timeout 120 "$TRIREME" launch --nproc-per-node "$1" train --model model --data train.jsonl --sequence_length 32 --per_device_train_batch_size 2 \
        --train_batch_size 8 --max_steps 4 --save_steps 2 --learning_rate 1e-2 --weight_decay 0.1 --threads 1 --quiet --output "$2" "${@:3}" >run.log 2>&1
}
n=0
alike() {
    "$TRIREME" ckpt diff "$1" "$2" >diff.log || fail "$1 and $2 differ: $(cat diff.log)"
    n=$((n + 1))
}
while read -r ranks arguments; do
    rm -rf plain there
    # shellcheck disable=SC2086
    run "$ranks" plain $arguments || fail "$arguments: $(cat run.log)"
    for place in cpu "nvme:$disk"; do
        rm -rf there
        # shellcheck disable=SC2086
        run "$ranks" there --offload_optimizer "$place" $arguments || fail "$place $arguments: $(cat run.log)"
        alike plain there
        alike plain/checkpoint-4 there/checkpoint-4
        mv there/checkpoint-2 from && rm -rf there
        # shellcheck disable=SC2086
        run "$ranks" there $arguments --resume_from_checkpoint from || fail "from $place: $arguments: $(cat run.log)"
        alike plain there # from there to the device
        rm -rf from there
        # shellcheck disable=SC2086
        run "$ranks" there --offload_optimizer "$place" $arguments --resume_from_checkpoint plain/checkpoint-2 || fail "to $place: $(cat run.log)"
        alike plain there # and back
    done
done <<'END'
1
1 --dtype bfloat16
1 --dtype float16
1 --dtype bfloat16 --moment_dtype bfloat16 --master_dtype bfloat16
1 --dtype bfloat16 --optim adamw_8bit
1 --dtype bfloat16 --optim lion_8bit
1 --dtype bfloat16 --optim lion
1 --dtype bfloat16 --optim muon
1 --dtype bfloat16 --optim adafactor
1 --dtype bfloat16 --optim sgd --momentum 0.9
1 --dtype bfloat16 --max_grad_norm 0.01 --recompute block
1 --dtype bfloat16 --offload_share 0.5 --offload_activations --recompute block
2 --dp 2 --zero 0 --dtype bfloat16
2 --dp 2 --zero 1 --dtype bfloat16
2 --dp 2 --zero 2 --dtype float16
2 --dp 2 --zero 3 --dtype bfloat16 --optim adamw_8bit
2 --dp 2 --zero 3 --dtype bfloat16 --optim adafactor --adafactor_scale_parameter
2 --tp 2 --dtype bfloat16
2 --pp 2 --dtype bfloat16
2 --pp 2 --pp_schedule zb --dtype bfloat16
4 --pp 2 --dp 2 --zero 2 --dtype bfloat16
4 --tp 2 --dp 2 --zero 1 --dtype bfloat16 --optim muon
4 --dp 4 --hybrid_shard 2 --zero 3 --dtype bfloat16
2 --dp 2 --zero 1 --dtype bfloat16 --reproducible layout --offload_share 0.4
END
echo "offload_all.sh: $n comparisons, all the same"

rm -rf plain
run 1 plain --dtype bfloat16 || fail "$(cat run.log)"
kills=0
for point in offload.read offload.write step.fetch step.store step.update; do
    for hit in 1 2 3 4 5 6 7 8 9 10 12 14 16; do
        rm -rf there
        TR_FAIL=$point:kill:$hit run 1 there --dtype bfloat16 --offload_optimizer "nvme:$disk" && continue
        run 1 there --dtype bfloat16 --offload_optimizer "nvme:$disk" --resume_from_checkpoint || run 1 there --dtype bfloat16 --offload_optimizer "nvme:$disk" ||
            fail "$point:$hit: $(cat run.log)"
        alike plain there
        [ -z "$(ls "$disk")" ] || fail "a file is left: $(ls "$disk")"
        kills=$((kills + 1))
    done
done
echo "offload_all.sh: $kills kills, all with the same bits in the end"
