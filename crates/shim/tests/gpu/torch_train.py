"""Trains a network with PyTorch; says a hash of every loss and of the weights, the same for every run."""

import argparse
import hashlib
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--ballast", type=int, default=0, help="GiB that are only held")
parser.add_argument("--graph", action="store_true", help="captured once")
parser.add_argument("--recapture", action="store_true", help="captured anew for every step")
wanted = parser.parse_args()
wanted.graph |= wanted.recapture
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(),
                            torch.nn.Linear(4096, 10)).cuda()
ballast = [torch.full((1 << 28,), float(number), device="cuda") for number in range(wanted.ballast)]
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=wanted.graph)
trail = hashlib.sha256()
x = torch.randn(256, 1024, device="cuda")
y = torch.randint(0, 10, (256,), device="cuda")


def step():
    optimiser.zero_grad(set_to_none=False)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimiser.step()
    return loss


def captured():
    """A step as a graph. Without what torch.cuda.graph does around it, which takes longer than the capture."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        graph.capture_begin()
        loss = step()
        graph.capture_end()
    return graph, loss


if wanted.graph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
for number in range(wanted.steps):
    x.normal_()
    if wanted.recapture:
        # Each graph has a pool of its own, which is given back only on request.
        graph.reset()
        if number % 50 == 0:
            torch.cuda.empty_cache()
        graph, kept = captured()
    if wanted.graph:
        graph.replay()
        loss = kept
    else:
        loss = step()
    if number % 5 == 0:
        trail.update(loss.detach().cpu().numpy().tobytes())
    # Allocations of many sizes come and go.
    torch.empty((number * 7919 % 8_000_000 + 1,), device="cuda").fill_(1.0)
for parameter in model.parameters():
    trail.update(parameter.detach().cpu().numpy().tobytes())
for number, piece in enumerate(ballast):
    assert bool((piece == float(number)).all()), "ballast changed"
print("trail", trail.hexdigest()[:32], "loss", float(loss))
