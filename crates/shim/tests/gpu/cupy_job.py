"""Works with CuPy; says a hash of its results, the same for every run."""

import hashlib

import cupy

numbers = cupy.random.RandomState(3)
trail = hashlib.sha256()
a = numbers.random_sample((2048, 2048), dtype=cupy.float32)
for step in range(6000):
    a = cupy.tanh(a @ a.T / 2048 + step * 1e-3)
    if step % 10 == 0:
        trail.update(cupy.sort(a, axis=1)[::64].get().tobytes())
print("trail", trail.hexdigest()[:32])
