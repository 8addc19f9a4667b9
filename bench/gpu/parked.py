#!/usr/bin/env python3
"""Parked programs come back, on a real GPU.

    bench/gpu/parked.py SUBLET OUT [STORY ...]

SUBLET is the binary; results go to OUT/parked.jsonl, one line for each story, and OUT/threads.json. Needs python3 with
torch. Starts and ends its own daemon and programs, in a directory of its own; takes about six minutes. With SOFT=1 in
the environment it uses a soft GPU with 1/16 of the sizes and a stand-in for torch: that tries the stories, and shows
nothing about a real GPU.

Stories:
  terminal  a Python REPL is adopted, parked by the driver for a batch job, stays parked for 20 s, and comes back when a
            line is typed at its terminal, then by `sublet resume`
  server    an HTTP server is adopted and parked by the driver for a batch job; polls through `sublet proxy` leave it
            parked for 20 s, and a request that needs the GPU brings it back
  call      the same server without a proxy: the request's own call of CUDA brings it back
  notebook  an idle program under `sublet run` is parked for a batch job, and comes back when it uses the GPU
  space     the same, but the job does not fit into the parking space: the waiter's reason names the key
  contexts  six small programs leave with their contexts for a request that needs nearly all of the GPU
  driven    a program under `sublet run` is checkpointed and restored by the driver, behind the daemon's back
  restart   a program under `sublet run` is parked right after the daemon was killed and started again
  threads   what the threads of a checkpointed process look like from outside, while it is idle and while it calls CUDA
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SOFT = "SOFT" in os.environ
# What the stories call 1 GiB, in MiB; an H200 has 140 of them.
UNIT = 64 if SOFT else 1024
STORY_SECONDS = 150
# How long a lease must stay parked beside polls, or without any use.
STAY_SECONDS = 20
TENSOR = [sys.executable, str(HERE / "parked" / "tensor.py")]
SERVER = [sys.executable, str(HERE / "parked" / "server.py")]
CONFIG = """
ttl = "5m"
[preemption]
idle_after = "2s"
time_slice = "2s"
[parking]
ram = "{ram}"
keep_free = "4G"
"""


def size(units):
    return f"{round(units * UNIT)}M"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Story:
    """A daemon of its own, and the programs that one story starts."""

    def __init__(self, sublet, ram, more=""):
        self.sublet = sublet
        self.dir = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.dir.name)
        self.env = dict(os.environ, SUBLET_SOCKET=str(self.path / "s"))
        if SOFT:
            self.env["PYTHONPATH"] = str(HERE / "parked" / "stand_in")
        (self.path / "c.toml").write_text(CONFIG.format(ram=size(ram)) + more)
        self.programs = []
        self.serve = [sublet, "serve", "--state-dir", str(self.path / "state"), "--config", str(self.path / "c.toml")]
        self.serve += ["--gpu", f"soft:1x{140 * UNIT}MiB" if SOFT else "real"]
        self.start_daemon()

    def start_daemon(self):
        daemon = self.daemon = self.start(self.serve, stderr=(self.path / "log").open("a"))
        self.until("the daemon answers", lambda: self.call("ps").returncode == 0 or daemon.poll() is not None)
        if daemon.poll() is not None:
            sys.exit("the daemon ended: " + (self.path / "log").read_text())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        signal.alarm(0)
        if kind:
            for words in (["ps"], ["queue"], ["explain", "L1"], ["explain", "L2"], ["audit"]):
                print(f"$ sublet {' '.join(words)}\n{self.call(*words).stdout}", file=sys.stderr)
            for log in sorted(self.path.glob("*log")):
                print(f"== {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        for program in reversed(self.programs):
            if program.stdin:
                program.stdin.close()
            program.terminate()
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                try:
                    program.wait(20)
                except subprocess.TimeoutExpired:
                    print(f"process {program.pid} does not end: {look(program.pid)}", file=sys.stderr, flush=True)
        self.dir.cleanup()

    def unleased(self, words):
        """The command line of a program that knows nothing of Sublet."""
        return [self.sublet, "soft", "env", "--", *words] if SOFT else words

    def start(self, words, **how):
        program = subprocess.Popen(words, env=self.env, **how)
        self.programs.append(program)
        return program

    def call(self, *words):
        return subprocess.run([self.sublet, *words], env=self.env, capture_output=True, text=True, timeout=120)

    def run(self, gib, vram, *flags):
        """A tensor on a lease of its own; its answers are lines of its stdout."""
        words = [self.sublet, "run", "--vram", size(vram), *flags, "--", *TENSOR, str(gib * UNIT / 1024)]
        log = (self.path / f"job-{len(self.programs)}.log").open("w")
        job = self.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        if not job.stdout.readline():
            raise AssertionError("a program ended before it held its tensor: " + self.call("queue").stdout)
        return job

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


class Repl:
    """A Python REPL at a terminal of its own, with a tensor and without a lease."""

    def __init__(self, story, gib):
        floats = int(gib * UNIT * (1 << 20)) // 4
        first = f"import torch; t = torch.ones({floats}, dtype=torch.float32, device='cuda'); print('holds')"
        words = story.unleased([sys.executable, "-q", "-i", "-c", first])
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, story.env)
        self.text = ""
        self.read(r"holds")

    def read(self, pattern, seconds=STORY_SECONDS):
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if not select.select([self.fd], [], [], max(0, until - time.monotonic()))[0]:
                raise AssertionError(f"the REPL did not answer within {seconds} s")
            self.text += os.read(self.fd, 4096).decode()
        return re.search(pattern, self.text).groups()

    def type(self):
        self.text = ""
        os.write(self.fd, b"int(sum(p.sum(dtype=torch.float64) for p in t.split(1 << 26))), t.numel()\n")

    def ask(self):
        """Types a line; returns the sum and the number of elements that the REPL prints."""
        self.type()
        return self.read(r"\((\d+), (\d+)\)")

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def on_alarm(*_):
    raise AssertionError(f"the story did not end within {STORY_SECONDS} s")


def adopt(story, pid, *flags):
    story.until("it is adopted", lambda: story.call("adopt", str(pid), *flags).returncode == 0)
    story.until_state("L1", "active")


def use(job):
    """Makes a tensor on a lease sum itself; returns the seconds that took, and if the sum is right."""
    begun = time.monotonic()
    job.stdin.write("\n")
    job.stdin.flush()
    numbers = re.findall(r"\d+", job.stdout.readline())
    if len(numbers) != 2:
        raise AssertionError(f"a program ended with exit status {job.wait()} while it used the GPU")
    return round(time.monotonic() - begun, 2), numbers[0] == numbers[1]


def terminal(sublet):
    with Story(sublet, 110) as story:
        repl = Repl(story, 8)
        try:
            adopt(story, repl.pid, "--tier", "interactive")
            begun = time.monotonic()
            job = story.run(12, 133)
            granted = round(time.monotonic() - begun, 2)
            parked = story.lease("L1")["state"] == "parked"
            time.sleep(STAY_SECONDS)
            stayed = story.lease("L1")["state"] == "parked"
            # The kernel keeps the time of input in steps of 8 s.
            begun = time.monotonic()
            total, count = repl.ask()
            typed = round(time.monotonic() - begun, 2)
            job_used, job_right = use(job)
            story.until_state("L1", "parked")
            resumed = story.call("resume", "L1")
            back = story.until_state("L1", "active")
            return {
                "job_started_s": granted,
                "was_parked_for_it": parked,
                "stayed_parked": stayed,
                "typed_to_answer_s": typed,
                "job_used_again_s": job_used,
                "bytes_as_written": total == count and job_right,
                "resume_said": resumed.stderr,
                "resume_to_active_s": back,
            }
        finally:
            repl.close()


def fetch(port, method, path):
    """The status and the body of a request to a port of this machine."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=110) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError as error:
        return 0, str(error.reason)


