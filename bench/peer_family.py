#!/usr/bin/env python3
"""A step of training as PyTorch users have it, on the shapes of `gpu.sh families`: transformers' own class of a model, made from
the same config.json with random weights, attention by sdpa, fused AdamW, clipping, torch.compile.

    peer_family.py CONFIG.json [rows=N] [length=N] [pack=N] [dropout=0|published] [state=float32|bfloat16] [micro=N] [mode=compile|eager]
                   [steps=6] [warm=3] [device=cuda|cpu]

state=float32: weights and moments in float32, bf16 compute by autocast; bfloat16: all of it bf16. pack: documents of N tokens fill a
row; positions begin anew, and a mask for all pairs keeps them apart, as sdpa needs it (so a window is left out: models with one refuse
pack). Prints one line: PEER, then JSON."""
import json
import statistics
import sys
import time

DROPOUT_KEYS = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "residual_dropout", "embedding_dropout",
                "attn_pdrop", "embd_pdrop", "resid_pdrop", "layerdrop")


def arguments(argv):
    if not argv or "=" in argv[0]:
        raise SystemExit(__doc__)
    known = {"rows": "4", "length": "256", "pack": "0", "dropout": "0", "state": "float32", "micro": "1", "mode": "compile", "steps": "6",
             "warm": "3", "device": "cuda"}
    known |= dict(a.split("=", 1) for a in argv[1:] if "=" in a)
    return argv[0], {k: int(v) if v.isdigit() else v for k, v in known.items()}


def config_of(path, dropout, length):
    import transformers

    raw = json.load(open(path))
    for key in ("auto_map", "architectures", "torch_dtype", "dtype", "quantization_config", "transformers_version"):
        raw.pop(key, None)
    config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    for key in DROPOUT_KEYS:
        if dropout != "published" and isinstance(getattr(config, key, None), float):
            setattr(config, key, float(dropout) / 100)
    limit = getattr(config, "max_position_embeddings", length)
    if limit < length:
        raise SystemExit(f"{path}: {limit} positions; ask for rows of at most that many")
    config.use_cache = False
    return config


def inputs(torch, a, config):
    ids = torch.randint(0, config.vocab_size, (a["rows"], a["length"]), device=a["device"])
    if not a["pack"]:
        return {"input_ids": ids, "labels": ids}
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise SystemExit("a mask of documents would replace the window: no pack for this model")
    at = torch.arange(a["length"], device=a["device"])
    same = at[:, None] // a["pack"] == at[None, :] // a["pack"]
    mask = (same & (at[:, None] >= at[None, :]))[None, None].expand(a["rows"], 1, -1, -1)
    positions = (at % a["pack"]).expand(a["rows"], -1)
    return {"input_ids": ids, "labels": ids, "position_ids": positions.contiguous(), "attention_mask": mask.contiguous()}


def main():
    path, a = arguments(sys.argv[1:])
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = config_of(path, a["dropout"], a["length"])
    is_cuda = a["device"] == "cuda"
    all_bf16 = a["state"] == "bfloat16"
    with torch.device(a["device"]):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if all_bf16 else torch.float32,
                                                              attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if a["mode"] == "compile" else model
    batch = inputs(torch, a, config)

    def step():
        for _ in range(a["micro"]):
            with torch.autocast(a["device"], torch.bfloat16, enabled=not all_bf16):
                loss = run(**batch).loss / a["micro"]
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()  # waits, as a trainer that prints its loss does
        return value * a["micro"]

    start = time.perf_counter()
    for _ in range(a["warm"]):
        step()
    warm = time.perf_counter() - start
    times = []
    for _ in range(a["steps"]):
        began = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    tokens = a["rows"] * a["length"] * a["micro"]
    report = {"model": config.model_type, "parameters": sum(p.numel() for p in model.parameters()), **a, "torch": torch.__version__,
              "transformers": transformers.__version__, "median_s": round(median, 5), "tokens_per_s": round(tokens / median, 1),
              "warm_s": round(warm, 1), "loss": round(loss, 4),
              "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1) if is_cuda else None}
    print("PEER " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
