"""An address that is not as wished takes no more than it says."""

from cuda import *


def mapped():
    lines = [line.split("-") for line in open("/proc/self/maps")]
    return sum(int(to.split()[0], 16) - int(begin, 16) for begin, to, *_ in lines)


start()
size = SIZE(1 << 30)
before = mapped()
for number in range(20):
    at = got(U64, "cuMemAddressReserve", size, SIZE(0), U64(0x6000_0000_1000 + (number << 31)), U64(0))
    must("cuMemAddressFree", at, size)
say("more", mapped() - before >> 30)
