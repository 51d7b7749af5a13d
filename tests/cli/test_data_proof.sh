#!/usr/bin/env bash
# The data proof of a run: before step 0 it says what was read, skipped (file:line and why), packed and masked, shows a
# sample, and proves isolation; the same is an event. It can be turned off, and it changes no bit of the run.
. "$(dirname "$0")/common.sh"
tiny_model model
for i in $(seq 30); do
    echo "{\"prompt\": \"Stroke $i: \", \"completion\": \"row $((i * i)).\"}"
    if [ "$i" = 7 ]; then echo '{"prompt": "torn'; fi
done >train.jsonl
options=(--model model --data train.jsonl --sequence_length 64 --per_device_train_batch_size 2 --gradient_accumulation_steps 2
    --max_steps 4 --learning_rate 1e-2 --threads 1)

expect 0 "$TRIREME" train "${options[@]}" --output out
for words in 'train.jsonl: completion records, bestfit packing, .* in 30 documents, 1 skipped' \
    'skipped train.jsonl:8: ' 'rows of 64 tokens, 9.* % filled' 'of the tokens in the first .* rows have a loss; 0 rows' \
    '^sample 0 (epoch 0): .*trained' 'Stroke .*: \[row .*\.<|endoftext|>\]|Stroke' \
    'documents beside changed neighbours, no loss moved by a bit' 'of it waiting for data'; do
    grep -q -- "$words" stdout || fail "no \"$words\" in: $(cat stdout)"
done
python3 - <<'PY'
import json
events = [json.loads(line) for line in open("out/events.jsonl")]
data = [e for e in events if e["event"] == "data"]
assert len(data) == 1 and events.index(data[0]) < [e["event"] for e in events].index("step"), data
d = data[0]
assert d["documents"] == 30 and d["skipped"] == 1 and d["skips"][0]["line"] == 8 and d["skips"][0]["path"] == "train.jsonl", d
assert d["isolated"] is True and d["pairs"] > 0 and d["split_error"] < 1e-12, d
assert 0.3 < d["trained"] < 0.8 and d["rows_without_target"] == 0, d
assert d["sources"][0]["format"] == "completion" and d["sources"][0]["packing"] == "bestfit", d
end = events[-1]
assert end["event"] == "end" and 0 <= end["data_wait"] < 1, end
PY

expect 0 "$TRIREME" train "${options[@]}" --output silent --data_proof none
grep -q 'Stroke\|isolation' stdout && fail "--data_proof none still shows it"
grep -q '"event":"data"' silent/events.jsonl && fail "--data_proof none still logs it"
same out/model.safetensors silent/model.safetensors

# The proof runs in the layout of the run.
expect 0 "$TRIREME" launch --nproc-per-node 2 train "${options[@]}" --gradient_accumulation_steps 1 --zero 3 --output two
[ "$(grep -c '"event":"data".*"isolated":true' two/events.jsonl)" = 1 ] || fail "two ranks: $(head -c 2000 two/events.jsonl)"

# Where ranks crowd the cores, their proof would take longer than the rest of the start: it is left to those who ask.
if [ "$(nproc)" -le 2 ]; then
    crowd=(--nproc-per-node 8 train "${options[@]}" --gradient_accumulation_steps 1 --per_device_train_batch_size 1 --max_steps 1)
    expect 0 "$TRIREME" launch "${crowd[@]}" --output crowd
    grep -q '"event":"data".*"isolated":null' crowd/events.jsonl || fail "a crowd of ranks: $(head -c 2000 crowd/events.jsonl)"
    grep -q 'not tested, because it costs four steps and .* ranks share a core' stdout || fail "a crowd of ranks says: $(cat stdout)"
    expect 0 "$TRIREME" launch "${crowd[@]}" --output crowd-full --data_proof full
    grep -q '"event":"data".*"isolated":true' crowd-full/events.jsonl || fail "--data_proof full: $(head -c 2000 crowd-full/events.jsonl)"
fi

# A row that holds nothing but a prompt teaches nothing, and is left out.
echo "{\"prompt\": \"$(printf 'x%.0s' $(seq 70))\", \"completion\": \"y\"}" >idle.jsonl
expect 0 "$TRIREME" train "${options[@]}" --data idle.jsonl --output idle --long_documents split
grep -q '1 documents continue in further rows' stdout || fail "a split document is not counted: $(cat stdout)"
grep -q ' 0 rows have none' stdout || fail "an idle row is there: $(cat stdout)"

# Prompts longer than a row: every answer is trained, by default; where that cannot be, it is said before step 0.
for i in $(seq 8); do
    echo "{\"prompt\": \"$(printf 'a long question, number %d; ' $(seq "$i" $((i + 20))))\", \"completion\": \"answer $i\"}"
    if [ "$i" = 2 ]; then echo 'torn'; fi
