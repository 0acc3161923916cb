#!/usr/bin/env bash
# A Kubernetes API without nodes: etcd and kube-apiserver on loopback, for tests of the CRD and of the operator's writes.
# Ready in about three seconds once the binaries are built (`build.sh kubernetes`).
#   bare.sh up DIR       start; everything it writes lies in DIR; prints the path of the kubeconfig
#   bare.sh down DIR     stop what `up DIR` started, and delete DIR
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/../../scripts/lib.sh"
DIR=${2:?usage: bare.sh up|down DIR}

free_ports() {
    python3 -c '
import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in held))' "$1"
}

start() {
    local name=$1
    shift
    setsid "$@" >"$DIR/$name.log" 2>&1 </dev/null &
    echo $! >"$DIR/$name.pid"
}

down() {
    local file pid
    for file in "$DIR"/kube-apiserver.pid "$DIR"/etcd.pid; do # the API server first: it needs etcd to end in peace
        [ -f "$file" ] || continue
        pid=$(cat "$file")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || continue 2
            sleep 0.1
        done
        say "pid $pid did not end within 10 s of SIGTERM; killing it"
        kill -9 "$pid"
    done
    rm -rf "$DIR"
}

up() {
    local etcd token client peer secure
    [ -x "$CACHE/bin/kube-apiserver" ] || die "no kube-apiserver in $CACHE/bin: run e2e/cluster/build.sh kubernetes"
    etcd=$("$ROOT/scripts/get-etcd")
    mkdir -p "$DIR"
    read -r client peer secure < <(free_ports 3)
    "$CACHE/bin/kubeadm" init phase certs sa --cert-dir "$DIR/certs" >"$DIR/kubeadm.log" 2>&1
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    (umask 077 && echo "$token,admin,admin,system:masters" >"$DIR/certs/tokens.csv")
    start etcd "$etcd" --data-dir "$DIR/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
        --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
        --initial-cluster "default=http://127.0.0.1:$peer"
    start kube-apiserver "$CACHE/bin/kube-apiserver" --etcd-servers="http://127.0.0.1:$client" --secure-port="$secure" \
        --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --cert-dir="$DIR/certs" \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$DIR/certs/sa.pub" \
        --service-account-signing-key-file="$DIR/certs/sa.key" --token-auth-file="$DIR/certs/tokens.csv" \
        --authorization-mode=RBAC --service-cluster-ip-range=10.96.0.0/16 \
        --disable-admission-plugins=ServiceAccount # no controller here makes the default account
    cat >"$DIR/kubeconfig" <<X
apiVersion: v1
kind: Config
clusters: [{name: bare, cluster: {server: "https://127.0.0.1:$secure", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: bare, context: {cluster: bare, user: admin}}]
current-context: bare
X
    for _ in $(seq 200); do
        if "$CACHE/bin/kubectl" --kubeconfig "$DIR/kubeconfig" get --raw /readyz >/dev/null 2>&1; then
            echo "$DIR/kubeconfig"
            return
        fi
        sleep 0.3
    done
    tail -n 20 "$DIR"/*.log >&2
    down
    die "the API server was not ready after 60 s"
}

case $1 in
up | down) "$1" ;;
*) die "usage: bare.sh up|down DIR" ;;
esac
