#!/usr/bin/env python3
"""Writes pairs/trl_kto.json: 50 steps of TRL's KTOTrainer on a tiny model, with the answers that Trireme trains on.

    TRIREME=build/release/trireme python3 tests/golden/make_trl_kto.py

TRL compares each prompt with the answer before it in its batch, Trireme with the one before it in its file. A batch is
therefore the whole file, in its order (tests/cli/preference.sh has data and options); two answers in three are desirable,
and weigh differently. tests/cli/test_kto.sh compares a run with the recorded curve. Made with trl 1.16, float32.
"""
import json, os, shutil, subprocess, sys, tempfile
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import KTOConfig, KTOTrainer

here = os.path.dirname(os.path.abspath(__file__))
trireme = os.path.realpath(os.environ["TRIREME"])
STEPS, BATCH = 50, 12


def main():
    work = tempfile.mkdtemp()
    script = os.path.join(here, "..", "cli", "preference.sh")
    subprocess.run(["bash", "-c", f'set -e; . "{script}"; cd "{work}"; preference_model model; preference_answers answers.jsonl'],
                   check=True, env={**os.environ, "TRIREME": trireme})
    records = [json.loads(line) for line in open(os.path.join(work, "answers.jsonl"))]
    assert len(records) == BATCH
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(work, "model"))
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(os.path.join(work, "model"), dtype=torch.float32)
    args = KTOConfig(output_dir=os.path.join(work, "trl"), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=1e-3,
                     lr_scheduler_type="linear", logging_steps=1, report_to=[], bf16=False, fp16=False, use_cpu=True, max_length=None,
                     gradient_checkpointing=False, save_strategy="no", beta=0.1, desirable_weight=1.0, undesirable_weight=1.5,
                     weight_decay=0.0, max_grad_norm=1.0, warmup_steps=0)
    trainer = KTOTrainer(model=model, args=args, train_dataset=Dataset.from_list(records), processing_class=tokenizer)
    trainer.train()
    names = {"loss": "loss", "grad_norm": "grad_norm", "rewards/chosen": "rewards_chosen", "rewards/rejected": "rewards_rejected",
             "rewards/margins": "rewards_margin", "logps/chosen": "logps_chosen", "logps/rejected": "logps_rejected", "kl": "kl"}
    curve = [{v: row[k] for k, v in names.items() if k in row} for row in trainer.state.log_history if "loss" in row]
    assert len(curve) == STEPS
    with open(os.path.join(here, "pairs", "trl_kto.json"), "w") as f:
        f.write("[" + ",\n ".join(json.dumps(row) for row in curve) + "]\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