done >long.jsonl
options=(--model model --data long.jsonl --sequence_length 64 --per_device_train_batch_size 1 --num_train_epochs 1 --threads 1)
expect 0 "$TRIREME" train "${options[@]}" --output long
grep -q 'too long long.jsonl:1: .* are lost, 0 of them targets; it needs --sequence_length' stdout || fail "record 1 is not named: $(cat stdout)"
grep -q 'too long long.jsonl:9: ' stdout || fail "record 8 has line 9: $(cat stdout)"
python3 - <<'PY'
import json
events = [json.loads(line) for line in open("long/events.jsonl")]
steps = [e for e in events if e["event"] == "step"]
data = [e for e in events if e["event"] == "data"][0]
assert len(steps) == 8 and all(e["loss"] > 0 and e["grad_norm"] > 0 for e in steps), steps
assert data["cut"] == 8 and data["dropped"] == 0 and data["targets_lost"] == 0 and len(data["losses"]) == 8, data
PY
expect 2 "$TRIREME" train "${options[@]}" --output none --long_documents cut
grep -q 'no document is left to train on' stderr || fail "$(cat stderr)"
expect 2 "$TRIREME" train "${options[@]}" --output none --long_documents refuse
grep -q 'long.jsonl:1: .* tokens are longer than a row of 64; give --sequence_length' stderr || fail "$(cat stderr)"
expect 0 "$TRIREME" train "${options[@]}" --output split --long_documents split

# A batch without a target ends the run: here the stream of tokens has rows of prompt alone.
expect 2 "$TRIREME" train "${options[@]}" --output stream --packing stream --data_proof none
grep -q 'no token of this batch has a loss' stderr || fail "$(cat stderr)"

# A run on conversations: the output has the template of the training, and stops at the end of a turn.
for i in $(seq 12); do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q$i\"}, {\"role\": \"assistant\", \"content\": \"a$i\"}]}"; done >chat.jsonl
options=(--model model --data chat.jsonl --sequence_length 96 --per_device_train_batch_size 1 --max_steps 2 --save_steps 1 --threads 1)
printf '%s' "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}" >own.jinja
expect 0 "$TRIREME" train "${options[@]}" --chat_template own.jinja --output eos
for dir in eos eos/checkpoint-1; do same own.jinja "$dir/chat_template.jinja"; done
[ ! -e eos/generation_config.json ] || fail "config.json has the end of turn already: $(cat eos/generation_config.json)"
sed -i 's/"eos_token_id":[[:space:]]*256/"eos_token_id":3/' model/config.json
expect 0 "$TRIREME" train "${options[@]}" --chat_template own.jinja --output gains
grep -q 'generation_config.json of the output gets eos_token_id 256' stdout || fail "the mend is not said: $(cat stdout)"
for dir in gains gains/checkpoint-1; do
    python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["eos_token_id"] == [3, 256]' "$dir/generation_config.json"
done
expect 0 "$TRIREME" train "${options[@]}" --chat_template chatml --output bytes
grep -q 'the end of a turn, <|im_end|>, is 10 tokens of this tokenizer' stdout || fail "several tokens are not named: $(cat stdout)"
expect 0 "$TRIREME" data check --model model --data chat.jsonl --sequence_length 96 --chat_template chatml
grep -q 'the end of a turn, <|im_end|>, is 10 tokens of this tokenizer' stdout || fail "data check does not name several tokens: $(cat stdout)"
printf '%s' "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}" >endless.jinja
expect 0 "$TRIREME" data check --model model --data chat.jsonl --sequence_length 96 --chat_template endless.jinja
grep -q 'the chat template has no end-of-turn token' stdout || fail "data check does not name a template without an end: $(cat stdout)"
[ -e bytes/chat_template.jinja ] && [ ! -e bytes/generation_config.json ] || fail "the files of bytes/ are wrong"

# The end of a turn must be a target somewhere: here every answer is cut, or the turns that have a loss end elsewhere.
options=(--model model --sequence_length 96 --per_device_train_batch_size 1 --max_steps 2 --save_steps 1 --threads 1)
for i in $(seq 6); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"$(printf "an answer of $i, %d;" $(seq 30))\"}]}"
done >cut.jsonl
for long in fit cut; do
    expect 2 "$TRIREME" train "${options[@]}" --chat_template own.jinja --data cut.jsonl --long_documents $long --output none-cut
    grep -q 'cut.jsonl: the end of a turn, <|endoftext|> (id 256), is a target in no record, .* --sequence_length than 96' stderr || fail "$(cat stderr)"
