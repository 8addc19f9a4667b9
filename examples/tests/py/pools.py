"""Memory in the order of streams, rightly and wrongly: says what was answered, the same with the shim as without."""

import ctypes as C
import threading

from cuda import (BY, INT, PTR, SIZE, U64, UINT, alloc, call, function, get, got, launch, module, must, pointers, put, say,
                  start)

MIB = 1 << 20


class Location(C.Structure):
    _fields_ = [("type", INT), ("id", INT)]


class Props(C.Structure):
    _fields_ = [("type", INT), ("handles", INT), ("location", Location), ("win", PTR), ("max", SIZE),
                ("usage", C.c_ushort), ("rest", C.c_ubyte * 54)]


class Access(C.Structure):
    _fields_ = [("location", Location), ("flags", INT)]


CONTEXT = start()
MODULE = module()
STREAM, OTHER = got(PTR, "cuStreamCreate", 1), got(PTR, "cuStreamCreate", 1)
DEFAULT = got(PTR, "cuDeviceGetDefaultMemPool", 0)


def take(size, stream=STREAM, name="cuMemAllocAsync"):
    at = U64()
    must(name, BY(at), SIZE(size), stream)
    return at


def number(pool, attribute):
    value = U64(9)
    must("cuMemPoolGetAttribute", pool, attribute, BY(value))
    return value.value


def ask(kind, attribute, address):
    value = kind(77)
    result = call("cuPointerGetAttribute", BY(value), attribute, U64(address))
    return (result, value.value) if result == 0 else result


def wrong():
    at = U64()
    say("nothing", call("cuMemAllocAsync", BY(at), SIZE(0), STREAM), call("cuMemAllocAsync", None, SIZE(512), STREAM))
    say("too much", call("cuMemAllocAsync", BY(at), SIZE(1 << 46), STREAM))
    say("no pool", call("cuMemAllocFromPoolAsync", BY(at), SIZE(512), PTR(4096), STREAM))
    say("free nowhere", call("cuMemFreeAsync", U64(4096), STREAM))
    at = take(MIB)
    say("free inside", call("cuMemFreeAsync", U64(at.value + 512), STREAM))
    must("cuMemFreeAsync", at, STREAM)
    must("cuStreamSynchronize", STREAM)
    say("free twice", call("cuMemFreeAsync", at, STREAM), call("cuMemFree_v2", at))
    say("attributes", call("cuMemPoolGetAttribute", DEFAULT, 99, BY(U64())), call("cuMemPoolSetAttribute", DEFAULT, 5, BY(U64())),
        call("cuMemPoolSetAttribute", DEFAULT, 8, BY(U64(3))), call("cuMemPoolDestroy", DEFAULT) != 0)


def addresses():
    at = take(3 * MIB)
    inside = at.value + MIB
    base, size = U64(), SIZE()
    say("range", call("cuMemGetAddressRange_v2", BY(base), BY(size), U64(inside)), base.value == at.value,
        size.value == 3 * MIB)
    say("type", ask(UINT, 2, inside), ask(INT, 9, inside), ask(U64, 3, inside) == (0, inside))
    say("pool", ask(U64, 17, inside) == (0, DEFAULT.value), ask(U64, 12, inside) == (0, 3 * MIB))
    plain = alloc(MIB)
    say("of no pool", ask(U64, 17, plain.value))
    say("numbers", len({ask(U64, 7, own.value) for own in (at, plain, take(64), take(64))}))
    must("cuMemFree_v2", plain)
    must("cuMemFree_v2", at)
    say("freed at once", ask(UINT, 2, inside))


