#!/usr/bin/env bash
# Every command in the documents works: blocks fenced as sh in README.md and docs/guide run, in order, one directory a page,
# as if in the root of a clone with trireme in the path. And every relative link leads somewhere.
. "$(dirname "$0")/common.sh"
PATH=$(dirname "$TRIREME"):$PATH
n=0
for page in "$source_dir"/README.md "$source_dir"/docs/guide/*.md; do
    name=$(basename "$page" .md)
    mkdir "$name"
    ln -s "$source_dir/examples" "$source_dir/bench" "$source_dir/python" "$name/"
    awk '/^```/ { inside = !inside && $0 == "```sh"; next } inside' "$page" >"$name.sh"
    if grep -qE '^    trireme ' "$page"; then fail "$page: put commands into a block marked sh, so that they are run"; fi
    [ -s "$name.sh" ] || continue
    (cd "$name" && bash -euo pipefail -x ../"$name.sh" >../"$name.log" 2>&1) || {
        tail -n 20 "$name.log"
        fail "$page: the last command above"
    }
    n=$((n + $(grep -c '^trireme ' "$name.sh")))
done
echo "$n commands ran"

cd "$source_dir"
for page in README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/*/*.md; do
    for link in $(grep -oE '\]\([^)#:]+\)' "$page" | tr -d '])(' || true); do
        [ -e "$(dirname "$page")/$link" ] || fail "$page: link to $link leads nowhere"
    done
done