done
[ ! -e none-cut/events.jsonl ] && [ ! -e none-cut/model.safetensors ] || fail "a refused run wrote: $(ls none-cut)"
expect 2 "$TRIREME" data check --model model --data cut.jsonl --sequence_length 96 --chat_template own.jinja
grep -q 'the end of a turn' stderr || fail "data check: $(cat stderr)"
expect 0 "$TRIREME" train "${options[@]}" --chat_template own.jinja --data cut.jsonl --long_documents split --output split-cut
expect 0 "$TRIREME" train "${options[@]}" --chat_template own.jinja --data cut.jsonl --data_proof none --output unproven
expect 0 "$TRIREME" train "${options[@]}" --chat_template own.jinja --data cut.jsonl --data chat.jsonl --output mixed
grep -q 'cut.jsonl: the end of a turn, <|endoftext|> (id 256), is a target in no record of this source, only in others' stdout || fail "$(cat stdout)"
grep -q 'chat.jsonl: the end of a turn' stdout && fail "chat.jsonl has ends: $(cat stdout)"

# BOS once: a template that writes it twice is refused, one that writes it once is not.
printf '{{ bos_token }}%s' "$(cat own.jinja)" >once.jinja
printf '{{ bos_token }}%s' "$(cat once.jinja)" >twice.jinja
expect 0 "$TRIREME" train "${options[@]}" --data chat.jsonl --chat_template once.jinja --output once
expect 2 "$TRIREME" train "${options[@]}" --data chat.jsonl --chat_template twice.jinja --output none-twice
grep -q 'chat.jsonl: conversations begin with <|endoftext|> (id 256) twice; .* leave one {{ bos_token }} in it' stderr || fail "$(cat stderr)"

# OpenAI's weights of messages: 0 has no loss, 1 is as none given, another number is no weight.
talk() { echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"first\"$1}, {\"role\": \"user\", \"content\": \"r\"}, {\"role\": \"assistant\", \"content\": \"second\"$2}]}"; }
check=("$TRIREME" data check --model model --sequence_length 96 --chat_template own.jinja)
talk '' '' >plain.jsonl
talk ', "weight": 1' ', "weight": 1' >ones.jsonl
talk ', "weight": 0' ', "weight": 1' >weights.jsonl
for part in plain ones; do
    expect 0 "${check[@]}" --data $part.jsonl
    grep -qF '[assistant][first<|endoftext|>][user]r<|endoftext|>[assistant][second<|endoftext|>]' stdout || fail "$part: $(cat stdout)"
done
expect 0 "${check[@]}" --data weights.jsonl
grep -qF '[assistant]first<|endoftext|>[user]r<|endoftext|>[assistant][second<|endoftext|>]' stdout || fail "a weight of 0: $(cat stdout)"
{ talk ', "weight": 0.5' '' && talk ', "weight": 0' ', "weight": 0' && talk '' ''; } >odd.jsonl
expect 0 "${check[@]}" --data odd.jsonl
grep -q 'skipped odd.jsonl:1: .*"weight.* of a message is neither 0 nor 1' stdout || fail "$(cat stdout)"
grep -q 'skipped odd.jsonl:2: .*no assistant turn to learn' stdout || fail "$(cat stdout)"

# A template of the model's own is the one that the output has.
cp -r model named
cp own.jinja named/chat_template.jinja
expect 0 "$TRIREME" train "${options[@]}" --model named --data chat.jsonl --output kept
same own.jinja kept/chat_template.jinja
rm named/chat_template.jinja
python3 - <<'PY'
import json, os
path = "named/tokenizer_config.json"
config = json.load(open(path)) if os.path.exists(path) else {}
config["chat_template"] = open("own.jinja").read()
json.dump(config, open(path, "w"))
PY
expect 0 "$TRIREME" train "${options[@]}" --model named --data chat.jsonl --output kept-config
python3 -c 'import json; assert json.load(open("kept-config/tokenizer_config.json"))["chat_template"] == open("own.jinja").read()' || fail "the template was lost"
[ ! -e kept-config/chat_template.jinja ] || fail "two templates"

# What a stream skips while the run goes on is told too: here in its second file, which is tokenised beside the steps.
for i in 1 2; do
    tiny_text part$i.jsonl
    echo 'no record' >>part$i.jsonl
done
expect 0 "$TRIREME" train --model model --data part1.jsonl --data part2.jsonl --streaming true --sequence_length 32 --train_batch_size 8 --max_steps 40 \
    --threads 1 --output streamed
grep -q 'skipped part[12].jsonl:41: ' stdout || fail "the first block: $(cat stdout)"
grep -q 'tokenised meanwhile: 1 records skipped, .*the first: part[12].jsonl:41: ' stdout || fail "a later block: $(cat stdout)"
grep -q '"event":"data_lost",.*"skipped":1,.*"first":"part[12].jsonl:41: ' streamed/events.jsonl || fail "no event: $(grep -v step streamed/events.jsonl)"
