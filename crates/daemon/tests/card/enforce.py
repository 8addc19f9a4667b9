"""On a machine with an NVIDIA card, as root: who is on a card without a lease is found, adopted, parked and ended.

    enforce.py DIST OUT [--soft] [WHICH ...]

DIST has sublet and the examples. WHICH is of: adopted parked ended. Each begins a service of its own and ends it. The
programs are another user's. What happened goes to OUT/enforce.json and to the screen. With --soft they are examples,
on soft cards, to try the script itself.
"""

import os
import subprocess
import sys
import time

from house import DIST, FOUND, GIB, HERE, SCALE, SOFT, House, run_all

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
BRISK = '[enforcement]\nwarned = "10s"\ngrace = "10s"\n'


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
        for it in house.get("/v1/strangers")[1]["strangers"]:
            if what(it):
                return it
        time.sleep(0.02)
    raise RuntimeError("no such stranger: " + house.cli("enforce", "status", check=False))


def used(house):
    return house.get("/v1/cards")[1]["cards"][0]["used_bytes"]


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


run_all("enforce", {"adopted": adopted, "parked": parked, "ended": ended})
