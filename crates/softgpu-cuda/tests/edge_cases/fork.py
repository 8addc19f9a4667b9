"""A child of a child keeps its own files, whatever their numbers are."""

import os

from cuda import *

start()
if os.fork() == 0:
    say("child", call("cuInit", 0))
    ends = [os.pipe() for _ in range(4)]
    if os.fork() == 0:
        for _, end in ends:
            os.write(end, b"x")
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
say("ended", os.waitstatus_to_exitcode(os.wait()[1]))
