#!/usr/bin/env bash
# Files of other trainers: translations written by hand, "auto" as transformers resolves it, and runs that take such a file
# with --config.
. "$(dirname "$0")/common.sh"
mkdir golden && (cd golden && python3 "$source_dir/tests/import/golden.py" "$TRIREME") || fail "translations"

python=python3
[ -z "${TR_PYTHON:-}" ] || python=$TR_PYTHON
got=0
mkdir auto && (cd auto && "$python" "$source_dir/tests/import/auto.py" "$TRIREME" 2>/dev/null) || got=$?
[ "$got" = 0 ] || [ "$got" = 77 ] || fail "\"auto\""

# A run with a file of the Trainer and one with its translation are the same run.
tiny_model model
tiny_text train.jsonl
cat >ds.json <<'JSON'
{ "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "zero_optimization": { "stage": 2, "overlap_comm": true } }
JSON
cat >args.yaml <<'YAML'
model_name_or_path: model
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 3
learning_rate: 1e-3
lr_scheduler_type: cosine
warmup_ratio: 0.1
group_by_length: true
logging_steps: 1
save_strategy: "no"
report_to: none
tf32: true
deepspeed: ds.json
YAML
expect 0 "$TRIREME" train --config args.yaml --data train.jsonl --sequence_length 32 --threads 1
grep -q '^args.yaml:9: group_by_length: the order is random' stderr || fail "what differs is not said"
if grep -q 'tf32\|report_to\|overlap_comm' stderr; then fail "a harmless key is complained about"; fi
expect 0 "$TRIREME" config import args.yaml
grep -q 'ds.json:2 zero_optimization.stage 2 -> zero 2' stderr || fail "no place in the report"
cp stdout run.yaml
expect 0 "$TRIREME" train --config run.yaml --output out2 --data train.jsonl --sequence_length 32 --threads 1
step_lines out/events.jsonl >a
step_lines out2/events.jsonl >b
same a b

# A run file of ours may have maps: it is nobody else's.
printf 'model: model\noutput: mapped\ndata: train.jsonl\nmax_steps: 1\nsequence_length: 32\ndtype: float32\nchat_template_kwargs:\n  enable_thinking: false\n' >maps.yaml
expect 0 "$TRIREME" train --config maps.yaml --threads 1 --quiet

# What cannot be had, and what nobody knows, is refused before anything is written; --skip is the way past the first.
sed 's/^group_by_length:.*/optim: galore_adamw/; s/^output_dir:.*/output_dir: never/' args.yaml >bad.yaml
echo 'learning_rte: 1' >>bad.yaml
expect 2 "$TRIREME" train --config bad.yaml --data train.jsonl
grep -q '^trireme: bad.yaml:9: optim: optim: "galore_adamw" is none of .*; --skip optim leaves it out$' stderr || fail "no reason"
grep -q '^bad.yaml:15: learning_rte: unknown key; did you mean learning_rate?$' stderr || fail "no nearest name"
[ ! -e never ] || fail "something was written"
expect 2 "$TRIREME" config import bad.yaml
[ ! -s stdout ] || fail "a run file in spite of a refusal"
expect 0 "$TRIREME" config import bad.yaml --skip 'optim,learning_rte' --quiet
if grep -q '^optim:' stdout; then fail "a skipped key is there"; fi
expect 2 "$TRIREME" config import train.jsonl
printf 'output_dir: o\nlearning_rte: 1\n' >slip.yaml
expect 2 "$TRIREME" config import slip.yaml
grep -q 'slip.yaml:2 learning_rte 1: did you mean learning_rate?' stderr || fail "no nearest name in the report"
expect 2 "$TRIREME" config import nowhere.yaml
expect 2 "$TRIREME" config import args.yaml --from nemo
grep -q 'axolotl and torchtune are known' stderr || fail "no list of tools"

# A name of the hub is a directory of its cache, when it is there; what exists here, and what the cache lacks, stays as it is.
mkdir -p hub/models--org--tiny/refs hub/models--org--tiny/snapshots hub/datasets--org--lines/refs hub/datasets--org--lines/snapshots/1
cp -r model hub/models--org--tiny/snapshots/abc
printf abc >hub/models--org--tiny/refs/main
printf '1\n' >hub/datasets--org--lines/refs/main
cp train.jsonl hub/datasets--org--lines/snapshots/1/
export HF_HUB_CACHE=$work/hub
expect 0 "$TRIREME" train --model org/tiny --data org/lines --output hubbed --max_steps 1 --sequence_length 32 --quiet --threads 1
grep -q "^model org/tiny is $work/hub/models--org--tiny/snapshots/abc$" stderr || fail "the directory of the model is not said"
grep -q "^data org/lines is $work/hub/datasets--org--lines/snapshots/1$" stderr || fail "the directory of the data is not said"
expect 0 "$TRIREME" data check --model org/tiny --data 'org/lines#train[:25%]' --sequence_length 32 --threads 1
grep -q "^data org/lines#train\[:25%\] is $work/hub/datasets--org--lines/snapshots/1#train\[:25%\]$" stderr || fail "the split of hub data is lost: $(cat stderr)"
grep -q ' 10 documents' stdout || fail "a quarter of 40 records is not 10 documents: $(cat stdout)"
expect 2 "$TRIREME" train --model org/other --data org/lines --output never
grep -q 'model org/other: no such directory; .*hf download org/other' stderr || fail "no way to get a model"
printf '../../..' >hub/models--org--tiny/refs/main
expect 2 "$TRIREME" train --model org/tiny --data org/lines --output never
grep -q 'model org/tiny: no such directory' stderr || fail "a commit that leads elsewhere"
expect 2 "$TRIREME" train --model ../org/tiny --data org/lines --output never
mkdir org && cp -r model org/tiny
expect 0 "$TRIREME" plan --model org/tiny --sequence_length 32
if grep -q "model org/tiny is" stderr; then fail "a directory is not a name"; fi

# A part of a data set of the hub is a directory of its name; train+test are two sources.
cache=hub/datasets--org--parts
mkdir -p $cache/refs $cache/snapshots/2/easy $cache/snapshots/2/data/hard
printf 2 >$cache/refs/main
for part in easy data/hard; do
    head -n 8 train.jsonl >$cache/snapshots/2/$part/train-00000-of-00001.jsonl
    tail -n 4 train.jsonl >$cache/snapshots/2/$part/test-00000-of-00001.jsonl
done
touch $cache/snapshots/2/README.md
expect 2 "$TRIREME" data check --model model --data org/parts --sequence_length 32 --threads 1
grep -q 'holds several data sets' stderr || fail "two parts are one: $(cat stderr)"
expect 0 "$TRIREME" data check --model model --data 'org/parts/easy#train+test[:50%]' --sequence_length 32 --threads 1
grep -q ' 8 documents' stdout && grep -q ' 2 documents' stdout || fail "not 8 and 2 documents: $(cat stdout)"
expect 0 "$TRIREME" data check --model model --data org/parts/hard --sequence_length 32 --threads 1
grep -q ' 8 documents' stdout || fail "no part below data: $(cat stdout)"
expect 2 "$TRIREME" data check --model model --data 'org/parts/easy#train+test:0.5' --sequence_length 32 --threads 1
grep -q 'give the source several times' stderr || fail "a weight of two splits: $(cat stderr)"
for outside in org/parts/../../../train.jsonl org/parts/.. org/parts/none; do
    expect 2 "$TRIREME" data check --model model --data $outside --sequence_length 32 --threads 1
done

# A chat template as text, in a file of TRL, is that of the run.
for i in 1 2 3 4; do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"boat $i\"}, {\"role\": \"assistant\", \"content\": \"oars $i\"}]}"; done >talk.jsonl
cat >talk.yaml <<'YAML'
model_name_or_path: model
output_dir: talked
dataset_name: talk.jsonl
assistant_only_loss: true
max_length: 64
max_steps: 1
per_device_train_batch_size: 1
chat_template: "{# turns #}{% for m in messages %}{{ '<' + m.role + '>\n' + m.content + '\n' }}{% endfor %}"
YAML
expect 0 "$TRIREME" train --config talk.yaml --threads 1 --quiet
python3 - <<'PY' || fail "another template in the output: $(cat talked/chat_template.jinja)"
want = "{# turns #}{% for m in messages %}{{ '<' + m.role + '>\n' + m.content + '\n' }}{% endfor %}"
assert open("talked/chat_template.jinja").read() == want
PY
expect 0 "$TRIREME" config import talk.yaml
cp stdout run.yaml
expect 0 "$TRIREME" train --config run.yaml --output talked2 --threads 1 --quiet
same talked/model.safetensors talked2/model.safetensors
