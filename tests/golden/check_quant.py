#!/usr/bin/env python3
"""Compares src/base/quant.c with bitsandbytes, bit for bit, and makes the golden file of tests/ckpt/test_quant.c.

usage: check_quant.py [--tensors N] [--seed N] [--write]
Needs torch and bitsandbytes (any CPU) and a C compiler; exits with 77 where they are missing. The codec is compiled into
a shared object, so no build directory is needed. Torch runs on one thread: with more, the order of its mean depends on
their number from 32,768 absmax on (a check of that size is among the cases).

What is compared: codes, absmax and the bytes of double quantisation with what bitsandbytes returns; decoded floats with its definition, table
times absmax in float32 rounded to the dtype (backends/default/ops.py, which every device without a kernel of its own runs), for every shape.
Its compiled CPU kernel (csrc/cpu_ops.cpp, 0.50.2) is compared too, except where it leaves that definition on a CPU with AVX-512:
- rows that are a multiple of 16 but not of 64 (and not the only row): it takes absmax[row * (columns / 64) + column / 64], which is another
  block's from the second row on; the values are wrong, not rounded otherwise;
- a result in bfloat16 that is smaller than 2^-126: VCVTNEPS2BF16 makes it 0, whatever the mode of the CPU;
- FP4's second zero, code 8: +0 in its table, -0 in the scalar branch of the same function and on GPUs (a sign times 0), and here.
"""
import argparse
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # bitsandbytes compiles small functions for every shape
HERE = pathlib.Path(__file__).resolve().parent
try:
    import bitsandbytes.functional as bnb
    import torch
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from safetensors.torch import save_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

NF4, FP4 = 0, 1
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def build():
    src = HERE.parent.parent / "src"
    out = pathlib.Path(tempfile.mkdtemp()) / "quant.so"
    parts = [src / "base" / f"{name}.c" for name in ("quant", "dtype", "status", "str")]
    subprocess.run(["cc", "-std=gnu11", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{src}", *parts,
                    "-o", out, "-lm"], check=True)
    return ctypes.CDLL(str(out))


def at(t):
    return ctypes.c_void_p(t.data_ptr())


