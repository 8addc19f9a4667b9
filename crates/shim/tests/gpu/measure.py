"""Measures parking on a GPU: each experiment prints one line of JSON.

    measure.py SHIM [--gib 32] [EXPERIMENT ...]

Without a name all of them: warm, ahead, first, small, swap, driver, residue. Every figure stands beside the
ceiling of the same process: pinned copies on one stream.
"""

import argparse
import ctypes as C
import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

GIB = 1 << 30
HERE = os.path.dirname(os.path.abspath(__file__))
libc = C.CDLL(None, use_errno=True)


def middle(numbers):
    numbers = sorted(numbers)
    return numbers[len(numbers) // 2]


class Job:
    """A program under the shim, or without one, and the line to it."""

    def __init__(self, shim, count, mib):
        environment = dict(os.environ)
        server = None
        if shim:
            self.folder = tempfile.mkdtemp()
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.bind(os.path.join(self.folder, "shim"))
            server.listen(1)
            server.settimeout(60)
            environment.update(LD_PRELOAD=shim, SUBLET_SHIM_SOCKET=os.path.join(self.folder, "shim"))
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "block_job.py"), str(count), str(mib)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line, self.number = None, 0
        if server:
            self.line, _ = server.accept()
            self.line.recv(4096)
            self.order(do="welcome", page=False)
        self.read()
        self.before = used(self.process.pid)
        self.ask("go")

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the program ended: {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def order(self, file=None, **what):
        text = json.dumps(what).encode()
        if file is None:
            self.line.send(text)
        else:
            socket.send_fds(self.line, [text], [file])

    def answer(self):
        while True:
            said = json.loads(self.line.recv(4096))
            if said["say"] != "wants":
                return said

    def give(self, bytes_, filled=True):
        file = filled_file(bytes_) if filled else os.memfd_create("arena")
        self.order(file, do="arena", bytes=bytes_, filled=True)
        os.close(file)

    def tell_park(self):
        self.number += 1
        self.order(do="park", id=self.number, deadline_ms=20_000)

    def tell_resume(self):
        self.number += 1
        self.order(do="resume", id=self.number)

    def done(self, word):
        said = self.answer()
        if said["say"] != word:
            raise SystemExit(f"not {word}: {said}")
        return said["bytes"] / GIB / (said["took"]["all_us"] / 1e6), said

    def park(self):
        self.tell_park()
        return self.done("parked")

    def resume(self):
        self.tell_resume()
        return self.done("resumed")

    def end(self):
        check = self.ask("check")
        self.process.stdin.write("end\n")
        self.process.stdin.close()
        self.process.wait(60)
        return check


def filled_file(bytes_):
    """Memory whose pages are there, made by another process than the one that parks in it."""
    with open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") as free:
        set_aside = int(free.read()) * (2 << 20) >= bytes_
    file = os.memfd_create("arena", os.MFD_CLOEXEC | (os.MFD_HUGETLB if set_aside else 0))
    os.ftruncate(file, bytes_)
    map_ = mmap.mmap(file, bytes_)
    at = C.addressof(C.c_char.from_buffer(map_))
    libc.madvise(C.c_void_p(at), C.c_size_t(bytes_), 14)
    share = (bytes_ // 8 + (2 << 20) - 1) & ~((2 << 20) - 1)

    def fill(first):
        libc.madvise(C.c_void_p(at + first), C.c_size_t(min(share, bytes_ - first)), 23)

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(0, bytes_, share)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return file


def used(pid):
    """What the driver says a process has."""
    try:
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                if process.pid == pid:
                    return process.usedGpuMemory
    except Exception as error:
        return repr(error)
    return 0


def rates(job, times):
    out, back, gates = [], [], []
    for _ in range(times):
        rate, said = job.park()
        out.append(rate)
        gates.append(said["took"]["gate_us"])
        rate, said = job.resume()
        back.append(rate)
    return out, back, gates


def shown(what, ceiling, out, back, **more):
    print(json.dumps({
        "what": what, "ceiling_out": round(ceiling["out"], 1), "ceiling_in": round(ceiling["back"], 1),
        "out": round(out, 1), "in": round(back, 1),
        "out_ratio": round(out / ceiling["out"], 3), "in_ratio": round(back / ceiling["back"], 3), **more}), flush=True)


def warm(shim, gib):
    job = Job(shim, gib, 1024)
    ceiling = job.ask("ceiling")
    rates(job, 1)
    out, back, gates = rates(job, 7)
    again = job.ask("ceiling")
    ceiling = {key: max(ceiling[key], again[key]) for key in ceiling}
    (_, parked), (_, resumed) = job.park(), job.resume()
    shown(f"warm, {gib} x 1 GiB", ceiling, middle(out), middle(back), gate_us=middle(gates), out_took=parked["took"],
          in_took=resumed["took"], check=job.end())


def ahead(shim, gib):
    job = Job(shim, gib, 1024)
    ceiling = job.ask("ceiling")
    job.give((gib + 1) * GIB)
    begun = time.perf_counter()
    job.order(do="prepare", bytes=(gib + 1) * GIB)
    job.answer()
    took = time.perf_counter() - begun
    out, _ = job.park()
    back, _ = job.resume()
    shown(f"first park, registered ahead, {gib} x 1 GiB", ceiling, out, back, registering_s=round(took, 2), check=job.end())


def first(shim, gib):
    for turn in range(3):
        job = Job(shim, gib, 1024)
        ceiling = job.ask("ceiling")
        job.give((gib + 1) * GIB)
        out, said = job.park()
        back, _ = job.resume()
        shown(f"first park, nothing registered, stock ready, {gib} x 1 GiB", ceiling, out, back, took=said["took"],
              check=job.end())


def small(shim, gib):
    count = gib * 1600 // 32
    job = Job(shim, count, 20)
    ceiling = job.ask("ceiling")
    rates(job, 1)
    out, back, _ = rates(job, 7)
    _, parked = job.park()
    _, resumed = job.resume()
    shown(f"warm, {count} x 20 MiB", ceiling, middle(out), middle(back), out_took=parked["took"], in_took=resumed["took"],
          check=job.end())


def swap(shim, gib):
    gib = gib * 20 // 32
    one, other = Job(shim, gib, 1024), Job(shim, gib, 1024)
    rates(one, 2)
    rates(other, 2)
    other.park()
    times = []
    for _ in range(6):
        begun = time.perf_counter()
        one.tell_park()
        other.tell_resume()
        one.done("parked")
        other.done("resumed")
        times.append(time.perf_counter() - begun)
        one, other = other, one
    other.resume()
    print(json.dumps({"what": f"swap of {gib} GiB against {gib} GiB, both ways at once", "median_s": round(middle(times), 3),
                      "all_s": [round(t, 3) for t in times], "check": [one.end(), other.end()]}), flush=True)


def driver(shim, gib):
    cuda = C.CDLL("libcuda.so.1")
    cuda.cuInit(0)

    def steps(job):
        pid, lock = job.process.pid, (C.c_uint32 * 16)(10_000)
        times = {}
        for name, arguments in [("Lock", (pid, lock)), ("Checkpoint", (pid, None)), ("Restore", (pid, None)), ("Unlock", (pid, None))]:
            begun = time.perf_counter()
            result = getattr(cuda, "cuCheckpointProcess" + name)(*arguments)
            times[name] = time.perf_counter() - begun
            if result:
                return {"failed": name, "result": result}
        return times

    job = Job(shim, gib, 1024)
    theirs = steps(job)
    rates(job, 1)
    (out, said), (back, said_back) = job.park(), job.resume()
    print(json.dumps({"what": f"the driver's checkpoint of the same process, {gib} GiB", "driver_s": theirs,
                      "shim_out_s": said["took"]["all_us"] / 1e6, "shim_in_s": said_back["took"]["all_us"] / 1e6,
                      "out_times_faster": round(theirs.get("Checkpoint", 0) / (said["took"]["all_us"] / 1e6), 1),
                      "in_times_faster": round(theirs.get("Restore", 0) / (said_back["took"]["all_us"] / 1e6), 1),
                      "check": job.end()}), flush=True)
    bare = Job(None, gib, 1024)
    print(json.dumps({"what": "the same of a process without the shim", "driver_s": steps(bare), "check": bare.end()}), flush=True)


def residue(shim, gib):
    job = Job(shim, gib, 1024)
    full = used(job.process.pid)
    job.park()
    time.sleep(0.5)
    parked = used(job.process.pid)
    job.resume()
    print(json.dumps({"what": "residue", "context_and_modules": job.before, "holding": full, "parked": parked,
                      "more_mib": (parked - job.before) / (1 << 20) if isinstance(parked, int) else None,
                      "check": job.end()}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shim")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gib", type=int, default=32)
    wanted = parser.parse_args()
    for name in wanted.names or ["warm", "ahead", "first", "small", "swap", "driver", "residue"]:
        try:
            globals()[name](wanted.shim, wanted.gib)
        except (SystemExit, OSError, ValueError) as error:
            print(json.dumps({"what": name, "failed": str(error)}), flush=True)


main()
