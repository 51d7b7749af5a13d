"""Losses of PyTorch beside `bench_gpu curve=1`: the same weights (an HF directory of `trireme init --seed 1`), tokens and AdamW.

    curve_torch.py DIR ROWS LENGTH STEPS [float32]      default: fp32 weights, bf16 autocast; prints one loss a line
"""
import sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM


def philox(key, lo):
    c = [lo & 0xFFFFFFFF, lo >> np.uint64(32), np.zeros_like(lo), np.zeros_like(lo)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> half) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0]


path, rows, length, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
is_float32 = "float32" in sys.argv
torch.backends.cuda.matmul.allow_tf32 = False
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa").cuda().train()
for m in model.modules():
    if isinstance(m, torch.nn.Dropout):
        m.p = 0.0
model.config.use_cache = False
ids = (philox(1, np.arange(rows * length + 1, dtype=np.uint64)) % np.uint64(model.config.vocab_size)).astype(np.int64)
x = torch.from_numpy(ids[:-1].reshape(rows, length)).cuda()
y = torch.from_numpy(ids[1:]).cuda()
groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == wide], "weight_decay": 0.01 if wide else 0.0} for wide in (True, False)]
opt = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, fused=True)
for step in range(steps):
    with torch.autocast("cuda", torch.bfloat16, enabled=not is_float32):
        logits = model(input_ids=x).logits
    loss = torch.nn.functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(f"step {step}: loss {loss.item():.6f}", flush=True)
