"""Takes so many GiB of a card, leaves a child behind that inherits what it has open, and dies."""

import ctypes
import os
import signal
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *words):
    error = getattr(cuda, name)(*words)
    assert error == 0, f"{name}: {error}"


context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]) << 30))
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
print("child", child, flush=True)
# As long as it takes to be seen.
time.sleep(3)
os.kill(os.getpid(), signal.SIGKILL)
