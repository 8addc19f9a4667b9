#!/usr/bin/env bash
# One pass over a real card: serve, doctor, and a few leases with PyTorch as holder.
#
#   bench/real_card.sh SUBLET OUT
#
# SUBLET is the binary; the transcript goes to OUT/real-card.txt. Needs python3 with torch. Starts
# and ends its own daemon and its own holders, in a directory of its own; takes about two minutes.
# (The card's own usage with no process on it is the driver's; it shows as bytes without a lease.)
set -u
sublet=$(realpath "$1")
out=$(realpath "$2")
here=$(mktemp -d)
export SUBLET_SOCKET=$here/s
exec > "$out/real-card.txt" 2>&1

say() { printf '\n## %s\n' "$*"; }
try() { printf '$ sublet %s\n' "$*"; "$sublet" "$@"; local code=$?; [ $code = 0 ] || echo "(exit $code)"; }
serve() {
    "$sublet" serve --state-dir "$here/state" --socket "$here/s" --gpu real 2>>"$here/log" &
    daemon=$!
    for _ in $(seq 100); do
        "$sublet" gpus 2>/dev/null | grep -q "in service" && return
        sleep 0.2
    done
    echo "the daemon did not get ready"
    cat "$here/log"
    exit 1
}
finish() {
    for pid in ${unleased:-} ${first:-} ${second:-} ${left:-} ${daemon:-}; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    rm -rf "$here"
}
trap finish EXIT

cat >"$here/hold.py" <<'PY'
"""Holds so many GiB and multiplies matrices for so many seconds."""
import os, sys, time
import torch
gib, seconds = float(sys.argv[1]), float(sys.argv[2])
held = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda")
print(f"holder: lease {os.environ.get('SUBLET_LEASE')}, card {os.environ.get('CUDA_VISIBLE_DEVICES')}, {gib} GiB", flush=True)
end = time.time() + seconds
while time.time() < end:
    a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
print("holder: done", flush=True)
PY
cat >"$here/idle.py" <<'PY'
"""CPU time and memory of the daemon and its worker over some seconds."""
import os, sys, time
tick = os.sysconf("SC_CLK_TCK")
def family(pid):
    kids = open(f"/proc/{pid}/task/{pid}/children").read().split()
    for task in os.listdir(f"/proc/{pid}/task"):
        kids += open(f"/proc/{pid}/task/{task}/children").read().split()
    return {pid} | {int(k) for k in kids}
def cpu(pids):
    fields = [open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split() for p in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / tick
pids = family(int(sys.argv[1])); before = cpu(pids); time.sleep(20); after = cpu(pids)
pss = sum(int(l.split()[1]) for p in pids for l in open(f"/proc/{p}/smaps_rollup") if l.startswith("Pss:"))
print(f"idle for 20 s: {(after - before) / 20 * 100:.3f} % of a core, {pss / 1024:.1f} MiB (daemon and worker, PSS)")
PY

say "the machine"
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv
uname -r

say "serve and doctor"
serve
sleep 8 # the context is measured once
try doctor
try
try gpus

say "what an idle daemon costs"
python3 "$here/idle.py" "$daemon"

say "two that do not fit together: the second waits, with the reason, and starts when the first ends"
"$sublet" run --vram 80G --name first -- python3 "$here/hold.py" 60 14 & first=$!
sleep 9
try ps
"$sublet" run --vram 70G --name second -- python3 "$here/hold.py" 4 4 & second=$!
sleep 2
try queue
try explain L2
try
wait $first; echo "first: exit $?"
wait $second; echo "second: exit $?"
first= second=
sleep 1
try usage --by lease

say "a process without a lease: its bytes are counted, and nothing happens to it"
python3 "$here/hold.py" 90 16 & unleased=$!
sleep 9
try
try run --vram 70G --no-wait -- true
wait $unleased; unleased=

say "a whole card, and the advice at the end"
try run -- python3 "$here/hold.py" 7 3

say "the wrapper is killed: its child stays the holder, and the lease ends with it"
"$sublet" run --vram 20G --name orphan -- python3 "$here/hold.py" 10 14 & left=$!
sleep 8
kill -9 $left
sleep 2
try ps
say "the daemon is killed and comes back meanwhile: same lease, same fence, the holder never noticed"
kill -9 $daemon; wait $daemon 2>/dev/null
serve
sleep 2
try ps
sleep 8
try ps
try audit --lease L5
left=

say "the journal"
kill $daemon; wait $daemon 2>/dev/null; daemon=
try journal verify --state-dir "$here/state"
echo; echo "the daemon's log:"; cat "$here/log"
