# Everything below sets up what it needs: a Debian or Ubuntu with python3 (>= 3.11), python3-venv and make is enough
# (`make e2e` and `make cluster` also need Docker, or root to install it). What is slow to build is kept outside the
# checkout, in $ELASTRAIN_CACHE (default ~/.cache/elastrain).
PY := .venv/bin/python
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs
# Of the tests: more than there need be cores, as half of a run is waiting.
PROCESSES ?= 3
PYTEST = etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) -m pytest -n $(PROCESSES)
# Of one guest.
GUEST ?= dashboard
# Of the simulation.
SEEDS ?= 2000
FIRST ?= 0
# Of the mutants.
MUTANTS ?= 40
SEED ?= 0
# Of test-torch; the programs that other targets call would take it for theirs.
TORCH ?= newest
unexport TORCH
# Beside the one that e2e/cluster/programs/go.mod pins.
OTHER_KUBERNETES ?= v1.34.4
# The newest that builds from its Go modules: nightly, what runs on an API server without a cluster (test-kubernetes).
NEWEST_KUBERNETES ?= v1.37.2
# The first Kueue that serves what we read; tests/protocol/kueue runs with it nightly, else with that of scripts/get-kueue.
OLDEST_KUEUE ?= v0.15.2
SHELL := /bin/bash
# Each of a thousand processes would compile what it imports; pip leaves that to the first (scripts/dev-env).
unexport PYTHONDONTWRITEBYTECODE
.SHELLFLAGS := -euo pipefail -c

.DEFAULT_GOAL := help
.PHONY: help demo storm test test-torch test-kubernetes guest nightly nightly-e2e simulate lint e2e cluster lock sbom release bench bench-steady bench-operator bench-checkpoint bench-ettr gpu seeded mutants clean-cluster docs docs-serve reference

help: ## what there is to make (this list)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## an elastic job on this machine: trains on real data, grows, is hit by a kill, shrinks, loses nothing; draws it
	@scripts/demo --picture demo.png

storm: ## a language model trained through 50 random joins, leaves and kills; draws its loss curve beside the undisturbed one
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) examples/02-storm/storm.py --picture storm.png

# Three kept two cores busy for 67 % of a run. What runs at night waits less.
test: PROCESSES = 5
test: ## linters, types, and the tests that need no cluster: unit, protocol, training; prints what each tier costs
	@scripts/test -n $(PROCESSES) --durations=10

guest: ## the tests of one guest, a package beside the core (GUEST=dashboard)
	@scripts/dev-env
	@$(PYTEST) tests/guests/$(GUEST)

nightly: ## what CI leaves out: nightly tests, 20 times the property tests, all examples, long outages, another Kubernetes
	@scripts/dev-env
	@scripts/get-s3 && scripts/get-kwok && scripts/get-vpa >/dev/null && scripts/get-karpenter && scripts/get-kueue && KUEUE_VERSION=$(OLDEST_KUEUE) scripts/get-kueue
	@if command -v npm >/dev/null; then scripts/get-azurite; fi
	@$(PYTEST) -m "nightly or hypothesis" --hypothesis-profile=nightly --override-ini=timeout=1800 --durations=10
	@export KUEUE_VERSION=$(OLDEST_KUEUE); $(PYTEST) -m "" --override-ini=timeout=1800 tests/protocol/kueue
	@for torch in oldest cpu; do $(MAKE) --no-print-directory test-torch TORCH=$$torch; done
	@$(MAKE) --no-print-directory test-kubernetes
	@$(MAKE) --no-print-directory nightly-e2e

