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

# edits/N.{file,mode,anchor,text}
mkdir edits
awk '
    /^(In|At the end of) `[^`]*`/ {
        split($0, part, "`")
        file = part[2]; anchor = part[4]
        mode = /^At the end/ ? "end" : / before the line with / ? "before" : "after"
    }
    /^```/ {
        if (!inside && $0 == "```c") {
            n++
            print file >("edits/" n ".file"); print mode >("edits/" n ".mode"); print anchor >("edits/" n ".anchor")
            name = "edits/" n ".text"; inside = 1
        } else inside = 0
        next
    }
    inside { print >name }' "$source_dir/docs/guide/add-an-op.md"
n=$(ls edits/*.text | wc -l)
[ "$n" -ge 10 ] || fail "only $n edits were found on the page"
for i in $(seq "$n"); do
    file=tree/$(cat edits/$i.file) anchor=$(cat edits/$i.anchor) mode=$(cat edits/$i.mode)
    [ -f "$file" ] || fail "edit $i: $file is not there"
    if [ "$mode" = end ]; then
        cat edits/$i.text >>"$file"
        continue
    fi
    ANCHOR=$anchor awk -v mode="$mode" -v text=edits/$i.text '
        function put(line) { while ((getline line < text) > 0) print line }
        !done && index($0, ENVIRON["ANCHOR"]) { done = 1; if (mode == "before") put(); print; if (mode == "after") put(); next }
        { print }
        END { exit !done }' "$file" >edited || fail "edit $i: $file has no line with '$anchor'"
    mv edited "$file"
done

cd tree
cmake --preset debug -DCMAKE_C_FLAGS_DEBUG=-O1 >../cmake.log 2>&1 || { cat ../cmake.log; fail "cmake"; }
objects=()
for pass in rules tensor context grad fp8; do objects+=("CMakeFiles/tr_parallel.dir/src/parallel/$pass.c.o"); done
cmake --build --preset debug --target ops_rows ops_ops tr_model "${objects[@]}" >../build.log 2>&1 ||
    { tail -n 40 ../build.log; fail "the sources do not build after the edits"; }
build/debug/ops_rows >../rows.log 2>&1 || { cat ../rows.log; fail "the rows"; }
build/debug/ops_ops >../ops.log 2>&1 || { tail -n 40 ../ops.log; fail "the kernels"; }
echo "$n edits make an op"
