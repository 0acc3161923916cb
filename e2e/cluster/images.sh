#!/usr/bin/env bash
# Builds the project's images, and one of Kueue, and puts them onto the cluster's nodes: operator and etcd onto all nodes,
# the trainer onto the workers, Kueue onto the control plane. Each tag names the image's content, so what has not changed is neither loaded again nor
# mistaken for something newer. Writes their names to $CACHE/$CLUSTER-images.env, for the tests.
#   images.sh build      images.sh load      images.sh      both
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lib.sh"
source "$HERE/build-arguments.sh"
# What the first example imports beside torch. ELASTRAIN_NIGHTLY=1: what all of them import and start, three gigabytes.
TRAINER_PACKAGES=scikit-learn
TRAINER_DEBIAN_PACKAGES=
if [ "${ELASTRAIN_NIGHTLY:-}" = 1 ]; then
    TRAINER_PACKAGES+=" transformers accelerate lightning mpi4py tensorflow-cpu tf-keras"
    TRAINER_DEBIAN_PACKAGES=openmpi-bin
fi
# named NAME: gives the image NAME:new a tag made from its id, and prints that name. Images of earlier builds go: one of
# the trainer has six gigabytes.
named() {
    local id image
    id=$(docker image inspect -f '{{.Id}}' "$1:new")
    image=$1:${id:7:12}
    docker tag "$1:new" "$image"
    docker images --format '{{.Repository}}:{{.Tag}}' "$1" | { grep -vxF -e "$1:new" -e "$image" || true; } |
        xargs -r docker rmi >/dev/null
    echo "$image"
}

# room_for IMAGE NODES: ends the run if the disk has no room for the file, and for its content and layers on each node.
room_for() {
    local size free
    size=$(($(docker image inspect -f '{{.Size}}' "$1") * (1 + 2 * $2) >> 30))
    free=$(df --output=avail -B1G "$(docker info -f '{{.DockerRootDir}}')" | tail -n 1)
    [ "$size" -lt "$free" ] ||
        die "$1 onto $2 nodes needs $size GiB, the disk has ${free// /}: make room (docker system prune -a --volumes)"
}

# onto IMAGE NODE...: loads it onto those of the nodes that do not have it.
onto() {
    local image=$1 node present missing=()
    shift
    for node in "$@"; do
        present=$(docker exec "$node" ctr -n k8s.io images ls -q)
        grep -qx "docker.io/$image" <<<"$present" || missing+=("$node")
    done
    [ ${#missing[@]} = 0 ] && return
    timed "load $(basename "${image%:*}") onto $(IFS=,; echo "${missing[*]#"$CLUSTER"-}")" \
        import "$image" "${missing[@]}"
}

# import IMAGE NODE...: from a file that all nodes see. `kind load` sends it to each through `docker exec`, by which four
# gigabytes took six minutes, all of them processor time.
import() {
    local image=$1 file=$IMAGE_FILES/${1//[\/:]/-}.tar node importing=() rc=0
    shift
    rm -f "$IMAGE_FILES"/* # of an interrupted run
    room_for "$image" $#
    docker save -o "$file" "$image"
    for node in "$@"; do
        docker exec "$node" ctr -n k8s.io images import --all-platforms --digests --snapshotter=overlayfs \
            "/images/${file##*/}" >/dev/null &
        importing+=($!)
    done
    for node in "${importing[@]}"; do wait "$node" || rc=$?; done
    rm "$file"
    return $rc
}

etcd_image() {
    local binary context
    binary=$("$ROOT/scripts/get-etcd" --built)
    context=$(mktemp -d)
    cp "$binary" "$context/etcd"
    cp "$(dirname "$binary")/etcdctl-${binary##*/etcd-}" "$context/etcdctl"
    printf 'FROM scratch\nCOPY etcd etcdctl /usr/local/bin/\nENV PATH=/usr/local/bin\n' >"$context/Dockerfile"
    docker_build -t elastrain-e2e/etcd:new "$context"
    rm -rf "$context"
}

kueue_image() {
    local built context
    built=$("$ROOT/scripts/get-kueue")
    context=$(mktemp -d)
    cp "$built/kueue" "$context/manager"
    printf 'FROM scratch\nCOPY manager /manager\nUSER 65532:65532\nENTRYPOINT ["/manager"]\n' >"$context/Dockerfile"
    docker_build -t elastrain-e2e/kueue:new "$context"
    rm -rf "$context"
}

build() {
    local target
    serve_wheels
    choose_base
    for target in operator trainer; do
        timed "build the image $target" docker_build --target "$target" -t "elastrain-e2e/$target:new" \
            "${BUILD_ARGS[@]}" --build-arg "EXTRA_PACKAGES=$TRAINER_PACKAGES" \
            --build-arg "EXTRA_DEBIAN_PACKAGES=$TRAINER_DEBIAN_PACKAGES" "$ROOT"
    done
    if [ "${ELASTRAIN_NIGHTLY:-}" = 1 ]; then
        timed "add Horovod to the image trainer" docker_build -t elastrain-e2e/trainer:new "${BUILD_ARGS[@]}" \
            --build-arg TRAINER_IMAGE=elastrain-e2e/trainer:new "$ROOT/examples/09-horovod"
    fi
    timed "build the image etcd" etcd_image
    timed "build the image kueue" kueue_image
    docker image prune -f --filter until=24h >/dev/null # younger ones are stages that the next build takes up again
}

load() {
    local operator trainer etcd kueue
    operator=$(named elastrain-e2e/operator)
    trainer=$(named elastrain-e2e/trainer)
    etcd=$(named elastrain-e2e/etcd)
    kueue=$(named elastrain-e2e/kueue)
    # A member of etcd is on each node; a container of its pod is of the operator's image.
    onto "$operator" "$CLUSTER-control-plane" "$CLUSTER-worker" "$CLUSTER-worker2"
    onto "$etcd" "$CLUSTER-control-plane" "$CLUSTER-worker" "$CLUSTER-worker2"
    onto "$trainer" "$CLUSTER-worker" "$CLUSTER-worker2"
    onto "$kueue" "$CLUSTER-control-plane"
    printf '%s=%s\n' OPERATOR_IMAGE "$operator" TRAINER_IMAGE "$trainer" ETCD_IMAGE "$etcd" KUEUE_IMAGE "$kueue" \
        >"$CACHE/$CLUSTER-images.env"
}

case ${1:-both} in
build | load) "$1" ;;
both)
    build
    load
    ;;
*) die "usage: images.sh [build|load]" ;;
esac
