"""One rank of a training under torchrun, stopped as docs/recipes/torchrun.md says.

torchrun_train.py FOLDER [deaf]: `deaf` leaves the handler out, and NCCL, which may have one of its own.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

folder = sys.argv[1]
deaf = sys.argv[2:] == ["deaf"]
if deaf:
    def lease_ends_soon():
        return False
else:
    from notice import lease_ends_soon

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("gloo" if deaf else "nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print(f"training pid={os.getpid()} parent={os.getppid()}", flush=True)
end = time.monotonic() + 400
step = 0
while time.monotonic() < end:
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    step += 1
    if lease_ends_soon():
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step}, os.path.join(folder, "last.pt"))
        print(f"stopped at step {step}", flush=True)
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(75)
print("nothing came", flush=True)
