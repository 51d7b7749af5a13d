"""PyTorch's own distance from float32: gradients of one step, tensor by tensor, of a model with random weights (the peer of bench_gradients).

    gradients_torch.py CONFIG.json ROWS LENGTH

Prints |g - g32| / |g32| for bf16 autocast (float32 weights and residual stream) and for a model held in bf16."""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def gradients(model, ids, autocast):
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return {name: p.grad.detach().float().clone() for name, p in model.named_parameters()}


def main(path, rows, length):
    fields = json.load(open(path))
    kind = fields.pop("model_type")
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **fields)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").cuda().float()
    ids = torch.randint(0, config.vocab_size, (rows, length), device="cuda")
    exact = gradients(model, ids, False)
    for name, held, autocast in (("bf16 autocast", torch.float32, True), ("all bf16", torch.bfloat16, False)):
        got = gradients(model.to(held), ids, autocast)
        off = sorted(((got[n] - g).norm() / g.norm()).item() for n, g in exact.items() if g.norm() > 0)
        over = sum(v > 1e-2 for v in off)
        print(f"PyTorch {kind} {name}: median {off[len(off) // 2]:.3e}, worst {off[-1]:.3e} of {len(off)} tensors, {over} over 1e-2", flush=True)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
