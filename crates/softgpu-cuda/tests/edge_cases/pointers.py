"""Copies from and to addresses where nothing is are refused."""

from cuda import *

start()
mine = alloc(4 << 20)
gone = alloc(4 << 20)
must("cuMemFree_v2", gone)
reserved = got(U64, "cuMemAddressReserve", SIZE(4 << 20), SIZE(0), U64(0), U64(0))
stream = got(PTR, "cuStreamCreate", 1)
for bad in (gone, reserved):
    say("to", call("cuMemcpy", bad, mine, SIZE(64)), call("cuMemcpyAsync", bad, mine, SIZE(64), stream))
    say("from", call("cuMemcpy", mine, bad, SIZE(64)), call("cuMemcpyHtoD_v2", mine, bad, SIZE(64)))
    say("out", call("cuMemcpyDtoH_v2", bad, mine, SIZE(64)))
    say("register", call("cuMemHostRegister_v2", bad, SIZE(4096), 0))
must("cuCtxSynchronize")
