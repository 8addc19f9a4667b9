"""A copy whose size is no number is refused, and the stream goes on."""

from cuda import *

FIELDS = "x y z level kind host device array context pitch height".split()


class Memcpy3D(C.Structure):
    _fields_ = [(end + name, INT if name == "kind" else U64) for end in ("from_", "to_") for name in FIELDS] + [
        ("width", SIZE), ("height", SIZE), ("depth", SIZE)]


start()
mine = alloc(4 << 20)
host = C.create_string_buffer(4096)
copy = Memcpy3D(from_kind=1, from_host=C.addressof(host), from_pitch=1 << 20, from_height=1 << 40, to_kind=2,
                to_device=mine.value, to_pitch=8, to_height=1, width=8, height=1, depth=64)
say("copy", call("cuMemcpy3D_v2", BY(copy)))
say("after", call("cuMemsetD8_v2", mine, 1, SIZE(64)))