def server(sublet):
    with Story(sublet, 110) as story:
        inside, outside = free_port(), free_port()
        server = story.start(story.unleased([*SERVER, str(8 * UNIT / 1024), str(inside)]), stdout=subprocess.PIPE)
        server.stdout.readline()
        adopt(story, server.pid, "--tier", "interactive")
        to = ["--listen", f"127.0.0.1:{outside}", "--to", f"127.0.0.1:{inside}", "--lease", "L1"]
        log = (story.path / "proxy.log").open("w")
        story.start([sublet, "proxy", *to, "--wait", "100s", "--wake", "POST /sum"], stdout=log, stderr=log)
        story.until("the proxy passes polls", lambda: fetch(outside, "GET", "/health")[0] == 200)
        job = story.run(12, 133)
        story.until_state("L1", "parked")
        polls = {}
        for _ in range(STAY_SECONDS):
            status = fetch(outside, "GET", "/health")[0]
            polls[status] = polls.get(status, 0) + 1
            time.sleep(1)
        stayed = story.lease("L1")["state"] == "parked"
        begun = time.monotonic()
        status, body = fetch(outside, "POST", "/sum")
        answered = round(time.monotonic() - begun, 2)
        numbers = re.findall(r"\d+", body)
        job_used, job_right = use(job)
        return {
            "polls_by_status": polls,
            "stayed_parked": stayed,
            "request_to_answer_s": answered,
            "status": status,
            "job_used_again_s": job_used,
            "bytes_as_written": len(numbers) == 2 and numbers[0] == numbers[1] and job_right,
        }


