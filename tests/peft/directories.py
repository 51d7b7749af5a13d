#!/usr/bin/env python3
"""Adapter directories between PEFT and Trireme, both ways, for configurations drawn at random on every golden model.

It needs an oracle (torch, transformers and peft) and is no part of ./test; CI checks the committed goldens instead.

    directories.py build/release/trireme [--n N] [--seed S] [--keep DIR]

For each configuration that PEFT takes: PEFT writes a directory with random weights; `eval` on it has PEFT's loss; a run
that continues it writes a directory whose loss in PEFT is that of `eval`; the tensors and the keys of the config are
those that PEFT writes; `ckpt merge` gives the weights of merge_and_unload. What Trireme refuses is counted by message.
"""
import argparse
import collections
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parent))
import targets

ROWS, LENGTH, BOUND = 6, 20, 2e-5


class Refused(Exception):
    pass


def run(trireme, *args):
    p = subprocess.run([trireme, *map(str, args)], capture_output=True, text=True)
    if p.returncode == 2:
        raise Refused(p.stderr.strip().splitlines()[0])
    if p.returncode:
        raise AssertionError(f"exit {p.returncode}: {' '.join(map(str, args))}\n{p.stderr}")
    return p.stdout


def make_base(trireme, golden, out):
    """A golden model with a tokenizer, which the data needs though it is ids, and rows of ids."""
    config = out / "tiny.json"
    if not (out / "bytes").exists():
        config.write_text(json.dumps(dict(model_type="llama", vocab_size=264, hidden_size=8, intermediate_size=8,
                                          num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=8,
                                          rms_norm_eps=1e-5)))
        run(trireme, "init", "--config", config, "--tokenizer", "bytes", "--out", out / "bytes", "--quiet")
    base = out / golden.name
    shutil.copytree(golden, base)
    for f in (out / "bytes").glob("*token*"):
        shutil.copy(f, base)
    vocab = json.loads((base / "config.json").read_text())["vocab_size"]
    rng = random.Random(golden.name)
    rows = [[rng.randrange(3, vocab) for _ in range(LENGTH)] for _ in range(ROWS)]
    (base / "ids.jsonl").write_text("".join(json.dumps({"input_ids": r}) + "\n" for r in rows))
    return base, rows


def loss_of(model, rows):
    import torch
    ids = torch.tensor(rows)
    with torch.no_grad():
        logits = model(input_ids=ids).logits.double()
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


def plain(base):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager").eval()


def peft_loss(base, directory, rows):
    from peft import PeftModel
    return loss_of(PeftModel.from_pretrained(plain(base), directory).eval(), rows)


def close(what, a, b):
    assert abs(a - b) <= BOUND * max(1, abs(a)), f"{what}: {a} and {b}"


def tensors(directory):
    from safetensors.torch import load_file
    return load_file(directory / "adapter_model.safetensors")


def check_case(trireme, base, rows, config, out, seed):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    theirs, ours, merged = out / "theirs", out / "ours", out / "merged"
    for d in theirs, ours, merged:
        shutil.rmtree(d, ignore_errors=True)
    torch.manual_seed(seed)
    try:
        model = get_peft_model(plain(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config))
    except Exception as e:
        return "PEFT: " + str(e).split("\n")[0][:60]
    for p in model.parameters():
        if p.requires_grad:
            p.data += 0.05 * torch.randn_like(p)
    model.save_pretrained(theirs)
    data = ["--data", base / "ids.jsonl", "--data_format", "tokens", "--sequence_length", LENGTH, "--packing", "none"]
    loss = lambda d: json.loads(run(trireme, "eval", "--model", d, *data, "--json"))["loss"]
    try:
        expected = peft_loss(base, theirs, rows)
    except RuntimeError:  # patterns come back in another order, so another one matches first
        return "PEFT cannot read what it wrote"
    close("PEFT's directory", expected, loss(theirs))
    run(trireme, "train", "--model", theirs, *data, "--train_batch_size", 2, "--max_steps", 2, "--learning_rate", "1e-3",
        "--lora_dropout", 0, "--quiet", "--output", ours)
    close("our directory", peft_loss(base, ours, rows), loss(ours))
    a, b = tensors(theirs), tensors(ours)
    assert {k: v.shape for k, v in a.items()} == {k: v.shape for k, v in b.items()}, sorted(a.keys() ^ b.keys())
    ca, cb = (json.loads((d / "adapter_config.json").read_text()) for d in (theirs, ours))
    assert ca.keys() == cb.keys(), sorted(ca.keys() ^ cb.keys())
    try:
        run(trireme, "ckpt", "merge", theirs, "--out", merged, "--rows", 1)
    except Refused as e:
        return "merge: " + str(e)
    unloaded = PeftModel.from_pretrained(plain(base), theirs).merge_and_unload().state_dict()
    written = plain(merged).state_dict()
    assert unloaded.keys() == written.keys(), sorted(unloaded.keys() ^ written.keys())
    for k, x in unloaded.items():
        worst = (x - written[k]).abs().max().item()
        assert worst <= 1e-5 * max(1, x.abs().max().item()), f"merged {k} differs by {worst}"
    close("the merged model", loss(theirs), loss(merged))
    return "ok"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trireme")
    p.add_argument("--n", type=int, default=3, help="configurations a golden model")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--keep", type=Path)
    args = p.parse_args()
    try:
        import peft  # noqa: F401
        import torch
        import transformers
    except ImportError:
        print("no oracle: peft is not here")
        return 77
    from transformers.pytorch_utils import Conv1D
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    out = args.keep or Path(tempfile.mkdtemp())
    out.mkdir(exist_ok=True)
    counts, n_bad = collections.Counter(), 0
    for golden in sorted(g for g in targets.GOLDEN.iterdir() if (g / "model.safetensors").exists()):
        base, rows = make_base(str(Path(args.trireme).resolve()), golden, out)
        model = plain(base)
        modules = [k for k, _ in model.named_modules() if k]
        linear = [k for k, m in model.named_modules() if isinstance(m, (torch.nn.Linear, Conv1D)) and k != "lm_head"]
        rng = random.Random(f"{golden.name} {args.seed}")
        cases = [targets.draw(rng, modules, linear) for _ in range(args.n)]
        if model.config.tie_word_embeddings:  # a table that is trained whole and stays tied
            table = next(m for m in modules if m.endswith(("embed_tokens", "wte"))).rpartition(".")[2]
            cases += [{"r": 2, "target_modules": "all-linear", "modules_to_save": [m], "ensure_weight_tying": True} for m in (table, "lm_head")]
        for i, config in enumerate(cases):
            try:
                result = check_case(str(Path(args.trireme).resolve()), base, rows, config, out, i)
            except Refused as e:
                result = "refused: " + str(e)
            except AssertionError as e:
                result, n_bad = "BAD", n_bad + 1
                print(f"{golden.name} {config}\n    {e}", flush=True)
            counts[re.sub(r"[\w./-]*\.[\w./-]+|/\S+|\d+", "_", result)[:110]] += 1
    for what, n in counts.most_common():
        print(f"{n:5} {what}")
    if not args.keep:
        shutil.rmtree(out)
    return n_bad > 0 or counts["ok"] == 0


if __name__ == "__main__":
    sys.exit(main())
