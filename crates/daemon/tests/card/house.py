"""A service of its own for a script on a card, and how its figures are kept."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SOFT = "--soft" in sys.argv
WORDS = [word for word in sys.argv[1:] if word != "--soft"]
DIST, OUT, WHICH = os.path.abspath(WORDS[0]), os.path.abspath(WORDS[1]), WORDS[2:]
GIB = 1 << 30
SCALE = 16 if SOFT else 1
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

    open = []

    def __init__(self, name, limit_gib, more="", stock="off"):
        self.dir = tempfile.mkdtemp()
        self.name, self.socket = name, self.dir + "/s"
        config = 'ttl = "5m"\ngrace = "1s"\n'
        os.chmod(self.dir, 0o755)
        total = 8192
        if not SOFT:
            shown = subprocess.check_output(
                ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"], text=True
            )
            total = int(shown.split()[0])
        limit = limit_gib * 1024 // SCALE
        config += f'margin = "{total - limit}M"\n'
        ram, leave = ("8G", "256M") if SOFT else ("100G", "6G")
        config += f'[parking]\nram = "{ram}"\nkeep_free = "{leave}"\nready = "{stock}"\n'
        config += more
        with open(self.dir + "/sublet.toml", "w") as file:
            file.write(config)
        os.environ["SUBLET_SOCKET"] = self.socket
        gpu = f"soft:1x{total}MiB" if SOFT else "real"
        self.log = open(f"{OUT}/{name}.serve.log", "w")
        words = ["serve", "--state-dir", self.dir + "/state", "--socket", self.socket, "--gpu", gpu]
        self.daemon = subprocess.Popen([DIST + "/sublet", *words, "--config", self.dir + "/sublet.toml"], stderr=self.log)
        self.jobs = []
        House.open.append(self)
        for _ in range(300):
            if self.ready():
                break
            if self.daemon.poll() is not None:
                raise RuntimeError(open(self.log.name).read())
            time.sleep(0.1)
        # What a context takes is measured once; until then the card is not as empty as it will be.
        for _ in range(300):
            if self.get("/v1/gpus")[1]["gpus"][0]["context_bytes"]:
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
        raise RuntimeError(f"{self.name}: not in {patience} s: {self.lease(id)}")

    def came(self, id):
        """Waits until there is a lease of this name."""
        for _ in range(1200):
            if self.get(f"/v1/leases/{id}")[0] == 200:
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name}: no lease {id}")

    def cli(self, *words, check=True):
        said = subprocess.run([DIST + "/sublet", *words], capture_output=True, text=True)
        if check and said.returncode:
            raise RuntimeError(f"sublet {' '.join(words)}: {said.stdout}{said.stderr}")
        return said.stdout + said.stderr

    def run(self, *words, name=None):
        out = open(f"{OUT}/{self.name}.{name or len(self.jobs)}.txt", "w+")
        err = open(f"{OUT}/{self.name}.{name or len(self.jobs)}.err", "w")
        job = subprocess.Popen([DIST + "/sublet", "run", *words], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
        job.out = out
        self.jobs.append(job)
        return job

    def ask(self, gib, tier="interactive", patience=60):
        """Asks for a lease and waits for it: its id, and how long it took."""
        begun = time.perf_counter()
        status, lease = self.call("POST", "/v1/leases", {"vram_bytes": gib * GIB // SCALE, "tier": tier})
        assert status in (201, 202), (status, lease)
        while lease["state"] != "active":
            if time.perf_counter() - begun > patience:
                raise RuntimeError(f"{self.name}: {lease['id']} waits too long\n" + self.cli("explain", lease["id"]))
            status, lease = self.get(f"/v1/leases/{lease['id']}?wait=5s")
            assert status == 200, lease
        return lease["id"], time.perf_counter() - begun

    def release(self, id):
        self.call("DELETE", f"/v1/leases/{id}")

    def tell(self):
        """What somebody would look at who wonders why nothing happens."""
        for words in (["ps"], ["queue"], ["gpus"], ["doctor"]):
            print("$ sublet", *words, "\n" + self.cli(*words, check=False), flush=True)
        for lease in self.get("/v1/leases")[1]["leases"]:
            for pid in lease["pids"]:
                with open(f"/proc/{pid}/maps") as maps:
                    kept = {line.split(None, 5)[5].strip() for line in maps if "nvidia" in line or "/dev/shm" in line}
                print(pid, sorted(kept), flush=True)

    def end(self):
        House.open.remove(self)
        for job in self.jobs:
            if job.poll() is None:
                job.terminate()
        for job in self.jobs:
            job.wait()
        with open(f"{OUT}/{self.name}.audit.json", "w") as file:
            subprocess.run([DIST + "/sublet", "audit", "--json"], stdout=file, stderr=subprocess.STDOUT)
        self.daemon.terminate()
        self.daemon.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def run_all(name, drills):
    """Runs those that were named, or all; each failure is told, and the others go on."""
    os.makedirs(OUT, exist_ok=True)
    for which in WHICH or list(drills):
        begun = time.time()
        try:
            drills[which]()
        except Exception as error:
            traceback.print_exc()
            for house in House.open:
                house.tell()
            FOUND[which] = {"failed": repr(error)}
            for house in list(House.open):
                house.end()
        print(which, f"{time.time() - begun:.0f} s", json.dumps(FOUND.get(which))[:3000], flush=True)
        with open(f"{OUT}/{name}.json", "w") as file:
            json.dump(FOUND, file, indent=1)
