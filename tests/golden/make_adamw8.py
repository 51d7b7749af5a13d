#!/usr/bin/env python3
"""make_adamw8.py - writes adamw8/p.f32 and adamw8/lion.f32: parameters after 50 steps of bitsandbytes' AdamW8bit and Lion8bit
(tests/ops/test_adamw8.c runs the same); and adamw8/lion_nearest.f32, Lion8bit with the nearest code of every moment.

Needs torch, bitsandbytes and, for AdamW8bit, a GPU: on a CPU bitsandbytes looks codes up in 65,536 even steps, which takes other codes than the
nearest for moments below 4e-4 of the largest of a block (up to 66 times too large). Without a GPU p.f32 is not written. That lion.f32 and
lion_nearest.f32 differ by that alone is asserted: the same loop with bitsandbytes' quantiser gives lion.f32 to the bit.
"""
import pathlib

import bitsandbytes
import numpy
import torch

N, STEPS = 5000, 50


def noise(i):
    x = i.astype(numpy.uint32) * numpy.uint32(2654435761)
    x ^= x >> numpy.uint32(15)
    x *= numpy.uint32(2246822519)
    x ^= x >> numpy.uint32(13)
    return ((x >> numpy.uint32(8)).astype(numpy.int32) - (1 << 23)).astype(numpy.float32) / numpy.float32(1 << 23)


def record(kind, device, name, **options):
    i = numpy.arange(N, dtype=numpy.uint64)
    scale = numpy.array([1, 0.5, 0.75, 1.25, 0.625], numpy.float32)
    p = torch.nn.Parameter(torch.from_numpy(noise(i + 0x80000000)).to(device))
    o = kind([p], lr=1e-4, weight_decay=0.1, **options)
    for t in range(STEPS):
        p.grad = torch.from_numpy(noise(t * N + i) * scale[i // 100 % 5] * scale[i % 3]).to(device)
        o.step()
    assert o.state[p]["state1"].dtype == torch.uint8
    if name:
        (pathlib.Path(__file__).parent / "adamw8" / name).write_bytes(p.detach().cpu().numpy().tobytes())
    return p.detach().cpu().numpy()


def lion(encode):
    """Lion8bit in numpy; encode(moments, map): codes, and the largest of each block of 256."""
    i = numpy.arange(N, dtype=numpy.uint64)
    scale = numpy.array([1, 0.5, 0.75, 1.25, 0.625], numpy.float32)
    codes = bitsandbytes.functional.create_dynamic_map(signed=True).numpy().astype(numpy.float32)
    lr, decay, beta1, beta2, one = (numpy.float32(x) for x in (1e-4, 0.1, 0.9, 0.99, 1))
    p, code, most = noise(i + 0x80000000), numpy.full(N, 127), numpy.zeros(-(-N // 256), numpy.float32)
    for t in range(STEPS):
        g = noise(t * N + i) * scale[i // 100 % 5] * scale[i % 3]
        m = codes[code] * numpy.repeat(most, 256)[:N]
        p = p * (one - lr * decay) - lr * numpy.sign(beta1 * m + (one - beta1) * g)
        code, most = encode(beta2 * m + (one - beta2) * g, codes)
    return p


def nearest(m, codes):
    most = numpy.array([abs(m[k : k + 256]).max() for k in range(0, N, 256)], numpy.float32)
    middle = (codes[1:].astype(numpy.float64) + codes[:-1]) / 2
    return numpy.searchsorted(middle, m.astype(numpy.float64) / numpy.repeat(most, 256)[:N]), most


def theirs(m, codes):
    code, most = torch.ops.bitsandbytes.quantize_blockwise(torch.from_numpy(m), torch.from_numpy(codes), 256)
    return code.numpy().astype(int), most.numpy()


if torch.cuda.is_available():
    record(bitsandbytes.optim.AdamW8bit, "cuda", "p.f32", betas=(0.9, 0.999), eps=1e-8)
record(bitsandbytes.optim.Lion8bit, "cpu", "lion.f32", betas=(0.9, 0.99))
here = pathlib.Path(__file__).parent / "adamw8"
on_cpu = record(bitsandbytes.optim.AdamW8bit, "cpu", None, betas=(0.9, 0.999), eps=1e-8)
off = abs(on_cpu.astype(float) - numpy.fromfile(here / "p.f32", numpy.float32))
print(f"AdamW8bit on a CPU beside p.f32: off by up to {off.max():.3g}, {(off > 1e-6).sum()} of {N} by more than 1e-6")
assert lion(theirs).tobytes() == (here / "lion.f32").read_bytes()
(here / "lion_nearest.f32").write_bytes(lion(nearest).tobytes())
