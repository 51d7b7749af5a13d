#!/usr/bin/env bash
# The man pages come out of the option table, cover every verb of --help, and are clean for mandoc.
. "$(dirname "$0")/common.sh"
PATH=$(dirname "$TRIREME"):$PATH "$source_dir/tools/gen-man" man
verbs=$("$TRIREME" --help | sed -nE 's/^  ([a-z]+)  +.*/\1/p')
[ "$(wc -w <<<"$verbs")" -ge 8 ] || fail "found only these verbs: $verbs"
for verb in $verbs; do
    grep -q "^.fB$verb.fR" man/trireme.1 || fail "trireme.1 does not know $verb"
    page=man/trireme-$verb.1
    [ -s "$page" ] || fail "no page for $verb"
    for option in $("$TRIREME" $verb --help | sed -nE 's/^  --([a-z_0-9]+).*/\1/p'); do
        grep -q "^.fB.*$option" "$page" || fail "$page does not know --$option"
    done
    if command -v mandoc >/dev/null; then # a page made from a table has no date
        ! mandoc -T lint -W warning "$page" | grep -v 'missing date' || fail "$page: mandoc complains"
    fi
done
if command -v mandoc >/dev/null; then
    ! mandoc -T lint -W warning man/trireme.1 | grep -v 'missing date' || fail "trireme.1: mandoc complains"
fi

# Debian's linter reads pages as man does, with its warnings: a list of choices is one word and longer than a line.
if command -v groff >/dev/null; then
    for page in man/*.1; do
        groff -man -Tutf8 -rLL=78n -ww -z "$page" >warnings 2>&1
        ! grep -v 'cannot select font' warnings | head -n 3 | grep . || fail "$page: groff complains"
    done
fi

# ---- completion: verbs, the words behind them, options, values; dashes and underscores ----
for shell in bash zsh fish; do
    expect 0 "$TRIREME" config completion $shell
    mv stdout complete.$shell
    if command -v $shell >/dev/null; then $shell -n complete.$shell || fail "$shell does not take its completion"; fi
done
expect 2 "$TRIREME" config completion csh
. ./complete.bash
complete_words() { # WORD...: what bash offers for the last one
    COMP_WORDS=(trireme "$@")
    COMP_CWORD=$#
    _trireme
    echo "${COMPREPLY[*]}"
}
[ "$(complete_words pla)" = plan ] || fail "verbs: $(complete_words pla)"
[ "$(complete_words ckpt exp)" = export ] || fail "words: $(complete_words ckpt exp)"
[ "$(complete_words ckpt export m --to gguf:q4)" = "gguf:q4_0 gguf:q4_k_m" ] || fail "values: $(complete_words ckpt export m --to gguf:q4)"
[ "$(complete_words train --lr-scheduler-type pol)" = polynomial ] || fail "dashes: $(complete_words train --lr-scheduler-type pol)"
[ "$(complete_words launch --nproc-per-node 2 train --max_gr)" = --max_grad_norm ] || fail "launch"
mkdir -p some/where
[ "$(complete_words train --output some/wh)" = some/where ] || fail "directories: $(complete_words train --output some/wh)"
if command -v fish >/dev/null; then
    fish -c 'source complete.fish; complete -C "trireme train --dtype bf"' >offered
    grep -q '^bf16' offered || fail "fish: values: $(cat offered)"
fi
