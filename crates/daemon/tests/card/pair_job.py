"""Two processes with so many GiB each, each at work; when standard input ends, both look at what they hold.

    pair_job.py GIB
"""

import os
import sys

import torch
import torch.multiprocessing as processes


def work(number, gib, over):
    held = [torch.full((1 << 28,), float(10 * number + piece), device="cuda") for piece in range(gib)]
    a = torch.randn(2048, 2048, device="cuda")
    b = torch.randn(2048, 2048, device="cuda")
    rounds = 0
    while not over.is_set():
        b = torch.tanh(a @ b)
        torch.cuda.synchronize()
        rounds += 1
    same = all(bool((piece == float(10 * number + at)).all()) for at, piece in enumerate(held))
    print(f"process {number} of {os.getpid()}: {'as it was' if same else 'CHANGED'}, {rounds > 100}", flush=True)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    processes.set_start_method("spawn")
    over = processes.Event()
    both = [processes.Process(target=work, args=(number, int(sys.argv[1]), over)) for number in (1, 2)]
    for each in both:
        each.start()
    sys.stdin.read()
    over.set()
    for each in both:
        each.join()
    sys.exit(max(each.exitcode for each in both))
