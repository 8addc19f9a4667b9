"""On a machine with an NVIDIA card: room is made for who waits, with unmodified PyTorch on both sides.

    preempt.py DIST OUT [--soft] [WHICH ...]

DIST has sublet, libsublet_shim.so and the examples. WHICH is of: park both first driver wake duty switches pair ipc. Each
begins a service of its own and ends it. Figures go to OUT/preempt.json and to the screen. With --soft the programs are the
examples, on soft cards, to try the script itself.
"""

import json
import os
import subprocess
import sys
import time

from house import DIST, FOUND, GIB, HERE, SCALE, SOFT, House, run_all


def trains(ballast, steps):
    if SOFT:
        return [DIST + "/sublet-example-mlp", "--steps", str(min(steps, 4000))]
    return [sys.executable, HERE + "/../../../shim/tests/gpu/torch_train.py", "--ballast", str(ballast), "--steps", str(steps)]


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
    house = House("park", 60, '[preemption]\nswitching_max = "50%"\ntime_slice = "1s"\n')
    house.run("--vram", f"{40 * 1024 // SCALE}M", "--", *holds(32), name="victim")
    house.came("L1")
    house.until("L1", seen(32))
    took, back = rounds(house, "L1", 32, 40, 3 if SOFT else 12, 4)
    FOUND["park"] = {"victim_gib": 32, "ask_to_grant_s": took, "release_to_back_s": back}
    house.end()


def both():
    """The same, and who comes is a program too: it is started when it has its card, computes, and ends."""
    house = House("both", 60, '[preemption]\nswitching_max = "50%"\ntime_slice = "1s"\n')
    house.run("--vram", f"{40 * 1024 // SCALE}M", "--", *holds(32), name="victim")
    house.came("L1")
    guests = []
    for number in range(2, 4 if SOFT else 8):
        house.until("L1", seen(32))
        time.sleep(4)
        flags = ["--vram", f"{40 * 1024 // SCALE}M", "--tier", "interactive", "--"]
        job = house.run(*flags, *trains(4, 200), name=f"guest{number}")
        job.wait()
        job.out.seek(0)
        guests.append(job.out.read().splitlines()[-1:])
    house.until("L1", seen(32))
    at = {(line["kind"], line["lease"]): line["at_unix_s"] for line in json.loads(house.cli("audit", "--json"))["lines"]}
    took = [round(at["grant", lease] - at["queue", lease], 4) for kind, lease in at if kind == "queue" and lease != "L1"]
    FOUND["both"] = {"victim_gib": 32, "ask_to_grant_s": took, "guests": guests, "victim": house.lease("L1")["state"]}
    house.end()


def first():
    """The first time that a program leaves, with a stock of memory ready for it; a new program each time."""
    house = House("first", 60, '[preemption]\nswitching_max = "50%"\ntime_slice = "1s"\n', stock="2G" if SOFT else "34G")
    time.sleep(2 if SOFT else 20)
    took = []
    for number in (1, 3, 5):
        job = house.run("--vram", f"{40 * 1024 // SCALE}M", "--", *holds(32), name=f"victim{number}")
        house.came(f"L{number}")
        house.until(f"L{number}", seen(32))
        time.sleep(4)
        guest, seconds = house.ask(40)
        took.append(round(seconds, 4))
        house.release(guest)
        house.until(f"L{number}", lambda lease: lease["state"] == "active")
        job.terminate()
        job.wait()
        time.sleep(2 if SOFT else 8)
    FOUND["first"] = {"victim_gib": 32, "ask_to_grant_s": took, "doctor": house.cli("doctor", check=False)}
    house.end()


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
    house = House("driver", 60, '[preemption]\nswitching_max = "50%"\ntime_slice = "1s"\n')
    house.run("--vram", f"{40 * 1024 // SCALE}M", "--no-shim", "--", *holds(32), name="victim")
    house.came("L1")
    house.until("L1", seen(32))
    figures = {"victim_gib": 32, "bare_out_s": [], "bare_back_s": []}
    took, back = [], []
    # Who came back has a turn as long as its moves take, before it leaves even for somebody more urgent.
    for turn in (6, 2 if SOFT else 30):
        house.until("L1", seen(32))
        time.sleep(turn)
        guest, seconds = house.ask(40, patience=100)
        took.append(seconds)
        begun = time.perf_counter()
        house.release(guest)
        house.until("L1", lambda lease: lease["state"] == "active")
        back.append(time.perf_counter() - begun)
        if not SOFT:
            # Beside it, the same process by the bare calls.
            house.until("L1", seen(32))
            for figure, seconds in zip(("bare_out_s", "bare_back_s"), bare(pid_on_card(house, "L1"), 1)):
                figures[figure] += seconds
    figures["ask_to_grant_s"], figures["release_to_back_s"] = took, back
    FOUND["driver"] = figures
    house.end()


