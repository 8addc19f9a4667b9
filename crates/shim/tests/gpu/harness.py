"""Runs a program under the shim and parks it at random moments: a daemon of a hundred lines.

    harness.py --shim FILE [--parks N] [--pause S] [--away S] [--least BYTES] [--prepare BYTES] -- PROGRAM ...

Prints one line of JSON: how often it was parked and refused, and how fast. Exits as the program does.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parks", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between parks, at most")
    parser.add_argument("--away", type=float, default=0.02, help="seconds parked, at most")
    parser.add_argument("--begin", type=float, default=0.0, help="seconds before the first park")
    parser.add_argument("--shim", required=True)
    parser.add_argument("--prepare", type=int, default=0, help="bytes to register in advance")
    parser.add_argument("--least", type=int, default=1, help="parks of fewer bytes do not count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "shim")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    server.listen(64)
    environment = dict(os.environ, SUBLET_SHIM_SOCKET=path, LD_PRELOAD=wanted.shim)
    program = wanted.program[1:] if wanted.program[:1] == ["--"] else wanted.program
    process = subprocess.Popen(program, env=environment)
    chance = random.Random(wanted.seed)
    parked, refused, why, asked = [], 0, {}, []
    resumed = []

    def answer():
        while True:
            line.settimeout(120)
            said = json.loads(line.recv(4096))
            if said["say"] == "wants":
                asked.append(said["call"])
                continue
            return said

    def order(**what):
        line.send(json.dumps(what).encode())

    server.settimeout(120)
    line = None
    try:
        # Of several processes the one that was started is parked; others only get a welcome.
        while line is None:
            candidate, _ = server.accept()
            hello = json.loads(candidate.recv(4096))
            candidate.send(json.dumps({"do": "welcome", "page": False}).encode())
            if hello["pid"] == process.pid:
                line = candidate
        time.sleep(wanted.begin)
        if wanted.prepare:
            order(do="prepare", bytes=wanted.prepare)
            answer()
        number = 0
        while number < wanted.parks and process.poll() is None:
            time.sleep(chance.random() * wanted.pause)
            number += 1
            order(do="park", id=number, deadline_ms=10_000)
            said = answer()
            if said["say"] != "parked":
                refused += 1
                why[said.get("why")] = why.get(said.get("why"), 0) + 1
                continue
            is_empty = said["bytes"] < wanted.least
            if not is_empty:
                parked.append(said)
                time.sleep(chance.random() * wanted.away)
            order(do="resume", id=number)
            said = answer()
            if said["say"] != "resumed":
                print(json.dumps({"lost": said}))
                break
            if is_empty:
                # It has not begun: that does not count.
                number -= 1
                continue
            resumed.append(said)
    except (ConnectionError, OSError, ValueError) as error:
        # A program that ends hangs up first.
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            print(json.dumps({"trouble": repr(error)}))
    code = process.wait()

    def rates(said):
        large = [one for one in said if one["bytes"] > 1 << 28]
        return sorted(one["bytes"] / (1 << 30) / (one["took"]["all_us"] / 1e6) for one in large)

    def middle(numbers):
        return round(numbers[len(numbers) // 2], 3) if numbers else None

    out, back = rates(parked), rates([one for one in resumed if one["bytes"] >= wanted.least])
    first = parked[0] if parked else None
    print(json.dumps({
        "code": code, "parks": len(parked), "refused": refused, "why": why,
        "gib": max((one["bytes"] for one in parked), default=0) / (1 << 30),
        "out_gib_s": {"median": middle(out), "best": middle(out[-1:])},
        "in_gib_s": {"median": middle(back), "best": middle(back[-1:])},
        # Waiting for open captures, during which the program goes on; closing; waiting for the GPU.
        **{part: {"median": middle(sorted(one["took"].get(part, 0) for one in parked)),
                  "worst": max((one["took"].get(part, 0) for one in parked), default=None)}
           for part in ("capture_us", "gate_us", "drain_us")},
        "first": first, "last": parked[-1] if parked else None, "back": resumed[-1] if resumed else None,
    }))
    sys.exit(code)


main()
