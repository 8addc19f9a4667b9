"""Has the driver checkpoint a process, and restore it when a line is read: `checkpoint.py PID`."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    """Calls a function of the driver; a failure ends the program with the function's name and the error."""
    error = getattr(driver, name)(*arguments)
    if error:
        sys.exit(f"{name}: error {error}")


def of_process(name, milliseconds=0):
    # Each of the four takes the process and a structure of 64 bytes, which begins with the timeout of a lock.
    call(name, int(sys.argv[1]), (ctypes.c_uint32 * 16)(milliseconds))


call("cuInit", 0)
of_process("cuCheckpointProcessLock", 10_000)
of_process("cuCheckpointProcessCheckpoint")
print("checkpointed", flush=True)
sys.stdin.readline()
of_process("cuCheckpointProcessRestore")
of_process("cuCheckpointProcessUnlock")
print("restored", flush=True)
