"""The few calls of torch that the stories of parked.py make, over the driver API, for soft GPUs."""

import ctypes
import types

float32 = float64 = None
_driver = ctypes.CDLL("libcuda.so.1")
_ONE = b"\x00\x00\x80\x3f"
_PIECE = 64 << 20


def _call(name, *arguments):
    error = getattr(_driver, name)(*arguments)
    if error:
        raise RuntimeError(f"{name} failed with CUDA error {error}")


def _start():
    context = ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _call("cuCtxSetCurrent", context)
    return context


_context = _start()


class ones:
    """Floats on GPU 0, all of them 1."""

    def __init__(self, count, dtype=None, device=None):
        self.count = count
        self.address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(4 * count))
        _call("cuMemsetD32_v2", self.address, 0x3F800000, ctypes.c_size_t(count))

    def numel(self):
        return self.count

    def split(self, _):
        return [self]

    def __getitem__(self, _):
        return self

    def sum(self, dtype=None):
        _call("cuCtxSetCurrent", _context)
        self._take_scratch()
        found, size = 0, 4 * self.count
        piece = ctypes.create_string_buffer(min(size, _PIECE))
        for offset in range(0, size, _PIECE):
            length = min(_PIECE, size - offset)
            _call("cuMemcpyDtoH_v2", piece, ctypes.c_uint64(self.address.value + offset), ctypes.c_size_t(length))
            found += piece.raw[:length].count(_ONE)
        return _Number(found)


    def _take_scratch(self):
        """Torch keeps what its first sum needs: the program has more than when it was adopted."""
        if not hasattr(self, "scratch"):
            self.scratch = ctypes.c_uint64()
            _call("cuMemAlloc_v2", ctypes.byref(self.scratch), ctypes.c_size_t(32 << 20))


class _Number(int):
    def item(self):
        return float(self)


cuda = types.SimpleNamespace(synchronize=lambda: _call("cuCtxSynchronize"))
