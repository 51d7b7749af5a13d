#!/usr/bin/env python3
"""bitsandbytes 4-bit directories, both ways, with transformers on a CPU.

usage: check_bnb.py TRIREME [MODEL]
Exits with 77 where torch, transformers or bitsandbytes are missing. For nf4 and fp4, with and without double quantisation:
  - `TRIREME ckpt export MODEL --to bnb-4bit...` loads in transformers without a warning, and the planes of every linear are
    the bytes that bitsandbytes makes of the same weight;
  - the directory that transformers itself saves, exported as plain weights by Trireme, holds what bitsandbytes decodes.
MODEL: a directory of any family that Trireme trains (of GPT-2, whose weights bitsandbytes transposes, only the reading); without it a small random one is made, in bfloat16.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = os.environ["TQDM_DISABLE"] = "1"
try:
    import bitsandbytes as bnb
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)


def make_model(out):
    config = transformers.LlamaConfig(vocab_size=96, hidden_size=128, intermediate_size=200, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(out)


def weights(directory):
    return {k: v for f in sorted(pathlib.Path(directory).glob("*.safetensors")) for k, v in load_file(f).items()}


def load(directory, **options):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, device_map={"": "cpu"}, output_loading_info=True, local_files_only=True, **options)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        sys.exit(f"{directory}: {bad}")
    return model


def same(what, a, b):
    if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
        sys.exit(f"{what}: ours and theirs differ")


def export(trireme, source, to, out):
    subprocess.run([trireme, "ckpt", "export", str(source), "--to", to, "--output", str(out)], check=True,
                   stdout=subprocess.DEVNULL)


def linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, bnb.nn.Linear4bit)}


def check_written(trireme, source, kind, double, ours):
    export(trireme, source, f"bnb-4bit:{kind}" + (":double" if double else ""), ours)
    plain, found = weights(source), linears(load(ours))
    for name, module in found.items():
        codes, state = bnb.functional.quantize_4bit(plain[name + ".weight"], quant_type=kind, compress_statistics=double)
        got = module.weight
        same(f"{name}: codes", got.data, codes)
        same(f"{name}: absmax", got.quant_state.absmax, state.absmax)
        if double:
            same(f"{name}: nested absmax", got.quant_state.state2.absmax, state.state2.absmax)
            same(f"{name}: offset", got.quant_state.offset, state.offset)
        same(f"{name}: decoded", bnb.functional.dequantize_4bit(got.data, got.quant_state),
             bnb.functional.dequantize_4bit(codes, state))
    return found


def check(trireme, source, kind, double, work):
    ours, theirs, back = work / "ours", work / "theirs", work / "back"
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double,
                                             bnb_4bit_compute_dtype=torch.bfloat16)
    model = load(source, quantization_config=config)
    is_swapped = model.config.model_type == "gpt2"
    model.save_pretrained(theirs)
    export(trireme, theirs, "hf", back)
    decoded = weights(back)
    for name, module in linears(model).items():
        want = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        same(f"{name}: read back", decoded[name + ".weight"], want.T if is_swapped else want)
    if not linears(model):
        sys.exit("no linear of transformers' is quantised")
    if not is_swapped:
        found = check_written(trireme, source, kind, double, ours)
        if found.keys() != linears(model).keys() or weights(ours).keys() != weights(theirs).keys():
            sys.exit(f"names differ: {sorted(weights(ours).keys() ^ weights(theirs).keys())}")
    print(f"{kind}{', double' if double else ''}: {len(linears(model))} linears are equal, "
          f"{'read' if is_swapped else 'written and read'}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(work) / "model"
        if len(sys.argv) == 2:
            make_model(source)
        for kind in ("nf4", "fp4"):
            for double in (False, True):
                each = pathlib.Path(work) / f"{kind}-{double}"
                each.mkdir()
                check(sys.argv[1], source, kind, double, each)


main()
