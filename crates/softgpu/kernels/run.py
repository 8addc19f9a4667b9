#!/usr/bin/env python3
"""Runs the cases of cases.json on whatever libcuda.so.1 the system has, and writes what came out.

    run.py OUT              outputs of every case, OUT/<case>.<buffer>.bin
    run.py --compile OUT    first compiles the *.cu beside it to PTX with nvcc, into OUT

Only the driver API, by ctypes: the same script runs on a real GPU and on a soft one.
"""

import ctypes as C
import json
import pathlib
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
EDGES32 = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF,
           0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F812345, 0x4F000000, 0xCF000000, 0x4F800000,
           0x5F000000, 0xDF000000, 0x5F800000, 0x3F000000, 0x3FC00000, 0xBF000000, 0xC0200000, 0x4B000001, 0x33800000]
EDGES64 = [0, 1 << 63, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000,
           0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000001234,
           0x41DFFFFFFFC00000, 0xC1E0000000000000, 0x43E0000000000000, 0xC3E0000000000000, 0x43F0000000000000,
           0x3FE0000000000000, 0x3FF8000000000000, 0xC004000000000000, 0x3E70000000000000, 0x36A0000000000000]


class Stream:
    """Numbers that are the same everywhere."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return self.state


def fill(spec):
    """The bytes a buffer begins with."""
    kind, count, how = spec["type"], spec["count"], spec["fill"]
    size = {"u32": 4, "f32": 4, "u64": 8, "f64": 8}[kind]
    numbers = Stream(spec["seed"])
    if how == "zero":
        return bytes(size * count)
    if how == "atomics":
        return struct.pack("<9I", 0xFFFFFFFF, 0, 0xFFFFFFFF, 0, 0, 0, 0, 0, 0)
    out = bytearray()
    for i in range(count):
        raw = numbers.next()
        if how == "raw":
            out += struct.pack("<I", raw >> 32) if size == 4 else struct.pack("<Q", raw ^ (raw >> 29))
        elif how == "unit":
            out += struct.pack("<f", ((raw >> 40) - (1 << 23)) / (1 << 23))
        elif how == "wide":
            out += struct.pack("<f", ((raw >> 40) - (1 << 23)) / (1 << 20))
        elif how == "classes":
            out += struct.pack("<I", (raw >> 32) % 5)
        elif how == "edges":
            table = EDGES32 if size == 4 else EDGES64
            pick = table[(raw >> 33) % len(table)] if i % 3 else (raw >> 32 if size == 4 else raw ^ (raw >> 29))
            out += struct.pack("<I" if size == 4 else "<Q", pick)
        else:
            raise SystemExit(f"no such fill: {how}")
    return bytes(out)


class Cuda:
    """The few driver calls that are needed."""

    def __init__(self):
        self.lib = C.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context = C.c_int(), C.c_void_p()
        self("cuDeviceGet", C.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", C.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result:
            text = C.c_char_p()
            self.lib.cuGetErrorName(result, C.byref(text))
            raise SystemExit(f"{name}: {result} {text.value}")

    def alloc(self, data):
        pointer = C.c_uint64()
        self("cuMemAlloc_v2", C.byref(pointer), C.c_size_t(len(data)))
        self("cuMemcpyHtoD_v2", pointer, data, C.c_size_t(len(data)))
        return pointer

    def read(self, pointer, size):
        out = C.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", out, pointer, C.c_size_t(size))
        return out.raw


def run(cuda, case, folder, out):
    module = C.c_void_p()
    ptx = (folder / f"{case['module']}.ptx").read_bytes() + b"\0"
    cuda("cuModuleLoadData", C.byref(module), ptx)
    contents = {name: fill(spec) for name, spec in case["buffers"].items()}
    buffers = {name: cuda.alloc(data) for name, data in contents.items()}
    for launch in case["launches"]:
        function = C.c_void_p()
        cuda("cuModuleGetFunction", C.byref(function), module, launch["kernel"].encode())
        values = []
        for argument in launch["args"]:
            (kind, value), *_ = argument.items()
            values.append({
                "u32": lambda: C.c_uint32(value),
                "f32": lambda: C.c_float(value),
                "buffer": lambda: buffers[value],
                "bytes": lambda: C.create_string_buffer(bytes.fromhex(value), len(value) // 2),
            }[kind]())
        pointers = (C.c_void_p * len(values))(*(C.addressof(value) for value in values))
        cuda("cuLaunchKernel", function, *launch["grid"], *launch["block"], launch["shared"], None, pointers, None)
    cuda("cuCtxSynchronize")
    for name in case["outputs"]:
        (out / f"{case['name']}.{name}.bin").write_bytes(cuda.read(buffers[name], len(contents[name])))
    for pointer in buffers.values():
        cuda("cuMemFree_v2", pointer)
    cuda("cuModuleUnload", module)


def main():
    arguments = sys.argv[1:]
    out = pathlib.Path(arguments[-1])
    out.mkdir(parents=True, exist_ok=True)
    folder = HERE
    if arguments[0] == "--compile":
        folder = out
        for source in sorted(HERE.glob("*.cu")):
            subprocess.run(["nvcc", "-O2", "-arch=compute_75", "-ptx", "-o", out / f"{source.stem}.ptx", source], check=True)
    cuda = Cuda()
    cases = json.loads((HERE / "cases.json").read_text())["cases"]
    for case in cases:
        run(cuda, case, folder, out)
    print(f"{len(cases)} cases ran")


main()
