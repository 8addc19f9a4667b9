#!/usr/bin/env python3
"""Parked programs come back, on a real GPU.

    bench/gpu/parked.py SUBLET OUT

SUBLET is the binary; results go to OUT/parked.jsonl, one line for each story, and OUT/threads.json. Needs python3 with
torch. Starts and ends its own daemon and programs, in a directory of its own; takes about five minutes.

Stories:
  terminal  a program at a terminal is adopted, parked by the driver for a batch job, stays parked for 60 s, and comes
            back when a line is typed at its terminal, then by `sublet resume`
  space     a program that does not fit into the parking space: the waiter's reason names the key
  contexts  six small programs leave with their contexts for a request that needs nearly all of the GPU
  threads   what the threads of a checkpointed process look like from outside, while it is idle and while it calls CUDA
"""

import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TENSOR = [sys.executable, str(HERE / "parked" / "tensor.py")]
CONFIG = """
ttl = "5m"
[preemption]
idle_after = "2s"
time_slice = "2s"
[parking]
ram = "{ram}"
"""


class Story:
    """A daemon of its own, and the programs that one story starts."""

    def __init__(self, sublet, ram):
        self.sublet = sublet
        self.dir = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.dir.name)
        self.env = dict(os.environ, SUBLET_SOCKET=str(self.path / "s"))
        (self.path / "c.toml").write_text(CONFIG.format(ram=ram))
        self.programs = []
        serve = ["serve", "--state-dir", str(self.path / "state"), "--config", str(self.path / "c.toml")]
        self.start([sublet, *serve], stderr=(self.path / "log").open("w"))
        self.until("the daemon answers", lambda: self.call("ps").returncode == 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in reversed(self.programs):
            program.kill()
            program.wait()
        self.dir.cleanup()

    def start(self, words, **how):
        program = subprocess.Popen(words, env=self.env, **how)
        self.programs.append(program)
        return program

    def call(self, *words):
        return subprocess.run([self.sublet, *words], env=self.env, capture_output=True, text=True, timeout=120)

    def run(self, gib, *flags):
        """A tensor on a lease of its own; its answers are lines of its stdout."""
        words = [self.sublet, "run", *flags, "--", *TENSOR, str(gib)]
        return self.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def lease(self, lease):
        found = json.loads(self.call("ps", "--json").stdout)["leases"]
        return next((one for one in found if one["id"] == lease), {"state": "none"})

    def until(self, what, is_so, seconds=120):
        begun = time.monotonic()
        while not is_so():
            if time.monotonic() - begun > seconds:
                raise AssertionError(f"{what}: not within {seconds} s")
            time.sleep(0.1)
        return round(time.monotonic() - begun, 2)

    def until_state(self, lease, state):
        return self.until(f"{lease} is {state}", lambda: self.lease(lease)["state"] == state)


class Terminal:
    """A tensor at a terminal of its own, without a lease."""

    def __init__(self, story, gib):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execve(TENSOR[0], [*TENSOR, str(gib)], story.env)
        self.pid, self.text = pid, ""
        self.read("holds")

    def read(self, words):
        while words not in self.text:
            self.text += os.read(self.fd, 4096).decode()

    def ask(self):
        """Types a line; returns the sum that the program prints."""
        self.text = ""
        os.write(self.fd, b"\n")
        self.read(" of ")
        return re.search(r"sum (\d+) of (\d+)", self.text).groups()

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def adopt(story, terminal):
    story.until("it is adopted", lambda: story.call("adopt", str(terminal.pid), "--tier", "interactive").returncode == 0)
    story.until_state("L1", "active")


def terminal(sublet):
    with Story(sublet, "64G") as story:
        screen = Terminal(story, 16)
        try:
            adopt(story, screen)
            job = story.run(100, "--vram", "120G")
            job.stdout.readline()
            parked = story.until_state("L1", "parked")
            time.sleep(60)
            stayed = story.lease("L1")["state"] == "parked"
            # The kernel keeps the time of input in steps of 8 s, so the first line may be missed.
            begun = time.monotonic()
            total, count = screen.ask()
            typed = round(time.monotonic() - begun, 2)
            story.until("the job has the GPU again", lambda: story.lease("L2")["state"] == "active")
            story.until_state("L1", "parked")
            resumed = story.call("resume", "L1")
            back = story.until_state("L1", "active")
            return {
                "parked_s": parked,
                "stayed_parked_for_60_s": stayed,
                "typed_to_answer_s": typed,
                "bytes_as_written": total == count,
                "resume_said": resumed.stderr,
                "resume_to_active_s": back,
            }
        finally:
            screen.close()


def space(sublet):
    with Story(sublet, "20G") as story:
        notebook = story.run(16, "--vram", "100G", "--tier", "interactive")
        notebook.stdout.readline()
        job = story.run(60, "--vram", "100G")
        job.stdout.readline()
        story.until_state("L1", "parked")
        notebook.stdin.write("\n")
        notebook.stdin.flush()
        story.until("it waits", lambda: story.lease("L1").get("waiting"))
        return {"explain": story.call("explain", "L1").stdout}


def contexts(sublet):
    with Story(sublet, "100G") as story:
        jobs = [story.run(4, "--vram", "6G") for _ in range(6)]
        for job in jobs:
            job.stdout.readline()
        begun = time.monotonic()
        large = story.run(60, "--vram", "137G")
        large.stdout.readline()
        waited = round(time.monotonic() - begun, 2)
        left = [story.lease(f"L{number}").get("seen_bytes") for number in range(1, 7)]
        large.kill()
        large.wait()
        for job in jobs:
            job.stdin.write("\n")
            job.stdin.flush()
        sums = [re.findall(r"\d+", job.stdout.readline()) for job in jobs]
        return {"waited_s": waited, "left_on_gpu_bytes": left, "bytes_as_written": all(a == b for a, b in sums)}


def look(pid):
    """State, place in the kernel, system call and CPU time of each thread of a process."""
    found = {}
    for task in sorted(pathlib.Path(f"/proc/{pid}/task").iterdir()):
        read = lambda name: (task / name).read_text(errors="replace").strip()
        try:
            fields = read("stat").rsplit(")", 1)[1].split()
            found[task.name] = {
                "name": read("comm"),
                "state": fields[0],
                "cpu_ticks": int(fields[11]) + int(fields[12]),
                "wchan": read("wchan"),
                "syscall": read("syscall"),
            }
        except OSError as error:
            found[task.name] = {"error": str(error)}
    return found


def threads(sublet, out):
    with Story(sublet, "64G") as story:
        screen = Terminal(story, 4)
        try:
            adopt(story, screen)
            story.until("it is parked", lambda: story.call("park", "L1").returncode == 0)
            story.until_state("L1", "parked")
            idle = [look(screen.pid) for _ in range(5) if time.sleep(1) is None]
            # A hint may bring it back: what is seen in the first seconds after the line counts.
            os.write(screen.fd, b"\n")
            calls = [look(screen.pid) for _ in range(20) if time.sleep(0.1) is None]
            (out / "threads.json").write_text(json.dumps({"idle": idle, "calls": calls}, indent=1))
            return {"samples": len(idle) + len(calls)}
        finally:
            screen.close()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: bench/gpu/parked.py SUBLET OUT")
    sublet, out = os.path.realpath(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    stories = {"terminal": terminal, "space": space, "contexts": contexts, "threads": lambda sublet: threads(sublet, out)}
    failed = False
    with (out / "parked.jsonl").open("w") as results:
        for name, story in stories.items():
            try:
                result = story(sublet)
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                result, failed = {"failed": str(error)}, True
            line = json.dumps({"story": name, **result})
            print(line, flush=True)
            results.write(line + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
