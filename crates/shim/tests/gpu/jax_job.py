"""Works with JAX; says a hash of its results, the same for every run."""

import hashlib
import os

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
import jax
import jax.numpy as jnp
import numpy as np

trail = hashlib.sha256()


@jax.jit
def step(w, x, y):
    def loss(w):
        h = jnp.tanh(x @ w[0])
        return jnp.mean((h @ w[1] - y) ** 2)

    value, slope = jax.value_and_grad(loss)(w)
    return [a - 0.01 * b for a, b in zip(w, slope)], value


key = jax.random.PRNGKey(0)
w = [jax.random.normal(key, (512, 2048)) * 0.05, jax.random.normal(key, (2048, 16)) * 0.05]
for number in range(3000):
    key, sub = jax.random.split(key)
    x = jax.random.normal(sub, (128, 512))
    w, value = step(w, x, jnp.sin(x[:, :16]))
    if number % 10 == 0:
        trail.update(np.asarray(value).tobytes())
for part in w:
    trail.update(np.asarray(part).tobytes())
print("trail", trail.hexdigest()[:32])