def call(sublet):
    with Story(sublet, 110) as story:
        port = free_port()
        server = story.start(story.unleased([*SERVER, str(8 * UNIT / 1024), str(port)]), stdout=subprocess.PIPE)
        server.stdout.readline()
        adopt(story, server.pid, "--tier", "interactive")
        job = story.run(12, 133)
        story.until_state("L1", "parked")
        begun = time.monotonic()
        status, body = fetch(port, "POST", "/sum")
        answered = round(time.monotonic() - begun, 2)
        numbers = re.findall(r"\d+", body)
        audit = story.call("audit", "--lease", "L1").stdout
        job_used, job_right = use(job)
        return {
            "call_to_answer_s": answered,
            "status": status,
            "woken_by_the_call": "L1 called CUDA" in audit,
            "job_used_again_s": job_used,
            "bytes_as_written": len(numbers) == 2 and numbers[0] == numbers[1] and job_right,
        }


def notebook(sublet):
    with Story(sublet, 110) as story:
        notebook = story.run(24, 60, "--tier", "interactive")
        begun = time.monotonic()
        job = story.run(40, 110)
        granted = round(time.monotonic() - begun, 2)
        times = [use(program) for program in (notebook, job, notebook, job)]
        return {
            "job_started_s": granted,
            "used_to_answer_s": [seconds for seconds, _ in times],
            "bytes_as_written": all(right for _, right in times),
        }


def space(sublet):
    with Story(sublet, 20) as story:
        notebook = story.run(16, 100, "--tier", "interactive")
        story.run(40, 100)
        story.until_state("L1", "parked")
        notebook.stdin.write("\n")
        notebook.stdin.flush()
        story.until("it waits", lambda: story.lease("L1").get("waiting"))
        story.until("the key is named", lambda: "[parking] ram" in story.call("explain", "L1").stdout, 20)
        return {"explain": story.call("explain", "L1").stdout, "ps": story.call("ps").stdout}


def contexts(sublet):
    with Story(sublet, 100) as story:
        jobs = [story.run(4, 6) for _ in range(6)]
        begun = time.monotonic()
        large = story.run(40, 134 if SOFT else 137)
        waited = round(time.monotonic() - begun, 2)
        left = [story.lease(f"L{number}").get("seen_bytes") for number in range(1, 7)]
        large.stdin.close()
        large.wait()
        times = [use(job) for job in jobs]
        return {
            "waited_s": waited,
            "left_on_gpu_bytes": left,
            "used_to_answer_s": [seconds for seconds, _ in times],
            "bytes_as_written": all(right for _, right in times),
        }


def driven(sublet):
    with Story(sublet, 110) as story:
        job = story.run(8, 20)
        # Twice: while nothing calls CUDA, and while a call waits for the restore.
        found = {"bytes_as_written": True}
        for name in ("idle_s", "calling_s"):
            pid = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0]
            words = story.unleased([sys.executable, str(HERE / "parked" / "checkpoint.py"), str(pid)])
            driver = story.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if not driver.stdout.readline():
                raise AssertionError(f"the driver did not checkpoint process {pid}")
            begun = time.monotonic()
            if name == "calling_s":
                job.stdin.write("\n")
                job.stdin.flush()
                time.sleep(2)
            driver.stdin.write("\n")
            driver.stdin.flush()
            driver.wait(60)
            if name == "calling_s":
                numbers = re.findall(r"\d+", job.stdout.readline())
                if len(numbers) != 2:
                    raise AssertionError(f"the program ended with exit status {job.wait()}")
                right = numbers[0] == numbers[1]
            else:
                right = use(job)[1]
            found[name] = round(time.monotonic() - begun, 2)
            found["bytes_as_written"] &= right
        return found


