#!/usr/bin/env bash
# docs/guide/add-an-op.md is complete: what it says is done in a copy of the sources, which must then build, and the new op
# must pass the tests of ops. A block marked c goes where the sentence before it says.
. "$(dirname "$0")/common.sh"
[ -z "${TR_SANITIZED:-}" ] || exit 77 # release does it once
command -v cmake >/dev/null && command -v ninja >/dev/null || exit 77
mkdir tree
cp -r "$source_dir"/{src,share,tools,bench,CMakeLists.txt,CMakePresets.json} tree/
mkdir tree/tests
cp -r "$source_dir"/tests/ops tree/tests/
python3 "$source_dir/tests/cli/follow.py" "$source_dir/docs/guide/add-an-op.md" tree || fail "the page"
cd tree
cmake --preset debug -DCMAKE_C_FLAGS_DEBUG=-O1 >../cmake.log 2>&1 || { cat ../cmake.log; fail "cmake"; }
objects=()
for pass in rules tensor context grad fp8; do objects+=("CMakeFiles/tr_parallel.dir/src/parallel/$pass.c.o"); done
cmake --build --preset debug --target ops_rows ops_ops tr_model "${objects[@]}" >../build.log 2>&1 ||
    { tail -n 40 ../build.log; fail "the sources do not build after the edits"; }
build/debug/ops_rows >../rows.log 2>&1 || { cat ../rows.log; fail "the rows"; }
build/debug/ops_ops >../ops.log 2>&1 || { tail -n 40 ../ops.log; fail "the kernels"; }
