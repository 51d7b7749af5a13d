#!/usr/bin/env python3
"""Adapters between PEFT and trireme, both ways, for configurations drawn at random.

It needs an oracle (torch, transformers and peft) and the binary, so it is no part of ./test:

    roundtrip.py build/release/trireme            2 configurations for each golden model, both ways
    roundtrip.py build/release/trireme --n 8      as many for each
    roundtrip.py build/release/trireme --only qwen3 --seed 5
    roundtrip.py build/release/trireme --rig build/release/train_adapters

in:  PEFT makes an adapter with random weights and saves it; `trireme eval` must give the loss that PEFT gives, and `trireme train`
     must continue it to a directory with the tensors and the keys that PEFT writes, which PEFT loads; `ckpt merge` must give the weights of
     merge_and_unload.
out: `trireme train` makes an adapter from options; PEFT must load it without a missing or an extra tensor, and give the loss that
     `trireme eval` gives.
With --rig every directory is given to train/test_adapters too: logits, gradients and ten steps, on one rank and on meshes.
PEFT computes in float64. Each line says how far the losses are apart and how far the adapter moved the loss, which must be much more.
What trireme refuses as not built is counted and printed. Exit 1: a difference.
"""
import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
ROWS, LENGTH = 6, 24
STARTS = "pissa", "olora"
CLOSE = 2e-6  # float32 against float64, relative; the golden tests hold a bound that is derived from sizes


