#!/usr/bin/env bash
# Adapters from outside: plan says what is trained, and a request that cannot be meant is one clear line, with nothing
# written.
. "$(dirname "$0")/common.sh"
tiny_text train.jsonl
tiny_model model
run=(--model model --sequence_length 32)
plan() { # WORDS ARGUMENT...: a line of the plan
    local words=$1
    shift
    expect 0 "$TRIREME" plan "${run[@]}" "$@"
    grep -qx -- "$words" stdout || fail "plan $*: no line \"$words\" in: $(cat stdout)"
}
plan 'adapter: LoRA r 8 alpha 16 on 14 modules: 8.2 K parameters' --finetuning_type lora
plan 'llama: 35.2 K parameters in 48 tensors, 4 segments; 8.2 K of them learn' --finetuning_type lora
plan 'adapter: rank-stabilised LoRA r 2 to 4 alpha 8 on 4 modules, 1 modules whole: .* parameters' --use_rslora --lora_r 4 \
    --lora_target_modules q_proj,v_proj --rank_pattern q_proj=2 --lora_modules_to_save model.norm
plan 'adapter: DoRA r 2 alpha 4 on 3 modules, 2 tokens of model.embed_tokens, 1 token of lm_head: 576 parameters' --use_dora \
    --lora_r 2 --lora_target_modules k_proj,layers.0.mlp.gate_proj --trainable_token_indices lm_head=3,embed_tokens=3,embed_tokens=8
"$TRIREME" plan "${run[@]}" --lora_r 2 --json | python3 -c '
import json, sys
p = json.loads(sys.stdin.read().splitlines()[-1])
assert 0 < p["parameters_trained"] < p["parameters"] / 5, p["parameters_trained"]'

before=$(find . -type f -o -type d | grep -vE '/(stdout|stderr)$' | sort)
refused() { # WORDS ARGUMENT...: of train
    local words=$1 now
    shift
    expect 2 "$TRIREME" train "${run[@]}" --data train.jsonl --output out --max_steps 2 "$@"
    [ "$(wc -l <stderr)" = 1 ] || fail "$*: more than a line: $(cat stderr)"
    grep -q -- "$words" stderr || fail "$*: no \"$words\" in: $(cat stderr)"
    now=$(find . -type f -o -type d | grep -vE '/(stdout|stderr)$' | sort)
    [ "$now" = "$before" ] || fail "$*: wrote $(diff <(echo "$before") <(echo "$now") | grep '^[<>]' | tr '\n' ' ')"
}
refused 'lora_target_modules q_porj: no module of this model has this name; did you mean q_proj?' --lora_target_modules q_porj
refused 'did you mean self_attn.k_proj?' --lora_target_modules self_attn.k_porj,v_proj
refused 'exclude_modules k_porj: .*did you mean k_proj?' --exclude_modules v_proj,k_porj
refused 'rank_pattern gate_prj: .*; did you mean gate_proj?' --rank_pattern gate_prj=2
refused 'alpha_pattern v_proj: .*; drop it or target the module' --lora_target_modules q_proj --alpha_pattern v_proj=2
refused 'modules_to_save lm_haed: .*did you mean lm_head?' --lora_modules_to_save lm_haed
refused 'must match a whole name like' --lora_target_modules '(q_proj)'
refused 'the pattern "(q" is not accepted' --lora_target_modules '(q'
refused 'model.layers.0.mlp, which is neither a linear nor an embedding' --lora_target_modules mlp
refused 'rank 64 of model.layers.0.self_attn.q_proj is above its smaller side (32 x 32); use lora_r 32 or less' --lora_r 64 --init_lora_weights olora
refused 'lora_r 1000 is above both sides of every matrix that it would adapt, the widest is model.layers.0.mlp.gate_proj (64 x 32); use 64 or less' --lora_r 1000 --lora_target_modules q_proj,gate_proj
refused 'rank_pattern v_proj: no module that gets an adapter' --lora_target_modules q_proj --rank_pattern v_proj=2
refused 'lora_r has no effect with finetuning_type full' --lora_r 4 --finetuning_type full
refused 'the base is frozen' --lora_r 4 --frozen '*norm*'
refused 'layers_to_transform works with a list' --layers_to_transform 1
refused 'init_lora_weights "loftq" is not implemented' --init_lora_weights loftq
refused 'bias of B. and use_dora do not go together' --lora_b_bias --use_dora
refused 'lora_target_modules gate_up_proj: .*did you mean gate_proj?' --lora_target_modules gate_up_proj,c_attn
refused 'lora_target_modules q_porj: .*did you mean q_proj?' --lora_target_modules q_porj,v_proj,gate_up_proj
refused 'lora_target_modules Wqkv: ' --lora_target_modules q_proj,Wqkv
refused 'modules_to_save embed_in: ' --lora_modules_to_save embed_in

