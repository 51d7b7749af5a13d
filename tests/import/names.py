#!/usr/bin/env python3
"""names.py - the fields of TrainingArguments, SFTConfig, DPOConfig and KTOConfig, for which config import wants a verdict.

    names.py                 compares names.txt with the installed transformers and trl; exit 1 and the difference, 77 where they are not here
    names.py --write         writes names.txt and dumps.json anew
    names.py TRIREME         and asks the program for each field, by a file that has it alone; exit 1 where it calls one unknown

tests/import/test_import.c reads names.txt, so that the verdicts are tested where nothing of this is installed. dumps.json has what to_dict() of
each class gives, every field with its default, as people keep arguments as a file: golden.py wants all of it taken.
"""
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

RECORD = pathlib.Path(__file__).parent / "names.txt"
DUMPS = pathlib.Path(__file__).parent / "dumps.json"


def walk():
    """tool, field: TrainingArguments are read as hf, what TRL adds as trl."""
    import transformers
    import trl
    fields = lambda cls: [f.name for f in dataclasses.fields(cls) if f.init]
    base = fields(transformers.TrainingArguments)
    rows = [("hf", name) for name in base]
    for cls in (trl.SFTConfig, trl.DPOConfig, trl.KTOConfig):
        rows += [("trl", name) for name in fields(cls) if ("trl", name) not in rows]
    return rows, f"transformers {transformers.__version__}, trl {trl.__version__}"


def dumps():
    import transformers
    import trl
    classes = {"trainer": transformers.TrainingArguments, "sft": trl.SFTConfig, "dpo": trl.DPOConfig, "kto": trl.KTOConfig}
    out = {}
    for name, cls in classes.items():
        out[name] = json.loads(cls(output_dir="out", use_cpu=True, bf16=False).to_json_string())
        out[name] |= {"logging_dir": None, "bf16": name != "trainer", "use_cpu": False}
    return out


def is_known(trireme, tool, name):
    """As a user's file has it. A verdict may be that it cannot be had: then the exit status is 2, and the report says so."""
    marks = {"output_dir": "o", "per_device_train_batch_size": 1} | ({"dataset_name": "d", "model_name_or_path": "m"} if tool == "trl" else {})
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d, "args.json")
        path.write_text(json.dumps(marks | {name: 1}))
        out = subprocess.run([trireme, "config", "import", "--from", tool, str(path), "--json"], capture_output=True, text=True)
    report = json.loads(out.stdout) if out.stdout.startswith("{") else None
    return report is not None and name not in json.dumps(report.get("unknown", []))


def main():
    warnings.filterwarnings("ignore")
    try:
        rows, versions = walk()
    except ImportError as missing:
        print("skipped:", missing)
        return 77
    text = f"# Fields of TrainingArguments (hf), and of SFTConfig, DPOConfig and KTOConfig (trl); {versions}\n"
    lines = [" ".join(row) for row in rows]
    if "--write" in sys.argv:
        RECORD.write_text(text + "\n".join(lines) + "\n")
        DUMPS.write_text(json.dumps(dumps(), indent=0, sort_keys=True) + "\n")
        return 0
    have = [line for line in RECORD.read_text().splitlines() if not line.startswith("#")]
    for line in sorted(set(have) ^ set(lines)):
        print("not recorded:" if line in lines else "gone:", line)
    unknown = [row for row in rows if sys.argv[1:] and not is_known(sys.argv[1], *row)]
    for row in unknown:
        print("no verdict for", *row)
    print(f"{len(lines)} fields of {versions}")
    return 1 if unknown or set(have) != set(lines) else 0


if __name__ == "__main__":
    sys.exit(main())
