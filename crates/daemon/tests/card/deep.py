"""Parked holders of which the driver takes the contexts, too, on a card.

    deep.py DIST OUT [WHICH ...]

DIST has sublet and libsublet_shim.so. WHICH is of: small large exit. Each prints one line of JSON.
"""

import json
import os
import subprocess
import sys
import time

from house import FOUND, GIB, HERE, OUT, House, run_all

JOB = HERE + "/deep_job.py"


def used(pids):
    """What the driver says that processes have, in MiB: of one that is not listed, nothing."""
    words = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = [line.split(",") for line in subprocess.check_output(words, text=True).splitlines() if "," in line]
    return sum(int(mib) for pid, mib in listed if int(pid) in pids)


class Talk:
    """A job and what it says."""

    def __init__(self, job, path):
        self.job, self.file = job, open(path)

    def read(self, patience=180):
        end = time.time() + patience
        while time.time() < end:
            line = self.file.readline()
            if line.startswith("{"):
                return json.loads(line)
            time.sleep(0.002)
        raise RuntimeError("it says nothing")

    def say(self, word):
        self.job.stdin.write(word + "\n")
        self.job.stdin.flush()


def alone(gib, words):
    job = subprocess.Popen([sys.executable, JOB, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out, _ = job.communicate("step\n" * words)
    return [json.loads(line) for line in out.splitlines()[1:]][-1]


def begin(name, gib, deep):
    house = House(name, 100, more=f'context_after = "{deep}"\n[preemption]\nretry_after = "1s"\n')
    job = house.run("--vram", f"{gib + 4}G", "--", sys.executable, JOB, str(gib), name="job")
    talk = Talk(job, f"{OUT}/{name}.job.txt")
    talk.read()
    talk.say("step")
    talk.read()
    lease = house.until("L1", lambda lease: (lease["seen_bytes"] or 0) >= gib * GIB)
    return house, talk, lease["pids"]


def off(house, pids):
    """Parks by hand; how long until the library, and then the driver, had taken all off the card."""
    begun = time.perf_counter()
    house.cli("park", "L1")
    parked, residue = time.perf_counter() - begun, used(pids)
    house.until("L1", lambda lease: lease["seen_bytes"] == 0, 60)
    return parked, residue, time.perf_counter() - begun


def moves(name, gib, rounds):
    house, talk, pids = begin(name, gib, "1s")
    found = []
    for turn in range(rounds):
        parked, residue, nothing = off(house, pids)
        left = used(pids)
        if turn % 3 == 2:
            # A question alone is heard, and brings it back.
            talk.say("ask")
            talk.read()
            woken = talk.read()["answered_s"]
        talk.say("step")
        said = talk.read()
        woken = woken if turn % 3 == 2 else said["to_first_kernel_s"]
        found.append(
            {
                "parked_s": round(parked, 3),
                "residue_mib": residue,
                "nothing_left_s": round(nothing, 3),
                "left_mib": left,
                "by": "a question" if turn % 3 == 2 else "a kernel",
                "back_s": woken,
            }
        )
        house.until("L1", lambda lease: lease["state"] == "active")
    undisturbed = alone(gib, rounds + 1)
    audit = house.cli("audit")
    house.end()
    # The same without the driver.
    house, talk, pids = begin(name + "-shallow", gib, "off")
    shallow = []
    for _ in range(3):
        house.cli("park", "L1")
        time.sleep(1)
        talk.say("step")
        shallow.append(talk.read()["to_first_kernel_s"])
        house.until("L1", lambda lease: lease["state"] == "active")
    house.end()
    same = (said["trail"], said["held"]) == (undisturbed["trail"], undisturbed["held"])
    FOUND[name] = {
        "gib": gib,
        "rounds": found,
        "shallow_back_s": shallow,
        "same_as_undisturbed": same,
        "deepened": audit.count("is parked further"),
    }


def small():
    moves("small", 1, 9)


def large():
    moves("large", 32, 4)


def ends():
    """A program ends while all of it is off the card, and somebody else has that."""
    house, talk, pids = begin("exit", 4, "1s")
    off(house, pids)
    other, _ = house.ask(95)
    begun = time.perf_counter()
    talk.say("end")
    code = talk.job.wait(60)
    took = time.perf_counter() - begun
    house.release(other)
    house.end()
    FOUND["exit"] = {"exit_code": code, "took_s": round(took, 3)}


run_all("deep", {"small": small, "large": large, "exit": ends})
