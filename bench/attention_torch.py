"""attention_torch.py [HEADS,DIM,ROWS,LENGTH ...]: causal attention alone by PyTorch's flash and cuDNN kernels, bf16, as many key heads as heads.

Prints a row a shape in the form of bench_attention: milliseconds of forward and backward, TFLOP/s over the pairs that are needed
(backward: five products). Both kernels add up dq in any order, which ours never does.
"""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(32, 64, 16384 // t, t) for t in (512, 2048, 4096, 8192, 16384)] + \
         [(16, 128, 16384 // t, t) for t in (2048, 4096, 8192, 16384)] + [(8, 256, 4, 2048), (8, 256, 1, 8192)]


def milliseconds(call, n=20, rounds=5):
    """The median over rounds of the mean of n calls."""
    took = []
    call()
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            call()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - start) * 1e3 / n)
    return sorted(took)[rounds // 2]


def main():
    shapes = [tuple(int(v) for v in a.split(",")) for a in sys.argv[1:]] or SHAPES
    for heads, dim, rows, length in shapes:
        q, k, v, d = (torch.randn(rows, heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        for t in (q, k, v):
            t.requires_grad_()
        flops = rows * heads * dim * 2 * length * (length + 1) / 2
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    forward = milliseconds(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                    backward = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), d, retain_graph=True))
            except RuntimeError as e:
                print(f"- torch {name}, {dim}, rows of {length}: {str(e).splitlines()[0][:120]}", flush=True)
                continue
            print(f"| torch {name}: {dim}, rows of {length} | {forward:.3f} | {backward:.3f} | {2 * flops / forward * 1e-9:.0f} | "
                  f"{5 * flops / backward * 1e-9:.0f} |", flush=True)


main()
