"""On a machine with an NVIDIA card, as root: who is on a card without a lease is found, adopted, parked and ended.

    enforce.py DIST OUT [--soft] [WHICH ...]

DIST has sublet and the examples. WHICH is of: adopted parked ended heir. Each begins a service of its own and ends it. The
programs are another user's. What happened goes to OUT/enforce.json and to the screen. With --soft they are examples,
on soft cards, to try the script itself.
"""

import os
import subprocess
import sys
import time

from house import DIST, FOUND, GIB, HERE, SCALE, SOFT, House, run_all

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
BRISK = '[enforcement]\nwarning = "10s"\ngrace = "10s"\n'


def stranger(house, gib):
    """A program of another user, with so much of the card and no lease; once it is on the record."""
    if SOFT:
        words = [DIST + "/sublet", "soft", "env", "--", DIST + "/sublet-example-hold", f"{gib * 1024 // SCALE}MiB"]
    else:
        words = [*NOBODY, sys.executable, HERE + "/steady_job.py", str(gib)]
    begun = time.time()
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": "/tmp"})
    job.stdout.readline()
    ready = time.time()
    found = until(house, lambda it: (it["vram_bytes"] or 0) >= gib * GIB // SCALE * 0.9)
    return job, found, {"start_to_ready_s": round(ready - begun, 3), "ready_to_bytes_known_s": round(time.time() - ready, 3)}


def until(house, what, patience=60):
    end = time.time() + patience
    while time.time() < end:
        for it in house.get("/v1/unleased")[1]["processes"]:
            if what(it):
                return it
        time.sleep(0.02)
    raise RuntimeError("no such stranger: " + house.cli("enforce", "status", check=False))


def used(house):
    return house.get("/v1/gpus")[1]["gpus"][0]["used_bytes"]


def adopted():
    """Found, warned, given a lease, parked by the driver, and brought back."""
    house = House("adopted", 60, BRISK)
    job, found, told = stranger(house, 8)
    told["found"] = found
    told["enforce"] = house.cli("enforce", "mode", "0", "enforce", "--yes")
    told["warned"] = until(house, lambda it: it["step"] == "warned")
    told["status"] = house.cli("enforce", "status")
    told["adopt"] = house.cli("adopt", str(found["pid"]))
    lease = house.get("/v1/leases?all=true")[1]["leases"][0]["id"]
    # The driver looks at it first.
    house.until(lease, lambda it: it["seen_bytes"] and not it.get("not_parkable"))
    for verb in ("park", "resume"):
        begun = time.perf_counter()
        house.cli(verb, lease)
        told[verb + "_s"], told[verb + "_seen"] = round(time.perf_counter() - begun, 3), house.lease(lease)["seen_bytes"]
    job.terminate()
    told["said"] = job.stdout.read().split("\n")[:2]
    told["exit"] = job.wait()
    told["story"] = house.cli("audit", "show", found["id"])
    FOUND["adopted"] = told
    house.end()


def parked():
    """Found, warned, not heeding it: parked by the driver, and brought back under the lease that it got by that."""
    house = House("parked", 60, BRISK)
    before = used(house)
    job, found, told = stranger(house, 8)
    told["used_before"], told["used_with_it"] = before, used(house)
    house.cli("enforce", "mode", "0", "enforce", "--yes")
    begun = time.perf_counter()
    until(house, lambda it: it["step"] == "warned")
    told["preview"] = house.cli("enforce", "preview")
    until(house, lambda it: it["step"] not in ("found", "warned"))
    told["mode_to_moving_s"] = round(time.perf_counter() - begun, 3)
    lease = house.get("/v1/leases?all=true")[1]["leases"][0]["id"]
    house.until(lease, lambda it: it["state"] == "parked")
    told["mode_to_parked_s"] = round(time.perf_counter() - begun, 3)
    told["alive"] = job.poll() is None
    told["used_parked"] = used(house)
    begun = time.perf_counter()
    house.cli("resume", lease)
    told["resume_s"], told["resumed_seen"] = round(time.perf_counter() - begun, 3), house.lease(lease)["seen_bytes"]
    job.terminate()
    told["said"] = job.stdout.read().split("\n")[:2]
    told["exit"] = job.wait()
    told["story"] = house.cli("audit", "show", found["id"])
    FOUND["parked"] = told
    house.end()


def ended():
    """Found, warned, ended; what it had is seen to return, and the whole story can be read."""
    house = House("ended", 60, BRISK + "park = false\n")
    before = used(house)
    job, found, told = stranger(house, 8)
    told["used_before"], told["used_with_it"] = before, used(house)
    house.cli("enforce", "mode", "0", "enforce", "--yes")
    told["exit"] = job.wait()
    end = time.time() + 30
    while used(house) > before + (64 << 20) and time.time() < end:
        time.sleep(0.05)
    told["used_after"] = used(house)
    while "exited" not in (story := house.cli("audit", "show", found["id"])) and time.time() < end:
        time.sleep(0.05)
    told["story"] = story
    told["verify"] = house.cli("audit", "verify", "--state-dir", house.dir + "/state", check=False)
    FOUND["ended"] = told
    house.end()


def heir():
    """Whoever opened the card is dead, and a child still has what it opened: what the driver names, and who is found."""
    house = House("heir", 60, BRISK + "park = false\n")
    before = used(house)
    words = [*NOBODY, sys.executable, HERE + "/heir_job.py", "4"]
    job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    child = int(job.stdout.readline().split()[1])
    told = {"parent": job.pid, "child": child, "used_before": before}
    until(house, lambda it: it["pid"] == job.pid)
    told["used_with_it"] = used(house)
    job.wait()
    time.sleep(4)
    told["nvidia_smi"] = subprocess.check_output(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], text=True
    )
    told["used_after"] = used(house)
    told["files"] = subprocess.run(["ls", "-l", f"/proc/{child}/fd"], capture_output=True, text=True).stdout
    told["status"] = house.cli("enforce", "status", check=False)
    if any(it["pid"] == child for it in house.get("/v1/unleased")[1]["processes"]):
        house.cli("enforce", "mode", "0", "enforce", "--yes")
        end = time.time() + 60
        while used(house) > before + (64 << 20) and time.time() < end:
            time.sleep(0.05)
        told["used_when_ended"] = used(house)
    told["child_lives"] = os.path.exists(f"/proc/{child}/stat")
    if told["child_lives"]:
        os.kill(child, 9)
        time.sleep(3)
        told["used_without_child"] = used(house)
    FOUND["heir"] = told
    house.end()


cases = {"adopted": adopted, "parked": parked, "ended": ended}
# On soft cards a test of its own shows it (tests-blackbox).
run_all("enforce", cases if SOFT else {**cases, "heir": heir})
