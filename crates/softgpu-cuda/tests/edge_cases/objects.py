"""What a graph keeps is kept until it has run, though nobody has the graph any more."""

import time

from cuda import *

start()
flag = got(PTR, "cuMemHostAlloc", SIZE(4096), 0)
number = C.cast(flag, C.POINTER(UINT))
number[0] = 0
spin = function(module(), "wait_for")
stream = got(PTR, "cuStreamCreate", 1)
must("cuStreamBeginCapture_v2", stream, 0)
launch(spin, U64(flag.value), UINT(1), stream=stream)
graph = got(PTR, "cuStreamEndCapture", stream, first=False)
gone = []
destroy = C.CFUNCTYPE(None, PTR)(lambda _: gone.append(1))
made = got(PTR, "cuUserObjectCreate", None, destroy, 1, 1)
must("cuGraphRetainUserObject", graph, made, 1, 1)
ready = got(PTR, "cuGraphInstantiateWithFlags", graph, U64(0))
must("cuGraphLaunch", ready, stream)
must("cuGraphExecDestroy", ready)
must("cuGraphDestroy", graph)
time.sleep(0.2)
say("while it runs", len(gone))
number[0] = 1
must("cuStreamSynchronize", stream)
say("after", len(gone))

child = got(PTR, "cuGraphCreate", 0)
inner = got(PTR, "cuGraphAddEmptyNode", child, None, SIZE(0))
graph = got(PTR, "cuGraphCreate", 0)
node = got(PTR, "cuGraphAddChildGraphNode", graph, None, SIZE(0), child)
copy = got(PTR, "cuGraphChildGraphNodeGetGraph", node, first=False)
ready = got(PTR, "cuGraphInstantiateWithFlags", graph, U64(0))
must("cuGraphDestroy", graph)
say("child", call("cuGraphGetNodes", copy, None, BY(SIZE())), call("cuGraphGetNodes", child, None, BY(SIZE())))
say("runs", call("cuGraphLaunch", ready, stream), call("cuStreamSynchronize", stream))
