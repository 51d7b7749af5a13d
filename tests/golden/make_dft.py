#!/usr/bin/env python3
"""Writes dft.txt: dynamic fine-tuning on golden models by its definition in PyTorch, in float64.

Lines: case loss VALUE; case PARAMETER root-mean-square sum, of the gradient. The loss is the mean over targets of p * nll, with p a constant.
tests/train/test_golden.c compares.
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


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with open(HERE / "dft.txt", "w") as out:
        for case in CASES:
            model = transformers.AutoModelForCausalLM.from_pretrained(HERE / case, attn_implementation="eager").double().train()
            keep_rotary_tables(model)
            batch = safetensors.torch.load_file(HERE / case / "golden.safetensors")
            with float32_is(torch.float64):
                loss = dft(forward(model, batch["tokens"].long(), documents_of(batch["begin"])), batch["targets"].long())
                loss.backward()
            print(case, "loss", repr(loss.item()), file=out)
            for name, p in model.named_parameters():
                print(case, name, repr(p.grad.square().mean().sqrt().item()), repr(p.grad.sum().item()), file=out)


main()
