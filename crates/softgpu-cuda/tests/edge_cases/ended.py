"""Threads that ended cost nothing."""

import threading
import time

from cuda import *

context = start()
mine, host = alloc(4096), C.create_string_buffer(64)


def once():
    must("cuCtxSetCurrent", context)
    must("cuMemcpyHtoD_v2_ptds", mine, host, SIZE(64))


def timed():
    begun = time.monotonic()
    for _ in range(300):
        must("cuMemcpyHtoD_v2", mine, host, SIZE(64))
    return time.monotonic() - begun


before = timed()
for _ in range(4000):
    thread = threading.Thread(target=once)
    thread.start()
    thread.join()
say("slower", timed() / before > 8)
