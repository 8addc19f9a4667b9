"""Holds so many GiB with PyTorch and works on some of it without a break, until it is told to end."""

import signal
import sys
import time

import torch

gib = int(sys.argv[1])
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
held = [torch.full((1 << 28,), float(number), device="cuda") for number in range(gib - 1)]
a = torch.randn(4096, 4096, device="cuda")
b = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
print("holds", gib, flush=True)
while not over:
    for _ in range(20):
        b = (a @ b) / 64
    torch.cuda.synchronize()
    time.sleep(0.001)
for number, piece in enumerate(held):
    assert bool((piece == float(number)).all()), "what was held changed"
print("as it was", flush=True)
