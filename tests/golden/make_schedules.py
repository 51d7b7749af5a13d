#!/usr/bin/env python3
"""make_schedules.py - writes schedules.txt: learning rates of transformers' schedules, step by step (tests/optim/test_schedule.c compares).

A line: options of trireme | steps of the run | the rate of each step. Rates of a logarithmic warm-up follow DeepSpeed's definition
(WarmupLR and WarmupDecayLR), which is written out here.
"""
import math
import pathlib

import torch
from transformers import get_scheduler
from transformers.optimization import get_wsd_schedule

LR, W, T = 3e-4, 7, 40
CASES = [  # transformers' name, its keyword arguments, options of trireme
    ("linear", {}, ""),
    ("cosine", {}, ""),
    ("cosine", {"num_cycles": 1.25}, "--lr_num_cycles 1.25"),
    ("cosine_with_restarts", {}, ""),
    ("cosine_with_restarts", {"num_cycles": 3}, "--lr_num_cycles 3"),
    ("polynomial", {}, ""),
    ("polynomial", {"lr_end": 1e-5, "power": 2.5}, "--lr_end 1e-5 --lr_power 2.5"),
    ("constant", {}, ""),
    ("constant_with_warmup", {}, ""),
    ("inverse_sqrt", {}, ""),
    ("inverse_sqrt", {"timescale": 13}, "--lr_timescale 13"),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, "--min_lr_ratio 0.1"),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}, "--min_lr_ratio 0.1"),
    ("warmup_stable_decay", {"num_decay_steps": 11}, "--decay_steps 11"),
    ("warmup_stable_decay", {"num_decay_steps": 11, "min_lr_ratio": 0.2, "warmup_type": "cosine", "decay_type": "1-sqrt"},
     "--decay_steps 11 --min_lr_ratio 0.2 --warmup_type cosine --decay_type 1-sqrt"),
    ("warmup_stable_decay", {"num_decay_steps": 11, "warmup_type": "1-sqrt", "decay_type": "linear"},
     "--decay_steps 11 --warmup_type 1-sqrt --decay_type linear"),
    ("warmup_stable_decay", {"num_decay_steps": 11, "num_cycles": 0.75}, "--decay_steps 11 --lr_num_cycles 0.75"),
]


def rates(name, kwargs, warmup):
    o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    if name == "warmup_stable_decay":
        s = get_wsd_schedule(o, warmup, num_training_steps=T, **kwargs)
    else:
        s = get_scheduler(name, o, None if name == "constant" else warmup, T, scheduler_specific_kwargs=kwargs)
    out = []
    for _ in range(T):
        out.append(s.get_last_lr()[0])
        o.step()
        s.step()
    return out


def deepspeed(warmup, decays):
    w = max(2, warmup)
    share = lambda n: math.log(n + 1) / math.log(w) if n < w else max(0, (T - n) / max(1, T - w)) if decays else 1
    return [LR * share(n) for n in range(T)]


def main():
    lines = []
    for name, kwargs, options in CASES:
        for warmup in (W, 0):
            lines.append((f"--lr_scheduler_type {name} --warmup_steps {warmup} {options}", rates(name, kwargs, warmup)))
    for warmup in (W, 0):
        lines.append((f"--lr_scheduler_type constant_with_warmup --warmup_type log --warmup_steps {warmup}", deepspeed(warmup, False)))
        lines.append((f"--lr_scheduler_type linear --warmup_type log --warmup_steps {warmup}", deepspeed(warmup, True)))
    text = "".join(f"--learning_rate {LR} {o.strip()} | {T} | {' '.join(f'{x:.17g}' for x in r)}\n" for o, r in lines)
    pathlib.Path(__file__).with_name("schedules.txt").write_text(text)


main()
