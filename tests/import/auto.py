"""auto.py - "auto" of a DeepSpeed file beside TrainingArguments: what transformers fills in, and what config import says.

    auto.py TRIREME          needs transformers and accelerate; exit 77 where they are not here

transformers resolves the values without DeepSpeed itself, but looks whether it is installed: an empty package stands for it.
"""
import copy
import json
import os
import subprocess
import sys
import tempfile

STAGES = {
    0: {"stage": 0},
    1: {"stage": 1, "reduce_bucket_size": "auto"},
    2: {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto", "allgather_bucket_size": 5e8},
    3: {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
}
BASE = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "warmup_type": "linear"}},
}
ARGS = [
    {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 2e-5, "warmup_steps": 10, "max_steps": 100},
    {"max_grad_norm": 0.5, "weight_decay": 0.1, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "bf16": True, "max_steps": 50, "warmup_steps": 0.1},
    {"max_steps": 7},
]


class Model:
    class config:
        hidden_size = 64


def theirs(ds, args):
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
    a = TrainingArguments(output_dir="o", use_cpu=True, **args)
    c = HfTrainerDeepSpeedConfig(copy.deepcopy(ds))
    c.trainer_config_process(a)
    c.trainer_config_finalize(a, Model, args["max_steps"])
    return c.config


def flat(d, prefix=""):
    for k, v in d.items():
        if isinstance(v, dict):
            yield from flat(v, prefix + k + ".")
        else:
            yield prefix + k, v


def ours(trireme, ds, args):
    with open("ds.json", "w") as f:
        json.dump(ds, f)
    with open("args.json", "w") as f:
        json.dump({"output_dir": "o", "report_to": "none", **args}, f)
    p = subprocess.run([trireme, "config", "import", "args.json", "ds.json", "--json"], capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"exit {p.returncode}: {p.stdout}{p.stderr}")
    got = json.loads(p.stdout.splitlines()[-1])
    items = {}
    for x in got["taken"]:
        if x["file"] == "ds.json" and "option" in x:
            items.setdefault(x["key"], []).append(x["set"])
    return items, {x["key"] for x in got["decided"]}


def main():
    trireme = os.path.abspath(sys.argv[1])
    fake = tempfile.mkdtemp()
    os.makedirs(fake + "/deepspeed")
    open(fake + "/deepspeed/__init__.py", "w").write("__version__ = '99.0'\n")
    os.makedirs(fake + "/deepspeed-99.0.dist-info")
    open(fake + "/deepspeed-99.0.dist-info/METADATA", "w").write("Metadata-Version: 2.1\nName: deepspeed\nVersion: 99.0\n")
    sys.path.insert(0, fake)
    try:
        import transformers, accelerate  # noqa: F401
    except ImportError:
        print("transformers and accelerate are not here: \"auto\" was not compared with them")
        return 77
    n = bad = 0
    for stage, zero in STAGES.items():
        for args in ARGS:
            ds = {**copy.deepcopy(BASE), "zero_optimization": dict(zero)}
            want, (have, decided) = dict(flat(theirs(ds, args))), ours(trireme, ds, args)
            for key, value in flat(ds):
                if value != "auto":
                    continue
                if key in decided:  # bucket sizes; the product of the batch; a warm-up that starts at 0
                    ok = key in ("train_batch_size", "scheduler.params.warmup_min_lr") or key.startswith("zero_optimization.")
                    ok = ok and (key != "scheduler.params.warmup_min_lr" or want[key] == 0)
                elif key in ("bf16.enabled", "fp16.enabled"):
                    ok = (have[key] == ["bfloat16" if key[0] == "b" else "float16"]) == want[key]
                elif key == "scheduler.params.warmup_num_steps":
                    steps = have[key][0]
                    steps = steps if steps >= 1 else -(-steps * args["max_steps"] // 1)
                    # newer DeepSpeed refuses 0, so newer transformers writes 1, which DeepSpeed makes 2; here 0 is no warm-up
                    ok = want[key] in (steps, max(1, steps))
                else:
                    ok = (have[key] if len(have[key]) > 1 else have[key][0]) == want[key]
                n += 1
                if not ok:
                    bad += 1
                    print(f"stage {stage}, {args}: {key}: transformers has {want[key]}, here {have.get(key)}")
    print(f"{n} values of \"auto\" as transformers {transformers.__version__} fills them in, {bad} wrong")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
