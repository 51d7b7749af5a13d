#!/usr/bin/env python3
"""Writes dft.txt, smoothing.txt and z_loss.txt: losses of tokens on golden models by their definitions in PyTorch, in float64.

Lines: case loss VALUE; case PARAMETER root-mean-square sum, of the gradient. dft: the mean over targets of p * nll, with p a constant. smoothing:
that of transformers' LabelSmoother with a factor of 0.1. z_loss: the mean of nll plus 0.01 times the square of the log-sum-exp, with a label
smoothing of 0.2. tests/train/test_golden.c compares.
"""
import pathlib

import safetensors.torch
import torch
import transformers
from make_adapters import documents_of
from make_golden import NO_TARGET, float32_is, forward, keep_rotary_tables

HERE = pathlib.Path(__file__).parent
CASES = ("llama_gqa_tied", "gemma2", "granite", "qwen3")


def dft(logits, targets):
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction="none")
    return (torch.exp(-nll).detach() * nll).sum() / (targets != NO_TARGET).sum()


def smoothing(logits, targets):
    from transformers.trainer_pt_utils import LabelSmoother
    return LabelSmoother(epsilon=0.1)({"logits": logits}, targets)


def z_loss(logits, targets):
    is_target = targets != NO_TARGET
    z, t = logits[is_target], targets[is_target]
    nll = torch.nn.functional.cross_entropy(z, t, label_smoothing=0.2)
    return nll + 0.01 * torch.logsumexp(z, -1).square().mean()


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for rule in (dft, smoothing, z_loss):
        with open(HERE / f"{rule.__name__}.txt", "w") as out:
            for case in CASES:
                write(case, rule, out)


def write(case, rule, out):
    model = transformers.AutoModelForCausalLM.from_pretrained(HERE / case, attn_implementation="eager").double().train()
    keep_rotary_tables(model)
    batch = safetensors.torch.load_file(HERE / case / "golden.safetensors")
    with float32_is(torch.float64):
        loss = rule(forward(model, batch["tokens"].long(), documents_of(batch["begin"])), batch["targets"].long())
        loss.backward()
    print(case, "loss", repr(loss.item()), file=out)
    for name, p in model.named_parameters():
        print(case, name, repr(p.grad.square().mean().sqrt().item()), repr(p.grad.sum().item()), file=out)


main()
