#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, in five minutes at most: what the shim costs calls and launches, measured within one
# process; how long the gate takes to close, also where graphs are captured all the time; and, with a folder that has
# sublet and libsublet_shim.so, a holder that leaves its GPU altogether though it took more since it was booked.
#   settle.sh SHIM OUT [DIST]     SHIM: libsublet_shim.so
# Each measurement is one line of JSON, and one row of a table if it is of pairs; all of them are in OUT/settle.txt.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shim=$(realpath "$1") out=$(mkdir -p "$2" && realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -shared -fPIC "$here/both.c" -o "$work/both.so" && cc -O2 "$here/alternate.c" -ldl -o "$work/alternate" || exit 1
both() { # preload, seconds, what, command: in turns through the shim and straight to the driver
    local preload=$1 limit=$2 name=$3
    shift 3
    timeout "$limit" python3 "$here/harness.py" --shim "$preload" --parks 0 -- "$@" 2>"$out/settle.err" |
        grep -v '^{' >"$work/pairs"
    cp "$work/pairs" "$out/settle-${name%% *}.txt"
    python3 "$here/settle.py" "$name" <"$work/pairs" || tail -3 "$out/settle.err"
}
parked() { # seconds, what, command: parked at random moments
    local limit=$1 name=$2
    shift 2
    timeout "$limit" python3 "$here/harness.py" --shim "$shim" --parks "${PARKS:-100}" --pause 0.05 -- "$@" 2>"$out/settle.err" |
        grep '^{' | sed "s/^{/{\"what\": \"parked: $name\", /"
    [ "${PIPESTATUS[0]}" = 0 ] || tail -3 "$out/settle.err"
}
core=$((($(nproc) - 1) < 3 ? $(nproc) - 1 : 3))
{
    # Nobody listens to a process without the shim, so the control runs by itself.
    LD_PRELOAD=$work/both.so timeout 30 taskset -c "$core" "$work/alternate" control "${PAIRS:-200}" |
        python3 "$here/settle.py" "control: no shim, both ways the driver's, a launch"
    both "$work/both.so:$shim" 30 "fill of nothing, in C" taskset -c "$core" "$work/alternate" fill "${PAIRS:-200}" "${CALLS:-100000}"
    both "$work/both.so:$shim" 30 "launch of nothing, in C" taskset -c "$core" "$work/alternate" launch "${PAIRS:-400}"
    if python3 -c 'import torch' 2>/dev/null; then
        both "$work/both.so:$shim" 60 "add of 64 numbers, PyTorch" taskset -c "$core" python3 "$here/alternate.py" add "${PAIRS:-400}"
        both "$work/both.so:$shim" 60 "training bound by launches, PyTorch" python3 "$here/alternate.py" train "${PAIRS:-400}"
        parked 45 "a step" python3 "$here/torch_train.py" --steps 1500
        parked 45 "graphs, captured once" python3 "$here/torch_train.py" --steps 2500 --graph
        parked 60 "graphs, captured every step" python3 "$here/torch_train.py" --steps 1200 --recapture
    else
        echo '{"what": "PyTorch is not here: the rest is not measured"}'
    fi
    if [ -n "${3:-}" ]; then
        timeout 60 python3 "$here/../../../daemon/tests/card/deep.py" "$3" "$out" exit
    fi
} 2>&1 | tee "$out/settle.txt"
