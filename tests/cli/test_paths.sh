#!/usr/bin/env bash
# Links at the names that a verb makes: whatever is planted there, nothing outside the output directory changes. usage: [full]
. "$(dirname "$0")/common.sh"
[ -z "${TR_SANITIZED:-}" ] || exit 77 # slow there; base/test_file has the same functions
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
python3 - <<'PY'
import json
write = lambda name, records: open(name, "w").write("".join(json.dumps(r) + "\n" for r in records))
write("prefs.jsonl", [{"prompt": f"oars {i}?", "chosen": "170.", "rejected": "7."} for i in range(40)])
write("choices.jsonl", [{"context": "oars", "choices": ["170", "7"], "gold": 0}] * 2)
write("asks.jsonl", [{"prompt": "oars"}])
PY
echo 'cp "$(dirname "$0")/train.jsonl" "$1"' >fetch.sh
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 2 --threads 1 --max_steps 2 --save_steps 1 --quiet)
"$TRIREME" train "${options[@]}" --output trained >run.log
"$TRIREME" train "${options[@]}" --lora_r 2 --output adapter >run.log

# Links that a user has made. The output directory may be one; a checkpoint that was moved is named, never passed over; with a run
# that resumes, nothing starts from scratch where checkpoints are or were.
go_on=("${options[@]}" --max_steps 3 --allow_change schedule_steps --resume auto --output run)
cp -r trained kept && ln -s kept run
expect 0 "$TRIREME" train "${go_on[@]}"
[ -L run ] && [ -e kept/checkpoint-3 ] || fail "the run did not go on behind its link"
again() { # NAME COMMAND: a run of two steps whose checkpoints were changed by COMMAND; --resume refuses and names NAME
    rm -rf run && cp -r trained run
    cp run/events.jsonl log
    (cd run && eval "$2")
    expect 2 "$TRIREME" train "${go_on[@]}"
    grep -q -- "$1" stderr || fail "$2: $(cat stderr)"
    same run/events.jsonl log
    [ ! -e run/checkpoint-3 ] || fail "$2: started again"
}
again checkpoint-2 'mkdir ../big && mv checkpoint-2 ../big && ln -s ../big/checkpoint-2 .'
expect 0 "$TRIREME" train "${options[@]}" --max_steps 3 --allow_change schedule_steps --resume_from_checkpoint run/checkpoint-2 --output named
again checkpoint-2 'rm -r checkpoint-*; ln -s nowhere/checkpoint-2 .'
again checkpoint-2.old 'rm -r checkpoint-1; mv checkpoint-2 checkpoint-2.old'
again latest 'rm -r checkpoint-*'
rm -rf run && cp -r trained run && for f in run/checkpoint-*/model.safetensors; do : >"$f"; done
expect 70 "$TRIREME" train "${go_on[@]}"
grep -q 'none of 2 checkpoints is good' stderr || fail "$(cat stderr)"

python3 "$source_dir/tests/cli/paths.py" "$TRIREME" "$@"
