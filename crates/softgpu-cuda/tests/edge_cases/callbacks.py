"""A function of the program that waits for its own stream is refused, and does not wait for ever."""

from cuda import *

context = start()
stream = got(PTR, "cuStreamCreate", 1)
mine = alloc(4096)
answers = []


def work(_):
    answers.append(call("cuCtxSetCurrent", context))
    answers.append(call("cuMemFree_v2", mine))
    answers.append(call("cuCtxSynchronize"))
    answers.append(call("cuStreamSynchronize", stream))
    answers.append(call("cuMemUnmap", U64(0), SIZE(0)))


kept = C.CFUNCTYPE(None, PTR)(work)
must("cuLaunchHostFunc", stream, kept, None)
must("cuStreamSynchronize", stream)
say("inside", *answers)
say("outside", call("cuMemFree_v2", mine))
