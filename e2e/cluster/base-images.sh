#!/usr/bin/env bash
# The images that others are built from: Debian, pulled if a registry can be reached and else made by mmdebstrap, and
# Debian with Python that trusts what this machine trusts.
#   base-images.sh [debian|python]...
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/lib.sh"

bootstrap() {
    local mirror kind without=()
    command -v mmdebstrap >/dev/null || {
        [ "$(id -u)" = 0 ] || die "no registry can be reached, and only root can make a Debian image by mmdebstrap"
        apt_install mmdebstrap
    }
    for kind in doc man info locale; do without+=("--dpkgopt=path-exclude=/usr/share/$kind/*"); done
    # The mirror that this machine uses, if it is a Debian; else mmdebstrap's own choice.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | head -n 1)
    mmdebstrap --variant=minbase "${without[@]}" bookworm - $mirror | docker import - "$DEBIAN"
}

debian() {
    have_image "$DEBIAN" && return
    if registry_has debian:bookworm-slim; then
        timed "pull debian" docker pull debian:bookworm-slim
        docker tag debian:bookworm-slim "$DEBIAN"
    else
        timed "make the Debian image" bootstrap
    fi
}

# Proxies of closed networks end TLS with an authority of their own, so the image gets this machine's bundle.
python() {
    local context bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
    have_image "$PYTHON_BASE" && return
    context=$(mktemp -d)
    cp "$bundle" "$context/ca-certificates.crt"
    cat >"$context/Dockerfile" <<D
FROM $DEBIAN
RUN apt-get update \\
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-venv ca-certificates \\
    && rm -rf /var/lib/apt/lists/*
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
D
    timed "build the Python base image" docker_build -t "$PYTHON_BASE" "$context"
    rm -rf "$context"
}

for name in "${@:-debian}"; do
    case $name in
    debian) locked base-debian debian ;;
    python)
        locked base-debian debian
        locked base-python python
        ;;
    *) die "usage: base-images.sh [debian|python]..." ;;
    esac
done
