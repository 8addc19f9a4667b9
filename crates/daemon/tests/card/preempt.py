"""On a machine with an NVIDIA card: room is made for who waits, with unmodified PyTorch on both sides.

    preempt.py DIST OUT [--soft] [WHICH ...]

DIST has sublet, libsublet_shim.so and the examples. WHICH is of: park driver wake duty switches. Each begins a
service of its own and ends it. Figures go to OUT/preempt.json and to the screen. With --soft the programs are the
examples, on soft cards, to try the script itself.
"""

import ctypes as C
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOFT = "--soft" in sys.argv
WORDS = [word for word in sys.argv[1:] if word != "--soft"]
DIST, OUT = os.path.abspath(WORDS[0]), os.path.abspath(WORDS[1])
WHICH = WORDS[2:] or ["park", "driver", "wake", "duty", "switches"]
GIB = 1 << 30
SCALE = 64 if SOFT else 1
FOUND = {}


class Line(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self.path)


class House:
    """A service of its own, with so much of the card to lease."""

    def __init__(self, name, limit_gib, more=""):
        self.dir = tempfile.mkdtemp()
        self.name, self.socket = name, self.dir + "/s"
        config = 'ttl = "5m"\ngrace = "1s"\n'
        if not SOFT:
            shown = subprocess.check_output(
                ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], text=True
            )
            config += f'margin = "{int(shown.split()[0]) - limit_gib * 1024}M"\n'
        config += '[parking]\nram = "100G"\nleave = "6G"\nstock = "off"\n' if not SOFT else '[parking]\nram = "8G"\nleave = "256M"\nstock = "off"\n'
        config += "[preemption]\n" + more
        with open(self.dir + "/sublet.toml", "w") as file:
            file.write(config)
        os.environ["SUBLET_SOCKET"] = self.socket
        gpu = f"soft:1x{limit_gib * 1024 // SCALE + 320}MiB" if SOFT else "real"
        self.log = open(f"{OUT}/{name}.serve.log", "w")
        words = ["serve", "--state-dir", self.dir + "/state", "--socket", self.socket, "--gpu", gpu]
        self.daemon = subprocess.Popen([DIST + "/sublet", *words, "--config", self.dir + "/sublet.toml"], stderr=self.log)
        self.jobs = []
        for _ in range(300):
            if self.ready():
                break
            time.sleep(0.1)

        # What a context takes is measured once; until then the card is not as empty as it will be.
        for _ in range(300):
            if self.get("/v1/cards")[1]["cards"][0]["context_bytes"]:
                break
            time.sleep(0.1)

    def ready(self):
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method, path, body=None):
        line = Line(self.socket)
        line.request(method, path, json.dumps(body) if body is not None else None, {"content-type": "application/json"})
        answer = line.getresponse()
        text = answer.read()
        line.close()
        return answer.status, json.loads(text) if text else None

    def get(self, path):
        return self.call("GET", path)

    def lease(self, id):
        return self.get(f"/v1/leases/{id}")[1]

    def until(self, id, what, patience=120):
        end = time.time() + patience
        while time.time() < end:
            lease = self.lease(id)
            if what(lease):
                return lease
            time.sleep(0.01)
        raise SystemExit(f"{self.name}: not in {patience} s: {self.lease(id)}")

    def run(self, *words, name=None):
        out = open(f"{OUT}/{self.name}.{name or len(self.jobs)}.txt", "w+")
        err = open(f"{OUT}/{self.name}.{name or len(self.jobs)}.err", "w")
        job = subprocess.Popen([DIST + "/sublet", "run", *words], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
        job.out = out
        self.jobs.append(job)
        return job

    def ask(self, gib, tier="interactive"):
        """Asks for a lease and waits for it: its id, and how long it took."""
        begun = time.perf_counter()
        status, lease = self.call("POST", "/v1/leases", {"vram_bytes": gib * GIB // SCALE, "tier": tier})
        assert status in (201, 202), (status, lease)
        while lease["state"] != "active":
            status, lease = self.get(f"/v1/leases/{lease['id']}?wait=30s")
            assert status == 200, lease
        return lease["id"], time.perf_counter() - begun

    def release(self, id):
        self.call("DELETE", f"/v1/leases/{id}")

    def end(self):
        for job in self.jobs:
            if job.poll() is None:
                job.terminate()
        for job in self.jobs:
            job.wait()
        with open(f"{OUT}/{self.name}.audit.txt", "w") as file:
            subprocess.run([DIST + "/sublet", "audit", "--limit", "2000"], stdout=file, stderr=subprocess.STDOUT)
        self.daemon.terminate()
        self.daemon.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def trains(ballast, steps):
    if SOFT:
        return [DIST + "/sublet-example-mlp", "--steps", str(min(steps, 1500))]
    return [sys.executable, HERE + "/../../../shim/tests/card/torch_train.py", "--ballast", str(ballast), "--steps", str(steps)]


def holds(gib):
    if SOFT:
        return [DIST + "/sublet-example-hold", f"{gib * 1024 // SCALE}MiB"]
    return [sys.executable, HERE + "/steady_job.py", str(gib)]


def seen(gib):
    return lambda lease: lease["state"] == "active" and (lease["seen_bytes"] or 0) >= gib * GIB // SCALE * 0.9


def pid_on_card(house, id):
    pids = house.lease(id)["pids"]
    shown = subprocess.check_output(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], text=True)
    on = [int(word) for word in shown.split()]
    return next(pid for pid in pids if pid in on)


def rounds(house, victim, gib, ask_gib, count, wait_turn):
    """Somebody interactive comes and goes; the victim leaves and comes back each time."""
    took, back = [], []
    for _ in range(count):
        house.until(victim, seen(gib))
        time.sleep(wait_turn)
        guest, seconds = house.ask(ask_gib)
        took.append(round(seconds, 4))
        begun = time.perf_counter()
        house.release(guest)
        house.until(victim, lambda lease: lease["state"] == "active")
        back.append(round(time.perf_counter() - begun, 4))
    return took, back


def park():
    house = House("park", 60, 'switching = "50%"\nturn = "1s"\n')
    house.run("--vram", f"{40 * 1024 // SCALE}M", "--", *holds(32), name="victim")
    house.until("L1", seen(32)) if wait_for(house, "L1") else None
    took, back = rounds(house, "L1", 32, 40, 3 if SOFT else 12, 4)
    FOUND["park"] = {"victim_gib": 32, "ask_to_grant_s": took, "release_to_back_s": back}
    house.end()


def wait_for(house, id):
    for _ in range(1200):
        if house.get(f"/v1/leases/{id}")[0] == 200:
            return True
        time.sleep(0.05)
    raise SystemExit("no lease")


def bare(pid, rounds):
    """The driver's own calls, from a process that did nothing else before: seconds out and in."""
    script = f"""
import ctypes as C, json, time
cuda = C.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
lock = (C.c_uint * 16)(10000)
out, back = [], []
for _ in range({rounds}):
    begun = time.perf_counter()
    assert cuda.cuCheckpointProcessLock({pid}, lock) == 0
    assert cuda.cuCheckpointProcessCheckpoint({pid}, None) == 0
    out.append(time.perf_counter() - begun)
    time.sleep(0.5)
    begun = time.perf_counter()
    assert cuda.cuCheckpointProcessRestore({pid}, None) == 0
    assert cuda.cuCheckpointProcessUnlock({pid}, None) == 0
    back.append(time.perf_counter() - begun)
    time.sleep(0.5)
print(json.dumps([out, back]))
"""
    return json.loads(subprocess.check_output([sys.executable, "-c", script], text=True))


def driver():
    house = House("driver", 60, 'switching = "50%"\nturn = "1s"\n')
    house.run("--vram", f"{40 * 1024 // SCALE}M", "--no-shim", "--", *holds(32), name="victim")
    wait_for(house, "L1")
    house.until("L1", seen(32))
    figures = {"victim_gib": 32}
    if not SOFT:
        pid = pid_on_card(house, "L1")
        house.until("L1", seen(32))
        figures["bare_out_s"], figures["bare_back_s"] = bare(pid, 2)
    time.sleep(8)
    took, back = [], []
    for _ in range(2):
        house.until("L1", seen(32))
        time.sleep(6)
        guest, seconds = house.ask(40)
        took.append(seconds)
        begun = time.perf_counter()
        house.release(guest)
        house.until("L1", lambda lease: lease["state"] == "active")
        back.append(time.perf_counter() - begun)
    figures["ask_to_grant_s"], figures["release_to_back_s"] = took, back
    if not SOFT:
        figures["bare_again_out_s"], figures["bare_again_back_s"] = bare(pid, 1)
    FOUND["driver"] = figures
    house.end()


def wake():
    house = House("wake", 60)
    job = house.run("--vram", f"{4 * 1024 // SCALE}M", "--tier", "interactive", "--", sys.executable, HERE + "/wake_job.py", "1", name="notebook")
    wait_for(house, "L1")
    house.until("L1", seen(1))
    alone = []
    for _ in range(6):
        subprocess.run([DIST + "/sublet", "park", "L1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
        job.stdin.write("go\n")
        job.stdin.flush()
        house.until("L1", lambda lease: lease["state"] == "active")
        time.sleep(0.5)
    # The same while a batch job has the card.
    batch = house.run("--vram", "58G", "--", *holds(50), name="batch")
    wait_for(house, "L2")
    for _ in range(3):
        house.until("L2", seen(50))
        time.sleep(14)
        job.stdin.write("go\n")
        job.stdin.flush()
        house.until("L1", lambda lease: lease["state"] == "active")
        house.until("L2", lambda lease: lease["state"] != "active")
        time.sleep(1)
        subprocess.run([DIST + "/sublet", "park", "L1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job.stdin.write("end\n")
    job.stdin.flush()
    job.wait()
    batch.terminate()
    job.out.seek(0)
    FOUND["wake"] = [json.loads(line) for line in job.out if line.startswith("{")]
    house.end()


def duty():
    house = House("duty", 60)
    burst, cycles = (3, 2) if SOFT else (30, 3)
    words = [sys.executable, HERE + "/duty_job.py", "36", str(burst), str(cycles)]
    begun = time.perf_counter()
    os.environ.pop("DUTY_GO", None)
    alone = subprocess.run(words, capture_output=True, text=True)
    alone_s = time.perf_counter() - begun
    steps = json.loads(alone.stdout.splitlines()[-1])
    os.environ["DUTY_GO"] = house.dir + "/go"
    jobs = []
    for n in (1, 2):
        jobs.append(house.run("--vram", "40G", "--", *words, str(steps["steps"]), name=f"job{n}"))
        wait_for(house, f"L{n}")
        house.until(f"L{n}", seen(36))
        time.sleep(2)
    begun = time.perf_counter()
    open(house.dir + "/go", "w").close()
    for job in jobs:
        job.wait()
    both_s = time.perf_counter() - begun
    ends = []
    for job in jobs:
        job.out.seek(0)
        ends.append(json.loads(job.out.read().splitlines()[-1]))
    work = sum(end["busy_s"] for end in ends)
    first, last = min(end["began"] for end in ends), max(end["ended"] for end in ends)
    FOUND["duty"] = {
        "burst_s": burst, "cycles": cycles, "alone": steps, "alone_s": alone_s, "both_s": both_s, "ends": ends,
        "work_alone_s": 2 * steps["busy_s"], "from_first_to_last_burst_s": last - first,
        "of_ideal": 2 * steps["busy_s"] / (last - first),
        "same": [end["trail"] == steps["trail"] for end in ends],
    }
    house.end()


def switches():
    house = House("switches", 16, 'switching = "50%"\nturn = "0s"\n')
    words = trains(7, 30000 if not SOFT else 3000)
    alone = subprocess.run(words if not SOFT else [DIST + "/sublet", "soft", "env", "--", *words], capture_output=True, text=True).stdout.splitlines()[-1]
    job = house.run("--vram", f"{10 * 1024 // SCALE}M", "--", *words, name="victim")
    wait_for(house, "L1")
    house.until("L1", seen(6) if not SOFT else seen(0))
    count, took = 0, []
    while count < 100 and job.poll() is None:
        status, lease = house.get("/v1/leases/L1")
        if lease["state"] != "active":
            time.sleep(0.01)
            continue
        guest, seconds = house.ask(10)
        took.append(round(seconds, 3))
        state = house.lease("L1")["state"]
        count += state == "parked"
        house.release(guest)
    job.wait()
    job.out.seek(0)
    disturbed = job.out.read().splitlines()[-1]
    FOUND["switches"] = {"parks": count, "alone": alone, "disturbed": disturbed, "same": alone == disturbed, "ask_to_grant_s": took}
    house.end()


def main():
    os.makedirs(OUT, exist_ok=True)
    for which in WHICH:
        begun = time.time()
        try:
            globals()[which]()
        except BaseException as error:
            FOUND[which] = {"failed": repr(error)}
        print(which, f"{time.time() - begun:.0f} s", json.dumps(FOUND.get(which))[:1500], flush=True)
        with open(OUT + "/preempt.json", "w") as file:
            json.dump(FOUND, file, indent=1)


main()
