#!/usr/bin/env python3
"""Does transformers read a directory that Trireme wrote as the model it was made from?

Loads ORIGINAL and WRITTEN with every warning an error (missing, unexpected and newly initialised weights included) and
compares parameter names, weights and logits on random tokens. Without --trained the weights must be equal to the dtype
they were saved in; with it only names and shapes must, and the logits must be finite. Exit 0: they agree.
"""
import argparse
import logging
import sys
import warnings

import torch
import transformers

ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # relative, of saving to nearest


class Fail(logging.Handler):
    def emit(self, record):
        raise RuntimeError(f"transformers warns: {record.getMessage()}")


def load(directory):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True, local_files_only=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise RuntimeError(f"{directory}: {bad}")
    dtype = next(model.parameters()).dtype
    return model.float().eval(), dtype


def compare_weights(a, b, tolerance, is_trained):
    pa, pb = dict(a.named_parameters()), dict(b.named_parameters())
    if pa.keys() != pb.keys():
        raise RuntimeError(f"names differ: {sorted(pa.keys() ^ pb.keys())}")
    for name, x in pa.items():
        if x.shape != pb[name].shape:
            raise RuntimeError(f"{name}: {tuple(x.shape)} became {tuple(pb[name].shape)}")
        off = (x - pb[name]).abs() - tolerance * x.abs()
        if not is_trained and off.max() > 0:
            raise RuntimeError(f"{name}: weights differ by {(x - pb[name]).abs().max():.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original")
    parser.add_argument("written")
    parser.add_argument("--trained", action="store_true", help="weights were trained since: compare names and shapes only")
    args = parser.parse_args()
    warnings.simplefilter("error")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.get_logger().addHandler(Fail(logging.WARNING))
    (a, _), (b, dtype) = load(args.original), load(args.written)
    compare_weights(a, b, ROUNDING[dtype], args.trained)
    config = a.config.get_text_config()
    length = min(64, getattr(config, "max_position_embeddings", 64))
    tokens = torch.randint(0, config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        la, lb = a(input_ids=tokens).logits, b(input_ids=tokens).logits
    if not torch.isfinite(lb).all():
        raise RuntimeError("logits of the written model are not finite")
    off = ((la - lb).abs().max() / la.abs().max()).item()
    print(f"{args.written}: {len(dict(b.named_parameters()))} parameters, {dtype}, logits differ by {off:.2g}")
    if not args.trained and dtype == torch.float32 and off != 0:
        raise RuntimeError("equal weights, other logits: config.json changed the model")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # each version of transformers raises its own kinds
        sys.exit(f"check_roundtrip: {type(error).__name__}: {error}")
