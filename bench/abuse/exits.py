#!/usr/bin/env python3
"""How late the exit of a program is seen while another user's lease has many processes and forks in a loop.

    bench/abuse/exits.py SUBLET [CHILDREN] [ROUNDS]

Needs root (two users). Uses a scripted GPU, a folder of its own and no network. Prints seconds from the end of a
program until its lease has ended: alone, beside CHILDREN idle processes, and beside those with a fork loop.
"""
import http.client, json, os, shutil, signal, socket, subprocess, sys, tempfile, time

SUBLET, CHILDREN, ROUNDS = sys.argv[1], int((sys.argv + [0, 0])[2] or 12000), int((sys.argv + [0, 0, 0])[3] or 10)
ATTACKER, VICTIM = 61001, 61002
CROWD = """
import os, signal, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
for i in range(int(sys.argv[1])):
    if os.fork() == 0:
        signal.pause()
print("ready", flush=True)
sys.stdin.readline()
print("looping", flush=True)
while True:
    pids = []
    for _ in range(16):
        pid = os.fork()
        if pid == 0: os._exit(0)
        pids.append(pid)
    for pid in pids: os.waitpid(pid, 0)
"""


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def call(path, uid, method, route, body=None):
    """One request as a user, by a connection of its own: the kernel names the user when it connects."""
    os.seteuid(uid)
    try:
        connection = Unix(path)
        connection.connect()
    finally:
        os.seteuid(0)
    connection.request(method, route, body and json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None


def bound(path, uid, pid):
    status, lease = call(path, uid, "POST", "/v1/leases", {"vram_bytes": 1 << 30, "pid": pid})
    assert status < 300, lease
    return lease["id"]


def as_user(uid, command, **more):
    return subprocess.Popen(command, user=uid, group=uid, **more)


def exit_seen(path):
    """Seconds from the end of a program until its lease has ended."""
    program = as_user(VICTIM, ["sleep", "3600"])
    lease = bound(path, VICTIM, program.pid)
    time.sleep(1.5)
    program.kill()
    began = time.monotonic()
    program.wait()
    while True:
        status, row = call(path, VICTIM, "GET", f"/v1/leases/{lease}")
        if status != 200 or row["state"] in ("ending", "ended"):
            return time.monotonic() - began
        assert time.monotonic() - began < 60, row
        time.sleep(0.002)


def show(name, path):
    seen = sorted(exit_seen(path) for _ in range(ROUNDS))
    print(f"{name:<32} median {seen[len(seen) // 2]:6.3f} s   worst {seen[-1]:6.3f} s", flush=True)


def main():
    folder = tempfile.mkdtemp(prefix="sublet-exits-")
    os.chmod(folder, 0o755)
    path = f"{folder}/sublet.sock"
    log = open(f"{folder}/log", "w")
    command = [SUBLET, "serve", "--gpu", "scripted:1x24GiB", "--state-dir", f"{folder}/state", "--socket", path]
    service = subprocess.Popen(command, stdout=log, stderr=log)
    crowd = None
    try:
        while not os.path.exists(path):
            time.sleep(0.05)
        time.sleep(2)
        show("alone", path)
        # It becomes the other user itself: that user may not read this Python.
        command = [sys.executable, "-c", CROWD, str(CHILDREN), str(ATTACKER)]
        pipe = subprocess.PIPE
        crowd = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        assert crowd.stdout.readline() == "ready\n"
        bound(path, ATTACKER, crowd.pid)
        time.sleep(5)
        show(f"beside {CHILDREN} processes", path)
        crowd.stdin.write("\n")
        crowd.stdin.flush()
        assert crowd.stdout.readline() == "looping\n"
        time.sleep(2)
        show("and a fork loop", path)
    finally:
        if crowd:
            os.killpg(crowd.pid, signal.SIGKILL)
            crowd.wait()
        service.terminate()
        service.wait()
        shutil.rmtree(folder)


main()
