#!/usr/bin/env bash
# docs/guide/faults.md: every case of groups A-E, H, I and S stands there once, with a test that exists or a reason why not.
cd "$(dirname "$0")/../.."
python3 - docs/guide/faults.md <<'PY'
import os, re, sys
cases = {"A": 25, "B": 18, "C": 21, "D": 10, "E": 7, "H": 15}
rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in open(sys.argv[1]) if re.match(r"\| [A-IS]\d+ \|", line)]
for group in "IS":  # these grow, without gaps
    cases[group] = sum(row[0][0] == group for row in rows)
want = [f"{group}{i}" for group, n in cases.items() for i in range(1, n + 1)]
wrong = [f"{row[0]}: {len(row)} cells, want 3" for row in rows if len(row) != 3]
got = [row[0] for row in rows]
wrong += [f"{name}: {got.count(name)} rows, want 1" for name in want if got.count(name) != 1]
wrong += [f"{name}: no such case" for name in got if name not in want]
for name, _, test in (row for row in rows if len(row) == 3):
    files = re.findall(r"tests/[\w/.]+", test)
    wrong += [f"{name}: {f} does not exist" for f in files if not os.path.isfile(f)]
    if not files and not re.match(r"no test: \w", test):
        wrong.append(f"{name}: names no test and no reason")
print("\n".join(wrong) or f"{len(rows)} cases, {sum('no test' in row[2] for row in rows)} without a test")
sys.exit(bool(wrong))
PY
