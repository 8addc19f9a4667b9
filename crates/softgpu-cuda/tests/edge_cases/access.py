"""Access that is taken away while a kernel runs is taken when it is done."""

import threading
import time

from cuda import *


class Properties(C.Structure):
    _fields_ = [("kind", INT), ("handles", INT), ("where", INT), ("id", INT), ("w", PTR), ("flags", U64)]


class Allowed(C.Structure):
    _fields_ = [("where", INT), ("id", INT), ("flags", INT)]


start()
size = SIZE(2 << 20)
made = got(U64, "cuMemCreate", size, BY(Properties(1, 0, 1, 0, None, 0)), U64(0))
at = got(U64, "cuMemAddressReserve", size, SIZE(0), U64(0), U64(0))
must("cuMemMap", at, size, SIZE(0), made, U64(0))
must("cuMemSetAccess", at, size, BY(Allowed(1, 0, 3)), SIZE(1))
stream = got(PTR, "cuStreamCreate", 1)
spin = function(module(), "wait_for")
assert launch(spin, at, UINT(1), stream=stream) == 0
time.sleep(0.3)
threading.Timer(0.3, lambda: C.memset(at.value, 1, 1)).start()
say("access", call("cuMemSetAccess", at, size, BY(Allowed(1, 0, 0)), SIZE(1)))
say("kernel", call("cuStreamSynchronize", stream))