def flags(config):
    """The options of trireme that ask for a configuration of PEFT."""
    names = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save",
             "bias": "lora_bias", "lora_bias": "lora_b_bias"}
    out = ["--finetuning_type", "lora"]
    if config.get("layers_to_transform") == []:  # PEFT takes it for none, but wants it beside layers_pattern
        config = {k: v for k, v in config.items() if k != "layers_pattern"}
    if config["target_modules"] is None:
        out += ["--lora_target_modules", "auto"]
    for key, value in config.items():
        if value is None or value is False or value == [] or value == {}:
            continue
        if isinstance(value, bool):
            out.append(f"--{names.get(key, key)}")
            continue
        is_name = isinstance(value, str) and re.fullmatch(r"[\w.]+", value)
        if is_name and key in ("target_modules", "exclude_modules"):
            value = f"(?:{value})"  # a string is an expression for PEFT; here one without operators is a name
        if isinstance(value, dict):
            value = [f"{k}={x}" for k, v in value.items() for x in (v if isinstance(v, list) else [v])]
        out += [f"--{names.get(key, key)}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return out


def with_tokenizer(golden, work):
    """A copy of a golden model with a tokenizer, which trireme wants; the data here are token ids."""
    base = Path(work) / "base"
    shutil.copytree(golden, base, ignore=shutil.ignore_patterns("golden.safetensors"))
    vocab = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV")}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    (base / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    return base


class Refused(Exception):
    pass


class Run:
    def __init__(self, trireme, work):
        self.trireme, self.work = trireme, Path(work)
        rng = random.Random(1)
        for name in "train", "valid":
            rows = ([{"input_ids": [rng.randrange(3, 48) for _ in range(LENGTH)]} for _ in range(ROWS)])
            (self.work / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def call(self, *words):
        options = [] if words[0] == "ckpt" else ["--device", "cpu", "--threads", "1", "--sequence_length", str(LENGTH)]
        p = subprocess.run([self.trireme, *map(str, words), *options], capture_output=True, text=True, cwd=self.work)
        if p.returncode != 0:
            raise Refused(p.stderr.strip().split("\n")[-1] or f"exit {p.returncode}")
        return p.stdout

    def loss(self, model, *words):
        out = self.call("eval", "--model", model, "--data", "valid.jsonl", "--packing", "none", "--json", *words)
        return json.loads(out.strip().split("\n")[-1])["loss"]

    def train(self, model, out, *words):
        self.call("train", "--model", model, "--data", "train.jsonl", "--output", out, "--max_steps", 2, "--learning_rate", 0.02,
                  "--per_device_train_batch_size", 3, "--packing", "none", "--quiet", *words)


def rows_of(path):
    import torch
    return torch.tensor([json.loads(line)["input_ids"] for line in open(path)])


def loss_of(model, rows):
    import torch
    with torch.no_grad():
        logits = model(rows).logits[:, :-1].double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def plain(base, is_wide=True):
    import transformers
    config = transformers.AutoConfig.from_pretrained(base)
    kind = transformers.AutoModelForImageTextToText if hasattr(config, "vision_config") else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(base, attn_implementation="eager").eval()
    return model.double() if is_wide else model


def changes_base(config):
    return config.get("init_lora_weights") in STARTS


def draw_start(rng, config, golden):
    """PiSSA or OLoRA for some configurations; not where PEFT has neither, nor where Trireme refuses it by name."""
    if config["lora_bias"] or rng.random() > 0.4:
        return {}
    return {"init_lora_weights": "pissa" if golden.startswith("gpt2") else rng.choice(STARTS)}


def draw_head(rng, config, is_tied):
    """The head as a target of some configurations; not where Trireme refuses it by name."""
    is_free = not (config["use_dora"] or config["lora_bias"] or (changes_base(config) and is_tied))
    if is_free and isinstance(config["target_modules"], list) and "lm_head" not in config.get("modules_to_save", []) and rng.random() < 0.3:
        config["target_modules"] = config["target_modules"] + ["lm_head"]


def draw_tokens(rng, config, names):
    """Single tokens of the embedding, of the head or of both, where these are free."""
    tables = [t for t in ("embed_tokens", "wte", "lm_head") if any(n.endswith(t) for n in names["all"])]
    taken = names["targets"] + config.get("modules_to_save", [])
    if rng.random() > 0.4 or any(n.endswith(t) for n in taken for t in tables):
        return {}
    some = lambda: rng.sample(range(3, 48), rng.randint(1, 4))
    choice = rng.randrange(4)
    if choice < 2:
        return {"trainable_token_indices": some()}
    return {"trainable_token_indices": {t: some() for t in (tables if choice == 2 else tables[-1:])}}


def only_what_is_here(config, targets, is_vision):
    """Options name modules that there are, and Trireme adapts the text part of a model of text and images, where PEFT finds names in all of it."""
    names = config["target_modules"]
    if is_vision:
        leaves = {m.split(".")[-1] for m in targets if "language_model" in m} or {"q_proj", "down_proj"}
        names = rf".*language_model.*\.({'|'.join(sorted(leaves))})"
        for key in "layers_to_transform", "layers_pattern", "modules_to_save", "exclude_modules":
            config.pop(key, None)
        config["bias"] = "none"
    elif isinstance(names, list):
        names = [n for n in names if any(m == n or m.endswith("." + n) for m in targets)]
    config["target_modules"] = names


def load(base, adapter):
    """The model with the adapter, as a user loads it; a tensor that is missing or left over is an error."""
    import peft
    import safetensors.torch
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        config = json.loads((Path(adapter) / "adapter_config.json").read_text())
        model = plain(base, not changes_base(config))  # PEFT makes these starts in float32
        model = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).double().eval()
    said = [str(w.message) for w in heard if "missing adapter keys" in str(w.message)]
    saved = set(safetensors.torch.load_file(Path(adapter) / "adapter_model.safetensors"))
    used = set(peft.get_peft_model_state_dict(model))
    extra = {k for k in saved - used if not k.endswith("base_layer.weight")}
    if config["ensure_weight_tying"]:  # PEFT saves the one matrix under both names, and reads the one that is trained
        extra -= {k for k in extra if k.endswith("lm_head.weight")}
    if said or extra:
        raise AssertionError(f"PEFT: {said[:1]} left over: {sorted(extra)[:3]}")
    return model


def randomize(model, rng):
    import torch
    g = torch.Generator().manual_seed(rng.randrange(1 << 30))
    for name, p in model.named_parameters():
        if p.requires_grad:
            noise = torch.randn(p.shape, generator=g, dtype=p.dtype)
            is_new = "lora_" in name and "magnitude" not in name
            p.data = 0.1 * noise if is_new else p.data * (1 + 0.2 * noise) + 0.05 * noise  # more would leave the bounds of the rig


def compare(what, ours, theirs, before):
    apart, moved = abs(ours - theirs) / theirs, abs(theirs - before) / before
    if not (apart <= CLOSE and math.isfinite(ours)):
        raise AssertionError(f"{what}: loss {ours:.7f}, PEFT {theirs:.7f}")
    return f"{what} {apart:.0e} of {moved:.0e}"


def check_directory(theirs, ours, is_converted):
    """A continued directory has the tensors and the keys of PEFT's own; one with a start is converted."""
    import safetensors.torch
    a, b = (safetensors.torch.load_file(d / "adapter_model.safetensors") for d in (theirs, ours))
    if not is_converted and {k: v.shape for k, v in a.items()} != {k: v.shape for k, v in b.items()}:
        raise AssertionError(f"other tensors than PEFT's: {sorted(a.keys() ^ b.keys())[:4]}")
    a, b = (json.loads((d / "adapter_config.json").read_text()).keys() for d in (theirs, ours))
    if a != b:
        raise AssertionError(f"other keys than PEFT's: {sorted(a ^ b)}")


def check_merge(run, base, adapter, live):
    """ckpt merge and merge_and_unload give the same weights. Of a tied model whose head or embedding has an adapter of its own, PEFT's are wrong: it adds
    to the one matrix what belongs to one of its uses. There the merge wants --untie, and must have the loss of the live adapter."""
    import peft
    words = "ckpt", "merge", adapter, "--out", "merged", "--rows", 1
    try:
        run.call(*words)
    except Refused as e:
        if "--untie" not in str(e):
            with contextlib.suppress(RuntimeError):  # PEFT refuses what Trireme refuses
                peft.PeftModel.from_pretrained(plain(base, False), adapter).merge_and_unload()
                raise
            return "merge refused, as PEFT does"
        run.call(*words, "--untie")
        return compare("untied", loss_of(plain(run.work / "merged"), rows_of(run.work / "valid.jsonl")), live, live)
    theirs = peft.PeftModel.from_pretrained(plain(base, False), adapter).merge_and_unload().state_dict()
    ours = plain(run.work / "merged", False).state_dict()
    if theirs.keys() != ours.keys():
        raise AssertionError(f"merged: other tensors {sorted(theirs.keys() ^ ours.keys())[:4]}")
    for k, x in theirs.items():
        worst = (x - ours[k]).abs().max().item()
        if not worst <= 1e-5 * max(1, x.abs().max().item()):
            raise AssertionError(f"merged {k} differs by {worst}")
    return "merged"


def into(run, base, config, rng, before):
    import peft
    adapter, rows = run.work / "from_peft", rows_of(run.work / "valid.jsonl")
    model = plain(base, not changes_base(config))
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config), autocast_adapter_dtype=False)
    randomize(model, rng)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(adapter)
    theirs = loss_of(load(base, adapter), rows)
    said = [compare("in", run.loss(adapter, "--model_base", base), theirs, before)]
    run.train(adapter, "continued", "--model_base", base)
    live = loss_of(load(base, run.work / "continued"), rows)
    said.append(compare("continued", run.loss("continued", "--model_base", base), live, before))
    check_directory(adapter, run.work / "continued", changes_base(config))
    said.append(check_merge(run, base, run.work / "continued", live))
    return said


