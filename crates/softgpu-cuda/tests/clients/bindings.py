"""cuda-python's bindings on whatever GPU there is: the driver API, call by call."""

import sys

import numpy as np
from cuda.bindings import driver


def must(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


must(driver.cuInit(0))
device = must(driver.cuDeviceGet(0))
context = must(driver.cuDevicePrimaryCtxRetain(device))
must(driver.cuCtxSetCurrent(context))
module = must(driver.cuModuleLoadData(open(sys.argv[1], "rb").read() + b"\0"))
function = must(driver.cuModuleGetFunction(module, b"add_i32"))
numbers = np.arange(1000, dtype=np.int32)
places = [must(driver.cuMemAlloc(numbers.nbytes)) for _ in range(3)]
for place in places[:2]:
    must(driver.cuMemcpyHtoD(place, numbers.ctypes.data, numbers.nbytes))
values = (numbers.size, *places)
kinds = (np.uint32, np.uint64, np.uint64, np.uint64)
arrays = [np.array([int(value)], dtype=kind) for value, kind in zip(values, kinds)]
pointers = np.array([array.ctypes.data for array in arrays], dtype=np.uint64)
stream = must(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
must(driver.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, pointers.ctypes.data, 0))
must(driver.cuStreamSynchronize(stream))
out = np.zeros_like(numbers)
must(driver.cuMemcpyDtoH(out.ctypes.data, places[2], out.nbytes))
print("add", bool((out == 2 * numbers).all()))
for place in places:
    must(driver.cuMemFree(place))
must(driver.cuDevicePrimaryCtxRelease(device))