def order():
    """A piece that is freed behind a kernel is not another stream's before the kernel has ended."""
    flag = PTR()
    must("cuMemHostAlloc", BY(flag), SIZE(4096), 2)
    word = UINT.from_address(flag.value)
    word.value = 0
    waiter, add = function(MODULE, "wait_for"), function(MODULE, "add")
    first = take(4 * MIB)
    must("cuMemsetD32Async", first, 1, SIZE(MIB), STREAM)
    must("cuLaunchKernel", waiter, 1, 1, 1, 1, 1, 1, 0, STREAM, pointers(U64(flag.value), UINT(1)), None)
    must("cuLaunchKernel", add, 1024, 1, 1, 1024, 1, 1, 0, STREAM, pointers(first, UINT(5), UINT(MIB)), None)
    out = PTR()
    must("cuMemHostAlloc", BY(out), SIZE(4 * MIB), 0)
    must("cuMemcpyDtoHAsync_v2", out, first, SIZE(4 * MIB), STREAM)
    must("cuMemFreeAsync", first, STREAM)
    second = take(4 * MIB, OTHER)
    must("cuMemsetD32Async", second, 9, SIZE(MIB), OTHER)
    must("cuStreamSynchronize", OTHER)
    say("the other is done first", call("cuStreamQuery", STREAM), get(second, 1))
    word.value = 1
    must("cuStreamSynchronize", STREAM)
    seen = (UINT * MIB).from_address(out.value)
    say("untouched", set(seen), set(get(second, MIB)))
    must("cuMemFreeAsync", second, OTHER)
    # A plain allocation may be freed in the order of a stream, and a pool's at once.
    plain = alloc(8 * MIB)
    must("cuMemsetD32Async", plain, 3, SIZE(4), STREAM)
    say("plain one", call("cuMemFreeAsync", plain, STREAM), call("cuStreamSynchronize", STREAM),
        call("cuMemFreeAsync", plain, STREAM))
    must("cuMemFreeHost", out)
    must("cuMemFreeHost", flag)


def counts():
    own = got(PTR, "cuMemPoolCreate", BY(Props(type=1, location=Location(1, 0))))
    must("cuMemPoolSetAttribute", own, 4, BY(U64(1 << 30)))
    say("threshold", number(own, 4), [number(own, which) & 0xffffffff for which in (1, 2, 3)])
    at = U64()
    must("cuMemAllocFromPoolAsync", BY(at), SIZE(16 * MIB), own, STREAM)
    say("used", number(own, 7) == 16 * MIB, number(own, 8) == 16 * MIB, number(own, 5) == 16 * MIB)
    say("of it", ask(U64, 17, at.value) == (0, own.value))
    must("cuMemFreeAsync", at, STREAM)
    must("cuStreamSynchronize", STREAM)
    say("kept", number(own, 7), number(own, 5) == 16 * MIB, number(own, 8) == 16 * MIB)
    must("cuMemPoolSetAttribute", own, 8, BY(U64(0)))
    say("high", number(own, 8), number(own, 6) == 16 * MIB)
    again = U64()
    must("cuMemAllocFromPoolAsync", BY(again), SIZE(16 * MIB), own, OTHER)
    say("reused", again.value == at.value)
    must("cuMemPoolTrimTo", own, SIZE(0))
    say("trim of what is used", number(own, 5) == 16 * MIB)
    must("cuMemFreeAsync", again, OTHER)
    must("cuStreamSynchronize", OTHER)
    must("cuMemPoolTrimTo", own, SIZE(0))
    say("trimmed", number(own, 5), number(own, 7))
    must("cuMemPoolSetAttribute", own, 4, BY(U64(0)))
    must("cuMemAllocFromPoolAsync", BY(at), SIZE(2 * MIB), own, STREAM)
    must("cuMemFreeAsync", at, STREAM)
    must("cuStreamSynchronize", STREAM)
    say("not kept", number(own, 5))
    # A pool goes with its last piece.
    must("cuMemAllocFromPoolAsync", BY(at), SIZE(2 * MIB), own, STREAM)
    must("cuMemsetD32Async", at, 4, SIZE(4), STREAM)
    say("destroyed", call("cuMemPoolDestroy", own), call("cuMemAllocFromPoolAsync", BY(U64()), SIZE(2 * MIB), own, STREAM))
    must("cuStreamSynchronize", STREAM)
    say("still there", get(at, 1), call("cuMemFreeAsync", at, STREAM), call("cuStreamSynchronize", STREAM))
    small = got(PTR, "cuMemPoolCreate", BY(Props(type=1, location=Location(1, 0), max=8 * MIB)))
    must("cuMemAllocFromPoolAsync", BY(at), SIZE(6 * MIB), small, STREAM)
    say("no more than that", call("cuMemAllocFromPoolAsync", BY(U64()), SIZE(6 * MIB), small, STREAM))
    must("cuMemFreeAsync", at, STREAM)
    must("cuMemPoolDestroy", small)
    chosen = got(PTR, "cuMemPoolCreate", BY(Props(type=1, location=Location(1, 0))))
    must("cuDeviceSetMemPool", 0, chosen)
    at = take(MIB)
    say("chosen", ask(U64, 17, at.value) == (0, chosen.value))
    must("cuMemFreeAsync", at, STREAM)
    must("cuDeviceSetMemPool", 0, DEFAULT)
    must("cuMemPoolDestroy", chosen)
    say("access", call("cuMemPoolSetAccess", DEFAULT, BY(Access(Location(1, 0), 0)), SIZE(1)) != 0,
        call("cuMemPoolSetAccess", DEFAULT, BY(Access(Location(1, 0), 3)), SIZE(1)))