def out_of(run, base, config, before, unties):
    run.train(base, "from_trireme", *flags(config), *(["--untie"] if unties else []))
    theirs = loss_of(load(base, run.work / "from_trireme"), rows_of(run.work / "valid.jsonl"))
    return [compare("out", run.loss("from_trireme"), theirs, before)]


def keep(root, golden, base, adapters, number):
    """Copies directories for the rig, with what PEFT computes on the golden batch."""
    import safetensors.torch
    import torch
    from make_adapters import families, float32_is, keep_rotary_tables, reference, trainable
    for adapter in adapters:
        case = root / f"{golden.name}-{adapter.name}_{number}"
        case.mkdir()
        for name in "adapter_config.json", "adapter_model.safetensors":
            shutil.copy(adapter / name, case)
        model = trainable(plain(base), adapter).double().train()
        keep_rotary_tables(model)
        batch = safetensors.torch.load_file(golden / "golden.safetensors")
        with float32_is(torch.float64):
            found = reference(model, batch, families().get(golden.name, {}).get("names", {}))
        sizes = [x.abs().max().item() for k, x in found.items() if k.startswith("grad.")]
        if min(sizes) < 1e-9 * max(sizes):  # zero but for rounding (a bias of k, a token that the batch has not): nothing to compare with
            shutil.rmtree(case)
            continue
        safetensors.torch.save_file(found, case / "golden.safetensors")


