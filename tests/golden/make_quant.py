#!/usr/bin/env python3
"""Makes small quantised HF directories, and what their weights are: tests/golden/quant/<case>/.

Every case has config.json and model.safetensors, as a Hub directory has them, and expected.safetensors: the weights that
Python makes of it. bitsandbytes writes and decodes its own; 8-bit floats and MXFP4 are decoded by transformers; GPTQ, AWQ
and compressed-tensors are packed here by their documented layout from integers that are known (check_packers.py packs with the
libraries themselves). tests/ckpt/test_hfquant.c reads them.
"""
import json
import os
import pathlib

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import bitsandbytes as bnb  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers.integrations.finegrained_fp8 import Fp8Dequantize  # noqa: E402
from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent / "quant"
M = "model.layers.0.mlp.down_proj"


def rng(seed):
    return torch.Generator().manual_seed(seed)


def write(case, method, tensors, expected, dtype="bfloat16", model_type="llama"):
    out = HERE / case
    out.mkdir(parents=True, exist_ok=True)
    plain = torch.randn(8, 4, generator=rng(99)).bfloat16()
    tensors, expected = dict(tensors), dict(expected)
    tensors["model.embed_tokens.weight"] = expected["model.embed_tokens.weight"] = plain
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, out / "model.safetensors", {"format": "pt"})
    save_file({k: v.contiguous().clone() for k, v in expected.items()}, out / "expected.safetensors")
    config = {"model_type": model_type, "torch_dtype": dtype, "quantization_config": method}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def bnb4(case, shape, kind, double, dtype, storage=torch.uint8, block=64):
    w = (torch.randn(shape, generator=rng(len(case))) * 0.05).to(dtype)
    codes, state = bnb.functional.quantize_4bit(w, blocksize=block, compress_statistics=double, quant_type=kind,
                                                quant_storage=storage)
    tensors = {M + ".weight": codes, **{f"{M}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}}
    method = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
              "bnb_4bit_use_double_quant": double, "bnb_4bit_quant_storage": str(storage).split(".")[1]}
    write(case, method, tensors, {M + ".weight": bnb.functional.dequantize_4bit(codes, state)})


def gpt2():
    """transformers turns Conv1D (in, out) into a linear before it quantises."""
    w, name = (torch.randn(24, 72, generator=rng(17)) * 0.05).bfloat16(), "h.0.attn.c_attn.weight"
    codes, state = bnb.functional.quantize_4bit(w.T, compress_statistics=True, quant_type="nf4")
    tensors = {name: codes, **{f"{name}.{k}": v for k, v in state.as_dict(packed=True).items()}}
    write("gpt2_swapped", {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors,
          {name: bnb.functional.dequantize_4bit(codes, state).T}, model_type="gpt2")


def int8():
    w = (torch.randn(24, 40, generator=rng(8)) * 0.05).half()
    q, scb, _ = bnb.functional.int8_vectorwise_quant(w.clone())
    tensors = {M + ".weight": q, M + ".SCB": scb, M + ".weight_format": torch.tensor(0, dtype=torch.uint8)}
    write("bnb_int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, tensors,
          {M + ".weight": bnb.functional.int8_vectorwise_dequant(q, scb)}, "float16")


def fp8(case, shape, grid, block, tail=".weight_scale_inv"):
    q = torch.randn(shape, generator=rng(4)).to(torch.float8_e4m3fn)
    s = torch.rand(grid, generator=rng(5)) * 0.01
    if block and shape[0] % block[0]:  # transformers refuses a short last block; DeepSeek's own code takes it
        wide = s.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: shape[0], : shape[1]]
        want = (q.float() * wide).bfloat16()
    else:
        want = Fp8Dequantize(None)._dequantize_one(q, s if s.dim() == 2 else s.reshape(-1, 1), torch.bfloat16)
    method = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if block:
        method["weight_block_size"] = list(block)
    write(case, method, {M + ".weight": q, M + tail: s, M + ".input_scale": torch.ones(1)}, {M + ".weight": want})


def mxfp4():
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=rng(6), dtype=torch.uint8)
    scales = torch.randint(110, 135, (2, 6, 3), generator=rng(7), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    want = convert_moe_packed_tensors(blocks, scales).transpose(1, 2)  # it hands out (expert, in, out)
    write("mxfp4", {"quant_method": "mxfp4"}, {name + "_blocks": blocks, name + "_scales": scales}, {name: want})


def pack(q, bits, axis):
    """Words of 32 bits along an axis, the first number in the lowest bits."""
    q, per = np.moveaxis(q.astype(np.uint32), axis, -1), 32 // bits
    pad = -q.shape[-1] % per
    q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, pad)])
    words = np.zeros((*q.shape[:-1], q.shape[-1] // per), np.uint32)
    for k in range(per):
        words |= q[..., k::per] << np.uint32(bits * k)
    return torch.from_numpy(np.moveaxis(words, -1, axis).copy().view(np.int32))


def integers(seed, shape, groups, bits, dtype=torch.float16):
    """Codes (out, in), zeros and scales (out, groups)."""
    g = rng(seed)
    q = torch.randint(0, 2**bits, shape, generator=g)
    z = torch.randint(0, 2**bits, (shape[0], groups), generator=g)
    s = (torch.rand(shape[0], groups, generator=g) * 0.02 + 1e-3).to(dtype)
    return q, z, s


def decoded(q, z, s, group_of):
    return ((q - z[:, group_of]).to(torch.float32) * s[:, group_of].float()).to(s.dtype)


def gptq(case, bits, version, is_ordered):
    out, width, group = 32, 64, 16
    q, z, s = integers(bits, (out, width), width // group, bits)
    group_of = torch.arange(width) // group
    if is_ordered:
        group_of = group_of[torch.randperm(width, generator=rng(3))]
    zeros = pack(z.T.numpy(), bits, 1)
    if version == "gptq":  # 1 less, in whole words as gptqmodel subtracts it: a zero of 0 borrows from its neighbour
        zeros = (zeros.long() - (2**32 - 1) // (2**bits - 1)).to(torch.int32)
    tensors = {M + ".qweight": pack(q.T.numpy(), bits, 0), M + ".qzeros": zeros,
               M + ".scales": s.T, M + ".g_idx": group_of.int()}
    method = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": is_ordered, "checkpoint_format": version}
    write(case, method, tensors, {M + ".weight": decoded(q, z, s, group_of)}, "float16")


def awq():
    out, width, group = 32, 48, 16
    q, z, s = integers(11, (out, width), width // group, 4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    shuffled = lambda t: t.reshape(t.shape[0], -1, 8)[..., order].reshape(t.shape).numpy()  # noqa: E731
    tensors = {M + ".qweight": pack(shuffled(q.T), 4, 1), M + ".qzeros": pack(shuffled(z.T), 4, 1), M + ".scales": s.T}
    write("awq", {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}, tensors,
          {M + ".weight": decoded(q, z, s, torch.arange(width) // group)}, "float16")


def packed(case, bits, has_zeros, is_ordered):
    out, width, group = 12, 40, 8
    q, z, s = integers(20 + bits, (out, width), width // group, bits, torch.bfloat16)
    group_of = torch.arange(width) // group
    if is_ordered:
        group_of = group_of[torch.randperm(width, generator=rng(5))]
    tensors = {M + ".weight_packed": pack(q.numpy(), bits, 1), M + ".weight_scale": s,
               M + ".weight_shape": torch.tensor([out, width])}
    if has_zeros:
        tensors[M + ".weight_zero_point"] = pack(z.numpy(), bits, 0)
    else:
        z = torch.full_like(z, 2 ** (bits - 1))
    if is_ordered:
        tensors[M + ".weight_g_idx"] = group_of.int()
    method = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "group_size": group, "strategy": "group"}}}}
    write(case, method, tensors, {M + ".weight": decoded(q, z, s, group_of)})


def compressed(case, kind, block=None):
    s = (torch.rand(24, 1, generator=rng(31)) * 0.01).bfloat16()
    weights = {"num_bits": 8, "strategy": "channel"}
    if kind == "int-quantized":
        q = torch.randint(-128, 128, (24, 40), generator=rng(30), dtype=torch.int8)
        z = torch.randint(-5, 5, (24, 1), generator=rng(32), dtype=torch.int8)
        tensors, want = {M + ".weight_zero_point": z}, ((q.float() - z.float()) * s.float()).bfloat16()
    else:
        q, wide = torch.randn(24, 40, generator=rng(30)).to(torch.float8_e4m3fn), s
        if block:  # the last ones are short, and two of them would divide the matrix into other blocks
            s = (torch.rand(-(-24 // block[0]), -(-40 // block[1]), generator=rng(33)) * 0.01).bfloat16()
            wide = s.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:24, :40]
            weights = {"num_bits": 8, "strategy": "block", "block_structure": list(block)}
        tensors, want = {}, (q.float() * wide.float()).bfloat16()
    method = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": {"weights": weights}}}
    write(case, method, {M + ".weight": q, M + ".weight_scale": s, **tensors}, {M + ".weight": want})


def main():
    torch.set_num_threads(1)
    bnb4("nf4_double", (65, 256), "nf4", True, torch.bfloat16)
    bnb4("nf4_storage", (24, 64), "nf4", False, torch.bfloat16, torch.bfloat16)
    bnb4("nf4_odd", (7, 37), "nf4", True, torch.float16)
    bnb4("nf4_block_32", (24, 64), "nf4", False, torch.float32, torch.uint8, 32)
    bnb4("nf4_block_128", (10, 66), "nf4", False, torch.float32, torch.uint8, 128)
    bnb4("fp4", (24, 64), "fp4", False, torch.float16)
    gpt2()
    int8()
    fp8("fp8_blocks", (130, 128), (2, 1), (128, 128))
    fp8("fp8_tensor", (24, 128), (1,), None, ".weight_scale")
    fp8("fp8_rows", (24, 40), (24, 1), None, ".weight_scale")
    mxfp4()
    gptq("gptq_v1", 4, "gptq", False)
    gptq("gptq_v2_ordered", 4, "gptq_v2", True)
    gptq("gptq_8", 8, "gptq", False)
    awq()
    packed("packed_4", 4, False, False)
    packed("packed_4_zeros", 4, True, True)
    packed("packed_8_zeros", 8, True, False)
    compressed("int_quantized", "int-quantized")
    compressed("float_quantized", "float-quantized")
    compressed("float_blocks", "float-quantized", (16, 32))


main()
