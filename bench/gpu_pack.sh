#!/usr/bin/env bash
# gpu_pack.sh [BUILD] - packs what bench/gpu.sh needs on a bare machine with a GPU into build/gpu-pack: the programs of a CUDA build
# (default build/cuda, of `cmake --preset cuda`) and the CUDA module beside them, stripped and compressed, the libraries they load that such a machine lacks, and the
# scripts of TR_PEERS (default ../shared/bench: limit.py, torch_train.py, torch_lean.py). At most 64 MiB together.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda} pack=build/gpu-pack peers=${TR_PEERS:-../shared/bench}
programs=(trireme ops_cuda ops_attention_blocks train_golden train_adapters train_packed train_strategies bench_gpu bench_gradients bench_attention)
rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/lib"
for p in "${programs[@]}"; do
    [ -x "$build/$p" ] || { echo "gpu_pack.sh: no $build/$p; build it with cmake --preset cuda && cmake --build $build"; exit 1; }
    strip -o "$pack/bin/$p" "$build/$p"
done
[ -e "$build/libtrireme_cuda.so" ] || { echo "gpu_pack.sh: no $build/libtrireme_cuda.so; is nvcc here?"; exit 1; }
strip --strip-unneeded -o "$pack/bin/libtrireme_cuda.so" "$build/libtrireme_cuda.so"
# What the loader finds here, less what every glibc system has.
ldd "$pack"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libgcc_s|libstdc\+\+)\.so' | while read -r so; do cp -L "$so" "$pack/lib/"; done
for f in limit.py torch_train.py torch_lean.py; do [ ! -e "$peers/$f" ] || cp "$peers/$f" "$pack/"; done
sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" >"$pack/source" # where the tests look for their data
tar -C "$pack" -cf - bin | xz -T0 --lzma2=preset=3,dict=256MiB >"$pack/bin.tar.xz"
rm -rf "${pack:?}/bin"
kib=$(du -sk "$pack" | cut -f1)
echo "$pack: $kib KiB: $(ls "$pack" "$pack/lib" | tr '\n' ' ')"
[ "$kib" -le 65536 ] || { echo "gpu_pack.sh: more than 64 MiB"; exit 1; }
