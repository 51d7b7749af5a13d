#!/usr/bin/env bash
# Modules: where they are looked for, what is said of one that is missing or does not fit, and that one which fits is used. The module here
# is a CUDA device of a few lines; in a CUDA build the real one is opened too, with every function bound.
. "$(dirname "$0")/common.sh"
unset RANK WORLD_SIZE
tiny_text train.jsonl
tiny_model model
mkdir -p here/bin there
cp "$TRIREME" here/bin/trireme # a copied binary, without modules
options=(--model model --data train.jsonl --sequence_length 32 --train_batch_size 2 --max_steps 1 --threads 1 --quiet)
try() { expect "$1" here/bin/trireme train --device "$2" "${options[@]}" --output "out-$2"; }
says() { grep -qF "$1" stderr || fail "not said: $1: $(cat stderr)"; }

try 2 cuda
says "device cuda: libtrireme_cuda.so is neither beside the program nor in $PWD/here/bin/../lib"
says "install the package trireme-cuda of this release, or build the module where nvcc is (cmake --preset cuda); or use --device cpu"
[ ! -e out-cuda ] || fail "something was written"
export TRIREME_MODULES=$PWD/there
try 2 cuda
says "libtrireme_cuda.so is not in $PWD/there, and neither beside the program"
unset TRIREME_MODULES
try 0 auto
[ ! -s stderr ] || fail "auto complains: $(cat stderr)"
cp out-auto/model.safetensors cpu.safetensors

echo "no module" >here/bin/libtrireme_cuda.so
try 2 cuda
says "here/bin/libtrireme_cuda.so: "
says "file too short"
rm -rf out-auto
try 0 auto
[ ! -s stderr ] || fail "auto complains: $(cat stderr)"

command -v cc >/dev/null || exit 0
stamp=$("$TRIREME" --version | sed -n 's/^modules //p')
[ -n "$stamp" ] || fail "--version has no stamp: $("$TRIREME" --version)"
module() { # DIR STAMP: a device that refuses to open, by a function of the program
    cat >module.c <<C
#include "device/device.h"
const char *tr_module_stamp(void) { return "$2"; }
static bool is_present(void) { return true; }
static enum tr_status refuse(struct tr_device *d) { (void)d; return tr_fail(TR_USAGE, "this device is made of paper"); }
static void leave(struct tr_device *d) { (void)d; }
const struct tr_device_row tr_device_row_of_module = { .name = "cuda", .is_offered = true, .is_present = is_present, .open = refuse, .close = leave };
C
    cc -std=c11 -D_GNU_SOURCE -shared -fPIC -I"$source_dir/src" $(pkg-config --cflags libcjson) -o "$1/libtrireme_cuda.so" module.c
}
module here/bin "0.0.1 0123456789abcdef"
try 2 cuda
says "here/bin/libtrireme_cuda.so comes from another build (0.0.1 0123456789abcdef; this program is $stamp); install both from one release, or build both again"
rm -rf out-auto
try 0 auto
[ ! -s stderr ] || fail "auto complains: $(cat stderr)"
same cpu.safetensors out-auto/model.safetensors
module there "$stamp" # it wins over the one beside the program
TRIREME_MODULES=$PWD/there try 2 cuda
says "this device is made of paper"
rm here/bin/libtrireme_cuda.so
mkdir -p here/lib/trireme
cp there/libtrireme_cuda.so here/lib/trireme/
try 2 cuda
says "this device is made of paper"
expect 0 here/bin/trireme doctor
grep -q "^GPU module  *$PWD/here/bin/../lib/trireme/libtrireme_cuda.so" stdout || fail "$(cat stdout)"

module=$(dirname "$TRIREME")/libtrireme_cuda.so
[ -e "$module" ] || exit 0
LD_BIND_NOW=1 "$TRIREME" --version | grep -q '^columns cuda cpu' || fail "the CUDA module does not open: $(LD_BIND_NOW=1 "$TRIREME" doctor)"
expect 2 env CUDA_VISIBLE_DEVICES= "$TRIREME" train --device cuda "${options[@]}" --output out-none
says "device cuda: "
says "use --device cpu"
