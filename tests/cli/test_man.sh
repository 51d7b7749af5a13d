#!/usr/bin/env bash
# The man pages come out of the option table, cover every verb of --help, and are clean for mandoc.
. "$(dirname "$0")/common.sh"
PATH=$(dirname "$TRIREME"):$PATH "$source_dir/tools/gen-man" man
verbs=$("$TRIREME" --help | sed -nE 's/^  ([a-z]+)  +.*/\1/p')
[ "$(wc -w <<<"$verbs")" -ge 8 ] || fail "found only these verbs: $verbs"
for verb in $verbs; do
    page=man/trireme-$verb.1
    [ -s "$page" ] || fail "no page for $verb"
    "$TRIREME" $verb --help | sed -nE 's/^  --([a-z_0-9]+).*/\1/p' | while read -r option; do
        sed 's/\\-/-/g; s/\\_/_/g' "$page" | grep -q -- "$option" || fail "$page does not know --$option"
    done
    if command -v mandoc >/dev/null; then
        mandoc -T lint -W warning "$page" || fail "$page: mandoc complains"
    fi
done