def restart(sublet):
    with Story(sublet, 110) as story:
        job = story.run(12, 40)
        story.daemon.kill()
        story.daemon.wait()
        story.start_daemon()
        begun = time.monotonic()
        story.until("it is parked", lambda: story.call("park", "L1").returncode == 0)
        story.until_state("L1", "parked")
        parked = round(time.monotonic() - begun, 2)
        method = story.lease("L1").get("method")
        seconds, right = use(job)
        return {"park_s": parked, "method": method, "used_to_answer_s": seconds, "bytes_as_written": right}


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
            found[task.name]["stack"] = read("stack")
        except OSError as error:
            found.setdefault(task.name, {})["error"] = str(error)
    return found


def samples(pid, count):
    """What the threads look like, five times a second."""
    return [look(pid) for _ in range(count) if time.sleep(0.2) is None]


def maps(pid):
    """What lies where in the process, to tell which library a thread is in, or whose lock it waits for."""
    return pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()


def threads(sublet, out):
    """Three programs, parked by hand: a REPL, a server with a thread for each request, and a loop of kernels."""
    found = {}
    try:
        return watch_threads(sublet, found)
    finally:
        (out / "threads.json").write_text(json.dumps(found))


def watch_threads(sublet, found):
    with Story(sublet, 110) as story:
        repl = Repl(story, 4)
        try:
            adopt(story, repl.pid, "--tier", "interactive")
            story.until("it is parked", lambda: story.call("park", "L1").returncode == 0)
            story.until_state("L1", "parked")
            idle = samples(repl.pid, 15)
            # A hint may bring it back: what is seen in the first seconds after the line counts.
            repl.type()
            found["repl"] = {"idle": idle, "calls": samples(repl.pid, 15), "maps": maps(repl.pid)}
            found["repl"]["resume"] = story.call("resume", "L1").returncode
            found["repl"]["right"] = len(set(repl.read(r"\((\d+), (\d+)\)", 20))) == 1
        finally:
            repl.close()
    with Story(sublet, 110) as story:
        port = free_port()
        server = story.start(story.unleased([*SERVER, str(4 * UNIT / 1024), str(port)]), stdout=subprocess.PIPE)
        server.stdout.readline()
        adopt(story, server.pid)
        story.until("it is parked", lambda: story.call("park", "L1").returncode == 0)
        story.until_state("L1", "parked")
        idle = samples(server.pid, 15)
        post = f"import urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:{port}/sum', method='POST'))"
        story.start([sys.executable, "-c", post], stderr=subprocess.DEVNULL)
        found["server"] = {"idle": idle, "calls": samples(server.pid, 25), "maps": maps(server.pid)}
        story.call("resume", "L1")
        story.until_state("L1", "active")
        found["server"]["status"] = fetch(port, "POST", "/sum")[0]
    with Story(sublet, 110) as story:
        loop = story.start(story.unleased([*TENSOR, str(4 * UNIT / 1024), "--loop"]), stdout=subprocess.PIPE)
        loop.stdout.readline()
        adopt(story, loop.pid)
        story.until("it is parked", lambda: story.call("park", "L1").returncode == 0)
        story.until_state("L1", "parked")
        found["loop"] = {"calls": samples(loop.pid, 25), "maps": maps(loop.pid)}
        found["loop"]["exit"] = loop.poll()
    return {name: {key: value for key, value in of.items() if key not in ("idle", "calls", "maps")} for name, of in found.items()}


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: bench/gpu/parked.py SUBLET OUT [STORY ...]")
    sublet, out = os.path.realpath(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    stories = {
        "terminal": terminal,
        "server": server,
        "call": call,
        "notebook": notebook,
        "space": space,
        "contexts": contexts,
        "driven": driven,
        "restart": restart,
        "threads": lambda sublet: threads(sublet, out),
    }
    for name in sys.argv[3:]:
        if name not in stories:
            sys.exit(f"no story is called {name}; there are {', '.join(stories)}")
    failed = False
    signal.signal(signal.SIGALRM, on_alarm)
    with (out / "parked.jsonl").open("w") as results:
        for name in sys.argv[3:] or stories:
            story = stories[name]
            try:
                signal.alarm(STORY_SECONDS)
                result = story(sublet)
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                result, failed = {"failed": str(error)}, True
            line = json.dumps({"story": name, **result})
            print(line, flush=True)
            results.write(line + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
