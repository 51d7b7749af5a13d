#!/usr/bin/env python3
"""Which modules PEFT changes, with which rank and scale: a table for tests/adapter/test_target.c.

It needs an oracle (torch, transformers and peft); CI has none and runs the test on the committed table.

    targets.py --write tests/adapter/targets.json           the committed table: 5 configurations a golden model
    targets.py --live build/release/adapter_target [--n N]  draws N (200) a golden model and runs the test on them

Every configuration is drawn from a seed that is the name of the model, so the committed table can be made again.
"""
import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
GOLDEN = Path(__file__).resolve().parent.parent / "golden"


ELSEWHERE = ["gate_up_proj", "c_attn", "query_key_value", "fc1", "gate_proj", "Wqkv", "mlp.w1"]  # of other models, mostly


def leaves(names, parts):
    return sorted({".".join(n.split(".")[-parts:]) for n in names if n.count(".") >= parts - 1})


def draw_names(rng, modules, linear):
    """A list of target names: mostly good ones, of one or more parts, at times of a norm, a container or nothing."""
    pool = leaves(linear, 1) * 4 + leaves(linear, 2) * 2 + rng.sample(linear, min(4, len(linear)))
    pool += ["lm_head"] * 2 + ["no_such_module"]
    if rng.random() < 0.06:
        pool = leaves(modules, 1)
    if rng.random() < 0.15:
        pool += ["embed_tokens", "wte"] * 4
    if rng.random() < 0.4:
        pool += ELSEWHERE * 2
    return sorted(set(rng.sample(pool, min(len(pool), rng.randint(1, 5)))))


def draw_regex(rng, linear):
    a, b = rng.choice(leaves(linear, 1)), rng.choice(leaves(linear, 1))
    layers = linear[0].rsplit(".0.", 1)[0].split(".")[-1]
    return rng.choice([
        rf".*\.({a}|{b})",
        rf".*\.{layers}\.[0-1]\..*({a}|{b})$",
        rf"(?i).*{a.upper()}",
        rf".*{layers}\.(?:0|2)\.[a-z_]+\.(?P<leaf>{a})",
        rf".*\.{a}|.*\.{layers}\.1\..*\.{b}",
        rf"[^.]+\.(?!decoder).*\.{a}",
        rf"{a}",
        r".*attn.*",
        rf"\w+(\.\w+)*\.{b[:-1]}\w",
    ])


def draw(rng, modules, linear):
    c = {"r": rng.choice([1, 2, 3, 4]), "lora_alpha": rng.choice([1, 4, 8, 16, 7]), "target_modules": None}
    kind = rng.random()
    if kind < 0.2:
        c["target_modules"] = "all-linear"
    elif kind < 0.65:
        c["target_modules"] = draw_names(rng, modules, linear)
    elif kind < 0.85:
        c["target_modules"] = draw_regex(rng, linear)
    if rng.random() < 0.25:
        c["exclude_modules"] = rng.choice([[rng.choice(leaves(linear, 1))], [rng.choice(linear)], sorted(rng.sample(ELSEWHERE, 2)),
                                           draw_regex(rng, linear)])
    if rng.random() < 0.2:
        c["modules_to_save"] = [rng.choice(["lm_head", "embed_tokens", "wte", "norm", "ln_f", "layernorm", "mlp", "layers"])]
        if not any(m.endswith(c["modules_to_save"][0]) for m in modules):
            del c["modules_to_save"]  # PEFT trains nothing then, and here that is refused
        elif rng.random() < 0.4:
            c["modules_to_save"].append(rng.choice(ELSEWHERE + ["no_such_module"]))
    if not isinstance(c["target_modules"], str) and rng.random() < 0.3:
        c["layers_to_transform"] = rng.choice([0, 1, [0], [1, 2], [], [7]])
        if rng.random() < 0.5:
            c["layers_pattern"] = rng.choice(["layers", "h", ["h", "layers"], "decoder.layers", r"lay\w+", ["nothing"]])
    for key in "rank_pattern", "alpha_pattern":
        if rng.random() < 0.35:
            pool = leaves(linear, 1) + leaves(linear, 2) + linear[:3] + [draw_regex(rng, linear), r"^" + linear[0], r".*\.0\..*"]
            c[key] = {k: rng.choice([1, 2, 3, 4]) for k in rng.sample(pool, rng.randint(1, 3))}
    c["bias"] = rng.choice(["none"] * 3 + ["all", "lora_only"])
    c["use_rslora"] = rng.random() < 0.3
    c["use_dora"] = rng.random() < 0.2
    c["lora_bias"] = not c["use_dora"] and rng.random() < 0.15
    # PEFT trains an embedding twice when it is in modules_to_save or a target as well; here that is refused
    if rng.random() < 0.1 and not isinstance(c["target_modules"], list) and "modules_to_save" not in c:
        c["trainable_token_indices"] = rng.sample(range(50), 3)
    return c


def ask(model, config, with_text):
    """The row of the table: what PEFT does with a copy of the model. The text is left out where PEFT sorts patterns."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer
    row = {"config": dict(config, peft_type="LORA", task_type="CAUSAL_LM")}
    try:
        peft = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **config))
    except Exception as e:
        row["error"] = str(e).split("\n")[0][:100]
        return row
    inner = peft.base_model.model
    row["targets"] = {n: [m.r["default"], m.scaling["default"]] for n, m in inner.named_modules() if isinstance(m, LoraLayer)}
    row["trained"] = sum(p.numel() for p in peft.parameters() if p.requires_grad)
    t = peft.peft_config["default"].target_modules
    row["target_modules"] = t if isinstance(t, str) else sorted(t)
    row["fan_in_fan_out"] = peft.peft_config["default"].fan_in_fan_out
    if with_text and max(len(config.get(k, {})) for k in ("rank_pattern", "alpha_pattern")) < 2:
        row["text"] = saved_text(peft)
    return row


def saved_text(peft):
    """adapter_config.json as PEFT saves it, but for the order of its sets and the place of the model."""
    config = peft.peft_config["default"]
    config.inference_mode, config.base_model_name_or_path = True, None
    values = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    return json.dumps(values, indent=2, sort_keys=True)


def table(n):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
    rows = []
    for path in sorted(p for p in GOLDEN.iterdir() if (p / "config.json").exists()):
        if "text_config" in json.loads((path / "config.json").read_text()):
            continue  # PEFT changes the part of images too
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        modules = [k for k, _ in model.named_modules() if k]
        linear = [k for k, m in model.named_modules() if isinstance(m, (torch.nn.Linear, Conv1D)) and k != "lm_head"]
        rng = random.Random(path.name)
        rows += [dict(ask(model, draw(rng, modules, linear), i < 3), model=path.name) for i in range(n)]
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write")
    p.add_argument("--live")
    p.add_argument("--n", type=int, default=0)
    args = p.parse_args()
    try:
        import peft  # noqa: F401
    except ImportError:
        print("no oracle: peft is not here")
        return 77
    rows = table(args.n or (5 if args.write else 200))
    text = "[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n"
    if args.write:
        Path(args.write).write_text(text)
    n_errors = sum("error" in r for r in rows)
    print(f"{len(rows)} configurations, {n_errors} of which PEFT refuses")
    if not args.live:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(text)
        f.flush()
        return subprocess.call([args.live], env=dict(os.environ, TR_TARGETS=f.name))


if __name__ == "__main__":
    sys.exit(main())
