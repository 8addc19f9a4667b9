#!/usr/bin/env bash
# The recipes for training programs (docs/recipes/torchrun.md, lightning.md, hf-trainer.md) on a real GPU.
#
#   bench/gpu/signals.sh SUBLET OUT
#
# SUBLET is the binary; the transcript goes to OUT/signals.txt, and what each program printed to OUT/NAME.out. Needs
# python3 with torch, lightning and transformers; nothing is downloaded. Each program runs on a lease with
# `--time 80s --signal USR1@40`, all of them at once, and must stop at its signal as its recipe says. Their notice.py is
# the first Python block of the recipe itself. The Lightning program also runs without Sublet and gets its signal from
# here. A program that does not stop is asked for the stacks of its threads. Starts and ends its own daemon, in a
# directory of its own; takes about a minute and a half. Exits with 1 if a check failed.
set -u
[ $# = 2 ] || { echo "usage: bench/gpu/signals.sh SUBLET OUT" >&2; exit 64; }
sublet=$(realpath "$1")
mkdir -p "$2" || exit 1
out=$(realpath "$2")
root=$(realpath "$(dirname "$0")/../..")
programs=$root/bench/gpu/signals
here=$(mktemp -d)
export SUBLET_SOCKET=$here/s
exec > >(tee "$out/signals.txt") 2>&1

failed=0
daemon=
declare -A job=()
say() { printf '\n## %s\n' "$*"; }
# check WHAT COMMAND...: says whether the command succeeded.
check() {
    local what=$1
    shift
    if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; failed=1; fi
}
finish() {
    cp "$here"/*.out "$here/log" "$out" 2>/dev/null
    for pid in "${job[@]}" $daemon; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
    done
    rm -rf "$here"
}
trap finish EXIT

# recipe NAME FOLDER: the first Python block of a recipe becomes FOLDER/notice.py.
recipe() {
    awk '/^```python$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' "$root/docs/recipes/$1.md" >"$2/notice.py"
    [ -s "$2/notice.py" ]
}
# start NAME COMMAND...: runs a program on a lease, in a folder with its notice.py.
start() {
    local name=$1
    shift
    PYTHONFAULTHANDLER=1 PYTHONPATH=$here/$name timeout 300 \
        "$sublet" run --vram 6G --name "$name" --time 80s --signal USR1@40 -- "$@" >"$here/$name.out" 2>&1 &
    job[$name]=$!
}
# stop NAME: waits until a program has ended, for 100 s at most; sets code[NAME].
stop() {
    local process child
    for _ in $(seq 500); do
        kill -0 "${job[$1]}" 2>/dev/null || break
        sleep 0.2
    done
    if kill -0 "${job[$1]}" 2>/dev/null; then
        echo "$1 does not stop: its processes, and the stacks of its threads"
        process=$(printed "$1" pid)
        for child in $process $(cat "/proc/$process/task/$process/children"); do
            tr '\0' ' ' <"/proc/$child/cmdline"; echo
            grep -E '^(Pid|PPid|State|SigCgt)' "/proc/$child/status"
            grep -H . /proc/"$child"/task/*/{comm,wchan,syscall}
            # Python prints its stacks and ends.
            kill -ABRT "$child"
        done
        sleep 5
        kill "${job[$1]}" 2>/dev/null
    fi
    wait "${job[$1]}"
    code[$1]=$?
    unset "job[$1]"
}
# await NAME WORDS SECONDS: waits until a program printed these words.
await() {
    for _ in $(seq $(($3 * 5))); do
        grep -q "$2" "$here/$1.out" 2>/dev/null && return 0
        sleep 0.2
    done
    echo "$1 did not print \`$2\` within $3 s"
    return 1
}
# printed NAME KEY: the number after `KEY=` in what a program printed.
printed() { sed -n "s/.*$2=\([0-9][0-9]*\).*/\1/p" "$here/$1.out" | head -1; }
# got SIGNAL PID: the daemon's log says that a process got a signal because its lease ends soon.
got() { grep 'the lease ends soon' "$here/log" | grep "pid=$2 " | grep -q "$1"; }
not() { ! "$@"; }
exists() { compgen -G "$1" >/dev/null; }

say "the machine"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
python3 -c 'import torch, lightning, transformers; print("torch", torch.__version__, "lightning", lightning.__version__, "transformers", transformers.__version__)' || exit 1

"$sublet" serve --state-dir "$here/state" --socket "$here/s" --gpu real 2>"$here/log" &
daemon=$!
for _ in $(seq 150); do
    "$sublet" gpus 2>/dev/null | grep -q "in service" && break
    sleep 0.2
done

say "four programs, each on a lease of 80 s, with SIGUSR1 40 s before its end"
for name in torchrun lightning hf-trainer; do
    mkdir "$here/$name"
    check "the recipe $name has a block of Python" recipe "$name" "$here/$name"
done
mkdir "$here/deaf"
torchrun=(python3 -m torch.distributed.run --standalone --nproc-per-node 1)
start torchrun "${torchrun[@]}" "$programs/torchrun_train.py" "$here/torchrun"
start lightning python3 "$programs/lightning_train.py" "$here/lightning"
start hf-trainer python3 "$programs/hf_train.py" "$here/hf-trainer"
start deaf "${torchrun[@]}" "$programs/torchrun_train.py" "$here/deaf" deaf
for name in torchrun lightning hf-trainer deaf; do
    # The signal comes 40 s after the grant: a program that is not ready by then proves nothing.
    check "$name trains before its signal" await "$name" "training pid=" 38
done
"$sublet" ps
declare -A code=()
for name in torchrun lightning hf-trainer deaf; do
    stop "$name"
done

say "Lightning without Sublet"
mkdir "$here/bare"
recipe lightning "$here/bare"
PYTHONFAULTHANDLER=1 PYTHONPATH=$here/bare timeout 300 python3 "$programs/lightning_train.py" "$here/bare" >"$here/bare.out" 2>&1 &
job[bare]=$!
check "it trains" await bare "training pid=" 60
sleep 3
kill -USR1 "$(printed bare pid)"
stop bare
check "it exited with 75 (${code[bare]})" test "${code[bare]}" = 75

say "torchrun: the rank gets SIGUSR1, saves and leaves with 75; torchrun gets no signal and exits with 1"
check "the rank got SIGUSR1" got SIGUSR1 "$(printed torchrun pid)"
check "torchrun got nothing" not got SIG "$(printed torchrun parent)"
check "it stopped" grep -q "stopped at step" "$here/torchrun.out"
check "it saved" test -s "$here/torchrun/last.pt"
check "torchrun exited with 1 (${code[torchrun]})" test "${code[torchrun]}" = 1

say "Lightning: SIGUSR1, a checkpoint, exit code 75"
check "it got SIGUSR1" got SIGUSR1 "$(printed lightning pid)"
check "it stopped" grep -q "stopped at step" "$here/lightning.out"
check "it saved" test -s "$here/lightning/last.ckpt"
check "it exited with 75 (${code[lightning]})" test "${code[lightning]}" = 75

say "Hugging Face Trainer: SIGUSR1, a checkpoint, exit code 75"
check "it got SIGUSR1" got SIGUSR1 "$(printed hf-trainer pid)"
check "it stopped" grep -q "stopped at step" "$here/hf-trainer.out"
check "it saved" exists "$here/hf-trainer/checkpoint-*/model.safetensors"
check "it exited with 75 (${code[hf-trainer]})" test "${code[hf-trainer]}" = 75

say "torchrun without a handler: torchrun gets SIGTERM, and the rank nothing from the daemon"
check "torchrun got SIGTERM" got SIGTERM "$(printed deaf parent)"
check "the rank got nothing" not got SIG "$(printed deaf pid)"
check "it did not run to its end" not grep -q "nothing came" "$here/deaf.out"
check "torchrun exited with an error (${code[deaf]})" test "${code[deaf]}" != 0

if [ $failed != 0 ]; then
    for name in torchrun lightning hf-trainer deaf; do
        say "what $name printed last"
        tail -30 "$here/$name.out"
    done
    say "the daemon's log"
    tail -60 "$here/log"
fi
say "$([ $failed = 0 ] && echo "all checks passed" || echo "a check FAILED")"
exit $failed
