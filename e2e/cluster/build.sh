#!/usr/bin/env bash
# Builds the programs that the cluster is made of, from the Go module proxy, into the cache. All of them are of one Go
# module (programs/), so that what they share is compiled once; they are built once for a state of that module.
# $CACHE/bin/NAME always is the newest.
#   build.sh NAME...      NAME: kubernetes (kube-apiserver, kubelet, kubeadm, kubectl, ... in one), kind, helm, coredns,
#                         cert-manager (its controllers, and its CRDs as cert-manager-crds), pause, capped-runc; or one of
#                         kube-apiserver, kube-controller-manager, kube-scheduler, kubectl alone
# KUBERNETES=vX.Y.Z builds another Kubernetes than the one that the module pins; its sums are the module proxy's word.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/../../scripts/lib.sh"
source "$HERE/versions.env"
BIN=$CACHE/bin
PROGRAMS=$HERE/programs
PINNED=$(awk '$1 == "k8s.io/kubernetes" && $2 ~ /^v/ {print $2}' "$PROGRAMS/go.mod")
CERT_MANAGER=github.com/cert-manager/cert-manager
KEY=$(key_of "$PROGRAMS")
KUBERNETES_COMPONENTS="kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl"

package_of() {
    case $1 in
    hyperkube | coredns | cert-manager | pause | capped-runc) echo "./$1" ;;
    kube-* | kubectl) echo "k8s.io/kubernetes/cmd/$1" ;;
    kind) echo sigs.k8s.io/kind ;;
    helm) echo helm.sh/helm/v3/cmd/helm ;;
    *) die "build.sh: no such program: $1" ;;
    esac
}

# file_of NAME: where it lies. Only what is Kubernetes itself depends on the version of Kubernetes.
file_of() {
    case $1 in
    hyperkube | kube-* | kubectl) echo "$BIN/$1-$KUBERNETES-$KEY" ;;
    *) echo "$BIN/$1-$KEY" ;;
    esac
}

version_flags() {
    local package minor=${KUBERNETES#v*.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf ' -X %s.%s' "$package" "gitVersion=$KUBERNETES" "$package" gitMajor=1 "$package" "gitMinor=${minor%%.*}" \
            "$package" gitTreeState=clean "$package" "gitCommit=$(printf '0%.0s' {1..40})" \
            "$package" buildDate=2026-01-01T00:00:00Z
    done
}

# another_kubernetes: a copy of the module that takes $KUBERNETES for the one that it pins, with what is a module of its own
# since. Sets FOLDER.
another_kubernetes() {
    local staged module
    FOLDER=$CACHE/programs-$KUBERNETES
    rm -rf "$FOLDER"
    cp -r "$PROGRAMS" "$FOLDER"
    sed -i -E "s#(k8s.io/\S+) v0\.${PINNED#v1.}\$#\1 v0.${KUBERNETES#v1.}#; s#(k8s.io/kubernetes) $PINNED#\1 $KUBERNETES#" \
        "$FOLDER/go.mod"
    staged=$("$GO_TOOL" mod download -json "k8s.io/kubernetes@$KUBERNETES" | awk -F '"' '$2 == "GoMod" {print $4}')
    for module in $(awk '$2 == "v0.0.0" {print $1}' "$staged"); do
        env -C "$FOLDER" "$GO_TOOL" mod edit -replace="$module=$module@v0.${KUBERNETES#v1.}"
    done
    export GOFLAGS="$GOFLAGS -mod=mod"
}

# compile NAME...: all at once, so that one is linked while others are compiled.
compile() {
    local name crds new=$BIN/.new packages=()
    for name in "$@"; do packages+=("$(package_of "$name")"); done
    rm -rf "$new"
    mkdir "$new"
    FOLDER=$PROGRAMS
    [ "$KUBERNETES" = "$PINNED" ] || another_kubernetes
    env -C "$FOLDER" "$GO_TOOL" build -ldflags "-s -w $(version_flags)" -o "$new/" "${packages[@]}"
    if [ -x "$new/cert-manager" ]; then
        for crds in "$(env -C "$FOLDER" "$GO_TOOL" list -m -f '{{.Dir}}' "$CERT_MANAGER")"/deploy/crds/*.yaml; do
            echo ---
            cat "$crds"
        done >"$(file_of cert-manager-crds)"
    fi
    for name in "$@"; do mv "$new/$name" "$(file_of "$name")"; done
    rmdir "$new"
}

# build NAME...: those of them that are not there.
build() {
    local name component missing=()
    for name in "$@"; do
        [ -x "$(file_of "$name")" ] || missing+=("$name")
    done
    if [ ${#missing[@]} != 0 ]; then
        GO_TOOL=$("$ROOT/scripts/get-go")
        go_settings
        timed "build ${missing[*]}" compile "${missing[@]}"
    fi
    for name in "$@"; do
        ln -sfn "$(basename "$(file_of "$name")")" "$BIN/$name"
        case $name in
        hyperkube) # one program that is each of them, by the name it is called by
            for component in $KUBERNETES_COMPONENTS; do ln -sfn hyperkube "$BIN/$component"; done
            ;;
        cert-manager) ln -sfn "$(basename "$(file_of cert-manager-crds)")" "$BIN/cert-manager-crds" ;;
        esac
    done
}

mkdir -p "$BIN"
names=()
for name in "$@"; do
    case $name in
    kubernetes) names+=(hyperkube) ;;
    kube-* | kubectl) [ -x "$(file_of hyperkube)" ] || names+=("$name") ;; # which are in it, and a part of the work
    *) names+=("$name") ;;
    esac
done
[ ${#names[@]} = 0 ] || locked build build "${names[@]}"
