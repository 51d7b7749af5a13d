#!/usr/bin/env bash
# bench_forecast predicts a file of published results: an object for each row, then the totals. The product has no such option
# and says where it went.
. "$(dirname "$0")/common.sh"
bench=$(dirname "$TRIREME")/bench_forecast
cases=$source_dir/tests/forecast/unseen.csv

expect 0 "$bench" --cases "$cases" --json
python3 - "$cases" <<'PY' || fail "not an object for each row and one of totals"
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
*each, total = [json.loads(line) for line in open("stdout")]
assert [r["id"] for r in rows] == [r["id"] for r in each]
for r in each:
    assert ("reason" in r) == (r["predicted"] is None), r
assert total["rows"] == len(rows) and total["predicted"] == sum(r["predicted"] is not None for r in each), total
assert total["throughput"]["rows"] + total["memory"]["rows"] == len(rows) and total["sources"], total
PY
expect 0 "$bench" --cases "$cases"
grep -q 'throughput$' stdout || fail "no table of errors"
expect 2 "$bench" --cases no-such.csv
[ "$(wc -l <stderr)" = 1 ] || fail "a missing file is not answered in one line: $(cat stderr)"
expect 2 "$bench"

expect 2 "$TRIREME" plan --cases "$cases" --model x
grep -q bench_forecast stderr && [ "$(wc -l <stderr)" = 1 ] || fail "plan --cases does not name bench_forecast: $(cat stderr)"
