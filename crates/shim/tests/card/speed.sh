#!/usr/bin/env bash
# On a machine with an NVIDIA card: how fast programs are with the shim and without it, in turns, and how
# fast 32 GiB go out and in beside the ceiling of the same process.
#   speed.sh SHIM
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
shim=$1
for turn in 1 2 3; do
    echo "without $(timeout 60 python3 speed_job.py 2>/dev/null)"
    echo "with    $(LD_PRELOAD=$shim timeout 60 python3 speed_job.py 2>/dev/null)"
done
timeout 100 python3 harness.py --shim "$shim" --parks 8 --pause 0.3 --least 30000000000 --prepare "${PREPARE:-0}" -- \
    python3 ceiling.py 14 2>/dev/null
