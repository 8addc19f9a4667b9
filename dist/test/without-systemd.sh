#!/bin/sh
# Runs in a fresh Debian where systemd does not run: the package, then the tarball.
# Usage: without-systemd.sh PACKAGE TARBALL
set -eu
package=$1
tarball=$2

fail() { echo "FAILED: $*" >&2; exit 1; }
step() { echo; echo "== $*"; }
as_user() { runuser -u ana -- env HOME=/home/ana sh -c "$1"; }
# Waits until a command succeeds, for a minute at most.
until_works() {
    tries=600
    until "$@" > /tmp/last 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { cat /tmp/last; fail "\`$*\` does not succeed"; }
        sleep 0.1
    done
}

# Runs a program on a GPU as a user: the preloaded library and the soft GPUs' libraries are found.
use_it() {
    until_works sublet doctor
    as_user "sublet run --vram 2G -- python3 $1/share/doc/sublet/examples/hold.py 1G 1" > /tmp/said 2>&1 \
        || { cat /tmp/said; fail "a program does not run on a lease"; }
    grep -q 'holding 1024 MiB' /tmp/said || { cat /tmp/said; fail "the program did not get its memory"; }
    as_user "sublet run --vram 1G -- env" > /tmp/env
    grep -q "^LD_PRELOAD=.*/lib/sublet/libsublet-shim.so" /tmp/env || fail "the library is not preloaded"
    sublet ps --all > /dev/null
}

# Starts the daemon as setup's hint says, and remembers its process.
start_as_told() {
    typed=$(grep -o '`setsid .*`' /tmp/hints | tr -d '`') || fail "setup does not say how to start the daemon"
    echo "typed: $typed"
    eval "$typed"
    until_works test -S /run/sublet/sublet.sock
}

stop_as_told() {
    sublet setup --remove 2> /tmp/hints
    typed=$(grep -o '`kill [0-9]*`' /tmp/hints | tr -d '`') || fail "setup does not say how to stop the daemon"
    eval "$typed"
    until_works sh -c '! kill -0 "$1" 2> /dev/null' - "${typed#kill }"
}

useradd --create-home ana

step "the package is installed, set up and used"
dpkg --install "$package"
sublet setup 2> /tmp/hints
sublet setup > /tmp/again 2> /dev/null
if grep -qv '^there ' /tmp/again; then cat /tmp/again; fail "a second setup does something"; fi
sublet config check
start_as_told
use_it /usr
for page in sublet sublet-run sublet-serve sublet-setup; do
    [ -e /usr/share/man/man1/$page.1.gz ] || fail "there is no manual page $page"
done
for shell in bash-completion/completions/sublet zsh/vendor-completions/_sublet fish/vendor_completions.d/sublet.fish; do
    [ -s /usr/share/$shell ] || fail "there is no $shell"
done

step "a broken configuration is refused and shown"
echo 'ttl = "soon"' > /etc/sublet/sublet.toml
if sublet config check; then fail "a wrong configuration is good"; fi
kill -HUP "$(sublet doctor --json | grep -o 'process [0-9]*' | head -1 | cut -d' ' -f2)"
until_works sh -c 'sublet 2>&1 | grep -q "sublet.toml:1:"'

step "the package is removed"
stop_as_told
dpkg --remove sublet
[ ! -e /usr/bin/sublet ] && [ ! -e /usr/lib/sublet ] && [ ! -e /run/sublet ] || fail "something is left"
[ -e /etc/sublet/sublet.toml ] && [ -e /var/lib/sublet/journal.db ] || fail "configuration or journal are gone"
if getent group sublet; then fail "the group is left"; fi
dpkg --purge sublet
[ ! -e /etc/sublet ] && [ ! -e /var/lib/sublet ] || fail "a purge leaves something"

step "the tarball works in /opt"
tar -C /opt -xzf "$tarball"
mv /opt/sublet-* /opt/sublet
ln -s /opt/sublet/bin/sublet /usr/local/bin/sublet
# The shell remembers /usr/bin/sublet.
hash -r
sublet setup 2> /tmp/hints
grep -q '^ExecStart=/opt/sublet/bin/sublet serve$' /etc/systemd/system/sublet.service || fail "the unit starts something else"
start_as_told
use_it /opt/sublet
stop_as_told
sublet setup --remove --purge
[ ! -e /etc/sublet ] && [ ! -e /var/lib/sublet ] && [ ! -e /run/sublet ] || fail "a purge leaves something"
[ ! -e /etc/systemd/system/sublet.service ] || fail "the unit is left"
rm -r /opt/sublet /usr/local/bin/sublet

step "the tarball works in a home, without root"
as_user "cd && tar -xzf $tarball && mv sublet-* sublet"
if /home/ana/sublet/bin/sublet setup 2> /tmp/said; then fail "root would run a program of ana's"; fi
grep -q 'belongs to the user' /tmp/said || { cat /tmp/said; fail "setup does not say why"; }
as_user 'setsid ~/sublet/bin/sublet serve > /tmp/ana.log 2>&1 & echo $! > /tmp/ana.pid'
until_works as_user '~/sublet/bin/sublet doctor'
as_user '~/sublet/bin/sublet run --vram 2G -- python3 ~/sublet/share/doc/sublet/examples/hold.py 1G 1' | grep 'holding 1024 MiB'
kill "$(cat /tmp/ana.pid)"

echo
echo "all passed"
