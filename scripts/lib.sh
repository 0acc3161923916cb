# Sourced by the project's shell scripts: messages, the cache, locks and timed steps.
# Standard output belongs to results (a path, a table); everything said to a person goes to standard error.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# What is slow to fetch or to build lies outside the checkout, so that a fresh clone finds it again.
CACHE=${ELASTRAIN_CACHE:-$HOME/.cache/elastrain}

say() { printf 'elastrain: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# key_of PATH...: twelve hex digits that change when a file below PATH changes (its name or its content).
key_of() {
    find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed "s|$ROOT/||" | sha256sum | cut -c1-12
}

# go_settings: what every `go build` of the project shares, and with it the standard library in Go's cache. The compiler
# leaves out what the linker would drop (-12 % of the processor time), and collects garbage a fourth as often (-12 %).
go_settings() {
    export CGO_ENABLED=0 GOGC=${GOGC:-400}
    export GOFLAGS="-buildvcs=false -trimpath -gcflags=all=-dwarf=false '-ldflags=-s -w'"
}

# timed WHAT COMMAND...: runs it with its output in a log file; prints the seconds that it took, and those of processor
# time (its own and its children's: what a daemon does for it is not in them), or on failure the log's end.
timed() {
    local what=$1 log rc took TIMEFORMAT='%R s (%U + %S s of processor time)'
    shift
    mkdir -p "$CACHE/log"
    log=$CACHE/log/${what//[ \/]/-}.log
    say "$what ..."
    set +e # not `if ! ...`: that would switch errexit off inside COMMAND, which may be a function
    took=$({ time { (set -e; "$@") >"$log" 2>&1 </dev/null; }; } 2>&1)
    rc=$?
    set -e
    if [ $rc != 0 ]; then
        tail -n 30 "$log" >&2
        die "$what failed (exit code $rc); the whole log is $log"
    fi
    say "$what: $took"
}

# elapsed START: seconds with one decimal since START (nanoseconds, of date +%s%N).
elapsed() {
    local tenths=$((($(date +%s%N) - $1) / 100000000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# apt_install PACKAGE...: from the distribution; one at a time, as apt waits for no other.
apt_install() { locked apt install_packages "$@"; }
install_packages() {
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# locked NAME COMMAND...: one at a time on this machine; a second caller waits for the first (at most 30 minutes) and
# then finds its work done, so COMMAND must look again before it builds.
locked() {
    local name=$1
    shift
    mkdir -p "$CACHE/lock"
    (
        if ! flock -n 9; then
            say "waiting for another process that builds $name"
            flock -w 1800 9 || die "$name: gave up after 30 minutes of waiting for the lock $CACHE/lock/$name"
        fi
        "$@" 9>&-
    ) 9>"$CACHE/lock/$name"
}
