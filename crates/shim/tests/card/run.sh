#!/usr/bin/env bash
# On a machine with an NVIDIA card: programs nobody changed, undisturbed and parked at random moments.
#   run.sh SHIM OUT
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
shim=$1 out=$2
mkdir -p "$out"
try() { # name, parks, seconds between parks, seconds before the first, command
    local name=$1 parks=$2 pause=$3 begin=$4
    shift 4
    echo "== $name"
    timeout 150 "$@" 2>"$out/$name.alone.err" | tee "$out/$name.alone.txt"
    timeout 200 python3 harness.py --shim "$shim" --parks "$parks" --pause "$pause" --begin "$begin" -- "$@" \
        >"$out/$name.parked.txt" 2>"$out/$name.parked.err"
    cat "$out/$name.parked.txt"
    tail -3 "$out/$name.parked.err"
    if [ "$(grep ^trail "$out/$name.alone.txt")" = "$(grep ^trail "$out/$name.parked.txt")" ]; then
        echo "$name: the same"
    else
        echo "$name: NOT the same"
    fi
}
wanted=${3:-all}
if [ "$wanted" = all ] || [ "$wanted" = short ]; then
    try torch "${PARKS:-60}" 0.05 6 python3 torch_train.py --steps 3000
    try graph "${PARKS:-60}" 0.05 8 python3 torch_train.py --steps 3000 --graph
    try cupy "${PARKS:-60}" 0.05 4 python3 cupy_job.py
    try jax "${PARKS:-60}" 0.05 8 python3 jax_job.py
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True try expandable "${PARKS:-60}" 0.05 6 python3 torch_train.py --steps 3000
    PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync try async "${PARKS:-60}" 0.05 6 python3 torch_train.py --steps 3000
    try ballast 6 1.0 12 python3 torch_train.py --steps 6000 --ballast 32
fi
