"""Holds so many GiB with PyTorch; for each line that it reads it runs one kernel and says how long that took."""

import json
import sys
import time

import torch

held = torch.zeros(int(sys.argv[1]) << 28, device="cuda")
torch.cuda.synchronize()
for line in sys.stdin:
    if line.strip() == "end":
        break
    begun = time.perf_counter()
    held += 1
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    print(json.dumps({"to_first_kernel_s": round(first, 4), "value": float(held[-1])}), flush=True)