def wake():
    house = House("wake", 60)
    job = house.run("--vram", f"{4 * 1024 // SCALE}M", "--tier", "interactive", "--", sys.executable, HERE + "/wake_job.py", "1", name="notebook")
    house.came("L1")
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
    house.came("L2")
    for _ in range(3):
        house.until("L2", seen(50))
        time.sleep(12)
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
    house = House("duty", 60, stock="2G" if SOFT else "38G")
    burst, cycles = (3, 2) if SOFT else (30, 2)
    words = [sys.executable, HERE + "/duty_job.py", "36", str(burst)]
    begun = time.perf_counter()
    os.environ.pop("DUTY_GO", None)
    alone = subprocess.run([*words, "1"], capture_output=True, text=True)
    alone_s = time.perf_counter() - begun
    steps = json.loads(alone.stdout.splitlines()[-1])
    os.environ["DUTY_GO"] = house.dir + "/go"
    jobs = []
    for n in (1, 2):
        jobs.append(house.run("--vram", "40G", "--", *words, str(cycles), str(steps["steps"]), name=f"job{n}"))
        house.came(f"L{n}")
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
        "work_alone_s": 2 * cycles * steps["busy_s"], "from_first_to_last_burst_s": last - first,
        "of_ideal": 2 * cycles * steps["busy_s"] / (last - first),
        "same": ends[0]["trails"] == ends[1]["trails"] and ends[0]["trails"][:1] == steps["trails"],
    }
    house.end()


def switches():
    """Two trainings that do not fit together take turns, as short as they can be; each computes what it does alone."""
    house = House("switches", 16, '[preemption]\nswitching_max = "50%"\ntime_slice = "1s"\n')
    words = trains(7, 36000)
    begun = time.perf_counter()
    alone = subprocess.run(words if not SOFT else [DIST + "/sublet", "soft", "env", "--", *words], capture_output=True, text=True)
    alone_s = time.perf_counter() - begun
    begun = time.perf_counter()
    jobs = [house.run("--vram", f"{10 * 1024 // SCALE}M", "--", *words, name=f"job{n}") for n in (1, 2)]
    ends = []
    for job in jobs:
        job.wait()
        job.out.seek(0)
        ends.append(job.out.read().splitlines()[-1:])
    both_s = time.perf_counter() - begun
    lines = json.loads(house.cli("audit", "--json"))["lines"]
    moved = [line["at_unix_s"] for line in lines if line["kind"] == "resume"]
    FOUND["switches"] = {
        "switches": len(moved), "alone": alone.stdout.splitlines()[-1], "alone_s": alone_s, "both": ends, "both_s": both_s,
        "same": all(end == [alone.stdout.splitlines()[-1]] for end in ends),
    }
    house.end()


def pair():
    """Two processes of one lease park and come back whole."""
    house = House("pair", 60)
    job = house.run("--vram", "20G", "--", sys.executable, HERE + "/pair_job.py", "4", name="pair")
    house.came("L1")
    house.until("L1", seen(8))
    took = []
    for _ in range(5):
        for verb in ("park", "resume"):
            begun = time.perf_counter()
            house.cli(verb, "L1")
            took.append((verb, round(time.perf_counter() - begun, 3), house.lease("L1")["seen_bytes"]))
    job.stdin.close()
    code = job.wait()
    job.out.seek(0)
    FOUND["pair"] = {"took": took, "exit": code, "said": job.out.read().splitlines()}
    house.end()


def ipc():
    """Tensors handed from process to process, by PyTorch's own queues: it works, and such a holder is not parked."""
    house = House("ipc", 60)
    job = house.run("--vram", "20G", "--", sys.executable, HERE + "/ipc_job.py", name="ipc")
    house.came("L1")
    house.until("L1", seen(2))
    time.sleep(3)
    refused = house.cli("park", "L1", check=False)
    shown = house.cli("ps")
    job.stdin.close()
    code = job.wait()
    job.out.seek(0)
    FOUND["ipc"] = {"refused": refused, "ps": shown, "exit": code, "said": job.out.read().splitlines()}
    house.end()


run_all("preempt", {"park": park, "both": both, "first": first, "driver": driver, "wake": wake, "duty": duty, "switches": switches, "pair": pair, "ipc": ipc})
