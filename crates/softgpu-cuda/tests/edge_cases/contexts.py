"""A context that ends takes what is counted with it; the primary one is not ended like others."""

import os

from cuda import *

must("cuInit", 0)
context = start()
say("destroy", call("cuCtxDestroy_v2", context))
say("alloc", call("cuMemAlloc_v2", BY(U64()), SIZE(1 << 20)))
made = got(PTR, "cuCtxCreate_v2", 0, 0)
pool = got(PTR, "cuDeviceGetDefaultMemPool", 0)
got(U64, "cuMemAllocAsync", SIZE(8 << 20), None)
got(U64, "cuMemAllocManaged", SIZE(1 << 20), 1)
must("cuCtxDestroy_v2", made)
used = U64()
must("cuMemPoolGetAttribute", pool, 7, BY(used))
say("used", used.value)
say("lock", call("cuCheckpointProcessLock", os.getpid(), None), call("cuCheckpointProcessCheckpoint", os.getpid(), None))
