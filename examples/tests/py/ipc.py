"""Hands memory to another process, or takes it: `give`, or `take` and the handles. Says what was answered."""

import ctypes as C
import sys

from cuda import BY, INT, PTR, SIZE, U64, UINT, alloc, call, function, get, got, launch, module, must, put, say, start

MIB = 1 << 20


class Handle(C.Structure):
    _fields_ = [("bytes", C.c_ubyte * 64)]


def opened(handle, flags=1):
    at = U64()
    result = call("cuIpcOpenMemHandle_v2", BY(at), handle, flags)
    return result, at


def give():
    small, large = alloc(4096), alloc(6 * MIB)
    other = alloc(4096)
    put(small, [1, 2, 3])
    put(large, [4, 5, 6])
    put(other, [7])
    handles = []
    for at in (small, U64(large.value + 4096)):
        handle = Handle()
        must("cuIpcGetMemHandle", BY(handle), at)
        again = Handle()
        must("cuIpcGetMemHandle", BY(again), at)
        say("the same again", bytes(handle.bytes) == bytes(again.bytes))
        handles.append(bytes(handle.bytes).hex())
    capable = C.c_ubyte(7)
    must("cuPointerGetAttribute", BY(capable), 10, small)
    say("capable", capable.value)
    own = Handle.from_buffer_copy(bytes.fromhex(handles[0]))
    say("own", opened(own)[0])
    print(*handles, flush=True)
    sys.stdin.readline()
    say("written by the other", get(small, 4), get(large, 4), get(other, 1))
    say("free", call("cuMemFree_v2", small), call("cuMemFree_v2", large), call("cuMemFree_v2", other))
    print("freed", flush=True)
    sys.stdin.readline()


def take():
    first, second = (Handle.from_buffer_copy(bytes.fromhex(text)) for text in sys.argv[2:4])
    say("wrong", opened(first, 0)[0], opened(Handle())[0])
    (result, small), (other, large) = opened(first), opened(second)
    say("opened", result, other)
    say("read", get(small, 3), get(large, 3))
    base, size = U64(), SIZE()
    must("cuMemGetAddressRange_v2", BY(base), BY(size), U64(small.value + 8))
    say("range", base.value == small.value, size.value)
    again = opened(first)
    say("again", again[0], again[1].value == small.value)
    add = function(module(), "add")
    say("kernel", launch(add, small, UINT(10), UINT(3), block=4), launch(add, large, UINT(20), UINT(3), block=4),
        call("cuCtxSynchronize"))
    say("not mine to free", call("cuMemFree_v2", small), call("cuMemFreeAsync", small, None))
    say("closed", call("cuIpcCloseMemHandle", small), get(small, 1), call("cuIpcCloseMemHandle", small))
    say("gone", call("cuMemcpyDtoH_v2", (UINT * 1)(), small, SIZE(4)) != 0)
    print("ready", flush=True)
    sys.stdin.readline()
    say("kept", get(large, 3), call("cuIpcCloseMemHandle", large))
    say("too late", opened(first)[0])


start()
give() if sys.argv[1] == "give" else take()
