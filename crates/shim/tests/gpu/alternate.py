"""PyTorch bound by launches, in blocks of 20 ms in turns through the shim and straight to the driver, in one process.

    LD_PRELOAD=both.so:SHIM alternate.py add|train [PAIRS]

add: one small kernel after the other. train: steps of a network so small that the GPU waits for its launches.
Prints a line for each pair of blocks: nanoseconds for a piece of work through the shim, and without it (both.c).
"""

import ctypes
import gc
import random
import sys
import time

import torch

BLOCK_S = 0.02
both = ctypes.CDLL(None)


def adding():
    small = torch.zeros(64, device="cuda")
    return lambda: small.add_(1)


def training():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())]).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=False)
    x = torch.randn(16, 64, device="cuda")

    def step():
        optimiser.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        optimiser.step()

    return step


def block(work, times):
    begun = time.perf_counter_ns()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - begun) / times


def main():
    work = {"add": adding, "train": training}[sys.argv[1]]()
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    for _ in range(50):
        work()
    times = max(1, int(BLOCK_S * 1e9 / block(work, 200)))
    block(work, times)
    gc.disable()
    chance = random.Random(1)
    for _ in range(pairs):
        took = {}
        for shim in chance.sample([1, 0], 2):
            if both.through(shim) < 3:
                raise SystemExit("no function of the driver takes both ways: are both.so and then the shim preloaded?")
            took[shim] = block(work, times)
        print(f"{took[1]:.1f} {took[0]:.1f}")
    both.through(1)


main()
