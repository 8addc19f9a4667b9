"""Holds so many GiB with PyTorch and trains a small network, one word at a time from its standard input.

`step`: a hundred steps; says how long it was to the first kernel, and a checksum of all so far. `ask`: only asks the
driver whether a stream is done. `end`: ends.
"""

import hashlib
import json
import sys
import time

import torch

torch.manual_seed(7)
held = torch.arange(int(sys.argv[1]) << 28, device="cuda", dtype=torch.float32)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(64, 256, device="cuda")
stream = torch.cuda.Stream()
torch.cuda.synchronize()
print(json.dumps({"ready": True}), flush=True)
trail = hashlib.sha256()
for line in sys.stdin:
    word, begun = line.strip(), time.perf_counter()
    if word == "end":
        break
    if word == "ask":
        print(json.dumps({"asked_s": round(time.perf_counter() - begun, 4), "done": stream.query()}), flush=True)
        print(json.dumps({"answered_s": round(time.perf_counter() - begun, 4)}), flush=True)
        continue
    data.add_(0)
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for _ in range(100):
        optimizer.zero_grad()
        loss = ((model(data) - data) ** 2).mean()
        loss.backward()
        optimizer.step()
    trail.update(str(loss.item()).encode())
    # Every byte of what it holds, by a sum that has no rounding.
    whole = int((held[:: 1 << 10] % 1024).to(torch.int64).sum())
    said = {"to_first_kernel_s": round(first, 4), "trail": trail.hexdigest()[:16], "held": whole}
    print(json.dumps(said), flush=True)
