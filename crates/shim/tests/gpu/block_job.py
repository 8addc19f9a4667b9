"""Holds memory in blocks and does what it is told, a line at a time: a program of the driver API, by ctypes.

    block_job.py COUNT MIB

    ceiling   how fast pinned copies of it are, out and in, in GiB/s
    check     whether every block is as it was filled
    end

It answers each line with one of JSON. Before it takes the blocks it says what the driver says it has.
"""

import ctypes as C
import json
import sys
import time

cuda = C.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        raise SystemExit(f"{name}: {result}")


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    count, size = int(sys.argv[1]), int(sys.argv[2]) << 20
    device, context, stream = C.c_int(), C.c_void_p(), C.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", C.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", C.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", C.byref(stream), 0)
    # The first copy and the first fill make the driver take what it needs for them.
    small = C.c_uint64()
    call("cuMemAlloc_v2", C.byref(small), C.c_size_t(1 << 20))
    call("cuMemsetD32_v2", small, C.c_uint(1), C.c_size_t(1 << 18))
    call("cuCtxSynchronize")
    say(ready=False)
    sys.stdin.readline()
    blocks = []
    for number in range(count):
        at = C.c_uint64()
        call("cuMemAlloc_v2", C.byref(at), C.c_size_t(size))
        call("cuMemsetD32_v2", at, C.c_uint(number + 1), C.c_size_t(size // 4))
        blocks.append(at)
    call("cuCtxSynchronize")
    say(ready=True, bytes=count * size)
    piece = min(size, 1 << 30)
    host = C.c_void_p()
    call("cuMemHostAlloc", C.byref(host), C.c_size_t(piece), C.c_uint(0))

    def speed(is_out):
        copies = max(1, min(16, (16 << 30) // piece, count))
        for warm in (True, False):
            begun = time.perf_counter()
            for number in range(1 if warm else copies):
                if is_out:
                    call("cuMemcpyDtoHAsync_v2", host, blocks[number], C.c_size_t(piece), stream)
                else:
                    call("cuMemcpyHtoDAsync_v2", blocks[0], host, C.c_size_t(piece), stream)
            call("cuStreamSynchronize", stream)
            taken = time.perf_counter() - begun
        return copies * piece / (1 << 30) / taken

    for line in sys.stdin:
        if line.strip() == "ceiling":
            out, back = speed(True), speed(False)
            call("cuMemsetD32_v2", blocks[0], C.c_uint(1), C.c_size_t(size // 4))
            call("cuCtxSynchronize")
            say(out=out, back=back)
        elif line.strip() == "check":
            wrong = 0
            view = (C.c_uint32 * (piece // 4)).from_address(host.value)
            for number, block in enumerate(blocks):
                call("cuMemcpyDtoH_v2", host, block, C.c_size_t(piece))
                # The first and the last of it, and every 4096th: all would take Python longer than the GPU.
                wrong += any(word != number + 1 for word in view[::4096]) or view[piece // 4 - 1] != number + 1
            say(blocks=len(blocks), wrong=wrong)
        elif line.strip() == "end":
            break


main()
