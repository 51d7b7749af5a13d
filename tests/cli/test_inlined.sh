#!/usr/bin/env bash
# Kernels load, store and sum vectors without a call. Where gcc decides, it stops inlining when a file of kernels grows: a new
# kernel for generation made the training step 2 % slower.
. "$(dirname "$0")/common.sh"
command -v nm >/dev/null || exit 77
nm "$TRIREME" >symbols
grep -q ' [tT] tr_fast_layernorm_base$' symbols || exit 77 # stripped
called=$(grep -oE ' t v_(load|load_or|store|sum|sum_each)(\..*)?$' symbols | sort -u | tr -d '\n' || true)
[ -z "$called" ] || fail "functions of src/ops/cpu/simd.h that are called instead of inlined:$called"
