#!/usr/bin/env bash
# On a machine with an NVIDIA card: PyTorch bound by launches with the shim and without it, in turns, each program on the
# same core: from one core to the next, and from one process to the next, the rate differs by more than the shim costs.
#   pairs.sh DIST OUT [PAIRS]     DIST has sublet and libsublet_shim.so
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dist=$(cd "$1" && pwd) out=$2
mkdir -p "$out"
work=$(mktemp -d)
export SUBLET_SOCKET=$work/s
"$dist/sublet" serve --state-dir "$work/state" --socket "$work/s" --gpu real --config /dev/null 2>"$out/pairs-serve.log" &
serve=$!
for _ in $(seq 100); do "$dist/sublet" cards >/dev/null 2>&1 && break; sleep 0.1; done
sleep 3
one() { # with or without
    local flag=
    [ "$1" = without ] && flag=--no-shim
    echo "$1 $(timeout 60 "$dist/sublet" run --vram 8G $flag -- taskset -c 3 python3 "$here/launch_job.py" --windows 12 2>/dev/null)"
}
for pair in $(seq "${3:-40}"); do
    # Each goes first as often as the other.
    if [ $((pair % 2)) = 0 ]; then one with; one without; else one without; one with; fi
done >"$out/pairs.txt"
python3 - "$out/pairs.txt" <<'P'
import json, random, statistics, sys
rows = {"with": [], "without": []}
for line in open(sys.argv[1]):
    kind, text = line.split(" ", 1)
    rows[kind].append(json.loads(text))
chance = random.Random(1)
for name in ("median", "best"):
    ratios = [a[name] / b[name] for a, b in zip(rows["with"], rows["without"])]
    again = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(4000))
    middle = {kind: statistics.median(row[name] for row in rows[kind]) for kind in rows}
    print(json.dumps({"what": name + " of a process's windows", "pairs": len(ratios), "launches_with": round(middle["with"]),
                      "launches_without": round(middle["without"]), "ratio_of_medians": round(middle["with"] / middle["without"], 4),
                      "median_of_ratios": round(statistics.median(ratios), 4),
                      "95_percent": [round(again[100], 4), round(again[-101], 4)], "ratios": [round(r, 3) for r in sorted(ratios)]}))
P
kill $serve
wait $serve
rm -rf "$work"