MADE = "from_peft", "continued", "from_trireme"
DROPPED = *MADE, "merged"


def clean(work):
    for name in DROPPED:
        shutil.rmtree(Path(work) / name, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trireme", type=lambda s: str(Path(s).resolve()))
    p.add_argument("--n", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only")
    p.add_argument("--verbose", action="store_true", help="prints every configuration")
    p.add_argument("--rig", type=lambda s: str(Path(s).resolve()))
    args = p.parse_args()
    try:
        import peft
        import torch
        import transformers
    except ImportError:
        print("no oracle: torch, transformers or peft is not here")
        return 77
    sys.path[:0] = [str(HERE), str(GOLDEN)]
    from targets import draw
    warnings.filterwarnings("ignore")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    n = {"same": 0, "different": 0, "refused": 0}
    root = Path(tempfile.mkdtemp())
    for golden in sorted(d for d in GOLDEN.iterdir() if (d / "config.json").exists() and args.only in (None, d.name)):
        rng = random.Random(f"{golden.name} {args.seed}")
        model = plain(golden)
        modules = [k for k, _ in model.named_modules() if k]
        linear = [k for k, m in model.named_modules() if type(m).__name__ in ("Linear", "FalconLinear", "Conv1D") and k != "lm_head"]
        done = 0
        while done < args.n:
            config = draw(rng, modules, linear)
            config |= draw_start(rng, config, golden.name)
            draw_head(rng, config, model.config.tie_word_embeddings)
            try:  # what PEFT refuses, targets.py has compared
                made = peft.get_peft_model(plain(golden, not changes_base(config)), peft.LoraConfig(task_type="CAUSAL_LM", **config))
            except Exception:
                continue
            only_what_is_here(config, made.base_model.targeted_module_names, hasattr(model.config, "vision_config"))
            for key in {"rank_pattern", "alpha_pattern"} & config.keys():  # trireme refuses one that matches nothing
                names = [m for m in made.base_model.targeted_module_names if "vision" not in m]
                kept = {k: v for k, v in config[key].items() if any(re.match(rf"(.*\.)?({k})$", m) for m in names)}
                config[key] = dict(sorted(kept.items()))  # PEFT sorts what it saves, and cannot load it when that matters
            config |= draw_tokens(rng, config, {"all": modules, "targets": made.base_model.targeted_module_names})
            done += 1
            tables = {"lm_head", "embed_tokens", "wte"} & set(config.get("modules_to_save", []))
            is_shared = tables and model.config.tie_word_embeddings
            if is_shared:  # the two are trained as one, or apart
                config["ensure_weight_tying"] = rng.random() < 0.5
            unties = is_shared and not config["ensure_weight_tying"]
            if args.verbose:
                print(json.dumps(config), flush=True)
            with tempfile.TemporaryDirectory() as work:
                run, base = Run(args.trireme, work), with_tokenizer(golden, work)
                before = loss_of(model, rows_of(run.work / "valid.jsonl"))
                for way in (lambda: into(run, base, config, rng, before)), (lambda: out_of(run, base, config, before, unties)):
                    clean(work)
                    try:
                        print(f"{golden.name:20}", "  ".join(way()), flush=True)
                        n["same"] += 1
                        adapters = [d for d in run.work.iterdir() if d.name in MADE]
                        if args.rig:
                            keep(root, golden, base, adapters, done)
                    except Refused as e:
                        print(f"{golden.name:20} refused: {e}", flush=True)
                        n["refused"] += 1
                    except Exception as e:
                        print(f"{golden.name:20} DIFFERENT: {type(e).__name__} {e}\n    {json.dumps(config)}", flush=True)
                        n["different"] += 1
    print(", ".join(f"{v} {k}" for k, v in n.items()))
    failed = n["different"] > 0
    if args.rig and n["same"]:
        failed = subprocess.call([args.rig], env=dict(os.environ, TR_ADAPTERS=str(root))) != 0 or failed
    shutil.rmtree(root)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
