"""Holds a tensor of a given size and sums it on the GPU: at each line of its input, or with --loop all the time."""

import sys

import torch

gib = float(sys.argv[1])
tensor = torch.ones(int(gib * (1 << 30)) // 4, dtype=torch.float32, device="cuda")
torch.cuda.synchronize()
print(f"holds {gib:g} GiB", flush=True)
while "--loop" in sys.argv:
    tensor.sum(dtype=torch.float64).item()
for _ in sys.stdin:
    print(f"sum {int(tensor.sum(dtype=torch.float64))} of {tensor.numel()}", flush=True)
