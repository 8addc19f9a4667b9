#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: unmodified programs, undisturbed and parked at random moments.
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
[ "${3:-all}" = all ] || return 0
parks=${PARKS:-200}
try torch "$parks" 0.05 0 python3 torch_train.py --steps 3000
try graph "$parks" 0.05 0 python3 torch_train.py --steps 5000 --graph
try cupy "$parks" 0.02 0 python3 cupy_job.py
# A twentieth of the GPU: all that it takes by itself would be two seconds each way.
XLA_PYTHON_CLIENT_MEM_FRACTION=0.05 try jax "$parks" 0.02 0 python3 jax_job.py
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True try expandable "$parks" 0.05 0 python3 torch_train.py --steps 3000
PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync try async "$parks" 0.05 0 python3 torch_train.py --steps 3000
try triton "$parks" 0.03 0 python3 triton_job.py
