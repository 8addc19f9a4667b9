#!/usr/bin/env python3
"""Holds memory of a card for a while: a program of CUDA's driver API, by ctypes and nothing else.

    hold.py 2G [SECONDS]              2 GiB of the first visible card, for 10 s
    hold.py 2G [SECONDS] --card UUID  of this one

It runs on real cards, and on soft ones (`sublet soft env -- python3 hold.py 2G`). Prints one line when
it has the memory; exits with 2 if there is none.
"""

import argparse
import ctypes as C
import sys
import time

UNITS = {"M": 1 << 20, "G": 1 << 30}


def size(text):
    number, unit = text.removesuffix("iB").removesuffix("B")[:-1], text.removesuffix("iB").removesuffix("B")[-1:]
    if unit not in UNITS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"`{text}` is no size such as 512M or 2G")
    return int(number) * UNITS[unit]


def uuid_of(cuda, device):
    raw = (C.c_ubyte * 16)()
    call(cuda, "cuDeviceGetUuid", C.byref(raw), device)
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def call(cuda, name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        text = C.c_char_p()
        cuda.cuGetErrorName(result, C.byref(text))
        print(f"{name}: {(text.value or b'?').decode()}", file=sys.stderr)
        sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bytes", type=size, metavar="SIZE")
    parser.add_argument("seconds", type=float, nargs="?", default=10.0, metavar="SECONDS")
    parser.add_argument("--card", metavar="UUID")
    asked = parser.parse_args()
    cuda = C.CDLL("libcuda.so.1")
    call(cuda, "cuInit", 0)
    count, device, context, memory = C.c_int(), C.c_int(), C.c_void_p(), C.c_uint64()
    call(cuda, "cuDeviceGetCount", C.byref(count))
    for number in range(count.value):
        call(cuda, "cuDeviceGet", C.byref(device), number)
        if asked.card in (None, uuid_of(cuda, device)):
            break
    else:
        sys.exit(f"card {asked.card} is not visible")
    call(cuda, "cuDevicePrimaryCtxRetain", C.byref(context), device)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemAlloc_v2", C.byref(memory), C.c_size_t(asked.bytes))
    print(f"holding {asked.bytes >> 20} MiB of {uuid_of(cuda, device)}", flush=True)
    time.sleep(asked.seconds)


main()