test-torch: ## types, and the tests that use torch, on another one (TORCH=2.13, newest, cpu, or oldest: the floors of pyproject.toml)
	@python=$$(TORCH=$(TORCH) scripts/dev-env); $$python -m mypy; etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $$python -m pytest \
	  -n $(PROCESSES) tests/training tests/guests/*/training tests/verify tests/protocol/agent

test-kubernetes: ## the tests on an API server, with another Kubernetes (KUBERNETES=v1.37.2), built beside the usual one
	@scripts/dev-env
	@version=$${KUBERNETES:-$(NEWEST_KUBERNETES)}; cache=$${ELASTRAIN_CACHE:-$$HOME/.cache/elastrain}/kubernetes-$$version; \
	  ELASTRAIN_CACHE=$$cache KUBERNETES=$$version e2e/cluster/build.sh kube-apiserver kube-controller-manager kube-scheduler kubectl; \
	  export ELASTRAIN_KUBE_APISERVER=$$cache/bin/kube-apiserver ELASTRAIN_KUBE_SCHEDULER=$$cache/bin/kube-scheduler; \
	  export ELASTRAIN_KUBE_CONTROLLER_MANAGER=$$cache/bin/kube-controller-manager ELASTRAIN_KUBECTL=$$cache/bin/kubectl; \
	  $(PYTEST) -m apiserver --override-ini=timeout=1800 tests/protocol/api tests/protocol/operator tests/protocol/client

seeded: ## put each seeded bug (tests/seeded) into a copy of the tree and show which test finds it
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) tests/seeded/run.py --processes $(PROCESSES)

mutants: ## put random small changes into the decisions and show which test finds each (MUTANTS=40 SEED=0)
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) tests/seeded/mutate.py --count $(MUTANTS) --seed $(SEED) --processes $(PROCESSES)

reference: ## what follows from the code: the CRD, and the pages of fields, commands, client and decisions
	@scripts/dev-env
	@$(PY) -m elastrain_resource.schema.crd --write
	@$(PY) scripts/reference.py --write
	@$(PY) scripts/frameworks.py --write

docs: ## the documentation as a site, in .work/site; fails on a broken link
	@scripts/dev-env
	@$(PY) scripts/reference.py --check
	@$(MKDOCS) build --strict --clean --quiet

docs-serve: ## the same on http://localhost:8000, built anew at each change
	@scripts/dev-env
	@$(MKDOCS) serve

lint: ## ruff, mypy, and the layers of the architecture
	@scripts/dev-env
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

simulate: ## random schedules of faults on a simulated cluster (SEEDS=2000 FIRST=0; a failure names the seed that replays it)
	@scripts/dev-env
	@PYTHONPATH=tests/sim $(PY) -m sim --seeds $(SEEDS) --first $(FIRST) --processes $(PROCESSES)

e2e: ## the tests on a real Kubernetes cluster (kind): set up, install by Helm, train, rescale, break things
	@scripts/dev-env
	@e2e/cluster/cluster.sh up
	@e2e/cluster/images.sh
	@$(PY) -m pytest e2e -m "e2e and not nightly and not alone" --durations=10 -n $(PROCESSES) --dist loadgroup --maxschedchunk 1
	@$(PY) -m pytest e2e -m "e2e and not nightly and alone" --durations=10

# Every framework's example, the browser, an outage of minutes; then what CI runs, on another version of Kubernetes.
nightly-e2e: export ELASTRAIN_NIGHTLY := 1
nightly-e2e: export ELASTRAIN_REQUIRE_BROWSER := 1
nightly-e2e: export ELASTRAIN_OUTAGE_SECONDS := 300
nightly-e2e:
	@scripts/dev-env
	@scripts/get-chromium
	@e2e/cluster/cluster.sh up
	@e2e/cluster/images.sh
	@$(PY) -m pytest e2e -m "e2e and nightly" --durations=10
	@e2e/cluster/cluster.sh down
	@KUBERNETES=$(OTHER_KUBERNETES) $(MAKE) --no-print-directory e2e
	@e2e/cluster/cluster.sh down

cluster: ## a kind cluster of one control plane and two workers, as the e2e tests use it
	@e2e/cluster/cluster.sh up

clean-cluster: ## delete that cluster
	@e2e/cluster/cluster.sh down

lock: ## pin what the images install, by hash (requirements/*.lock), to the newest versions
	@scripts/dev-env
	@.venv/bin/python -m pip install --quiet "uv>=0.9"
	@scripts/lock

sbom: ## a bill of materials (CycloneDX) of each lock, in dist/sbom
	@scripts/sbom

release: ## wheel, sdist, images, chart, bills of materials, notes and checksums in dist/release; publishes nothing
	@scripts/dev-env
	@scripts/release

bench: ## the cost of a rescale, beside stock torchrun: half an hour (docs/benchmarks.md; `bench/rescale.py --help`)
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) bench/rescale.py

bench-steady: ## the cost of a step while nothing happens, beside plain DDP: half an hour
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) bench/steady_state.py

bench-checkpoint: ## what a checkpoint costs, takes and saves, beside torch's asynchronous ones: half an hour
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) bench/checkpoint.py

bench-ettr: ## effective training time under published failures, beside torchrun: an hour
	@scripts/dev-env
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) bench/ettr.py --ranks 8

gpu: ## what one GPU can show, in nine minutes (docs/sharded.md); without one, the same programs with gloo in NCCL's place
	@scripts/dev-env
	@$(PY) bench/gpu.py

bench-operator: ## thousands of jobs on a control plane with simulated nodes, beside batch Jobs: half an hour
	@scripts/dev-env
	@e2e/cluster/build.sh kubernetes helm && scripts/get-kwok
	@etcd=$$(scripts/get-etcd); ELASTRAIN_ETCD=$$etcd $(PY) bench/operator_scale.py
