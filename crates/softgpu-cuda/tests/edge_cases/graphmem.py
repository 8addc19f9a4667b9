"""A kernel that still uses memory of a graph when that is freed does no harm to its process."""

import time

from cuda import *


class Take(C.Structure):
    _fields_ = [("kind", INT), ("handles", INT), ("where", INT), ("id", INT), ("w", PTR), ("rest", C.c_ubyte * 64),
                ("allowed", PTR), ("count", SIZE), ("bytes", SIZE), ("at", U64)]


start()
graph = got(PTR, "cuGraphCreate", 0)
take = Take(kind=1, where=1, bytes=4096)
got(PTR, "cuGraphAddMemAllocNode", graph, None, SIZE(0), BY(take))
one, two = got(PTR, "cuStreamCreate", 1), got(PTR, "cuStreamCreate", 1)
must("cuGraphLaunch", got(PTR, "cuGraphInstantiateWithFlags", graph, U64(0)), one)
must("cuStreamSynchronize", one)
spin = function(module(), "wait_for")
assert launch(spin, U64(take.at), UINT(1), stream=two) == 0
time.sleep(0.3)
say("free", call("cuMemFreeAsync", U64(take.at), one), call("cuStreamSynchronize", one))
time.sleep(0.3)
say("lives")
