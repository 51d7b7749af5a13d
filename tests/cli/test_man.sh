#!/usr/bin/env bash
# The man pages come out of the option table, cover every verb of --help, and are clean for mandoc.
. "$(dirname "$0")/common.sh"
PATH=$(dirname "$TRIREME"):$PATH "$source_dir/tools/gen-man" man
verbs=$("$TRIREME" --help | sed -nE 's/^  ([a-z]+)  +.*/\1/p')
[ "$(wc -w <<<"$verbs")" -ge 8 ] || fail "found only these verbs: $verbs"
for verb in $verbs; do
    page=man/trireme-$verb.1
    [ -s "$page" ] || fail "no page for $verb"
    for option in $("$TRIREME" $verb --help | sed -nE 's/^  --([a-z_0-9]+).*/\1/p'); do
        grep -q "^.fB.*$option" "$page" || fail "$page does not know --$option"
    done
    if command -v mandoc >/dev/null; then # a page made from a table has no date
        ! mandoc -T lint -W warning "$page" | grep -v 'missing date' || fail "$page: mandoc complains"
    fi
done
