#!/usr/bin/env python3
"""Quantised directories as the packers of other projects lay them out, read by Trireme.

usage: check_packers.py TRIREME [PATH...]
PATH: directories with unpacked or installed packages, in front of those of this Python. It needs torch, transformers and
safetensors (exit 77 without them) and is no part of ./test. Of auto_gptq, gptqmodel, awq and compressed_tensors it takes those
that are there; none of them needs a GPU to pack. All linears of a small Llama get weights that are (code - zero) * scale; the
package packs them, and `TRIREME ckpt export DIR --to hf` must give the weights back, bit for bit.
"""
import importlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types

sys.path[:0] = sys.argv[2:]
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

GROUP = 16


def find(package):
    if package in sys.modules:
        return pathlib.Path(sys.modules[package].__path__[0])
    spec = importlib.util.find_spec(package)
    return pathlib.Path(spec.submodule_search_locations[0]) if spec else None


def without_init(name, root):
    """A module of a package whose __init__.py files, which want a GPU, are not run."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = types.ModuleType(".".join(parts[:i]))
        package.__path__ = [str(root.joinpath(*parts[1:i]))]
        sys.modules.setdefault(package.__name__, package)
    return importlib.import_module(name)


def small_model():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config).half()


def integers(linear, bits, seed, group_of=None, lowest=0):
    """Sets a linear's weights; returns codes (out, in), scales and zeros (out, groups), and the group of each column."""
    g = torch.Generator().manual_seed(seed)
    rows, cols = linear.weight.shape
    group_of = torch.arange(cols) // GROUP if group_of is None else group_of
    codes = torch.randint(0, 2**bits, (rows, cols), generator=g)
    zeros = torch.randint(lowest, 2**bits, (rows, cols // GROUP), generator=g)
    scales = (torch.rand(rows, cols // GROUP, generator=g) * 0.02 + 1e-3).half()
    linear.weight.data = ((codes - zeros[:, group_of]).float() * scales[:, group_of].float()).half()
    return codes, scales, zeros, group_of.int()


def exact(linear, scales, zeros, group_of):
    """The linear in float32, as a packer wants it that divides by the scale to find the code."""
    twin = torch.nn.Linear(linear.in_features, linear.out_features, bias=False)
    twin.weight.data = linear.weight.data.float()
    return twin


def planes(module, names):
    return {k: getattr(module, k).contiguous() for k in names}


def auto_gptq(bits):
    root = find("auto_gptq")
    if not root:
        return None
    kernel = without_init("auto_gptq.nn_modules.qlinear.qlinear_cuda_old", root)

    def pack(linear, seed):
        _, scales, zeros, group_of = integers(linear, bits, seed, lowest=1)  # its words break where a zero is 0
        q = kernel.QuantLinear(bits, GROUP, linear.in_features, linear.out_features, False)
        q.pack(exact(linear, scales, zeros, group_of), scales.float(), zeros.float(), group_of)
        q.scales = q.scales.half()
        return planes(q, ("qweight", "qzeros", "scales", "g_idx") if hasattr(q, "g_idx") else ("qweight", "qzeros", "scales"))

    return pack, {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": False, "sym": False,
                  "checkpoint_format": "gptq"}


def gptqmodel(bits, version, desc_act):
    if not find("gptqmodel"):
        return None
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    config = QuantizeConfig(bits=bits, group_size=GROUP, desc_act=desc_act, sym=False, format=version)

    def pack(linear, seed):
        order = torch.randperm(linear.in_features, generator=torch.Generator().manual_seed(seed)) if desc_act else None
        group_of = None if order is None else (torch.arange(linear.in_features) // GROUP)[order]
        _, scales, zeros, group_of = integers(linear, bits, seed, group_of)
        q = TorchLinear(bits=bits, group_size=GROUP, sym=False, desc_act=desc_act, in_features=linear.in_features,
                        out_features=linear.out_features)
        q.pack_original(exact(linear, scales, zeros, group_of), scales.float(), zeros.float(), group_of.long())
        if version == "gptq":
            convert_gptq_v2_to_v1_format_module(q, config)
        return {**planes(q, ("qweight", "qzeros", "scales")), "g_idx": q.g_idx.int()}

    written = json.loads(json.dumps(config.to_dict(), default=str))
    return pack, {"quant_method": "gptq", **written}


def awq():
    root = find("awq")
    if not root:
        return None
    gemm = without_init("awq.modules.linear.gemm", root)

    def pack(linear, seed):
        _, scales, zeros, group_of = integers(linear, 4, seed)
        q = gemm.WQLinear_GEMM.from_linear(exact(linear, scales, zeros, group_of), 4, GROUP, scales=scales.t().contiguous(),
                                           zeros=zeros.t().contiguous())
        return planes(q, ("qweight", "qzeros", "scales"))

    return pack, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}


def compressed(form, bits, symmetric, strategy):
    if not find("compressed_tensors"):
        return None
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy,
                            group_size=GROUP if strategy == "group" else None)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(form)

    def pack(linear, seed):
        g, (rows, cols) = torch.Generator().manual_seed(seed), linear.weight.shape
        groups, middle = cols // GROUP if strategy == "group" else 1, 2 ** (bits - 1)
        scale = (torch.rand(rows, groups, generator=g) * 0.02 + 1e-3).half()
        zero = torch.zeros(rows, groups) if symmetric else torch.randint(-middle, middle, (rows, groups), generator=g)
        linear.weight.data = (torch.randn(rows, cols, generator=g) * 0.02).half()
        planes = compressor.compress({"weight": linear.weight.data, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}, scheme)
        linear.weight.data = compressor.decompress(planes, scheme)["weight"]
        return planes

    return pack, {"quant_method": "compressed-tensors", "format": form, "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}}, "ignore": ["lm_head"]}


def check(trireme, label, packer, work):
    if packer is None:
        print(f"{label}: not here")
        return False
    pack, method = packer
    model, seed, there, back = small_model(), 0, work / "there", work / "back"
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    tensors = {k: v for k, v in model.state_dict().items() if not any(k == n + ".weight" for n in linears)}
    for name, linear in linears.items():
        seed += 1
        tensors.update({f"{name}.{k}": v for k, v in pack(linear, seed).items()})
    model.config.save_pretrained(there)
    config = json.loads((there / "config.json").read_text())
    config.update({"quantization_config": method, "dtype": "float16"})
    (there / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, there / "model.safetensors", {"format": "pt"})
    subprocess.run([trireme, "ckpt", "export", str(there), "--to", "hf", "--output", str(back)], check=True, stdout=subprocess.DEVNULL)
    got = load_file(back / "model.safetensors")
    for name, linear in linears.items():
        bad = (got[name + ".weight"] != linear.weight.data.to(got[name + ".weight"].dtype)).sum().item()
        if bad:
            print(f"{label}: {bad} of {linear.weight.numel()} weights of {name} differ")
            return False
    print(f"{label}: {len(linears)} linears are read as they were packed")
    return True


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    cases = [(f"auto_gptq, {b} bits", lambda b=b: auto_gptq(b)) for b in (2, 4, 8)]
    cases += [(f"gptqmodel, {b} bits, {v}{', desc_act' if d else ''}", lambda b=b, v=v, d=d: gptqmodel(b, v, d))
              for b in (2, 4, 8) for v in ("gptq", "gptq_v2") for d in (False, True)]
    cases += [("awq gemm", awq)]
    cases += [(f"compressed-tensors {f}, {b} bits, {s}, {'symmetric' if y else 'zero points'}",
               lambda f=f, b=b, s=s, y=y: compressed(f, b, y, s))
              for f, b in (("pack-quantized", 4), ("pack-quantized", 8), ("int-quantized", 8)) for s in ("group", "channel") for y in (True, False)]
    n = 0
    for label, make in cases:
        with tempfile.TemporaryDirectory() as work:
            n += check(sys.argv[1], label, make(), pathlib.Path(work))
    print(f"{n} of {len(cases)} cases are right")
    sys.exit(n == 0)


main()
