#!/usr/bin/env python3
"""Writes pairs/trl.json and pairs/trl_weighed.json: 50 steps of TRL's DPOTrainer on a tiny model, with the pairs of each step in Trireme's order.

    TRIREME=build/release/trireme python3 tests/golden/make_trl_dpo.py

Trireme trains first (tests/cli/preference.sh has the options); `data show` says which pairs each step had, and TRL gets
them in that order. tests/cli/test_preference.sh and test_pair_weights.sh compare a run with the recorded curve. Made with trl 1.16, float32.
"""
import json, os, re, shutil, subprocess, sys, tempfile
import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

here = os.path.dirname(os.path.abspath(__file__))
trireme = os.path.realpath(os.environ["TRIREME"])
STEPS, BATCH = 50, 4
# file: options of Trireme, and of DPOConfig
CURVES = {"trl.json": ("", {}), "trl_weighed.json": ("--ld_alpha 0.4 --use_weighting", {"ld_alpha": 0.4, "use_weighting": True})}


class InOrder(DPOTrainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def main():
    for name, (mine, theirs) in CURVES.items():
        write(name, mine, theirs)


def write(name, mine, theirs):
    work = tempfile.mkdtemp()
    script = os.path.join(here, "..", "cli", "preference.sh")
    subprocess.run(["bash", "-c", f'set -e; . "{script}"; cd "{work}"; preference_model model; preference_data pairs.jsonl; '
                    f'preference_run model pairs.jsonl out {mine}'], check=True, env={**os.environ, "TRIREME": trireme})
    records = [json.loads(line) for line in open(os.path.join(work, "pairs.jsonl"))]
    order = []
    for step in range(1, STEPS + 1):
        text = subprocess.run([trireme, "data", "show", "--step", str(step), "--output", "out", "--model", "model", "--data",
                               "pairs.jsonl", "--task", "dpo", "--packing", "none", "--sequence_length", "128"], cwd=work,
                              check=True, capture_output=True, text=True).stdout
        found = [int(x) for x in re.findall(r"^\D{0,4}(\d+)\. ", text, re.M)]
        assert len(found) == BATCH, (step, found, text)
        order += found
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(work, "model"))
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(os.path.join(work, "model"), dtype=torch.float32)
    args = DPOConfig(output_dir=os.path.join(work, "trl"), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=1e-3,
                     lr_scheduler_type="linear", logging_steps=1, report_to=[], bf16=False, fp16=False, use_cpu=True, max_length=None,
                     gradient_checkpointing=False, save_strategy="no", beta=0.1, weight_decay=0.0, max_grad_norm=1.0, warmup_steps=0, **theirs)
    trainer = InOrder(model=model, args=args, train_dataset=Dataset.from_list([records[i] for i in order]), processing_class=tokenizer)
    trainer.train()
    names = {"loss": "loss", "grad_norm": "grad_norm", "rewards/chosen": "rewards_chosen", "rewards/rejected": "rewards_rejected",
             "rewards/accuracies": "rewards_accuracy", "logps/chosen": "logps_chosen", "logps/rejected": "logps_rejected"}
    curve = [{v: row[k] for k, v in names.items() if k in row} for row in trainer.state.log_history if "loss" in row]
    assert len(curve) == STEPS
    with open(os.path.join(here, "pairs", name), "w") as f:
        f.write("[" + ",\n ".join(json.dumps(row) for row in curve) + "]\n")
    shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
