#!/usr/bin/env bash
# Makes h200/*.txt and the fat binaries: run it on a machine with an NVIDIA GPU, nvcc and Python 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=${1:?where to}
mkdir -p "$out"
timeout 120 python3 api.py >"$out/api.txt" || echo "api.py ended with $?" >>"$out/api.txt"
timeout 280 python3 checkpoint.py >"$out/checkpoint.txt" || echo "checkpoint.py ended with $?" >>"$out/checkpoint.txt"
nvcc -O2 -fatbin -no-compress -gencode arch=compute_75,code=compute_75 \
    -gencode arch=compute_90,code=sm_90 -o "$out/basic.fatbin" ../../../softgpu/kernels/basic.cu
nvcc -O2 -fatbin -gencode arch=compute_75,code=compute_75 -o "$out/compressed.fatbin" ../../../softgpu/kernels/basic.cu
