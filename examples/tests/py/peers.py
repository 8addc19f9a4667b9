"""Two cards whose kernels reach each other's memory, or do not: says what was answered."""

import sys

from cuda import (BY, INT, PTR, SIZE, U64, UINT, alloc, call, function, get, got, launch, module, must, put, say)

MIB = 1 << 20


def access(at, device):
    flags = U64(9)
    location = (INT * 2)(1, device)
    result = call("cuMemGetAccess", BY(flags), location, at)
    return flags.value if result == 0 else -result


must("cuInit", 0)
first, second = (got(PTR, "cuDevicePrimaryCtxRetain", device) for device in (0, 1))
say("can", *(got(INT, "cuDeviceCanAccessPeer", *pair).value for pair in ((0, 1), (1, 0), (0, 0))))
must("cuCtxSetCurrent", second)
add = function(module(), "add")
must("cuCtxSetCurrent", first)
small, large, pooled = alloc(4096), alloc(8 * MIB), U64()
must("cuMemAllocAsync", BY(pooled), SIZE(4 * MIB), None)
for at in (small, large, pooled):
    put(at, [1, 2, 3])
capable = INT(7)
must("cuPointerGetAttribute", BY(capable), 15, large)
say("direct", capable.value & 0xff)
# Copies from card to card need no leave.
there = U64()
must("cuCtxSetCurrent", second)
there = alloc(4096)
must("cuMemcpyPeer", there, second, small, first, SIZE(12))
say("copied", get(there, 3))
say("wrong", call("cuCtxEnablePeerAccess", second, 0), call("cuCtxEnablePeerAccess", first, 1),
    call("cuCtxDisablePeerAccess", first))
say("enabled", call("cuCtxEnablePeerAccess", first, 0), call("cuCtxEnablePeerAccess", first, 0))
must("cuCtxSetCurrent", first)
later = alloc(4 * MIB)
put(later, [7, 8, 9])
must("cuCtxSetCurrent", second)
for at in (small, large, later):
    say("kernel of the other", launch(add, at, UINT(10), UINT(3), block=4), call("cuCtxSynchronize"))
must("cuCtxSetCurrent", first)
say("seen", get(small, 3), get(large, 3), get(later, 3))
if "wait" in sys.argv:
    say("reaches", [access(at, 1) for at in (large, later, pooled)])
    sys.stdin.readline()
must("cuCtxSetCurrent", second)
say("disabled", call("cuCtxDisablePeerAccess", first), call("cuCtxDisablePeerAccess", first))
if "wait" in sys.argv:
    say("reaches", [access(at, 1) for at in (large, later, pooled)])
    sys.stdin.readline()
must("cuCtxSetCurrent", first)
say("own", get(large, 3), [call("cuMemFree_v2", at) for at in (small, later)])
# A kernel that reaches where it may not ends its context.
must("cuCtxSetCurrent", second)
say("kernel of the other", launch(add, large, UINT(10), UINT(3), block=4), call("cuCtxSynchronize"))
must("cuCtxSetCurrent", first)
say("own", get(large, 3), call("cuMemFree_v2", large))
