#!/usr/bin/env bash
# The kind cluster of the e2e tests: one control plane and two workers that share a folder, /shared on each node, as a
# volume that many nodes can write. All see /images, where images.sh puts what they are to load. A node is NotReady 20 s
# after its last sign of life (Kubernetes' default: 50 s), since tests wait for it.
#   cluster.sh up      make it, or make it whole again; prints how to talk to it       cluster.sh down    delete it
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lib.sh"
SHARED=$CACHE/$CLUSTER-shared
NODES=("$CLUSTER-control-plane" "$CLUSTER-worker" "$CLUSTER-worker2")

configuration() {
    local images="{hostPath: $IMAGE_FILES, containerPath: /images, readOnly: true}"
    cat <<K
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
# MutatingAdmissionPolicies, which play a platform, are behind a switch until Kubernetes 1.36.
featureGates: {MutatingAdmissionPolicy: true}
runtimeConfig: {admissionregistration.k8s.io/v1beta1: "true"}
nodes:
- role: control-plane
  extraMounts: [$images]
- role: worker
  extraMounts: [$images, {hostPath: $SHARED, containerPath: /shared}]
- role: worker
  extraMounts: [$images, {hostPath: $SHARED, containerPath: /shared}]
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
- |
  kind: ClusterConfiguration
  apiVersion: kubeadm.k8s.io/v1beta3
  controllerManager: {extraArgs: {node-monitor-grace-period: 20s}}
- |
  kind: ClusterConfiguration
  apiVersion: kubeadm.k8s.io/v1beta4
  controllerManager: {extraArgs: [{name: node-monitor-grace-period, value: 20s}]}
K
}

create() {
    kind delete cluster --name "$CLUSTER"
    rm -rf "$SHARED" 2>/dev/null || true # what workers have left there need not be ours to delete
    install -d -m 0777 "$SHARED" # the trainer's user is not root
    mkdir -p "$IMAGE_FILES"
    configuration | kind create cluster --name "$CLUSTER" --config - --image "$1" --wait 120s
}

state() { docker inspect -f '{{.State.Running}} {{.State.Paused}}' "$1" 2>/dev/null || echo absent; }
made_from() { docker inspect -f '{{.Config.Image}}' "${NODES[0]}" 2>/dev/null; }

# Whether the cluster that is there can be used; brings back workers that a broken-off test has stopped. A stopped
# control plane would come back under another address, so it is not brought back.
usable() {
    local node
    [ "$(made_from)" = "$1" ] && [ "$(state "${NODES[0]}")" = "true false" ] || return 1
    docker exec "${NODES[0]}" grep -q MutatingAdmissionPolicy /etc/kubernetes/manifests/kube-apiserver.yaml || return 1 # older
    [ -d "$IMAGE_FILES" ] || return 1 # the cache was emptied
    for node in "${NODES[@]:1}"; do
        case $(state "$node") in
        "true false") ;;
        "true true") docker unpause "$node" >/dev/null ;;
        "false false") docker start "$node" >/dev/null ;;
        *) return 1 ;;
        esac
    done
}

# kubeadm leaves it to the scheduler. On a worker, all names would be gone with it when a test stops that node.
keep_dns_off_workers() {
    local selector='{"spec":{"template":{"spec":{"nodeSelector":{"node-role.kubernetes.io/control-plane":""}}}}}'
    kubectl -n kube-system patch deployment coredns --type=merge -p "$selector"
    kubectl -n kube-system rollout status deployment coredns --timeout=120s
}

up() {
    local image
    "$HERE/engine.sh" up
    "$HERE/build.sh" kind kubectl helm
    image=$("$HERE/node-image.sh")
    usable "$image" || timed "create the cluster" create "$image"
    timed "all nodes ready" kubectl wait --for=condition=Ready nodes --all --timeout=120s
    timed "names are resolved on the control plane" keep_dns_off_workers
    echo "export KUBECONFIG=$KUBECONFIG PATH=$BIN:\$PATH"
}

down() {
    [ -x "$BIN/kind" ] || return 0 # then no cluster of ours was ever made
    kind delete cluster --name "$CLUSTER"
}

case ${1:-} in
up | down) "$1" ;;
*) die "usage: cluster.sh up|down" ;;
esac
