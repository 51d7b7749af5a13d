#!/usr/bin/env python3
"""Asks a model the held-out questions through transformers and counts the right answers; with --greedy TRIREME it also
checks that `trireme generate` writes the same tokens, id by id. Usage: ask.py DIR valid.jsonl [--greedy TRIREME]"""
import json
import subprocess
import sys

import torch
import transformers

directory, path = sys.argv[1:3]
trireme = sys.argv[4] if len(sys.argv) > 4 else None
tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
right = same = n = 0
with open(path, encoding="utf-8") as f:
    for line in f:
        *asked, answer = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
        out = model.generate(**ids, do_sample=False, max_new_tokens=40)[0][ids["input_ids"].shape[1]:]
        text = tokenizer.decode(out, skip_special_tokens=True).strip()
        n += 1
        right += text == answer["content"]
        if n <= 2:
            print(f"  {asked[-1]['content']}\n    -> {text}")
        if trireme:
            got = subprocess.run([trireme, "generate", "--model", directory, "--prompt", prompt, "--max_new_tokens", "40", "--json"],
                                 capture_output=True, text=True, check=True).stdout
            same += json.loads(got)["ids"] == [i for i in out.tolist() if i != tokenizer.eos_token_id]
print(f"{right} of {n} held-out questions answered word for word")
if trireme:
    print(f"{same} of {n} greedy continuations are those of transformers, token for token")
    sys.exit(same != n)