def default_streams():
    at = take(1024, None)
    must("cuMemsetD32_v2", at, 2, SIZE(256))
    say("default", get(at, 2), call("cuMemFreeAsync", at, None))
    told = []

    def elsewhere(value):
        must("cuCtxSetCurrent", CONTEXT)
        own = take(4096, None, "cuMemAllocAsync_ptsz")
        must("cuMemsetD32Async_ptsz", own, value, SIZE(1024), None)
        out = (UINT * 1024)()
        must("cuMemcpyDtoHAsync_v2_ptsz", out, own, SIZE(4096), None)
        must("cuMemFreeAsync_ptsz", own, None)
        must("cuStreamSynchronize_ptsz", None)
        told.append(set(out) == {value})

    threads = [threading.Thread(target=elsewhere, args=(value,)) for value in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    say("threads", told)


def room():
    """What pools keep is not in the way of others."""
    free, total = SIZE(), SIZE()
    must("cuStreamSynchronize", STREAM)
    must("cuMemPoolSetAttribute", DEFAULT, 4, BY(U64(1 << 40)))
    must("cuMemGetInfo_v2", BY(free), BY(total))
    part = free.value // 3 // MIB * MIB
    pieces = [take(part) for _ in range(2)]
    for at in pieces:
        must("cuMemFreeAsync", at, STREAM)
    must("cuStreamSynchronize", STREAM)
    say("kept", number(DEFAULT, 5) >= 2 * part)
    large = U64()
    say("large in another stream", call("cuMemAllocAsync", BY(large), SIZE(5 * part // 2), OTHER),
        call("cuMemFreeAsync", large, OTHER), call("cuStreamSynchronize", OTHER))
    must("cuMemPoolSetAttribute", DEFAULT, 4, BY(U64(0)))
    at = take(4096)
    must("cuMemFreeAsync", at, STREAM)
    must("cuStreamSynchronize", STREAM)
    after = SIZE()
    must("cuMemGetInfo_v2", BY(after), BY(total))
    plain = U64()
    say("plain", call("cuMemAlloc_v2", BY(plain), SIZE(5 * part // 2)), call("cuMemFree_v2", plain))


def capture():
    graph, nodes = PTR(), SIZE()
    must("cuStreamBeginCapture_v2", STREAM, 0)
    at = take(1024)
    must("cuMemsetD32Async", at, 6, SIZE(256), STREAM)
    must("cuMemFreeAsync", at, STREAM)
    must("cuStreamEndCapture", STREAM, BY(graph))
    must("cuGraphGetNodes", graph, None, BY(nodes))
    say("captured", nodes.value)
    must("cuGraphDestroy", graph)


for part in (wrong, addresses, order, counts, default_streams, room, capture):
    part()
must("cuStreamDestroy_v2", STREAM)
must("cuStreamDestroy_v2", OTHER)
say("synchronised", call("cuCtxSynchronize"))
