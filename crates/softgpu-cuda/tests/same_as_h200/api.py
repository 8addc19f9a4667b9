#!/usr/bin/env python3
"""Calls every family of the driver API, wrong and right, and says what was answered.

What it says is the same on a real GPU and on a soft one: no addresses, no sizes of GPUs.
"""

import ctypes as C
import os
import struct
import subprocess
import sys
import threading
import time

from cuda import (BY, INT, LIB, PTR, PTX, SIZE, U64, UINT, alloc, call, function, get, got, launch, module, must, pointers,
                  put, say, start)

MIB = 1 << 20


class Location(C.Structure):
    _fields_ = [("type", INT), ("id", INT)]


class Prop(C.Structure):
    _fields_ = [("type", INT), ("handles", INT), ("location", Location), ("win", PTR), ("flags", U64)]


class Access(C.Structure):
    _fields_ = [("location", Location), ("flags", INT)]


class PoolProps(C.Structure):
    _fields_ = [("type", INT), ("handles", INT), ("location", Location), ("win", PTR), ("max", SIZE),
                ("usage", C.c_ushort), ("rest", C.c_ubyte * 54)]


class Copy2D(C.Structure):
    _fields_ = [("sx", SIZE), ("sy", SIZE), ("st", INT), ("sh", PTR), ("sd", U64), ("sa", PTR), ("sp", SIZE),
                ("dx", SIZE), ("dy", SIZE), ("dt", INT), ("dh", PTR), ("dd", U64), ("da", PTR), ("dp", SIZE),
                ("w", SIZE), ("h", SIZE)]


class Copy3D(C.Structure):
    _fields_ = [("sx", SIZE), ("sy", SIZE), ("sz", SIZE), ("sl", SIZE), ("st", INT), ("sh", PTR), ("sd", U64),
                ("sa", PTR), ("r0", PTR), ("sp", SIZE), ("shh", SIZE),
                ("dx", SIZE), ("dy", SIZE), ("dz", SIZE), ("dl", SIZE), ("dt", INT), ("dh", PTR), ("dd", U64),
                ("da", PTR), ("r1", PTR), ("dp", SIZE), ("dhh", SIZE), ("w", SIZE), ("h", SIZE), ("d", SIZE)]


