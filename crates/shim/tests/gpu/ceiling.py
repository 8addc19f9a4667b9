"""Holds memory and says how fast pinned copies of it are; then trains on until it is told to stop."""

import json
import sys
import time

import torch

size = 1 << 30
held = [torch.full((size // 4,), float(number), device="cuda") for number in range(32)]
host = torch.empty(size // 4, dtype=torch.float32, pin_memory=True)


def speed(copy):
    copy(0)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(16):
        copy(number)
    torch.cuda.synchronize()
    return 16 / (time.perf_counter() - begun)


print(json.dumps({"ceiling_out": speed(lambda n: host.copy_(held[n], non_blocking=True)),
                  "ceiling_in": speed(lambda n: held[n].copy_(host, non_blocking=True))}), flush=True)
for number, piece in enumerate(held):
    piece.fill_(float(number))
torch.cuda.synchronize()
until = time.perf_counter() + float(sys.argv[1])
total = torch.zeros(1, device="cuda")
while time.perf_counter() < until:
    total += held[0][:1000].sum()
    time.sleep(0.001)
print("trail", all(bool((piece == float(number)).all()) for number, piece in enumerate(held)), flush=True)
