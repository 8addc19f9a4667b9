"""Half the time on the card: bursts of so many seconds of work, with pauses as long between them.

    duty_job.py BALLAST_GIB BURST_S CYCLES [STEPS]

With DUTY_GO in the environment it waits, once it has its memory, until that file is there, and makes its pauses.
Without STEPS it finds out how many steps a burst takes; with them it does just as many, so that two runs compute the
same. Prints one line of JSON: when it began its first burst and ended the last, when each burst ended, how
long it worked, and a hash for each burst.
"""

import hashlib
import json
import os
import sys
import time

import torch

ballast, burst, cycles = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 0
torch.manual_seed(7)
held = [torch.full((1 << 28,), float(number), device="cuda") for number in range(ballast)]
a = torch.randn(8192, 8192, device="cuda") / 90
x = torch.randn(8192, 8192, device="cuda")
trails, bursts = [], []


def step():
    global x
    x = torch.tanh(a @ x)


def work(count):
    for number in range(count):
        step()
        if number % 8 == 7:
            torch.cuda.synchronize()
    torch.cuda.synchronize()


if not steps:
    work(50)
    begun = time.perf_counter()
    work(400)
    steps = int(400 * burst / (time.perf_counter() - begun)) // 8 * 8
    torch.manual_seed(7)
    a = torch.randn(8192, 8192, device="cuda") / 90
    x = torch.randn(8192, 8192, device="cuda")
torch.cuda.synchronize()
go = os.environ.get("DUTY_GO")
print("ready", flush=True)
while go and not os.path.exists(go):
    time.sleep(0.05)
began, busy = time.time(), 0.0
for cycle in range(cycles):
    begun = time.perf_counter()
    work(steps)
    busy += time.perf_counter() - begun
    bursts.append(round(time.time(), 3))
    trails.append(hashlib.sha256(x.sum(dim=0).cpu().numpy().tobytes()).hexdigest()[:32])
    if cycle + 1 < cycles and go:
        time.sleep(burst)
ended = time.time()
for number, piece in enumerate(held):
    assert bool((piece == float(number)).all()), "what was held changed"
print(json.dumps({"steps": steps, "began": began, "ended": ended, "busy_s": round(busy, 3), "bursts_end": bursts, "trails": trails}))
