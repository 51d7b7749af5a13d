#!/usr/bin/env python3
"""Writes docs/guide/plan-accuracy.md from `trireme plan --cases FILE.csv --json`.

    bench/plan_accuracy.py TRIREME CASES.csv > docs/guide/plan-accuracy.md
"""
import json
import subprocess
import sys

HEAD = """# How good the forecasts are

Published results beside what `trireme plan --cases FILE.csv --json` says of them; made by `bench/plan_accuracy.py`. A row of the
file is one number (step time, tokens/s, MFU, TFLOP/s, memory) of one run of one trainer on one cluster. Constants belong to chips,
clusters and trainers (`src/plan/machines.c`, `src/plan/impls.c`), never to a row; `bench_plan` fits them, and `bench_plan FILE --hold-out`
fits half of the sources and tests the other half.

Errors are |predicted - published| / published in percent.

| source | rows | predicted | mean | p90 | worst |
|---|---|---|---|---|---|
"""


def family(source):
    if "BigScience" in source:
        return "BigScience tr11 (BLOOM), all tables"
    for word in ("Megatron-Bridge performance summary", "torchtitan", "MosaicML llm-foundry benchmarking README"):
        if word in source and word != "torchtitan":
            return source
    return source


def line(name, errors, rows):
    errors = sorted(errors)
    n = len(errors)
    mean = sum(errors) / n if n else 0
    p90 = errors[(9 * n + 9) // 10 - 1] if n else 0
    worst = errors[-1] if n else 0
    return f"| {name} | {rows} | {n} | {mean:.1f} | {p90:.1f} | {worst:.1f} |"


def main():
    trireme, cases = sys.argv[1:3]
    import csv

    source = {r["id"]: r["source"] for r in csv.DictReader(open(cases, newline=""))}
    out = subprocess.run([trireme, "plan", "--cases", cases, "--json"], capture_output=True, text=True, check=True)
    lines = out.stdout.strip().split("\n")
    rows = [json.loads(x) for x in lines[:-1]]
    total = json.loads(lines[-1])
    groups = {}
    for r in rows:
        g = groups.setdefault(family(source[r["id"]]), [0, [], []])
        g[0] += 1
        if r["predicted"] is None:
            g[2].append(r)
        else:
            g[1].append(r["error_pct"])
    print(HEAD, end="")
    for name, key in (("**all**", None), ("**throughput rows**", "throughput"), ("**memory rows**", "memory")):
        t = total if key is None else total[key]
        print(f"| {name} | {t['rows']} | {t['predicted']} | {t['mean_abs_error_pct']:.1f} | "
              f"{t['p90_abs_error_pct']:.1f} | {t['worst_abs_error_pct']:.1f} |")
    for name, (n, errors, _) in groups.items():
        print(line(name.replace("|", "/"), errors, n))
    print("\n## Not predicted\n")
    for name, (_, _, missing) in groups.items():
        for r in missing:
            print(f"- `{r['id']}`: {r['reason']}")


main()