# Names of other families are passed over where another name matches, as PEFT does, and said once.
passed() { # TEXT WORDS ARGUMENT...: stderr and a line of the plan
    local text=$1
    shift
    plan "$@"
    [ "$(cat stderr)" = "$text" ] || fail "$*: $(cat stderr)"
}
elsewhere='of this model is called'
passed "lora_target_modules: no module $elsewhere gate_up_proj, mlp.c_fc: passed over, as PEFT does" 'adapter: LoRA r 8 alpha 16 on 2 modules: .*' \
    --lora_target_modules q_proj,gate_up_proj,mlp.c_fc
passed "exclude_modules: no module $elsewhere fc1: passed over, as PEFT does" 'adapter: LoRA r 8 alpha 16 on 14 modules: .*' --exclude_modules fc1 --lora_r 8
passed "modules_to_save: no module $elsewhere wte: passed over, as PEFT does
rank_pattern: no module that gets an adapter is called fc2: passed over, as PEFT does" 'adapter: LoRA r 2 to 4 alpha 8 on 14 modules, 1 modules whole: .*' \
    --lora_r 4 --lora_modules_to_save model.norm,wte --rank_pattern q_proj=2,fc2=3
"$TRIREME" train "${run[@]}" --data train.jsonl --output out --max_steps 1 --lora_target_modules q_proj,gate_up_proj >run.log
[ "$(grep -c 'is called gate_up_proj: passed over' run.log)" = 1 ] || fail "$(cat run.log)"
grep -q '"passed_over".*is called gate_up_proj' out/events.jsonl || fail "no event"
python3 -c 'import json; t = json.load(open("out/adapter_config.json"))["target_modules"]; assert t == ["gate_up_proj", "q_proj"], t'

# All that a file of another trainer lists, and a replay of its run.
cat >axolotl.yml <<'YAML'
base_model: model
adapter: lora
lora_r: 4
lora_target_modules: [q_proj, Wqkv, gate_up_proj]
lora_modules_to_save: [model.norm, score]
datasets:
  - path: train.jsonl
    type: completion
sequence_len: 32
micro_batch_size: 1
max_steps: 1
output_dir: foreign
YAML
"$TRIREME" train --config axolotl.yml >run.log 2>&1 || fail "$(cat run.log)"
grep -q "lora_target_modules: no module $elsewhere Wqkv, gate_up_proj: passed over" run.log || fail "$(cat run.log)"
grep -q "modules_to_save: no module $elsewhere score: passed over" run.log || fail "$(cat run.log)"
"$TRIREME" replay foreign --step 1 | grep -q 'equal to the bit' || fail "replay"
"$TRIREME" config import axolotl.yml --quiet >run.yaml
"$TRIREME" train --config run.yaml --output imported >run.log 2>&1 || fail "$(cat run.log)"
same foreign/adapter_model.safetensors imported/adapter_model.safetensors
expect 2 "$TRIREME" train --config axolotl.yml --peft_rules false --output refused
grep -q 'lora_target_modules Wqkv: ' stderr || fail "$(cat stderr)"
sed 's/^lora_r: 4/lora_r: 100/; s/^output_dir:.*/output_dir: wide/' axolotl.yml >wide.yml
"$TRIREME" train --config wide.yml >run.log 2>&1 || fail "$(cat run.log)"
grep -q 'lora_r 100 is above both sides of every matrix that it adapts, .* it trains, as in PEFT' run.log || fail "$(cat run.log)"
sed -i 's/\[q_proj, /[q_porj, /' axolotl.yml
expect 2 "$TRIREME" train --config axolotl.yml --output refused
grep -q 'lora_target_modules q_porj: .*did you mean q_proj?' stderr || fail "$(cat stderr)"
[ ! -e refused ] || fail "refused, and something was written"
echo "names of adapters: refused, passed over, and said"
