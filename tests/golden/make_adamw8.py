#!/usr/bin/env python3
"""make_adamw8.py - writes adamw8/p.f32 and adamw8/lion.f32: parameters after 50 steps of bitsandbytes' AdamW8bit and Lion8bit
(tests/ops/test_adamw8.c runs the same).

Needs torch, bitsandbytes and, for AdamW8bit, a GPU: on a CPU bitsandbytes looks codes up in 65,536 even steps, which lose small second
moments. Without a GPU only lion.f32 is written.
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
    (pathlib.Path(__file__).parent / "adamw8" / name).write_bytes(p.detach().cpu().numpy().tobytes())


if torch.cuda.is_available():
    record(bitsandbytes.optim.AdamW8bit, "cuda", "p.f32", betas=(0.9, 0.999), eps=1e-8)
record(bitsandbytes.optim.Lion8bit, "cpu", "lion.f32", betas=(0.9, 0.99))
