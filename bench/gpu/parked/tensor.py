"""Holds a tensor of a given size and sums it on the GPU: at each line of its input, or with --loop all the time."""

import sys

import torch

gib = float(sys.argv[1])
tensor = torch.ones(int(gib * (1 << 30)) // 4, dtype=torch.float32, device="cuda")
torch.cuda.synchronize()
print(f"holds {gib:g} GiB", flush=True)
while "--loop" in sys.argv:
    tensor[: 1 << 26].sum(dtype=torch.float64).item()
for _ in sys.stdin:
    # In pieces: a sum in double precision makes a copy of twice the size.
    total = sum(piece.sum(dtype=torch.float64) for piece in tensor.split(1 << 26))
    print(f"sum {int(total)} of {tensor.numel()}", flush=True)
