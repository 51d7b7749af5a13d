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
# What bash completes, with its words broken where bash breaks them.
mkdir 'a model'
"$TRIREME" config completion bash >words.bash
cat >ask.bash <<'ASK'
. ./words.bash
ask() { # WORDS...: as bash calls the function
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _trireme
    printf '%s\n' "${COMPREPLY[@]}"
}
is() { # EXPECTED WORDS...
    local want=$1
    shift
    [ "$(ask "$@" | paste -sd, -)" = "$want" ] || { echo "$*: $(ask "$@" | paste -sd, -), want $want"; exit 1; }
}
is train trireme tr
is train trireme launch --nproc-per-node 2 tr
is --learning_rate trireme launch train --learning_ra
is reverse_kl,forward_kl,js_divergence,alpha_divergence trireme train --f_divergence_type =
is forward_kl trireme train --f_divergence_type = f
is q8_0 trireme ckpt export x --to gguf : q8
is f16,bf16,q8_0,q4_0,q4_k_m,q6_k trireme ckpt export x --to gguf :
is double trireme ckpt export x --to bnb-4bit : nf4 : d
is 'a model' trireme train --model 'a m'
ASK
bash ask.bash || fail "see above"
# And what zsh does, after a space and after '='.
if command -v zsh >/dev/null; then
    mkdir functions && "$TRIREME" config completion zsh >functions/_trireme
    for typed in 'trireme train --f_divergence_type f' 'trireme train --f_divergence_type=f' 'trireme ctl out pau'; do
        cat >ask.zsh <<'ASK'
zmodload zsh/zpty
zpty shell 'TERM=dumb zsh -f'
zpty -w shell 'fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; PS1=ready; stty -echo'
zpty -r shell before '*ready*ready*'
zpty -w -n shell "$1"$'\t'
for i in {1..100}; do
    while zpty -r -t shell piece; do said+=$piece; done
    [[ $said == *forward_kl* || $said == *pause* ]] && exit 0
    sleep 0.1
done
print -r -- "$said"
exit 1
ASK
        timeout 60 zsh -f ask.zsh "$typed" >log 2>&1 </dev/null || fail "zsh: $typed: $(cat log)"
    done
fi
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
