#!/usr/bin/env bash
# docs/guide/add-a-device.md, followed literally: each block of C stands, line by line and in order, in the file that is named above it;
# and the device that these lines make trains the golden models.
. "$(dirname "$0")/common.sh"
python3 - "$source_dir" <<'PY' || fail "docs/guide/add-a-device.md is not what the sources say"
import re, sys
root = sys.argv[1]
page = open(f"{root}/docs/guide/add-a-device.md").read()
blocks = re.findall(r"^`(\S+)`:\n\n```c\n(.*?)```", page, re.M | re.S)
assert len(blocks) == page.count("```c\n") == 6, f"{len(blocks)} of {page.count('```c')} blocks name a file"
for path, block in blocks:
    if block not in open(f"{root}/{path}").read():
        sys.exit(f"{path} does not hold:\n{block}")
PY
golden=$(dirname "$TRIREME")/train_golden
[ -x "$golden" ] || exit 77 # built without cmocka
TR_TEST_DEVICE=threads "$golden" >stdout 2>&1 || fail "training on the device threads: $(tail -n 20 stdout)"
