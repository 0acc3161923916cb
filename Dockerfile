# Two images from one file:
#   docker build --target operator -t registry.example/elastrain/operator:0.1.0 .     no torch
#   docker build --target trainer  -t registry.example/elastrain/trainer:0.1.0 .      no kopf; base of your own training images
# What goes into them is locked by hashes (requirements/*.lock, written by `make lock`), and listed, as installed, in
# /opt/elastrain/sbom.cdx.json.
#
# Build arguments:
#   BASE_IMAGE       Debian or Ubuntu with python3 >= 3.11 and its venv module; name yours by its digest (...@sha256:...)
#   TRAINER_LOCK     trainer.lock: PyPI's torch for Linux, which brings CUDA. trainer-cpu.lock: the CPU build of torch for
#                    Python 3.11 on x86-64; name an index that has it by PIP_EXTRA_INDEX_URL, or a folder by PIP_FIND_LINKS
#   EXTRA_PACKAGES   what your scripts import beside torch, as in "scikit-learn transformers" (trainer). Not locked: pin
#                    it by PIP_CONSTRAINT, or better build on the trainer image with a lock of your own
#   EXTRA_DEBIAN_PACKAGES   programs that your scripts start, as in "openmpi-bin" (trainer)
#   PIP_...          pip's own settings
# Needs no BuildKit. Build arguments are in the environment of RUN steps only, not in the images.
#
# Two builds differ in nothing but dates, which scripts/oci_archive.py sets. Python's compiled files name the date of their
# source, so sources get that date here (315532800: 1980-01-01), and are compiled then. Nothing that logs, or caches what a
# file system numbers, stays.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# ---- the locks: each is copied from here, so that a change of one installs nothing of another again -------------------
FROM ${BASE_IMAGE} AS requirements
COPY requirements /requirements

# ---- the project's wheel ---------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
WORKDIR /src
RUN python3 -m venv /pip
COPY --from=requirements /requirements/build.lock /build.lock
RUN /pip/bin/pip install --no-cache-dir --require-hashes -r /build.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer trainer
RUN /pip/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# ---- operator --------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS operator-environment
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
# pip installs from outside: the operator has no use for one. Neither has an image for what writes its bill of materials.
RUN python3 -m venv /pip && python3 -m venv --without-pip /opt/elastrain/venv
COPY --from=requirements /requirements/sbom.lock /sbom.lock
RUN /pip/bin/pip install --no-cache-dir --require-hashes -r /sbom.lock
COPY --from=requirements /requirements/operator.lock /operator.lock
RUN /pip/bin/pip --python /opt/elastrain/venv/bin/python install --no-cache-dir --no-compile --require-hashes \
        -r /operator.lock
COPY --from=wheel /wheels /wheels
RUN /pip/bin/pip --python /opt/elastrain/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
        /wheels/*.whl \
    && /pip/bin/cyclonedx-py environment --output-reproducible -o /opt/elastrain/sbom.cdx.json \
        /opt/elastrain/venv/bin/python \
    && find /opt/elastrain -exec touch -h -d @315532800 {} + \
    && python3 -c "import compileall; compileall.compile_dir('/opt/elastrain/venv/lib', quiet=2)"

FROM ${BASE_IMAGE} AS operator
# The gateway before the chart's etcd. Its user's password was last changed at SOURCE_DATE_EPOCH.
RUN apt-get update \
    && SOURCE_DATE_EPOCH=315532800 DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends haproxy \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/* /var/log/apt/* /var/log/*.log
COPY --from=operator-environment /opt/elastrain /opt/elastrain
LABEL org.opencontainers.image.title="elastrain operator" \
      org.opencontainers.image.description="Runs ElasticTrainingJobs on Kubernetes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/elastrain/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Numeric, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
ENTRYPOINT ["python", "-m", "elastrain_operator"]

# ---- trainer ---------------------------------------------------------------------------------------------------------
# Not copied from a stage, since a copy of torch would double what is stored; with pip, since it is made to be built upon.
FROM ${BASE_IMAGE} AS trainer-environment
ARG EXTRA_DEBIAN_PACKAGES=""
RUN if [ -n "$EXTRA_DEBIAN_PACKAGES" ]; then \
        apt-get update \
        && SOURCE_DATE_EPOCH=315532800 DEBIAN_FRONTEND=noninteractive \
            apt-get install -y --no-install-recommends $EXTRA_DEBIAN_PACKAGES \
        && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/* /var/log/apt/* /var/log/*.log; fi
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_CONSTRAINT
ARG TRAINER_LOCK=trainer.lock
ARG EXTRA_PACKAGES=""
# torch's caches look for a home and for the name of their user.
RUN SOURCE_DATE_EPOCH=315532800 useradd --uid 65532 --user-group --create-home --shell /usr/sbin/nologin elastrain
COPY --from=requirements /requirements/${TRAINER_LOCK} /opt/elastrain/requirements.lock
RUN python3 -m venv /opt/elastrain/venv \
    && PIP_CONSTRAINT= /opt/elastrain/venv/bin/pip install --no-cache-dir --no-compile --require-hashes \
        -r /opt/elastrain/requirements.lock \
    && if [ -n "$EXTRA_PACKAGES" ]; then \
        /opt/elastrain/venv/bin/pip install --no-cache-dir --no-compile $EXTRA_PACKAGES; fi \
    && find /opt/elastrain/venv -exec touch -h -d @315532800 {} + \
    && python3 -c "import compileall; compileall.compile_dir('/opt/elastrain/venv/lib', quiet=2)"
# Workers may not write compiled files. What pip installs is compiled here, but the base image may lack the standard
# library's, and then every start of a process would compile it again.
RUN python3 -c "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('stdlib'), quiet=2)"
COPY --from=wheel /wheels /opt/elastrain/wheels
RUN /opt/elastrain/venv/bin/pip install --no-cache-dir --no-compile --no-deps --no-index /opt/elastrain/wheels/*.whl \
    && find /opt/elastrain/venv -newermt @315532800 ! -name '*.pyc' -exec touch -h -d @315532800 {} + \
    && python3 -c "import compileall; compileall.compile_dir('/opt/elastrain/venv/lib', quiet=2)"

FROM trainer-environment AS trainer-sbom
COPY --from=operator-environment /pip /pip
RUN /pip/bin/cyclonedx-py environment --output-reproducible -o /sbom.cdx.json /opt/elastrain/venv/bin/python

FROM trainer-environment AS trainer
LABEL org.opencontainers.image.title="elastrain trainer" \
      org.opencontainers.image.description="torch and elastrain, for workers of ElasticTrainingJobs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=trainer-sbom /sbom.cdx.json /opt/elastrain/sbom.cdx.json
COPY examples /opt/elastrain/examples
ENV PATH=/opt/elastrain/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /home/elastrain
# No ENTRYPOINT: the operator writes a worker's whole command (`elastrain agent -- <yours>`; the agent is PID 1 and reaps
# what is left behind), and anybody else can run any command in it. `elastrain --help` is only what it does by itself.
CMD ["elastrain", "--help"]
