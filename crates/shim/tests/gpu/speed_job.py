"""Measures steps a second bound by the GPU."""

import json
import time

import torch


def rate(work, seconds):
    """How often something is done in a second, when the GPU is done with it."""
    for _ in range(20):
        work()
    torch.cuda.synchronize()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(20):
            work()
        count += 20
        torch.cuda.synchronize()
    return count / (time.perf_counter() - begun)


a = torch.randn(4096, 4096, device="cuda")
b = torch.randn(4096, 4096, device="cuda")
print(json.dumps({"bound_by_card": rate(lambda: torch.mm(a, b, out=torch.empty_like(a)), 2.0)}))
