#!/usr/bin/env bash
# Bad input: exit 2, one clear line a mistake, nothing written.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
echo '{bad' >broken.json
echo '{"model_type": "bert", "vocab_size": 300}' >bert.json
echo 'learning_rat: 3' >wrong.yaml
printf 'notes' >train.doc
mkdir empty
cp -r model torn
truncate -s 5000 torn/model.safetensors
mkdir old old/checkpoint-9 mute
cp model/config.json model/model.safetensors mute
printf 'model: model\ndata:\n\t- train.jsonl\n' >tab.yaml
before=$(find . -type f -o -type d | grep -vE '/(stdout|stderr)$' | sort)

# refused LINES WORDS ARGUMENT...: exit 2, that many lines on stderr, the first holds the words, nothing new on disk.
refused() {
    local lines=$1 words=$2 now
    shift 2
    expect 2 "$TRIREME" "$@"
    [ "$(wc -l <stderr)" = "$lines" ] || fail "$*: $(wc -l <stderr) lines on stderr, want $lines: $(cat stderr)"
    [ ! -s stdout ] || fail "$*: wrote to stdout: $(cat stdout)"
    grep -q -- "$words" stderr || fail "$*: no \"$words\" in: $(cat stderr)"
    now=$(find . -type f -o -type d | grep -vE '/(stdout|stderr)$' | sort)
    [ "$now" = "$before" ] || fail "$*: wrote $(diff <(echo "$before") <(echo "$now") | grep '^[<>]' | tr '\n' ' ')"
}
train=(train --model model --data train.jsonl --output out --sequence_length 32 --max_steps 2)

refused 1 'did you mean train' trian --model model
# A file of nothing but unknown keys takes no time for each of them.
python3 -c 'import json; json.dump({f"lr_scheduler_kwarg{i}": 1 for i in range(35000)}, open("many.json", "w"))'
before=$(find . -type f -o -type d | grep -vE '/(stdout|stderr)$' | sort)
seconds=3
[ -z "${TR_SANITIZED:-}" ] || seconds=30
(ulimit -t $seconds && expect 2 "$TRIREME" config show --config many.json)
tail -1 stderr | grep -q '^... and [0-9]* more$' || fail "$(tail -c 200 stderr)"
refused 1 'did you mean launch;' lanch --nproc-per-node 2 train
refused 1 'did you mean ckpt merge' merge out
refused 1 'model model/chekpoint-5: no such directory$' generate --model model/chekpoint-5 --prompt a
refused 1 'model ./nowhere: no such directory$' chat --model ./nowhere
refused 1 'model somebody/model: .*hf download somebody/model' eval --model somebody/model --data train.jsonl
refused 1 'nowhere: no such directory' watch nowhere
refused 1 'nowhere: no such directory' watch nowhere --json
refused 1 'did you mean train;' launch --nproc-per-node 2 finetune --model model
refused 1 '"wrong.yaml" is no option; a run file is given by --config' "${train[@]}" wrong.yaml
refused 1 '--learning_rat: unknown option; did you mean learning_rate' "${train[@]}" --learning_rat 3
refused 1 'wrong.yaml:1:1.*learning_rate' "${train[@]}" --config wrong.yaml
refused 2 'abc' "${train[@]}" --learning_rate abc --seed -1
refused 3 '--model is required' train
refused 1 'nowhere' train --model nowhere --data train.jsonl --output out
refused 1 'broken.json:1:2' init --config broken.json --out new
refused 1 'bert' init --config bert.json --out new
refused 1 'already holds a model' init --config tiny.json --out model
refused 1 'tp 3: tp divides num_attention_heads, which is 4; try 2 or 4' "${train[@]}" --tp 3
refused 1 '2 ranks, but 1 was started; trireme launch --nproc-per-node 2 starts them' "${train[@]}" --tp 2
refused 1 'cuda' "${train[@]}" --device cuda
refused 1 'memory_budget' "${train[@]}" --memory_budget 1MiB
refused 1 'sequence_length' "${train[@]}" --sequence_length 99999999
refused 1 'max_steps' "${train[@]}" --max_steps 0
refused 1 'save_best needs eval_data' "${train[@]}" --save_best
refused 1 'give one of them' "${train[@]}" --eval_split 0.1 --eval_data train.jsonl
refused 1 'profile 3 is after the last' "${train[@]}" --profile 3
refused 1 'nowhere' eval --model model --data nowhere.txt
refused 1 'temperature' generate --model model --temperature -1
# The binary must look at its data, its weights and its checkpoint before it makes the output directory.
refused 1 'nowhere.txt' train --model model --data nowhere.txt --output out
refused 1 'train.doc' train --model model --data train.doc --output out
refused 1 'empty' train --model model --data empty --output out
refused 1 'safetensors' train --model torn --data train.jsonl --output out
refused 1 'nowhere' "${train[@]}" --resume nowhere
# What belongs to another run, or to the model itself, is not written over.
refused 1 'earlier run, the newest of step 9; go on from it with --resume' "${train[@]}" --output old
refused 1 'earlier run, the newest of step 9' launch --nproc-per-node 2 "${train[@]}" --output old
refused 1 "is the model's own directory" "${train[@]}" --output ./model/
# Names that other trainers have; a run file that breaks off says so and nothing else.
refused 1 '--batch_size: no such option; write per_device_train_batch_size' "${train[@]}" --batch_size 4
refused 2 '--deepspeed: no such option; write zero' "${train[@]}" --deepspeed ds.json --fsdp full_shard
refused 1 'tab.yaml:3:1' train --config tab.yaml
refused 1 'cannot open nowhere.yaml' train --config nowhere.yaml
refused 1 'hf download some/model' train --model some/model --data train.jsonl --output out
for verb in 'generate --prompt x' 'eval --data train.jsonl' 'train --output out --data train.jsonl'; do
    refused 1 'no tokenizer: neither tokenizer.json' $verb --model mute
done
refused 1 'old/checkpoint-8: no such directory' ckpt verify old/checkpoint-8
refused 1 'empty: no checkpoints' ckpt list empty
refused 1 'usage: trireme ckpt list|newest OUTPUT' ckpt lst old
refused 1 'usage: trireme data check' data tokenize --model model --data train.jsonl
