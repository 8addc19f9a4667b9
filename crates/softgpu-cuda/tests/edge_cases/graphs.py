"""Graphs that take memory have addresses for it as long as they are there."""

from cuda import *


def mapped():
    lines = [line.split("-") for line in open("/proc/self/maps")]
    return sum(int(to.split()[0], 16) - int(begin, 16) for begin, to, *_ in lines)


start()
stream = got(PTR, "cuStreamCreate", 1)
before = mapped()
for _ in range(50):
    must("cuStreamBeginCapture_v2", stream, 2)
    at = got(U64, "cuMemAllocAsync", SIZE(1 << 30), stream)
    must("cuMemsetD8Async", at, 1, SIZE(64), stream)
    must("cuMemFreeAsync", at, stream)
    graph = got(PTR, "cuStreamEndCapture", stream, first=False)
    ready = got(PTR, "cuGraphInstantiateWithFlags", graph, U64(0))
    for _ in range(2):
        must("cuGraphLaunch", ready, stream)
    must("cuStreamSynchronize", stream)
    must("cuGraphExecDestroy", ready)
    must("cuGraphDestroy", graph)
say("more", mapped() - before >> 30)