class Config(C.Structure):
    _fields_ = [("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("stream", PTR), ("attrs", PTR),
                ("count", UINT)]


class KernelNode(C.Structure):
    _fields_ = [("f", PTR), ("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("each", PTR), ("extra", PTR),
                ("kernel", PTR), ("context", PTR)]


class FillNode(C.Structure):
    _fields_ = [("at", U64), ("pitch", SIZE), ("value", UINT), ("element", UINT), ("width", SIZE), ("height", SIZE)]


HOST_FUNCTION = C.CFUNCTYPE(None, PTR)
CALLBACK = C.CFUNCTYPE(None, PTR, INT, PTR)


def before_anything():
    say("before init", call("cuDeviceGetCount", BY(INT())), call("cuCtxGetCurrent", BY(PTR())))
    say("flags of init", call("cuInit", 1))
    must("cuInit", 0)
    say("devices", got(INT, "cuDeviceGetCount").value >= 1, call("cuDeviceGet", BY(INT()), 4096),
        call("cuDeviceGet", BY(INT()), -1), call("cuDeviceGetCount", None))
    say("without a context", call("cuMemAlloc_v2", BY(U64()), SIZE(512)), call("cuCtxSynchronize"),
        call("cuCtxGetDevice", BY(INT())), call("cuCtxPopCurrent_v2", BY(PTR())))
    text = C.c_char_p()
    for code in (0, 1, 2, 700, 719, 801, 12345):
        result = call("cuGetErrorName", code, BY(text))
        say("error", code, result, (text.value or b"none").decode())


def entry_points():
    def ask(name, version, flags=0):
        place, status = PTR(), INT(-1)
        result = call("cuGetProcAddress_v2", name.encode(), BY(place), version, U64(flags), BY(status))
        return result, status.value, place.value

    for name, version in (("cuMemAlloc", 12000), ("cuMemAlloc", 3020), ("cuLibraryLoadData", 11000),
                          ("cuNoSuchThing", 12000), ("cuMemAlloc_v2", 12000), ("cuGetProcAddress", 12000),
                          ("cuInit", 2000)):
        result, status, place = ask(name, version)
        say("entry", name, version, result, status, place is not None)
    direct = C.cast(LIB.cuMemcpyHtoD_v2, PTR).value
    say("entry is the symbol", ask("cuMemcpyHtoD", 12000)[2] == direct)
    say("entry per thread", ask("cuMemcpyHtoD", 12000, 2)[2] not in (None, direct),
        ask("cuMemcpyHtoD", 12000, 2)[2] == C.cast(LIB.cuMemcpyHtoD_v2_ptds, PTR).value)
    say("entry flags", ask("cuMemAlloc", 12000, 64)[0])


def contexts():
    flags, active = UINT(), INT()
    must("cuDevicePrimaryCtxGetState", 0, BY(flags), BY(active))
    say("primary before", active.value)
    context = start()
    must("cuDevicePrimaryCtxGetState", 0, BY(flags), BY(active))
    again = got(PTR, "cuDevicePrimaryCtxRetain", 0)
    say("primary after", active.value, again.value == context.value, call("cuDevicePrimaryCtxRelease_v2", 0))
    made = PTR()
    say("made", call("cuCtxCreate_v2", BY(made), 0, 0), got(PTR, "cuCtxGetCurrent").value == made.value)
    must("cuCtxPushCurrent_v2", context)
    say("pushed", got(PTR, "cuCtxGetCurrent").value == context.value)
    say("popped", got(PTR, "cuCtxPopCurrent_v2").value == context.value,
        got(PTR, "cuCtxGetCurrent").value == made.value)
    must("cuCtxSetCurrent", context)
    say("destroyed", call("cuCtxDestroy_v2", made))
    limit = SIZE()
    say("limits", call("cuCtxGetLimit", BY(limit), 2), limit.value, call("cuCtxSetLimit", 2, SIZE(16 * MIB)),
        call("cuCtxGetLimit", BY(limit), 2), limit.value >= 16 * MIB, call("cuCtxSetLimit", 99, SIZE(1)))
    least, best = INT(), INT()
    must("cuCtxGetStreamPriorityRange", BY(least), BY(best))
    say("priorities", least.value, best.value < 0)
    must("cuCtxSetLimit", 2, SIZE(8 * MIB))
    return context


def memory():
    place = U64()
    say("alloc none", call("cuMemAlloc_v2", BY(place), SIZE(0)))
    say("alloc too much", call("cuMemAlloc_v2", BY(place), SIZE(1 << 46)))
    say("free nothing", call("cuMemFree_v2", U64(0)), call("cuMemFree_v2", U64(4096)))
    at = alloc(3 * MIB)
    say("free inside", call("cuMemFree_v2", U64(at.value + 512)))
    base, size = U64(), SIZE()
    say("range", call("cuMemGetAddressRange_v2", BY(base), BY(size), U64(at.value + MIB)), base.value == at.value,
        size.value == 3 * MIB)
    say("range of nothing", call("cuMemGetAddressRange_v2", BY(base), BY(size), U64(4096)))
    must("cuMemsetD8_v2", at, 0x5a, SIZE(3 * MIB))
    must("cuMemsetD16_v2", U64(at.value + 4), 0x1234, SIZE(2))
    must("cuMemsetD32_v2", U64(at.value + 8), 0xdeadbeef, SIZE(1))
    say("fills", [hex(number) for number in get(at, 4)])
    say("fill misaligned", call("cuMemsetD16_v2", U64(at.value + 1), 1, SIZE(1)),
        call("cuMemsetD32_v2", U64(at.value + 2), 1, SIZE(1)))
    say("fill none", call("cuMemsetD8_v2", at, 1, SIZE(0)))
    say("fill past the end", call("cuMemsetD8_v2", at, 1, SIZE(1 << 40)))
    say("copy none", call("cuMemcpyDtoD_v2", at, U64(at.value + 64), SIZE(0)))
    put(at, list(range(8)))
    must("cuMemcpyDtoD_v2", U64(at.value + 32), at, SIZE(16))
    say("copied", get(at, 12))
    say("freed", call("cuMemFree_v2", at), call("cuMemFree_v2", at))
    small = [alloc(100) for _ in range(40)]
    say("small ones", len({at.value for at in small}), all(at.value % 256 == 0 for at in small))
    for at in small:
        must("cuMemFree_v2", at)
    before, total = SIZE(), SIZE()
    must("cuMemGetInfo_v2", BY(before), BY(total))
    at = alloc(512 * MIB)
    after = SIZE()
    must("cuMemGetInfo_v2", BY(after), BY(total))
    say("counted", before.value - after.value == 512 * MIB)
    must("cuMemFree_v2", at)
    pitch = SIZE()
    say("pitch", call("cuMemAllocPitch_v2", BY(place), BY(pitch), SIZE(1000), SIZE(10), 4), pitch.value,
        call("cuMemAllocPitch_v2", BY(U64()), BY(SIZE()), SIZE(1000), SIZE(10), 3))
    must("cuMemsetD2D32_v2", place, pitch, 7, SIZE(3), SIZE(10))
    must("cuMemsetD2D8_v2", U64(place.value + 4), pitch, 1, SIZE(4), SIZE(5))
    say("lines", get(place, 4)[:3], get(U64(place.value + 9 * pitch.value), 4)[:3])
    host = (UINT * 24)(*range(24))
    copy = Copy2D(st=1, sh=C.addressof(host), sp=24, sx=4, sy=1, dt=2, dd=place.value, dp=pitch.value, w=8, h=3)
    say("copy of lines", call("cuMemcpy2D_v2", BY(copy)),
        [get(U64(place.value + line * pitch.value), 2) for line in range(3)])
    narrow = Copy2D(st=1, sh=C.addressof(host), sp=4, dt=2, dd=place.value, dp=pitch.value, w=8, h=3)
    say("copy of lines that overlap", call("cuMemcpy2D_v2", BY(narrow)))
    back = (UINT * 24)()
    cube = Copy3D(st=1, sh=C.addressof(host), sp=8, shh=3, dt=2, dd=place.value, dp=16, dhh=4, w=8, h=3, d=4)
    say("copy of layers", call("cuMemcpy3D_v2", BY(cube)))
    cube = Copy3D(st=2, sd=place.value, sp=16, shh=4, sz=1, dt=1, dh=C.addressof(back), dp=8, dhh=3, w=8, h=3, d=2)
    say("and back", call("cuMemcpy3D_v2", BY(cube)), list(back)[:12])
    any_way = Copy2D(st=4, sd=place.value, sp=16, dt=4, dd=place.value + 4096, dp=16, w=8, h=2)
    say("copy by address", call("cuMemcpy2DUnaligned_v2", BY(any_way)), get(U64(place.value + 4096), 2),
        call("cuMemcpy", U64(place.value + 8192), place, SIZE(8)), get(U64(place.value + 8192), 2))
    must("cuMemFree_v2", place)


def host_memory():
    place, flags, device = PTR(), UINT(), U64()
    say("host none", call("cuMemAllocHost_v2", BY(place), SIZE(0)))
    must("cuMemHostAlloc", BY(place), SIZE(MIB), 2)
    say("host", call("cuMemHostGetFlags", BY(flags), place), flags.value & 2,
        call("cuMemHostGetDevicePointer_v2", BY(device), place, 0), device.value == place.value)
    kernel = function(MODULE, "add")
    C.memset(place, 0, 64)
    say("kernel on it", launch(kernel, device, UINT(5), UINT(4), block=4), call("cuCtxSynchronize"),
        list((UINT * 5).from_address(place.value)))
    say("host free", call("cuMemFreeHost", place), call("cuMemFreeHost", place))
    own = C.create_string_buffer(4 * MIB)
    at = PTR((C.addressof(own) + 4095) & ~4095)
    say("registered", call("cuMemHostRegister_v2", at, SIZE(MIB), 2), call("cuMemHostRegister_v2", at, SIZE(MIB), 2),
        call("cuMemHostGetDevicePointer_v2", BY(device), at, 0))
    C.memset(at, 0, 64)
    say("kernel on it", launch(kernel, device, UINT(9), UINT(2), block=2), call("cuCtxSynchronize"),
        list((UINT * 3).from_address(at.value)))
    say("unregistered", call("cuMemHostUnregister", at), call("cuMemHostUnregister", at))


def addresses():
    at, host = alloc(2 * MIB), PTR()
    must("cuMemAllocHost_v2", BY(host), SIZE(4096))
    here = C.c_int(0)

    def ask(kind, attribute, address):
        value = kind(77)
        result = call("cuPointerGetAttribute", BY(value), attribute, U64(address))
        return (result, value.value) if result == 0 else result

    inside = at.value + 4096
    say("type", ask(UINT, 2, inside), ask(UINT, 2, host.value), ask(UINT, 2, C.addressof(here)))
    say("context", ask(U64, 1, inside) == (0, CONTEXT.value))
    say("pointers", ask(U64, 3, inside) == (0, inside), ask(U64, 4, inside), ask(U64, 4, host.value) == (0, host.value))
    say("range", ask(U64, 11, inside) == (0, at.value), ask(U64, 12, inside) == (0, 2 * MIB))
    say("ordinal", ask(INT, 9, inside), ask(C.c_ubyte, 8, inside), ask(C.c_ubyte, 13, inside))
    say("numbers differ", ask(U64, 7, inside) != ask(U64, 7, host.value))
    attributes = (INT * 3)(2, 9, 3)
    kind, ordinal, pointer = UINT(5), INT(5), U64(5)
    places = pointers(kind, ordinal, pointer)
    say("several", call("cuPointerGetAttributes", 3, attributes, places, U64(C.addressof(here))), kind.value,
        ordinal.value, pointer.value)
    must("cuMemFree_v2", at)
    must("cuMemFreeHost", host)


def virtual_memory():
    prop = Prop(type=1, handles=1, location=Location(1, 0))
    granule = SIZE()
    must("cuMemGetAllocationGranularity", BY(granule), BY(prop), 0)
    say("granule", granule.value)
    size = granule.value
    at = U64()
    say("reserve odd", call("cuMemAddressReserve", BY(at), SIZE(1000), SIZE(0), U64(0), U64(0)),
        call("cuMemAddressReserve", BY(at), SIZE(0), SIZE(0), U64(0), U64(0)))
    must("cuMemAddressReserve", BY(at), SIZE(4 * size), SIZE(0), U64(0), U64(0))
    first, second = U64(), U64()
    say("create odd", call("cuMemCreate", BY(first), SIZE(1000), BY(prop), U64(0)),
        call("cuMemCreate", BY(first), SIZE(1 << 46), BY(prop), U64(0)))
    before, after, total = SIZE(), SIZE(), SIZE()
    must("cuMemGetInfo_v2", BY(before), BY(total))
    must("cuMemCreate", BY(first), SIZE(size), BY(prop), U64(0))
    must("cuMemCreate", BY(second), SIZE(size), BY(prop), U64(0))
    must("cuMemGetInfo_v2", BY(after), BY(total))
    say("counted", before.value - after.value == 2 * size)
    say("map nowhere", call("cuMemMap", U64(1 << 40), SIZE(size), SIZE(0), first, U64(0)))
    must("cuMemMap", at, SIZE(size), SIZE(0), first, U64(0))
    say("map over", call("cuMemMap", at, SIZE(size), SIZE(0), second, U64(0)))
    must("cuMemMap", U64(at.value + size), SIZE(size), SIZE(0), second, U64(0))
    access = Access(Location(1, 0), 3)
    say("access beyond", call("cuMemSetAccess", at, SIZE(3 * size), BY(access), SIZE(1)))
    must("cuMemSetAccess", at, SIZE(2 * size), BY(access), SIZE(1))
    flags = U64()
    must("cuMemGetAccess", BY(flags), BY(Location(1, 0)), at)
    say("access", flags.value)
    across = U64(at.value + size - 8)
    put(across, [1, 2, 3, 4])
    say("across", get(across, 4), launch(function(MODULE, "add"), across, UINT(10), UINT(4), block=4), get(across, 4))
    base, length = U64(), SIZE()
    say("range", call("cuMemGetAddressRange_v2", BY(base), BY(length), across), base.value == at.value,
        length.value == size)
    handle = U64()
    say("retain", call("cuMemRetainAllocationHandle", BY(handle), PTR(at.value)), handle.value == first.value,
        call("cuMemRelease", handle))
    say("free while mapped", call("cuMemAddressFree", at, SIZE(4 * size)))
    say("release while mapped", call("cuMemRelease", second), get(U64(across.value + 8), 2))
    say("unmap", call("cuMemUnmap", U64(at.value + size), SIZE(size)))
    descriptor = INT()
    say("export", call("cuMemExportToShareableHandle", BY(descriptor), first, 1, U64(0)))
    imported = U64()
    say("import", call("cuMemImportFromShareableHandle", BY(imported), PTR(descriptor.value), 1))
    os.close(descriptor.value)
    must("cuMemMap", U64(at.value + 2 * size), SIZE(size), SIZE(0), imported, U64(0))
    must("cuMemSetAccess", U64(at.value + 2 * size), SIZE(size), BY(access), SIZE(1))
    say("the same bytes", get(U64(at.value + 3 * size - 8), 2))
    must("cuMemUnmap", at, SIZE(size))
    must("cuMemUnmap", U64(at.value + 2 * size), SIZE(size))
    say("release", call("cuMemRelease", first), call("cuMemRelease", imported))
    say("free", call("cuMemAddressFree", at, SIZE(4 * size)))
    must("cuMemGetInfo_v2", BY(after), BY(total))
    say("all back", before.value == after.value)


def pools():
    stream = got(PTR, "cuStreamCreate", 1)
    pool = got(PTR, "cuDeviceGetDefaultMemPool", 0)
    say("current", got(PTR, "cuDeviceGetMemPool", 0).value == pool.value)
    kernel = function(MODULE, "add")
    at = U64()
    must("cuMemAllocAsync", BY(at), SIZE(1024), stream)
    must("cuMemsetD32Async", at, 3, SIZE(256), stream)
    must("cuLaunchKernel", kernel, 1, 1, 1, 256, 1, 1, 0, stream, pointers(at, UINT(4), UINT(256)), None)
    out = (UINT * 256)()
    must("cuMemcpyDtoHAsync_v2", out, at, SIZE(1024), stream)
    must("cuMemFreeAsync", at, stream)
    must("cuStreamSynchronize", stream)
    say("in order", set(out))
    used = U64(9)
    must("cuMemPoolGetAttribute", pool, 7, BY(used))
    say("used", used.value)
    props = PoolProps(type=1, location=Location(1, 0))
    own = got(PTR, "cuMemPoolCreate", BY(props))
    threshold = U64(1 << 30)
    must("cuMemPoolSetAttribute", own, 4, BY(threshold))
    must("cuMemAllocFromPoolAsync", BY(at), SIZE(64 * MIB), own, stream)
    must("cuMemPoolGetAttribute", own, 7, BY(used))
    say("used of own", used.value == 64 * MIB)
    must("cuMemFreeAsync", at, stream)
    must("cuStreamSynchronize", stream)
    must("cuMemPoolGetAttribute", own, 5, BY(used))
    say("kept", used.value == 64 * MIB, call("cuMemPoolTrimTo", own, SIZE(0)))
    must("cuMemPoolGetAttribute", own, 5, BY(used))
    say("trimmed", used.value)
    say("set as current", call("cuDeviceSetMemPool", 0, own), got(PTR, "cuDeviceGetMemPool", 0).value == own.value,
        call("cuDeviceSetMemPool", 0, pool))
    say("destroyed", call("cuMemPoolDestroy", own), call("cuMemPoolDestroy", pool) != 0)
    say("free odd", call("cuMemFreeAsync", U64(4096), stream))
    must("cuStreamDestroy_v2", stream)


def order():
    flag = PTR()
    must("cuMemHostAlloc", BY(flag), SIZE(4096), 2)
    word = UINT.from_address(flag.value)
    word.value = 0
    waiter = function(MODULE, "wait_for")
    one, two = got(PTR, "cuStreamCreate", 1), got(PTR, "cuStreamCreate", 1)
    begin, end = got(PTR, "cuEventCreate", 0), got(PTR, "cuEventCreate", 0)
    elapsed = C.c_float()
    say("elapsed of nothing", call("cuEventElapsedTime", BY(elapsed), begin, end))
    say("query of nothing", call("cuEventQuery", begin), call("cuStreamQuery", one))
    must("cuEventRecord", begin, one)
    must("cuStreamSynchronize", one)
    must("cuLaunchKernel", waiter, 1, 1, 1, 1, 1, 1, 0, one, pointers(U64(flag.value), UINT(1)), None)
    must("cuEventRecord", end, one)
    say("under way", call("cuStreamQuery", one), call("cuEventQuery", end), call("cuEventQuery", begin),
        call("cuEventElapsedTime", BY(elapsed), begin, end))
    told = []
    note = HOST_FUNCTION(lambda data: told.append(data))
    must("cuStreamWaitEvent", two, end, 0)
    must("cuLaunchHostFunc", two, note, PTR(42))
    say("the other waits", call("cuStreamQuery", two), told)
    time.sleep(0.05)
    word.value = 1
    must("cuStreamSynchronize", two)
    say("both done", call("cuStreamQuery", one), told, call("cuEventElapsedTime", BY(elapsed), begin, end),
        elapsed.value > 20)
    called = CALLBACK(lambda stream, status, data: told.append((status, data)))
    must("cuStreamAddCallback", one, called, PTR(7), 0)
    must("cuStreamSynchronize", one)
    say("callback", told)
    at = alloc(64)
    must("cuMemsetD32_v2", at, 0, SIZE(16))
    must("cuStreamWaitValue32_v2", one, at, 5, 0)
    must("cuStreamWriteValue32_v2", one, U64(at.value + 4), 9, 0)
    time.sleep(0.02)
    say("waits for a value", call("cuStreamQuery", one))
    must("cuStreamWriteValue32_v2", two, at, 6, 0)
    must("cuStreamSynchronize", one)
    say("value came", get(at, 2))
    # The legacy stream and a blocking one wait for each other; others do not.
    blocking = got(PTR, "cuStreamCreate", 0)
    word.value = 0
    must("cuLaunchKernel", waiter, 1, 1, 1, 1, 1, 1, 0, blocking, pointers(U64(flag.value), UINT(1)), None)
    must("cuMemsetD32Async", at, 1, SIZE(1), None)
    must("cuMemsetD32Async", U64(at.value + 4), 2, SIZE(1), one)
    must("cuStreamSynchronize", one)
    say("legacy waits", call("cuStreamQuery", None), call("cuStreamQuery", one))
    word.value = 1
    must("cuStreamSynchronize", None)
    say("legacy done", get(at, 2), call("cuStreamQuery", blocking))
    # Two kernels at once: the second lets the first go on.
    word.value = 0
    must("cuLaunchKernel", waiter, 1, 1, 1, 1, 1, 1, 0, one, pointers(U64(flag.value), UINT(3)), None)
    must("cuLaunchKernel", function(MODULE, "add"), 1, 1, 1, 1, 1, 1, 0, two,
         pointers(U64(flag.value), UINT(3), UINT(1)), None)
    say("beside each other", call("cuCtxSynchronize"), word.value)
    timeless = got(PTR, "cuEventCreate", 2)
    must("cuEventRecord", timeless, one)
    must("cuEventSynchronize", timeless)
    say("no time", call("cuEventElapsedTime", BY(elapsed), begin, timeless))
    priority, flags = INT(), UINT()
    best = got(PTR, "cuStreamCreateWithPriority", 1, -100)
    must("cuStreamGetPriority", best, BY(priority))
    must("cuStreamGetFlags", best, BY(flags))
    say("priority", priority.value < 0, flags.value, call("cuStreamCreate", BY(PTR()), 77))
    # A thread's own default stream does not wait for the legacy one of another.
    word.value = 0
    must("cuLaunchKernel_ptsz", waiter, 1, 1, 1, 1, 1, 1, 0, None, pointers(U64(flag.value), UINT(1)), None)
    other = []

    def elsewhere():
        must("cuCtxSetCurrent", CONTEXT)
        must("cuMemsetD32Async_ptsz", at, 8, SIZE(1), None)
        must("cuStreamSynchronize_ptsz", None)
        other.append("done")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    say("own streams", other, call("cuStreamQuery_ptsz", None))
    word.value = 1
    must("cuStreamSynchronize_ptsz", None)
    for stream in (one, two, blocking, best):
        must("cuStreamDestroy_v2", stream)
    say("gone", call("cuEventDestroy_v2", begin), call("cuEventDestroy_v2", end))
    must("cuMemFree_v2", at)
    must("cuMemFreeHost", flag)


def modules():
    place = PTR()
    say("bad text", call("cuModuleLoadData", BY(place), b".version 8.0\n.target sm_75\nnonsense\0"),
        call("cuModuleLoadData", BY(place), None), call("cuModuleLoad", BY(place), b"/no/such/file"))
    say("no such function", call("cuModuleGetFunction", BY(place), MODULE, b"nothing"))
    kernel = function(MODULE, "add")
    say("the same", function(MODULE, "add").value == kernel.value)
    at, size = U64(), SIZE()
    say("variable", call("cuModuleGetGlobal_v2", BY(at), BY(size), MODULE, b"counter"), size.value, get(at, 1),
        call("cuModuleGetGlobal_v2", BY(at), BY(size), MODULE, b"nothing"))
    out = alloc(64)
    bump = function(MODULE, "bump")
    for _ in range(3):
        must("cuLaunchKernel", bump, 1, 1, 1, 1, 1, 1, 0, None, pointers(out), None)
    say("counts", get(out, 1))
    offset, length = SIZE(), SIZE()
    say("parameters", [(call("cuFuncGetParamInfo", kernel, SIZE(n), BY(offset), BY(length)), offset.value, length.value)
                       for n in range(3)], call("cuFuncGetParamInfo", kernel, SIZE(3), BY(offset), BY(length)))
    name = C.c_char_p()
    say("name", call("cuFuncGetName", BY(name), kernel), name.value)
    count = UINT()
    say("how many", call("cuModuleGetFunctionCount", BY(count), MODULE), count.value)
    value = INT()
    say("attributes", call("cuFuncGetAttribute", BY(value), 0, kernel), value.value,
        call("cuFuncGetAttribute", BY(value), 1, kernel), value.value,
        call("cuFuncSetAttribute", kernel, 8, 1 << 30), call("cuFuncSetAttribute", kernel, 8, 50 << 10))
    parameters = pointers(out, UINT(1), UINT(1))
    say("odd launches", call("cuLaunchKernel", kernel, 0, 1, 1, 1, 1, 1, 0, None, parameters, None),
        call("cuLaunchKernel", kernel, 1, 1, 1, 2048, 1, 1, 0, None, parameters, None),
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 65, 0, None, parameters, None),
        call("cuLaunchKernel", kernel, 1, 70000, 1, 1, 1, 1, 0, None, parameters, None),
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 60 << 10, None, parameters, None))
    put(out, [0] * 4)
    packed = struct.pack("<QII", out.value, 11, 4)
    buffer, length = C.create_string_buffer(packed, len(packed)), SIZE(len(packed))
    extra = (PTR * 5)(1, C.addressof(buffer), 2, C.addressof(length), 0)
    say("one piece", call("cuLaunchKernel", kernel, 1, 1, 1, 4, 1, 1, 0, None, None, extra), get(out, 4))
    config = Config((UINT * 3)(1, 1, 1), (UINT * 3)(4, 1, 1), 0, None, None, 0)
    say("ex", call("cuLaunchKernelEx", BY(config), kernel, pointers(out, UINT(1), UINT(4)), None), get(out, 4))
    blocks, grid, block = INT(), INT(), INT()
    say("occupancy", call("cuOccupancyMaxActiveBlocksPerMultiprocessor", BY(blocks), kernel, 256, SIZE(0)),
        blocks.value >= 1,
        call("cuOccupancyMaxPotentialBlockSize", BY(grid), BY(block), kernel, None, SIZE(0), 0), block.value % 32,
        grid.value >= 1)
    library = PTR()
    must("cuLibraryLoadData", BY(library), PTX + b"\0", None, None, 0, None, None, 0)
    must("cuLibraryGetKernel", BY(place), library, b"scale")
    say("library", call("cuLibraryGetKernelCount", BY(count), library), count.value,
        call("cuLibraryGetKernel", BY(PTR()), library, b"nothing"))
    must("cuLaunchKernel", place, 1, 1, 1, 4, 1, 1, 0, None, pointers(out, UINT(2), UINT(4)), None)
    say("kernel of it", get(out, 4), call("cuKernelGetName", BY(name), place), name.value,
        call("cuKernelGetAttribute", BY(value), 0, place, 0), value.value)
    inner = PTR()
    say("function of it", call("cuKernelGetFunction", BY(inner), place),
        launch(inner, out, UINT(3), UINT(4), block=4), get(out, 4))
    say("its variable", call("cuLibraryGetGlobal", BY(at), BY(size), library, b"counter"), get(at, 1))
    say("unload", call("cuLibraryUnload", library))
    must("cuMemFree_v2", out)


