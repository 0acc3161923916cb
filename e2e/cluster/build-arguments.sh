# Sourced after lib.sh: what the project's images are built with on this machine. `serve_wheels; choose_base` sets BUILD_ARGS,
# and BASE, the base image.

TEMPORARY=() WHEELS_SERVER=
tidy() {
    [ -z "$WHEELS_SERVER" ] || kill "$WHEELS_SERVER" 2>/dev/null || true
    rm -rf "${TEMPORARY[@]}"
}
trap tidy EXIT

WHEELS_PORT=18431 # fixed: it is in the build's arguments, and so in the key of Docker's layer cache

# The lock of the trainer that fits the torch which is there: it names the file by its hash, wherever that comes from.
choose_trainer_lock() {
    local wheel hash lock=$ROOT/requirements/trainer-cpu.lock
    for wheel in "$1"/torch-*+cpu-*.whl; do
        [ -f "$wheel" ] || return 0
        hash=$(sha256sum "$wheel" | cut -d' ' -f1)
        grep -q "sha256:$hash" "$lock" || die "$(basename "$wheel") is not the torch of ${lock#"$ROOT/"}: make lock"
        BUILD_ARGS+=(--build-arg TRAINER_LOCK=trainer-cpu.lock)
        return 0
    done
}

# Serves the folders of PIP_FIND_LINKS and the file PIP_CONSTRAINT on loopback, where `docker build --network=host` sees
# them, so that no wheel is copied into an image. Sets BUILD_ARGS.
serve_wheels() {
    local folder links
    BUILD_ARGS=()
    links=$(mktemp -d)
    TEMPORARY+=("$links")
    for folder in ${PIP_FIND_LINKS:-}; do
        [ -d "$folder" ] && find "$(realpath "$folder")" -maxdepth 1 -name '*.whl' -exec ln -sf -t "$links" {} +
    done
    [ -n "$(ls "$links")" ] || [ -f "${PIP_CONSTRAINT:-}" ] || return 0
    python3 -m http.server --bind 127.0.0.1 --directory "$links" "$WHEELS_PORT" >/dev/null 2>&1 &
    WHEELS_SERVER=$!
    sleep 0.5
    kill -0 $WHEELS_SERVER 2>/dev/null || die "cannot serve wheels on 127.0.0.1:$WHEELS_PORT: is the port in use?"
    BUILD_ARGS+=(--build-arg "PIP_FIND_LINKS=http://127.0.0.1:$WHEELS_PORT/")
    choose_trainer_lock "$links"
    if [ -f "${PIP_CONSTRAINT:-}" ]; then
        cp "$PIP_CONSTRAINT" "$links/constraints.txt"
        BUILD_ARGS+=(--build-arg "PIP_CONSTRAINT=http://127.0.0.1:$WHEELS_PORT/constraints.txt")
    fi
}

# The Dockerfile's own base where it can be pulled, else ours.
choose_base() {
    BASE=$(sed -n 's/^ARG BASE_IMAGE=//p' "$ROOT/Dockerfile" | head -n 1)
    have_image "$BASE" || registry_has "$BASE" && return
    "$ROOT/e2e/cluster/base-images.sh" python
    # By its id, which is the hash of what is in it.
    BASE=$(docker image inspect -f "{{.Id}}" "$PYTHON_BASE")
    BUILD_ARGS+=(--build-arg "BASE_IMAGE=$BASE")
}
