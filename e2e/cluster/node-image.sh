#!/usr/bin/env bash
# Prints the name of the image for the nodes of the cluster, and sees to it that it can be had:
#   1. $ELASTRAIN_NODE_IMAGE       2. kind's own, where its registry can be reached: the pinned one, or that of $KUBERNETES
#   3. one of $KUBERNETES, built from Debian's packages and the Go module proxy alone
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lib.sh"
KEY=$(key_of "$HERE"/{programs,node,build.sh,node-image.sh,versions.env} "$ROOT/scripts/etcd")
IMAGE=elastrain-e2e/node:$KUBERNETES-$KEY

# What runs in the cluster before us. kubeadm fixes the names of its own.
BASE=elastrain-e2e/kubernetes-base:bookworm
CONTROL_PLANE=docker.io/elastrain-e2e/kubernetes:$KUBERNETES
PAUSE=registry.k8s.io/pause
COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy)

# image NAME FILE...: builds NAME from the Dockerfile on standard input, which can copy the FILEs.
image() {
    local name=$1 context
    shift
    context=$(mktemp -d "$CACHE/context.XXXXXX")
    [ $# = 0 ] || cp -rL --reflink=auto "$@" "$context"
    docker_build -q -f - -t "$name" "$context"
    rm -rf "$context"
}

# kubeadms NAME: the image that this version of kubeadm asks for.
kubeadms() { "$BIN/kubeadm" config images list --kubernetes-version "$KUBERNETES" | grep "/$1:"; }

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
    image "$PAUSE:3.10.1" "$BIN/pause" <<D
FROM scratch
COPY pause /pause
ENTRYPOINT ["/pause"]
D
    image "$(kubeadms coredns)" "$BIN/coredns" "$bundle" <<D
FROM scratch
COPY $(basename "$bundle") /etc/ssl/certs/ca-certificates.crt
COPY coredns /coredns
ENTRYPOINT ["/coredns"]
D
    image "$(kubeadms etcd)" "$1" "${1/etcd-/etcdctl-}" <<D
FROM scratch
COPY $(basename "$1") /usr/local/bin/etcd
COPY $(basename "${1/etcd-/etcdctl-}") /usr/local/bin/etcdctl
ENV PATH=/usr/local/bin
D
    docker tag "$PAUSE:3.10.1" "$PAUSE:3.10" # kubeadm asks for the one, containerd for the other
    for component in "${COMPONENTS[@]}"; do
        docker tag "$CONTROL_PLANE" "registry.k8s.io/$component:$KUBERNETES"
    done
}

node_file_system() {
    local context=$CACHE/node-context source
    source=$(env -C "$HERE/programs" "$("$ROOT/scripts/get-go")" list -m -f '{{.Dir}}' sigs.k8s.io/kind)
    rm -rf "$context"
    mkdir -p "$context"
    cp -r "$source/images/base/files" "$context/kind"
    chmod -R u+w "$context"
    cp -L "$BIN/hyperkube" "$HERE"/node/{crictl,default-storage.yaml,Dockerfile} "$context"
    python3 "$HERE/node/network.py" "$source" "$CONTROL_PLANE" >"$context/default-cni.yaml"
    docker_build --build-arg DEBIAN="$DEBIAN" --build-arg KUBERNETES="$KUBERNETES" \
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
    docker save "${names[@]}" "$CONTROL_PLANE" "$PAUSE:3.10.1" "$PAUSE:3.10" "$(kubeadms coredns)" "$(kubeadms etcd)" |
        docker exec -i $container ctr --namespace=k8s.io images import --all-platforms --no-unpack -
    docker exec $container sh -c 'kill $(cat /run/containerd.pid); sleep 1; rm -rf /run/containerd* /tmp/*'
    docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' $container "$IMAGE"
    docker rm -f -v $container
}

build() {
    local etcd debian
    "$HERE/base-images.sh" debian & # waits for the network most of the time, the compiler does not
    debian=$!
    "$HERE/build.sh" kubernetes coredns pause
    etcd=$("$ROOT/scripts/get-etcd" --built)
    wait $debian
    timed "build the cluster's images" cluster_images "$etcd"
    timed "build the node's file system" node_file_system
    timed "build the node image" fill
}

# What kind has published: the image that we pin, or for another Kubernetes the one of that version, if there is one.
kinds() {
    local name=$KIND_NODE_IMAGE
    [ "$KUBERNETES" = "$OUR_KUBERNETES" ] || name=kindest/node:$KUBERNETES
    have_image "${name%@*}" || registry_has "$name" || return
    echo "$name"
}

provide() { have_image "$IMAGE" || build; }

if [ -n "${ELASTRAIN_NODE_IMAGE:-}" ]; then
    echo "$ELASTRAIN_NODE_IMAGE"
elif ! kinds; then
    have_image "$IMAGE" || locked node-image provide
    echo "$IMAGE"
fi
