#!/usr/bin/env bash
# docs/architecture.md shows the pass tables, the action table and the rooms as the sources have them; docs/glossary.md has
# each term once; every path that a page names is there. A table that differs is printed as it should be; with UPDATE=1 it is
# written into the page.
. "$(dirname "$0")/common.sh"
tables=$(dirname "$TRIREME")/parallel_tables
[ -x "$tables" ] || exit 77 # no cmocka
"$tables" print >tables.txt
check() { python3 "$source_dir/tests/cli/architecture.py" "$@"; }
if [ -n "${UPDATE:-}" ]; then
    check "$source_dir" tables.txt update || fail "the rest by hand"
fi
check "$source_dir" tables.txt || fail "the pages and the sources differ"

# Planted differences are found: a lost action, an unknown room, terms out of order, a file that is gone.
mkdir planted
cp -r "$source_dir"/{docs,CMakeLists.txt} planted/
ln -s "$source_dir"/{src,bench,share,tools,tests,examples,README.md,CONTRIBUTING.md} planted/
check planted tables.txt || fail "the copy"
grep -v ' tree-add ' tables.txt >fewer.txt
if check planted fewer.txt 2>/dev/null; then fail "an action that is gone was not missed"; fi
plant() { # FILE, sed script, what
    cp "planted/$1" kept
    sed -i "$2" "planted/$1"
    if cmp -s kept "planted/$1"; then fail "$3: nothing was planted"; fi
    if check planted tables.txt 2>/dev/null; then fail "$3 was not seen"; fi
    cp kept "planted/$1"
}
plant CMakeLists.txt '/^tr_room(mesh /i tr_room(sea base)' "a new room"
plant docs/glossary.md '/^| \*\*bucket\*\*/{h;d};/^| \*\*drain\*\*/{G}' "a term out of order"
plant docs/glossary.md '/^| \*\*bucket\*\*/p' "a term that is there twice"
plant docs/glossary.md 's#src/parallel/bucket.c#src/parallel/barrel.c#' "a file that is gone"
