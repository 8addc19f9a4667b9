# Starts the service for a script that includes this, with a configuration file or none: sets dist, out, work and serve.
#   . serve.sh; start DIST OUT [CONFIG]; …; stop
start() {
    dist=$(cd "$1" && pwd) out=$2
    mkdir -p "$out"
    export SUBLET_SOCKET=$work/s
    "$dist/sublet" serve --state-dir "$work/state" --socket "$work/s" --gpu "${GPU:-real}" --config "${3:-/dev/null}" 2>"$out/serve.log" &
    serve=$!
    for _ in $(seq 100); do "$dist/sublet" gpus >/dev/null 2>&1 && break; sleep 0.1; done
    # Two looks at the GPUs, so that they are promised.
    sleep 3
}
stop() {
    kill $serve
    wait $serve
    rm -rf "$work"
}
work=$(mktemp -d)
