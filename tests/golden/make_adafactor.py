#!/usr/bin/env python3
"""make_adafactor.py - writes adafactor/SHAPE.f32: tensors after 50 steps of transformers' Adafactor (tests/optim/test_adafactor.c runs the same).
SHAPE is ROWSxCOLS, or N for a vector; -own: with the defaults of the class, relative_step and scale_parameter. Needs torch and transformers."""
import pathlib

import numpy
import torch
from transformers.optimization import Adafactor

STEPS = 50
SHAPES = [(24, 24), (16, 40), (40, 16), (1, 96), (64, 3), (1, 1), (129,)]


def noise(i):
    x = i.astype(numpy.uint32) * numpy.uint32(2654435761)
    x ^= x >> numpy.uint32(15)
    x *= numpy.uint32(2246822519)
    x ^= x >> numpy.uint32(13)
    return ((x >> numpy.uint32(8)).astype(numpy.int32) - (1 << 23)).astype(numpy.float32) / numpy.float32(1 << 23)


torch.set_num_threads(1)
for shape in SHAPES:
    n = int(numpy.prod(shape))
    i = numpy.arange(n, dtype=numpy.uint64)
    # Rows of very different sizes, so that the factors differ.
    scale = numpy.float32(2.0) ** (i * shape[0] // n % 12).astype(numpy.float32)
    for is_own in False, True:
        p = torch.nn.Parameter(torch.from_numpy(noise(i + 0x80000000)).reshape(shape))
        rates = {} if is_own else {"lr": 1e-2, "relative_step": False, "scale_parameter": False, "weight_decay": 0.1}
        o = Adafactor([p], **rates)
        for t in range(STEPS):
            p.grad = torch.from_numpy(noise(t * n + i) * scale).reshape(shape)
            o.step()
        name = "x".join(str(x) for x in shape) + ("-own" if is_own else "")
        (pathlib.Path(__file__).parent / "adafactor" / f"{name}.f32").write_bytes(p.detach().numpy().tobytes())