def graphs():
    one, two = got(PTR, "cuStreamCreate", 1), got(PTR, "cuStreamCreate", 1)
    add, scale = function(MODULE, "add"), function(MODULE, "scale")
    at = alloc(4096)
    put(at, [1] * 8)
    fork, join = got(PTR, "cuEventCreate", 2), got(PTR, "cuEventCreate", 2)
    status = INT()
    say("not captured", call("cuStreamIsCapturing", one, BY(status)), status.value,
        call("cuStreamEndCapture", one, BY(PTR())))
    say("legacy", call("cuStreamBeginCapture_v2", None, 0))
    must("cuStreamBeginCapture_v2", one, 0)
    say("captured", call("cuStreamIsCapturing", one, BY(status)), status.value)
    must("cuLaunchKernel", add, 1, 1, 1, 4, 1, 1, 0, one, pointers(at, UINT(1), UINT(4)), None)
    must("cuEventRecord", fork, one)
    must("cuStreamWaitEvent", two, fork, 0)
    must("cuLaunchKernel", scale, 1, 1, 1, 4, 1, 1, 0, two, pointers(U64(at.value + 16), UINT(3), UINT(4)), None)
    must("cuLaunchKernel", scale, 1, 1, 1, 4, 1, 1, 0, one, pointers(at, UINT(2), UINT(4)), None)
    must("cuEventRecord", join, two)
    must("cuStreamWaitEvent", one, join, 0)
    must("cuMemcpyDtoDAsync_v2", U64(at.value + 1024), at, SIZE(32), one)
    graph = PTR()
    must("cuStreamEndCapture", one, BY(graph))
    say("nothing done", get(at, 8))
    count = SIZE()
    must("cuGraphGetNodes", graph, None, BY(count))
    nodes = (PTR * count.value)()
    must("cuGraphGetNodes", graph, nodes, BY(count))
    kinds = []
    for node in nodes:
        must("cuGraphNodeGetType", PTR(node), BY(status))
        kinds.append(status.value)
    edges = SIZE()
    must("cuGraphGetEdges", graph, None, None, BY(edges))
    roots = SIZE()
    must("cuGraphGetRootNodes", graph, None, BY(roots))
    say("nodes", sorted(kinds), "edges", edges.value, "roots", roots.value)
    run = PTR()
    must("cuGraphInstantiateWithFlags", BY(run), graph, U64(0))
    for _ in range(3):
        must("cuGraphLaunch", run, one)
    must("cuStreamSynchronize", one)
    say("thrice", get(at, 8), get(U64(at.value + 1024), 8))
    clone, same = PTR(), PTR()
    must("cuGraphClone", BY(clone), graph)
    say("clone", call("cuGraphNodeFindInClone", BY(same), PTR(nodes[0]), clone), same.value != nodes[0])
    first = next(PTR(node) for node, kind in zip(nodes, kinds) if kind == 0)
    old = KernelNode()
    must("cuGraphKernelNodeGetParams_v2", first, BY(old))
    say("parameters", list(old.grid), list(old.block), old.shared)
    new = KernelNode(old.f, old.grid, old.block, 0, C.addressof(p := pointers(at, UINT(100), UINT(4))), None, None, None)
    say("changed in exec", call("cuGraphExecKernelNodeSetParams_v2", run, first, BY(new)))
    put(at, [1] * 8)
    must("cuGraphLaunch", run, one)
    must("cuStreamSynchronize", one)
    say("with it", get(at, 8))
    say("disabled", call("cuGraphNodeSetEnabled", run, first, 0))
    put(at, [1] * 8)
    must("cuGraphLaunch", run, one)
    must("cuStreamSynchronize", one)
    say("without it", get(at, 8), p is not None)
    say("destroyed", call("cuGraphExecDestroy", run), call("cuGraphDestroy", graph), call("cuGraphDestroy", clone))

    must("cuStreamBeginCapture_v2", one, 0)
    must("cuEventRecord", fork, one)
    must("cuStreamWaitEvent", two, fork, 0)
    must("cuMemsetD32Async", at, 1, SIZE(1), two)
    say("not joined", call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 0)
    say("waiting for it", call("cuStreamSynchronize", one), call("cuStreamIsCapturing", one, BY(status)), status.value)
    say("spoilt", call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 0)
    say("allocating meanwhile", call("cuMemAlloc_v2", BY(U64()), SIZE(64)))
    say("spoilt too", call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 0)
    must("cuEventRecord", fork, one)
    say("asking its event", call("cuEventQuery", fork), call("cuStreamEndCapture", one, BY(graph)))
    other = got(PTR, "cuEventCreate", 2)
    must("cuStreamBeginCapture_v2", one, 0)
    say("asking another event", call("cuEventQuery", other), call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 0)
    say("asking another stream", call("cuStreamQuery", two), call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 2)
    say("waiting for all when relaxed", call("cuCtxSynchronize"), call("cuStreamEndCapture", one, BY(graph)))
    must("cuStreamBeginCapture_v2", one, 2)
    say("asking another event when relaxed", call("cuEventQuery", other), call("cuStreamEndCapture", one, BY(graph)))
    must("cuGraphDestroy", graph)
    must("cuStreamBeginCapture_v2", one, 2)
    kept = U64()
    say("allocating when relaxed", call("cuMemAlloc_v2", BY(kept), SIZE(64)))
    say("not spoilt", call("cuStreamEndCapture", one, BY(graph)), call("cuGraphDestroy", graph))
    must("cuMemFree_v2", kept)

    must("cuGraphCreate", BY(graph), 0)
    fill = FillNode(at.value, 0, 5, 4, 8, 1)
    a, b, c, d = PTR(), PTR(), PTR(), PTR()
    must("cuGraphAddMemsetNode", BY(a), graph, None, SIZE(0), BY(fill), CONTEXT)
    node = KernelNode(add.value, (UINT * 3)(1, 1, 1), (UINT * 3)(8, 1, 1), 0,
                      C.addressof(p := pointers(at, UINT(2), UINT(8))), None, None, None)
    must("cuGraphAddKernelNode_v2", BY(b), graph, BY(a), SIZE(1), BY(node))
    told = []
    note = HOST_FUNCTION(lambda data: told.append(data))
    host = (PTR * 2)(C.cast(note, PTR).value, 5)
    must("cuGraphAddHostNode", BY(c), graph, BY(b), SIZE(1), host)
    must("cuGraphAddEmptyNode", BY(d), graph, BY(c), SIZE(1))
    say("ring", call("cuGraphAddDependencies", graph, BY(d), BY(a), SIZE(1)) != 0
        or call("cuGraphInstantiateWithFlags", BY(run), graph, U64(0)) != 0)
    count = SIZE()
    must("cuGraphNodeGetDependencies", b, None, BY(count))
    say("before it", count.value)
    call("cuGraphRemoveDependencies", graph, BY(d), BY(a), SIZE(1))
    parent, child = PTR(), PTR()
    must("cuGraphCreate", BY(parent), 0)
    must("cuGraphAddChildGraphNode", BY(child), parent, None, SIZE(0), graph)
    must("cuGraphAddKernelNode_v2", BY(b), parent, BY(child), SIZE(1), BY(node))
    must("cuGraphInstantiateWithFlags", BY(run), parent, U64(0))
    must("cuGraphLaunch", run, one)
    must("cuGraphLaunch", run, one)
    must("cuStreamSynchronize", one)
    say("by hand", get(at, 8), told, p is not None)
    must("cuGraphExecDestroy", run)
    for one_graph in (parent, graph):
        must("cuGraphDestroy", one_graph)
    must("cuStreamDestroy_v2", one)
    must("cuStreamDestroy_v2", two)
    must("cuMemFree_v2", at)


