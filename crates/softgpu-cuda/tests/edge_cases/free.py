"""What is freed is free, whatever runs in another context."""

import time

from cuda import *

first = start()
big = SIZE(1 << 30)
held = alloc(1 << 30)
second = got(PTR, "cuCtxCreate_v2", 0, 0)
flag = got(PTR, "cuMemHostAlloc", SIZE(4096), 0)
C.cast(flag, C.POINTER(UINT))[0] = 0
spin = function(module(), "wait_for")
assert launch(spin, U64(flag.value), UINT(1)) == 0
time.sleep(0.3)
must("cuCtxSetCurrent", first)
must("cuMemFree_v2", held)
say("again", call("cuMemAlloc_v2", BY(held), big))
C.cast(flag, C.POINTER(UINT))[0] = 1
must("cuCtxSetCurrent", second)
say("synchronised", call("cuCtxSynchronize"))
must("cuCtxSetCurrent", first)
must("cuMemFree_v2", held)
free, total = SIZE(), SIZE()
must("cuMemGetInfo_v2", BY(free), BY(total))
say("used", total.value - free.value >> 20)
