#!/usr/bin/env python3
"""bitsandbytes 4-bit directories, both ways, with transformers on a CPU.

usage: check_bnb.py TRIREME [MODEL]
Exits with 77 where torch, transformers or bitsandbytes are missing. For nf4 and fp4, with and without double quantisation:
  - `TRIREME ckpt export MODEL --to bnb-4bit...` loads in transformers without a warning, and the planes of every linear are
    the bytes that bitsandbytes makes of the same weight;
  - the directory that transformers itself saves, exported as plain weights by Trireme, holds what bitsandbytes decodes;
  - where peft is there, a new DoRA adapter on that base begins with the magnitudes that PEFT begins with.
  - a LLM.int8 directory that transformers saves is read as bitsandbytes decodes it, bit for bit;
  - the loss of `eval --load_in_4bit` is that of the directory that transformers saved, and of its decoded weights, bit for bit.
MODEL: a directory of any family that Trireme trains (GPT-2, whose weights bitsandbytes transposes, is read and not written); without it a
small Llama and a small GPT-2 are made, in bfloat16.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # products in bfloat16 die on some CPUs otherwise
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = os.environ["TQDM_DISABLE"] = "1"
try:
    import bitsandbytes as bnb
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)


def make_gpt2(out):
    config = transformers.GPT2Config(vocab_size=96, n_embd=128, n_layer=2, n_head=4, n_positions=64, bos_token_id=2, eos_token_id=2)
    torch.manual_seed(2)
    transformers.GPT2LMHeadModel(config).bfloat16().save_pretrained(out)


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


def with_tokenizer(trireme, source, work):
    """A copy of a directory with a tokenizer, which runs want though their data is ids, and with ids."""
    base, tiny = work / (source.name + "-text"), work / "tiny.json"
    if base.exists():
        return base
    shutil.copytree(source, base)
    if not (work / "bytes").exists():
        tiny.write_text(json.dumps({"model_type": "llama", "vocab_size": 264, "hidden_size": 8, "intermediate_size": 8,
                                    "num_hidden_layers": 1, "num_attention_heads": 1, "rms_norm_eps": 1e-5}))
        subprocess.run([trireme, "init", "--config", tiny, "--tokenizer", "bytes", "--out", work / "bytes", "--quiet"], check=True)
    for f in (work / "bytes").glob("*token*"):
        shutil.copy(f, base)
    (base / "ids.jsonl").write_text(json.dumps({"input_ids": list(range(3, 35))}) + "\n")
    return base


def check_losses(trireme, source, theirs, back, kind, double, work):
    def loss(directory, *options):
        base = with_tokenizer(trireme, directory, work)
        out = subprocess.run([trireme, "eval", "--model", base, "--data", base / "ids.jsonl", "--sequence_length", "16", "--bf16",
                              "--threads", "1", "--json", *options], check=True, capture_output=True, text=True).stdout
        return json.loads(out.splitlines()[-1])["loss"]

    packed = ("--load_in_4bit", "--bnb_4bit_quant_type", kind, "--bnb_4bit_use_double_quant", str(double).lower())
    found = [loss(source, *packed), loss(theirs), loss(back), loss(source)]
    if not found[0] == found[1] == found[2] != found[3]:
        sys.exit(f"{kind}, double {double}: losses {found} of the base packed here, packed by transformers, decoded, and not packed")


def check_dora(trireme, source, kind, double, work):
    """In float32: PEFT rounds the norms of 16-bit weights to 16 bits."""
    try:
        import peft
    except ImportError:
        return
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=double)
    model = load(source, quantization_config=config, dtype=torch.float32)
    theirs = peft.get_peft_model(model, peft.LoraConfig(r=4, use_dora=True, target_modules="all-linear"))
    base = with_tokenizer(trireme, source, work)
    subprocess.run([trireme, "train", "--model", base, "--data", base / "ids.jsonl", "--output", work / "dora", "--lora_r", "4",
                    "--use_dora", "--load_in_4bit", "--bnb_4bit_quant_type", kind, "--bnb_4bit_use_double_quant", str(double).lower(),
                    "--max_steps", "1", "--learning_rate", "1e-30", "--sequence_length", "16", "--per_device_train_batch_size", "1",
                    "--quiet"], check=True, stdout=subprocess.DEVNULL)
    ours, n = weights(work / "dora"), 0
    for key, value in peft.get_peft_model_state_dict(theirs).items():
        if "magnitude" in key:
            torch.testing.assert_close(ours[key.removesuffix(".weight")], value.float(), rtol=1e-6, atol=0)
            n += 1
    print(f"  {n} magnitudes of DoRA are PEFT's")


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
    check_losses(trireme, source, theirs, back, kind, double, work)
    check_dora(trireme, source, kind, double, work)


def check_int8(trireme, source, work):
    theirs, back = work / "int8", work / "int8-back"
    model = load(source, quantization_config=transformers.BitsAndBytesConfig(load_in_8bit=True))
    model.save_pretrained(theirs)
    export(trireme, theirs, "hf", back)
    decoded, n = weights(back), 0
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear8bitLt):
            codes = module.weight.data if module.weight.CB is None else module.weight.CB
            want = bnb.functional.int8_vectorwise_dequant(codes, module.weight.SCB).to(torch.bfloat16)
            same(f"{name}: int8", decoded[name + ".weight"], want)
            n += 1
    if n == 0:
        sys.exit("no linear of transformers' is int8")
    print(f"int8: {n} linears are read as bitsandbytes decodes them")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        sources = [pathlib.Path(sys.argv[2])] if len(sys.argv) > 2 else [pathlib.Path(work) / "llama", pathlib.Path(work) / "gpt2"]
        if len(sys.argv) == 2:
            make_model(sources[0])
            make_gpt2(sources[1])
        check_int8(sys.argv[1], sources[0], pathlib.Path(work))
        for source in sources:
            for kind in ("nf4", "fp4"):
                for double in (False, True):
                    each = pathlib.Path(work) / f"{source.name}-{kind}-{double}"
                    each.mkdir()
                    check(sys.argv[1], source, kind, double, each)


main()
