# Two images from one file:
#   docker build --target operator -t elastrain/operator:0.1.0 .     no torch
#   docker build --target trainer  -t elastrain/trainer:0.1.0 .      no kopf; base of your own training images
#
# Build arguments:
#   BASE_IMAGE       Debian or Ubuntu with python3 >= 3.11 and its venv module
#   EXTRA_PACKAGES   what your scripts import beside torch, as in "scikit-learn transformers" (trainer)
#   PIP_...          pip's own settings. PyPI's torch for Linux brings CUDA; for a CPU build name an index that has one
#                    by PIP_EXTRA_INDEX_URL, or a folder by PIP_FIND_LINKS, and pin it by PIP_CONSTRAINT.
# Needs no BuildKit. Build arguments are in the environment of RUN steps only, not in the images.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# ---- the project's wheel, and what each image needs beside it --------------------------------------------------------
FROM ${BASE_IMAGE} AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
WORKDIR /src
RUN python3 -m venv /pip
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer trainer
RUN /pip/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# Apart from the sources, so that a change of code installs no dependency again.
FROM ${BASE_IMAGE} AS requirements
WORKDIR /requirements
COPY pyproject.toml .
RUN for extra in operator trainer; do python3 -c "\
import sys, tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras[sys.argv[1]], *extras['tracing'], sep='\n')" $extra > $extra.txt || exit 1; done

# ---- operator --------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS operator-environment
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_CONSTRAINT
# pip installs from outside: the operator has no use for one.
RUN python3 -m venv /pip && python3 -m venv --without-pip /opt/elastrain/venv
COPY --from=requirements /requirements/operator.txt /requirements.txt
RUN /pip/bin/pip --python /opt/elastrain/venv/bin/python install --no-cache-dir -r /requirements.txt
COPY --from=wheel /wheels /wheels
RUN /pip/bin/pip --python /opt/elastrain/venv/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM ${BASE_IMAGE} AS operator
LABEL org.opencontainers.image.title="elastrain operator" \
      org.opencontainers.image.description="Runs ElasticTrainingJobs on Kubernetes" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=operator-environment /opt/elastrain/venv /opt/elastrain/venv
ENV PATH=/opt/elastrain/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Numeric, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
ENTRYPOINT ["python", "-m", "elastrain_operator"]

# ---- trainer ---------------------------------------------------------------------------------------------------------
# In one stage, since a copy of torch would double what is stored; with pip, since it is made to be built upon.
FROM ${BASE_IMAGE} AS trainer
LABEL org.opencontainers.image.title="elastrain trainer" \
      org.opencontainers.image.description="torch and elastrain, for workers of ElasticTrainingJobs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
ARG PIP_CONSTRAINT
ARG EXTRA_PACKAGES=""
# torch's caches look for a home and for the name of their user.
RUN useradd --uid 65532 --user-group --create-home --shell /usr/sbin/nologin elastrain \
    && python3 -m venv /opt/elastrain/venv
COPY --from=requirements /requirements/trainer.txt /opt/elastrain/requirements.txt
RUN /opt/elastrain/venv/bin/pip install --no-cache-dir -r /opt/elastrain/requirements.txt $EXTRA_PACKAGES
COPY --from=wheel /wheels /opt/elastrain/wheels
RUN /opt/elastrain/venv/bin/pip install --no-cache-dir --no-deps /opt/elastrain/wheels/*.whl
# Workers may not write compiled files. pip has compiled what it installed, but the base image may lack the standard
# library's, and then every start of a process would compile it again.
RUN python3 -c "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('stdlib'), quiet=2)"
COPY examples /opt/elastrain/examples
ENV PATH=/opt/elastrain/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /home/elastrain
# No ENTRYPOINT: the operator writes a worker's whole command (`elastrain agent -- <yours>`; the agent is PID 1 and reaps
# what is left behind), and anybody else can run any command in it. `elastrain --help` is only what it does by itself.
CMD ["elastrain", "--help"]