def graph_memory():
    one = got(PTR, "cuStreamCreate", 1)
    add = function(MODULE, "add")
    out, inner, graph, run = alloc(4096), U64(), PTR(), PTR()
    put(out, [0] * 8)
    must("cuStreamBeginCapture_v2", one, 2)
    must("cuMemAllocAsync", BY(inner), SIZE(4096), one)
    must("cuMemsetD32Async", inner, 5, SIZE(8), one)
    must("cuLaunchKernel", add, 1, 1, 1, 8, 1, 1, 0, one, pointers(inner, UINT(3), UINT(8)), None)
    must("cuMemcpyDtoDAsync_v2", out, inner, SIZE(32), one)
    must("cuMemFreeAsync", inner, one)
    must("cuStreamEndCapture", one, BY(graph))
    count, kind, kinds = SIZE(), INT(), []
    must("cuGraphGetNodes", graph, None, BY(count))
    nodes = (PTR * count.value)()
    must("cuGraphGetNodes", graph, nodes, BY(count))
    for node in nodes:
        must("cuGraphNodeGetType", PTR(node), BY(kind))
        kinds.append(kind.value)
    say("nodes", sorted(kinds))
    must("cuGraphInstantiateWithFlags", BY(run), graph, U64(0))
    for _ in range(3):
        must("cuGraphLaunch", run, one)
    must("cuStreamSynchronize", one)
    say("memory of its own", get(out, 8))
    used = U64(7)
    # How much is kept until it is trimmed is the driver's choice.
    say("given back", call("cuDeviceGetGraphMemAttribute", 0, 0, BY(used)), call("cuDeviceGraphMemTrim", 0))
    must("cuGraphExecDestroy", run)
    must("cuGraphDestroy", graph)
    # Taken in a graph, and freed outside of it.
    must("cuStreamBeginCapture_v2", one, 2)
    must("cuMemAllocAsync", BY(inner), SIZE(4096), one)
    must("cuMemsetD32Async", inner, 9, SIZE(8), one)
    must("cuStreamEndCapture", one, BY(graph))
    must("cuGraphInstantiateWithFlags", BY(run), graph, U64(0))
    for _ in range(2):
        must("cuGraphLaunch", run, one)
        must("cuMemcpyDtoDAsync_v2", out, inner, SIZE(32), one)
        must("cuMemFreeAsync", inner, one)
    must("cuStreamSynchronize", one)
    say("freed outside", get(out, 8))
    must("cuGraphExecDestroy", run)
    must("cuGraphDestroy", graph)
    must("cuStreamDestroy_v2", one)
    must("cuMemFree_v2", out)


def broken(what):
    """In a process of its own: a kernel that goes wrong, and what every call says from then on."""
    start()
    kernels = module()
    if what == "address":
        say("launch", launch(function(kernels, "add"), U64(64), UINT(1), UINT(1)))
    else:
        at = alloc(64)
        say("launch", launch(function(kernels, "add"), U64(at.value + 2), UINT(1), UINT(1)))
    say("then", call("cuCtxSynchronize"), call("cuMemAlloc_v2", BY(U64()), SIZE(64)), call("cuStreamQuery", None),
        call("cuMemGetInfo_v2", BY(SIZE()), BY(SIZE())))


def main():
    global CONTEXT, MODULE
    if len(sys.argv) > 1:
        return broken(sys.argv[1])
    before_anything()
    entry_points()
    CONTEXT = contexts()
    MODULE = module()
    for part in (memory, host_memory, addresses, virtual_memory, pools, order, modules, graphs, graph_memory):
        print(f"# {part.__name__}")
        part()
    for what in ("address", "alignment"):
        print(f"# a wrong {what}")
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, what], check=True)
    say("unload", call("cuModuleUnload", MODULE), call("cuDevicePrimaryCtxRelease_v2", 0))


main()
