# Sourced by the scripts of this folder, after they set HERE.

source "$HERE/../../scripts/lib.sh"
source "$HERE/versions.env"

CLUSTER=${ELASTRAIN_CLUSTER:-elastrain}
BIN=$CACHE/bin
IMAGE_FILES=$CACHE/$CLUSTER-images
export KUBECONFIG=$CACHE/$CLUSTER.kubeconfig
export PATH=$BIN:$PATH
export DOCKER_BUILDKIT=0 # the classic builder: it needs neither a plugin nor a registry

DEBIAN=elastrain-e2e/debian:bookworm
PYTHON_BASE=elastrain-e2e/python:bookworm

# Builds give way to whatever else wants the processor, such as tests. Their steps see this machine's network, where a
# server of wheels may be listening.
docker_build() { docker build --network=host --cpu-shares=128 "$@"; }

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# registry_has IMAGE: whether the image could be pulled now; asks for the manifest only, for at most ten seconds.
registry_has() { timeout 10 docker manifest inspect "$1" >/dev/null 2>&1; }
