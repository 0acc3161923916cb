#!/usr/bin/env bash
# A Docker engine, where none runs: installs Debian's docker.io (as root) and starts dockerd by hand.
#   engine.sh up       does nothing if `docker info` answers      engine.sh down     stops a dockerd that `up` started
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/../../scripts/lib.sh"
PID=$CACHE/run/dockerd.pid
LOG=$CACHE/log/dockerd.log

running() { timeout 10 docker info >/dev/null 2>&1; }

install() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && return
    command -v apt-get >/dev/null || die "there is no dockerd, and no apt-get to install one: install Docker"
    timed "install Docker" apt_install docker.io containerd runc iptables
}

# A machine whose bounding set lacks CAP_SYS_RESOURCE (bit 24) can't start privileged containers with the plain runc.
all_capabilities() { (((0x$(awk '/^CapBnd:/ {print $2}' /proc/self/status) >> 24) & 1)); }

start() {
    local arguments=()
    running && return
    [ "$(id -u)" = 0 ] || die "no Docker engine answers, and only root can start one: start Docker and try again"
    install
    if ! all_capabilities; then
        "$HERE/build.sh" capped-runc
        arguments=(--add-runtime "capped=$CACHE/bin/capped-runc" --default-runtime capped)
    fi
    mkdir -p "$CACHE/run" "$CACHE/log"
    rm -f /var/run/docker.pid # of a dockerd that was killed; `running` has just found that none answers
    setsid dockerd "${arguments[@]}" >"$LOG" 2>&1 </dev/null 9>&- &
    echo $! >"$PID"
    for _ in $(seq 120); do
        running && return
        kill -0 "$(cat "$PID")" 2>/dev/null || break
        sleep 0.5
    done
    tail -n 20 "$LOG" >&2
    die "dockerd did not answer within 60 s; its log is $LOG"
}

up() { running || locked engine start; }

down() {
    local pid
    pid=$(cat "$PID" 2>/dev/null) || return 0 # not ours
    rm -f "$PID"
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
    kill "$pid"
    for _ in $(seq 300); do
        [ -d "/proc/$pid" ] || return 0
        sleep 0.1
    done
    say "dockerd (pid $pid) did not end within 30 s of SIGTERM"
    return 1
}

case ${1:-} in
up | down) "$1" ;;
*) die "usage: engine.sh up|down" ;;
esac
