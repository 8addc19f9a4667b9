#!/usr/bin/env python3
"""Takes processes off their GPUs and puts them back, in and out of order, and says what was answered.

The same is said on a real GPU and on a soft one. A holder is this script in a process of its own:
it holds memory whose contents it knows, and does what it is told on its standard input.
"""

import ctypes as C
import os
import signal
import subprocess
import sys
import time

from cuda import BY, INT, PTR, SIZE, U64, UINT, alloc, call, function, got, module, must, pointers, say, start

MIB = 1 << 20
HOLDS = 64 * MIB
WORD = 0xC0FFEE


class LockArguments(C.Structure):
    _fields_ = [("timeout_ms", UINT), ("reserved0", UINT), ("reserved1", U64 * 7)]


def hold(managed):
    """A holder's life."""
    start()
    waiter = function(module(), "wait_for")
    at = alloc(HOLDS)
    must("cuMemsetD32_v2", at, WORD, SIZE(HOLDS // 4))
    if managed:
        extra = U64()
        result = call("cuMemAllocManaged", BY(extra), SIZE(MIB), 1)
        if result:
            print("no managed memory", result, flush=True)
    flag = PTR()
    must("cuMemHostAlloc", BY(flag), SIZE(4096), 2)
    word = UINT.from_address(flag.value)
    print("holds", flush=True)
    for line in sys.stdin:
        order = line.strip()
        if order == "spin":
            word.value = 0
            must("cuLaunchKernel", waiter, 1, 1, 1, 1, 1, 1, 0, None, pointers(U64(flag.value), UINT(1)), None)
            print("spins", flush=True)
        elif order == "release":
            word.value = 1
            print("released", flush=True)
        elif order == "check":
            data = C.create_string_buffer(HOLDS)
            result = call("cuMemcpyDtoH_v2", data, at, SIZE(HOLDS))
            is_intact = result == 0 and data.raw == WORD.to_bytes(4, "little") * (HOLDS // 4)
            print("intact" if is_intact else f"result {result}", flush=True)


class Holder:
    def __init__(self, *how):
        self.process = subprocess.Popen([sys.executable, __file__, "hold", *how], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        while (line := self.process.stdout.readline().strip()) != "holds":
            print(line, flush=True)

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def ask(self, order):
        self.tell(order)
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.wait()


def state(pid):
    value = INT(-1)
    result = call("cuCheckpointProcessGetState", pid, BY(value))
    return value.value if result == 0 else f"error {result}"


def lock(pid, timeout_ms=5000):
    return call("cuCheckpointProcessLock", pid, BY(LockArguments(timeout_ms)))


def checkpoint(pid):
    return call("cuCheckpointProcessCheckpoint", pid, None)


def restore(pid):
    return call("cuCheckpointProcessRestore", pid, None)


def unlock(pid):
    return call("cuCheckpointProcessUnlock", pid, None)


def free():
    left, total = SIZE(), SIZE()
    must("cuMemGetInfo_v2", BY(left), BY(total))
    return left.value


def there_and_back():
    holder = Holder()
    pid = holder.pid
    say("state", state(pid))
    thread = INT(-1)
    result = call("cuCheckpointProcessGetRestoreThreadId", pid, BY(thread))
    say("restoring thread", result, os.path.isdir(f"/proc/{pid}/task/{thread.value}"))
    say("lock", lock(pid), state(pid))
    before = free()
    say("checkpoint", checkpoint(pid), state(pid))
    say("memory came back", free() - before >= HOLDS)
    say("restore", restore(pid), state(pid))
    say("unlock", unlock(pid), state(pid))
    say("contents", holder.ask("check"))
    say("again", lock(pid), checkpoint(pid), restore(pid), unlock(pid), holder.ask("check"))
    holder.end()


def out_of_order():
    holder = Holder()
    pid = holder.pid
    say("running: checkpoint, restore, unlock", checkpoint(pid), restore(pid), unlock(pid), state(pid))
    must("cuCheckpointProcessLock", pid, BY(LockArguments(5000)))
    say("locked: lock, restore", lock(pid), restore(pid), state(pid))
    say("locked: unlock", unlock(pid), state(pid))
    must("cuCheckpointProcessLock", pid, BY(LockArguments(5000)))
    must("cuCheckpointProcessCheckpoint", pid, None)
    say("checkpointed: lock, checkpoint, unlock", lock(pid), checkpoint(pid), unlock(pid), state(pid))
    say("back", restore(pid), unlock(pid), holder.ask("check"))
    holder.end()


def a_call_waits():
    holder = Holder()
    pid = holder.pid
    must("cuCheckpointProcessLock", pid, BY(LockArguments(5000)))
    must("cuCheckpointProcessCheckpoint", pid, None)
    holder.tell("check")
    time.sleep(0.5)
    say("a call waits", holder.process.poll() is None)
    must("cuCheckpointProcessRestore", pid, None)
    must("cuCheckpointProcessUnlock", pid, None)
    say("and goes on", holder.process.stdout.readline().strip())
    holder.end()


def during_a_kernel():
    holder = Holder()
    pid = holder.pid
    say("kernel", holder.ask("spin"))
    begun = time.monotonic()
    result = lock(pid, 300)
    took = time.monotonic() - begun
    say("lock meanwhile", result, 0.25 < took < 2, state(pid))
    say("released", holder.ask("release"))
    say("lock after it", lock(pid, 5000), unlock(pid), holder.ask("check"))
    holder.end()


def without_room():
    holder = Holder()
    pid = holder.pid
    must("cuCheckpointProcessLock", pid, BY(LockArguments(5000)))
    must("cuCheckpointProcessCheckpoint", pid, None)
    taken = []
    step = max(free() // 64 // MIB * MIB, 64 * MIB)
    while step >= 2 * MIB:
        place = U64()
        if call("cuMemAlloc_v2", BY(place), SIZE(step)) == 0:
            taken.append(place)
        else:
            step //= 2
    say("restore on a full card", restore(pid), state(pid))
    for place in taken:
        must("cuMemFree_v2", place)
    say("with room again", restore(pid), unlock(pid), state(pid))
    holder.end()


def with_managed_memory():
    holder = Holder("managed")
    pid = holder.pid
    say("lock", lock(pid))
    say("checkpoint", checkpoint(pid), state(pid))
    say("unlock", unlock(pid), state(pid), holder.ask("check"))
    holder.end()


def the_dead():
    holder = Holder()
    pid = holder.pid
    before = free()
    must("cuCheckpointProcessLock", pid, BY(LockArguments(5000)))
    must("cuCheckpointProcessCheckpoint", pid, None)
    holder.end()
    say("killed while checkpointed", state(pid), lock(pid), restore(pid), free() - before >= HOLDS)
    quiet = subprocess.Popen(["sleep", "60"])
    say("no program of the card", state(quiet.pid), lock(quiet.pid, 300))
    quiet.kill()
    quiet.wait()
    say("nobody", state(1 << 22), lock(1 << 22, 300))


def the_stopped():
    holder = Holder()
    pid = holder.pid
    holder.process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    asks = subprocess.Popen([sys.executable, __file__, "lock", str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        asks.wait(3)
        say("lock of a stopped one hangs", False)
    except subprocess.TimeoutExpired:
        say("lock of a stopped one hangs", True)
    holder.process.send_signal(signal.SIGCONT)
    say("goes on", asks.communicate(timeout=30)[0].strip())
    unlock(pid)
    say("contents", holder.ask("check"))
    holder.end()


def another_user():
    holder = Holder()
    if os.getuid() != 0:
        say("another user", "not tried: this is not root")
        return holder.end()
    ask = [sys.executable, __file__, "lock", str(holder.pid), "nobody"]
    done = subprocess.run(ask, stdout=subprocess.PIPE, text=True)
    say("another user", done.stdout.strip())
    holder.end()


def main():
    if sys.argv[1:2] == ["hold"]:
        return hold("managed" in sys.argv)
    if "nobody" in sys.argv:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    start()
    if sys.argv[1:2] == ["lock"]:
        pid = int(sys.argv[2])
        return say("state and lock", state(pid), lock(pid, 500))
    for part in (there_and_back, out_of_order, a_call_waits, during_a_kernel, without_room, with_managed_memory,
                 the_dead, the_stopped, another_user):
        print(f"# {part.__name__}", flush=True)
        part()


main()
