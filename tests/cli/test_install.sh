#!/usr/bin/env bash
# cmake --install --prefix: every file lands under the prefix, and the installed program runs from there, its MPI module too.
. "$(dirname "$0")/common.sh"
build=$(dirname "$TRIREME")
[ -e "$build/cmake_install.cmake" ] || {
    echo "skipped: $build is no build tree"
    exit 77
}
expect 0 cmake --install "$build" --prefix "$PWD/there"
grep -E '^-- (Installing|Up-to-date): ' stdout >files || fail "nothing was installed: $(cat stdout)"
! grep -vF ": $PWD/there/" files >outside || fail "outside of the prefix: $(cat outside)"
mv there moved # nothing in it knows its path
expect 0 moved/bin/trireme --version
[ -e moved/share/trireme/machines ] || fail "no machines: $(find moved)"
for file in man/man1/trireme.1 man/man1/trireme-train.1 bash-completion/completions/trireme zsh/vendor-completions/_trireme \
    fish/vendor_completions.d/trireme.fish doc/trireme/LICENSE doc/trireme/examples/quickstart/run.yaml; do
    [ -s "moved/share/$file" ] || fail "no $file: $(find moved)"
done
moved/bin/trireme --version >version
grep -qxE 'commit ([0-9a-f]{40}|unknown)' version || fail "$(cat version)"
grep -q '^columns .*cpu reference' version || fail "$(cat version)"
grep -q '^libraries cJSON [0-9.]*, .*zstd [0-9.]*$' version || fail "$(cat version)"

# The quickstart that was installed, shorter, by a user whose home cannot be written.
mkdir short
cat >short/trireme <<'END'
#!/bin/sh
case $1 in train | plan) set -- "$@" --max_steps 2 --warmup_steps 0 ;; generate) set -- "$@" --max_new_tokens 2 ;; esac
exec "$INSTALLED" "$@" --threads 2
END
chmod +x short/trireme
INSTALLED=$PWD/moved/bin/trireme HOME=/proc/nowhere PATH=$PWD/short:$PATH expect 0 env -u XDG_CACHE_HOME moved/share/doc/trireme/examples/quickstart/run quick
[ -s quick/trained/model.safetensors ] && [ -d quick/.cache ] || fail "no model of the quickstart: $(cat stdout)"

[ -e "$build/libtrireme_mpich.so" ] || exit 0
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # what MPI libraries keep until the end is theirs
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
expect 0 timeout -k 1 60 moved/bin/trireme launch --nproc-per-node 2 train --model model --data train.jsonl --sequence_length 32 \
    --train_batch_size 8 --max_steps 2 --threads 1 --quiet --comm mpi --output out
mkdir modules
find moved -name 'libtrireme_*.so' -exec mv -t modules {} +
TRIREME_MODULES=$PWD/modules expect 0 timeout -k 1 60 moved/bin/trireme launch --nproc-per-node 2 train --model model --data train.jsonl --sequence_length 32 \
    --train_batch_size 8 --max_steps 1 --threads 1 --quiet --comm mpi --output named
expect 2 timeout -k 1 60 moved/bin/trireme launch --nproc-per-node 2 train --model model --data train.jsonl --sequence_length 32 \
    --train_batch_size 8 --max_steps 2 --threads 1 --quiet --comm mpi --output none
cat none/logs/*.log >>stderr 2>/dev/null || true
grep -q 'libtrireme_mpich.so is neither beside the program nor in ' stderr || fail "no reason: $(cat stderr)"
