"""A call that cannot tell what it made makes nothing."""

from cuda import *


class Properties(C.Structure):
    _fields_ = [("kind", INT), ("handles", INT), ("where", INT), ("id", INT), ("w", PTR), ("flags", U64)]


start()
free, total, before = SIZE(), SIZE(), SIZE()
must("cuMemGetInfo_v2", BY(before), BY(total))
device = Properties(1, 0, 1, 0, None, 0)
big = SIZE(64 << 20)
for _ in range(3):
    answers = [
        call("cuMemAlloc_v2", None, big),
        call("cuMemAllocAsync", None, big, None),
        call("cuMemCreate", None, big, BY(device), U64(0)),
        call("cuMemAllocPitch_v2", None, BY(SIZE()), SIZE(1 << 20), SIZE(64), 4),
        call("cuCtxCreate_v2", None, 0, 0),
    ]
    assert answers == [1] * 5, answers
must("cuMemGetInfo_v2", BY(free), BY(total))
assert free.value == before.value, before.value - free.value
assert call("cuDevicePrimaryCtxRetain", None, 0) == 1
must("cuDevicePrimaryCtxRelease_v2", 0)
active = INT()
must("cuDevicePrimaryCtxGetState", 0, BY(UINT()), BY(active))
say("active", active.value)

start()
bump = function(module(), "bump")
params = C.create_string_buffer(64)
extra = (PTR * 5)(1, C.addressof(params), 2, None, None)
say("launch", call("cuLaunchKernel", bump, 1, 1, 1, 1, 1, 1, 0, None, None, extra))
