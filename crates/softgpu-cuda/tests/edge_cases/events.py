"""Events of graphs: recording is seen outside, and waiting is for what was recorded before."""

from cuda import *

start()
flag = got(PTR, "cuMemHostAlloc", SIZE(4096), 0)
number = C.cast(flag, C.POINTER(UINT))
of = module()
spin = function(of, "wait_for")
stream = got(PTR, "cuStreamCreate", 1)


class Kernel(C.Structure):
    _fields_ = [("function", PTR), ("shape", UINT * 7), ("each", PTR), ("extra", PTR)]


def graph(event, add):
    own = got(PTR, "cuGraphCreate", 0)
    params = pointers(U64(flag.value), UINT(1))
    kernel = Kernel(spin.value, (UINT * 7)(1, 1, 1, 1, 1, 1, 0), C.addressof(params), None)
    first = got(PTR, "cuGraphAddKernelNode", own, None, SIZE(0), BY(kernel))
    got(PTR, add, own, BY(first), SIZE(1), event)
    return got(PTR, "cuGraphInstantiateWithFlags", own, U64(0))


event = got(PTR, "cuEventCreate", 0)
number[0] = 0
must("cuGraphLaunch", graph(event, "cuGraphAddEventRecordNode"), stream)
say("recorded", call("cuEventQuery", event))
number[0] = 1
must("cuEventSynchronize", event)
say("query", call("cuStreamSynchronize", stream), call("cuEventQuery", event))

number[0] = 0
other = got(PTR, "cuEventCreate", 0)
must("cuGraphLaunch", graph(other, "cuGraphAddEventWaitNode"), stream)
must("cuEventRecord", other, stream)
number[0] = 1
must("cuStreamSynchronize", stream)
say("waited", call("cuEventQuery", other))
