"""A module that does not fit leaves nothing behind."""

from cuda import *

TWO = b".version 8.0\n.target sm_75\n.address_size 64\n.global .align 4 .b8 a[1073741824];\n.global .align 4 .b8 b[1073741824];\n\0"
start()
free, total, before = SIZE(), SIZE(), SIZE()
must("cuMemGetInfo_v2", BY(before), BY(total))
for _ in range(2):
    assert call("cuModuleLoadData", BY(PTR()), TWO) == 2
must("cuMemGetInfo_v2", BY(free), BY(total))
say("gone", before.value - free.value)
