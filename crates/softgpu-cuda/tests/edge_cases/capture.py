"""A capture ends with the stream where it began."""

from cuda import *

start()
stream = got(PTR, "cuStreamCreate", 0)
must("cuStreamBeginCapture_v2", stream, 0)
must("cuStreamDestroy_v2", stream)
say("alloc", call("cuMemAlloc_v2", BY(U64()), SIZE(1 << 20)))
made = got(PTR, "cuCtxCreate_v2", 0, 0)
stream = got(PTR, "cuStreamCreate", 0)
must("cuStreamBeginCapture_v2", stream, 0)
must("cuCtxDestroy_v2", made)
say("alloc", call("cuMemAlloc_v2", BY(U64()), SIZE(1 << 20)))
