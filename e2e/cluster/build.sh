#!/usr/bin/env bash
# Builds the programs that the cluster is made of, from the Go module proxy, into the cache. Each is built once for a
# state of its inputs; $CACHE/bin/NAME always is the newest.
#   build.sh NAME...      NAME: kubernetes (kube-apiserver, kubelet, kubeadm, ...), kubectl, kind, helm, coredns,
#                         local-path-provisioner, pause, capped-runc
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/../../scripts/lib.sh"
source "$HERE/versions.env"
export GOFLAGS=-buildvcs=false CGO_ENABLED=0
BIN=$CACHE/bin
KUBERNETES_COMPONENTS="kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl"

# go_build OUTPUT SOURCES PACKAGE [LDFLAGS]: builds PACKAGE of the module in SOURCES.
go_build() {
    env -C "$2" "$GO_TOOL" build -trimpath -ldflags "-s -w ${4:-}" -o "$1" "$3"
}

# go_install OUTPUT PACKAGE VERSION: builds a released program.
go_install() {
    GOBIN=$1.d "$GO_TOOL" install -trimpath -ldflags '-s -w' "$2@$3"
    mv "$1.d/$(basename "$2")" "$1"
    rmdir "$1.d"
}

kubernetes_version_flags() {
    local package minor=${KUBERNETES#v*.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf ' -X %s.%s' "$package" "gitVersion=$KUBERNETES" "$package" gitMajor=1 "$package" "gitMinor=${minor%%.*}" \
            "$package" gitTreeState=clean "$package" "gitCommit=$(printf '0%.0s' {1..40})" \
            "$package" buildDate=2026-01-01T00:00:00Z
    done
}

# compile NAME FILE: writes the program NAME to FILE.
compile() {
    case $1 in
    hyperkube) go_build "$2" "$HERE/hyperkube" . "$(kubernetes_version_flags)" ;;
    kubectl) go_build "$2" "$HERE/hyperkube" k8s.io/kubernetes/cmd/kubectl "$(kubernetes_version_flags)" ;;
    coredns) go_build "$2" "$HERE/coredns" . ;;
    local-path-provisioner) go_build "$2" "$HERE/local-path" github.com/rancher/local-path-provisioner ;;
    pause | capped-runc) go_build "$2" "$HERE/nodetools" "./$1" ;;
    kind) go_install "$2" sigs.k8s.io/kind "$KIND" ;;
    helm) go_install "$2" helm.sh/helm/v3/cmd/helm "$HELM" ;;
    *) die "build.sh: no such program: $1" ;;
    esac
}

# inputs NAME: a short word that changes with what NAME is made from.
inputs() {
    case $1 in
    hyperkube | kubectl) echo "$KUBERNETES-$(key_of "$HERE/hyperkube")" ;;
    coredns) key_of "$HERE/coredns" ;;
    local-path-provisioner) key_of "$HERE/local-path" ;;
    pause | capped-runc) key_of "$HERE/nodetools" ;;
    kind) echo "$KIND" ;;
    helm) echo "$HELM" ;;
    esac
}

build() {
    local file
    file=$BIN/$1-$(inputs "$1")
    if [ ! -x "$file" ]; then
        GO_TOOL=${GO_TOOL:-$("$ROOT/scripts/get-go")}
        timed "build $1" compile "$1" "$BIN/.$1.new"
        mv "$BIN/.$1.new" "$file"
    fi
    ln -sfn "$(basename "$file")" "$BIN/$1"
}

build_one() {
    case $1 in
    kubernetes) # one program that is each of them, by the name it is called by
        build hyperkube
        for component in $KUBERNETES_COMPONENTS; do
            ln -sfn hyperkube "$BIN/$component"
        done
        ;;
    kubectl)
        [ -x "$BIN/hyperkube" ] || build kubectl # a minute instead of the four of hyperkube, which has it in it
        ;;
    *) build "$1" ;;
    esac
}

mkdir -p "$BIN"
for name in "$@"; do
    locked "build-$name" build_one "$name"
done
