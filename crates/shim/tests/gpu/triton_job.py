"""Works with a Triton kernel; says a hash of its results, the same for every run."""

import hashlib

import torch
import triton
import triton.language as tl


@triton.jit
def mix(x, y, out, count, turn, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    a = tl.load(x + place, mask=mask)
    b = tl.load(y + place, mask=mask)
    tl.store(out + place, a * 0.5 + b * 0.25 + turn, mask=mask)


torch.manual_seed(5)
count = 1 << 22
x, y = torch.randn(count, device="cuda"), torch.randn(count, device="cuda")
trail = hashlib.sha256()
for turn in range(120000):
    out = torch.empty_like(x)
    mix[(triton.cdiv(count, 1024),)](x, y, out, count, float(turn % 7), BLOCK=1024)
    x, y = y, out
    if turn % 100 == 0:
        trail.update(out[::4096].cpu().numpy().tobytes())
print("trail", trail.hexdigest()[:32])
