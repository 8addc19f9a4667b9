#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: two programs of 40 GiB each take turns on 60 GiB of it, under the service.
#   turns.sh DIST OUT     DIST has sublet and libsublet_shim.so
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/serve.sh"
total=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)
cat > "$work/sublet.toml" <<T
ttl = "8s"
renewal_cap = "12s"
grace = "2s"
margin = "$((total - 60 * 1024))M"
[parking]
ram = "90G"
keep_free = "6G"
ready = "off"
T
start "$1" "$2" "$work/sublet.toml"
"$dist/sublet" doctor >"$out/doctor.txt" 2>&1
"$dist/sublet" gpus
job=(python3 "$here/torch_train.py" --ballast 36 --steps "${STEPS:-4000}")
begun=$(date +%s.%N)
timeout 120 "${job[@]}" >"$out/alone.txt" 2>"$out/alone.err"
echo "alone: $(python3 -c "import time; print(round(time.time() - $begun, 2))") s, $(cat "$out/alone.txt")"
begun=$(date +%s.%N)
for n in 1 2; do
    timeout 280 "$dist/sublet" run --vram 40G --name "train$n" -- "${job[@]}" >"$out/turn$n.txt" 2>"$out/turn$n.err" &
    pids[$n]=$!
done
for _ in 1 2 3 4 5 6; do
    sleep 7
    "$dist/sublet" ps
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader
done 2>&1 | tee "$out/during.txt"
for n in 1 2; do wait "${pids[$n]}"; echo "turn$n: exit $?, $(cat "$out/turn$n.txt")"; done
echo "both: $(python3 -c "import time; print(round(time.time() - $begun, 2))") s"
# By hand, with an idle program.
"$dist/sublet" run --vram 40G --name idle -- "$dist/sublet-example-hold" 32GiB --idle >"$out/hold.txt" 2>"$out/hold.err" &
hold=$!
sleep 8
id=$("$dist/sublet" ps --json | python3 -c 'import json,sys; print(json.load(sys.stdin)["leases"][0]["id"])')
for _ in 1 2 3; do
    for verb in park resume; do
        begun=$(date +%s.%N)
        "$dist/sublet" $verb "$id"
        echo "$verb took $(python3 -c "import time; print(round(time.time() - $begun, 2))") s"
        "$dist/sublet" ps | tail -1
    done
done
pkill -TERM -P $hold
wait $hold
echo "hold: exit $?, $(tail -1 "$out/hold.txt")"
"$dist/sublet" audit >"$out/audit.txt"
grep -c ' parked ' "$out/audit.txt"
"$dist/sublet" usage
stop
