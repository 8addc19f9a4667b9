"""The driver API by ctypes, for scripts that run on a real GPU and on a soft one."""

import ctypes as C
import sys

LIB = C.CDLL("libcuda.so.1")
U64, PTR, INT, UINT, SIZE = C.c_uint64, C.c_void_p, C.c_int, C.c_uint, C.c_size_t
BY = C.byref

# Sizes and addresses are 64 bits wide; a plain Python number would be passed as 32.
WIDE = {"cuMemAlloc_v2", "cuMemHostAlloc"}

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry add(.param .u64 data, .param .u32 amount, .param .u32 count)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [amount]; ld.param.u32 %r2, [count];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    add.s32 %r7, %r7, %r1;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
.visible .entry scale(.param .u64 data, .param .u32 factor, .param .u32 count)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [factor]; ld.param.u32 %r2, [count];
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    mul.lo.s32 %r7, %r7, %r1;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}
.visible .entry wait_for(.param .u64 flag, .param .u32 value)
{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag]; ld.param.u32 %r1, [value];
AGAIN:
    ld.volatile.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, %r1;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry bump(.param .u64 out)
{
    .reg .b32 %r<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd2, counter;
    ld.global.u32 %r1, [%rd2];
    add.s32 %r2, %r1, 1;
    st.global.u32 [%rd2], %r2;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def call(name, *arguments):
    """What a call answers."""
    return getattr(LIB, name)(*arguments)


def must(name, *arguments):
    """A call that is expected to work."""
    result = call(name, *arguments)
    if result:
        text = C.c_char_p()
        LIB.cuGetErrorName(result, BY(text))
        raise SystemExit(f"{name}: {result} {(text.value or b'?').decode()}")


def got(kind, name, *arguments, first=True):
    """What a call that is expected to work writes to its first (or last) argument."""
    place = kind()
    must(name, *((BY(place), *arguments) if first else (*arguments, BY(place))))
    return place


def start(device=0):
    """A context on a GPU."""
    must("cuInit", 0)
    context = got(PTR, "cuDevicePrimaryCtxRetain", device)
    must("cuCtxSetCurrent", context)
    return context


def alloc(size):
    return got(U64, "cuMemAlloc_v2", SIZE(size))


def module(text=PTX):
    return got(PTR, "cuModuleLoadData", text + b"\0")


def function(of, name):
    return got(PTR, "cuModuleGetFunction", of, name.encode())


def pointers(*values):
    """A list of pointers to parameters; they live as long as the list."""
    out = (C.c_void_p * len(values))(*(C.addressof(value) for value in values))
    out.kept = values
    return out


def launch(of, *values, grid=1, block=1, stream=None, shared=0, name="cuLaunchKernel"):
    """What a launch answers."""
    return call(name, of, grid, 1, 1, block, 1, 1, shared, stream, pointers(*values), None)


def put(at, numbers):
    data = (UINT * len(numbers))(*numbers)
    must("cuMemcpyHtoD_v2", at, data, SIZE(C.sizeof(data)))


def get(at, count):
    data = (UINT * count)()
    must("cuMemcpyDtoH_v2", data, at, SIZE(C.sizeof(data)))
    return list(data)


def say(what, *values):
    print(f"{what}:", *values)
    sys.stdout.flush()
