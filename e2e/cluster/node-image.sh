#!/usr/bin/env bash
# Prints the name of the image for the nodes of the cluster, and sees to it that it can be had:
#   1. $ELASTRAIN_NODE_IMAGE       2. kind's own, where its registry can be reached
#   3. one built from Debian's packages and the Go module proxy alone; kept in the cache as a file
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lib.sh"
KEY=$(key_of "$HERE"/{hyperkube,coredns,local-path,nodetools,node,build.sh,node-image.sh,versions.env} "$ROOT/scripts/etcd")
IMAGE=elastrain-e2e/node:$KUBERNETES-$KEY
SAVED=$CACHE/node-image-$KEY.tar.gz

# What runs in the cluster before us. kubeadm fixes the names of its own.
BASE=elastrain-e2e/kubernetes-base:bookworm
CONTROL_PLANE=docker.io/elastrain-e2e/kubernetes:$KUBERNETES
PROVISIONER=docker.io/elastrain-e2e/local-path-provisioner:$KEY
HELPER=docker.io/elastrain-e2e/local-path-helper:$KEY
PAUSE=registry.k8s.io/pause
COREDNS=registry.k8s.io/coredns/coredns:v1.13.1
ETCD=registry.k8s.io/etcd:3.6.6-0
COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy)

# image NAME FILE...: builds NAME from the Dockerfile on standard input, which can copy the FILEs.
image() {
    local name=$1 context
    shift
    context=$(mktemp -d "$CACHE/context.XXXXXX")
    [ $# = 0 ] || cp -rL --reflink=auto "$@" "$context"
    docker build -q --network=host -f - -t "$name" "$context"
    rm -rf "$context"
}

cluster_images() {
    local bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} component
    image "$BASE" <<D
FROM $DEBIAN
RUN apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \\
       iptables nftables iproute2 conntrack kmod ca-certificates \\
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
D
    image "$CONTROL_PLANE" "$BIN/hyperkube" <<D
FROM $BASE
COPY hyperkube /usr/local/bin/hyperkube
RUN for c in ${COMPONENTS[*]} kindnetd; do ln -s hyperkube /usr/local/bin/\$c; done
D
    image "$PROVISIONER" "$BIN/local-path-provisioner" <<D
FROM $BASE
COPY local-path-provisioner /usr/local/bin/local-path-provisioner
ENTRYPOINT ["/usr/local/bin/local-path-provisioner"]
D
    image "$PAUSE:3.10.1" "$BIN/pause" <<D
FROM scratch
COPY pause /pause
ENTRYPOINT ["/pause"]
D
    image "$COREDNS" "$BIN/coredns" "$bundle" <<D
FROM scratch
COPY $(basename "$bundle") /etc/ssl/certs/ca-certificates.crt
COPY coredns /coredns
ENTRYPOINT ["/coredns"]
D
    image "$ETCD" "$1" "${1/etcd-/etcdctl-}" <<D
FROM scratch
COPY $(basename "$1") /usr/local/bin/etcd
COPY $(basename "${1/etcd-/etcdctl-}") /usr/local/bin/etcdctl
ENV PATH=/usr/local/bin
D
    docker tag "$PAUSE:3.10.1" "$PAUSE:3.10" # kubeadm asks for the one, containerd for the other
    docker tag "$BASE" "$HELPER"
    for component in "${COMPONENTS[@]}"; do
        docker tag "$CONTROL_PLANE" "registry.k8s.io/$component:$KUBERNETES"
    done
}

node_file_system() {
    local context=$CACHE/node-context source
    source=$("$("$ROOT/scripts/get-go")" mod download -json "sigs.k8s.io/kind@$KIND" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
    rm -rf "$context"
    mkdir -p "$context"
    cp -r "$source/images/base/files" "$context/kind"
    chmod -R u+w "$context"
    cp -L "$BIN/hyperkube" "$HERE/node/crictl" "$HERE/node/Dockerfile" "$context"
    python3 "$HERE/node/manifests.py" "$source" "$context" "$CONTROL_PLANE" "$PROVISIONER" "$HELPER"
    docker build --network=host --build-arg DEBIAN="$DEBIAN" --build-arg KUBERNETES="$KUBERNETES" \
        -t "$IMAGE-bare" "$context"
    rm -rf "$context"
}

# Puts the cluster's images into the node's containerd: it has to run for that, so this is a commit and no build step.
fill() {
    local container=elastrain-e2e-node-image component names=()
    for component in "${COMPONENTS[@]}"; do
        names+=("registry.k8s.io/$component:$KUBERNETES")
    done
    docker rm -f -v $container >/dev/null 2>&1 || true
    docker run -d --name $container --entrypoint=sleep --security-opt seccomp=unconfined "$IMAGE-bare" infinity
    docker exec -d $container sh -c 'echo $$ >/run/containerd.pid; exec containerd >/run/containerd.log 2>&1'
    for _ in $(seq 60); do
        docker exec $container ctr version >/dev/null 2>&1 && break
        sleep 0.5
    done
    docker save "${names[@]}" "$CONTROL_PLANE" "$PROVISIONER" "$HELPER" "$PAUSE:3.10.1" "$PAUSE:3.10" "$COREDNS" "$ETCD" |
        docker exec -i $container ctr --namespace=k8s.io images import --all-platforms --no-unpack -
    docker exec $container sh -c 'kill $(cat /run/containerd.pid); sleep 1; rm -rf /run/containerd* /tmp/*'
    docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' $container "$IMAGE"
    docker rm -f -v $container
}

build() {
    local etcd debootstrap
    "$HERE/base-images.sh" debian & # waits for the network most of the time, the compiler does not
    debootstrap=$!
    "$HERE/build.sh" kubernetes coredns local-path-provisioner pause
    etcd=$("$ROOT/scripts/get-etcd" --built)
    wait $debootstrap
    timed "build the cluster's images" cluster_images "$etcd"
    timed "build the node's file system" node_file_system
    timed "build the node image" fill
    docker image prune -f >/dev/null
}

provide() {
    have_image "$IMAGE" && return
    if [ -f "$SAVED" ]; then
        timed "load the node image" docker load -i "$SAVED"
        return
    fi
    build
    timed "save the node image" sh -euc 'docker save "$1" | gzip -1 >"$2.new"; mv "$2.new" "$2"' - "$IMAGE" "$SAVED"
}

if [ -n "${ELASTRAIN_NODE_IMAGE:-}" ]; then
    echo "$ELASTRAIN_NODE_IMAGE"
elif have_image "${KIND_NODE_IMAGE%@*}" || registry_has "$KIND_NODE_IMAGE"; then
    echo "$KIND_NODE_IMAGE"
else
    have_image "$IMAGE" || locked node-image provide
    echo "$IMAGE"
fi
