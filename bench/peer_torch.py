#!/usr/bin/env python3
"""The peer Trireme's CPU speed is compared with: PyTorch and transformers, GPT-2 124M, one training step.

float32, no dropout, sdpa attention, AdamW (fused by default), gradient norm clipped at 1; the loss is read every step, as
a trainer does. Warm-up steps, then the median. One JSON line per run; --compile adds a second run with torch.compile.
"""
import argparse
import json
import os
import platform
import statistics
import time


def step_times(torch, transformers, args, is_compiled):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=50257, n_positions=1024,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    config._attn_implementation = "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=3e-4, **{args.adamw: True})
    run = torch.compile(model) if is_compiled else model
    tokens = torch.randint(0, config.vocab_size, (args.batch, args.length))
    times = []
    for _ in range(args.warmup + args.steps):
        start = time.perf_counter()
        loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        times.append(time.perf_counter() - start)
    return times[args.warmup :], value, sum(p.numel() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--adamw", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--compile", action="store_true", help="run again with torch.compile (needs a C++ compiler)")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch starts its threads
    import torch
    import transformers
    torch.set_num_threads(args.threads)

    for is_compiled in (False, True) if args.compile else (False,):
        report = {"peer": "torch", "torch": torch.__version__, "transformers": transformers.__version__,
                  "python": platform.python_version(), "threads": torch.get_num_threads(), "model": "gpt2-124M",
                  "batch": args.batch, "length": args.length, "dtype": "float32", "attention": "sdpa",
                  "adamw": args.adamw, "compiled": is_compiled}
        try:
            times, loss, n_params = step_times(torch, transformers, args, is_compiled)
            median = statistics.median(times)
            report |= {"params": n_params, "steps": len(times), "step_s": round(median, 4),
                       "step_s_min": round(min(times), 4), "step_s_max": round(max(times), 4),
                       "tokens_per_s": round(args.batch * args.length / median, 1), "loss": round(loss, 4)}
        except Exception as error:  # torch.compile raises anything; an uncompiled failure is ours to see
            if not is_compiled:
                raise
            report["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
