"""A tensor goes to another process by PyTorch's queue, which changes it there; both see the change."""

import sys

import torch
import torch.multiprocessing as processes


def other(queue, back):
    shared = queue.get()
    shared += 1
    torch.cuda.synchronize()
    back.put("done")
    queue.get()


if __name__ == "__main__":
    processes.set_start_method("spawn")
    queue, back = processes.Queue(), processes.Queue()
    child = processes.Process(target=other, args=(queue, back))
    child.start()
    shared = torch.arange(1 << 28, device="cuda", dtype=torch.float32)
    torch.full((1 << 28,), 1.0, device="cuda")
    queue.put(shared)
    assert back.get() == "done"
    expected = torch.arange(1 << 28, device="cuda", dtype=torch.float32) + 1
    print("the other's change is seen:", bool((shared == expected).all()), flush=True)
    sys.stdin.read()
    queue.put(None)
    child.join()
    sys.exit(child.exitcode)
