#!/usr/bin/env bash
# The example of examples/dpo, on a small model with random weights: pairs that it has not seen are told apart.
. "$(dirname "$0")/common.sh"
tiny_model model
export LENGTH=512 # a token is a byte here
sed -i 's/"max_position_embeddings": 128/"max_position_embeddings": 512/' model/config.json
STEPS=15 LEARNING_RATE=1e-2 "$source_dir/examples/dpo/run" model work >log 2>&1 || { tail -n 20 log; fail "examples/dpo/run"; }
grep -q '^held-out pairs: accuracy' log || fail "the example does not say what it measured"
STEPS=1 LEARNING_RATE=1e-30 "$source_dir/examples/dpo/run" model work >log 2>&1 && fail "a model that learnt nothing tells pairs apart"
grep -q '^held-out pairs: accuracy 0' log || { tail -n 20 log; fail "examples/dpo/run without learning"; }
