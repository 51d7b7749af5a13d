#!/usr/bin/env python3
"""schemas.py - the keys that axolotl, LLaMA-Factory, DeepSpeed and accelerate define, read from their sources.

    schemas.py DIR [DIR ...]     compares schemas.txt with the unpacked source archives; exit 1 and the difference
    schemas.py --write DIR ...   writes schemas.txt anew

A class with annotated fields is a section; a field whose type is such a class has the fields below it. Nothing is imported:
the sources are parsed. tests/import/test_import.c wants a verdict for every line of schemas.txt.
"""
import ast
import pathlib
import re
import sys

RECORD = pathlib.Path(__file__).parent / "schemas.txt"
# tool, files, and the sections: class pattern and the key it stands under
TOOLS = [
    ("axolotl", ["src/axolotl/utils/schemas/*.py", "src/axolotl/integrations/*/args.py"],
     [(r"AxolotlInputConfig", ""), (r".*Args", "")]),
    ("llamafactory", ["src/llamafactory/hparams/*.py"], [(r".*Arguments", "")]),
    ("deepspeed", ["deepspeed/runtime/**/*.py", "deepspeed/monitor/config.py", "deepspeed/comm/config.py", "deepspeed/profiling/config.py"],
     [("DeepSpeedZeroConfig", "zero_optimization."), ("DeepSpeedFP16Config", "fp16."), ("DeepSpeedBF16Config", "bf16."),
      ("CompileConfig", "compile."), ("DeepSpeedFlopsProfilerConfig", "flops_profiler."), ("TensorBoardConfig", "tensorboard."),
      ("WandbConfig", "wandb."), ("CSVConfig", "csv_monitor."), ("CometConfig", "comet."), ("TPTrainingConfig", "tensor_parallel."),
      ("HybridEngineConfig", "hybrid_engine.")]),
    ("accelerate", ["src/accelerate/commands/config/config_args.py"], [(r"BaseConfig", ""), (r"ClusterConfig", "")]),
]


def classes(paths):
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                rows = [b for b in node.body if isinstance(b, ast.AnnAssign) and isinstance(b.target, ast.Name)]
                found[node.name] = ([getattr(b, "id", getattr(b, "attr", "")) for b in node.bases],
                                    {b.target.id: (ast.unparse(b.annotation), alias(b.value)) for b in rows})
    return found


def alias(value):
    """The name that a field of pydantic has in a file."""
    for kw in value.keywords if isinstance(value, ast.Call) else []:
        if kw.arg == "alias" and isinstance(kw.value, ast.Constant):
            return kw.value.value
    return None


def fields(found, name):
    if name not in found:
        return {}
    bases, own = found[name]
    out = {}
    for base in bases:
        out |= fields(found, base)
    return out | own


def walk(found, cls, prefix, depth=0):
    for name, (kind, other) in fields(found, cls).items():
        key = prefix + (other or name)
        inner = [c for c in re.findall(r"\b[A-Z]\w+", kind) if fields(found, c)]
        if name.startswith("_") or name == "model_config":
            continue
        if not inner or "dict" in kind.lower() or depth > 2:
            yield key
        for c in inner if depth < 3 else []:
            yield from walk(found, c, key + ("[]." if re.search(r"\b[lL]ist\[|conlist|Sequence\[", kind) else "."), depth + 1)


def main():
    dirs = [pathlib.Path(a) for a in sys.argv[1:] if a != "--write"]
    lines, versions = [], []
    for tool, patterns, sections in TOOLS:
        root = next((d for d in dirs if d.name.startswith(tool)), None)
        if root is None:
            print(f"no directory of {tool}")
            return 2
        versions.append(root.name)
        found = classes([p for pattern in patterns for p in sorted(root.glob(pattern))])
        for pattern, prefix in sections:
            for cls in found:
                if re.fullmatch(pattern, cls):
                    lines += [f"{tool} {key}" for key in walk(found, cls, prefix)]
    lines = list(dict.fromkeys(lines))
    if "--write" in sys.argv:
        RECORD.write_text(f"# Keys that the sources define; {', '.join(versions)}\n" + "\n".join(lines) + "\n")
        return 0
    have = [line for line in RECORD.read_text().splitlines() if not line.startswith("#")]
    for line in sorted(set(have) ^ set(lines)):
        print("not recorded:" if line in lines else "gone:", line)
    print(f"{len(lines)} keys of {', '.join(versions)}")
    return 1 if set(have) != set(lines) else 0


if __name__ == "__main__":
    sys.exit(main())
