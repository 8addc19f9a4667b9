#!/usr/bin/env python3
"""A training that is disturbed ends with the bytes of one that is not, on a real GPU.

    bench/gpu/training.py SUBLET TRAINER OUT [STEPS]

SUBLET is the binary, TRAINER is `sublet-example-train`; results go to OUT/training.json, what the trainers said to
OUT/training.log. Trains STEPS steps (200) without interruption, then again while its lease is parked, its process and
the daemon are killed, a second trainer of the same job starts, and the disk of the checkpoints is away for a moment, at
random moments and each at least once. Starts and ends its own daemon and programs, in a directory of its own; takes
about a minute. With SOFT=1 in the environment it uses a soft GPU. SEED repeats the order of the disturbances.
"""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

SOFT = "SOFT" in os.environ
SAVED_EVERY = 5
PACE_MS = 60
LONG = 240


class Training:
    """A daemon, a store of checkpoints, and the trainers of one job."""

    def __init__(self, sublet, trainer, steps, out):
        self.dir = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.dir.name)
        self.sublet, self.trainer, self.steps = sublet, trainer, steps
        self.disk = path / "disk"
        self.disk.mkdir()
        (path / "store.toml").write_text(f'register = "register.db"\n[replicas]\nlocal = "{self.disk}"\n')
        self.env = dict(os.environ, SUBLET_SOCKET=str(path / "s"), SUBLET_CHECKPOINTS=str(path / "store.toml"))
        self.serve = [sublet, "serve", "--state-dir", str(path / "state"), "--gpu", "soft:1x24GiB" if SOFT else "real"]
        self.log = (out / "training.log").open("wb")
        self.daemon = None
        self.trainers = []
        self.start_daemon()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in [*self.trainers, self.daemon]:
            program.kill()
            program.wait()
        self.log.close()
        self.dir.cleanup()

    def start_daemon(self):
        self.daemon = subprocess.Popen(self.serve, env=self.env, stderr=self.log)
        until("the daemon answers", lambda: self.call("ps").returncode == 0 or self.daemon.poll() is not None)
        if self.daemon.poll() is not None:
            sys.exit("the daemon ended; its log is in training.log")

    def call(self, *words):
        return subprocess.run([self.sublet, *words], env=self.env, capture_output=True, text=True, timeout=LONG)

    def command(self, job):
        return [self.trainer, "--job", job, "--steps", str(self.steps), "--every", str(SAVED_EVERY), "--pace", str(PACE_MS)]

    def undisturbed(self):
        """Trains without interruption; returns the weights' checksum and the seconds that it took."""
        begun = time.monotonic()
        done = subprocess.run(self.command("calm"), env=self.env, capture_output=True, text=True, timeout=LONG)
        if done.returncode:
            sys.exit(f"the undisturbed training failed: {done.stdout}{done.stderr}")
        return re.search(r"weights (\w+)", done.stdout)[1], round(time.monotonic() - begun, 2)

    def start_trainer(self):
        trainer = subprocess.Popen(self.command("disturbed"), env=self.env, stdout=self.log, stderr=self.log)
        self.trainers.append(trainer)

    def park(self):
        leases = json.loads(self.call("ps", "--json").stdout or "{}").get("leases", [])
        return any(self.call("park", lease["id"]).returncode == 0 for lease in leases)

    def kill_trainers(self):
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait()
        self.trainers.clear()

    def crash_daemon(self):
        self.daemon.kill()
        self.daemon.wait()
        self.start_daemon()

    def take_disk_away(self):
        """The copies are not there for half a second, as if their disk had gone."""
        away = self.disk.with_name("away")
        self.disk.rename(away)
        time.sleep(0.5)
        away.rename(self.disk)

    def is_done(self):
        """True when a trainer got to the end; one that ended otherwise is replaced."""
        ended = [trainer for trainer in self.trainers if trainer.poll() is not None]
        self.trainers = [trainer for trainer in self.trainers if trainer.poll() is None]
        if any(trainer.returncode == 0 for trainer in ended):
            return True
        if not self.trainers:
            self.start_trainer()
        return False


def until(what, is_so):
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > LONG:
            raise AssertionError(f"{what}: not within {LONG} s")
        time.sleep(0.05)


def disturb(training, numbers):
    """Disturbs the training until it ends; returns how often each thing was done."""
    kinds = {
        "parks": training.park,
        "kills of the trainer": training.kill_trainers,
        "kills of the daemon": training.crash_daemon,
        "second trainers": training.start_trainer,
        "disk faults": training.take_disk_away,
    }
    counts = dict.fromkeys(kinds, 0)
    # Each once, then as often as it comes.
    order = numbers.sample(list(kinds), len(kinds))
    begun = time.monotonic()
    while not training.is_done() and time.monotonic() - begun < LONG:
        # Long enough for a few steps: a trainer that never gets to save never ends.
        time.sleep(numbers.uniform(0.2, 1.5))
        kind = order.pop() if order else numbers.choices(list(kinds), (5, 3, 1, 1, 1))[0]
        # A park is refused while the lease is not active.
        counts[kind] += kinds[kind]() is not False
    return counts


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: bench/gpu/training.py SUBLET TRAINER OUT [STEPS]")
    sublet, trainer = (os.path.realpath(path) for path in sys.argv[1:3])
    out, steps = pathlib.Path(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) == 5 else 200
    out.mkdir(parents=True, exist_ok=True)
    seed = int(os.environ.get("SEED", "1"))
    with Training(sublet, trainer, steps, out) as training:
        calm, calm_s = training.undisturbed()
        begun = time.monotonic()
        counts = disturb(training, random.Random(seed))
        until("the training ends", training.is_done)
        took = round(time.monotonic() - begun, 2)
        # Started once more, it only says what was saved.
        again = subprocess.run(training.command("disturbed"), env=training.env, capture_output=True, text=True)
        weights = re.search(r"weights (\w+)", again.stdout)
        versions = re.findall(r"saved as version (\d+)", again.stdout)
        found = {
            "steps": steps,
            "seed": seed,
            "undisturbed_s": calm_s,
            "disturbed_s": took,
            **counts,
            "weights": calm,
            "weights_are_the_same": bool(weights) and weights[1] == calm,
            # One version for each save: no step was committed twice, and none was left out.
            "versions": int(versions[-1]) if versions else None,
            "versions_expected": -(-steps // SAVED_EVERY),
        }
    print(json.dumps(found), flush=True)
    (out / "training.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(not found["weights_are_the_same"] or found["versions"] != found["versions_expected"])


if __name__ == "__main__":
    main()
