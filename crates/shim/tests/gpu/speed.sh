#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: how fast a program that is bound by the GPU is with the shim and without it, in turns,
# under the service. What is bound by launches differs more from process to process: settle.sh measures that.
#   speed.sh DIST OUT [PAIRS]     DIST has sublet and libsublet_shim.so
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/serve.sh"
start "$1" "$2"
for pair in $(seq "${3:-8}"); do
    # Each goes first as often as the other.
    order=(with without)
    [ $((pair % 2)) = 0 ] && order=(without with)
    for kind in "${order[@]}"; do
        flag=$([ "$kind" = without ] && echo --no-shim)
        echo "$kind $(timeout 60 "$dist/sublet" run --vram 40G $flag -- python3 "$here/speed_job.py" 2>/dev/null)"
    done
done | tee "$out/speed.txt"
python3 - "$out/speed.txt" <<'P'
import json, statistics, sys
rows = {"with": [], "without": []}
for line in open(sys.argv[1]):
    kind, text = line.split(" ", 1)
    rows[kind].append(json.loads(text))
for name in rows["with"][0]:
    ratios = [a[name] / b[name] for a, b in zip(rows["with"], rows["without"])]
    print(json.dumps({"what": name, "pairs": len(ratios), "with": round(statistics.median(r[name] for r in rows["with"]), 1),
                      "without": round(statistics.median(r[name] for r in rows["without"]), 1),
                      "ratio_of_medians": round(statistics.median(r[name] for r in rows["with"]) / statistics.median(r[name] for r in rows["without"]), 4),
                      "median_of_ratios": round(statistics.median(ratios), 4), "ratios": [round(r, 3) for r in sorted(ratios)]}))
P
stop
