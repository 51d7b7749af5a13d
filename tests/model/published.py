"""published.py - counts the parameters of every config.json in published.jsonl with transformers, on no device.

    published.py [--write] tests/model/published.jsonl      needs torch and transformers

A line has a name, keys as the published config.json has them (entered by hand, not copied from the file), and the number of parameters; lists of rope factors, which change no shape, may be
made up. tests/model/test_published.c reads the same lines.
"""
import json
import sys

import torch
import transformers


def count(config):
    kinds = {k: v for k, v in config.items() if k not in ("architectures", "auto_map", "quantization_config")}
    cls = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kinds.pop("model_type")]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(cls(**kinds))
    return sum(p.numel() for p in model.parameters())  # a tied matrix counts once


def main():
    path = sys.argv[-1]
    rows, bad = [json.loads(line) for line in open(path)], 0
    for row in rows:
        n = count(row["config"])
        if row.get("parameters") != n:
            print(f"{row['name']}: {row.get('parameters')} in the file, {n} in transformers")
            bad += 1
        row["parameters"] = n
    if "--write" in sys.argv:
        with open(path, "w") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} models, {bad} differ")
    return bad != 0 and "--write" not in sys.argv


if __name__ == "__main__":
    sys.exit(main())
