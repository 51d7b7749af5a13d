#!/usr/bin/env python3
"""make_muon.py - writes muon/ROWSxCOLS.f32: matrices after 50 steps of torch.optim.Muon (tests/ops/test_muon.c runs the same). Needs torch."""
import pathlib

import numpy
import torch

STEPS = 50
SHAPES = [(24, 24), (16, 40), (40, 16), (8, 96), (64, 48)]
ADJUST = ["original", "match_rms_adamw", "match_rms_adamw", "spectral_unclamped", "original"]


def noise(i):
    x = i.astype(numpy.uint32) * numpy.uint32(2654435761)
    x ^= x >> numpy.uint32(15)
    x *= numpy.uint32(2246822519)
    x ^= x >> numpy.uint32(13)
    return ((x >> numpy.uint32(8)).astype(numpy.int32) - (1 << 23)).astype(numpy.float32) / numpy.float32(1 << 23)


torch.set_num_threads(1)
for (rows, cols), adjust in zip(SHAPES, ADJUST):
    i = numpy.arange(rows * cols, dtype=numpy.uint64)
    p = torch.nn.Parameter(torch.from_numpy(noise(i + 0x80000000)).reshape(rows, cols))
    o = torch.optim.Muon([p], lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)
    for t in range(STEPS):
        p.grad = torch.from_numpy(noise(t * rows * cols + i)).reshape(rows, cols)
        o.step()
    (pathlib.Path(__file__).parent / "muon" / f"{rows}x{cols}.f32").write_bytes(p.detach().numpy().tobytes())