def ours(lib, x, kind):
    n = x.numel()
    flat = x.reshape(-1).float().contiguous()
    codes = torch.zeros((n + 1) // 2, dtype=torch.uint8)
    absmax = torch.zeros((n + 63) // 64)
    lib.tr_q4_encode(kind, at(flat), ctypes.c_int64(n), at(codes), at(absmax))
    return codes, absmax


def nested(lib, absmax):
    n = absmax.numel()
    codes, scale, offset = torch.zeros(n, dtype=torch.uint8), torch.zeros((n + 255) // 256), torch.zeros(1)
    lib.tr_q4_nest(at(absmax), ctypes.c_int64(n), at(codes), at(scale), at(offset))
    return codes, scale, offset


def unnested(lib, dynamic, codes, scale, offset):
    out = torch.zeros(codes.numel())
    lib.tr_q4_unnest(at(dynamic), at(codes), at(scale), ctypes.c_float(offset.item()), ctypes.c_int64(0),
                     ctypes.c_int64(codes.numel()), at(out))
    return out


def decoded(lib, kind, codes, absmax, n, dtype, first=0):
    out = torch.zeros(n - first, dtype=dtype)
    lib.tr_q4_decode(kind, at(codes), at(absmax), ctypes.c_int64(first), ctypes.c_int64(n - first), at(out), DTYPES[dtype])
    return out


def definition(name, packed, absmax, shape, dtype):
    table = bnb.get_4bit_type(name, device="cpu")
    if name == "fp4":
        table[8] = -0.0
    return _dequantize_4bit_compute(packed.reshape(-1), absmax, table, 64, shape, dtype).reshape(-1)


def kernel_follows(shape, dtype, value):
    """Where the compiled kernel computes what the definition says: of each element."""
    rows, columns = shape
    is_small = (value.float().abs() < 2.0**-126) if dtype == torch.bfloat16 else torch.zeros_like(value, dtype=torch.bool)
    return ~is_small & (rows == 1 or columns % 64 == 0 or columns % 16 != 0)


def same(what, a, b):
    if a.shape != b.shape or not torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)):
        bad = (a != b).nonzero().reshape(-1)[:4].tolist() if a.shape == b.shape else "shape"
        got = [(a.reshape(-1)[i].item(), b.reshape(-1)[i].item()) for i in bad] if bad != "shape" else (a.shape, b.shape)
        sys.exit(f"{what}: ours and bitsandbytes' differ at {bad}: {got}")


def tensor(k, g):
    """Sizes that are no multiple of 64 or 2, zero blocks, extreme values, denormals, ties."""
    n = int(torch.randint(1, 4000, (1,), generator=g))
    if k % 50 == 49:
        n *= 100
    x = torch.randn(n, generator=g) * 10.0 ** int(torch.randint(-8, 9, (1,), generator=g))
    kind = k % 8
    if kind == 1:
        x[: n // 2] = 0
    elif kind == 2:
        x = x / x.abs().max() * 1e-38  # denormals
    elif kind == 3:
        x = x / x.abs().max() * 3.3e38
    elif kind == 4:
        x[torch.randint(0, n, (n // 16 + 1,), generator=g)] *= 1e6
    elif kind == 5:
        x = torch.randint(-8, 9, (n,), generator=g).float() / 8  # ties, many equal
    elif kind == 6:
        x[::7] = -0.0
        x = x.bfloat16().float()
    elif kind == 7:
        x = x.clamp(-6e4, 6e4).half().float()
    return x


def shaped(x, k):
    n = x.numel()
    for rows in (8, 4, 3, 2):
        if k % 2 and n % rows == 0:
            return x.reshape(rows, n // rows)
    return x.reshape(1, n)


def compare(lib, k, x, dynamic, golden):
    for kind, name in ((NF4, "nf4"), (FP4, "fp4")):
        what = f"tensor {k} ({x.numel()} elements), {name}"
        codes, absmax = ours(lib, x, kind)
        packed, state = bnb.quantize_4bit(x, quant_type=name)
        same(what + ", absmax", absmax, state.absmax)
        same(what + ", codes", codes, packed.reshape(-1))
        for dtype in DTYPES:
            state.dtype = dtype
            full = decoded(lib, kind, codes, absmax, x.numel(), dtype)
            same(f"{what}, as {dtype}", full, definition(name, packed, absmax, x.shape, dtype))
            theirs, is_right = bnb.dequantize_4bit(packed, state).reshape(-1), kernel_follows(x.shape, dtype, full)
            same(f"{what}, its kernel, as {dtype}", full[is_right] + 0.0, theirs[is_right] + 0.0)  # -0 + 0 is +0
            first = x.numel() // 3
            same(f"{what}, a range", decoded(lib, kind, codes, absmax, x.numel(), dtype, first), full[first:])
        packed, state = bnb.quantize_4bit(x, quant_type=name, compress_statistics=True)
        q, scale, offset = nested(lib, absmax)
        same(what + ", offset", offset, state.offset.reshape(1))
        same(what + ", nested absmax", scale, state.state2.absmax)
        same(what + ", codes of absmax", q, state.absmax)
        theirs = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
        same(what + ", decoded absmax", unnested(lib, dynamic, q, scale, offset), theirs)
        if golden is not None:
            key = f"{k}.{name}"
            golden.update({f"{k}.x": x.reshape(-1).clone(), key + ".codes": codes, key + ".absmax": absmax, key + ".nested": q,
                           key + ".nested_absmax": scale, key + ".offset": offset})


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--tensors", type=int, default=1000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--write", action="store_true", help="write quant/q4.safetensors")
    args = args.parse_args()
    torch.set_num_threads(1)
    lib, g = build(), torch.Generator().manual_seed(args.seed)
    maps = torch.zeros(2, 256)
    for signed in (0, 1):
        lib.tr_dynamic_map(ctypes.c_bool(signed), at(maps[signed]))
        same(f"dynamic map, signed {signed}", maps[signed], bnb.create_dynamic_map(signed=bool(signed)))
    for k in range(args.tensors):
        compare(lib, k, shaped(tensor(k, g), k), maps[1], None)
    for n in (64 * 40000, 64 * 33000 + 5, 64 * 70001):
        compare(lib, n, torch.randn(1, n, generator=g), maps[1], None)
    print(f"{args.tensors} tensors, nf4 and fp4: codes, absmax, double quantisation, decoded floats are equal")
    if args.write:
        golden = {"map.signed": maps[1].clone(), "map.unsigned": maps[0].clone()}
        for k in range(8):
            x = tensor(k, g)[: 64 * (k % 3) + 41 + k]
            compare(lib, k, x.reshape(1, -1), maps[1], golden)
        out = HERE / "quant" / "q4.safetensors"
        out.parent.mkdir(exist_ok=True)
        save_file(golden, out)
        print(f"{out.relative_to(HERE)}: {out.stat().st_size} bytes")


main()
