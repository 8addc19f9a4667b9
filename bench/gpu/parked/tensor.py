"""Holds a tensor of a given size and answers lines from its terminal: each line makes it sum the tensor on the GPU."""

import sys

import torch

gib = float(sys.argv[1])
tensor = torch.ones(int(gib * (1 << 30)) // 4, dtype=torch.float32, device="cuda")
torch.cuda.synchronize()
print(f"holds {gib:g} GiB", flush=True)
for _ in sys.stdin:
    print(f"sum {tensor.double().sum().item():.0f} of {tensor.numel()}", flush=True)
